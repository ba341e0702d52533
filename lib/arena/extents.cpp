// SPDX-License-Identifier: Apache-2.0
// Extents of the payload segments: lists by size, splitting, joining.
#include "arena/extents.hpp"

#include <bit>

namespace feedlane::arena {

Extents::Extents(std::uint32_t segments, std::uint32_t most) : heads_(segments) {
  extents_.reserve(most);
  for (Head& head : heads_)
    for (Lists& lists : head.lists) {
      lists.first.fill(none);
      lists.any.fill(0);
    }
}

// Four classes for each power of two: class 4 (e - 8) + q has sizes from 2^e (1 + q / 4) on.
std::uint32_t Extents::class_of(std::uint64_t bytes) {
  const auto e = static_cast<std::uint32_t>(std::bit_width(bytes) - 1);
  const auto quarter = static_cast<std::uint32_t>(bytes >> (e - 2)) & 3;
  return 4 * (e - 8) + quarter;
}

std::uint32_t Extents::class_for(std::uint64_t bytes) {
  const auto e = static_cast<std::uint32_t>(std::bit_width(bytes) - 1);
  const std::uint64_t step = std::uint64_t{1} << (e - 2);
  return class_of((bytes + step - 1) & ~(step - 1));
}

// ---- records ----

std::uint32_t Extents::make() {
  count_++;
  if (unused_ == none) {
    extents_.emplace_back();
    return static_cast<std::uint32_t>(extents_.size() - 1);
  }
  const std::uint32_t extent = unused_;
  unused_ = extents_[extent].next;
  return extent;
}

void Extents::unmake(std::uint32_t extent) {
  extents_[extent] = {};
  extents_[extent].next = unused_;
  unused_ = extent;
  count_--;
}

void Extents::set_kind(std::uint32_t extent, ExtentKind kind) {
  Extent& e = extents_[extent];
  Head& head = heads_[e.segment];
  if (e.kind == ExtentKind::used) head.used_bytes -= e.bytes, used_bytes_ -= e.bytes;
  if (kind == ExtentKind::used) head.used_bytes += e.bytes, used_bytes_ += e.bytes;
  e.kind = kind;
}

// ---- lists ----

void Extents::link(std::uint32_t extent) {
  Extent& e = extents_[extent];
  Lists& lists = lists_of(heads_[e.segment], e.kind);
  const std::uint32_t c = class_of(e.bytes);
  e.previous = none;
  e.next = lists.first[c];
  if (e.next != none) extents_[e.next].previous = extent;
  lists.first[c] = extent;
  lists.any[c / 64] |= std::uint64_t{1} << (c % 64);
}

void Extents::unlink(std::uint32_t extent) {
  Extent& e = extents_[extent];
  Lists& lists = lists_of(heads_[e.segment], e.kind);
  const std::uint32_t c = class_of(e.bytes);
  if (e.next != none) extents_[e.next].previous = e.previous;
  if (e.previous != none) extents_[e.previous].next = e.next;
  else lists.first[c] = e.next;
  if (lists.first[c] == none) lists.any[c / 64] &= ~(std::uint64_t{1} << (c % 64));
}

std::uint32_t Extents::find(std::uint32_t segment, ExtentKind kind, std::uint64_t bytes) const {
  const Lists& lists = heads_[segment].lists[kind == ExtentKind::free ? 0 : 1];
  const std::uint32_t from = class_for(bytes);
  for (std::uint32_t w = from / 64; w < lists.any.size(); w++) {
    std::uint64_t any = lists.any[w];
    if (w == from / 64) any &= ~std::uint64_t{0} << (from % 64);
    if (any != 0) return lists.first[w * 64 + static_cast<std::uint32_t>(std::countr_zero(any))];
  }
  // An extent of the class below may be large enough.
  for (std::uint32_t e = lists.first[class_of(bytes)]; e != none; e = extents_[e].next)
    if (extents_[e].bytes >= bytes) return e;
  return none;
}

std::uint32_t Extents::find_large(std::uint32_t segment, ExtentKind kind) const {
  const Lists& lists = heads_[segment].lists[kind == ExtentKind::free ? 0 : 1];
  for (std::size_t w = lists.any.size(); w-- > 0;)
    if (lists.any[w] != 0) return lists.first[w * 64 + 63 - static_cast<std::size_t>(std::countl_zero(lists.any[w]))];
  return none;
}

// ---- splitting and joining ----

std::uint32_t Extents::split(std::uint32_t extent, std::uint64_t bytes) {
  const std::uint32_t rest = make();
  Extent& e = extents_[extent];
  Extent& r = extents_[rest];
  r = {};
  r.segment = e.segment;
  r.kind = e.kind;
  r.offset = e.offset + bytes;
  r.bytes = e.bytes - bytes;
  r.before = extent;
  r.after = e.after;
  if (e.after != none) extents_[e.after].before = rest;
  e.after = rest;
  e.bytes = bytes;
  return rest;
}

void Extents::absorb_next(std::uint32_t extent) {
  Extent& e = extents_[extent];
  const std::uint32_t after = e.after;
  e.bytes += extents_[after].bytes;
  e.after = extents_[after].after;
  if (e.after != none) extents_[e.after].before = extent;
  unmake(after);
}

void Extents::join(std::uint32_t extent) {
  const ExtentKind kind = extents_[extent].kind;
  if (const std::uint32_t after = extents_[extent].after; after != none && extents_[after].kind == kind) {
    unlink(after);
    absorb_next(extent);
  }
  if (const std::uint32_t before = extents_[extent].before; before != none && extents_[before].kind == kind) {
    unlink(before);
    absorb_next(before);
    extent = before;
  }
  link(extent);
}

void Extents::open(std::uint32_t segment, std::uint64_t bytes) {
  const std::uint32_t extent = make();
  Extent& e = extents_[extent];
  e = {};
  e.segment = segment;
  e.bytes = bytes;
  e.kind = ExtentKind::hole;
  heads_[segment].first = extent;
  heads_[segment].used_bytes = 0;
  link(extent);
}

void Extents::drop(std::uint32_t free_extent) {
  unlink(free_extent);
  extents_[free_extent].kind = ExtentKind::used;  // in no list
}

void Extents::close(std::uint32_t segment) {
  for (std::uint32_t e = heads_[segment].first; e != none;) {
    const std::uint32_t after = extents_[e].after;
    if (extents_[e].kind != ExtentKind::used) unlink(e);
    unmake(e);
    e = after;
  }
  heads_[segment].first = none;
}

std::uint32_t Extents::take(std::uint32_t segment, std::uint64_t bytes) {
  const std::uint32_t extent = find(segment, ExtentKind::free, bytes);
  if (extent == none) return none;
  unlink(extent);
  if (extents_[extent].bytes > bytes) link(split(extent, bytes));
  set_kind(extent, ExtentKind::used);
  return extent;
}

void Extents::fill(std::uint32_t hole, std::uint64_t bytes) {
  unlink(hole);
  if (extents_[hole].bytes > bytes) link(split(hole, bytes));
  set_kind(hole, ExtentKind::free);
  join(hole);
}

Extents::Pages Extents::pages_of(std::uint32_t free_extent) const {
  const Extent& e = extents_[free_extent];
  const std::uint64_t begin = (e.offset + page - 1) & ~(page - 1);
  const std::uint64_t end = (e.offset + e.bytes) & ~(page - 1);
  return {begin, end > begin ? end - begin : 0};
}

void Extents::empty(std::uint32_t free_extent) {
  const Pages pages = pages_of(free_extent);
  unlink(free_extent);
  std::uint32_t middle = free_extent;
  if (pages.offset > extents_[middle].offset) {
    middle = split(middle, pages.offset - extents_[middle].offset);
    link(free_extent);
  }
  if (extents_[middle].bytes > pages.bytes) link(split(middle, pages.bytes));
  set_kind(middle, ExtentKind::hole);
  join(middle);
}

std::uint32_t Extents::cut(std::uint32_t used, std::uint64_t offset, std::uint64_t bytes) {
  if (offset > extents_[used].offset) used = split(used, offset - extents_[used].offset);
  if (extents_[used].bytes > bytes) (void)split(used, bytes);
  return used;
}

void Extents::give_back(std::uint32_t used) {
  set_kind(used, ExtentKind::free);
  join(used);
}

}  // namespace feedlane::arena
