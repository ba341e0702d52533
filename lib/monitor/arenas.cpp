// SPDX-License-Identifier: Apache-2.0
// Reads an arena's control segment, and the segments of its members, of which the owner keeps the descriptors.
#include "monitor/arenas.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "monitor/files.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::monitor {
namespace {

// Nothing is mapped: a faulty owner or member could shrink a file, or write while it is read. False: the file is short.
bool read_at(int fd, std::uint64_t offset, void* out, std::size_t bytes) {
  return ::pread(fd, out, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool is_arena(int fd) {
  shm::SegmentHeader header{};
  return read_at(fd, 0, &header, sizeof header) && header.magic == shm::segment_magic &&
         header.kind == static_cast<std::uint32_t>(shm::SegmentKind::arena_control);
}

Status check_layout(int fd, shm::ArenaPlan& plan, Error& error) {
  shm::SegmentHeader header{};
  shm::ArenaGeometry geometry{};
  struct stat about {};
  if (!read_at(fd, 0, &header, sizeof header) || !read_at(fd, sizeof header, &geometry, sizeof geometry) ||
      ::fstat(fd, &about) != 0)
    return error.fail(FEEDLANE_E_CORRUPT, "the arena's control segment is too short");
  constexpr auto layout = static_cast<std::uint32_t>(shm::arena_layout_hash);
  if (geometry.layout != layout)
    return error.refuse(FEEDLANE_E_ABI, "layout", geometry.layout, layout,
                        "the arena's owner uses a library of another version, with another layout of memory");
  if (shm::make_arena_plan(geometry, plan, error) != FEEDLANE_OK) return error.code = FEEDLANE_E_CORRUPT;
  if (static_cast<std::uint64_t>(about.st_size) != plan.control_bytes)
    return error.refuse(FEEDLANE_E_CORRUPT, "control", about.st_size, plan.control_bytes,
                        "the arena's control segment has {} bytes instead of {}", about.st_size, plan.control_bytes);
  return FEEDLANE_OK;
}

// A copy of words that other processes write: each word is read whole by the kernel, and they need not agree.
struct Block {
  std::uint64_t member_count, entries, used_bytes, published, evicted, ended_hits, ended_misses;
};
static_assert(sizeof(Block) == offsetof(shm::ArenaBlock, ended_misses) - offsetof(shm::ArenaBlock, member_count) + 8);
struct Facts {
  std::uint64_t number, pid, file, state, waiting, granted_bytes, reserved[2];
};
static_assert(sizeof(Facts) == sizeof(shm::ArenaMemberFacts));

// Adds the member's leases to `leased`.
void read_member(int fd, const shm::ArenaPlan& plan, feedlane_arena_member& out, std::vector<std::uint64_t>& leased) {
  std::uint64_t in_use = 0;
  const std::uint64_t row = plan.row;
  if (!read_at(fd, row + offsetof(shm::ArenaMemberRow, leases_in_use), &in_use, sizeof in_use) ||
      !read_at(fd, row + offsetof(shm::ArenaMemberRow, hits), &out.hits, sizeof out.hits) ||
      !read_at(fd, row + offsetof(shm::ArenaMemberRow, misses), &out.misses, sizeof out.misses))
    return;
  std::vector<std::uint64_t> leases(std::min<std::uint64_t>(in_use, plan.geometry.leases));
  if (!read_at(fd, plan.leases, leases.data(), leases.size() * sizeof(std::uint64_t))) return;
  std::erase(leases, 0);
  out.held = leases.size();
  leased.insert(leased.end(), leases.begin(), leases.end());
}

}  // namespace

Status read_arena(std::int64_t pid, std::int32_t nth, feedlane_arena_stats& out,
                  std::vector<feedlane_arena_member>& members, Error& error) {
  if (nth < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "nth", nth, 0, "nth is {}: arenas are counted from 0", nth);
  std::vector<os::OpenFile> memfds;
  if (const Status s = list_memfds(pid, memfds, error); s != FEEDLANE_OK) return s;
  os::Fd control;
  for (const File& file : files_of(pid, memfds, shm::arena_control_name)) {
    if (const Status s = open_file(pid, file, control, error); s != FEEDLANE_OK) return s;
    if (control && is_arena(control.get()) && nth-- == 0) break;
    control.reset();
  }
  if (!control) return FEEDLANE_END;
  shm::ArenaPlan plan;
  Status s = check_is_reserved(control.get(), error);
  if (s == FEEDLANE_OK) s = check_layout(control.get(), plan, error);
  if (s != FEEDLANE_OK) return s;
  Block block{};
  if (!read_at(control.get(), plan.block + offsetof(shm::ArenaBlock, member_count), &block, sizeof block))
    return error.fail(FEEDLANE_E_CORRUPT, "the arena's control segment is too short");
  std::vector<Facts> facts(std::min<std::uint64_t>(block.member_count, plan.geometry.members));
  if (!read_at(control.get(), plan.members, facts.data(), facts.size() * sizeof(Facts)))
    return error.fail(FEEDLANE_E_CORRUPT, "the arena's control segment is too short");
  out = {};
  out.size = sizeof out;
  out.owner = pid;
  out.bytes = plan.geometry.bytes;
  out.used_bytes = block.used_bytes;
  out.free_bytes = out.bytes - std::min(out.bytes, block.used_bytes);
  out.entries = block.entries;
  out.members = facts.size();
  out.published = block.published;
  out.evicted = block.evicted;
  out.hits = block.ended_hits;
  out.misses = block.ended_misses;
  const std::vector<File> files = files_of(pid, memfds, shm::arena_member_name);
  std::vector<std::uint64_t> leased;
  for (const Facts& f : facts) {
    feedlane_arena_member member{};
    member.size = sizeof member;
    member.pid = static_cast<std::int64_t>(f.pid);
    member.number = static_cast<std::uint32_t>(f.number);
    member.cut_off = f.state == 3 ? 1 : 0;
    member.waiting = f.waiting;
    member.granted_bytes = f.granted_bytes;
    const auto file = std::find_if(files.begin(), files.end(), [&](const File& one) { return one.id.inode == f.file; });
    os::Fd fd;
    if (file != files.end())
      if (s = open_file(pid, *file, fd, error); s != FEEDLANE_OK) return s;
    if (fd) read_member(fd.get(), plan, member, leased);
    out.waiting += member.waiting;
    out.hits += member.hits;
    out.misses += member.misses;
    members.push_back(member);
  }
  std::sort(leased.begin(), leased.end());
  out.leased = static_cast<std::uint64_t>(std::unique(leased.begin(), leased.end()) - leased.begin());
  return FEEDLANE_OK;
}

}  // namespace feedlane::monitor
