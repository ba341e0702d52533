// SPDX-License-Identifier: Apache-2.0
// Which parts of the payload segments are in use, free, or without memory (holes). Private to the owner.
//
// Extents of a segment lie side by side. Two free extents, or two holes, never touch each other. A free extent is found
// in constant time, through lists by size, as in a two-level segregated fit allocator.
//
// Used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace feedlane::arena {

enum class ExtentKind : std::uint8_t { used, free, hole };

class Extents {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr std::uint64_t unit = 256;   // of offsets and sizes
  static constexpr std::uint64_t page = 4096;  // of holes

  struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t segment = 0;
    std::uint32_t before = none, after = none;   // neighbours
    std::uint32_t previous = none, next = none;  // in the list by size
    ExtentKind kind = ExtentKind::used;
  };

  // Reserves addresses for `most` extents, which take memory once they are used; no other function allocates.
  Extents(std::uint32_t segments, std::uint32_t most);

  // The segment becomes one hole.
  void open(std::uint32_t segment, std::uint64_t bytes);
  // All extents of the segment are holes, or free and dropped.
  void close(std::uint32_t segment);
  // Whether a function that makes `more` extents of one would succeed.
  [[nodiscard]] bool has_room(std::uint32_t more) const { return count_ + more <= extents_.capacity(); }

  [[nodiscard]] const Extent& at(std::uint32_t extent) const { return extents_[extent]; }
  // Takes `bytes` of a free extent of the segment. none: there is no such extent. Needs room for 1 extent.
  std::uint32_t take(std::uint32_t segment, std::uint64_t bytes);
  // An extent of this kind with at least `bytes`, or none.
  [[nodiscard]] std::uint32_t find(std::uint32_t segment, ExtentKind kind, std::uint64_t bytes) const;
  // The largest extent of this kind, nearly: one of the longest list that is not empty. none: there is none.
  [[nodiscard]] std::uint32_t find_large(std::uint32_t segment, ExtentKind kind) const;
  // The first `bytes` of a hole become free. Needs room for 1 extent.
  void fill(std::uint32_t hole, std::uint64_t bytes);
  // The whole pages of a free extent, which become a hole: their offset and bytes. Needs room for 2 extents.
  struct Pages {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] Pages pages_of(std::uint32_t free_extent) const;
  void empty(std::uint32_t free_extent);
  // Cuts [offset, offset + bytes) out of an extent in use, whose rest stays in use. Returns the part. Needs room for 2
  // extents.
  std::uint32_t cut(std::uint32_t used, std::uint64_t offset, std::uint64_t bytes);
  // An extent in use becomes free.
  void give_back(std::uint32_t used);
  // Takes a free extent out of its list, before `close`.
  void drop(std::uint32_t free_extent);

  // Sum of a segment's extents in use.
  [[nodiscard]] std::uint64_t used_bytes(std::uint32_t segment) const { return heads_[segment].used_bytes; }
  [[nodiscard]] std::uint64_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] std::uint32_t count() const { return count_; }

 private:
  static constexpr std::uint32_t classes = 160;         // four for each power of two
  static std::uint32_t class_of(std::uint64_t bytes);   // whose extents may have this size
  static std::uint32_t class_for(std::uint64_t bytes);  // the first whose extents all have at least this size

  struct Lists {
    std::array<std::uint32_t, classes> first;
    std::array<std::uint64_t, (classes + 63) / 64> any;  // a bit per list that is not empty
  };
  struct Head {
    std::uint32_t first = none;  // the extent at offset 0
    std::uint64_t used_bytes = 0;
    Lists lists[2];  // free, hole
  };
  static Lists& lists_of(Head& head, ExtentKind kind) { return head.lists[kind == ExtentKind::free ? 0 : 1]; }

  std::uint32_t make();
  void unmake(std::uint32_t extent);
  void set_kind(std::uint32_t extent, ExtentKind kind);  // leaves the lists to the caller
  void link(std::uint32_t extent);
  void unlink(std::uint32_t extent);
  // Splits off the end of an extent from `bytes` on; the new extent has the same kind and is not in a list.
  std::uint32_t split(std::uint32_t extent, std::uint64_t bytes);
  // Joins an extent that is in no list with neighbours of its kind, and enters the result in its list.
  void join(std::uint32_t extent);
  void absorb_next(std::uint32_t extent);

  std::vector<Extent> extents_;  // that exist, or have existed; never beyond its capacity
  std::vector<Head> heads_;
  std::uint32_t unused_ = none;  // list of extents that do not exist, through `next`
  std::uint32_t count_ = 0;
  std::uint64_t used_bytes_ = 0;
};

}  // namespace feedlane::arena
