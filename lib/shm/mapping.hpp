// SPDX-License-Identifier: Apache-2.0
// A shared mapping of a complete segment.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>

#include "base/error.hpp"

namespace feedlane::shm {

enum class Access { read_only, read_write };

// Whether forked children of this process inherit the mapping.
enum class Children { inherit, none };

// The destructor unmaps. The descriptor may be closed earlier.
class Mapping {
 public:
  // With Children::none, no child ever gets a writable view, no matter when another thread forks.
  Status map(int fd, std::uint64_t bytes, Access access, Children children, Error& error);
  void unmap();
  void swap(Mapping& other) { region_.swap(other.region_); }
  // Children that are forked from here on don't inherit the mapping.
  Status keep_from_children(Error& error) const;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  [[nodiscard]] std::uint64_t size() const { return region_.get_size(); }
  // Ignores errors, because advice is optional.
  void advise(int advice) const;

 private:
  boost::interprocess::mapped_region region_;
};

}  // namespace feedlane::shm
