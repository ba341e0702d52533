// SPDX-License-Identifier: Apache-2.0
// Writes beside the file, syncs, renames.
#include "replace_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace common {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw std::runtime_error(path + ": " + what + ": " + std::strerror(errno));
}

void write_and_sync(const std::string& path, std::span<const char> bytes) {
  (void)unlink(path.c_str());  // what a failure has left, or a link that somebody has put there
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
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

void replace_file(const std::string& path, std::span<const char> bytes) {
  const std::string beside = path + ".new";
  write_and_sync(beside, bytes);
  if (rename(beside.c_str(), path.c_str()) != 0) fail(path, "can't be replaced");
  sync_folder_of(path);
}

}  // namespace common
