// SPDX-License-Identifier: Apache-2.0
#include "shm/mapping.hpp"

#include <sys/mman.h>

namespace feedlane::shm {
namespace {

// What mapped_region asks of a thing to map.
struct Descriptor {
  int fd;
  [[nodiscard]] boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

}  // namespace

Status Mapping::map(int fd, std::uint64_t bytes, Access access, Error& error) {
  namespace bi = boost::interprocess;
  try {
    bi::mapped_region region(Descriptor{fd}, access == Access::read_only ? bi::read_only : bi::read_write, 0, bytes);
    region_.swap(region);
  } catch (const bi::interprocess_exception& e) {
    (void)error.os(e.get_native_error(), "mapping %llu bytes of shared memory", static_cast<unsigned long long>(bytes));
    if (e.get_native_error() == ENOMEM) error.code = FEEDLANE_E_MEMORY;
    error.needed = static_cast<std::int64_t>(bytes);
    return error.code;
  }
  return FEEDLANE_OK;
}

void Mapping::unmap() { boost::interprocess::mapped_region().swap(region_); }

void Mapping::advise(int advice) const { (void)::madvise(region_.get_address(), region_.get_size(), advice); }

}  // namespace feedlane::shm
