// SPDX-License-Identifier: Apache-2.0
// Keys without an entry that members wait for, and who may make each. Private to the owner.
//
// Used by one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "arena/index.hpp"

namespace feedlane::arena {

class Wants {
 public:
  struct Waiter {
    std::uint32_t member = 0;
    std::uint64_t ticket = 0;
    bool would_make = false;
  };

  // Adds a waiter. True: it may make the entry. May throw bad_alloc, without effect.
  bool add(const Key& key, Waiter waiter) {
    Want& want = wants_[key];
    if (waiter.would_make && !want.has_maker) {
      want.maker = waiter;
      return want.has_maker = true;
    }
    want.waiters.push_back(waiter);
    return false;
  }
  // The key has an entry, which `member` has put. Calls `tell(waiter)` for each waiter. If another member has the right
  // to make the entry, it keeps that until it puts the entry or gives up: giving up drops no entry of others.
  template <class F>
  void fulfil(const Key& key, std::uint32_t member, F&& tell) {
    const auto it = wants_.find(key);
    if (it == wants_.end()) return;
    Want& want = it->second;
    for (const Waiter& waiter : want.waiters) tell(waiter);
    want.waiters.clear();
    if (!want.has_maker || want.maker.member == member) wants_.erase(it);
  }
  // Ends the waiters for which `is_over(waiter)` is true. If one had the right to make an entry, calls `pass(waiter)`
  // for the next one that gets it.
  template <class IsOver, class Pass>
  void end(IsOver&& is_over, Pass&& pass) {
    for (auto it = wants_.begin(); it != wants_.end();) it = end(it, is_over, pass) ? wants_.erase(it) : std::next(it);
  }
  // The member gives up its right to make this entry. False: it has none.
  template <class Pass>
  bool give_up(const Key& key, std::uint32_t member, Pass&& pass) {
    const auto it = wants_.find(key);
    if (it == wants_.end() || !it->second.has_maker || it->second.maker.member != member) return false;
    const Waiter maker = it->second.maker;
    if (end(
            it, [&](const Waiter& w) { return w.member == maker.member && w.ticket == maker.ticket; }, pass))
      wants_.erase(it);
    return true;
  }
  // Keys that the member waits for.
  [[nodiscard]] std::uint64_t waiting_of(std::uint32_t member) const {
    std::uint64_t count = 0;
    for (const auto& [key, want] : wants_)
      count += static_cast<std::uint64_t>(
          std::count_if(want.waiters.begin(), want.waiters.end(), [=](const Waiter& w) { return w.member == member; }));
    return count;
  }
  // These, and keys whose entry it may make.
  [[nodiscard]] std::uint64_t wanted_by(std::uint32_t member) const {
    std::uint64_t count = waiting_of(member);
    for (const auto& [key, want] : wants_) count += want.has_maker && want.maker.member == member ? 1 : 0;
    return count;
  }
  [[nodiscard]] std::uint64_t waiting() const {
    std::uint64_t count = 0;
    for (const auto& [key, want] : wants_) count += want.waiters.size();
    return count;
  }

 private:
  struct Want {
    bool has_maker = false;
    Waiter maker;
    std::vector<Waiter> waiters;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const { return key.hash(); }
  };
  using Map = std::unordered_map<Key, Want, Hash>;

  // True: nobody wants the key any more.
  template <class IsOver, class Pass>
  static bool end(Map::iterator it, IsOver&& is_over, Pass&& pass) {
    Want& want = it->second;
    std::erase_if(want.waiters, is_over);
    if (want.has_maker && is_over(want.maker)) want.has_maker = false;
    if (!want.has_maker) {
      const auto next =
          std::find_if(want.waiters.begin(), want.waiters.end(), [](const Waiter& w) { return w.would_make; });
      if (next != want.waiters.end()) {
        want.maker = *next;
        want.has_maker = true;
        want.waiters.erase(next);
        pass(want.maker);
      }
    }
    return !want.has_maker && want.waiters.empty();
  }

  Map wants_;
};

}  // namespace feedlane::arena
