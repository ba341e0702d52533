// SPDX-License-Identifier: Apache-2.0
#include "os/memfd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

namespace feedlane::os {

Status create_memfd(const char* name, std::uint64_t bytes, Fd& out, Error& error) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return error.os(errno, "memfd_create of %s", name);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return error.os(errno, "ftruncate of %s to %llu bytes", name, static_cast<unsigned long long>(bytes));
  out = std::move(fd);
  return FEEDLANE_OK;
}

Status reserve(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error) {
  // fallocate starts over when a signal interrupts it; with chunks a host that takes signals all the time still gets on.
  constexpr std::uint64_t chunk = std::uint64_t{32} << 20;
  const std::uint64_t end = offset + bytes;
  while (offset < end) {
    const std::uint64_t part = std::min(chunk, end - offset);
    if (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(part)) == 0) {
      offset += part;
    } else if (errno != EINTR) {
      const int reason = errno;
      (void)error.os(reason, "reserving %llu bytes of shared memory", static_cast<unsigned long long>(bytes));
      if (reason == ENOSPC || reason == ENOMEM) error.code = FEEDLANE_E_MEMORY;
      error.needed = static_cast<std::int64_t>(bytes);
      error.found = static_cast<std::int64_t>(bytes - (end - offset));
      return error.code;
    }
  }
  return FEEDLANE_OK;
}

Status add_seals(int fd, int seals, Error& error) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0) return error.os(errno, "sealing shared memory");
  return FEEDLANE_OK;
}

int get_seals(int fd) { return ::fcntl(fd, F_GET_SEALS); }

Status file_size(int fd, std::uint64_t& bytes, Error& error) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return error.os(errno, "fstat of a segment");
  bytes = static_cast<std::uint64_t>(status.st_size);
  return FEEDLANE_OK;
}

}  // namespace feedlane::os
