// SPDX-License-Identifier: Apache-2.0
// Wants: of those who wait for a key and would make its entry, one at a time may, in the order in which they came.
#include "arena/wants.hpp"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <random>
#include <vector>

using namespace feedlane::arena;

namespace {

Key key_of(std::uint32_t number) { return Key(&number, sizeof number); }

// Plain bookkeeping of one key.
struct Expected {
  std::optional<Wants::Waiter> maker;
  std::vector<Wants::Waiter> waiters;

  // Whoever gets the right, if its holder has gone.
  std::optional<std::uint64_t> pass_on() {
    if (maker) return std::nullopt;
    for (std::size_t i = 0; i < waiters.size(); i++) {
      if (!waiters[i].would_make) continue;
      maker = waiters[i];
      waiters.erase(waiters.begin() + static_cast<std::ptrdiff_t>(i));
      return maker->ticket;
    }
    return std::nullopt;
  }
};

}  // namespace

TEST_CASE("random waits, ends and entries give the right to one waiter at a time, in order") {
  constexpr std::uint32_t keys = 5, members = 6;
  std::mt19937_64 random(7);
  Wants wants;
  std::map<std::uint32_t, Expected> expected;
  std::vector<std::uint64_t> told, needed;
  const auto tell = [&](const Wants::Waiter& w) { told.push_back(w.ticket); };
  for (std::uint64_t ticket = 1; ticket < 20'000; ticket++) {
    const auto key = static_cast<std::uint32_t>(random() % keys);
    const auto member = static_cast<std::uint32_t>(random() % members);
    Expected& e = expected[key];
    told.clear(), needed.clear();
    switch (random() % 8) {
      case 0: {  // the member puts the entry
        for (const Wants::Waiter& w : e.waiters) needed.push_back(w.ticket);
        e.waiters.clear();
        if (e.maker && e.maker->member == member) e.maker.reset();
        wants.fulfil(key_of(key), member, tell);
        break;
      }
      case 1: {  // the member gives up its right
        const bool has_right = e.maker && e.maker->member == member;
        if (has_right) {
          e.maker.reset();
          if (const auto next = e.pass_on()) needed.push_back(*next);
        }
        CHECK(wants.give_up(key_of(key), member, tell) == has_right);
        break;
      }
      case 2: {  // the member ends
        for (auto& [number, one] : expected) {
          std::erase_if(one.waiters, [=](const Wants::Waiter& w) { return w.member == member; });
          if (one.maker && one.maker->member == member) one.maker.reset();
          if (const auto next = one.pass_on()) needed.push_back(*next);
        }
        wants.end([=](const Wants::Waiter& w) { return w.member == member; }, tell);
        break;
      }
      default: {
        const Wants::Waiter waiter{member, ticket, random() % 2 == 0};
        const bool gets_right = waiter.would_make && !e.maker;
        if (gets_right) e.maker = waiter;
        else e.waiters.push_back(waiter);
        CHECK(wants.add(key_of(key), waiter) == gets_right);
      }
    }
    std::sort(told.begin(), told.end());
    std::sort(needed.begin(), needed.end());
    REQUIRE(told == needed);
    std::uint64_t waiting = 0;
    for (std::uint32_t m = 0; m < members; m++) {
      std::uint64_t of_member = 0, rights = 0;
      for (const auto& [number, one] : expected) {
        for (const Wants::Waiter& w : one.waiters) of_member += w.member == m ? 1 : 0;
        rights += one.maker && one.maker->member == m ? 1 : 0;
      }
      REQUIRE(wants.waiting_of(m) == of_member);
      REQUIRE(wants.wanted_by(m) == of_member + rights);
      waiting += of_member;
    }
    REQUIRE(wants.waiting() == waiting);
  }
}
