// SPDX-License-Identifier: Apache-2.0
// Workers that lie about their shards: each is found out, its shard is resumed by another, and every sample comes once.
#include <doctest/doctest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "crash/hostile.hpp"
#include "semantics/shards.hpp"

using namespace feedlane::test;
using namespace feedlane::test::shards;
namespace arena = feedlane::arena;
namespace shm = feedlane::shm;

namespace {

const Lie* told = nullptr;
std::vector<int> not_its;

// The first process of the worker tells it of its third batch.
std::int32_t lying_next(void* self, const feedlane_row* row, feedlane_error* err) {
  const Shards& s = at(self);
  if (s.generation == 0 && s.position == 6) {
    const Inside in(static_cast<std::uint32_t>(s.worker), not_its);
    in.send(*row->task, *told, 3);
    for (;;) ::pause();
  }
  return next(self, row, err);
}

}  // namespace

TEST_CASE("a result that cannot be true of a shard costs its worker its life, and no sample") {
  static constexpr Lie lies[] = {
      {"more rows than asked for", [](shm::ResultMessage& r, arena::Slot&) { r.rows = 4; }, false},
      {"no rows at all", [](shm::ResultMessage& r, arena::Slot&) { r.rows = 0; }, false},
      {"another task's failure to open",
       [](shm::ResultMessage& r, arena::Slot& slot) {
         r.status = FEEDLANE_E_INIT;
         slot.header->head.task_id++;
       },
       true},
      {"a status of no result", [](shm::ResultMessage& r, arena::Slot&) { r.status = FEEDLANE_E_STALE; }, false},
  };
  for (const Lie& lie : lies) {
    CAPTURE(std::string(lie.what));
    told = &lie;
    not_its = open_descriptors();
    Iterable s({15}, 3);
    s.dataset.next = lying_next;
    s.fields({field("value", int64_type)});
    s.config.deterministic = 1;
    const Loader l = s.create();
    check_batches(take_epoch(l.get(), 0), by_turns({15}, 3));
    CHECK(stats_of(l.get()).invalid_results == 1);
    CHECK(stats_of(l.get()).restarts == 1);
  }
}
