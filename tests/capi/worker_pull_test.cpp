// SPDX-License-Identifier: Apache-2.0
// The pull form, call by call, in a forked child that an external loader has been told of.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "external_pair.hpp"

using namespace feedlane::test;

TEST_CASE("ready() may be called only once, and only before next()") {
  Pair p(2, 1, [](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    const feedlane_task* task = nullptr;
    Error e;
    EXPECT(f, feedlane_worker_next(w.get(), 0, &task, &e) == FEEDLANE_E_STATE);
    EXPECT(f, e.says("feedlane_worker_ready"));
    EXPECT(f, feedlane_worker_ready(w.get(), 1, nullptr, &e) == FEEDLANE_E_ARGUMENT);
    EXPECT(f, std::string(e.argument) == "status" && e.found == 1);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, &e) == FEEDLANE_OK);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, &e) == FEEDLANE_E_STATE);
    EXPECT(f, feedlane_worker_next(w.get(), -1, &task, &e) == FEEDLANE_E_ARGUMENT);
    EXPECT(f, feedlane_worker_next(w.get(), 0, nullptr, &e) == FEEDLANE_E_ARGUMENT);
    while ((task = nullptr, feedlane_worker_next(w.get(), patience_ns, &task, nullptr)) == FEEDLANE_OK)
      (void)make(task);
  });
  check_sequence(take_epoch(p.get(), 0), 2, 1);
  p.loader.reset();
  CHECK(p.child->finish() == "");
}

TEST_CASE("a task is open only until it is committed or failed") {
  Pair p(6, 2, [](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_worker_scratch(w.get(), 8, 8) == nullptr);
    const feedlane_task* task = next_task(w, f);
    const feedlane_task* other = nullptr;
    Error e;
    EXPECT(f, task->size == sizeof *task && task->worker == w.get() && task->count == 2 && task->tensor_count == 2);
    EXPECT(f, task->epoch == 1 && task->batch == 0 && task->attempt == 0 && task->id > 0);
    EXPECT(f, task->indices[1] == 1 && task->seeds[1] == feedlane_row_seed(99, 1, 1));
    EXPECT(f, feedlane_worker_next(w.get(), 0, &other, &e) == FEEDLANE_E_STATE);
    EXPECT(f, feedlane_worker_check(w.get()) == FEEDLANE_OK);
    EXPECT(f, feedlane_worker_arm(w.get(), nullptr) == FEEDLANE_AGAIN);
    for (const std::uint64_t rows : {std::uint64_t{0}, std::uint64_t{3}, UINT64_MAX - 1}) {
      EXPECT(f, feedlane_task_commit(task, rows, &e) == FEEDLANE_E_ARGUMENT);
      EXPECT(f, std::string(e.argument) == "rows" && e.found == static_cast<std::int64_t>(rows) && e.needed == 2);
    }
    for (const std::int64_t position : {-2, 2, 1000}) {
      EXPECT(f, feedlane_task_fail(task, position, 0, "x", nullptr, &e) == FEEDLANE_E_ARGUMENT);
      EXPECT(f, std::string(e.argument) == "position" && e.found == position);
    }
    EXPECT(f, make(task) == FEEDLANE_OK);
    EXPECT(f, feedlane_task_commit(task, 1, &e) == FEEDLANE_E_STALE);
    EXPECT(f, feedlane_task_fail(task, -1, 0, nullptr, nullptr, &e) == FEEDLANE_E_STALE);
    task = next_task(w, f);
    EXPECT(f, task->batch == 1);
    EXPECT(f, feedlane_task_fail(task, -1, 0, nullptr, nullptr, &e) == FEEDLANE_OK);
    EXPECT(f, feedlane_task_commit(task, 1, &e) == FEEDLANE_E_STALE);
    EXPECT(f, make(next_task(w, f)) == FEEDLANE_OK);
    EXPECT(f, feedlane_worker_next(w.get(), patience_ns, &task, nullptr) == FEEDLANE_END);
    EXPECT(f, feedlane_worker_check(w.get()) == FEEDLANE_END);
    EXPECT(f, feedlane_worker_arm(w.get(), nullptr) == FEEDLANE_AGAIN);
  });
  begin(p.get(), 1);
  CHECK(take(p.get()).batch == 0);
  Error e;
  CHECK(take(p.get(), &e).status == FEEDLANE_E_SAMPLE);
  CHECK(e.batch == 1);
  CHECK(e.sample == -1);
  CHECK(e.text[0] != '\0');
  CHECK(take(p.get()).batch == 2);
  CHECK(take(p.get()).status == FEEDLANE_END);
  p.loader.reset();
  CHECK(p.child->finish() == "");
}

TEST_CASE("a commit of fewer rows cuts the batch to those rows") {
  Pair p(4, 4, [](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    const feedlane_task* task = next_task(w, f);
    std::memcpy(task->tensors[0].data, task->indices, 24);
    EXPECT(f, feedlane_task_commit(task, 3, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_worker_next(w.get(), patience_ns, &task, nullptr) == FEEDLANE_END);
  });
  begin(p.get(), 0);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(p.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  CHECK(b.count == 3);
  CHECK(b.tensors[0].shape[0] == 3);
  CHECK(b.tensors[0].bytes == 24);
  CHECK(static_cast<const std::int64_t*>(b.tensors[0].data)[2] == 2);
  CHECK(feedlane_batch_release(p.get(), b.token) == FEEDLANE_OK);
  p.loader.reset();
  CHECK(p.child->finish() == "");
}

TEST_CASE("a failed task reaches the trainer with sample, text and traceback, each cut if it is too long") {
  Pair p(6, 3, [](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_task_fail(next_task(w, f), 2, 1, "broken", "line 1\nline 2", nullptr) == FEEDLANE_OK);
    const std::string text(1000, 't');
    const std::string traceback(100000, 'b');
    EXPECT(f, feedlane_task_fail(next_task(w, f), 0, 0, text.c_str(), traceback.c_str(), nullptr) == FEEDLANE_OK);
    const feedlane_task* task = nullptr;
    EXPECT(f, feedlane_worker_next(w.get(), patience_ns, &task, nullptr) == FEEDLANE_END);
  });
  begin(p.get(), 0);
  Error e(200000);
  CHECK(take(p.get(), &e).status == FEEDLANE_E_SAMPLE);
  CHECK(e.batch == 0);
  CHECK(e.sample == 2);
  CHECK(e.worker == 0);
  CHECK(e.attempt == 0);
  CHECK(e.transient == 1);
  CHECK(std::string(e.text) == "broken");
  CHECK(e.traceback() == "line 1\nline 2");
  CHECK(take(p.get(), &e).status == FEEDLANE_E_SAMPLE);
  CHECK(e.batch == 1);
  CHECK(e.sample == 3);
  CHECK(e.transient == 0);
  CHECK(std::string(e.text) == std::string(sizeof e.text - 1, 't'));
  CHECK_MESSAGE(e.detail_len == 65536, "64 KiB, though only the first page of the slot is reserved from the start");
  CHECK(e.traceback() == std::string(e.detail_len, 'b'));
  p.loader.reset();
  CHECK(p.child->finish() == "");
}

TEST_CASE("scratch is freed with its task, so many tasks need no more memory than one") {
  constexpr std::uint64_t bytes = std::uint64_t{16} << 20;
  Pair p(48, 1, [](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    const std::uint64_t before = resident_bytes();
    for (int t = 0; t < 48; t++) {
      const feedlane_task* task = next_task(w, f);
      void* memory = feedlane_worker_scratch(w.get(), bytes, 0);
      EXPECT(f, memory != nullptr);
      std::memset(memory, t, bytes);
      EXPECT(f, make(task) == FEEDLANE_OK);
    }
    EXPECT(f, resident_bytes() < before + 24 * bytes);
  });
  check_sequence(take_epoch(p.get(), 0), 48, 1);
  CHECK(p.child->finish() == "");
}

TEST_CASE("scratch is aligned memory of the current task") {
  Pair p(2, 1, [](int fd, Findings& f) {
    const Worker w = attach(fd, f);
    EXPECT(f, feedlane_worker_ready(w.get(), FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
    for (int t = 0; t < 2; t++) {
      const feedlane_task* task = next_task(w, f);
      std::vector<char*> pieces;
      for (const std::uint64_t align : {0U, 1U, 2U, 16U, 64U, 4096U})
        for (const std::uint64_t bytes : {1U, 100U, 70000U}) {
          auto* memory = static_cast<char*>(feedlane_worker_scratch(w.get(), bytes, align));
          EXPECT(f, memory != nullptr);
          EXPECT(f, reinterpret_cast<std::uintptr_t>(memory) % (align == 0 ? 16 : align) == 0);
          std::memset(memory, static_cast<int>(pieces.size()), bytes);
          pieces.push_back(memory);
        }
      for (std::size_t i = 0; i < pieces.size(); i++) EXPECT(f, *pieces[i] == static_cast<char>(i));
      EXPECT(f, feedlane_worker_scratch(w.get(), 0, 0) != nullptr);
      EXPECT(f, feedlane_worker_scratch(w.get(), 8, 3) == nullptr);
      EXPECT(f, feedlane_worker_scratch(w.get(), 8, 48) == nullptr);
      EXPECT(f, feedlane_worker_scratch(w.get(), UINT64_MAX, 16) == nullptr);
      EXPECT(f, make(task) == FEEDLANE_OK);
      EXPECT(f, feedlane_worker_scratch(w.get(), 8, 8) == nullptr);
    }
  });
  check_sequence(take_epoch(p.get(), 0), 2, 1);
  CHECK(p.child->finish() == "");
}
