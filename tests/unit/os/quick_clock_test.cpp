// SPDX-License-Identifier: Apache-2.0
// The quick clock is the kernel's.
#include "os/quick_clock.hpp"

#include <doctest/doctest.h>

#include <thread>

using namespace feedlane::os;

namespace {

// Readings between two of the kernel's clock, and how many are farther from them than a microsecond.
struct Compared {
  int outside = 0;
  int decreased = 0;
  void run(std::int64_t for_ns) {
    std::int64_t last = QuickClock::now_ns();
    for (const std::int64_t end = now_ns() + for_ns; last < end;) {
      const std::int64_t before = now_ns();
      const std::int64_t quick = QuickClock::now_ns();
      const std::int64_t after = now_ns();
      outside += quick < before - 1000 || quick > after + 1000 ? 1 : 0;
      decreased += quick < last ? 1 : 0;
      last = quick;
    }
  }
};

}  // namespace

TEST_CASE("the quick clock agrees with the kernel's clock within a microsecond and never decreases, in every thread") {
  Compared here, there;
  std::thread other([&] { there.run(50'000'000); });
  here.run(50'000'000);
  other.join();
  CHECK(here.outside == 0);
  CHECK(here.decreased == 0);
  CHECK(there.outside == 0);
  CHECK(there.decreased == 0);
}

TEST_CASE("the quick clock also agrees with the kernel's clock after a pause") {
  Compared compared;
  compared.run(5'000'000);
  const std::int64_t until = now_ns() + 20'000'000;
  while (now_ns() < until) std::this_thread::yield();
  compared.run(5'000'000);
  CHECK(compared.outside == 0);
  CHECK(compared.decreased == 0);
}
