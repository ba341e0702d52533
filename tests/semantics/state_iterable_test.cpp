// SPDX-License-Identifier: Apache-2.0
// States of iterable data sets: each shard continues where it was.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "semantics/states.hpp"
#include "support/events.hpp"
#include "support/process.hpp"

using namespace feedlane::test;
using namespace feedlane::test::states;

namespace {

// Worker w of c yields w, w + c, w + 2c ... below `total`, as index and seed.
struct Counting {
  static constexpr std::int64_t total = 47;
  std::int64_t next = 0, first = 0, step = 1;

  static std::int32_t open(void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
    auto* c = new Counting;
    if (info->id >= 0) c->first = info->id, c->step = info->count;
    *self = c;
    return 0;
  }
  static std::int32_t restart(void* self, std::int64_t, feedlane_error*) {
    auto* c = static_cast<Counting*>(self);
    c->next = c->first;
    return 0;
  }
  static std::int32_t take(void* self, const feedlane_row* row, feedlane_error*) {
    auto* c = static_cast<Counting*>(self);
    if (c->next >= total) return FEEDLANE_END;
    std::memcpy(row->fields[0], &c->next, sizeof c->next);
    std::memcpy(row->fields[1], &row->seed, sizeof row->seed);
    c->next += c->step;
    return 0;
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error*) {
    if (cap < sizeof(std::int64_t)) return FEEDLANE_E_LIMIT;
    std::memcpy(buffer, &static_cast<Counting*>(self)->next, *bytes = sizeof(std::int64_t));
    return 0;
  }
  static std::int32_t load(void* self, const void* buffer, std::uint64_t bytes, feedlane_error*) {
    if (bytes != sizeof(std::int64_t)) return FEEDLANE_E_CORRUPT;
    std::memcpy(&static_cast<Counting*>(self)->next, buffer, bytes);
    return 0;
  }
  static void close(void* self) { delete static_cast<Counting*>(self); }
};

struct Iterable {
  Iterable(std::int32_t workers, bool saves) : config(fresh<feedlane_loader_config>()) {
    table.open = Counting::open;
    table.restart = Counting::restart;
    table.next = Counting::take;
    table.close = Counting::close;
    if (saves) table.save = Counting::save, table.load = Counting::load;
    config.dataset = &table;
    config.fields = list.data();
    config.field_count = list.size();
    config.batch_size = 3;
    config.iterable = 1;
    config.deterministic = saves ? 0 : 1;
    config.has_seed = 1;
    config.seed = 5;
    config.workers = workers;
    if (workers > 0) config.start = FEEDLANE_START_FORK;
  }
  Loader create(const State* state = nullptr) {
    if (state != nullptr) {
      config.state = state->data();
      config.state_bytes = state->size();
      config.has_seed = 0, config.seed = 0;
    }
    feedlane_loader* l = nullptr;
    status = feedlane_loader_create(&config, &l, &error);
    return Loader(l);
  }
  feedlane_dataset table = fresh<feedlane_dataset>();
  std::vector<feedlane_field> list{field("index", int64_type), field("seed", uint64_type)};
  feedlane_loader_config config;
  std::int32_t status = 0;
  Error error;
};

}  // namespace

// promise: state-damaged
TEST_CASE("a map-style loader refuses a state of an iterable loader, and the reverse") {
  Shuffled map;
  const Loader m = map.create();
  begin(m.get(), 0);
  (void)take(m.get());
  const State of_map = state_of(m.get());
  Iterable first(0, true);
  const Loader l = first.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State of_shards = state_of(l.get());

  Iterable shards(0, true);
  CHECK(shards.create(&of_map) == nullptr);
  CHECK(shards.status == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(shards.error.argument) == "config.iterable");
  CHECK(shards.error.found == 1);
  CHECK(shards.error.needed == 0);

  Shuffled again;
  Loader made;
  Error e;
  CHECK(go_on(again, of_shards).try_create(made, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "config.iterable");
  CHECK(e.found == 0);
  CHECK(e.needed == 1);
}

// promise: state-iterable-included
TEST_CASE("an iterable loader resumes by save and load or by skipping samples, with each batch at its position") {
  for (const bool saves : {true, false})
    for (const std::int32_t workers : {0, 1, 3}) {
      Iterable first(workers, saves);
      const Loader l = first.create();
      REQUIRE_MESSAGE(l != nullptr, first.error.text);
      const std::vector<Taken> expected = take_epoch(l.get(), 0);
      for (std::size_t i = 0; i <= expected.size(); i += 4) {
        CAPTURE(saves);
        CAPTURE(workers);
        CAPTURE(i);
        begin(l.get(), 0);
        for (std::size_t k = 0; k < i; k++) (void)take(l.get());
        const State state = state_of(l.get());
        CHECK(info_of(state).iterable == 1);
        Iterable again(workers, saves);
        const Loader resumed = again.create(&state);
        REQUIRE_MESSAGE(resumed != nullptr, again.error.text);
        check_same(take_epoch(resumed.get(), 0), expected, i);
        check_same(take_epoch(resumed.get(), 1), take_epoch(l.get(), 1));
      }
    }
}

// promise: state-iterable-refused
TEST_CASE("an iterable state without save and load is refused with other workers or without deterministic") {
  Iterable first(2, false);
  const Loader l = first.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State state = state_of(l.get());
  Iterable three(3, false);
  CHECK(three.create(&state) == nullptr);
  CHECK(three.status == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(three.error.argument) == "config.workers");
  CHECK(three.error.found == 3);
  CHECK(three.error.needed == 2);
  Iterable vague(2, false);
  vague.config.deterministic = 0;
  CHECK(vague.create(&state) == nullptr);
  CHECK(std::string(vague.error.argument) == "config.deterministic");
}

// promise: state-iterable-included
TEST_CASE("an iterable state that is taken after the last batch but before END resumes with END") {
  Iterable first(0, false);
  const Loader l = first.create();
  begin(l.get(), 0);
  const std::size_t batches = (Counting::total + 2) / 3;
  for (std::size_t i = 0; i < batches; i++) REQUIRE(take(l.get()).status == FEEDLANE_OK);
  Iterable forked(2, false);
  const Loader two = forked.create();
  const std::size_t all = take_epoch(two.get(), 0).size();
  begin(two.get(), 0);
  for (std::size_t i = 0; i < all; i++) REQUIRE(take(two.get()).status == FEEDLANE_OK);
  REQUIRE(eventually([&] { return feedlane_loader_poll(two.get(), nullptr) == FEEDLANE_AGAIN; }));
  const State state = state_of(two.get());
  Iterable again(2, false);
  const Loader resumed = again.create(&state);
  REQUIRE_MESSAGE(resumed != nullptr, again.error.text);
  CHECK(take_epoch(resumed.get(), 0).empty());
  const State inline_state = state_of(l.get());
  Iterable alone(0, false);
  CHECK(take_epoch(alone.create(&inline_state).get(), 0).empty());
}

namespace {

// One shard of which the first sample of batch 3 kills whoever comes to it, until told otherwise.
struct Deadly : Counting {
  static inline bool is_deadly = true;
  static std::int32_t take(void* self, const feedlane_row* row, feedlane_error* err) {
    auto* c = static_cast<Counting*>(self);
    if (is_deadly && c->first == 1 && c->next >= 1 + 9 * c->step) (void)::raise(SIGKILL);
    return Counting::take(self, row, err);
  }
};

}  // namespace

// promise: state-iterable-included
TEST_CASE("after a quarantined batch each shard resumes with its own state") {
  Iterable first(2, true);
  first.table.next = Deadly::take;
  first.config.max_kills_per_batch = 1;
  const Loader l = first.create();
  begin(l.get(), 0);
  bool was_quarantined = false;
  std::vector<std::int64_t> seen;
  for (int i = 0; i < 10; i++) {
    const Taken t = take(l.get());
    if (t.status == FEEDLANE_E_QUARANTINED) was_quarantined = true;
    else REQUIRE(t.status == FEEDLANE_OK);
    for (std::size_t row = 0; row < t.bytes.size() / 2 * (t.bytes.empty() ? 0 : t.bytes[0].size() / 8); row++)
      seen.push_back(t.value("index", row));
  }
  CHECK(was_quarantined);
  const State state = state_of(l.get());
  Deadly::is_deadly = false;
  Iterable again(2, true);
  const Loader resumed = again.create(&state);
  REQUIRE_MESSAGE(resumed != nullptr, again.error.text);
  for (const Taken& t : take_epoch(resumed.get(), 0))
    for (std::size_t row = 0; row < t.bytes[0].size() / 8; row++) {
      const std::int64_t value = t.value("index", row);
      CHECK_MESSAGE(std::find(seen.begin(), seen.end(), value) == seen.end(), value << " a second time");
    }
  Deadly::is_deadly = true;
}

// promise: state-iterable-included
TEST_CASE("a large state of a shard that was saved with large batches is resumed with small batches") {
  constexpr std::uint64_t state_bytes = 100'000;
  static std::uint64_t loaded;
  auto table = fresh<feedlane_dataset>();
  table.restart = [](void*, std::int64_t, feedlane_error*) { return std::int32_t{FEEDLANE_OK}; };
  table.next = [](void*, const feedlane_row* row, feedlane_error*) {
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    return std::int32_t{FEEDLANE_OK};
  };
  table.save = [](void*, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error*) {
    *bytes = state_bytes;
    if (cap < state_bytes) return std::int32_t{FEEDLANE_E_LIMIT};
    std::memset(buffer, 7, state_bytes);
    return std::int32_t{FEEDLANE_OK};
  };
  table.load = [](void*, const void*, std::uint64_t bytes, feedlane_error*) {
    loaded = bytes;
    return std::int32_t{FEEDLANE_OK};
  };
  std::vector<std::byte> state(1 << 18);
  for (const bool is_resumed : {false, true}) {
    Setup s(0, is_resumed ? 4 : 16384);
    s.forked(0, table).fields({field("index", int64_type)});
    s.config.iterable = 1;
    if (is_resumed) {
      s.config.has_seed = 0;
      s.config.seed = 0;
      s.config.state = state.data();
      s.config.state_bytes = state.size();
    }
    const Loader l = s.create();
    begin(l.get(), 0);
    const Taken t = take(l.get());
    REQUIRE_MESSAGE(t.status == FEEDLANE_OK, t.text);
    CHECK(t.value("index") == (is_resumed ? 16384 : 0));
    if (is_resumed) continue;
    std::uint64_t bytes = 0;
    REQUIRE(feedlane_loader_state(l.get(), 0, state.data(), state.size(), &bytes, nullptr) == FEEDLANE_OK);
    state.resize(bytes);
  }
  CHECK(loaded == state_bytes);
}
