// SPDX-License-Identifier: Apache-2.0
// The callbacks of a data set as a loader without workers calls them.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Writes down what it is called with.
struct Recorder {
  std::int32_t open_result = FEEDLANE_OK;
  int opened = 0, closed = 0, made = 0;
  feedlane_worker_info info{};
  std::vector<std::uint64_t> task_ids;
  std::vector<feedlane_task> tasks;
  std::vector<std::string> complaints;
  void expect(bool holds, const char* what) {
    if (!holds) complaints.emplace_back(what);
  }
};

Recorder* recorder_of(void* self) { return static_cast<Recorder*>(self); }

std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error* err) {
  Recorder& r = *recorder_of(user_data);
  r.opened++;
  r.info = *info;
  *self = user_data;
  if (r.open_result != FEEDLANE_OK) (void)std::snprintf(err->text, sizeof err->text, "no such folder");
  return r.open_result;
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  Recorder& r = *recorder_of(self);
  const feedlane_task& task = *row->task;
  r.made++;
  if (r.task_ids.empty() || task.indices[0] == row->index) r.task_ids.push_back(task.id);
  r.expect(row->size == sizeof *row && task.size == sizeof task && err->size == sizeof *err, "sizes");
  r.expect(err->code == 0 && err->text[0] == '\0' && err->detail != nullptr && err->detail_cap > 0,
           "a fresh error struct with room");
  r.expect(task.worker == nullptr, "no worker inline");
  r.expect(task.attempt == 0, "attempt");
  r.expect(row->bytes[0] == 8 && row->bytes[1] == 8, "bytes of a row");
  std::uint64_t at = 0;
  while (at < task.count && task.indices[at] != row->index) at++;
  r.expect(at < task.count && task.seeds[at] == row->seed, "index and seed are the task's");
  r.expect(row->fields[0] == static_cast<char*>(task.tensors[0].data) + 8 * at, "the row's place in the tensor");
  std::memcpy(row->fields[0], &row->index, 8);
  std::memcpy(row->fields[1], &row->seed, 8);
  return FEEDLANE_OK;
}

std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error*) {
  Recorder& r = *recorder_of(self);
  r.tasks.push_back(*task);
  r.task_ids.push_back(task->id);
  r.expect(task->tensor_count == 2 && task->tensors[0].shape[0] == static_cast<std::int64_t>(task->count), "shapes");
  std::memcpy(task->tensors[0].data, task->indices, task->tensors[0].bytes);
  std::memcpy(task->tensors[1].data, task->seeds, task->tensors[1].bytes);
  return FEEDLANE_OK;
}

void close(void* self) { recorder_of(self)->closed++; }

struct Recorded {
  explicit Recorded(std::int64_t samples, std::int64_t batch_size = 1) : setup(samples, batch_size) {
    setup.dataset = fresh<feedlane_dataset>();
    setup.dataset.user_data = &recorder;
    setup.dataset.open = open;
    setup.dataset.get = get;
    setup.dataset.close = close;
  }
  Setup setup;
  Recorder recorder;
};

}  // namespace

// promise: loader-get
TEST_CASE("get is called once for each sample, in order, with the row's position, index and seed") {
  Recorded r(7, 3);
  const Loader l = r.setup.create();
  check_sequence(take_epoch(l.get(), 2), 7, 3);
  CHECK(r.recorder.made == 7);
  CHECK(r.recorder.complaints == std::vector<std::string>{});
}

// promise: loader-inline, seed-inline-id
TEST_CASE("an inline open gets id -1, the base seed, the configuration and the fields") {
  Recorded r(2);
  const Loader l = r.setup.create();
  CHECK_MESSAGE(r.recorder.opened == 0, "not before the first epoch");
  begin(l.get(), 3);
  CHECK(r.recorder.opened == 1);
  const feedlane_worker_info& info = r.recorder.info;
  CHECK(info.size == sizeof info);
  CHECK(info.id == -1);
  CHECK(info.seed == 99);
  CHECK(info.epoch == 3);
  REQUIRE(info.config_bytes == sizeof(Plan));
  CHECK(std::memcmp(info.config, &r.setup.plan, sizeof(Plan)) == 0);
  CHECK_MESSAGE(info.config != &r.setup.plan, "inputs are copied");
  REQUIRE(info.field_count == 2);
  CHECK(std::string(info.fields[1].name) == "seed");
  CHECK(info.fields[1].dtype.code == 1);
}

// promise: start-open
TEST_CASE("close is called once for each open that succeeded, however the epoch ends") {
  Recorded r(4);
  SUBCASE("the epoch ends, END is repeated, and the loader is destroyed") {
    Loader l = r.setup.create();
    (void)take_epoch(l.get(), 0);
    (void)take(l.get());
    l.reset();
  }
  SUBCASE("the loader is destroyed in the middle of the epoch") {
    const Loader l = r.setup.create();
    begin(l.get(), 0);
    (void)take(l.get());
  }
  SUBCASE("begin is called in the middle of the epoch") {
    const Loader l = r.setup.create();
    begin(l.get(), 0);
    begin(l.get(), 1);
    CHECK(r.recorder.opened - r.recorder.closed == 1);
  }
  SUBCASE("stop is called") {
    const Loader l = r.setup.create();
    begin(l.get(), 0);
    CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
    CHECK(r.recorder.closed == 1);
  }
  SUBCASE("the data set is not opened if no epoch was begun") {
    { const Loader l = r.setup.create(); }
    CHECK(r.recorder.opened == 0);
    r.recorder.opened = r.recorder.closed;  // nothing more to say below
    CHECK(r.recorder.closed == 0);
    return;
  }
  CHECK(r.recorder.opened > 0);
  CHECK(r.recorder.closed == r.recorder.opened);
}

// promise: error-open-reported
TEST_CASE("if a data set can't be opened, every next returns E_INIT until begin") {
  Recorded r(3);
  r.recorder.open_result = FEEDLANE_E_OS;
  {
    const Loader l = r.setup.create();
    begin(l.get(), 0);
    for (int i = 0; i < 3; i++) {
      Error e;
      CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
      CHECK(e.code == FEEDLANE_E_INIT);
      CHECK(e.says("no such folder"));
    }
    CHECK(r.recorder.opened == 1);
    r.recorder.open_result = FEEDLANE_OK;
    check_sequence(take_epoch(l.get(), 1), 3, 1);
    CHECK(r.recorder.opened == 2);
  }
  CHECK_MESSAGE(r.recorder.closed == 1, "the one that was not opened is not closed");
}

// promise: loader-fetch
TEST_CASE("fetch makes the whole batch and is preferred to get") {
  Recorded r(5, 2);
  r.setup.dataset.fetch = fetch;
  const Loader l = r.setup.create();
  const std::vector<Taken> taken = take_epoch(l.get(), 1);
  check_sequence(taken, 5, 2);
  CHECK(taken[2].seed() == feedlane_row_seed(99, 1, 4));
  CHECK(r.recorder.made == 0);
  REQUIRE(r.recorder.tasks.size() == 3);
  CHECK(r.recorder.tasks[0].count == 2);
  CHECK(r.recorder.tasks[2].count == 1);
  CHECK(r.recorder.tasks[2].batch == 2);
  CHECK(r.recorder.tasks[2].epoch == 1);
  CHECK(r.recorder.complaints == std::vector<std::string>{});
}

// promise: start-open
TEST_CASE("without open, self is user_data; close can be missing") {
  Recorded r(3);
  r.setup.dataset.open = nullptr;
  r.setup.dataset.close = nullptr;
  const Loader l = r.setup.create();
  check_sequence(take_epoch(l.get(), 0), 3, 1);
  CHECK(r.recorder.made == 3);
}

TEST_CASE("a task's id is never used again, across batches, epochs and abandoned epochs") {
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    Recorded r(6, 2);
    if (whole) r.setup.dataset.fetch = fetch;
    const Loader l = r.setup.create();
    (void)take_epoch(l.get(), 0);
    begin(l.get(), 1);
    (void)take(l.get());
    (void)take_epoch(l.get(), 1);
    REQUIRE(r.recorder.task_ids.size() == 7);
    CHECK(std::set(r.recorder.task_ids.begin(), r.recorder.task_ids.end()).size() == 7);
  }
}
