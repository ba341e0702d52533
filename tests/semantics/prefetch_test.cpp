// SPDX-License-Identifier: Apache-2.0
// FEEDLANE_PREFETCH_AUTO: as many batches in flight as shorten the trainer's waits.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t samples = 4'000;
constexpr std::uint64_t page = 4096;  // a slot's reserved memory, with the fields of Setup

void pause(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

// Each sample takes a while.
std::int32_t make(void*, const feedlane_task* task, feedlane_error*) {
  for (std::uint64_t row = 0; row < task->count; row++) {
    pause(std::chrono::microseconds(100));
    for (std::int32_t f = 0; f < 2; f++)
      std::memcpy(static_cast<char*>(task->tensors[f].data) + row * 8, &task->indices[row], 8);
  }
  return FEEDLANE_OK;
}

std::int32_t prefetch_of(const feedlane_loader* l) {
  auto info = fresh<feedlane_loader_info>();
  REQUIRE(observe(l, feedlane_monitor_get_info, &info) == FEEDLANE_OK);
  return info.prefetch_factor;
}

void choose(Setup& s, std::uint64_t slots) {
  auto table = fresh<feedlane_dataset>();
  table.fetch = make;
  s.forked(1, table);
  s.config.prefetch_factor = FEEDLANE_PREFETCH_AUTO;
  s.config.arena_bytes = slots * page;
  s.config.keep_workers = 1;
}

}  // namespace

// promise: prefetch-auto
TEST_CASE(
    "with FEEDLANE_PREFETCH_AUTO the window grows for a trainer that takes batches in bursts, and the order is kept") {
  Setup s(samples);
  choose(s, 40);
  const Loader loader = s.create();
  CHECK(prefetch_of(loader.get()) == 2);
  CHECK(stats_of(loader.get()).slots == 40);
  CHECK(events_of(loader.get(), FEEDLANE_EVENT_WARNING).empty());
  // Sixteen at a time, and then as long a pause as they take to make: with too small a window the worker has nothing to do
  // meanwhile, and the next burst waits.
  const auto take_in_bursts = [&](std::int64_t epoch) {
    begin(loader.get(), epoch);
    std::int64_t number = 0;
    for (Taken t = take(loader.get()); t.status != FEEDLANE_END; t = take(loader.get())) {
      REQUIRE(t.status == FEEDLANE_OK);
      REQUIRE(t.batch == number);
      REQUIRE(t.value("index") == number);
      number++;
      if (number % 16 == 0) pause(std::chrono::milliseconds(4));
    }
    REQUIRE(number == samples);
  };
  int epochs = 0;
  for (; epochs < 40 && prefetch_of(loader.get()) < 8; epochs++) take_in_bursts(epochs);
  take_in_bursts(epochs);  // more than the period that judges it
  CHECK(prefetch_of(loader.get()) >= 8);
}

// promise: prefetch-auto
TEST_CASE("FEEDLANE_PREFETCH_AUTO counts all slot_bytes if the data set shapes the tensors, and rounds up per worker") {
  Setup s(200);
  choose(s, 16);
  s.config.fields = nullptr;
  s.config.field_count = 0;
  s.field_list.clear();
  s.config.slot_bytes = 4 * page;
  const Loader loader = s.create();
  CHECK(stats_of(loader.get()).slots == 4);

  Setup two(200);
  choose(two, 5);
  two.config.workers = 2;
  CHECK(prefetch_of(two.create().get()) == 2);
  Setup even(200);
  choose(even, 4);
  even.config.workers = 2;
  CHECK(prefetch_of(even.create().get()) == 1);
}

// promise: prefetch-auto
TEST_CASE("FEEDLANE_PREFETCH_AUTO works in a budget of two slots, for one batch in flight and one held") {
  Setup s(200);
  choose(s, 2);
  const Loader loader = s.create();
  CHECK(stats_of(loader.get()).slots == 2);
  CHECK(prefetch_of(loader.get()) == 1);
  check_sequence(take_epoch(loader.get(), 0), 200, 1);
  CHECK(prefetch_of(loader.get()) == 1);
}
