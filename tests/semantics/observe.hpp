// SPDX-License-Identifier: Apache-2.0
// What tests of observation have in common: a data set that takes its time, and what a loader says of itself.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <ctime>
#include <string>

#include "support/trainer.hpp"

namespace feedlane::test {

inline std::uint64_t now_ns() {
  timespec t{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}

inline feedlane_diagnosis diagnosis_of(const feedlane_loader* l) {
  auto d = fresh<feedlane_diagnosis>();
  REQUIRE(observe(l, feedlane_monitor_diagnose, &d) == FEEDLANE_OK);
  return d;
}

inline std::string report_of(const feedlane_loader* l) {
  std::uint64_t bytes = 0;
  CHECK(observe(l, feedlane_monitor_report, nullptr, 0, &bytes, nullptr) == FEEDLANE_E_LIMIT);
  std::string text(bytes + 1000, '\0');  // it may grow meanwhile
  REQUIRE(observe(l, feedlane_monitor_report, text.data(), text.size(), &bytes, nullptr) == FEEDLANE_OK);
  text.resize(bytes);
  return text;
}

// A data set that takes the same time for each sample.
struct Slow {
  std::int64_t sample_ns = 0;
  std::int32_t slow_worker = -1;  // this one ten times as long
  std::int64_t open_ns = 0;
  std::int32_t worker = -1;
};

inline void sleep_ns(std::int64_t ns) {
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  while (::nanosleep(&t, &t) != 0) {
  }
}

// Takes the batches of the epoch that has begun, and so long for each.
inline void train_slowly(feedlane_loader* l, std::int64_t batch_ns) {
  for (auto b = fresh<feedlane_batch>(); feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK;) {
    sleep_ns(batch_ns);
    REQUIRE(feedlane_batch_release(l, b.token) == FEEDLANE_OK);
  }
}

inline feedlane_dataset slow_dataset(Slow& slow) {
  auto d = fresh<feedlane_dataset>();
  d.user_data = &slow;
  d.open = [](void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
    auto& s = *static_cast<Slow*>(user_data);
    s.worker = info->id;
    if (s.open_ns != 0) sleep_ns(s.open_ns);
    *self = user_data;
    return std::int32_t{FEEDLANE_OK};
  };
  d.get = [](void* self, const feedlane_row* row, feedlane_error*) {
    const auto& s = *static_cast<Slow*>(self);
    if (s.sample_ns != 0) sleep_ns(s.sample_ns * (s.worker == s.slow_worker ? 10 : 1));
    *static_cast<std::int64_t*>(row->fields[0]) = row->index;
    *static_cast<std::int64_t*>(row->fields[1]) = 0;
    return std::int32_t{FEEDLANE_OK};
  };
  return d;
}

}  // namespace feedlane::test
