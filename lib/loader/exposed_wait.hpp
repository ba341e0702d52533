// SPDX-License-Identifier: Apache-2.0
// The time that `next` spends without a batch to yield, looking and asleep, counted as it passes.
#pragma once

#include <cstdint>

#include "os/clock.hpp"
#include "shm/layout.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::loader {

class ExposedWait {
 public:
  explicit ExposedWait(shm::LoaderCounters& counters) : counters_(counters) {}
  ExposedWait(const ExposedWait&) = delete;
  ExposedWait& operator=(const ExposedWait&) = delete;
  ~ExposedWait() { count(); }
  // Nothing is counted before.
  void start() {
    if (since_ns_ == 0) since_ns_ = os::now_ns();
  }
  void count() {
    if (since_ns_ == 0) return;
    const std::int64_t now = os::now_ns();
    shm::add(counters_.wait_ns, static_cast<std::uint64_t>(now - since_ns_));
    since_ns_ = now;
  }
  // What follows is no wait for a batch.
  void end() {
    count();
    since_ns_ = 0;
  }

 private:
  shm::LoaderCounters& counters_;
  std::int64_t since_ns_ = 0;
};

}  // namespace feedlane::loader
