// SPDX-License-Identifier: Apache-2.0
// What a member's process can reach of its arena, found without asking the library.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "crash/hostile.hpp"
#include "os/event.hpp"
#include "ring/spsc.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::test::arenas {

struct Mapping {
  std::byte* at = nullptr;
  std::uint64_t bytes = 0;
  bool is_writable = false;
  std::string name;
};

// Of all arenas of this process.
inline std::vector<Mapping> mappings() {
  std::vector<Mapping> all;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  for (char line[512]; maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr;) {
    const char* name = std::strstr(line, "feedlane-arena");
    if (name == nullptr) continue;
    char* rest = nullptr;
    const std::uint64_t from = std::strtoull(line, &rest, 16), to = std::strtoull(rest + 1, &rest, 16);
    all.push_back(
        {reinterpret_cast<std::byte*>(from), to - from, rest[2] == 'w', std::string(name, std::strcspn(name, " \n"))});
  }
  if (maps != nullptr) (void)std::fclose(maps);
  return all;
}

struct MemberInside {
  // `inherited`: what was mapped before this process joined.
  explicit MemberInside(const std::vector<Mapping>& inherited = {}) {
    std::set<std::byte*> not_its;
    for (const Mapping& m : inherited) not_its.insert(m.at);
    Mapping control_mapping, answers;
    for (const Mapping& m : mappings()) {
      if (not_its.contains(m.at)) continue;
      if (m.name == shm::arena_control_name) control_mapping = m;
      if (m.name == shm::arena_member_name && m.is_writable) member = m;
      if (m.name == "feedlane-arena-answers") answers = m;
      if (m.name == "feedlane-arena" && m.is_writable) payload = m;
    }
    control = control_mapping.at;
    if (control == nullptr || member.at == nullptr || answers.at == nullptr || payload.at == nullptr) ::_exit(99);
    feedlane::Error error;
    if (shm::make_arena_plan(*reinterpret_cast<const shm::ArenaGeometry*>(control + sizeof(shm::SegmentHeader)), plan,
                             error) != FEEDLANE_OK)
      ::_exit(98);
    words = reinterpret_cast<const shm::ArenaAnswers*>(answers.at + plan.answers);
    row = reinterpret_cast<shm::ArenaMemberRow*>(member.at + plan.row);
    leases = reinterpret_cast<shm::Word64*>(member.at + plan.leases);
    uses = reinterpret_cast<shm::Word64*>(member.at + plan.uses);
    std::vector<int> sockets;
    find_descriptors(events, sockets);
    if (sockets.empty() || events.empty()) ::_exit(97);
    socket = sockets.back();
  }
  [[nodiscard]] ring::Cells request_cells() const {
    return {member.at + plan.request_cells, shm::arena_request_cell, shm::arena_ring_capacity};
  }
  // Rings every bell that this process has.
  void ring() const {
    for (const int event : events) os::ring_event(event);
  }
  void say(const std::string& message, const std::vector<int>& fds = {}) const {
    (void)send_over(socket, message.data(), message.size(), fds);
  }

  shm::ArenaPlan plan;
  const std::byte* control = nullptr;
  Mapping member, payload;
  const shm::ArenaAnswers* words = nullptr;
  shm::ArenaMemberRow* row = nullptr;
  shm::Word64* leases = nullptr;
  shm::Word64* uses = nullptr;
  std::vector<int> events;
  int socket = -1;
};

}  // namespace feedlane::test::arenas
