// SPDX-License-Identifier: Apache-2.0
// 7. Faults: processes that SIGKILL doesn't end, because they are stuck in the kernel. What they have in hand stays with
// them until they are gone; whatever else there is to do is done by others, or the trainer hears why it can't be.
//
// Skipped where this user may not mount a FUSE file system, which is how they get stuck here.
#include <doctest/doctest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "semantics/sharing.hpp"
#include "support/process.hpp"
#include "support/stuck_file.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t millisecond = 1'000'000;

[[maybe_unused]] const bool can_be_stuck = [] {
  const StuckFile file;
  if (file.fd() >= 0) return true;
  std::printf("skipped: nothing here gets stuck in the kernel: %s\n", file.why().c_str());
  std::_Exit(77);
}();

// Workers that get stuck in epoch 0, in the first attempt at some samples.
struct Stuck {
  Stuck(std::int64_t samples, std::int32_t workers, std::int64_t first, std::int64_t count = 1) : s(samples) {
    s.plan.stuck_fd = file.fd();
    s.plan.stuck_index = first;
    s.plan.stuck_count = count;
    s.config.task_timeout_ns = 300 * millisecond;
    s.config.keep_workers = 1;
    s.workers(workers);
  }
  StuckFile file;  // outlives the loader, whose workers it lets go
  Setup s;
};

// Those that tell of a worker that is there though it was sent SIGKILL.
std::vector<feedlane_event> told_of_undead(feedlane_loader* l) {
  std::vector<feedlane_event> told;
  for (const feedlane_event& e : events_of(l, FEEDLANE_EVENT_WORKER_HUNG))
    if (std::string(e.what.text).find("after SIGKILL") != std::string::npos) told.push_back(e);
  return told;
}

// The rest of an epoch by a trainer that has one batch in hand whenever it asks for another.
void take_with_one_in_hand(feedlane_loader* l, std::int64_t from, std::int64_t samples) {
  std::uint64_t last = 0;
  for (std::int64_t i = from; i < samples; i++) {
    auto batch = fresh<feedlane_batch>();
    auto err = fresh<feedlane_error>();
    REQUIRE_MESSAGE(feedlane_loader_next(l, patience_ns, &batch, &err) == FEEDLANE_OK, err.text);
    CHECK(batch.indices[0] == i);
    if (last != 0) CHECK(feedlane_batch_release(l, last) == FEEDLANE_OK);
    last = batch.token;
  }
  CHECK(take(l).status == FEEDLANE_END);
  CHECK(feedlane_batch_release(l, last) == FEEDLANE_OK);
}

}  // namespace

// promise: fault-survives-sigkill, stuck-survives-sigkill
TEST_CASE("other workers make the batches of a worker that survives SIGKILL, which is replaced when it exits") {
  for (const std::int32_t keep : {0, 1}) {
    CAPTURE(keep);
    Stuck stuck(40, 2, 5);
    stuck.s.config.keep_workers = keep;
    stuck.s.config.stop_timeout_ns = 60'000 * millisecond;
    const Loader l = stuck.s.create();
    const auto before = std::chrono::steady_clock::now();
    const std::vector<Taken> first = take_epoch(l.get(), 0);
    check_sequence(first, 40, 1);
    CHECK(first[5].attempt == 1);
    const std::vector<feedlane_event> told = told_of_undead(l.get());
    REQUIRE(told.size() == 1);
    const std::int32_t undead = told[0].what.worker;
    CHECK(told[0].what.code == FEEDLANE_E_HUNG);
    CHECK(told[0].what.batch == 5);
    CHECK(state_of(static_cast<pid_t>(worker_of(l.get(), undead).pid)) == 'D');
    const std::vector<Taken> second = take_epoch(l.get(), 1);
    check_sequence(second, 40, 1);
    for (const Taken& t : second) CHECK(t.worker == 1 - undead);
    CHECK_MESSAGE(std::chrono::steady_clock::now() - before < std::chrono::seconds(60), "no call waits for the worker");
    CHECK(stats_of(l.get()).hung == 1);
    CHECK(stats_of(l.get()).restarts == 0);
    CHECK_MESSAGE(stats_of(l.get()).slots_free == stats_of(l.get()).slots - 1, "the worker keeps one slot");
    stuck.file.let_go();
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return stats_of(l.get()).slots_free == stats_of(l.get()).slots;
    }));
    check_sequence(take_epoch(l.get(), 2), 40, 1);
    CHECK(stats_of(l.get()).restarts == 1);
    CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  }
}

// promise: fault-survives-sigkill, stuck-at-stop
TEST_CASE("stop returns E_HUNG for a worker that survives SIGKILL, and a later epoch continues with the others") {
  Stuck stuck(20, 2, 3);
  const Loader l = stuck.s.create();
  check_sequence(take_epoch(l.get(), 0), 20, 1);
  Error e;
  CHECK(feedlane_loader_stop(l.get(), &e) == FEEDLANE_E_HUNG);
  CHECK(std::string(e.argument) == "worker");
  CHECK(e.says("after SIGKILL"));
  const std::int32_t undead = e.worker;
  const std::vector<Taken> next = take_epoch(l.get(), 1);
  check_sequence(next, 20, 1);
  for (const Taken& t : next) CHECK(t.worker == 1 - undead);
  stuck.file.let_go();
  REQUIRE(eventually([&] { return feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK; }));
  CHECK(stats_of(l.get()).slots_free == stats_of(l.get()).slots);
}

// promise: fault-survives-sigkill
TEST_CASE("a signal to the thread that calls stop does not end its wait for a worker that survives SIGKILL") {
  Stuck stuck(20, 2, 3);
  const Loader l = stuck.s.create();
  check_sequence(take_epoch(l.get(), 0), 20, 1);
  static std::atomic<int> signals;
  signals = 0;
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { signals++; };
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  std::thread other([&, stopping = ::pthread_self(), thread = ::gettid()] {
    for (int sent = 0; sent < 20; sent++) {
      if (!eventually([&] { return is_asleep(thread); })) break;
      (void)::pthread_kill(stopping, SIGUSR1);
      (void)eventually([&] { return signals > sent; });
    }
    stuck.file.let_go();
  });
  Error e;
  CHECK_MESSAGE(feedlane_loader_stop(l.get(), &e) == FEEDLANE_OK, e.text);
  other.join();
  CHECK(signals == 20);
  (void)::sigaction(SIGUSR1, &before, nullptr);
}

// promise: fault-survives-sigkill
TEST_CASE("stop returns E_HUNG for a worker that survives SIGKILL although a consumer has left the loader") {
  Stuck stuck(20, 2, 3);
  stuck.s.config.share = FEEDLANE_SHARE_EVERY;
  const Loader feeder = stuck.s.create();
  feedlane_loader* consumer = sharing::join_here(feeder.get()).release();
  begin(feeder.get(), 0);
  begin(consumer, 0);
  for (std::int64_t i = 0; i < 20; i++) CHECK(sharing::polled(feeder.get(), consumer).batch == i);
  CHECK(sharing::polled(feeder.get(), consumer).status == FEEDLANE_END);
  CHECK(told_of_undead(feeder.get()).size() == 1);
  REQUIRE(feedlane_loader_destroy(&consumer) == FEEDLANE_OK);  // the feeder hears of it in poll and serve only
  CHECK(feedlane_loader_stop(feeder.get(), nullptr) == FEEDLANE_E_HUNG);
  stuck.file.let_go();
}

// promise: fault-survives-sigkill, stuck-only-worker
TEST_CASE("if the only worker survives SIGKILL, next returns E_HUNG until the worker exits, then the epoch continues") {
  Stuck stuck(12, 1, 4);
  const Loader l = stuck.s.create();
  begin(l.get(), 0);
  std::vector<Taken> all;
  for (int i = 0; i < 4; i++) all.push_back(take(l.get()));
  for (int i = 0; i < 2; i++) {
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_HUNG);
    CHECK(std::string(e.argument) == "worker");
  }
  CHECK_MESSAGE(feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN, "poll reports the error");
  stuck.file.let_go();
  Taken next = take(l.get());
  while (next.status == FEEDLANE_E_HUNG) next = take(l.get());
  all.push_back(std::move(next));
  for (Taken& rest : take_rest(l.get())) all.push_back(std::move(rest));
  check_sequence(all, 12, 1);
  CHECK(stats_of(l.get()).restarts == 1);
}

// promise: fault-survives-sigkill, stuck-all-but-one
TEST_CASE("if all workers but one survive SIGKILL and all allowed batches are held, that worker makes all batches") {
  for (const std::int32_t dispatch : {FEEDLANE_DISPATCH_LEAST_LOADED, FEEDLANE_DISPATCH_ROUND_ROBIN}) {
    CAPTURE(dispatch);
    Stuck stuck(60, 4, 10, 3);
    stuck.s.config.dispatch = dispatch;
    const Loader l = stuck.s.create();
    begin(l.get(), 0);
    take_with_one_in_hand(l.get(), 0, 60);
    CHECK(told_of_undead(l.get()).size() == 3);
    stuck.file.let_go();
  }
}

// promise: fault-survives-sigkill, stuck-no-slot
TEST_CASE(
    "next fails with E_HUNG if a worker that survives SIGKILL leaves no slot in the budget, and no batch is lost") {
  Stuck stuck(12, 2, 4);
  stuck.s.config.held = 1;
  stuck.s.config.arena_bytes = 2 * 4096;
  const Loader l = stuck.s.create();
  begin(l.get(), 0);
  auto kept = fresh<feedlane_batch>();
  for (int i = 0; i < 3; i++) CHECK(take(l.get()).batch == i);
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &kept, nullptr) == FEEDLANE_OK);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_HUNG);
  CHECK(std::string(e.argument) == "config.arena_bytes");
  CHECK(e.found == 2);
  CHECK(e.needed == 3);
  CHECK(feedlane_batch_release(l.get(), kept.token) == FEEDLANE_OK);
  const std::vector<Taken> rest = take_rest(l.get());
  REQUIRE(rest.size() == 8);
  for (std::size_t i = 0; i < rest.size(); i++) CHECK(rest[i].indices[0] == static_cast<std::int64_t>(i) + 4);
  stuck.file.let_go();
}

// promise: fault-survives-sigkill, stuck-every-worker
TEST_CASE("a batch whose workers all survive SIGKILL fails with E_QUARANTINED, and all other batches are yielded") {
  Stuck stuck(20, 3, 6);
  stuck.s.plan.stuck_attempts = 100;
  stuck.s.config.max_kills_per_batch = 2;
  const Loader l = stuck.s.create();
  begin(l.get(), 0);
  for (std::int64_t i = 0; i < 20; i++) {
    Error e;
    const Taken t = take(l.get(), &e);
    CHECK(t.status == (i == 6 ? FEEDLANE_E_QUARANTINED : FEEDLANE_OK));
    CHECK((i == 6 ? e.batch : t.batch) == i);
  }
  CHECK(take(l.get()).status == FEEDLANE_END);
  CHECK(told_of_undead(l.get()).size() == 2);
  stuck.file.let_go();
}

// promise: fault-survives-sigkill, stuck-shard
TEST_CASE(
    "the rest of the shard of a worker that survives SIGKILL is lost, with one error per epoch; the others continue") {
  Stuck stuck(1, 2, 5);
  stuck.s.plan.stuck_worker = 1;
  stuck.s.config.iterable = 1;
  stuck.s.workers(2, "shard");
  const Loader l = stuck.s.create();
  for (std::int64_t epoch = 0; epoch < 3; epoch++) {
    CAPTURE(epoch);
    if (epoch == 2) {
      stuck.file.let_go();
      REQUIRE(eventually([&] {
        (void)feedlane_loader_poll(l.get(), nullptr);
        return stats_of(l.get()).slots_free == stats_of(l.get()).slots;
      }));
    }
    begin(l.get(), epoch);
    std::vector<std::int64_t> of_shard[2];
    int told = 0;
    for (;;) {
      Error e;
      const Taken t = take(l.get(), &e);
      if (t.status == FEEDLANE_END) break;
      if (t.status == FEEDLANE_E_HUNG) {
        told++;
        CHECK(e.worker == 1);
        continue;
      }
      REQUIRE_MESSAGE(t.status == FEEDLANE_OK, e.text);
      of_shard[t.worker].push_back(t.value("index"));
    }
    CHECK(told == (epoch == 2 ? 0 : 1));
    CHECK(of_shard[0].size() == scripted_shard_length);
    CHECK(of_shard[1].size() == (epoch == 0 ? 5 : epoch == 1 ? 0 : scripted_shard_length));
    for (std::size_t i = 0; i < of_shard[1].size(); i++) CHECK(of_shard[1][i] == static_cast<std::int64_t>(i));
  }
}
