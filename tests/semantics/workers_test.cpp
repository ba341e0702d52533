// SPDX-License-Identifier: Apache-2.0
// Workers as torch's users know them: seeds, their copy of the data set, affinity, descriptors, early exit.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// What one worker remembers.
struct Memory {
  feedlane_worker_info info{};
  std::int64_t samples = 0;
  std::int32_t fail_open = -2;  // this worker's open fails
  int cpu = -1;                 // open sets this affinity
};

std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error* err) {
  auto& m = *static_cast<Memory*>(user_data);
  m.info = *info;
  if (m.fail_open == info->id) {
    (void)std::snprintf(err->text, sizeof err->text, "nothing to open");
    return FEEDLANE_E_OS;
  }
  if (m.cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(m.cpu, &set);
    if (::sched_setaffinity(0, sizeof set, &set) != 0) return FEEDLANE_E_OS;
  }
  *self = user_data;
  return FEEDLANE_OK;
}

std::int64_t the_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1) return -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set)) return cpu;
  return -1;
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error*) {
  auto& m = *static_cast<Memory*>(self);
  const std::int64_t values[] = {
      row->index, static_cast<std::int64_t>(m.info.seed), m.samples++, the_cpu(), m.info.count, m.info.epoch};
  for (std::int32_t f = 0; f < row->task->tensor_count; f++) std::memcpy(row->fields[f], &values[f], sizeof values[f]);
  return FEEDLANE_OK;
}

struct Remembering : Setup {
  Remembering(std::int64_t samples, std::int32_t workers) : Setup(samples) {
    auto table = fresh<feedlane_dataset>();
    table.user_data = &memory;
    table.open = open;
    table.get = get;
    forked(workers, table);
    fields({field("index", int64_type), field("seed", int64_type), field("samples", int64_type),
            field("cpu", int64_type), field("count", int64_type), field("epoch", int64_type)});
  }
  Memory memory;
};

}  // namespace

// promise: shard-per-worker, seed-per-worker, seed-info, torch-worker-seeds, torch-worker-info
TEST_CASE("each worker has its own seed, the base seed plus its number, the same in every run") {
  for (int run = 0; run < 2; run++) {
    Remembering s(24, 4);
    s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
    const Loader l = s.create();
    std::set<std::int64_t> seeds;
    for (const Taken& t : take_epoch(l.get(), 0)) {
      CHECK(t.value("seed") == 99 + t.worker);
      CHECK(t.value("count") == 4);
      seeds.insert(t.value("seed"));
    }
    CHECK(seeds.size() == 4);
  }
}

// promise: seed-per-worker
TEST_CASE("a worker knows the epoch in which it was started") {
  for (const std::int32_t keep : {0, 1}) {
    CAPTURE(keep);
    Remembering s(6, 2);
    s.config.keep_workers = keep;
    const Loader l = s.create();
    for (const std::int64_t epoch : {7, 8})
      for (const Taken& t : take_epoch(l.get(), epoch)) CHECK(t.value("epoch") == (keep == 1 ? 7 : epoch));
  }
}

// promise: seed-per-worker, torch-worker-seeds
TEST_CASE("without a configured seed the workers of two loaders have different seeds") {
  std::set<std::int64_t> seeds;
  for (int run = 0; run < 2; run++) {
    Remembering s(12, 3);
    s.config.has_seed = 0;
    s.config.seed = 0;
    s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
    const Loader l = s.create();
    for (const Taken& t : take_epoch(l.get(), 0)) seeds.insert(t.value("seed"));
  }
  CHECK(seeds.size() == 6);
}

// promise: seed-any-workers
TEST_CASE("the seeds of samples are the same with 0, 1 and 64 workers, also with out_of_order") {
  constexpr std::int64_t rows = 300;
  for (const std::int32_t workers : {0, 1, 64})
    for (const std::int32_t out_of_order : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(out_of_order);
      auto table = fresh<feedlane_dataset>();
      table.get = [](void*, const feedlane_row* row, feedlane_error*) {
        std::memcpy(row->fields[0], &row->seed, sizeof row->seed);
        return std::int32_t{FEEDLANE_OK};
      };
      Setup s(rows, 3);
      s.forked(workers, table).fields({field("seed", uint64_type)});
      s.config.out_of_order = out_of_order;
      const Loader l = s.create();
      std::int64_t seen = 0;
      for (const Taken& t : take_epoch(l.get(), 2))
        for (std::size_t row = 0; row < t.count; row++, seen++)
          CHECK(t.seed(row) == feedlane_row_seed(99, 2, t.indices[row]));
      CHECK(seen == rows);
    }
}

// promise: start-fork, torch-kept-copy
TEST_CASE("kept workers keep their copy of the data set, and new workers start with the trainer's copy") {
  for (const std::int32_t keep : {0, 1}) {
    CAPTURE(keep);
    Remembering s(8, 2);
    s.config.keep_workers = keep;
    s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 3; epoch++)
      for (const Taken& t : take_epoch(l.get(), epoch))
        CHECK(t.value("samples") == t.batch / 2 + (keep != 0 ? epoch * 4 : 0));
    CHECK_MESSAGE(s.memory.samples == 0, "the trainer's own is untouched");
  }
}

// promise: torch-affinity
TEST_CASE("a CPU affinity that the data set's open sets lasts until the worker exits") {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  REQUIRE(::sched_getaffinity(0, sizeof mine, &mine) == 0);
  int last = 0;
  std::string all;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &mine)) {
      last = cpu;
      all += (all.empty() ? "" : ",") + std::to_string(cpu);
    }
  for (const char* const cpus : {static_cast<const char*>(nullptr), all.c_str()}) {
    Remembering s(12, 2);
    s.config.keep_workers = 1;
    s.config.worker_cpus = cpus;
    s.memory.cpu = last;
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++)
      for (const Taken& t : take_epoch(l.get(), epoch)) CHECK(t.value("cpu") == last);
  }
  cpu_set_t after;
  CPU_ZERO(&after);
  REQUIRE(::sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK_MESSAGE(CPU_EQUAL(&mine, &after), "the trainer keeps its own affinity");
}

// promise: error-open-reported, torch-open-errors
TEST_CASE("a data set that can't be opened fails with E_INIT and the worker's number, and the next begin may succeed") {
  for (const std::int32_t workers : {0, 1, 3}) {
    CAPTURE(workers);
    Remembering s(8, workers);
    s.memory.fail_open = workers == 0 ? -1 : workers - 1;
    const Loader l = s.create();
    begin(l.get(), 0);
    if (workers > 1)  // the others may be done with so short an epoch before
      REQUIRE(eventually([&] {
        (void)feedlane_loader_poll(l.get(), nullptr);
        const std::int32_t state = worker_of(l.get(), s.memory.fail_open).state;
        return state == FEEDLANE_WORKER_FAILED || state == FEEDLANE_WORKER_NONE;
      }));
    for (int i = 0; i < 2; i++) {
      Error e;
      std::int32_t status = FEEDLANE_OK;
      while (status == FEEDLANE_OK) status = take(l.get(), &e).status;  // the others' may come before
      CHECK(status == FEEDLANE_E_INIT);
      CHECK(e.worker == s.memory.fail_open);
      CHECK(e.says("nothing to open"));
    }
    s.memory.fail_open = -2;  // new workers fork off this
    check_sequence(take_epoch(l.get(), 1), 8, 1);
  }
  CHECK_FALSE(has_children());
}

// promise: torch-100-descriptors
TEST_CASE("a hundred descriptors are enough for many held batches, over several epochs") {
  const std::string found = in_child([](Findings& f) {
    rlimit limit{};
    EXPECT(f, ::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 100;
    EXPECT(f, ::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    Remembering s(700, 4);
    s.config.held = 300;
    s.config.keep_workers = 1;
    s.connect();
    feedlane_loader* l = nullptr;
    EXPECT(f, feedlane_loader_create(&s.config, &l, nullptr) == FEEDLANE_OK);
    for (std::int64_t epoch = 0; l != nullptr && epoch < 2; epoch++) {
      EXPECT(f, feedlane_loader_begin(l, epoch, nullptr) == FEEDLANE_OK);
      std::vector<feedlane_batch> held;
      for (int i = 0; i < 300; i++) {
        held.push_back(fresh<feedlane_batch>());
        EXPECT(f, feedlane_loader_next(l, patience_ns, &held.back(), nullptr) == FEEDLANE_OK);
      }
      for (std::size_t i = 0; i < held.size(); i++)
        EXPECT(f, *static_cast<const std::int64_t*>(held[i].tensors[0].data) == static_cast<std::int64_t>(i));
      EXPECT(f, open_descriptors().size() < 60);
      for (const feedlane_batch& b : held) EXPECT(f, feedlane_batch_release(l, b.token) == FEEDLANE_OK);
      for (int i = 300; i < 700; i++) {
        auto b = fresh<feedlane_batch>();
        EXPECT(f, feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
        EXPECT(f, feedlane_batch_release(l, b.token) == FEEDLANE_OK);
      }
      auto b = fresh<feedlane_batch>();
      EXPECT(f, feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_END);
    }
    EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
  });
  CHECK(found == "");
}

// promise: end-leaves-nothing, torch-dropped-at-10, torch-early-exit
TEST_CASE("destroying a loader with kept workers after any batch of an epoch leaves no child process") {
  for (const int taken : {0, 1, 10}) {
    CAPTURE(taken);
    Remembering s(30, 3);
    s.config.keep_workers = 1;
    {
      const Loader l = s.create();
      check_sequence(take_epoch(l.get(), 0), 30, 1);
      begin(l.get(), 1);
      for (int i = 0; i < taken; i++) CHECK(take(l.get()).batch == i);
    }
    CHECK_FALSE(has_children());
  }
}

// promise: start-fork, torch-interleaved
TEST_CASE("batches of several loaders with forked workers, one of them with shards, can be taken in turn") {
  std::array<Remembering, 2> maps{{{20, 2}, {20, 3}}};
  Setup shards(0, 2);
  auto table = fresh<feedlane_dataset>();
  static std::int64_t left;
  table.restart = [](void*, std::int64_t, feedlane_error*) {
    left = 10;
    return std::int32_t{FEEDLANE_OK};
  };
  table.next = [](void*, const feedlane_row* row, feedlane_error*) {
    if (left-- == 0) return std::int32_t{FEEDLANE_END};
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    return std::int32_t{FEEDLANE_OK};
  };
  shards.forked(2, table).fields({field("index", int64_type)});
  shards.config.iterable = 1;
  const Loader a = maps[0].create();
  const Loader b = maps[1].create();
  const Loader c = shards.create();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    for (const Loader* l : {&a, &b, &c}) begin(l->get(), epoch);
    for (std::int64_t i = 0; i < 20; i++) {
      CHECK(take(a.get()).value("index") == i);
      CHECK(take(b.get()).value("index") == i);
      if (i < 10) CHECK(take(c.get()).value("index") == i / 2 * 2);
    }
    for (const Loader* l : {&a, &b, &c}) CHECK(take(l->get()).status == FEEDLANE_END);
  }
}

// ---- proper exit ----

namespace {

enum class Cause { nothing, error_in_trainer, error_in_worker, worker_killed, trainer_killed };

bool was_killed(const Child& child) {
  return WIFSIGNALED(child.wait_status()) && WTERMSIG(child.wait_status()) == SIGKILL;
}

// Takes an epoch of 20 samples a shard, or of 40.
bool are_ready(feedlane_loader* l, std::int32_t workers) {
  return eventually([&] {
    (void)feedlane_loader_poll(l, nullptr);
    for (std::int32_t w = 0; w < workers; w++)
      if (worker_of(l, w).state != FEEDLANE_WORKER_READY) return false;
    return true;
  });
}

void train(Findings& f, Setup& s, bool iterable, Cause cause) {
  s.fields({field("index", int64_type)});
  s.config.iterable = iterable ? 1 : 0;
  s.config.deterministic = s.config.iterable;
  s.config.keep_workers = s.config.workers != 0 ? 1 : 0;
  s.connect();
  feedlane_loader* l = nullptr;
  EXPECT(f, feedlane_loader_create(&s.config, &l, nullptr) == FEEDLANE_OK);
  EXPECT(f, feedlane_loader_begin(l, 0, nullptr) == FEEDLANE_OK);
  EXPECT(f, are_ready(l, s.config.workers));  // one that attaches late may have no part in so short an epoch
  int batches = 0;
  int errors = 0;
  for (std::int32_t status = FEEDLANE_OK; status != FEEDLANE_END && batches + errors < 1000;) {
    auto b = fresh<feedlane_batch>();
    status = feedlane_loader_next(l, patience_ns, &b, nullptr);
    if (status == FEEDLANE_OK) EXPECT(f, feedlane_batch_release(l, b.token) == FEEDLANE_OK);
    batches += status == FEEDLANE_OK ? 1 : 0;
    errors += status < 0 ? 1 : 0;
    // One that has found something wrong lives on to tell of it.
    if (batches == 10 && cause == Cause::trainer_killed && f.text().empty()) (void)::raise(SIGKILL);
    if (batches == 10 && cause == Cause::error_in_trainer) break;
  }
  const int samples = iterable && s.config.workers == 0 ? 20 : 40;
  if (cause != Cause::error_in_trainer) EXPECT(f, batches + errors == samples);
  EXPECT(f, (errors > 0) == (cause == Cause::error_in_worker));
  // The others may have made the rest before the replacement has opened; it is to end properly too.
  if (cause == Cause::worker_killed) EXPECT(f, are_ready(l, s.config.workers));
  EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
  EXPECT(f, !has_children());
}

// A trainer's whole life, in a process of its own: map style or shards, with or without workers.
void live(Findings& f, bool iterable, std::int32_t workers, Cause cause, int report_fd) {
  struct Life {
    int report_fd;
    Cause cause;
    std::int64_t generation = 0, made = 0;
  };
  static Life life;
  life = {report_fd, cause, 0, 0};
  auto table = fresh<feedlane_dataset>();
  table.user_data = &life;
  table.open = [](void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
    life.generation = info->generation;
    life.made = 0;
    send_report(life.report_fd, {Report::opened, ::getpid(), -1, -1, 0, info->id});
    *self = &life;
    return std::int32_t{FEEDLANE_OK};
  };
  table.get = [](void*, const feedlane_row* row, feedlane_error*) {
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    if (++life.made != 5) return std::int32_t{FEEDLANE_OK};
    if (life.cause == Cause::worker_killed && life.generation == 0 && row->task->worker != nullptr)
      (void)::raise(SIGKILL);
    return std::int32_t{life.cause == Cause::error_in_worker ? FEEDLANE_E_OS : FEEDLANE_OK};
  };
  static auto* const get_one = table.get;
  table.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    return row->index == 20 ? std::int32_t{FEEDLANE_END} : get_one(self, row, err);
  };
  Setup s(40);
  s.forked(workers, table);
  train(f, s, iterable, cause);
}

// The same with two workers that are programs of their own.
void live_with_programs(Findings& f, bool iterable, Cause cause, int report_fd) {
  Setup s(40);
  s.workers(2, iterable ? "shard" : "get");
  s.plan.report_fd = report_fd;
  if (cause == Cause::error_in_worker) s.plan.fail_index = 4;
  if (cause == Cause::worker_killed) {
    s.plan.end_index = 4;
    s.plan.end_attempts = 1;
    s.plan.end_signal = SIGKILL;
  }
  train(f, s, iterable, cause);
}

}  // namespace

// promise: fault-trainer-killed, torch-proper-exit, torch-dropped-at-10
TEST_CASE("map-style and iterable loaders, with and without workers, leave no process behind, whatever fails") {
  for (const bool iterable : {false, true})
    for (const std::int32_t workers : {0, 2})
      for (const Cause cause : {Cause::nothing, Cause::error_in_trainer, Cause::error_in_worker, Cause::worker_killed,
                                Cause::trainer_killed}) {
        CAPTURE(iterable);
        CAPTURE(workers);
        CAPTURE(static_cast<int>(cause));
        const Reports reports;
        Child trainer([&](Findings& f) { live(f, iterable, workers, cause, reports.fd()); });
        const std::string found = trainer.finish();
        if (cause == Cause::trainer_killed) CHECK_MESSAGE(was_killed(trainer), found);
        else CHECK(found == "");
        int opened = 0;
        for (const Report& r : reports.drain()) {
          opened++;
          CHECK_MESSAGE(eventually([&] { return !is_running(static_cast<pid_t>(r.pid)); }), "no worker is left behind");
        }
        const bool replaced = cause == Cause::worker_killed && workers != 0;
        CHECK(opened >= (workers == 0 ? 1 : workers + (replaced ? 1 : 0)));
      }
}

// promise: torch-proper-exit
TEST_CASE("map-style and iterable loaders with spawned workers leave no process behind, whatever fails") {
  for (const bool iterable : {false, true})
    for (const Cause cause : {Cause::nothing, Cause::error_in_trainer, Cause::error_in_worker, Cause::worker_killed,
                              Cause::trainer_killed}) {
      CAPTURE(iterable);
      CAPTURE(static_cast<int>(cause));
      const Reports reports;
      Child trainer([&](Findings& f) { live_with_programs(f, iterable, cause, reports.fd()); });
      const std::string found = trainer.finish();
      if (cause == Cause::trainer_killed) CHECK_MESSAGE(was_killed(trainer), found);
      else CHECK(found == "");
      int opened = 0;
      for (const Report& r : reports.drain()) {
        opened += r.what == Report::opened ? 1 : 0;
        CHECK_MESSAGE(eventually([&] { return !is_running(static_cast<pid_t>(r.pid)); }), "no worker is left behind");
      }
      CHECK(opened >= (cause == Cause::worker_killed ? 3 : 2));
    }
}
