// SPDX-License-Identifier: Apache-2.0
// What a loader refuses of orders, shards, policies and memory: the field, the number found, the number needed, the rule.
// The refusals of everything else are in tests/capi/refusal_test.cpp.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

enum Kind { inline_map, inline_iterable, forked_map, forked_iterable };

struct Refusal {
  const char* argument;
  std::int64_t found, needed;
  Kind kind;
  void (*change)(Setup&);
  const char* rule;
  std::int32_t status = FEEDLANE_E_ARGUMENT;
};

std::int32_t nothing(void*, const feedlane_row*, feedlane_error*) { return FEEDLANE_OK; }

#define SET(member, value) [](Setup& s) { s.config.member = (value); }

const char* const flag = "must be 0 or 1";
const char* const iterable_only = "must be 0 for a map-style data set";

const Refusal refusals[] = {
    // numbers
    {"config.workers", -1, 0, forked_map, SET(workers, -1), "must be 0 (inline) to 4096"},
    {"config.prefetch_factor", -2, -1, forked_map, SET(prefetch_factor, -2),
     "must be -1 (FEEDLANE_PREFETCH_AUTO), 0 (means 2)"},
    {"config.arena_bytes", 0, 1, forked_map, SET(prefetch_factor, FEEDLANE_PREFETCH_AUTO), "needs a memory budget"},
    {"config.batch_size", -2, -1, inline_map, SET(batch_size, -2),
     "must be -1 (FEEDLANE_UNBATCHED), 0 (means 1) or 1 to 2^30"},
    {"config.iterable", -1, 0, inline_map, SET(iterable, -1), flag},
    {"config.iterable", 2, 1, inline_map, SET(iterable, 2), flag},
    {"config.deterministic", -1, 0, inline_iterable, SET(deterministic, -1), flag},
    {"config.deterministic", 2, 1, inline_iterable, SET(deterministic, 2), flag},
    {"config.iterable_length", -1, 0, inline_iterable, SET(iterable_length, -1), "must not be negative"},
    {"config.out_of_order", -1, 0, inline_map, SET(out_of_order, -1), flag},
    {"config.out_of_order", 2, 1, inline_map, SET(out_of_order, 2), flag},
    {"config.dispatch", -1, 0, inline_map, SET(dispatch, -1), "FEEDLANE_DISPATCH_"},
    {"config.dispatch", 2, 1, inline_map, SET(dispatch, 2), "FEEDLANE_DISPATCH_"},
    {"config.slot_bytes", (INT64_C(1) << 40) + 1, INT64_C(1) << 40, inline_map,
     SET(slot_bytes, (UINT64_C(1) << 40) + 1), "must be at most 2^40"},
    {"config.slot_bytes", INT64_MAX, INT64_C(1) << 40, inline_map, SET(slot_bytes, UINT64_MAX), "must be at most 2^40"},
    {"config.retries", -1, 0, inline_map, SET(retries, -1), "must not be negative"},
    {"config.substitute", -1, 0, inline_map, SET(substitute, -1), flag},
    {"config.substitute", 2, 1, inline_map, SET(substitute, 2), flag},
    {"config.retry_backoff_ns", -1, 0, inline_map, SET(retry_backoff_ns, -1), "must not be negative"},
    {"config.skip_budget", -2, -1, inline_map, SET(skip_budget, -2), "must be -1 (no limit), 0 (none) or more"},
    {"config.world", -1, 0, inline_iterable, SET(world, -1), "must not be negative"},
    {"config.rank", -1, 0, forked_iterable, SET(rank, -1), "must not be negative"},
    {"config.max_batches", -1, 0, inline_map, SET(max_batches, -1), "must not be negative"},
    // without workers
    {"config.prefetch_factor", 2, 0, inline_iterable, SET(prefetch_factor, 2), "must be 0 if config.workers is 0"},
    {"config.keep_workers", 1, 0, inline_iterable, SET(keep_workers, 1), "must be 0 if config.workers is 0"},
    {"config.start", FEEDLANE_START_FORK, 0, inline_map, SET(start, FEEDLANE_START_FORK),
     "must be 0 if config.workers is 0"},
    {"config.dataset", 0, 1, inline_iterable, SET(dataset, nullptr),
     "config.dataset is NULL: it is required if config.workers is 0"},
    {"config.dataset", 0, 1, forked_iterable, SET(dataset, nullptr), "it is required with FEEDLANE_START_FORK"},
    // map style and iterable
    {"config.sampler", 0, 1, inline_map, SET(sampler, nullptr),
     "config.sampler is NULL: a map-style data set needs a sampler"},
    {"config.sampler", 1, 0, inline_iterable, [](Setup& s) { s.config.sampler = s.sampler.get(); },
     "config.sampler is set: must be NULL for an iterable data set"},
    {"config.sampler", 1, 0, forked_iterable, [](Setup& s) { s.config.sampler = s.sampler.get(); },
     "config.sampler is set: must be NULL for an iterable data set"},
    {"config.deterministic", 1, 0, inline_map, SET(deterministic, 1), iterable_only},
    {"config.iterable_length", 5, 0, forked_map, SET(iterable_length, 5), iterable_only},
    {"config.world", 2, 0, forked_map, SET(world, 2), "whose sampler has the rank"},
    {"config.rank", 1, 0, inline_map, SET(rank, 1), "whose sampler has the rank"},
    {"config.rank", 1, 0, inline_iterable, SET(rank, 1), "must be 0 unless config.world is set"},
    {"config.rank", 3, 3, forked_iterable,
     [](Setup& s) {
       s.config.world = 3;
       s.config.rank = 3;
     },
     "less than config.world, 3"},
    {"config.dataset", 0, 1, inline_iterable,
     [](Setup& s) {
       s.dataset.next = nullptr;
       s.dataset.get = nothing;
     },
     "an iterable data set needs the callback next or fetch"},
    {"config.dataset", 0, 1, inline_map,
     [](Setup& s) {
       s.dataset.next = nothing;
       s.dataset.get = nullptr;
     },
     "a map-style data set needs the callback get or fetch"},
    {"config.dataset", 0, 1, inline_map, [](Setup& s) { s.dataset.get = nullptr; }, "get, fetch or next"},
    // batches
    {"config.drop_last", 1, 0, inline_map,
     [](Setup& s) {
       s.config.batch_size = FEEDLANE_UNBATCHED;
       s.config.drop_last = 1;
     },
     "must be 0 with FEEDLANE_UNBATCHED"},
    {"config.drop_last", 1, 0, forked_iterable,
     [](Setup& s) {
       s.config.batch_size = FEEDLANE_UNBATCHED;
       s.config.drop_last = 1;
     },
     "must be 0 with FEEDLANE_UNBATCHED"},
    // policies
    {"config.retry_backoff_ns", 5, 0, inline_map, SET(retry_backoff_ns, 5), "must be 0 unless config.retries is set"},
    {"config.substitute", 1, 0, inline_iterable, SET(substitute, 1), "must be 0 for an iterable data set"},
    {"config.substitute", 1, 0, inline_map, SET(substitute, 1), "no callback `substitute`"},
    // memory: fields of 8 rows of 8 bytes are 512 bytes, in pages of 4096
    {"config.slot_bytes", 511, 512, inline_map, SET(slot_bytes, 511),
     "must be at least 512, the size of the declared fields"},
    {"config.fields", 0, 1, inline_map, SET(field_count, 0), "config.fields has 0 fields: must have 1 to 64"},
    {"config.arena_bytes", 8191, 8192, inline_map, SET(arena_bytes, 8191),
     "config.arena_bytes is 8191: must be at least 8192, for config.held + 1 batches of 4096 bytes", FEEDLANE_E_LIMIT},
    {"config.arena_bytes", 1, 8192, forked_map, SET(arena_bytes, 1), "full prefetching takes 24576", FEEDLANE_E_LIMIT},
    {"config.arena_bytes", 20479, 20480, forked_iterable,
     [](Setup& s) {
       s.config.held = 4;
       s.config.arena_bytes = 20479;
     },
     "must be at least 20480, for config.held + 1 batches", FEEDLANE_E_LIMIT},
};

Sampler batches_of_two() {
  const Sampler inner = sequential(8);
  feedlane_sampler* s = nullptr;
  REQUIRE(batch_sampler(inner.get(), 2, 0, &s, nullptr) == FEEDLANE_OK);
  return Sampler(s);
}

// Every row is refused because of what it changes: this is accepted.
void set_up(Setup& s, Kind kind) {
  const bool is_iterable = kind == inline_iterable || kind == forked_iterable;
  auto table = fresh<feedlane_dataset>();
  (is_iterable ? table.next : table.get) = nothing;
  s.forked(kind == forked_map || kind == forked_iterable ? 2 : 0, table);
  s.config.iterable = is_iterable ? 1 : 0;
  s.connect();
}

}  // namespace

// promise: config-negative-workers, config-negative-prefetch, config-needs-workers, config-iterable-sampler
// promise: config-sampler-or-shuffle, config-unbatched-drop-last, config-negative-batch-size, config-small-arena
// promise: torch-combinations
TEST_CASE("a contradictory configuration is refused with field, value and rule, and a valid one is accepted") {
  for (const Kind kind : {inline_map, inline_iterable, forked_map, forked_iterable}) {
    Setup s(8, 8);
    set_up(s, kind);
    CHECK(s.create() != nullptr);
  }
  for (const Refusal& r : refusals) {
    Setup s(8, 8);
    set_up(s, r.kind);
    r.change(s);
    auto* loader = reinterpret_cast<feedlane_loader*>(1);
    Error e;
    INFO(std::string(r.argument), " found ", r.found, ": ", std::string(r.rule));
    CHECK(feedlane_loader_create(&s.config, &loader, &e) == r.status);
    CHECK(loader == nullptr);
    CHECK(std::string(e.argument) == r.argument);
    CHECK(e.found == r.found);
    CHECK(e.needed == r.needed);
    CHECK_MESSAGE(e.says(r.rule), std::string(e.text));
  }
}

// promise: config-batch-sampler, torch-combinations
TEST_CASE("with a batch sampler a nonzero batch_size or drop_last of the loader is refused") {
  struct Row {
    const char* argument;
    std::int64_t found;
    std::int64_t batch_size;
    std::int32_t drop_last;
  };
  for (const Row& r : {Row{"config.batch_size", 1, 1, 0},
                       {"config.batch_size", 4, 4, 0},
                       {"config.batch_size", -1, FEEDLANE_UNBATCHED, 0},
                       {"config.drop_last", 1, 0, 1}}) {
    Setup s(8, r.batch_size);
    s.sampler = batches_of_two();
    s.config.drop_last = r.drop_last;
    Loader l;
    Error e;
    CHECK(s.try_create(l, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == r.argument);
    CHECK(e.found == r.found);
    CHECK(e.needed == 0);
    CHECK(e.says("must be 0, because config.sampler yields batches"));
  }
  Setup s(8, 0);
  s.sampler = batches_of_two();
  CHECK(s.create() != nullptr);
}

// promise: config-empty-sampler
TEST_CASE("an empty random sampler, num_samples below 1 and a rank outside its world are refused") {
  feedlane_sampler* s = nullptr;
  Error e;
  auto random = fresh<feedlane_sampler_config>();
  CHECK(random_sampler(&random, &s, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "config.length");
  random.length = 5;
  random.num_samples = -1;
  CHECK(random_sampler(&random, &s, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "config.num_samples");
  CHECK(e.found == -1);
  for (const std::int32_t rank : {-1, 3, 4}) {
    auto distributed = fresh<feedlane_sampler_config>();
    distributed.length = 10;
    distributed.world = 3;
    distributed.rank = rank;
    CHECK(distributed_sampler(&distributed, &s, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "config.rank");
    CHECK(e.found == rank);
  }
}

// promise: config-many-workers
TEST_CASE("a loader with more workers than usable processors is created with a warning that has both numbers") {
  Setup s(8);
  s.workers(600);  // not one of them is started
  const Loader l = s.create();
  const std::vector<feedlane_event> warnings = events_of(l.get(), FEEDLANE_EVENT_WARNING);
  REQUIRE(warnings.size() == 1);
  CHECK(std::string(warnings[0].what.argument) == "config.workers");
  CHECK(warnings[0].what.found == 600);
  CHECK(warnings[0].what.needed >= 1);
  CHECK(warnings[0].what.needed < 600);
}

// promise: rank-reported
TEST_CASE("the loader's statistics name the source of the rank") {
  const auto source_of = [](std::int32_t world) {
    auto config = fresh<feedlane_sampler_config>();
    config.length = 8;
    config.world = world;
    feedlane_sampler* sampler = nullptr;
    REQUIRE(distributed_sampler(&config, &sampler, nullptr) == FEEDLANE_OK);
    Setup s(8);
    s.sampler.reset(sampler);
    return std::string(stats_of(s.create().get()).rank_source);
  };
  REQUIRE(::setenv("FEEDLANE_RANK", "1", 1) == 0);
  REQUIRE(::setenv("FEEDLANE_WORLD_SIZE", "4", 1) == 0);
  CHECK(source_of(0) == "feedlane");
  CHECK(source_of(2) == "config");
  REQUIRE(::unsetenv("FEEDLANE_RANK") == 0);
  REQUIRE(::unsetenv("FEEDLANE_WORLD_SIZE") == 0);
  CHECK(std::string(stats_of(Setup(8).create().get()).rank_source).empty());
}

// promise: arena-huge-pages
TEST_CASE("a large arena uses huge pages where the system provides them, and the statistics show their bytes") {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string offers;
  std::getline(file, offers);
  const auto given = offers.find('[');
  const bool gives =
      given != std::string::npos && offers.compare(given, 7, "[never]") != 0 && offers.compare(given, 6, "[deny]") != 0;
  MESSAGE((gives ? "this system gives huge pages to shared memory, if it has some"
                 : "this system gives shared memory no huge pages"));
  for (const bool is_large : {true, false}) {
    feedlane_field data = field("data", {1, 8, 1});
    data.ndim = 1;
    data.shape[0] = is_large ? 20'000'000 : 20'000;
    Setup s(8);
    s.workers(2).fields({data});
    const Loader l = s.create();
    const feedlane_stats stats = stats_of(l.get());
    CAPTURE(stats.data_bytes);
    if (!gives || !is_large) {
      CHECK(stats.huge_bytes == 0);
      continue;
    }
    CHECK(stats.huge_bytes <= stats.data_bytes);
    CHECK_MESSAGE(stats.reserved_bytes == stats.control_bytes + stats.data_bytes, "nothing is left out in between");
  }
}
