// SPDX-License-Identifier: Apache-2.0
// Workers that lie about their shards, or of how far they are: each is found out, its shard is resumed by another, and every
// sample comes once.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "crash/hostile.hpp"
#include "greeting/worker.hpp"
#include "semantics/shards.hpp"

using namespace feedlane::test;
using namespace feedlane::test::shards;
namespace tensors = feedlane::tensors;
namespace shm = feedlane::shm;

namespace {

const Lie* told = nullptr;
std::vector<int> not_its;

// The first process of the worker tells it of its third batch.
std::int32_t lying_next(void* self, const feedlane_row* row, feedlane_error* err) {
  const Shards& s = at(self);
  if (s.generation == 0 && s.position == 6) {
    const Inside in(static_cast<std::uint32_t>(s.worker), not_its);
    in.send(*row->task, *told, 3);
    for (;;) ::pause();
  }
  return next(self, row, err);
}

}  // namespace

TEST_CASE("a worker that sends an impossible result for a shard is killed, and no sample is lost") {
  static constexpr Lie lies[] = {
      {"more rows than asked for", [](shm::ResultMessage& r, tensors::Slot&) { r.rows = 4; }, false},
      {"no rows at all", [](shm::ResultMessage& r, tensors::Slot&) { r.rows = 0; }, false},
      {"another task's failure to open",
       [](shm::ResultMessage& r, tensors::Slot& slot) {
         r.status = FEEDLANE_E_INIT;
         slot.header->head.task_id++;
       },
       true},
      {"a status of no result", [](shm::ResultMessage& r, tensors::Slot&) { r.status = FEEDLANE_E_STALE; }, false},
  };
  for (const Lie& lie : lies) {
    CAPTURE(std::string(lie.what));
    told = &lie;
    not_its = open_descriptors();
    Iterable s({15}, 3);
    s.dataset.next = lying_next;
    s.fields({field("value", int64_type)});
    s.config.deterministic = 1;
    const Loader l = s.create();
    check_batches(take_epoch(l.get(), 0), by_turns({15}, 3));
    CHECK(stats_of(l.get()).invalid_results == 1);
    CHECK(stats_of(l.get()).restarts == 1);
  }
}

TEST_CASE("the error of a batch that is given up says what was wrong with its last result") {
  static constexpr Lie lie{"more rows than asked for", [](shm::ResultMessage& r, tensors::Slot&) { r.rows = 4; },
                           false};
  told = &lie;
  not_its = open_descriptors();
  Iterable s({15}, 3);
  s.dataset.next = lying_next;
  s.fields({field("value", int64_type)});
  s.config.deterministic = 1;
  s.config.max_kills_per_batch = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  const std::vector<Taken> all = take_outcomes(l.get());
  REQUIRE(all.size() == 3);
  CHECK(all[2].status == FEEDLANE_E_QUARANTINED);
  CHECK(all[2].batch == 2);
  CHECK_MESSAGE(
      all[2].text.find(
          "was killed because it sent invalid data: the worker sent a result with 4 rows, but its task has only 3") !=
          std::string::npos,
      all[2].text);
}

namespace {

// Before it has attached, a process says this over its socket, and ends.
template <class Message>
void say_first(const Message& message, bool waits, std::uint64_t invalid) {
  Setup s(6);
  s.external(1);
  const Loader l = s.create();
  std::int32_t id = -1;
  std::int32_t fd = -1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  Child child({fd}, [&](Findings& f) {
    feedlane::worker::Welcome welcome{};
    EXPECT(f, ::recv(fd, &welcome, sizeof welcome, 0) == sizeof welcome);
    EXPECT(f, send_over(fd, &message, sizeof message, {}));
    if (waits) EXPECT(f, ::recv(fd, &welcome, sizeof welcome, 0) == 0);  // refused
  });
  (void)::close(fd);
  if (!waits) CHECK(child.finish() == "");
  CHECK(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return worker_of(l.get(), 0).state == FEEDLANE_WORKER_NONE;
  }));
  if (waits) CHECK(child.finish() == "");
  CHECK(stats_of(l.get()).invalid_results == invalid);
}

}  // namespace

TEST_CASE("a process that sends ready before attached is refused") {
  feedlane::worker::Ready ready{};
  ready.magic = feedlane::worker::ready_magic;
  ready.status = FEEDLANE_OK;
  say_first(ready, true, 1);
}

TEST_CASE("a process that attaches and ends before the trainer reads its message is not reported as a liar") {
  say_first(feedlane::worker::Attached{feedlane::worker::attached_magic, shm::layout_hash}, false, 0);
}
