// SPDX-License-Identifier: Apache-2.0
// Memory that the owner has granted this member, for entries to be put. Under the line's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/line.hpp"
#include "base/error.hpp"
#include "os/clock.hpp"
#include "shm/arena_layout.hpp"

namespace feedlane::arena {

class Grants {
 public:
  Grants(Line& line, const shm::ArenaPlan& plan) : line_(line), plan_(plan) { all_.reserve(64); }

  // Takes memory for an entry; waits for it if need be, and asks for memory for the next entry of this size.
  Status take(Line::Lock& lock, std::uint64_t bytes, os::Deadline deadline, std::uint64_t& offset, Error& error);
  void give_back(std::uint64_t offset, std::uint64_t bytes);

 private:
  struct Grant {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  bool try_take(std::uint64_t bytes, std::uint64_t& offset);
  Status await(Line::Lock& lock, std::uint64_t bytes, os::Deadline deadline, std::uint64_t& offset, Error& error);
  void ask_ahead(std::uint64_t bytes);
  void add(const shm::ArenaAnswer& answer);
  void take_late_answers();

  Line& line_;
  const shm::ArenaPlan& plan_;
  std::vector<Grant> all_;
  std::uint64_t ahead_ticket_ = 0;  // of the request for memory for later puts; 0: there is none
};

}  // namespace feedlane::arena
