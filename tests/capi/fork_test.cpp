// SPDX-License-Identifier: Apache-2.0
// A forked child and its parent's handles: every call is E_FORKED, destroy clears the pointer, and the parent
// doesn't notice.
#include <doctest/doctest.h>

#include <string>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

void expect_forked(feedlane_loader* l, std::uint64_t token, Findings& f) {
  auto b = fresh<feedlane_batch>();
  auto stats = fresh<feedlane_stats>();
  auto worker = fresh<feedlane_worker_stats>();
  std::int32_t number = -1;
  std::int64_t length = 0;
  Error e;
  EXPECT(f, feedlane_loader_begin(l, 0, &e) == FEEDLANE_E_FORKED);
  EXPECT(f, e.code == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_loader_next(l, FEEDLANE_FOREVER, &b, nullptr) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_loader_poll(l, nullptr) == FEEDLANE_E_FORKED);
  EXPECT(f, wait_fd_of(l, &number) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_loader_arm(l, nullptr) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_loader_interrupt(l) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_loader_stop(l, nullptr) == FEEDLANE_E_FORKED);
  EXPECT(f, length_of(l, &length) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_loader_open_worker(l, &number, &number, nullptr) == FEEDLANE_E_FORKED);
  EXPECT(f, observe(l, feedlane_monitor_get_stats, &stats) == FEEDLANE_E_FORKED);
  EXPECT(f, observe(l, feedlane_monitor_get_worker_stats, 0, &worker) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_batch_retain(l, token) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_batch_release(l, token) == FEEDLANE_E_FORKED);
  EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
  EXPECT(f, l == nullptr);
}

}  // namespace

// promise: fault-fork, trainer-forks
TEST_CASE("a loader in a forked child returns E_FORKED, and the parent's loader continues") {
  Setup s(6, 2);
  const Loader l = s.create();
  begin(l.get(), 0);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  CHECK(in_child([&](Findings& f) { expect_forked(l.get(), b.token, f); }) == "");
  CHECK_MESSAGE(in_child([&](Findings& f) {
                  // A grandchild, and a child that has handles of its own.
                  const Loader own = Setup(2).create();
                  expect_forked(l.get(), b.token, f);
                  EXPECT(f, in_child([&](Findings& g) { expect_forked(own.get(), 0, g); }).empty());
                }) == "",
                "also where there are handles of the child's own");
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(take(l.get()).batch == 1);
  CHECK(take(l.get()).batch == 2);
  CHECK(take(l.get()).status == FEEDLANE_END);
}

// promise: fault-fork
TEST_CASE("a loader with worker processes returns E_FORKED in a forked child, and its workers continue") {
  Setup s(6, 2);
  s.workers(2);
  s.config.keep_workers = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  CHECK(take(l.get()).batch == 0);
  const std::int64_t pid = worker_of(l.get(), 0).pid;
  CHECK(in_child([&](Findings& f) { expect_forked(l.get(), 0, f); }) == "");
  CHECK(take(l.get()).batch == 1);
  CHECK(take(l.get()).batch == 2);
  CHECK(take(l.get()).status == FEEDLANE_END);
  check_sequence(take_epoch(l.get(), 1), 6, 2);
  CHECK(worker_of(l.get(), 0).pid == pid);
  CHECK(stats_of(l.get()).restarts == 0);
}

TEST_CASE("a sampler in a forked child returns E_FORKED, and the parent's sampler continues") {
  feedlane_sampler* s = nullptr;
  REQUIRE(sequential_sampler(3, &s, nullptr) == FEEDLANE_OK);
  std::int64_t index = -1;
  std::uint64_t got = 0;
  REQUIRE(feedlane_sampler_next(s, &index, 1, &got, nullptr) == FEEDLANE_OK);
  CHECK(in_child([&](Findings& f) {
          Error e;
          EXPECT(f, feedlane_sampler_next(s, &index, 1, &got, &e) == FEEDLANE_E_FORKED);
          EXPECT(f, e.code == FEEDLANE_E_FORKED);
          EXPECT(f, feedlane_sampler_restart(s, 0, nullptr) == FEEDLANE_E_FORKED);
          EXPECT(f, feedlane_sampler_length(s, &index) == FEEDLANE_E_FORKED);
          Setup setup(1);
          setup.connect();
          setup.config.sampler = s;
          feedlane_loader* l = nullptr;
          EXPECT(f, feedlane_loader_create(&setup.config, &l, &e) == FEEDLANE_E_FORKED);
          EXPECT(f, feedlane_sampler_destroy(&s) == FEEDLANE_OK);
          EXPECT(f, s == nullptr);
        }) == "");
  REQUIRE(feedlane_sampler_next(s, &index, 1, &got, nullptr) == FEEDLANE_OK);
  CHECK(index == 1);
  CHECK(feedlane_sampler_destroy(&s) == FEEDLANE_OK);
}

// promise: fault-fork
TEST_CASE("a forked child can create and run its own loader") {
  Setup parents(2);
  const Loader l = parents.create();
  begin(l.get(), 0);
  CHECK(in_child([&](Findings& f) {
          Setup s(4, 2);
          const Loader own = s.create();
          EXPECT(f, feedlane_loader_begin(own.get(), 0, nullptr) == FEEDLANE_OK);
          EXPECT(f, take(own.get()).batch == 0);
          EXPECT(f, take(own.get()).batch == 1);
          EXPECT(f, take(own.get()).status == FEEDLANE_END);
        }) == "");
  check_sequence(take_rest(l.get()), 2, 1);
}
