// SPDX-License-Identifier: Apache-2.0
// How many batches are in flight, by what the trainer waits.
#include "loader/prefetch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>

using feedlane::loader::Prefetch;

namespace {

// A run whose waits depend on the window. Beside its wait, a batch takes `work_ns` in the trainer, 1 ms by default.
struct Run {
  Prefetch prefetch;
  feedlane::shm::Word64 told{};
  std::int64_t now_ns = 1;
  std::int64_t work_ns = 1'000'000;

  Run(std::uint32_t start, std::uint32_t limit) { prefetch.use(2, start, limit, told); }
  using Wait = std::function<std::uint64_t(std::uint32_t)>;  // ns, by the batches a worker has in flight
  void yield(int batches, const Wait& wait, bool is_first = false) {
    for (int i = 0; i < batches; i++) {
      const std::uint64_t waited = wait(prefetch.per_worker());
      now_ns += static_cast<std::int64_t>(waited) + work_ns;
      prefetch.on_yield({waited, now_ns, is_first});
    }
  }
};

constexpr std::uint64_t ms = 1'000'000;

}  // namespace

TEST_CASE("a fixed prefetch factor does not change, however long the trainer waits") {
  Run run(3, 3);
  CHECK(run.prefetch.window() == 6);
  run.yield(10'000, [](std::uint32_t) { return 100 * ms; });
  CHECK(run.prefetch.per_worker() == 3);
  CHECK(run.told.load() == 3);
}

TEST_CASE("the window grows up to its limit while that shortens the wait, and its size is published") {
  Run run(2, 64);
  CHECK(run.told.load() == 2);
  const Run::Wait by_window = [](std::uint32_t n) { return 64 * ms / n; };
  run.yield(8, by_window);
  CHECK(run.prefetch.per_worker() == 2);
  run.yield(10'000, by_window);
  CHECK(run.prefetch.per_worker() == 64);
  CHECK(run.told.load() == 64);

  Run lesser(2, 11);
  lesser.yield(10'000, by_window);
  CHECK(lesser.prefetch.window() == 22);
}

TEST_CASE("the window stops growing when a larger window no longer shortens the wait") {
  Run run(2, 64);
  run.yield(10'000, [](std::uint32_t n) { return n < 8 ? 64 * ms / n : 8 * ms; });
  CHECK(run.prefetch.per_worker() == 8);
}

// promise: prefetch-auto
TEST_CASE("the window keeps its size if larger windows don't shorten the wait, and trials become rarer") {
  Run run(2, 64);
  int tried = 0;
  std::uint32_t last = 2;
  const auto count = [&] {
    run.yield(1, [](std::uint32_t) { return 5 * ms; });
    if (run.prefetch.per_worker() != last && last == 2) tried++;
    last = run.prefetch.per_worker();
  };
  for (int i = 0; i < 1'000; i++) count();
  const int early = tried;
  CHECK(early >= 2);
  for (int i = 0; i < 1'000; i++) count();
  CHECK(tried - early < early);
  CHECK(run.prefetch.per_worker() <= 4);
}

TEST_CASE("the window does not grow for a trainer that waits for 0.5 % of the time") {
  Run run(2, 64);
  run.yield(10'000, [](std::uint32_t) { return ms / 200; });
  CHECK(run.prefetch.per_worker() == 2);
}

TEST_CASE("a wait of more than 1 % of the time starts a trial, a wait of exactly 1 % does not") {
  for (const std::uint64_t wait : {10'000U, 10'100U}) {
    Run run(2, 64);
    run.work_ns = 990'000;
    run.yield(60, [&](std::uint32_t) { return wait; });
    CHECK(run.prefetch.per_worker() == (wait == 10'000 ? 2 : 4));
  }
}

TEST_CASE("a larger window is kept if it shortens the wait by 10 %") {
  Run run(2, 64);
  std::uint32_t largest = 0;
  for (int i = 0; i < 10'000; i++) {
    run.yield(1, [](std::uint32_t n) { return n == 2 ? 10 * ms : 9 * ms; });
    largest = std::max(largest, run.prefetch.per_worker());
  }
  CHECK_MESSAGE(largest == 8, "4 is kept, and 8 tried");
}

TEST_CASE("a measurement has 32 batches, and leaves out batches that were requested with another window") {
  Run run(2, 64);
  const Run::Wait by_window = [](std::uint32_t n) { return 64 * ms / n; };
  run.yield(4 + 31, by_window);
  CHECK(run.prefetch.per_worker() == 2);
  run.yield(1, by_window);
  CHECK(run.prefetch.per_worker() == 4);

  // Batches requested before the growth wait as long as before, and would hide that later batches wait less.
  Run lagging(2, 64);
  std::uint32_t last = 2, left = 0, largest = 0;
  for (int i = 0; i < 10'000; i++) {
    lagging.yield(1, [&](std::uint32_t n) {
      if (n > last) left = 2 * n;
      last = n;
      if (left != 0) left--;
      return n == 2 || left != 0 ? 10 * ms : 9 * ms;
    });
    largest = std::max(largest, lagging.prefetch.per_worker());
  }
  CHECK(largest == 8);
}

TEST_CASE("a long wait for the first batch of an epoch does not make the window grow") {
  Run run(2, 64);
  for (int epoch = 0; epoch < 1'000; epoch++) {
    run.yield(
        1, [](std::uint32_t) { return 1'000 * ms; }, true);
    run.yield(8, [](std::uint32_t) { return 0; });
  }
  CHECK(run.prefetch.per_worker() == 2);
}

TEST_CASE("the window grows even if each epoch has only 41 batches") {
  Run run(2, 64);
  for (int epoch = 0; epoch < 2'000; epoch++) {
    run.yield(
        1, [](std::uint32_t) { return 1'000 * ms; }, true);
    run.yield(40, [](std::uint32_t n) { return n < 16 ? 64 * ms / n : 4 * ms; });
  }
  CHECK(run.prefetch.per_worker() == 16);
}

TEST_CASE("the window grows later in a run when a larger window begins to shorten the wait") {
  Run run(2, 64);
  run.yield(5'000, [](std::uint32_t) { return 5 * ms; });
  run.yield(20'000, [](std::uint32_t n) { return 64 * ms / n; });
  CHECK(run.prefetch.per_worker() == 64);
}
