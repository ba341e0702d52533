// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>

#include "base/error.hpp"

namespace feedlane::shm {

enum class Access { read_only, read_write };

// Whether children that this process forks have the mapping too.
enum class Children { inherit, none };

// A shared mapping of a whole descriptor; unmapped at the end. The descriptor may be closed meanwhile.
class Mapping {
 public:
  // For Children::none no child ever gets a view that it could write to, whenever another thread forks.
  Status map(int fd, std::uint64_t bytes, Access access, Children children, Error& error);
  void unmap();
  void swap(Mapping& other) { region_.swap(other.region_); }
  // Children that are forked from here on don't get it.
  Status keep_from_children(Error& error) const;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  [[nodiscard]] std::uint64_t size() const { return region_.get_size(); }
  // Where the kernel doesn't know an advice nothing is lost but what it is for.
  void advise(int advice) const;

 private:
  boost::interprocess::mapped_region region_;
};

}  // namespace feedlane::shm
