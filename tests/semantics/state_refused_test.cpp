// SPDX-License-Identifier: Apache-2.0
// States that are damaged, or do not fit the loader; states of custom samplers.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "semantics/states.hpp"
#include "support/events.hpp"
#include "support/process.hpp"

using namespace feedlane::test;
using namespace feedlane::test::states;

// promise: state-damaged
TEST_CASE("a state with any damaged byte or of another length is refused with E_CORRUPT or E_ABI") {
  Shuffled s;
  const Loader l = s.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State good = state_of(l.get());
  const auto refused = [](const State& bad) {
    Shuffled again;
    Loader made;
    Error e;
    const std::int32_t status = go_on(again, bad).try_create(made, &e);
    CHECK(made == nullptr);
    CHECK(std::string(e.argument).starts_with("state"));
    auto info = fresh<feedlane_state_info>();
    CHECK(feedlane_state_read(bad.data(), bad.size(), &info, nullptr) == status);
    return status == FEEDLANE_E_CORRUPT || status == FEEDLANE_E_ABI;
  };
  for (std::size_t i = 0; i < good.size(); i++) {
    State bad = good;
    bad[i] = bad[i] ^ std::byte{0x40};
    CHECK(refused(bad));
  }
  for (std::size_t length = 1; length < good.size(); length++)
    CHECK(refused(State(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length))));
  State longer = good;
  longer.push_back({});
  CHECK(refused(longer));
}

// promise: state-damaged
TEST_CASE("a state of another length, order or seed is refused with the differing argument and both numbers") {
  Shuffled s;
  const Loader l = s.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State state = state_of(l.get());
  struct Case {
    const char* what;
    void (*change)(Shuffled&);
    const char* argument;
  };
  for (const Case& c : {Case{"another length", [](Shuffled& x) { x.sampler = shuffled(54, 7); }, "state"},
                        {"another order", [](Shuffled& x) { x.sampler = sequential(53); }, "state"},
                        {"another sampler's seed", [](Shuffled& x) { x.sampler = shuffled(53, 8); }, "state"},
                        {"another base seed", [](Shuffled& x) { x.config.seed = 98; }, "config.seed"}}) {
    CAPTURE(std::string(c.what));
    Shuffled again;
    (void)go_on(again, state);
    c.change(again);
    Loader made;
    Error e;
    CHECK(again.try_create(made, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == c.argument);
    CHECK(e.found != e.needed);
  }
}

// promise: state-damaged
TEST_CASE("a loader whose sampler makes batches refuses a state that counts samples, and the reverse") {
  const auto state_after_one = [](Shuffled& s) {
    const Loader l = s.create();
    begin(l.get(), 0);
    (void)take(l.get());
    return state_of(l.get());
  };
  Shuffled samples_first, samples_then;
  ShuffledBatches batches_first, batches_then;
  const State in_samples = state_after_one(samples_first), in_batches = state_after_one(batches_first);
  const auto refuse = [](Shuffled& s, const State& state, std::int64_t found, std::int64_t needed) {
    Loader made;
    Error e;
    CHECK(go_on(s, state).try_create(made, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "config.batch_size");
    CHECK(e.found == found);
    CHECK(e.needed == needed);
  };
  refuse(batches_then, in_samples, 0, 5);
  refuse(samples_then, in_batches, 5, 0);
}

// promise: state-damaged
TEST_CASE("the state of a batch that is held beyond its epoch is refused with E_STATE") {
  Shuffled s;
  s.config.held = 2;
  const Loader l = s.create();
  begin(l.get(), 3);
  auto held = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &held, nullptr) == FEEDLANE_OK);
  begin(l.get(), 4);
  std::byte room[1024];
  std::uint64_t bytes = 0;
  Error e;
  CHECK(feedlane_loader_state(l.get(), held.token, room, sizeof room, &bytes, &e) == FEEDLANE_E_STATE);
  CHECK(std::string(e.argument) == "token");
  CHECK(e.found == 3);
  CHECK(e.needed == 4);
  CHECK(feedlane_batch_release(l.get(), held.token) == FEEDLANE_OK);
  CHECK(feedlane_loader_state(l.get(), held.token, room, sizeof room, &bytes, &e) == FEEDLANE_E_STALE);
}

// promise: state-damaged
TEST_CASE("a loader has no state before its first epoch") {
  Shuffled s;
  const Loader l = s.create();
  Error e;
  std::uint64_t bytes = 0;
  CHECK(feedlane_loader_state(l.get(), 0, nullptr, 0, &bytes, &e) == FEEDLANE_E_STATE);
}

namespace {

// 0, 1 ... 11 of the user's own, which a copy shares.
struct Own {
  std::int64_t at = 0;

  static std::int32_t restart(void* self, std::int64_t, std::uint64_t, feedlane_error*) {
    static_cast<Own*>(self)->at = 0;
    return FEEDLANE_OK;
  }
  static std::int32_t next(void* self, std::int64_t* indices, std::uint64_t, std::uint64_t* got, feedlane_error*) {
    auto& own = *static_cast<Own*>(self);
    *got = 0;
    if (own.at == 12) return FEEDLANE_END;
    indices[(*got)++] = own.at++;
    return FEEDLANE_OK;
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error*) {
    if ((*bytes = sizeof at) > cap) return FEEDLANE_E_LIMIT;
    std::memcpy(buffer, &static_cast<Own*>(self)->at, sizeof at);
    return FEEDLANE_OK;
  }
  static std::int32_t load(void* self, const void* buffer, std::uint64_t bytes, feedlane_error*) {
    if (bytes != sizeof at) return FEEDLANE_E_CORRUPT;
    std::memcpy(&static_cast<Own*>(self)->at, buffer, sizeof at);
    return FEEDLANE_OK;
  }
  Sampler sampler(bool saves) {
    auto callbacks = fresh<feedlane_sampler_callbacks>();
    callbacks.user_data = this;
    callbacks.restart = restart;
    callbacks.next = next;
    if (saves) callbacks.save = save, callbacks.load = load;
    feedlane_sampler* s = nullptr;
    REQUIRE(custom_sampler(&callbacks, &s, nullptr) == FEEDLANE_OK);
    return Sampler(s);
  }
};

}  // namespace

// promise: state-custom-sampler
TEST_CASE("a loader's state contains that of its custom sampler, and resumes with any number of workers") {
  for (const std::int32_t before : {0, 2})
    for (const std::int32_t after : {0, 2}) {
      CAPTURE(before);
      CAPTURE(after);
      Own first_order, second_order;
      Setup first(12, 2), second(12, 2);
      first.sampler = first_order.sampler(true);
      second.sampler = second_order.sampler(true);
      const Loader l = with_workers(first, before).create();
      begin(l.get(), 3);
      for (int i = 0; i < 2; i++) CHECK(take(l.get()).batch == i);
      const State state = state_of(l.get());
      const std::vector<Taken> rest = take_rest(l.get());
      CHECK(rest.size() == 4);
      const Loader resumed = go_on(with_workers(second, after), state).create();
      check_same(take_epoch(resumed.get(), 3), rest);
    }
}

// promise: state-custom-sampler
TEST_CASE("a loader with a custom sampler that was resumed with missing batches has a state after every batch") {
  Own order;
  Setup first(12, 1);
  first.sampler = order.sampler(true);
  const Gate gate;
  first.plan.gate_fd = gate.fd();
  first.plan.gate_index = 3;
  first.config.out_of_order = 1;
  first.config.prefetch_factor = 4;
  const Loader l = with_workers(first, 2).create();
  begin(l.get(), 0);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 7; i++) seen.insert(take(l.get()).batch);
  REQUIRE(seen.size() == 7);
  REQUIRE(seen.count(3) == 0);
  const State state = state_of(l.get());
  gate.open();
  // Makes a batch at a time, so that those that were yielded ahead are drawn again later than the gap is closed.
  const auto rest_of = [](const State& from, bool look_further) {
    std::vector<State> states;
    Own again;
    Setup second(12, 1);
    second.sampler = again.sampler(true);
    second.config.out_of_order = 1;
    const Loader resumed = go_on(second, from).create();
    begin(resumed.get(), 0);
    std::set<std::int64_t> rest;
    for (auto batch = fresh<feedlane_batch>();
         feedlane_loader_next(resumed.get(), 0, &batch, nullptr) == FEEDLANE_OK;) {
      CHECK(rest.insert(batch.batch).second);
      if (look_further) states.push_back(state_of(resumed.get(), batch.token));
      CHECK(feedlane_batch_release(resumed.get(), batch.token) == FEEDLANE_OK);
    }
    return std::pair(rest, states);
  };
  const auto [rest, states] = rest_of(state, true);
  CHECK(rest.size() == 5);
  for (const std::int64_t batch : rest) CHECK(seen.count(batch) == 0);
  for (std::size_t i = 0; i < states.size(); i++) CHECK(rest_of(states[i], false).first.size() == rest.size() - i - 1);
}

// promise: state-custom-refused
TEST_CASE("the state of a loader whose custom sampler has no save and load is refused with E_UNSUPPORTED") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Own order;
    Setup s(12, 2);
    s.sampler = order.sampler(false);
    const Loader l = with_workers(s, workers).create();
    begin(l.get(), 0);
    CHECK(take(l.get()).batch == 0);
    Error e;
    std::uint64_t bytes = 0;
    CHECK(feedlane_loader_state(l.get(), 0, nullptr, 0, &bytes, &e) == FEEDLANE_E_UNSUPPORTED);
    CHECK(std::string(e.argument) == "config.sampler");
    CHECK(take_rest(l.get()).size() == 5);
  }
}
