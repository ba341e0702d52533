// SPDX-License-Identifier: Apache-2.0
// Iterable data sets: each worker iterates a shard of its own, inline the whole.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

using Numbers = std::vector<std::int64_t>;

// What the shards hold: sample k of shard w is w * 1000 + k. A forked worker has its own copy.
struct Shards {
  Numbers lengths;
  // Worker 0's first process, or the data set inline, does at this sample what `trouble` says.
  std::int64_t trouble_at = -1;
  enum Trouble { none, killed, broken, broken_once } trouble = none;
  std::int32_t fail_restart_in_epoch = -1;
  std::int64_t shrink_to = -1;  // what a replacement's shard holds
  bool waits = false;           // for the gate before its first sample: worker 0
  int gate_fd = -1;
  int report_fd = -1;
  Numbers rows_by_fetch;  // how many rows each fetch makes, by turns
  // of one worker
  std::int64_t worker = 0, generation = 0, position = 0, epoch = -1, loaded = -1, tried = -1;
  std::size_t fetches = 0;
};

Shards& at(void* self) { return *static_cast<Shards*>(self); }

std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
  Shards& s = at(user_data);
  s.worker = info->id < 0 ? 0 : info->id;
  s.generation = info->generation;
  s.position = 0;
  s.loaded = -1;
  s.fetches = 0;
  send_report(s.report_fd, {Report::opened, ::getpid(), -1, -1, info->iterable, info->id});
  *self = user_data;
  return FEEDLANE_OK;
}

void close(void* self) { send_report(at(self).report_fd, {Report::closed, ::getpid(), -1, -1, 0, at(self).worker}); }

std::int64_t length_of(const Shards& s) {
  if (s.generation > 0 && s.shrink_to >= 0 && s.worker == 0) return s.shrink_to;
  return s.lengths[static_cast<std::size_t>(s.worker)];
}

std::int32_t next(void* self, const feedlane_row* row, feedlane_error* err) {
  Shards& s = at(self);
  if (s.waits && s.worker == 0 && s.position == 0) (void)wait_readable(s.gate_fd);
  if (s.position >= length_of(s)) return FEEDLANE_END;
  if (s.trouble_at == s.position && s.worker == 0) {
    if (s.trouble == Shards::killed && s.generation == 0) (void)::raise(SIGKILL);
    const bool is_first_try = s.tried != s.position;
    s.tried = s.position;
    if (s.trouble == Shards::broken || (s.trouble == Shards::broken_once && is_first_try)) {
      (void)std::snprintf(err->text, sizeof err->text, "record %lld is torn", static_cast<long long>(s.position));
      err->transient = s.trouble == Shards::broken_once ? 1 : 0;
      if (s.trouble == Shards::broken) s.position++;
      return FEEDLANE_E_OS;
    }
  }
  const std::int64_t values[] = {s.worker * 1000 + s.position, row->index, static_cast<std::int64_t>(row->seed),
                                 s.loaded, s.generation};
  for (std::int32_t f = 0; f < row->task->tensor_count; f++) std::memcpy(row->fields[f], &values[f], sizeof values[f]);
  s.position++;
  return FEEDLANE_OK;
}

std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error* err) {
  Shards& s = at(self);
  if (s.position >= length_of(s)) return FEEDLANE_END;
  if (s.trouble == Shards::killed && s.worker == 0 && s.generation == 0 && s.position >= s.trouble_at)
    (void)::raise(SIGKILL);
  const std::int64_t wanted = s.rows_by_fetch[s.fetches++ % s.rows_by_fetch.size()];
  const auto count = static_cast<std::int64_t>(task->count);
  const std::int64_t rows = std::min({wanted, count, length_of(s) - s.position});
  for (std::int64_t i = 0; i < rows; i++)
    static_cast<std::int64_t*>(task->tensors[0].data)[i] = s.worker * 1000 + s.position++;
  return rows == count ? FEEDLANE_OK : feedlane_task_rows(task, static_cast<std::uint64_t>(rows), err);
}

std::int32_t restart(void* self, std::int64_t epoch, feedlane_error* err) {
  Shards& s = at(self);
  if (s.worker == 0 && s.fail_restart_in_epoch == epoch) {
    (void)std::snprintf(err->text, sizeof err->text, "the shard is gone");
    return FEEDLANE_E_OS;
  }
  s.position = 0;
  s.epoch = epoch;
  s.tried = -1;
  s.fetches = 0;
  return FEEDLANE_OK;
}

std::int32_t save(void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error*) {
  *bytes = sizeof(std::int64_t);
  if (cap < 65536) return FEEDLANE_E_LIMIT;
  std::memcpy(buffer, &at(self).position, sizeof(std::int64_t));
  return FEEDLANE_OK;
}

std::int32_t load(void* self, const void* buffer, std::uint64_t bytes, feedlane_error*) {
  if (bytes != sizeof(std::int64_t)) return FEEDLANE_E_CORRUPT;
  std::memcpy(&at(self).position, buffer, sizeof(std::int64_t));
  at(self).loaded = at(self).position;
  return FEEDLANE_OK;
}

struct Iterable : Setup {
  // As many workers as shards; inline the first shard is the whole.
  Iterable(Numbers lengths, std::int64_t batch_size, bool without_workers = false) : Setup(0, batch_size) {
    shards.lengths = std::move(lengths);
    auto table = fresh<feedlane_dataset>();
    table.user_data = &shards;
    table.open = open;
    table.close = close;
    table.next = next;
    table.restart = restart;
    forked(without_workers ? 0 : static_cast<std::int32_t>(shards.lengths.size()), table);
    fields({field("value", int64_type), field("index", int64_type), field("seed", uint64_type),
            field("loaded", int64_type), field("generation", int64_type)});
    config.iterable = 1;
  }
  // Whole batches, of so many rows by turns.
  Iterable& fetching(Numbers rows) {
    shards.rows_by_fetch = std::move(rows);
    dataset.next = nullptr;
    dataset.fetch = fetch;
    return *this;
  }
  Shards shards;
};

Numbers values_of(const std::vector<Taken>& taken) {
  Numbers all;
  for (const Taken& t : taken)
    for (std::size_t row = 0; t.status == FEEDLANE_OK && row < t.count; row++) all.push_back(t.value("value", row));
  return all;
}

Numbers sorted(Numbers numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// Every sample of every shard once.
Numbers all_of(const Numbers& lengths) {
  Numbers all;
  for (std::size_t w = 0; w < lengths.size(); w++)
    for (std::int64_t k = 0; k < lengths[w]; k++) all.push_back(static_cast<std::int64_t>(w) * 1000 + k);
  return all;
}

// What comes when batches of the shards that have any left are taken by turns.
std::vector<Numbers> by_turns(const Numbers& lengths, std::int64_t batch_size) {
  std::vector<Numbers> batches;
  Numbers given(lengths.size());
  for (bool any = true; any;) {
    any = false;
    for (std::size_t w = 0; w < lengths.size(); w++) {
      if (given[w] == lengths[w]) continue;
      any = true;
      batches.emplace_back();
      for (std::int64_t i = 0; i < batch_size && given[w] < lengths[w]; i++)
        batches.back().push_back(static_cast<std::int64_t>(w) * 1000 + given[w]++);
    }
  }
  return batches;
}

void check_batches(const std::vector<Taken>& taken, const std::vector<Numbers>& expected) {
  REQUIRE(taken.size() == expected.size());
  for (std::size_t i = 0; i < taken.size(); i++) {
    CHECK(taken[i].batch == static_cast<std::int64_t>(i));
    CHECK(taken[i].count == expected[i].size());
    CHECK(values_of({taken[i]}) == expected[i]);
  }
}

}  // namespace

TEST_CASE(
    "shards of 0, 4 and 20 samples come in round-robin order, the same with any prefetch, and each out of order") {
  for (const std::int32_t prefetch : {2, 3, 4})
    for (const std::int32_t out_of_order : {0, 1}) {
      CAPTURE(prefetch);
      CAPTURE(out_of_order);
      Iterable s({0, 4, 20}, 3);
      s.config.prefetch_factor = prefetch;
      s.config.out_of_order = out_of_order;
      s.config.keep_workers = 1;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 3; epoch++) {
        const std::vector<Taken> taken = take_epoch(l.get(), epoch);
        CHECK(sorted(values_of(taken)) == all_of(s.shards.lengths));
        if (out_of_order == 0) check_batches(taken, by_turns(s.shards.lengths, 3));
        for (const Taken& t : taken) {
          CHECK(t.indices.empty());
          CHECK(t.value("value") / 1000 == t.worker);
        }
      }
      CHECK(stats_of(l.get()).samples == 72);
    }
}

TEST_CASE("without workers an iterable data set is iterated as a whole, epoch after epoch") {
  for (const std::int64_t batch_size : {std::int64_t{1}, std::int64_t{3}, std::int64_t{24}, std::int64_t{100}}) {
    CAPTURE(batch_size);
    Iterable s({24}, batch_size, true);
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 3; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      check_batches(taken, by_turns({24}, batch_size));
      CHECK(taken[0].worker == -1);
    }
  }
}

TEST_CASE("rows of a shard have their number in it, and a seed derived from that") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s({10, 7}, 4, without_workers);
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++)
      for (const Taken& t : take_epoch(l.get(), epoch))
        for (std::size_t row = 0; row < t.count; row++) {
          CHECK(t.value("index", row) == t.value("value", row) % 1000);
          const auto shard = static_cast<std::uint64_t>(t.value("value", row) / 1000);
          CHECK(t.seed(row) == feedlane_row_seed(99 + shard, epoch, t.value("index", row)));
        }
  }
}

TEST_CASE("the order of shards doesn't depend on timing: a slow shard is waited for") {
  Iterable s({9, 9}, 3);
  const Gate gate;
  s.shards.gate_fd = gate.fd();
  s.shards.waits = true;
  const Loader l = s.create();
  begin(l.get(), 0);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return worker_of(l.get(), 1).tasks == 2;
  }));
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  gate.open();
  check_batches(take_rest(l.get()), by_turns({9, 9}, 3));
}

TEST_CASE("out of order, a slow shard delays no other") {
  Iterable s({3, 6}, 3);
  const Gate gate;
  s.shards.gate_fd = gate.fd();
  s.shards.waits = true;
  s.config.out_of_order = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  CHECK(take(l.get()).value("value") == 1000);
  CHECK(take(l.get()).value("value") == 1003);
  gate.open();
  CHECK(take(l.get()).value("value") == 0);
  CHECK(take(l.get()).status == FEEDLANE_END);
}

TEST_CASE("drop_last of iterable data sets applies to each worker") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{10} : Numbers{0, 4, 20, 6}, 3, without_workers);
    s.config.drop_last = 1;
    const Loader l = s.create();
    const Numbers whole = without_workers ? Numbers{9} : Numbers{0, 3, 18, 6};
    for (std::int64_t epoch = 0; epoch < 2; epoch++) check_batches(take_epoch(l.get(), epoch), by_turns(whole, 3));
  }
}

TEST_CASE("a dropped incomplete last batch may have had failing samples") {
  for (const bool without_workers : {false, true})
    for (const Shards::Trouble trouble : {Shards::broken, Shards::broken_once}) {
      CAPTURE(without_workers);
      CAPTURE(static_cast<int>(trouble));
      Iterable s({8}, 3, without_workers);
      s.shards.trouble = trouble;
      s.shards.trouble_at = 7;
      s.config.drop_last = 1;
      s.config.retries = 1;
      s.config.retry_backoff_ns = 1;
      s.config.skip_budget = 1;
      const Loader l = s.create();
      check_batches(take_epoch(l.get(), 0), by_turns({6}, 3));
      CHECK(stats_of(l.get()).retried == (trouble == Shards::broken ? 0 : 1));
      CHECK(stats_of(l.get()).skipped == (trouble == Shards::broken ? 1 : 0));
      CHECK(stats_of(l.get()).restarts == 0);
    }
}

TEST_CASE("kept workers open an iterable data set once and restart it each epoch") {
  for (const bool has_restart : {true, false}) {
    CAPTURE(has_restart);
    Iterable s({5, 7}, 2);
    const Reports reports;
    s.shards.report_fd = reports.fd();
    s.config.keep_workers = 1;
    if (!has_restart) s.dataset.restart = nullptr;
    Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 3; epoch++)
      check_batches(take_epoch(l.get(), epoch), by_turns(s.shards.lengths, 2));
    l.reset();
    int opened = 0;
    int closed = 0;
    for (const Report& r : reports.drain()) {
      opened += r.what == Report::opened ? 1 : 0;
      closed += r.what == Report::closed ? 1 : 0;
      if (r.what == Report::opened) CHECK_MESSAGE(r.attempt == 1, "info says that it is iterable");
    }
    CHECK(opened == (has_restart ? 2 : 6));
    CHECK(closed == opened);
  }
}

TEST_CASE("an abandoned epoch of shards starts from the beginning, with kept workers and with new ones") {
  for (const std::int32_t keep : {0, 1}) {
    CAPTURE(keep);
    Iterable s({0, 9, 30}, 2);
    s.config.keep_workers = keep;
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 8; epoch++) {
      begin(l.get(), epoch);
      for (std::int64_t i = 0; i < epoch; i++) CHECK(take(l.get()).batch == i);
    }
    check_batches(take_epoch(l.get(), 8), by_turns(s.shards.lengths, 2));
    if (keep == 1) CHECK(stats_of(l.get()).restarts == 0);
  }
  CHECK_FALSE(has_children());
}

TEST_CASE("a declared length is the loader's, and exceeding it only warns") {
  for (const bool without_workers : {false, true})
    for (const std::int64_t declared : {std::int64_t{0}, std::int64_t{7}, std::int64_t{24}, std::int64_t{100}}) {
      CAPTURE(without_workers);
      CAPTURE(declared);
      const Numbers lengths = without_workers ? Numbers{24} : Numbers{4, 20};
      Iterable s(lengths, 3, without_workers);
      s.config.iterable_length = declared;
      const Loader l = s.create();
      std::int64_t length = 0;
      REQUIRE(feedlane_loader_length(l.get(), &length) == FEEDLANE_OK);
      CHECK(length == (declared == 0 ? -1 : (declared + 2) / 3));
      (void)events_of(l.get());
      for (std::int64_t epoch = 0; epoch < 2; epoch++) {
        check_batches(take_epoch(l.get(), epoch), by_turns(lengths, 3));
        const std::vector<feedlane_event> warnings = events_of(l.get(), FEEDLANE_EVENT_WARNING);
        REQUIRE(warnings.size() == (declared == 7 ? 1 : 0));
        if (declared != 7) continue;
        CHECK(std::string(warnings[0].what.argument) == "config.iterable_length");
        CHECK(warnings[0].what.needed == 7);
        CHECK(warnings[0].what.found > 7);
      }
    }
}

TEST_CASE("an iterable data set may make whole batches of any number of rows") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s({10, 9}, 4, without_workers);
    s.fetching({3, 4, 1});
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      std::vector<Numbers> expected{{0, 1, 2}, {3, 4, 5, 6}, {7}, {8, 9}};
      if (!without_workers)
        expected = {{0, 1, 2}, {1000, 1001, 1002}, {3, 4, 5, 6}, {1003, 1004, 1005, 1006}, {7}, {1007}, {8, 9}, {1008}};
      check_batches(taken, expected);
    }
  }
}

TEST_CASE("an iterable data set without batches has one sample a task") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{5} : Numbers{2, 5}, FEEDLANE_UNBATCHED, without_workers);
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_batches(taken, by_turns(s.shards.lengths, 1));
    for (const Taken& t : taken) CHECK(t.shapes[0].empty());
  }
}

TEST_CASE("a foreign loop takes every shard to its end, and sleeps while there is nothing to take") {
  Iterable s({0, 4, 20, 0, 1}, 3);
  s.config.keep_workers = 1;
  const Loader l = s.create();
  int fd = -1;
  REQUIRE(feedlane_loader_wait_fd(l.get(), &fd) == FEEDLANE_OK);
  for (std::int64_t epoch = 0; epoch < 20; epoch++) {
    begin(l.get(), epoch);
    std::vector<Taken> taken;
    for (bool ended = false; !ended;) {
      if (feedlane_loader_arm(l.get()) == FEEDLANE_OK) REQUIRE_MESSAGE(wait_readable(fd), "asleep for ever");
      if (feedlane_loader_poll(l.get(), nullptr) != FEEDLANE_AGAIN) continue;
      taken.push_back(take(l.get(), nullptr, 0));
      ended = taken.back().status == FEEDLANE_END;
      if (ended || taken.back().status == FEEDLANE_TIMEOUT) taken.pop_back();
    }
    check_batches(taken, by_turns(s.shards.lengths, 3));
  }
}

TEST_CASE("a foreign loop that holds a batch doesn't sleep when a shard's end frees a slot") {
  Iterable s({6, 0, 0}, 3);
  s.config.arena_bytes = 2 * 4096;
  const Loader l = s.create();
  int fd = -1;
  REQUIRE(feedlane_loader_wait_fd(l.get(), &fd) == FEEDLANE_OK);
  begin(l.get(), 0);
  // Both slots are in use; the second one's task ends its shard.
  REQUIRE(eventually([&] {
    return worker_of(l.get(), 0).tasks == 1 && worker_of(l.get(), 1).tasks == 1 &&
           feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN;
  }));
  auto first = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &first, nullptr) == FEEDLANE_OK);
  auto second = fresh<feedlane_batch>();
  std::int32_t status = FEEDLANE_TIMEOUT;
  while (status == FEEDLANE_TIMEOUT) {
    if (feedlane_loader_arm(l.get()) == FEEDLANE_OK) REQUIRE_MESSAGE(wait_readable(fd), "asleep for ever");
    if (feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN)
      status = feedlane_loader_next(l.get(), 0, &second, nullptr);
  }
  CHECK(status == FEEDLANE_OK);
  for (const feedlane_batch* b : {&first, &second}) CHECK(feedlane_batch_release(l.get(), b->token) == FEEDLANE_OK);
  CHECK(take_rest(l.get()).empty());
}

namespace {

// A shard of 10 samples by hand: rows of three, what it saves is its position; sample 4 is left out.
void work_by_hand(feedlane_loader* l) {
  feedlane_worker* handle = nullptr;
  if (feedlane_loader_local_worker(l, &handle, nullptr) != FEEDLANE_OK) return;
  const Worker worker(handle);
  auto info = fresh<feedlane_worker_info>();
  (void)feedlane_worker_get_info(handle, &info);
  (void)feedlane_worker_ready(handle, 0, nullptr, nullptr);
  std::int64_t position = 0;
  const feedlane_task* task = nullptr;
  while (feedlane_worker_next(handle, FEEDLANE_FOREVER, &task, nullptr) == FEEDLANE_OK) {
    if (task->first != 0) position = 0;
    if (position == 10) {
      (void)feedlane_task_exhausted(task, nullptr);
      continue;
    }
    std::uint64_t rows = 0;
    for (std::uint64_t taken = 0; rows < task->count && position < 10; position++, taken++)
      if (position == 4)
        (void)feedlane_task_record(task, taken, FEEDLANE_SAMPLE_SKIPPED, FEEDLANE_E_OS, 0, 0, "by hand", nullptr);
      else static_cast<std::int64_t*>(task->tensors[0].data)[rows++] = info.id * 1000 + position;
    (void)feedlane_task_state(task, &position, sizeof position, nullptr);
    (void)feedlane_task_commit(task, rows, nullptr);
  }
}

}  // namespace

TEST_CASE("workers of the pull form report what they skip and when their shard ends") {
  Setup s(0, 3);
  s.config.workers = 2;
  s.config.start = FEEDLANE_START_THREAD;
  s.config.iterable = 1;
  s.config.skip_budget = 2;
  s.fields({field("value", int64_type)});
  Loader l = s.create();
  std::thread first(work_by_hand, l.get());
  std::thread second(work_by_hand, l.get());
  for (std::int64_t epoch = 0; epoch < 3; epoch++) {
    const std::vector<Taken> taken = take_epoch(l.get(), epoch);
    check_batches(taken, {{0, 1, 2}, {1000, 1001, 1002}, {3, 5, 6}, {1003, 1005, 1006}, {7, 8, 9}, {1007, 1008, 1009}});
    const std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED);
    REQUIRE(told.size() == 2);
    for (const feedlane_event& e : told) CHECK(e.what.sample == 4);
  }
  l.reset();
  first.join();
  second.join();
}

TEST_CASE("a task failed by the pull form has taken its samples up to the failed one") {
  Setup s(0, 4);
  s.config.workers = 1;
  s.config.start = FEEDLANE_START_THREAD;
  s.config.prefetch_factor = 1;
  s.config.iterable = 1;
  s.config.deterministic = 1;
  s.fields({field("value", int64_type)});
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_task* task = nullptr;
  const auto join = [&] {
    feedlane_worker* w = nullptr;
    REQUIRE(feedlane_loader_local_worker(l.get(), &w, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_worker_ready(w, 0, nullptr, nullptr) == FEEDLANE_OK);
    (void)feedlane_loader_poll(l.get(), nullptr);
    return Worker(w);
  };
  // Fails a task at `position`; which sample the trainer is told of.
  const auto fail = [&](const Worker& w, std::int64_t position) {
    REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_task_fail(task, position, 0, "torn", nullptr, nullptr) == FEEDLANE_OK);
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
    return e.sample;
  };
  Worker w = join();
  CHECK(fail(w, 2) == 2);
  CHECK(fail(w, -1) == -1);
  CHECK(fail(w, 1) == 4);
  w.reset();
  (void)feedlane_loader_poll(l.get(), nullptr);
  w = join();
  REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
  CHECK(task->delivered == 5);
  CHECK(feedlane_task_exhausted(task, nullptr) == FEEDLANE_OK);
}

TEST_CASE(
    "a shard whose state was not saved with a failed batch is lost when its worker dies, and the trainer is informed") {
  for (const bool saves_again : {false, true}) {
    CAPTURE(saves_again);
    Setup s(0, 4);
    s.config.workers = 1;
    s.config.start = FEEDLANE_START_THREAD;
    s.config.prefetch_factor = 1;
    s.config.iterable = 1;
    s.fields({field("value", int64_type)});
    const Loader l = s.create();
    begin(l.get(), 0);
    const feedlane_task* task = nullptr;
    const auto join = [&] {
      feedlane_worker* w = nullptr;
      REQUIRE(feedlane_loader_local_worker(l.get(), &w, nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_worker_ready(w, 0, nullptr, nullptr) == FEEDLANE_OK);
      (void)feedlane_loader_poll(l.get(), nullptr);
      return Worker(w);
    };
    const auto make = [&](const Worker& w) {
      REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_task_state(task, "x", 1, nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_task_commit(task, 4, nullptr) == FEEDLANE_OK);
      CHECK(take(l.get()).status == FEEDLANE_OK);
    };
    Worker w = join();
    make(w);
    REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_task_fail(task, 1, 0, "torn", nullptr, nullptr) == FEEDLANE_OK);
    CHECK(take(l.get()).status == FEEDLANE_E_SAMPLE);
    if (saves_again) make(w);
    w.reset();
    (void)feedlane_loader_poll(l.get(), nullptr);
    if (saves_again) {
      w = join();
      REQUIRE(feedlane_worker_next(w.get(), 0, &task, nullptr) == FEEDLANE_OK);
      CHECK(task->state_bytes == 1);
      CHECK(feedlane_task_exhausted(task, nullptr) == FEEDLANE_OK);
    } else {
      Error e;
      CHECK(take(l.get(), &e).status == FEEDLANE_E_PEER_DEAD);
      CHECK(e.says("its last batch failed"));
      CHECK(e.says("after 6 samples"));
    }
    CHECK(take(l.get()).status == FEEDLANE_END);
  }
}

TEST_CASE("without workers a timeout is checked between a shard's samples, and nothing is lost") {
  Iterable s({11}, 4, true);
  const Loader l = s.create();
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    begin(l.get(), epoch);
    std::vector<Taken> taken;
    int timeouts = 0;
    for (;;) {
      Taken t = take(l.get(), nullptr, 0);
      if (t.status == FEEDLANE_END) break;
      if (t.status == FEEDLANE_TIMEOUT) timeouts++;
      else taken.push_back(std::move(t));
      REQUIRE(timeouts < 100);
    }
    CHECK(timeouts == 9);  // after each sample but the last of its batch; the shard's end is no sample
    check_batches(taken, by_turns({11}, 4));
    begin(l.get(), 7);  // given up in the middle of a batch
    CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  }
}

// ---- errors ----

TEST_CASE(
    "an error of a shard is reported once, in its batch's position, with the number in the shard; the rest follows") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{10} : Numbers{10, 4}, 3, without_workers);
    s.shards.trouble = Shards::broken;
    s.shards.trouble_at = 4;
    const Loader l = s.create();
    begin(l.get(), 2);
    const std::vector<Taken> taken = take_outcomes(l.get());
    const std::size_t place = without_workers ? 1 : 2;
    REQUIRE(taken.size() > place);
    int errors = 0;
    for (const Taken& t : taken) errors += t.status == FEEDLANE_OK ? 0 : 1;
    CHECK(errors == 1);
    CHECK(taken[place].status == FEEDLANE_E_SAMPLE);
    CHECK(taken[place].epoch == 2);
    CHECK(taken[place].batch == static_cast<std::int64_t>(place));
    CHECK(taken[place].sample == 4);
    CHECK(taken[place].worker == (without_workers ? -1 : 0));
    CHECK(taken[place].text == "record 4 is torn");
    Numbers expected = all_of(s.shards.lengths);
    expected.erase(expected.begin() + 3, expected.begin() + 5);  // made before it in the batch, and itself
    CHECK(sorted(values_of(taken)) == expected);
    CHECK(stats_of(l.get()).restarts == 0);
  }
}

TEST_CASE("a shard that can't be restarted is E_INIT with the worker, until the next begin") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{6} : Numbers{6, 6}, 3, without_workers);
    s.shards.fail_restart_in_epoch = 1;
    const Loader l = s.create();
    CHECK(sorted(values_of(take_epoch(l.get(), 0))) == all_of(s.shards.lengths));
    begin(l.get(), 1);
    for (int i = 0; i < 2; i++) {
      Error e;
      std::int32_t status = FEEDLANE_OK;
      while (status == FEEDLANE_OK) status = take(l.get(), &e).status;  // the other's may come before
      CHECK(status == FEEDLANE_E_INIT);
      CHECK(e.worker == (without_workers ? -1 : 0));
      CHECK(e.says("the shard is gone"));
    }
    CHECK(sorted(values_of(take_epoch(l.get(), 2))) == all_of(s.shards.lengths));
  }
}

TEST_CASE("a worker program whose data set isn't of the loader's style is E_INIT with what is missing") {
  Setup s(4);
  s.workers(2);
  s.config.iterable = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(e.worker >= 0);
  CHECK(e.says("an iterable data set has next or fetch"));
}

TEST_CASE("a batch of a shard is filled with the samples after a skipped one") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{10} : Numbers{10, 4}, 3, without_workers);
    s.shards.trouble = Shards::broken;
    s.shards.trouble_at = 4;
    s.config.skip_budget = 1;
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      const std::size_t place = without_workers ? 1 : 2;
      CHECK(values_of({taken[place]}) == Numbers{3, 5, 6});
      CHECK(taken[place].value("index", 1) == 5);
      Numbers expected = all_of(s.shards.lengths);
      expected.erase(expected.begin() + 4);
      CHECK(sorted(values_of(taken)) == expected);
      const std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED);
      REQUIRE(told.size() == 1);
      CHECK(told[0].what.sample == 4);
      CHECK(told[0].what.batch == static_cast<std::int64_t>(place));
      CHECK(told[0].what.epoch == epoch);
      CHECK(told[0].what.code == FEEDLANE_E_OS);
    }
  }
}

TEST_CASE("a retried sample of a shard keeps its position") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{10} : Numbers{10, 4}, 3, without_workers);
    s.shards.trouble = Shards::broken_once;
    s.shards.trouble_at = 4;
    s.config.retries = 1;
    s.config.retry_backoff_ns = 1;
    const Loader l = s.create();
    check_batches(take_epoch(l.get(), 0), by_turns(s.shards.lengths, 3));
    const std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_RETRIED);
    REQUIRE(told.size() == 1);
    CHECK(told[0].what.sample == 4);
    CHECK(told[0].what.found == 1);
  }
}

namespace {

// Every sample fails but each tenth.
std::int32_t mostly_broken(void* self, const feedlane_row* row, feedlane_error* err) {
  Shards& s = at(self);
  if (s.position >= length_of(s)) return FEEDLANE_END;
  const std::int64_t value = s.worker * 1000 + s.position++;
  std::memcpy(row->fields[0], &value, sizeof value);
  (void)std::snprintf(err->text, sizeof err->text, "torn");
  return value % 10 == 0 ? FEEDLANE_OK : FEEDLANE_E_OS;
}

}  // namespace

TEST_CASE("many consecutive samples of a shard may be skipped, however small the batches") {
  for (const bool without_workers : {false, true})
    for (const std::int64_t batch_size : {FEEDLANE_UNBATCHED, 1, 2, 7}) {
      CAPTURE(without_workers);
      CAPTURE(batch_size);
      Iterable s(without_workers ? Numbers{35} : Numbers{35, 12}, batch_size, without_workers);
      s.dataset.next = mostly_broken;
      s.config.skip_budget = -1;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 2; epoch++) {
        const Numbers expected = without_workers ? Numbers{0, 10, 20, 30} : Numbers{0, 10, 20, 30, 1000, 1010};
        CHECK(sorted(values_of(take_epoch(l.get(), epoch))) == expected);
        std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED);
        CHECK(told.size() == (without_workers ? 31 : 41));
        Numbers samples;
        for (const feedlane_event& e : told)
          if (e.what.worker <= 0) samples.push_back(e.what.sample);
        for (const std::int64_t sample : samples) CHECK(sample % 10 != 0);
        CHECK(samples.size() == 31);
        CHECK(sorted(samples) == samples);
        CHECK(std::adjacent_find(samples.begin(), samples.end()) == samples.end());
      }
    }
}

// ---- workers that die ----

TEST_CASE("the replacement of a killed iterable worker continues after what was committed") {
  enum Way { deterministic, saving, both };
  for (const Way way : {deterministic, saving, both})
    for (const std::int64_t at_sample : {0, 1, 3, 7, 19}) {
      CAPTURE(static_cast<int>(way));
      CAPTURE(at_sample);
      Iterable s({20, 7, 11}, 3);
      s.shards.trouble = Shards::killed;
      s.shards.trouble_at = at_sample;
      s.config.deterministic = way != saving ? 1 : 0;
      if (way != deterministic) {
        s.dataset.save = save;
        s.dataset.load = load;
      }
      const Loader l = s.create();
      const std::vector<Taken> taken = take_epoch(l.get(), 0);
      check_batches(taken, by_turns(s.shards.lengths, 3));
      CHECK(stats_of(l.get()).restarts == 1);
      const std::int64_t committed = at_sample / 3 * 3;
      for (const Taken& t : taken)
        for (std::size_t row = 0; row < t.count; row++) {
          const bool by_replacement = t.worker == 0 && t.value("value", row) >= committed;
          CHECK(t.value("generation", row) == (by_replacement ? 1 : 0));
          CHECK(t.value("index", row) == t.value("value", row) % 1000);
          CHECK(t.seed(row) == feedlane_row_seed(99 + static_cast<std::uint64_t>(t.worker), 0, t.value("index", row)));
          if (by_replacement)
            CHECK(t.value("loaded", row) == (way == deterministic || committed == 0 ? -1 : committed));
        }
    }
}

TEST_CASE("a killed worker's shard is resumed with whole batches of any size") {
  for (const std::int64_t at_sample : {0, 3, 7, 8}) {
    CAPTURE(at_sample);
    Iterable s({13, 6}, 4);
    s.fetching({3, 4, 1});
    s.shards.trouble = Shards::killed;
    s.shards.trouble_at = at_sample;
    s.config.deterministic = 1;
    const Loader l = s.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    for (const Taken& t : taken) CHECK_MESSAGE(t.status == FEEDLANE_OK, t.text);
    CHECK(sorted(values_of(taken)) == all_of(s.shards.lengths));
    CHECK(stats_of(l.get()).restarts == 1);
  }
}

TEST_CASE("skipping what a killed worker delivered may take longer than the deadline") {
  Iterable s({300}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 240;
  s.config.deterministic = 1;
  s.config.task_timeout_ns = 700'000'000;
  s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (at(self).generation != 0 && at(self).position < 240) ::usleep(6000);  // together twice the deadline
    return next(self, row, err);
  };
  const Loader l = s.create();
  check_batches(take_epoch(l.get(), 0), by_turns({300}, 3));
  CHECK(stats_of(l.get()).hung == 0);
  CHECK(stats_of(l.get()).restarts == 1);
}

TEST_CASE("records of delivered batches are not repeated after their worker was killed") {
  for (const bool by_fetch : {false, true}) {
    CAPTURE(by_fetch);
    Iterable s({12, 0}, by_fetch ? 4 : 3);
    s.shards.trouble = Shards::killed;
    s.shards.trouble_at = by_fetch ? 8 : 7;
    s.config.deterministic = 1;
    s.config.skip_budget = -1;
    s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
      if (at(self).position == 0) (void)feedlane_task_metadata(row->task, "first", 5, err);
      return next(self, row, err);
    };
    // By fours, of which the second is left out.
    if (by_fetch)
      s.dataset.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) {
        Shards& shards = at(self);
        if (shards.position >= length_of(shards)) return std::int32_t{FEEDLANE_END};
        if (shards.generation == 0 && shards.position == shards.trouble_at) (void)::raise(SIGKILL);
        if (shards.position == 0) (void)feedlane_task_metadata(task, "first", 5, err);
        std::int64_t row = 0;
        for (std::int64_t i = 0; i < 4; i++, shards.position++)
          if (i != 1) static_cast<std::int64_t*>(task->tensors[0].data)[row++] = shards.position;
        (void)feedlane_task_record(task, 1, FEEDLANE_SAMPLE_SKIPPED, FEEDLANE_E_OS, 0, 0, "second", err);
        return feedlane_task_rows(task, 3, err);
      };
    if (by_fetch) s.dataset.next = nullptr;
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    if (by_fetch) check_batches(taken, {{0, 2, 3}, {4, 6, 7}, {8, 10, 11}});
    else check_batches(taken, by_turns({12}, 3));
    for (const Taken& t : taken) CHECK(t.metadata == (t.batch == 0 ? "first" : ""));
    CHECK(stats_of(l.get()).restarts == 1);
    std::vector<std::int64_t> left_out;
    for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED)) left_out.push_back(e.what.sample);
    CHECK(left_out == (by_fetch ? Numbers{1, 5, 9} : Numbers{}));
  }
}

TEST_CASE("a sample skipped before its worker was killed is neither yielded nor reported again") {
  Iterable s({20, 7}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 10;
  s.config.deterministic = 1;
  s.config.skip_budget = -1;
  s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (at(self).position != 4) return next(self, row, err);
    at(self).position++;
    return std::int32_t{FEEDLANE_E_OS};
  };
  const Loader l = s.create();
  Numbers expected = all_of(s.shards.lengths);
  expected.erase(expected.begin() + 4);
  CHECK(sorted(values_of(take_epoch(l.get(), 0))) == std::vector<std::int64_t>([&] {
          Numbers without = expected;  // and of the other shard
          without.erase(std::find(without.begin(), without.end(), 1004));
          return without;
        }()));
  CHECK(events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED).size() == 2);
  CHECK(stats_of(l.get()).restarts == 1);
}

TEST_CASE("a killed worker whose data set can't resume is one declared error, and the other shards continue") {
  for (const std::int32_t out_of_order : {0, 1}) {
    CAPTURE(out_of_order);
    Iterable s({20, 7, 11}, 3);
    s.shards.trouble = Shards::killed;
    s.shards.trouble_at = 7;
    s.config.out_of_order = out_of_order;
    s.config.keep_workers = 1;
    const Loader l = s.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    int errors = 0;
    for (const Taken& t : taken) {
      if (t.status == FEEDLANE_OK) continue;
      errors++;
      CHECK(t.status == FEEDLANE_E_PEER_DEAD);
      CHECK(t.worker == 0);
      CHECK(t.epoch == 0);
      CHECK(t.argument == "config.deterministic");
      CHECK(t.text.find("signal 9") != std::string::npos);
      CHECK(t.text.find("after 6 samples") != std::string::npos);
    }
    CHECK(errors == 1);
    Numbers expected = all_of(s.shards.lengths);
    expected.erase(expected.begin() + 6, expected.begin() + 20);
    CHECK(sorted(values_of(taken)) == expected);
    CHECK_MESSAGE(sorted(values_of(take_epoch(l.get(), 1))) == all_of(s.shards.lengths), "the next epoch has all");
  }
}

TEST_CASE("a segfault in a worker of shards is reported as one, in the error and in the event") {
  for (const std::int32_t deterministic : {0, 1}) {
    CAPTURE(deterministic);
    Setup s(0, 3);
    s.workers(2, "shard").fields({field("index", int64_type)});
    s.config.iterable = 1;
    s.config.deterministic = deterministic;
    s.plan.end_index = 7;
    s.plan.end_attempts = 1;
    s.plan.end_signal = SIGSEGV;
    const Loader l = s.create();
    begin(l.get(), 0);
    int errors = 0;
    for (const Taken& t : take_outcomes(l.get())) {
      if (t.status == FEEDLANE_OK) continue;
      errors++;
      CHECK(t.status == FEEDLANE_E_PEER_DEAD);
      CHECK(t.text.find("was killed by signal 11") != std::string::npos);
    }
    CHECK_MESSAGE(errors == (deterministic != 0 ? 0 : 2), "each worker comes to its sample 7");
    const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
    CHECK(deaths.size() == 2);
    for (const feedlane_event& e : deaths)
      CHECK(std::string(e.what.text).find("was killed by signal 11") != std::string::npos);
  }
}

TEST_CASE("a fetch that always fails while its shard is resumed is E_INIT, with its text") {
  Iterable s({20, 7}, 4);
  s.fetching({4});
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 8;
  s.config.deterministic = 1;
  s.dataset.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) {
    if (at(self).worker != 0 || at(self).generation == 0 || at(self).position != 4) return fetch(self, task, err);
    (void)std::snprintf(err->text, sizeof err->text, "the disk is gone");
    return std::int32_t{FEEDLANE_E_OS};
  };
  const Loader l = s.create();
  begin(l.get(), 0);
  const std::vector<Taken> taken = take_outcomes(l.get());
  REQUIRE(!taken.empty());
  CHECK(taken.back().status == FEEDLANE_E_INIT);
  CHECK(taken.back().worker == 0);
  CHECK(taken.back().text == "the disk is gone");
}

TEST_CASE("a shard of which nothing was committed is reopened, whatever its data set promises") {
  Iterable s({20, 7}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 2;
  const Loader l = s.create();
  check_batches(take_epoch(l.get(), 0), by_turns(s.shards.lengths, 3));
  CHECK(stats_of(l.get()).restarts == 1);
}

TEST_CASE("a data set that isn't as deterministic as declared is E_INIT with both numbers") {
  Iterable s({20, 7}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 10;
  s.shards.shrink_to = 5;
  s.config.deterministic = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  const std::vector<Taken> taken = take_outcomes(l.get());
  REQUIRE(!taken.empty());
  CHECK(taken.back().status == FEEDLANE_E_INIT);
  CHECK(taken.back().worker == 0);
  CHECK(taken.back().text.find("9 samples were delivered before") != std::string::npos);
}

TEST_CASE("a batch with a sample that kills every worker is quarantined with the rest of its shard") {
  Iterable s({20, 7}, 3);
  s.config.deterministic = 1;
  s.config.max_kills_per_batch = 2;
  s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (at(self).worker == 0 && at(self).position == 7) (void)::raise(SIGKILL);
    return next(self, row, err);
  };
  const Loader l = s.create();
  begin(l.get(), 0);
  const std::vector<Taken> taken = take_outcomes(l.get());
  int quarantined = 0;
  for (const Taken& t : taken) quarantined += t.status == FEEDLANE_E_QUARANTINED ? 1 : 0;
  CHECK(quarantined == 1);
  Numbers expected = all_of(s.shards.lengths);
  expected.erase(expected.begin() + 6, expected.begin() + 20);
  CHECK(sorted(values_of(taken)) == expected);
  CHECK(stats_of(l.get()).restarts >= 1);
}

TEST_CASE("an iterable worker killed from outside, again and again, costs only restarts") {
  Iterable s({60, 41}, 2);
  s.config.deterministic = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  for (int i = 0; i < 6; i++) {
    taken.push_back(take(l.get()));
    REQUIRE(taken.back().status == FEEDLANE_OK);
    const auto pid = static_cast<pid_t>(worker_of(l.get(), i % 2).pid);
    if (pid > 0) (void)::kill(pid, SIGKILL);
  }
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  check_batches(taken, by_turns(s.shards.lengths, 2));
}
