// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint to a file and reads it back.
#include "checkpoint.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace tokens {
namespace {

constexpr std::array<char, 8> magic{'t', 'o', 'k', 'e', 'n', 's', '0', '1'};

/// The loader's state follows.
struct Header {
  std::array<char, 8> magic;
  uint64_t corpus;
  int64_t batch_size;
  int64_t batches;
  uint64_t checksum;
};

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw std::runtime_error(path + ": " + what + ": " + std::strerror(errno));
}

void write_and_sync(const std::string& path, const std::vector<char>& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail(path, "can't be written");
  size_t written = 0;
  ssize_t n = 0;
  while (written < bytes.size() &&
         ((n = write(fd, bytes.data() + written, bytes.size() - written)) > 0 || errno == EINTR))
    if (n > 0) written += static_cast<size_t>(n);
  const bool kept = written == bytes.size() && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  if (!kept) fail(path, "can't be written");
}

/// The new name is on the disk too.
void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(folder, "can't be opened");
  (void)fsync(fd);  // some file systems have no such thing for folders
  close(fd);
}

}  // namespace

void Checkpoint::save(const std::string& path) const {
  const Header header{magic, corpus, batch_size, batches, checksum};
  std::vector<char> bytes(sizeof header + loader.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, loader.data(), loader.size());
  const std::string beside = path + ".new";
  write_and_sync(beside, bytes);
  if (rename(beside.c_str(), path.c_str()) != 0) fail(path, "can't be replaced");
  sync_folder_of(path);
}

Checkpoint Checkpoint::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "can't be read");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Header header;
  if (bytes.size() <= sizeof header || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    throw std::runtime_error(path + ": holds no state of this program");
  std::memcpy(&header, bytes.data(), sizeof header);
  Checkpoint checkpoint{header.corpus, header.batch_size, header.batches, header.checksum, {}};
  checkpoint.loader.resize(bytes.size() - sizeof header);
  std::memcpy(checkpoint.loader.data(), bytes.data() + sizeof header, checkpoint.loader.size());
  return checkpoint;
}

}  // namespace tokens
