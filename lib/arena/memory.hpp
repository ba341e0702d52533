// SPDX-License-Identifier: Apache-2.0
// The memory of an arena: the payload segments, and which parts of them have memory and are in use. Private to the
// owner.
//
// Each member writes its own segment. A segment has addresses for twice the arena, and memory only where it is needed:
// memory moves from one segment to another by punching a hole here and allocating pages there.
//
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arena/extents.hpp"
#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "shm/arena_layout.hpp"

namespace feedlane::arena {

class Memory {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;

  // How many parts the memory that one member was granted may have. A member that follows the rules has at most its
  // reservations, and what its rings and its queues hold, between two of them.
  static constexpr std::uint32_t most_parts(const shm::ArenaGeometry& g) {
    return 2 * (g.leases + 4 * shm::arena_ring_capacity);
  }

  Memory(const shm::ArenaPlan& plan, const os::SystemFiles& files);

  // Creates a segment for a member. E_LIMIT: there are too many.
  Status open(std::uint32_t& segment, Error& error);
  // Its member is gone. The segment stays as long as parts of it are in use.
  void orphan(std::uint32_t segment);
  // Whether its member is gone, and parts of it are in use.
  [[nodiscard]] bool is_orphan(std::uint32_t segment) const {
    return segments_[segment].is_open && segments_[segment].is_orphan;
  }
  [[nodiscard]] std::uint32_t segments() const { return static_cast<std::uint32_t>(segments_.size()); }
  [[nodiscard]] std::uint32_t generation(std::uint32_t segment) const { return segments_[segment].generation; }
  // nullptr: there is no such segment.
  [[nodiscard]] const os::Fd* readable(std::uint32_t segment, std::uint32_t generation) const;
  [[nodiscard]] int writable(std::uint32_t segment) const { return segments_[segment].memory.get(); }

  // Takes `bytes` of a segment, a multiple of Extents::unit, and gives them memory: free memory of the segment, memory that
  // no segment has yet, or else, if `may_move`, free memory of others. E_LIMIT: there is none. E_MEMORY, E_OS: the system
  // has none.
  Status take(std::uint32_t segment, std::uint64_t bytes, bool may_move, std::uint32_t& extent);
  // Whether entries and grants of the segment have so much memory, which may become free.
  [[nodiscard]] bool may_get_back(std::uint32_t segment, std::uint64_t bytes) const {
    return extents_.used_bytes(segment) >= bytes;
  }
  // Makes a part of an extent in use a separate extent. none: there are too many extents.
  std::uint32_t cut(std::uint32_t extent, std::uint64_t offset, std::uint64_t bytes) {
    return extents_.has_room(2) ? extents_.cut(extent, offset, bytes) : none;
  }
  void give_back(std::uint32_t extent);
  [[nodiscard]] const Extents::Extent& at(std::uint32_t extent) const { return extents_.at(extent); }
  [[nodiscard]] const Extents& extents() const { return extents_; }

  [[nodiscard]] std::uint64_t bytes_of(std::span<const std::uint32_t> extents) const {
    std::uint64_t bytes = 0;
    for (const std::uint32_t extent : extents) bytes += extents_.at(extent).bytes;
    return bytes;
  }
  [[nodiscard]] std::uint64_t used_bytes() const { return extents_.used_bytes(); }

 private:
  struct Segment {
    os::Fd memory;
    os::Fd readable;
    std::uint32_t generation = 0;
    bool is_open = false;
    bool is_orphan = false;
  };
  Status check_room(std::uint64_t bytes);
  Status fill(std::uint32_t segment, std::uint64_t bytes, bool may_move);
  bool empty_some(std::uint64_t bytes);
  bool empty_one(std::uint32_t extent);
  void close_if_unused(std::uint32_t segment);

  shm::ArenaPlan plan_;
  os::SystemFiles files_;
  Extents extents_;
  std::vector<Segment> segments_;
  std::uint64_t filled_bytes_ = 0;
  std::uint64_t checked_bytes_ = 0;  // the system had so much more at the last look
};

}  // namespace feedlane::arena
