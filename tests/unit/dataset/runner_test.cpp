// SPDX-License-Identifier: Apache-2.0
// The data set's callbacks and the task that they see.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/splitmix.hpp"
#include "dataset/runner.hpp"
#include "dataset/task.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::dataset::DatasetRunner;
using feedlane::dataset::Task;
namespace tensors = feedlane::tensors;
namespace shm = feedlane::shm;

namespace {

constexpr std::uint64_t base_seed = 11;

// Asks between samples what a test says, if one of the words is above 0; retries don't wait.
struct TestPace final : feedlane::dataset::Pace {
  TestPace() : Pace(position, {words[0], 0}, {words[1], 0}) {}
  Status look() override { return on_look ? on_look(position.load()) : FEEDLANE_OK; }
  Status pause(std::int64_t) override { return FEEDLANE_OK; }
  std::atomic<std::uint64_t> position{0}, words[2] = {0, 0};
  std::function<Status(std::uint64_t)> on_look;
};

// A data set whose callbacks are what a test says, and a task of rows 10, 20, 30, 40 with two fields.
struct Stage {
  explicit Stage(std::uint32_t flags = 0, std::uint32_t retries = 0, std::uint32_t record_room = 8)
      : records(record_room) {
    feedlane_field declared[2] = {};
    for (feedlane_field& f : declared) f.size = sizeof f;
    declared[0].name = "a";
    declared[0].dtype = {0, 64, 1};
    declared[1].name = "b";
    declared[1].dtype = {1, 8, 1};
    declared[1].ndim = 1;
    declared[1].shape[0] = 3;
    REQUIRE(fields.declare(declared, 2, 4, error) == FEEDLANE_OK);
    payload.resize(fields.slot_bytes());
    shm::Geometry geometry{};
    geometry.slots = 2;
    geometry.world = 1;
    geometry.max_rows = 4;
    geometry.slot_bytes = geometry.reserved_bytes = payload.size();
    geometry.base_seed = base_seed;
    geometry.flags = flags;
    geometry.retries = retries;
    geometry.record_rows = static_cast<std::uint32_t>(records.size());
    task.prepare(fields, geometry, 0, nullptr);
    tensors::Slot slot;
    slot.header = &header;
    slot.payload = payload.data();
    slot.payload_offset = 4096;
    slot.payload_bytes = payload.size();
    slot.number = 1;
    slot.records = records.data();
    slot.record_room = geometry.record_rows;
    task.open({7, 2, 5, 100, 1, 3, 4, 1, 0, 0}, indices, slot);
    table.size = sizeof table;
    table.user_data = this;
  }
  void with_open() {
    table.open = [](void* user, const feedlane_worker_info* who, void** self, feedlane_error* err) {
      return static_cast<Stage*>(user)->on_open(who, self, err);
    };
  }
  void with_get() {
    table.get = [](void* self, const feedlane_row* r, feedlane_error* err) {
      return static_cast<Stage*>(self)->on_get(r, err);
    };
  }
  void with_next() {
    table.next = [](void* self, const feedlane_row* r, feedlane_error* err) {
      return static_cast<Stage*>(self)->on_get(r, err);
    };
  }
  void with_fetch() {
    table.fetch = [](void* self, const feedlane_task* t, feedlane_error* err) {
      return static_cast<Stage*>(self)->on_fetch(t, err);
    };
  }
  void with_close() {
    table.close = [](void* self) { static_cast<Stage*>(self)->closed++; };
  }
  // As fetch reports it.
  Status fail_sample(std::uint64_t position, bool is_transient, feedlane_dataset_substitute_fn substitute = nullptr) {
    feedlane_error failure{};
    failure.code = FEEDLANE_E_SAMPLE;
    failure.transient = is_transient ? 1 : 0;
    std::int64_t index = 0;
    std::int64_t wait_ns = 0;
    return task.fail_sample(position, failure, substitute, nullptr, index, wait_ns, error);
  }
  void take_and_open() {
    REQUIRE(runner.take(&table, "dataset", error) == FEEDLANE_OK);
    REQUIRE(runner.open(info, error) == FEEDLANE_OK);
  }
  Status run() { return runner.run(task, progress, pace, error); }

  std::function<int32_t(const feedlane_worker_info*, void**, feedlane_error*)> on_open;
  std::function<int32_t(const feedlane_row*, feedlane_error*)> on_get;
  std::vector<shm::SampleRecord> records;
  std::function<int32_t(const feedlane_task*, feedlane_error*)> on_fetch;
  int closed = 0;
  feedlane_dataset table{};
  feedlane_worker_info info{};
  tensors::Fields fields;
  alignas(8) shm::SlotHeader header{};
  std::vector<std::byte> payload;
  const std::int64_t indices[4] = {10, 20, 30, 40};
  Task task;
  DatasetRunner runner;
  feedlane::dataset::Progress progress;
  TestPace pace;
  Error error;
};

}  // namespace

TEST_CASE("a task has the numbers that were sent, seeds by position and tensors in the slot") {
  Stage s;
  const feedlane_task& t = s.task.view();
  CHECK(t.size == sizeof t);
  CHECK(t.id == 7);
  CHECK(t.epoch == 2);
  CHECK(t.batch == 5);
  CHECK(t.attempt == 3);
  CHECK(t.count == 4);
  CHECK(t.indices == s.indices);
  for (std::int64_t i = 0; i < 4; i++)
    CHECK(t.seeds[i] == feedlane::row_seed(feedlane::epoch_key(base_seed, 2), 100 + i));
  REQUIRE(t.tensor_count == 2);
  CHECK(t.tensors[1].shape[0] == 4);
  CHECK(t.tensors[1].data == s.payload.data() + 256);
  CHECK(t.tensors[1].offset == 4096 + 256);
  CHECK(s.task.is_open());
  s.task.close();
  CHECK_FALSE(s.task.is_open());
}

TEST_CASE("describe() with fewer rows shortens the task's tensors and writes the batch into the slot") {
  Stage s;
  CHECK(s.task.describe(3) == 3 * 8 + 3 * 3);
  tensors::Made made;
  REQUIRE(tensors::read_batch(s.task.slot(), 7, s.fields, 3, 4, made, s.error) == FEEDLANE_OK);
  CHECK(made.tensors[0].shape[0] == 3);
  s.task.open({8, 2, 6, 104, 1, 0, 4, 1, 0, 0}, s.indices, s.task.slot());
  CHECK(s.task.describe(4) == 4 * 8 + 4 * 3);
  CHECK(tensors::read_batch(s.task.slot(), 8, s.fields, 4, 4, made, s.error) == FEEDLANE_OK);
}

TEST_CASE("get is called once for each row, with the row's address in every tensor") {
  Stage s;
  s.with_get();
  std::vector<std::int64_t> seen;
  s.on_get = [&](const feedlane_row* row, feedlane_error*) {
    CHECK(row->size == sizeof *row);
    CHECK(row->task == &s.task.view());
    CHECK(row->seed == row->task->seeds[seen.size()]);
    CHECK(row->bytes[0] == 8);
    CHECK(row->bytes[1] == 3);
    std::memcpy(row->fields[0], &row->index, 8);
    std::memset(row->fields[1], static_cast<int>(row->index), 3);
    seen.push_back(row->index);
    return 0;
  };
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_OK);
  CHECK(seen == std::vector<std::int64_t>{10, 20, 30, 40});
  CHECK(std::memcmp(s.payload.data(), s.indices, sizeof s.indices) == 0);
  CHECK(std::memcmp(s.payload.data() + 256, "\n\n\n\x14\x14\x14\x1e\x1e\x1e(((", 12) == 0);
}

TEST_CASE("a table with get and fetch uses fetch, which is called once with the whole task") {
  Stage s;
  s.with_get();
  s.with_fetch();
  int fetched = 0, got = 0;
  s.on_get = [&](const feedlane_row*, feedlane_error*) { return got++, 0; };
  s.on_fetch = [&](const feedlane_task* t, feedlane_error*) {
    CHECK(t == &s.task.view());
    return fetched++, 0;
  };
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_OK);
  CHECK(fetched == 1);
  CHECK(got == 0);
}

TEST_CASE("fetch may take at most two samples from its shard for each wanted row, including skipped samples") {
  for (const std::uint64_t left_out : {std::uint64_t{4}, std::uint64_t{5}}) {
    Stage s(shm::geometry_iterable | shm::geometry_skip);
    s.with_fetch();
    s.on_fetch = [&](const feedlane_task*, feedlane_error*) {
      for (std::uint64_t i = 0; i < left_out; i++) CHECK(s.fail_sample(i, false) == FEEDLANE_OK);
      return FEEDLANE_OK;
    };
    s.take_and_open();
    if (left_out == 4) {
      CHECK(s.run() == FEEDLANE_OK);
      CHECK(s.progress.position == 8);
    } else {
      CHECK(s.run() == FEEDLANE_E_SAMPLE);
      CHECK(std::string(s.error.argument) == "task->rows");
      CHECK(s.error.found == 4);
      CHECK(s.error.needed == 3);
      CHECK_MESSAGE(s.progress.position == 0, "no sample counts as taken");
    }
  }
}

TEST_CASE("a failed sample for whose record the slot has no room is E_LIMIT, whatever the policies allow") {
  for (const bool is_transient : {false, true}) {
    CAPTURE(is_transient);
    Stage s(shm::geometry_iterable | shm::geometry_skip, 1, 2);
    for (const std::uint64_t i : {0U, 1U}) CHECK(s.fail_sample(i, false) == FEEDLANE_OK);
    CHECK(s.fail_sample(2, is_transient) == FEEDLANE_E_LIMIT);
    CHECK(s.task.records() == 2);
  }
}

TEST_CASE("a failed sample of which nothing was decided has no record") {
  Stage s(shm::geometry_substitute);
  const auto stop = [](void*, std::int64_t, std::uint64_t, std::uint32_t, std::int64_t*, feedlane_error*) {
    return std::int32_t{FEEDLANE_INTERRUPTED};
  };
  CHECK(s.fail_sample(0, false, stop) == FEEDLANE_INTERRUPTED);
  s.task.end_sample();
  CHECK(s.task.records() == 0);
}

TEST_CASE("resuming a shard fails with E_INIT if fetch does not reproduce the samples that were delivered") {
  Stage s(shm::geometry_iterable | shm::geometry_skip, 1);
  s.with_fetch();
  s.on_fetch = [&](const feedlane_task*, feedlane_error*) {
    CHECK(s.fail_sample(0, true) == FEEDLANE_AGAIN);
    *s.task.view().rows = 0;
    return FEEDLANE_OK;
  };
  s.task.open({7, 2, 5, 3, 1, 0, 4, 1, shm::task_first, 0}, nullptr, s.task.slot());
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_E_INIT);
  CHECK(std::string(s.error.argument) == "task->rows");
}

TEST_CASE("a batch ends after two samples of its shard for each wanted row, even if there is room for more records") {
  Stage s(shm::geometry_iterable | shm::geometry_skip);
  s.with_next();
  std::vector<std::int64_t> seen;
  s.on_get = [&](const feedlane_row* row, feedlane_error*) {
    seen.push_back(row->index);
    return row->index < 3 ? FEEDLANE_OK : FEEDLANE_E_OS;
  };
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_OK);
  CHECK(s.progress.made == 3);
  CHECK(s.task.skipped() == 5);
  CHECK_MESSAGE(s.progress.position == 8, "no more than the trainer accepts");
  CHECK_MESSAGE(seen.size() == 8, "later samples belong to the next task");
}

TEST_CASE("a row's failure has its index, text, traceback, errno and transient flag") {
  Stage s;
  s.with_get();
  s.on_get = [](const feedlane_row* row, feedlane_error* err) {
    if (row->index != 30) return 0;
    CHECK(err->size == sizeof *err);
    CHECK(err->sample == -1);
    CHECK(err->worker == -1);
    CHECK(err->detail_cap >= 4096);
    std::strcpy(err->text, "bad file");
    std::memcpy(err->detail, "trace", 5);
    err->detail_len = 5;
    err->os_errno = 5;
    err->transient = 1;
    return -77;
  };
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_E_SAMPLE);
  CHECK(s.error.code == FEEDLANE_E_SAMPLE);
  CHECK(s.error.sample == 30);
  CHECK(s.progress.position == 2);
  CHECK(std::string(s.error.text) == "bad file");
  CHECK(s.error.detail == "trace");
  CHECK(s.error.os_errno == 5);
  CHECK(s.error.transient);
}

TEST_CASE("a failure of fetch names no row and keeps nothing of an earlier failure") {
  Stage s;
  s.with_fetch();
  bool first = true;
  s.on_fetch = [&](const feedlane_task*, feedlane_error* err) {
    if (std::exchange(first, false)) {
      std::strcpy(err->text, "no net");
      std::memcpy(err->detail, "trace", err->detail_len = 5);
      err->transient = 1;
    }
    return FEEDLANE_E_OS;
  };
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_E_SAMPLE);
  CHECK(s.error.sample == -1);
  CHECK(std::string(s.error.text) == "no net");
  CHECK(s.run() == FEEDLANE_E_SAMPLE);
  CHECK(std::string(s.error.text) == "fetch returned -8 (E_OS)");
  CHECK(s.error.detail.empty());
  CHECK_FALSE(s.error.transient);
}

TEST_CASE("a callback that fails without a text has a text with its return value") {
  for (const auto& [status, text] : {std::pair{-77, "get returned -77 (UNKNOWN)"}, {3, "get returned 3 (AGAIN)"}}) {
    Stage s;
    s.with_get();
    s.on_get = [code = status](const feedlane_row*, feedlane_error*) { return code; };
    s.take_and_open();
    CHECK(s.run() == FEEDLANE_E_SAMPLE);
    CHECK(std::string(s.error.text) == text);
    CHECK(s.error.sample == 10);
  }
}

TEST_CASE("a callback's unterminated text and its traceback of a wrong length are cut to their buffers") {
  Stage s;
  s.with_get();
  s.on_get = [](const feedlane_row*, feedlane_error* err) {
    std::memset(err->text, 't', sizeof err->text);
    std::memset(err->detail, 'd', err->detail_cap);
    err->detail_len = UINT64_MAX;
    return -1;
  };
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_E_SAMPLE);
  CHECK(std::string(s.error.text) == std::string(383, 't'));
  CHECK(s.error.detail == std::string(shm::detail_bytes, 'd'));
  s.on_get = [](const feedlane_row*, feedlane_error* err) {
    static char elsewhere[4] = {'x', 'x', 'x', 'x'};
    err->detail = elsewhere;
    err->detail_len = 1 << 20;
    return -1;
  };
  CHECK(s.run() == FEEDLANE_E_SAMPLE);
  CHECK_MESSAGE(s.error.detail.empty(), "only bytes written into the given buffer");
}

TEST_CASE("a run that is stopped between rows continues with the next row") {
  Stage s;
  s.with_get();
  std::vector<std::int64_t> seen;
  std::vector<std::uint64_t> asked;
  s.on_get = [&](const feedlane_row* row, feedlane_error*) { return seen.push_back(row->index), 0; };
  s.take_and_open();
  const auto stop_at = [&](std::uint64_t at) {
    s.pace.on_look = [&, at](std::uint64_t row) {
      return asked.push_back(row), row == at ? FEEDLANE_TIMEOUT : FEEDLANE_OK;
    };
    return s.run();
  };
  s.pace.words[0] = 1;
  CHECK(stop_at(1) == FEEDLANE_TIMEOUT);
  CHECK(s.progress.position == 1);
  s.pace.words[0] = 0;
  s.pace.words[1] = 1;
  CHECK(stop_at(3) == FEEDLANE_TIMEOUT);
  CHECK(s.progress.position == 3);
  CHECK(stop_at(4) == FEEDLANE_OK);
  CHECK(seen == std::vector<std::int64_t>{10, 20, 30, 40});
  const std::vector<std::uint64_t> between{1, 2, 3};  // not before the first row, not after the last
  CHECK(asked == between);

  Stage quiet;
  quiet.with_get();
  quiet.on_get = [](const feedlane_row*, feedlane_error*) { return 0; };
  quiet.pace.on_look = [](std::uint64_t) { return FEEDLANE_TIMEOUT; };
  quiet.take_and_open();
  CHECK_MESSAGE(quiet.run() == FEEDLANE_OK, "there is nothing to look at");
  CHECK(quiet.pace.position == 3);
}

TEST_CASE("the `self` that open sets is passed to the other callbacks, and once to close") {
  Stage s;
  Stage other;
  s.with_open();
  s.with_get();
  s.with_close();
  s.on_open = [&](const feedlane_worker_info* info, void** self, feedlane_error*) {
    CHECK(info->size == s.info.size);
    CHECK(*self == &s);
    *self = &other;
    return 0;
  };
  int got = 0;
  other.on_get = [&](const feedlane_row*, feedlane_error*) { return got++, 0; };
  s.take_and_open();
  CHECK(s.run() == FEEDLANE_OK);
  CHECK(got == 4);
  s.runner.close();
  s.runner.close();
  CHECK(other.closed == 1);
  CHECK(s.closed == 0);
}

TEST_CASE("a failed open is E_INIT with its own text, and the data set is never closed") {
  Stage s;
  s.with_open();
  s.with_get();
  s.with_close();
  s.on_open = [](const feedlane_worker_info*, void**, feedlane_error* err) {
    std::strcpy(err->text, "no such folder");
    return -5;
  };
  REQUIRE(s.runner.take(&s.table, "dataset", s.error) == FEEDLANE_OK);
  CHECK(s.runner.open(s.info, s.error) == FEEDLANE_E_INIT);
  CHECK(std::string(s.error.text) == "no such folder");
  s.runner.close();
  CHECK(s.closed == 0);
  s.on_open = [](const feedlane_worker_info*, void**, feedlane_error*) { return -5; };
  CHECK(s.runner.open(s.info, s.error) == FEEDLANE_E_INIT);
  CHECK(std::string(s.error.text) == "open returned -5 (E_STALE)");
}

TEST_CASE("a NULL table, a table without get and fetch, and a table of a wrong size are refused") {
  Stage s;
  CHECK(s.runner.take(&s.table, "config.dataset", s.error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(s.error.argument) == "config.dataset");
  s.with_get();
  s.table.size = 3;
  CHECK(s.runner.take(&s.table, "config.dataset", s.error) == FEEDLANE_E_ABI);
  CHECK(s.runner.take(nullptr, "config.dataset", s.error) == FEEDLANE_E_ARGUMENT);
}
