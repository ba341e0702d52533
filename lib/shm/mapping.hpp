// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>

#include "base/error.hpp"

namespace feedlane::shm {

enum class Access { read_only, read_write };

// A shared mapping of a whole descriptor; unmapped at the end. The descriptor may be closed meanwhile.
class Mapping {
 public:
  Status map(int fd, std::uint64_t bytes, Access access, Error& error);
  void unmap();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  [[nodiscard]] std::uint64_t size() const { return region_.get_size(); }
  // Where the kernel doesn't know an advice nothing is lost but what it is for.
  void advise(int advice) const;

 private:
  boost::interprocess::mapped_region region_;
};

}  // namespace feedlane::shm
