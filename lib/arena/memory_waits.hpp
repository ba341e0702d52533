// SPDX-License-Identifier: Apache-2.0
// Members that wait for memory, and which of them gets what becomes free. Private to the owner.
//
// Memory moves from one segment to another page by page: the system takes it and clears it, which can take longer than
// to fill it. So a member whose own memory may come back waits for that first, about as long as a move takes.
//
// Used by one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena/peer.hpp"
#include "arena/store.hpp"
#include "os/clock.hpp"
#include "os/quick_clock.hpp"

namespace feedlane::arena {

class MemoryWaits {
 public:
  struct Wait {
    std::uint32_t member = 0;
    std::uint64_t ticket = 0;
    std::uint64_t bytes = 0;
    std::int64_t since_ns = 0;
  };

  // May throw bad_alloc, without effect.
  void add(std::uint32_t member, std::uint64_t ticket, std::uint64_t bytes) {
    all_.push_back({member, ticket, bytes, os::QuickClock::now_ns()});
  }
  void cancel(std::uint32_t member, std::uint64_t ticket) {
    std::erase_if(all_, [=](const Wait& w) { return w.member == member && w.ticket == ticket; });
  }
  void forget(std::uint32_t member) {
    std::erase_if(all_, [=](const Wait& w) { return w.member == member; });
  }
  [[nodiscard]] bool empty() const { return all_.empty(); }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  [[nodiscard]] std::size_t count(std::uint32_t member) const {
    return static_cast<std::size_t>(
        std::count_if(all_.begin(), all_.end(), [=](const Wait& w) { return w.member == member; }));
  }

  // Whether the member gets memory of others without waiting for its own.
  static bool may_move(const Store& store, const Peer& peer, std::uint64_t bytes) {
    return store.may_evict() || !store.memory.may_get_back(peer.segment, bytes);
  }
  // Ends the waits that can end, in the order in which they began, except that a member may get its own memory before
  // others get it. A wait that has lasted for long goes before all, so that no large entry waits for ever.
  // `find(member)` returns its peer; nullptr: the wait is void. `end(peer, wait, status, extent)`. True: a wait ended.
  template <class Find, class End>
  bool serve(Store& store, Find&& find, End&& end) {
    const std::int64_t now = looked_ns_ = os::QuickClock::now_ns();
    bool has_served = false, is_short = false;
    for (std::size_t i = 0; i < all_.size();) {
      const Wait wait = all_[i];
      if (Peer* const peer = find(wait.member); peer != nullptr) {
        const std::int64_t waited = now - wait.since_ns;
        const bool moves = !waits_for_own_ || waited >= patience_of(wait.bytes) || may_move(store, *peer, wait.bytes);
        std::uint32_t extent = Memory::none;
        const Status s = store.find_memory(*peer, wait.bytes, moves && !is_short, extent);
        if (s == FEEDLANE_E_LIMIT) {
          if (waited >= 10 * patience_of(wait.bytes)) break;
          is_short = is_short || moves;
          i++;
          continue;
        }
        end(*peer, wait, s, extent);
      }
      all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
      has_served = true;
    }
    waits_for_own_ = true;
    return has_served;
  }
  // When `serve` must be called next, because a member has then waited long enough for its own memory.
  [[nodiscard]] os::Deadline next_look() const {
    os::Deadline next = os::Deadline::never();
    for (const Wait& wait : all_)
      if (const std::int64_t end = wait.since_ns + patience_of(wait.bytes); end > looked_ns_)
        next = next.earlier(os::Deadline::at(end));
    return next;
  }
  // The caller cannot wait for `next_look`: the next `serve` gives members memory of others at once.
  void stop_waiting_for_own() { waits_for_own_ = false; }

 private:
  // About what it takes to move so much.
  static std::int64_t patience_of(std::uint64_t bytes) { return 1'000'000 + static_cast<std::int64_t>(bytes / 2); }

  std::vector<Wait> all_;
  std::int64_t looked_ns_ = 0;  // when `serve` was called last
  bool waits_for_own_ = true;
};

}  // namespace feedlane::arena
