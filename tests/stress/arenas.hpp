// SPDX-License-Identifier: Apache-2.0
// What the stress runs of arenas share: calls that must succeed, and an arena that must become empty.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "chaos.hpp"
#include "feedlane.h"
#include "shared.hpp"
#include "support/api.hpp"

namespace arenas {

using chaos::patience_ns;

inline void expect(const char* what, std::int64_t found, std::int64_t needed) {
  if (found != needed) stress::die(what, static_cast<std::uint64_t>(found), static_cast<std::uint64_t>(needed));
}
inline void expect_ok(const char* what, std::int32_t status, const feedlane_error& e) {
  if (status != FEEDLANE_OK) chaos::die(what, e);
}

inline feedlane_arena* join(const std::string& path) {
  feedlane_arena* a = nullptr;
  feedlane::test::Error e;
  expect_ok("join", feedlane_arena_join(-1, path.c_str(), patience_ns, &a, &e), e);
  return a;
}
inline void expect_released(feedlane_arena* a, std::uint64_t token) {
  expect("release", feedlane_batch_release(a, token), FEEDLANE_OK);
}
inline void drop(feedlane_arena* a, const std::string& key) {
  feedlane::test::Error e;
  expect_ok("drop", feedlane_arena_drop(a, key.data(), key.size(), patience_ns, &e), e);
}

inline feedlane_arena_stats stats_of(feedlane_arena* a) {
  auto stats = feedlane::test::fresh<feedlane_arena_stats>();
  expect("stats", feedlane_arena_get_stats(a, &stats), FEEDLANE_OK);
  return stats;
}
// Waits until `holds(stats)` is true; another thread serves.
template <class F>
void await(feedlane_arena* a, const std::string& what, F&& holds) {
  for (std::int64_t end = chaos::now_ns() + patience_ns; !holds(stats_of(a)); chaos::nap(100'000))
    if (chaos::now_ns() > end) {
      const feedlane_arena_stats s = stats_of(a);
      std::fprintf(stderr, "members %llu, entries %llu, used %llu, leased %llu, waiting %llu\n",
                   static_cast<unsigned long long>(s.members), static_cast<unsigned long long>(s.entries),
                   static_cast<unsigned long long>(s.used_bytes), static_cast<unsigned long long>(s.leased),
                   static_cast<unsigned long long>(s.waiting));
      stress::die(what.c_str(), 0, 1);
    }
}
// All members have left, and all entries were dropped.
inline void expect_empty(feedlane_arena* a) {
  await(a, "entries in the end", [](const feedlane_arena_stats& s) { return s.entries == 0 && s.members == 1; });
  const feedlane_arena_stats s = stats_of(a);
  expect("bytes that are in use", static_cast<std::int64_t>(s.used_bytes), 0);
  expect("entries that are held", static_cast<std::int64_t>(s.leased), 0);
  expect("requests that wait", static_cast<std::int64_t>(s.waiting), 0);
}

}  // namespace arenas
