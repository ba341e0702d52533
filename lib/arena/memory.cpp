// SPDX-License-Identifier: Apache-2.0
// Gives parts of payload segments memory, and takes it back.
#include "arena/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "os/memfd.hpp"

namespace feedlane::arena {
namespace {

// Enough that no member can use up the extents that others need. An entry, or a part of a grant, has at most two free
// extents and a hole between them behind it; further free extents consist of pages, and each has a hole behind it.
std::uint32_t most_extents(const shm::ArenaGeometry& g) {
  const std::uint64_t in_use = g.entries + std::uint64_t{g.members} * Memory::most_parts(g) + g.segments;
  const std::uint64_t most =
      std::min(4 * in_use + 2 * g.bytes / Extents::page, 2 * g.bytes / Extents::unit + 2 * g.segments);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, UINT32_MAX - 1));
}

}  // namespace

Memory::Memory(const shm::ArenaPlan& plan, const os::SystemFiles& files)
    : plan_(plan),
      files_(files),
      extents_(plan.geometry.segments, most_extents(plan.geometry)),
      segments_(plan.geometry.segments) {}

Status Memory::open(std::uint32_t& segment, Error& error) {
  const auto it = std::find_if(segments_.begin(), segments_.end(), [](const Segment& s) { return !s.is_open; });
  if (it == segments_.end() || !extents_.has_room(1))
    return error.refuse(FEEDLANE_E_LIMIT, "arena", segments_.size(), segments_.size() + 1,
                        "{} members, most of which have ended, have entries that may not be evicted: drop some",
                        segments_.size());
  os::Fd memory, readable;
  Status s = os::create_memfd("feedlane-arena", plan_.payload_bytes, memory, error);
  if (s == FEEDLANE_OK) s = os::open_for_reading(memory.get(), readable, error);
  if (s == FEEDLANE_OK) s = os::forbid_opening_for_writing(memory.get(), error);
  if (s == FEEDLANE_OK) s = os::add_seals(memory.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, error);
  if (s != FEEDLANE_OK) return s;
  segment = static_cast<std::uint32_t>(it - segments_.begin());
  it->memory = std::move(memory);
  it->readable = std::move(readable);
  it->generation++;
  it->is_open = true;
  it->is_orphan = false;
  extents_.open(segment, plan_.payload_bytes);
  return s;
}

void Memory::orphan(std::uint32_t segment) {
  segments_[segment].is_orphan = true;
  close_if_unused(segment);
}

void Memory::close_if_unused(std::uint32_t segment) {
  Segment& s = segments_[segment];
  if (!s.is_open || !s.is_orphan || extents_.used_bytes(segment) != 0) return;
  // Members that have mapped it keep the mapping for a while, but not the memory.
  Error ignored;
  (void)os::give_back(s.memory.get(), 0, plan_.payload_bytes, ignored);
  for (std::uint32_t e; (e = extents_.find_large(segment, ExtentKind::free)) != Extents::none;) {
    filled_bytes_ -= extents_.at(e).bytes;
    extents_.drop(e);
  }
  extents_.close(segment);
  s.memory.reset();
  s.readable.reset();
  s.is_open = false;
}

const os::Fd* Memory::readable(std::uint32_t segment, std::uint32_t generation) const {
  if (segment >= segments_.size() || !segments_[segment].is_open || segments_[segment].generation != generation)
    return nullptr;
  return &segments_[segment].readable;
}

Status Memory::take(std::uint32_t segment, std::uint64_t bytes, bool may_move, std::uint32_t& extent) {
  if (!extents_.has_room(4)) return FEEDLANE_E_LIMIT;
  extent = extents_.take(segment, bytes);
  if (extent != Extents::none) return FEEDLANE_OK;
  if (const Status s = fill(segment, bytes, may_move); s != FEEDLANE_OK) return s;
  extent = extents_.take(segment, bytes);
  return extent != Extents::none ? FEEDLANE_OK : FEEDLANE_E_LIMIT;
}

// The system is asked for more than is needed now, because the answer takes a tenth of a millisecond.
Status Memory::check_room(std::uint64_t bytes) {
  constexpr std::uint64_t ahead = std::uint64_t{32} << 20;
  if (bytes > checked_bytes_) {
    const std::uint64_t asked = std::max(bytes, ahead);
    Error error;
    Status s = os::check_room(asked, files_, error);
    if (s != FEEDLANE_OK && asked > bytes) s = os::check_room(bytes, files_, error);
    if (s != FEEDLANE_OK) return s;
    checked_bytes_ = asked;
  }
  checked_bytes_ -= bytes;
  return FEEDLANE_OK;
}

// Gives a hole of the segment memory, within the arena's budget.
Status Memory::fill(std::uint32_t segment, std::uint64_t bytes, bool may_move) {
  bytes = (bytes + Extents::page - 1) & ~(Extents::page - 1);
  const std::uint64_t budget = plan_.geometry.bytes;
  const std::uint64_t missing = filled_bytes_ + bytes - std::min(budget, filled_bytes_ + bytes);
  if (missing != 0 && (!may_move || !empty_some(missing))) return FEEDLANE_E_LIMIT;
  const std::uint32_t hole = extents_.find(segment, ExtentKind::hole, bytes);
  if (hole == Extents::none) return FEEDLANE_E_LIMIT;  // its addresses are in too many parts
  Error error;
  Status s = check_room(bytes);
  if (s == FEEDLANE_OK) s = os::reserve(segments_[segment].memory.get(), extents_.at(hole).offset, bytes, error);
  if (s != FEEDLANE_OK) return s;
  extents_.fill(hole, bytes);
  filled_bytes_ += bytes;
  return s;
}

// Takes `bytes` of memory back from free extents. False: they don't have so much.
bool Memory::empty_some(std::uint64_t bytes) {
  const std::uint64_t until = filled_bytes_ - std::min(bytes, filled_bytes_);
  for (std::uint32_t segment = 0; segment < segments_.size() && filled_bytes_ > until; segment++) {
    if (!segments_[segment].is_open) continue;
    for (std::uint32_t e = extents_.find_large(segment, ExtentKind::free); e != Extents::none;) {
      if (!empty_one(e) || filled_bytes_ <= until) break;
      e = extents_.find_large(segment, ExtentKind::free);
    }
  }
  return filled_bytes_ <= until;
}

bool Memory::empty_one(std::uint32_t extent) {
  const Extents::Pages pages = extents_.pages_of(extent);
  if (pages.bytes == 0 || !extents_.has_room(2)) return false;
  Error ignored;
  const std::uint32_t segment = extents_.at(extent).segment;
  if (os::give_back(segments_[segment].memory.get(), pages.offset, pages.bytes, ignored) != FEEDLANE_OK) return false;
  extents_.empty(extent);
  filled_bytes_ -= pages.bytes;
  return true;
}

void Memory::give_back(std::uint32_t extent) {
  const std::uint32_t segment = extents_.at(extent).segment;
  extents_.give_back(extent);
  close_if_unused(segment);
}

}  // namespace feedlane::arena
