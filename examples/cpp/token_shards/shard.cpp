// SPDX-License-Identifier: Apache-2.0
// Maps a shard.
#include "shard.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tokens {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are read as they lie in memory");

[[noreturn]] void fail(const std::string& path, const std::string& why) { throw std::runtime_error(path + ": " + why); }

/// Closes `fd`. The mapping lives on.
const void* map_and_close(const std::string& path, int fd, size_t token_bytes, size_t& bytes) {
  struct stat status {};
  const bool known = fstat(fd, &status) == 0;
  bytes = static_cast<size_t>(status.st_size);
  const bool usable = known && S_ISREG(status.st_mode) && bytes > 0 && bytes % token_bytes == 0;
  void* const map = usable ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int error = errno;
  close(fd);
  if (known && !S_ISREG(status.st_mode)) fail(path, "is no regular file");
  if (known && bytes == 0) fail(path, "is empty");
  if (known && !usable)
    fail(path, "has " + std::to_string(bytes) + " bytes, which is no multiple of " + std::to_string(token_bytes) +
                   ", the size of a token (see --token-bytes)");
  if (map == MAP_FAILED) fail(path, std::strerror(error));
  // Windows come from anywhere: what lies around them would be read for nothing.
  (void)madvise(map, bytes, MADV_RANDOM);
  return map;
}

}  // namespace

Shard::Shard(const std::string& path, size_t token_bytes) : token_bytes_(token_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, std::strerror(errno));
  map_ = map_and_close(path, fd, token_bytes, bytes_);
}

Shard::~Shard() {
  if (map_ != nullptr) munmap(const_cast<void*>(map_), bytes_);
}

Shard::Shard(Shard&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)), bytes_(other.bytes_), token_bytes_(other.token_bytes_) {}

void Shard::read(size_t first, std::span<int32_t> out) const {
  if (token_bytes_ == sizeof(int32_t)) {
    std::copy_n(static_cast<const int32_t*>(map_) + first, out.size(), out.begin());
  } else {
    std::copy_n(static_cast<const uint16_t*>(map_) + first, out.size(), out.begin());
  }
}

}  // namespace tokens
