// SPDX-License-Identifier: Apache-2.0
// Maps descriptors with Boost.Interprocess, and returns errors as values.
#include "shm/mapping.hpp"

#include <sys/mman.h>

namespace feedlane::shm {
namespace {

// The interface that mapped_region expects.
struct Descriptor {
  int fd;
  [[nodiscard]] boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

}  // namespace

Status Mapping::map(int fd, std::uint64_t bytes, Access access, Children children, Error& error) {
  namespace bi = boost::interprocess;
  // A mapping that children must not inherit becomes writable only after MADV_DONTFORK: another thread may fork in
  // between.
  const bool is_writable = access == Access::read_write;
  const bool opens_later = is_writable && children == Children::none;
  try {
    bi::mapped_region region(Descriptor{fd}, is_writable && !opens_later ? bi::read_write : bi::read_only, 0, bytes);
    region_.swap(region);
  } catch (const bi::interprocess_exception& e) {
    (void)error.os(e.get_native_error(), "mapping {} bytes of shared memory", bytes);
    if (e.get_native_error() == ENOMEM) error.code = FEEDLANE_E_MEMORY;
    error.needed = static_cast<std::int64_t>(bytes);
    return error.code;
  }
  Status s = children == Children::none ? keep_from_children(error) : FEEDLANE_OK;
  if (s == FEEDLANE_OK && opens_later &&
      ::mprotect(region_.get_address(), region_.get_size(), PROT_READ | PROT_WRITE) != 0)
    s = error.os(errno, "making {} bytes of shared memory writable", bytes);
  if (s != FEEDLANE_OK) unmap();
  return s;
}

Status Mapping::keep_from_children(Error& error) const {
  if (::madvise(region_.get_address(), region_.get_size(), MADV_DONTFORK) == 0) return FEEDLANE_OK;
  return error.os(errno, "keeping shared memory from forked children");
}

void Mapping::unmap() { boost::interprocess::mapped_region().swap(region_); }

void Mapping::advise(int advice) const { (void)::madvise(region_.get_address(), region_.get_size(), advice); }

}  // namespace feedlane::shm
