// SPDX-License-Identifier: Apache-2.0
// Packs the list of files for the workers; finds the shard and the place of a window.
#include "corpus.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "../common/checksum.hpp"

namespace tokens {
namespace {

/// The names follow, each with a terminator.
struct Header {
  uint64_t token_bytes;
  uint64_t length;
};

}  // namespace

std::vector<std::byte> CorpusFiles::pack() const {
  const Header header{token_bytes, length};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  for (const std::string& path : paths) bytes += path + '\0';
  const auto all = std::as_bytes(std::span(bytes));
  return {all.begin(), all.end()};
}

CorpusFiles CorpusFiles::unpack(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() <= sizeof header) throw std::runtime_error("the worker was told no files");
  std::memcpy(&header, bytes.data(), sizeof header);
  CorpusFiles files;
  files.token_bytes = header.token_bytes;
  files.length = header.length;
  const auto* name = reinterpret_cast<const char*>(bytes.data() + sizeof header);
  const auto* const end = reinterpret_cast<const char*>(bytes.data() + bytes.size());
  for (; name < end; name += files.paths.back().size() + 1) files.paths.emplace_back(name);
  return files;
}

Corpus::Corpus(const CorpusFiles& files) : length_(files.length) {
  size_t windows = 0;
  for (const std::string& path : files.paths) {
    shards_.emplace_back(path, files.token_bytes);
    windows += (shards_.back().size() - 1) / length_;
    ends_.push_back(windows);
  }
  if (windows == 0)
    throw std::runtime_error("no file holds a window of " + std::to_string(length_) + " tokens and one more");
}

uint64_t Corpus::fingerprint() const {
  common::Checksum sum;
  sum.add(length_);
  for (const Shard& shard : shards_) sum.add(shard.size());
  return sum.value();
}

void Corpus::read(size_t window, std::span<int32_t> out) const {
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), window);
  const auto shard = static_cast<size_t>(found - ends_.begin());
  const size_t before = shard == 0 ? 0 : ends_[shard - 1];
  shards_[shard].read((window - before) * length_, out);
}

}  // namespace tokens
