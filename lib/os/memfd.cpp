// SPDX-License-Identifier: Apache-2.0
// memfds: creation, reservation in chunks, seals.
#include "os/memfd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "os/signals.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U  // Linux 6.3
#endif

namespace feedlane::os {
namespace {

// Blocks signals during fallocate. Kernels before about 6.10 undo the entire allocation when a signal is pending, so
// with frequent signals it would never succeed. Returns 0, or errno.
int allocate_undisturbed(int fd, std::uint64_t offset, std::uint64_t bytes) {
  const SignalBlock block;
  return ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

// Doesn't move the memfd to a higher number, as is done with other descriptors, because another thread could print into
// it before the move. A memfd with a low number stays open, to occupy the number, until one above 2 exists, and is then
// discarded.
int create_above_stdio(const char* name, unsigned flags) {
  const int fd = ::memfd_create(name, flags);
  if (fd < 0 || fd > 2) return fd;
  const int above = create_above_stdio(name, flags);
  const int reason = errno;
  (void)::close(fd);
  errno = reason;
  return above;
}

}  // namespace

Status create_memfd(const char* name, std::uint64_t bytes, Fd& out, Error& error) {
  Fd fd(create_above_stdio(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd.reset(create_above_stdio(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return error.os(errno, "memfd_create of {}", name);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return error.os(errno, "ftruncate of {} to {} bytes", name, bytes);
  out = std::move(fd);
  return FEEDLANE_OK;
}

Status reserve(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error) {
  // Allocating a chunk takes about a millisecond. A signal to the host waits no longer than that.
  constexpr std::uint64_t chunk = std::uint64_t{8} << 20;
  const std::uint64_t end = offset + bytes;
  while (offset < end) {
    const std::uint64_t part = std::min(chunk, end - offset);
    const int reason = allocate_undisturbed(fd, offset, part);
    if (reason == 0) {
      offset += part;
    } else if (reason != EINTR) {  // EINTR: a signal that can't be blocked, which ends this process or comes only once
      (void)error.os(reason, "reserving {} bytes of shared memory", bytes);
      if (reason == ENOSPC || reason == ENOMEM) error.code = FEEDLANE_E_MEMORY;
      error.needed = static_cast<std::int64_t>(bytes);
      error.found = static_cast<std::int64_t>(bytes - (end - offset));
      return error.code;
    }
  }
  return FEEDLANE_OK;
}

Status add_seals(int fd, int seals, Error& error) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0 || ::fcntl(fd, F_SETFL, O_APPEND) != 0)
    return error.os(errno, "sealing shared memory");
  return FEEDLANE_OK;
}

int get_seals(int fd) { return ::fcntl(fd, F_GET_SEALS); }

Status file_size(int fd, std::uint64_t& bytes, Error& error) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return error.os(errno, "fstat of a segment");
  bytes = static_cast<std::uint64_t>(status.st_size);
  return FEEDLANE_OK;
}

Status file_id(int fd, FileId& out, Error& error) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return error.os(errno, "fstat of a segment");
  out = {status.st_dev, status.st_ino};
  return FEEDLANE_OK;
}

Status forbid_opening_for_writing(int fd, Error& error) {
  return ::fchmod(fd, S_IRUSR) == 0 ? FEEDLANE_OK : error.os(errno, "fchmod of a segment");
}

bool may_be_opened_for_writing(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && (status.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) != 0;
}

Status open_for_reading(int fd, Fd& out, Error& error) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  out.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!out) return error.os(errno, "opening a segment through {}", path.c_str());
  FileId ours, theirs;
  Status s = file_id(fd, ours, error);
  if (s == FEEDLANE_OK) s = file_id(out.get(), theirs, error);
  if (s == FEEDLANE_OK && ours != theirs)
    s = error.fail(FEEDLANE_E_OS, "{} is not the expected file: is /proc mounted?", path.c_str());
  return s;
}

std::uint64_t first_hole(int fd, std::uint64_t offset) {
  const off_t found = ::lseek(fd, static_cast<off_t>(offset), SEEK_HOLE);
  return found < 0 ? offset : static_cast<std::uint64_t>(found);
}

std::uint64_t first_data(int fd, std::uint64_t offset, std::uint64_t end) {
  const off_t found = ::lseek(fd, static_cast<off_t>(offset), SEEK_DATA);
  return found < 0 ? end : static_cast<std::uint64_t>(found);
}

Status give_back(int fd, std::uint64_t offset, std::uint64_t bytes, Error& error) {
  int done = -1;
  do
    done = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(bytes));
  while (done != 0 && errno == EINTR);
  if (done == 0) return FEEDLANE_OK;
  return error.os(errno, "freeing {} bytes of shared memory", bytes);
}

}  // namespace feedlane::os
