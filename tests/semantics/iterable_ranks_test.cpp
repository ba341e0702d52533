// SPDX-License-Identifier: Apache-2.0
// Ranks that share an iterable data set, and epochs that end after a given number of batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "semantics/states.hpp"
#include "support/events.hpp"

using namespace feedlane::test;
using namespace feedlane::test::states;

namespace {

using Numbers = std::vector<std::int64_t>;

// Each shard yields its part of 0 ... total - 1: `shard`, `shard + shards`, `shard + 2 * shards` ...
struct Striped {
  static constexpr std::int64_t total = 47;
  feedlane_worker_info info{};
  std::int64_t next = 0;

  static std::int32_t open(void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
    *self = new Striped{*info};
    return 0;
  }
  static std::int32_t restart(void* self, std::int64_t, feedlane_error*) {
    auto* s = static_cast<Striped*>(self);
    s->next = s->info.shard;
    return 0;
  }
  static std::int32_t take(void* self, const feedlane_row* row, feedlane_error*) {
    auto* s = static_cast<Striped*>(self);
    if (s->next >= total) return FEEDLANE_END;
    const std::int64_t values[] = {s->next,
                                   static_cast<std::int64_t>(row->seed),
                                   static_cast<std::int64_t>(s->info.seed),
                                   s->info.rank,
                                   s->info.world,
                                   s->info.shard,
                                   s->info.shards,
                                   s->info.drop_last};
    for (std::size_t f = 0; f < std::size(values); f++) std::memcpy(row->fields[f], &values[f], sizeof values[f]);
    s->next += s->info.shards;
    return 0;
  }
  static void close(void* self) { delete static_cast<Striped*>(self); }
};

// A loader of one rank. Shards come again in the same order after a resume.
struct Ranked : Setup {
  Ranked(std::int32_t workers, std::int32_t world, std::int32_t rank) : Setup(0, 3) {
    auto table = fresh<feedlane_dataset>();
    table.open = Striped::open;
    table.restart = Striped::restart;
    table.next = Striped::take;
    table.close = Striped::close;
    forked(workers, table);
    fields({field("value", int64_type), field("seed", uint64_type), field("own_seed", uint64_type),
            field("rank", int64_type), field("world", int64_type), field("shard", int64_type),
            field("shards", int64_type), field("drop_last", int64_type)});
    config.iterable = 1;
    config.deterministic = 1;
    config.has_seed = 1;
    config.seed = 5;
    config.world = world;
    config.rank = rank;
  }
};

Numbers column(const std::vector<Taken>& taken, const char* name) {
  Numbers all;
  for (const Taken& t : taken)
    for (std::size_t row = 0; row < t.count; row++) all.push_back(t.value(name, row));
  return all;
}

bool all_are(const Numbers& numbers, std::int64_t wanted) {
  return std::all_of(numbers.begin(), numbers.end(), [&](std::int64_t n) { return n == wanted; });
}

}  // namespace

// promise: loader-iterable-drop-last
TEST_CASE("a data set is told of drop_last") {
  for (const std::int32_t workers : {0, 1})
    for (const std::int32_t drop_last : {0, 1}) {
      CAPTURE(workers);
      Ranked s(workers, 1, 0);
      s.config.drop_last = drop_last;
      const std::vector<Taken> taken = take_epoch(s.create().get(), 0);
      CHECK(taken.size() == (Striped::total + (drop_last != 0 ? 0 : 2)) / 3);
      CHECK(all_are(column(taken, "drop_last"), drop_last));
    }
}

// promise: shard-per-rank
TEST_CASE("ranks divide an iterable data set without overlap, and each worker has its own shard and seeds") {
  constexpr std::int32_t world = 3;
  for (const std::int32_t workers : {0, 1, 2}) {
    CAPTURE(workers);
    Numbers values;
    std::set<std::int64_t> shards, own_seeds, seeds;
    for (std::int32_t rank = 0; rank < world; rank++) {
      Ranked s(workers, world, rank);
      const std::vector<Taken> taken = take_epoch(s.create().get(), 0);
      const Numbers found = column(taken, "value");
      values.insert(values.end(), found.begin(), found.end());
      CHECK(all_are(column(taken, "rank"), rank));
      CHECK(all_are(column(taken, "world"), world));
      CHECK(all_are(column(taken, "shards"), std::int64_t{world} * std::max(workers, 1)));
      for (const Taken& t : taken) {
        const std::int64_t id = std::max(t.worker, 0);
        CHECK(t.value("shard") == rank * std::max(workers, 1) + id);
        CHECK(t.value("own_seed") == 5 + t.value("shard"));
        shards.insert(t.value("shard"));
        own_seeds.insert(t.value("own_seed"));
      }
      for (const std::int64_t seed : column(taken, "seed")) seeds.insert(seed);
    }
    std::sort(values.begin(), values.end());
    REQUIRE(values.size() == static_cast<std::size_t>(Striped::total));
    for (std::int64_t i = 0; i < Striped::total; i++) CHECK(values[static_cast<std::size_t>(i)] == i);
    CHECK(shards.size() == static_cast<std::size_t>(world * std::max(workers, 1)));
    CHECK(own_seeds.size() == shards.size());
    CHECK(seeds.size() == values.size());
  }
}

// promise: shard-default-world
TEST_CASE("without config.world an iterable loader is rank 0 of 1, even if RANK and WORLD_SIZE are set") {
  (void)::setenv("RANK", "1", 1);
  (void)::setenv("WORLD_SIZE", "2", 1);
  for (const std::int32_t workers : {0, 2}) {
    Ranked s(workers, 0, 0);
    const std::vector<Taken> taken = take_epoch(s.create().get(), 0);
    CHECK(column(taken, "value").size() == static_cast<std::size_t>(Striped::total));
    CHECK(all_are(column(taken, "rank"), 0));
    CHECK(all_are(column(taken, "world"), 1));
  }
  (void)::unsetenv("RANK");
  (void)::unsetenv("WORLD_SIZE");
}

// promise: state-iterable-refused
TEST_CASE("an iterable state of another rank or world is refused, and the error names the differing member") {
  Ranked first(2, 3, 1);
  const Loader l = first.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State state = state_of(l.get());
  const std::vector<Taken> rest = take_rest(l.get());
  struct Other {
    std::int32_t world, rank;
    const char* argument;
    std::int64_t found, needed;
  };
  for (const Other& o :
       {Other{3, 2, "config.rank", 2, 1}, {4, 1, "config.world", 4, 3}, {0, 0, "config.world", 1, 3}}) {
    Ranked other(2, o.world, o.rank);
    go_on(other, state);
    Loader none;
    Error e;
    CHECK(other.try_create(none, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == o.argument);
    CHECK(e.found == o.found);
    CHECK(e.needed == o.needed);
  }
  Ranked same(2, 3, 1);
  go_on(same, state);
  check_same(take_epoch(same.create().get(), 0), rest);
}

// promise: epoch-max-batches
TEST_CASE("max_batches: ranks with shards of different lengths yield the same number of batches") {
  constexpr std::int32_t world = 4;
  constexpr std::size_t fewest = 3;  // batches of the last rank: 11 samples of 47, those of two workers
  std::size_t longest = 0;
  for (const std::int32_t workers : {0, 2})
    for (std::int32_t rank = 0; rank < world; rank++) {
      CAPTURE(workers);
      CAPTURE(rank);
      Ranked whole(workers, world, rank);
      const std::vector<Taken> expected = take_epoch(whole.create().get(), 0);
      longest = std::max(longest, expected.size());
      Ranked s(workers, world, rank);
      s.config.max_batches = fewest;
      const Loader l = s.create();
      for (const std::int64_t epoch : {0, 1}) {
        const std::vector<Taken> taken = take_epoch(l.get(), epoch);
        REQUIRE(taken.size() == fewest);
        if (epoch == 0) check_same(taken, {expected.begin(), expected.begin() + fewest});
        CHECK_MESSAGE(column(taken, "value")[0] == expected[0].value("value"), "each epoch starts over");
      }
    }
  CHECK(longest > fewest);
}

// promise: epoch-max-batches
TEST_CASE("max_batches: an epoch ends after that many batches, in and out of order, with kept and new workers") {
  for (const bool iterable : {false, true})
    for (const std::int32_t workers : {0, 2})
      for (const std::int32_t mode : {0, 1, 2}) {
        CAPTURE(iterable);
        CAPTURE(workers);
        CAPTURE(mode);
        Ranked shards(workers, 1, 0);
        Shuffled map(3);
        with_workers(map, workers);
        Setup& s = iterable ? static_cast<Setup&>(shards) : map;
        s.config.max_batches = 5;
        s.config.out_of_order = mode == 1 ? 1 : 0;
        s.config.keep_workers = mode == 2 && workers != 0 ? 1 : 0;
        if (workers != 0) s.config.prefetch_factor = 4;  // workers begin batches beyond the fifth
        const Loader l = s.create();
        for (std::int64_t epoch = 0; epoch < 4; epoch++) {
          std::set<std::int64_t> numbers;
          for (const Taken& t : take_epoch(l.get(), epoch)) numbers.insert(t.batch);
          CHECK(numbers == std::set<std::int64_t>{0, 1, 2, 3, 4});
          CHECK(take(l.get()).status == FEEDLANE_END);
        }
      }
}

// promise: epoch-max-batches
TEST_CASE("max_batches: an epoch over a longer sampler or shards of unknown length ends after that many batches") {
  constexpr std::int64_t beyond = 300;
  std::int64_t yielded = 0;
  auto unknown = fresh<feedlane_sampler_callbacks>();
  unknown.user_data = &yielded;
  unknown.restart = [](void* count, std::int64_t, std::uint64_t, feedlane_error*) {
    *static_cast<std::int64_t*>(count) = 0;
    return std::int32_t{FEEDLANE_OK};
  };
  unknown.next = [](void* count, std::int64_t* indices, std::uint64_t, std::uint64_t* got, feedlane_error*) {
    std::int64_t& n = *static_cast<std::int64_t*>(count);
    *got = n < beyond ? 1 : 0;
    if (n < beyond) *indices = n++;
    return std::int32_t{*got == 0 ? FEEDLANE_END : FEEDLANE_OK};
  };
  for (const std::int32_t workers : {0, 2}) {
    Setup map(1, 3);
    feedlane_sampler* sampler = nullptr;
    REQUIRE(custom_sampler(&unknown, &sampler, nullptr) == FEEDLANE_OK);
    map.sampler.reset(sampler);
    with_workers(map, workers);
    Ranked shards(workers, 1, 0);
    shards.dataset.next = [](void*, const feedlane_row* row, feedlane_error*) {
      return std::int32_t{row->index < beyond ? FEEDLANE_OK : FEEDLANE_END};
    };
    for (Setup* s : {&map, static_cast<Setup*>(&shards)}) {
      s->config.max_batches = 5;
      const Loader l = s->create();
      std::int64_t batches = 0;
      CHECK(length_of(l.get(), &batches) == FEEDLANE_OK);
      CHECK_MESSAGE(batches == -1, "there may be fewer");
      for (const std::int64_t epoch : {0, 1}) CHECK(take_epoch(l.get(), epoch).size() == 5);
    }
  }
}

// promise: epoch-max-batches
TEST_CASE("max_batches: poll and arm return AGAIN at the end of the epoch, so a foreign event loop takes END") {
  Ranked s(2, 1, 0);
  s.config.max_batches = 4;
  s.config.keep_workers = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  for (int i = 0; i < 4; i++) REQUIRE(take(l.get()).status == FEEDLANE_OK);
  CHECK(feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(feedlane_loader_arm(l.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(take(l.get()).status == FEEDLANE_END);
}

// promise: state-max-batches
TEST_CASE("max_batches: a resumed epoch counts the batches before its state, and length is at most max_batches") {
  for (const bool iterable : {false, true})
    for (const std::int32_t workers : {0, 2})
      for (std::size_t done = 0; done <= 5; done++) {
        CAPTURE(iterable);
        CAPTURE(workers);
        CAPTURE(done);
        const auto batches_of = [](const Loader& l) {
          std::int64_t batches = 0;
          REQUIRE(length_of(l.get(), &batches) == FEEDLANE_OK);
          return batches;
        };
        const auto set_up = [&](Setup& s) -> Setup& {
          s.config.max_batches = 5;
          if (iterable) s.config.iterable_length = Striped::total;
          return s;
        };
        Ranked shards(workers, 1, 0), shards_again(workers, 1, 0);
        Shuffled map(3), map_again(3);
        with_workers(map, workers), with_workers(map_again, workers);
        const Loader l = set_up(iterable ? static_cast<Setup&>(shards) : map).create();
        CHECK(batches_of(l) == 5);
        const std::vector<Taken> expected = take_epoch(l.get(), 0);
        begin(l.get(), 0);
        for (std::size_t i = 0; i < done; i++) (void)take(l.get());
        const State state = state_of(l.get());
        const Loader resumed = go_on(set_up(iterable ? static_cast<Setup&>(shards_again) : map_again), state).create();
        check_same(take_epoch(resumed.get(), 0), expected, done);
        CHECK(take_epoch(resumed.get(), 1).size() == 5);
      }
}

// promise: epoch-max-batches
TEST_CASE("max_batches: a limit beyond the epoch's length changes nothing, and a failed batch counts") {
  Ranked all(2, 1, 0), more(2, 1, 0);
  more.config.max_batches = 1000;
  check_same(take_epoch(more.create().get(), 0), take_epoch(all.create().get(), 0));
  Ranked failing(2, 1, 0);
  failing.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) -> std::int32_t {
    return row->index == 4 ? FEEDLANE_E_OS : Striped::take(self, row, err);  // in the second batch of each shard
  };
  failing.config.max_batches = 4;
  const Loader l = failing.create();
  begin(l.get(), 0);
  std::vector<std::int32_t> outcomes;
  for (int i = 0; i < 5; i++) outcomes.push_back(take(l.get()).status);
  CHECK(outcomes ==
        std::vector<std::int32_t>{FEEDLANE_OK, FEEDLANE_OK, FEEDLANE_E_SAMPLE, FEEDLANE_E_SAMPLE, FEEDLANE_END});
}
