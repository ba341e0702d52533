// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint to a file and reads it back.
#include "checkpoint.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "../common/replace_file.hpp"

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

}  // namespace

void Checkpoint::save(const std::string& path) const {
  const Header header{magic, corpus, batch_size, batches, checksum};
  std::vector<char> bytes(sizeof header + loader.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, loader.data(), loader.size());
  common::replace_file(path, bytes);
}

Checkpoint Checkpoint::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": can't be read: " + std::strerror(errno));
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
