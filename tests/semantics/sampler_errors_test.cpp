// SPDX-License-Identifier: Apache-2.0
// Samplers of the user's own that fail in mid-epoch: told once, and nothing that they gave is lost.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "support/samplers.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t samples = 16;

// One index at a time; the calls at `bad_next` and `bad_save` fail once, and so does the call of restart or load of that number.
struct Faulty {
  static std::int32_t fail(feedlane_error* error, const char* text) {
    (void)std::snprintf(error->text, sizeof error->text, "%s", text);
    return FEEDLANE_E_OS;
  }
  static std::int32_t next(void* self, std::int64_t* indices, std::uint64_t, std::uint64_t* got,
                           feedlane_error* error) {
    auto& f = *static_cast<Faulty*>(self);
    if (f.at >= samples) return FEEDLANE_END;
    if (f.bad_next.erase(f.at) != 0) return fail(error, "next has the hiccups");
    *indices = f.at++;
    *got = 1;
    return FEEDLANE_OK;
  }
  static std::int32_t restart(void* self, std::int64_t, std::uint64_t, feedlane_error* error) {
    auto& f = *static_cast<Faulty*>(self);
    if (++f.restarts == f.bad_restart) return fail(error, "restart has the hiccups");
    f.at = 0;
    return FEEDLANE_OK;
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t, std::uint64_t* bytes, feedlane_error* error) {
    auto& f = *static_cast<Faulty*>(self);
    if (f.bad_save.erase(f.at) != 0) return fail(error, "save has the hiccups");
    std::memcpy(buffer, &f.at, *bytes = sizeof f.at);
    return FEEDLANE_OK;
  }
  static std::int32_t load(void* self, const void* buffer, std::uint64_t, feedlane_error* error) {
    auto& f = *static_cast<Faulty*>(self);
    if (++f.loads == f.bad_load) return fail(error, "load has the hiccups");
    std::memcpy(&f.at, buffer, sizeof f.at);
    return FEEDLANE_OK;
  }
  Sampler make() {
    auto table = fresh<feedlane_sampler_callbacks>();
    table.user_data = this;
    table.next = next;
    table.restart = restart;
    table.save = save;
    table.load = load;
    feedlane_sampler* s = nullptr;
    REQUIRE(custom_sampler(&table, &s, nullptr) == FEEDLANE_OK);
    return Sampler(s);
  }

  std::set<std::int64_t> bad_next, bad_save;
  std::int64_t at = 0;
  int bad_restart = 0, bad_load = 0, restarts = 0, loads = 0;
};

// An epoch in batches of four: every error once, and every batch in its place.
void check_epoch(Faulty faulty, std::int32_t workers, const std::vector<std::int64_t>& errors_before) {
  Setup setup(samples, 4);
  setup.sampler = faulty.make();
  if (workers != 0) setup.workers(workers);
  const Loader l = setup.create();
  begin(l.get(), 0);
  std::vector<std::int64_t> told;  // before which batch
  std::vector<Taken> taken;
  Error e;
  for (Taken t = take(l.get(), &e); t.status != FEEDLANE_END; t = take(l.get(), &e)) {
    if (t.status == FEEDLANE_OK) {
      taken.push_back(std::move(t));
      continue;
    }
    CHECK(t.status == FEEDLANE_E_OS);
    CHECK(e.says("hiccups"));
    told.push_back(static_cast<std::int64_t>(taken.size()));
    REQUIRE(told.size() <= errors_before.size());
  }
  CHECK(told == errors_before);
  check_sequence(taken, samples, 4);
  const feedlane_stats s = stats_of(l.get());
  CHECK(s.slots_free == s.slots);
}

}  // namespace

// promise: sampler-failure-loses-nothing
TEST_CASE("each failure of a custom sampler is reported once, after the batches in flight, and no sample is lost") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    check_epoch({.bad_next = {10}, .bad_save = {}}, workers, {2});
    check_epoch({.bad_next = {12, 13, 15}, .bad_save = {}}, workers, {3, 3, 3});
    check_epoch({.bad_next = {}, .bad_save = {12}}, workers, {2});
    check_epoch({.bad_next = {}, .bad_save = {16}}, workers, {3});
    check_epoch({.bad_next = {14}, .bad_save = {12, 16}}, workers, {2, 3, 3});
  }
}

// promise: sampler-failure-loses-nothing
TEST_CASE("a batch that its sampler has not finished is dropped when another epoch begins") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Faulty faulty{.bad_next = {}, .bad_save = {12}};
    Setup setup(samples, 4);
    setup.sampler = faulty.make();
    if (workers != 0) setup.workers(workers);
    const Loader l = setup.create();
    begin(l.get(), 0);
    while (take(l.get()).status == FEEDLANE_OK) {
    }
    check_sequence(take_epoch(l.get(), 1), samples, 4);
    const feedlane_stats s = stats_of(l.get());
    CHECK(s.slots_free == s.slots);
  }
}

// promise: sampler-failure-loses-nothing
TEST_CASE("save fails with E_STATE after a custom sampler failed, until the indices before the failure are yielded") {
  Faulty faulty{.bad_next = {2}, .bad_save = {}};
  const Sampler s = faulty.make();
  std::int64_t room[3] = {};
  std::uint64_t got = 9, bytes = 0;
  CHECK(feedlane_sampler_next(s.get(), room, 3, &got, nullptr) == FEEDLANE_E_OS);
  CHECK(feedlane_sampler_save(s.get(), nullptr, 0, &bytes, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_sampler_next(s.get(), room, 1, &got, nullptr) == FEEDLANE_OK);
  CHECK(room[0] == 0);
  CHECK(feedlane_sampler_next(s.get(), room, 3, &got, nullptr) == FEEDLANE_OK);
  CHECK(std::vector<std::int64_t>(room, room + 3) == std::vector<std::int64_t>{1, 2, 3});
  CHECK(feedlane_sampler_save(s.get(), nullptr, 0, &bytes, nullptr) == FEEDLANE_E_LIMIT);
}

// promise: sampler-failure-loses-nothing
TEST_CASE("begin fails with the error of any sampler callback, and the next begin starts or resumes the epoch") {
  struct Fault {
    const char* of;
    Faulty sampler;
    bool is_resumed;
  };
  // A loader that resumes has restarted and loaded it when it was created.
  const Fault faults[] = {{"restart", {.bad_next = {}, .bad_save = {}, .bad_restart = 1}, false},
                          {"save", {.bad_next = {}, .bad_save = {0}}, false},
                          {"next", {.bad_next = {0}, .bad_save = {}}, false},
                          {"restart", {.bad_next = {}, .bad_save = {}, .bad_restart = 3}, true},
                          {"load", {.bad_next = {}, .bad_save = {}, .bad_load = 2}, true},
                          {"save", {.bad_next = {}, .bad_save = {8}}, true},
                          {"next", {.bad_next = {8}, .bad_save = {}}, true},
                          {"save", {.bad_next = {}, .bad_save = {12}}, true}};
  std::vector<std::byte> state(1024);
  {
    Faulty good;
    Setup setup(samples, 4);
    setup.sampler = good.make();
    const Loader l = setup.create();
    begin(l.get(), 0);
    for (int i = 0; i < 2; i++) REQUIRE(take(l.get()).status == FEEDLANE_OK);
    std::uint64_t bytes = 0;
    REQUIRE(feedlane_loader_state(l.get(), 0, state.data(), state.size(), &bytes, nullptr) == FEEDLANE_OK);
    state.resize(bytes);
  }
  for (const Fault& fault : faults) {
    CAPTURE(std::string(fault.of));
    CAPTURE(fault.is_resumed);
    Faulty faulty = fault.sampler;
    Setup setup(samples, 4);
    setup.sampler = faulty.make();
    setup.workers(1);
    if (fault.is_resumed) {
      setup.config.state = state.data();
      setup.config.state_bytes = state.size();
      setup.config.has_seed = 0;
      setup.config.seed = 0;
    }
    const Loader l = setup.create();
    Error e;
    CHECK(feedlane_loader_begin(l.get(), 0, &e) == FEEDLANE_E_OS);
    CHECK(e.says((std::string(fault.of) + " has the hiccups").c_str()));
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_rest(l.get());
    REQUIRE(taken.size() == (fault.is_resumed ? 2 : 4));
    for (std::size_t i = 0; i < taken.size(); i++) {
      const std::int64_t batch = static_cast<std::int64_t>(i) + (fault.is_resumed ? 2 : 0);
      CHECK(taken[i].batch == batch);
      CHECK(taken[i].indices[0] == 4 * batch);
    }
  }
}
