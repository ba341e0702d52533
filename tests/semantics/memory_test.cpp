// SPDX-License-Identifier: Apache-2.0
// Memory that is too short in `next`, wherever it is: told once, and nothing is lost, doubled or leaked.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "support/allocation.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t samples = 32;

// A data set of `samples`, every fifth of them broken if `breaks`; as a shard its position is what it saves.
struct Data {
  std::int64_t at = 0;
  std::int64_t first = 0;
  std::int64_t end = samples;
  bool breaks = false;

  std::int32_t make(std::int64_t index, const feedlane_row* row, feedlane_error* err) const {
    if (breaks && index % 5 == 4) {
      (void)std::snprintf(err->text, sizeof err->text, "sample %lld is broken", static_cast<long long>(index));
      return FEEDLANE_E_SAMPLE;
    }
    std::memcpy(row->fields[0], &index, sizeof index);
    return FEEDLANE_OK;
  }
  static std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
    auto& d = *static_cast<Data*>(user_data);
    if (info->count > 1) {
      d.first = info->id * samples / info->count;
      d.end = d.first + samples / info->count;
    }
    *self = user_data;
    return FEEDLANE_OK;
  }
  static std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
    return static_cast<Data*>(self)->make(row->index, row, err);
  }
  static std::int32_t restart(void* self, std::int64_t, feedlane_error*) {
    static_cast<Data*>(self)->at = static_cast<Data*>(self)->first;
    return FEEDLANE_OK;
  }
  static std::int32_t next(void* self, const feedlane_row* row, feedlane_error* err) {
    auto& d = *static_cast<Data*>(self);
    return d.at == d.end ? FEEDLANE_END : d.make(d.at++, row, err);
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t, std::uint64_t* bytes, feedlane_error*) {
    std::memcpy(buffer, &static_cast<Data*>(self)->at, *bytes = sizeof at);
    return FEEDLANE_OK;
  }
  static std::int32_t load(void* self, const void* buffer, std::uint64_t, feedlane_error*) {
    std::memcpy(&static_cast<Data*>(self)->at, buffer, sizeof at);
    return FEEDLANE_OK;
  }
};

// A sampler of the user's own, over a position.
struct Counting {
  std::int64_t at = 0;
  static std::int32_t next(void* self, std::int64_t* indices, std::uint64_t, std::uint64_t* got, feedlane_error*) {
    auto& c = *static_cast<Counting*>(self);
    if (c.at == samples) return FEEDLANE_END;
    *indices = c.at++;
    *got = 1;
    return FEEDLANE_OK;
  }
  static std::int32_t restart(void* self, std::int64_t, std::uint64_t, feedlane_error*) {
    static_cast<Counting*>(self)->at = 0;
    return FEEDLANE_OK;
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t, std::uint64_t* bytes, feedlane_error*) {
    std::memcpy(buffer, &static_cast<Counting*>(self)->at, *bytes = sizeof at);
    return FEEDLANE_OK;
  }
  Sampler make() {
    auto table = fresh<feedlane_sampler_callbacks>();
    table.user_data = this;
    table.next = next;
    table.restart = restart;
    table.save = save;
    feedlane_sampler* s = nullptr;
    REQUIRE(custom_sampler(&table, &s, nullptr) == FEEDLANE_OK);
    return Sampler(s);
  }
};

struct Kind {
  const char* name;
  bool iterable, custom, breaks;
};

// An epoch in which the allocation number `nth` of all in `next` fails. False: there are fewer.
bool check_epoch(const Kind& kind, std::int32_t workers, long nth) {
  Data data{.breaks = kind.breaks};
  Counting counting;
  Setup s(samples, 4);
  auto table = fresh<feedlane_dataset>();
  table.user_data = &data;
  table.open = Data::open;
  table.get = Data::get;
  if (kind.iterable) {
    table.next = Data::next;
    table.restart = Data::restart;
    table.save = Data::save;
    table.load = Data::load;
  }
  s.forked(workers, table).fields({field("index", int64_type)});
  s.config.iterable = kind.iterable ? 1 : 0;
  s.config.out_of_order = 1;
  s.config.skip_budget = kind.breaks ? -1 : 0;
  if (kind.custom) s.sampler = counting.make();
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<int> seen(samples);
  int refusals = 0;
  fail_allocation(nth);
  for (;;) {
    auto batch = fresh<feedlane_batch>();
    const std::int32_t status = armed([&] { return feedlane_loader_next(l.get(), patience_ns, &batch, nullptr); });
    if (status == FEEDLANE_E_MEMORY) {
      refusals++;
      continue;
    }
    if (status == FEEDLANE_END) break;
    REQUIRE(status == FEEDLANE_OK);
    const auto* const rows = static_cast<const std::int64_t*>(batch.tensors[0].data);
    for (std::uint64_t i = 0; i < batch.count; i++) seen[static_cast<std::size_t>(rows[i])]++;
    REQUIRE(feedlane_batch_release(l.get(), batch.token) == FEEDLANE_OK);
  }
  const bool came_to_it = has_failed();
  fail_allocation(-1);
  CHECK(refusals <= 1);
  for (std::int64_t i = 0; i < samples; i++) {
    CAPTURE(i);
    CHECK(seen[static_cast<std::size_t>(i)] == (kind.breaks && i % 5 == 4 ? 0 : 1));
  }
  const feedlane_stats stats = stats_of(l.get());
  CHECK(stats.slots_free == stats.slots);
  CHECK(stats.restarts == 0);
  return came_to_it;
}

}  // namespace

// promise: memory-in-next, allocation-next
TEST_CASE("next returns E_MEMORY at most once if one of its allocations fails, and no batch is lost") {
  for (const Kind& kind : {Kind{"map", false, false, false},
                           {"map, broken", false, false, true},
                           {"custom", false, true, false},
                           {"shards", true, false, false},
                           {"shards, broken", true, false, true}})
    for (const std::int32_t workers : {0, 2}) {
      CAPTURE(std::string(kind.name));
      CAPTURE(workers);
      long nth = 0;
      while (check_epoch(kind, workers, nth)) {
        CAPTURE(nth);
        REQUIRE(++nth < 1000);
      }
      CHECK_MESSAGE(nth > 0, "there are some");
    }
}
