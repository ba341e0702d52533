// SPDX-License-Identifier: Apache-2.0
// Tasks behind the one in hand: what a worker sees of them, and data sets that read ahead.
#include <doctest/doctest.h>
#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t batch_size = 3;

struct Hint {
  std::int32_t status = 0;
  std::uint64_t id = 0;
  std::int64_t epoch = -1, batch = -1;
  std::vector<std::int64_t> indices;
  std::vector<std::uint64_t> seeds;

  // As the sequential sampler yields them.
  [[nodiscard]] bool is_whole() const {
    for (std::size_t i = 0; i < indices.size(); i++) {
      if (indices[i] != batch * batch_size + static_cast<std::int64_t>(i)) return false;
      if (seeds[i] != feedlane_row_seed(Setup(1).config.seed, epoch, indices[i])) return false;
    }
    return !indices.empty();
  }
};

Hint look(const feedlane_task* task, std::uint64_t after) {
  auto found = fresh<feedlane_ahead>();
  Hint hint;
  hint.status = feedlane_task_ahead(task, after, &found, nullptr);
  if (hint.status != FEEDLANE_OK) return hint;
  hint.id = found.id;
  hint.epoch = found.epoch;
  hint.batch = found.batch;
  hint.indices.assign(found.indices, found.indices + found.count);
  hint.seeds.assign(found.seeds, found.seeds + found.count);
  return hint;
}

// All that wait behind the task.
std::vector<Hint> look_at_all(const feedlane_task* task) {
  std::vector<Hint> all;
  for (Hint h = look(task, 0); h.status == FEEDLANE_OK; h = look(task, h.id)) all.push_back(h);
  return all;
}

void write(const feedlane_task* task, std::int64_t seen, std::int64_t wrong) {
  for (std::uint64_t row = 0; row < task->count; row++) {
    const std::int64_t values[] = {task->indices[row], seen, wrong};
    for (std::int32_t f = 0; f < 3; f++)
      std::memcpy(static_cast<char*>(task->tensors[f].data) + row * 8, &values[f], 8);
  }
}

std::vector<feedlane_field> three_fields() {
  return {field("index", int64_type), field("seen", int64_type), field("wrong", int64_type)};
}

std::int64_t milliseconds() {
  using namespace std::chrono;
  return duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch()).count();
}

// A worker that looks ahead until it sees as many tasks as there can be, and compares each task with what it saw before.
struct Watcher {
  std::int64_t batches = 0, workers = 0, prefetch = 0;
  std::map<std::uint64_t, Hint> announced;  // by id

  static std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error*) {
    auto& w = *static_cast<Watcher*>(self);
    const std::int64_t left = (w.batches - 1 - task->batch) / w.workers;
    const auto most = static_cast<std::size_t>(std::min(w.prefetch - 1, left));
    std::vector<Hint> all;
    for (const std::int64_t until = milliseconds() + 20'000; all.size() < most && milliseconds() < until;)
      all = look_at_all(task);
    std::int64_t wrong = all.size() == most ? 0 : 1;
    const auto before = w.announced.find(task->id);
    const bool was_announced = before != w.announced.end();
    if (was_announced && (before->second.batch != task->batch || before->second.epoch != task->epoch ||
                          before->second.indices != std::vector(task->indices, task->indices + task->count)))
      wrong = 1;
    for (const Hint& h : all) w.announced[h.id] = h;
    write(task, was_announced ? 1 : 0, wrong);
    return FEEDLANE_OK;
  }
};

// Keeps the batch of sample 0 for a while and looks ahead all the time.
std::int32_t look_and_wait(void*, const feedlane_task* task, feedlane_error*) {
  std::int64_t seen = 0, wrong = 0;
  const std::int64_t until = milliseconds() + (task->indices[0] == 0 ? 400 : 0);
  do {
    for (const Hint& h : look_at_all(task)) {
      seen++;
      wrong += h.is_whole() ? 0 : 1;
    }
  } while (milliseconds() < until);
  write(task, seen, wrong);
  return FEEDLANE_OK;
}

// Reads a sample in a thread of its own, 4 ms each, for all tasks that it sees.
struct Reader {
  std::map<std::uint64_t, std::vector<std::future<std::int64_t>>> reads;  // by task
  std::uint64_t newest = 0;

  void start(std::uint64_t id, const std::int64_t* indices, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; i++)
      reads[id].push_back(std::async(std::launch::async, [index = indices[i]] {
        std::this_thread::sleep_for(std::chrono::milliseconds(4));
        return index;
      }));
    newest = std::max(newest, id);
  }
  static std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error*) {
    auto& r = *static_cast<Reader*>(self);
    const bool was_started = r.reads.count(task->id) != 0;
    if (!was_started) r.start(task->id, task->indices, task->count);
    for (Hint h = look(task, r.newest); h.status == FEEDLANE_OK; h = look(task, r.newest))
      r.start(h.id, h.indices.data(), h.indices.size());
    r.reads.erase(r.reads.begin(), r.reads.find(task->id));  // of tasks that were taken back
    std::int64_t wrong = 0;
    for (std::uint64_t i = 0; i < task->count; i++) wrong += r.reads[task->id][i].get() != task->indices[i] ? 1 : 0;
    r.reads.erase(task->id);
    write(task, was_started ? 1 : 0, wrong);
    return FEEDLANE_OK;
  }
};

feedlane_dataset whole_batches(feedlane_dataset_fetch_fn fetch, void* self) {
  auto table = fresh<feedlane_dataset>();
  table.fetch = fetch;
  table.user_data = self;
  return table;
}

}  // namespace

// promise: prefetch-look-ahead
TEST_CASE("the look-ahead of a worker shows the tasks that the worker then gets, with their indices and in order") {
  constexpr std::int64_t samples = 121;
  Watcher watcher{(samples + batch_size - 1) / batch_size, 2, 4, {}};
  Setup s(samples, batch_size);
  s.forked(2, whole_batches(Watcher::fetch, &watcher)).fields(three_fields());
  s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
  s.config.prefetch_factor = 4;
  s.config.keep_workers = 1;
  const Loader l = s.create();
  for (const std::int64_t epoch : {0, 1}) {
    const std::vector<Taken> all = take_epoch(l.get(), epoch);
    check_sequence(all, samples, batch_size);
    for (const Taken& t : all) {
      CHECK(t.value("wrong") == 0);
      CHECK(t.value("seen") == (t.batch < 2 ? 0 : 1));
    }
  }
}

// promise: prefetch-look-ahead
TEST_CASE("for a task that was taken back, the look-ahead never shows the indices of another batch") {
  constexpr std::int64_t samples = 30'000;
  Setup s(samples, batch_size);
  s.forked(2, whole_batches(look_and_wait, nullptr)).fields(three_fields());
  s.config.prefetch_factor = 8;
  s.config.out_of_order = 1;
  s.config.keep_workers = 1;
  const Loader l = s.create();
  for (const std::int64_t epoch : {0, 1}) {
    begin(l.get(), epoch);
    // The other worker makes all that it has. No other batch may be drawn, so what waits behind batch 0 is taken back, and the
    // slots of that are used for later batches while batch 0 is in hand.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    (void)feedlane_loader_poll(l.get(), nullptr);
    std::vector<bool> came(samples / batch_size);
    std::int64_t seen = 0;
    for (const Taken& t : take_rest(l.get())) {
      CHECK_FALSE(came[static_cast<std::size_t>(t.batch)]);
      came[static_cast<std::size_t>(t.batch)] = true;
      CHECK(t.value("wrong") == 0);
      if (t.indices[0] == 0) seen = t.value("seen");
    }
    CHECK(came == std::vector<bool>(came.size(), true));
    CHECK_MESSAGE(seen > 100, "it saw tasks before they were taken back");
  }
}

// promise: prefetch-look-ahead
TEST_CASE("when workers are killed while they look ahead, each batch still comes once, in order and whole") {
  constexpr std::int64_t samples = 1200;
  Reader reader;
  Setup s(samples, batch_size);
  s.forked(2, whole_batches(Reader::fetch, &reader)).fields(three_fields());
  s.config.prefetch_factor = 6;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> all;
  std::int64_t seen = 0;
  for (Taken t = take(l.get()); t.status != FEEDLANE_END; t = take(l.get())) {
    REQUIRE_MESSAGE(t.status == FEEDLANE_OK, t.text);
    all.push_back(t);
    CHECK(t.value("wrong") == 0);
    seen += t.value("seen");
    for (std::size_t row = 0; row < t.count; row++) CHECK(t.value("index", row) == t.indices[row]);
    if (t.batch % 60 != 30) continue;
    const auto pid = static_cast<pid_t>(worker_of(l.get(), static_cast<std::int32_t>(t.batch / 60 % 2)).pid);
    if (pid > 0) REQUIRE(::kill(pid, SIGKILL) == 0);
  }
  check_sequence(all, samples, batch_size);
  CHECK(stats_of(l.get()).restarts >= 5);
  CHECK_MESSAGE(seen > samples / batch_size / 2, "most batches were read ahead");
}

// promise: prefetch-look-ahead
TEST_CASE("the look-ahead does not show tasks of an abandoned epoch") {
  Setup s(18, batch_size);
  s.external(1).config.start = FEEDLANE_START_THREAD;
  s.config.prefetch_factor = 3;
  const Loader l = s.create();
  feedlane_worker* w = nullptr;
  REQUIRE(feedlane_worker_attach(-1, l.get(), FEEDLANE_FOREVER, &w, nullptr) == FEEDLANE_OK);
  const Worker worker(w);
  REQUIRE(feedlane_worker_ready(w, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
  const feedlane_task* task = nullptr;
  const auto next_of = [&](std::int64_t epoch) {
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return feedlane_worker_next(w, 0, &task, nullptr) == FEEDLANE_OK;
    }));
    CHECK(task->epoch == epoch);
  };
  begin(l.get(), 0);
  next_of(0);
  std::vector<Hint> all = look_at_all(task);
  REQUIRE(all.size() == 2);
  for (std::size_t i = 0; i < 2; i++) {
    CHECK(all[i].batch == static_cast<std::int64_t>(i) + 1);
    CHECK(all[i].id > (i == 0 ? task->id : all[0].id));
    CHECK(all[i].is_whole());
  }
  CHECK(look(task, all[1].id).status == FEEDLANE_END);
  CHECK(look(task, UINT64_MAX).status == FEEDLANE_END);
  begin(l.get(), 1);
  for (const Hint& h : look_at_all(task)) CHECK(h.epoch == 1);
  CHECK(feedlane_task_fail(task, -1, 0, nullptr, nullptr, nullptr) == FEEDLANE_OK);
  next_of(1);
  for (const Hint& h : look_at_all(task)) CHECK(h.epoch == 1);
  CHECK(feedlane_task_fail(task, -1, 0, nullptr, nullptr, nullptr) == FEEDLANE_OK);
}

// promise: prefetch-look-ahead
TEST_CASE("the look-ahead shows no task without workers or with an iterable data set") {
  const auto fetch = [](void* self, const feedlane_task* task, feedlane_error*) -> std::int32_t {
    if (task->indices == nullptr && task->batch == 3) return FEEDLANE_END;
    *static_cast<std::int32_t*>(self) = look(task, 0).status;
    const std::int64_t status = look(task, 0).status;
    for (std::uint64_t row = 0; row < task->count; row++)
      std::memcpy(static_cast<char*>(task->tensors[0].data) + row * 8, &status, 8);
    return FEEDLANE_OK;
  };
  for (const bool iterable : {false, true}) {
    CAPTURE(iterable);
    std::int32_t status = 0;
    Setup s(12, batch_size);
    s.forked(iterable ? 1 : 0, whole_batches(fetch, &status)).fields({field("status", int64_type)});
    if (iterable) {
      s.config.iterable = 1;
      s.config.sampler = nullptr;
      s.sampler.reset();
      s.config.prefetch_factor = 4;
    }
    const Loader l = s.create();
    for (const Taken& t : take_epoch(l.get(), 0)) CHECK(t.value("status") == FEEDLANE_END);
  }
}
