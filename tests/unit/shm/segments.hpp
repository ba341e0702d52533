// SPDX-License-Identifier: Apache-2.0
// A small loader's segments, and changed copies of them.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <string>

#include "os/memfd.hpp"
#include "shm/segment.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace feedlane::test {

inline shm::Geometry small_geometry() {
  shm::Geometry g{};
  g.workers = 2;
  g.world = 1;
  g.slots = 4;
  g.max_rows = 3;
  g.field_count = 1;
  g.ring_capacity = 4;
  g.config_bytes = 10;
  g.slot_bytes = g.reserved_bytes = 5000;
  g.list_bytes = 3 * sizeof(std::int64_t);
  g.base_seed = 77;
  return g;
}

inline void create(shm::Segments& segments, const shm::Geometry& geometry = small_geometry()) {
  shm::Plan plan;
  Error error;
  REQUIRE(shm::make_plan(geometry, plan, error) == FEEDLANE_OK);
  const Status s = segments.create(plan, {}, error);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
}

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
inline int seals_of(shm::SegmentKind kind) {
  return kind == shm::SegmentKind::control ? size_seals | F_SEAL_FUTURE_WRITE : size_seals;
}

// A memfd of `bytes` with the content of another, as far as it goes, changed by `edit` before it is sealed.
template <class Edit>
os::Fd changed_copy(int fd, std::uint64_t bytes, int seals, Edit&& edit) {
  os::Fd copy;
  Error error;
  REQUIRE(os::create_memfd("feedlane-test", bytes, copy, error) == FEEDLANE_OK);
  std::string content(bytes, '\0');
  REQUIRE(::pread(fd, content.data(), content.size(), 0) >= 0);
  edit(reinterpret_cast<std::byte*>(content.data()));
  REQUIRE(::pwrite(copy.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(bytes));
  REQUIRE(os::add_seals(copy.get(), seals, error) == FEEDLANE_OK);
  return copy;
}

}  // namespace feedlane::test
