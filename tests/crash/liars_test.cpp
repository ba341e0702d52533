// SPDX-License-Identifier: Apache-2.0
// Workers that lie: of how far they have come, of what they have made, of who they are. Each is found out, or does no harm
// but to itself: every batch comes once, and no call of the trainer waits longer than it was told to.
#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "crash/hostile.hpp"
#include "greeting/worker.hpp"
#include "support/events.hpp"
#include "support/lingering.hpp"
#include "support/old_kernel.hpp"
#include "support/process.hpp"
#include "support/skip.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;
namespace shm = feedlane::shm;
namespace ring = feedlane::ring;
namespace worker = feedlane::worker;

namespace {

constexpr std::int64_t millisecond = 1'000'000;
constexpr auto relaxed = std::memory_order_relaxed;

// A data set whose first process of each worker lies in a sample, or when it is opened.
struct Liar {
  void (*lie)(Liar&, const feedlane_row&) = nullptr;  // before sample `at` is made
  void (*lie_at_open)(Liar&) = nullptr;
  std::int64_t at = -1;
  int gate = -1;          // the first sample waits for it
  int lied = -1;          // a Gate that is opened after the lie
  int number = 0;         // of the variant
  bool stumbles = false;  // over every sample of even index, once
  std::vector<int> not_its;
  std::uint32_t id = 0;
  bool is_first = false;
  std::int64_t stumbled_at = -1;

  [[nodiscard]] Inside inside() const { return Inside(id, not_its); }

  void tell(const feedlane_row& row) {
    lie(*this, row);
    const std::uint64_t one = 1;
    if (lied >= 0) (void)!::write(lied, &one, sizeof one);
  }

  static std::int32_t open(void* user_data, const feedlane_worker_info* info, void** self, feedlane_error*) {
    auto& liar = *static_cast<Liar*>(user_data);
    (void)std::signal(SIGTERM, SIG_DFL);  // not doctest's
    *self = user_data;
    liar.id = static_cast<std::uint32_t>(info->id);
    liar.is_first = info->generation == 0;
    if (liar.is_first && liar.lie_at_open != nullptr) liar.lie_at_open(liar);
    return FEEDLANE_OK;
  }
  static std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
    auto& liar = *static_cast<Liar*>(self);
    if (liar.stumbles && row->index % 2 == 0 && std::exchange(liar.stumbled_at, row->index) != row->index) {
      err->transient = 1;
      return FEEDLANE_E_SAMPLE;
    }
    if (liar.gate >= 0 && row->index == 0) (void)wait_readable(liar.gate);
    if (liar.is_first && liar.lie != nullptr && (liar.at < 0 || row->index == liar.at)) liar.tell(*row);
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    return FEEDLANE_OK;
  }
  Setup& set(Setup& s, std::int32_t workers) {
    not_its = open_descriptors();
    auto table = fresh<feedlane_dataset>();
    table.user_data = this;
    table.open = open;
    table.get = get;
    s.forked(workers, table).fields({field("index", int64_type)});
    return s;
  }
};

double seconds_since(std::chrono::steady_clock::time_point before) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

}  // namespace

// promise: worker-marks-without-progress
TEST_CASE("a worker that changes its started_task without end still misses its deadline") {
  Liar liar;
  liar.at = 0;
  // Which of its tasks it has in hand, another whenever the deadline comes: nothing that couldn't be true by itself.
  liar.lie = [](Liar& l, const feedlane_row& row) {
    const Inside in = l.inside();
    const std::uint64_t first = row.task->id;
    for (std::uint64_t i = 0;; i++) {
      in.row().started_task.store(first + i % 8, relaxed);
      ::usleep(250'000);
    }
  };
  Setup s(12);
  liar.set(s, 1).config.task_timeout_ns = 300 * millisecond;
  s.config.prefetch_factor = 8;
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 12, 1);
  CHECK(stats_of(l.get()).hung == 1);
  CHECK(stats_of(l.get()).restarts == 1);
}

TEST_CASE("a worker that hangs at a row beyond its batch is reported without a sample") {
  Liar liar;
  liar.at = 2;
  liar.lie = [](Liar& l, const feedlane_row&) {
    l.inside().row().started_sample.store(2, relaxed);
    for (;;) ::pause();
  };
  Setup s(8, 2);
  liar.set(s, 1).config.task_timeout_ns = 300 * millisecond;
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 8, 2);
  const std::vector<feedlane_event> hung = events_of(l.get(), FEEDLANE_EVENT_WORKER_HUNG);
  REQUIRE(hung.size() == 1);
  CHECK(hung[0].what.batch == 1);
  CHECK(hung[0].what.sample == -1);
}

// promise: worker-false-substitute
TEST_CASE("a worker that claims another sample is detected where substitution is not allowed") {
  Liar liar;
  liar.stumbles = true;  // which leaves a record
  liar.at = 1;
  liar.lie = [](Liar& l, const feedlane_row& row) {
    const Inside in = l.inside();
    const std::uint64_t slot = (row.task->tensors[0].offset - in.plan.payload) / in.plan.slot_stride;
    auto* record = reinterpret_cast<shm::SampleRecord*>(in.data + in.plan.records + slot * in.plan.record_bytes);
    record->outcome = static_cast<std::int32_t>(shm::SampleOutcome::substituted);
    record->substitute = 777;
  };
  Setup s(8, 2);
  liar.set(s, 1).config.retries = 1;
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 8, 2);
  const feedlane_stats stats = stats_of(l.get());
  CHECK(stats.substituted == 0);
  CHECK(stats.invalid_results == 1);
  CHECK(stats.restarts == 1);
}

TEST_CASE("a worker that counts up its begun tasks gets only the deadline's time for the tasks it was sent") {
  for (const int steps_beyond : {0, 1}) {
    CAPTURE(steps_beyond);
    Liar liar;
    liar.at = 0;
    liar.number = steps_beyond;
    liar.lie = [](Liar& l, const feedlane_row& row) {
      const Inside in = l.inside();
      for (std::uint64_t i = 0;; i++) {
        in.row().started_task.store(row.task->id + (l.number != 0 ? i : std::min<std::uint64_t>(i, 3)), relaxed);
        in.row().begun_through.store(row.task->id + (l.number != 0 ? i : std::min<std::uint64_t>(i, 3)), relaxed);
        ::usleep(50'000);
      }
    };
    Setup s(12);
    liar.set(s, 1).config.task_timeout_ns = 300 * millisecond;
    s.config.prefetch_factor = 8;
    const Loader l = s.create();
    check_sequence(take_epoch(l.get(), 0), 12, 1);
    const feedlane_stats stats = stats_of(l.get());
    CHECK(stats.restarts == 1);
    CHECK(stats.hung + stats.invalid_results == 1);
  }
}

// promise: worker-refills-lane
TEST_CASE("a worker that refills its lane faster than it is drained is killed at the first excess result") {
  Liar liar;
  liar.at = 2;
  liar.lie = [](Liar& l, const feedlane_row&) {
    const Inside in = l.inside();
    const auto lane = in.lane();
    for (;;) {
      for (std::uint64_t from = in.lane_position(), i = 0; i < lane.capacity; i++)
        lane.sequence(from + i).store(from + i + 1, std::memory_order_release);
      in.ring_all();
    }
  };
  Setup s(200);
  liar.set(s, 2);
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 200, 1);
  CHECK(stats_of(l.get()).restarts >= 1);
  CHECK(stats_of(l.get()).invalid_results == stats_of(l.get()).restarts);
}

TEST_CASE("a worker that repeats a result is killed, and no batch is delivered twice") {
  Liar liar;
  liar.at = 5;
  liar.lie = [](Liar& l, const feedlane_row&) {
    const Inside in = l.inside();
    const auto lane = in.lane();
    // What it sent before, behind what it has sent since.
    std::byte last[64];
    const std::uint64_t at = in.lane_position();
    std::memcpy(last, lane.cell(at + lane.capacity - 1), sizeof last);
    for (std::uint64_t i = 0; i < lane.capacity; i++) {
      std::memcpy(lane.message(at + i), last + 8, sizeof last - 8);
      lane.sequence(at + i).store(at + i + 1, std::memory_order_release);
    }
    in.ring_all();
    for (;;) ::pause();
  };
  Setup s(30);
  liar.set(s, 2);
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 30, 1);
  CHECK(stats_of(l.get()).restarts >= 1);
  CHECK(stats_of(l.get()).invalid_results == stats_of(l.get()).restarts);
}

TEST_CASE("a worker that sends an impossible result is killed, and no batch is lost") {
  static constexpr Lie lies[] = {
      {"a shard's end", [](auto& r, auto&) { r.status = FEEDLANE_END; }, false},
      {"a shard that can't be opened", [](auto& r, auto&) { r.status = FEEDLANE_E_INIT; }, true},
      {"a status of no result", [](auto& r, auto&) { r.status = FEEDLANE_E_STALE; }, false},
      {"an abandoned task that nobody abandoned", [](auto& r, auto&) { r.status = FEEDLANE_ABANDONED; }, false},
      {"more rows than asked for", [](auto& r, auto&) { r.rows = 3; }, false},
      {"no rows at all", [](auto& r, auto&) { r.rows = 0; }, false},
      {"more samples than asked for", [](auto& r, auto&) { r.rows = 3; }, true},
      {"a failure of another task", [](auto&, auto& slot) { slot.header->head.task_id++; }, true},
      {"a batch of another task", [](auto&, auto& slot) { slot.header->head.task_id++; }, false},
      {"a failure after a substitute that is not allowed",
       [](auto&, auto& slot) {
         slot.header->head.record_count = 1;
         slot.records[0] = {};
         slot.records[0].outcome = static_cast<std::int32_t>(shm::SampleOutcome::substituted);
       },
       true},
  };
  for (int number = 0; number < static_cast<int>(std::size(lies)); number++) {
    CAPTURE(std::string(lies[number].what));
    Liar liar;
    liar.at = 0;
    liar.number = number;
    liar.lie = [](Liar& l, const feedlane_row& row) {
      const Inside in = l.inside();
      in.send(*row.task, lies[l.number], 2);
      for (;;) ::pause();
    };
    Setup s(12, 2);
    liar.set(s, 1).config.retries = 1;  // so that there are records
    const Loader l = s.create();
    check_sequence(take_epoch(l.get(), 0), 12, 2);
    CHECK(stats_of(l.get()).invalid_results == 1);
    CHECK(stats_of(l.get()).restarts == 1);
    const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
    REQUIRE(deaths.size() == 1);
    CHECK(std::string(deaths[0].what.text).find("was killed because it sent invalid data: ") != std::string::npos);
  }
}

// promise: worker-endless-doorbell
TEST_CASE("while a worker rings without end, next keeps its timeout, other workers' batches arrive, and stop returns") {
  const Gate gate;
  Liar liar;
  liar.at = 0;
  liar.lie = [](Liar& l, const feedlane_row&) {
    const Inside in = l.inside();
    for (;;) in.ring_all();
  };
  Setup s(40);
  liar.set(s, 2).config.out_of_order = 1;
  s.config.stop_timeout_ns = 200 * millisecond;
  s.config.term_timeout_ns = 200 * millisecond;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::set<std::int64_t> seen;
  while (seen.size() < 39) {
    const Taken t = take(l.get());
    REQUIRE(t.status == FEEDLANE_OK);
    CHECK(seen.insert(t.batch).second);
  }
  CHECK(seen.count(0) == 0);
  const auto before = std::chrono::steady_clock::now();
  CHECK(take(l.get(), nullptr, 50 * millisecond).status == FEEDLANE_TIMEOUT);
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  CHECK(feedlane_loader_poll(l.get(), nullptr) >= 0);
  CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  CHECK(seconds_since(before) < 10);
}

// promise: worker-eventfds
TEST_CASE("a worker that fills both its eventfds and makes them blocking blocks no process, not even itself") {
  for (const bool drains : {false, true}) {
    CAPTURE(drains);
    Liar liar;
    liar.number = drains ? 1 : 0;
    liar.lie_at_open = [](Liar& l) {
      const Inside in = l.inside();
      for (const int event : in.events) {
        const std::uint64_t most = UINT64_MAX - 1;
        std::uint64_t drained = 0;
        (void)!::write(event, &most, sizeof most);
        if (l.number != 0) (void)!::read(event, &drained, sizeof drained);
        (void)::fcntl(event, F_SETFL, 0);
      }
    };
    Setup s(60);
    liar.set(s, 2).config.keep_workers = 1;
    const Loader l = s.create();
    for (int epoch = 0; epoch < 3; epoch++) check_sequence(take_epoch(l.get(), epoch), 60, 1);
    CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
    CHECK(stats_of(l.get()).restarts == 0);
  }
}

// promise: worker-false-marks
TEST_CASE("without a deadline, a worker that lies about its begun tasks loses no batch") {
  constexpr std::uint64_t one_more = 1, none = 2, all = 3, garbage = 4;
  for (const std::uint64_t lie : {one_more, none, all, garbage}) {
    CAPTURE(lie);
    Liar liar;
    liar.number = static_cast<int>(lie);
    liar.lie = [](Liar& l, const feedlane_row& row) {
      auto& begun = l.inside().row().begun_through;
      if (l.number == one_more) begun.store(row.task->id + 1, relaxed);
      else if (l.number == none) begun.store(0, relaxed);
      else begun.store(l.number == all ? UINT64_MAX : 0x123456789, relaxed);
      ::usleep(1000);
    };
    Setup s(60);
    liar.set(s, 2).config.prefetch_factor = 6;
    const Loader l = s.create();
    check_sequence(take_epoch(l.get(), 0), 60, 1);
    for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_INVALID)) CHECK(e.what.worker >= 0);
  }
}

// promise: fault-garbage, worker-impossible-marks
TEST_CASE("without a deadline, a worker that writes garbage over its row and unread results loses no batch") {
  std::uint64_t found = 0;
  for (const int pattern : {0x00, 0x01, 0x7f, 0x80, 0xff, -1, -2, -3, -4}) {
    for (const bool is_last : {false, true}) {
      CAPTURE(pattern);
      CAPTURE(is_last);
      const Gate gate, lied;
      Liar liar;
      liar.gate = gate.fd();
      liar.lied = lied.fd();
      liar.at = is_last ? 19 : 5;
      liar.number = pattern;
      liar.lie = [](Liar& l, const feedlane_row&) {
        const Inside in = l.inside();
        std::uint64_t seed = static_cast<std::uint64_t>(l.number) * 77;
        spoil(in.lane().memory, std::size_t{64} * in.lane().capacity, seed, l.number);
        spoil(reinterpret_cast<std::byte*>(&in.row()), sizeof(shm::WorkerRow), seed, l.number);
      };
      Setup s(20);
      liar.set(s, 1).config.prefetch_factor = 20;
      const Loader l = s.create();
      begin(l.get(), 0);
      wait_until_ready(l.get(), 1);
      gate.open();
      CHECK(wait_readable(lied.fd()));  // no result is read before
      check_sequence(take_rest(l.get()), 20, 1);
      found += stats_of(l.get()).invalid_results;
    }
  }
  CHECK_MESSAGE(found > 0, "not all of it was harmless");
}

TEST_CASE("no result is taken from the lane of a worker that hasn't attached") {
  Setup s(6);
  s.external(1);
  const Loader l = s.create();
  std::int32_t id = -1;
  std::int32_t fd = -1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  begin(l.get(), 0);
  {
    const Inside in(0);
    in.lane().sequence(in.lane_position()).store(in.lane_position() + 1, std::memory_order_release);
  }
  CHECK(feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_OK);
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  CHECK(stats_of(l.get()).invalid_results == 0);
  {
    const Inside in(0);
    in.lane().sequence(in.lane_position()).store(0, std::memory_order_release);  // or the next one is blamed for it
  }
  const Process process(worker_program, "get", fd);
  (void)::close(fd);
  check_sequence(take_rest(l.get()), 6, 1);
}

// promise: worker-false-pidfd
TEST_CASE("a process that attaches with another process's pidfd is refused") {
  const OldKernel old_kernel;  // others aren't asked for one
  for (const char* what : {"none", "parent", "event"}) {
    CAPTURE(std::string(what));
    Setup s(6);
    s.external(1);
    const Loader l = s.create();
    std::int32_t id = -1;
    std::int32_t fd = -1;
    REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
    const std::string kind(what);
    Child child({fd}, [&](Findings& f) {  // not the trainer's end of it
      const auto sent = static_cast<int>(kind == "event" ? ::eventfd(0, 0) : ::syscall(SYS_pidfd_open, ::getppid(), 0));
      const worker::Attached attached{worker::attached_magic, shm::layout_hash};
      worker::Welcome welcome{};
      EXPECT(f, ::recv(fd, &welcome, sizeof welcome, 0) == sizeof welcome);
      EXPECT(f,
             send_over(fd, &attached, sizeof attached, kind == "none" ? std::vector<int>() : std::vector<int>{sent}));
      EXPECT(f, ::recv(fd, &welcome, sizeof welcome, 0) == 0);  // refused
    });
    (void)::close(fd);
    CHECK(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return worker_of(l.get(), 0).state == FEEDLANE_WORKER_NONE;
    }));
    CHECK(child.finish() == "");
    const auto events = events_of(l.get(), FEEDLANE_EVENT_INVALID);
    REQUIRE(events.size() == 1);
    CHECK(std::string(events[0].what.text).find("worker 0 is process") == 0);
    CHECK(events[0].what.worker == 0);
  }
}

// promise: worker-linger-socket
TEST_CASE("descriptors sent by a worker are closed without blocking, however many") {
  const OldKernel old_kernel;
  for (const int messages : {1, 3}) {
    CAPTURE(messages);
    Setup s(6);
    s.external(1);
    const Loader l = s.create();
    std::int32_t id = -1;
    std::int32_t fd = -1;
    REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
    const std::size_t before = open_descriptors().size();
    std::vector<int> servers;
    for (int i = 0; i < messages; i++) {
      const std::vector<int> pair = lingering_pair();
      REQUIRE(pair.size() == 2);
      // The kernel keeps one reference for all of these.
      CHECK(send_over(fd, "nonsense", 8, std::vector<int>(20, pair[0])));
      (void)::close(pair[0]);
      servers.push_back(pair[1]);
    }
    const auto start = std::chrono::steady_clock::now();
    CHECK(feedlane_loader_poll(l.get(), nullptr) >= 0);
    CHECK(worker_of(l.get(), 0).state == FEEDLANE_WORKER_NONE);
    CHECK(seconds_since(start) < 10);
    for (const int server : servers) (void)::close(server);
    (void)::close(fd);
    CHECK(open_descriptors().size() < before);
  }
}

// promise: worker-slow-descriptors
TEST_CASE("no descriptor sent by a worker reaches the trainer, even in another socket, if the kernel can refuse it") {
  if (!can_refuse_descriptors()) return skip("this kernel can't refuse descriptors");
  Setup s(6);
  s.external(1);
  const Loader l = s.create();
  std::int32_t id = -1;
  std::int32_t fd = -1;
  REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
  const Lingering plain(false);
  CHECK_FALSE(send_over(fd, "nonsense", 8, {plain.fd()}));
  const Lingering nested(true);
  CHECK_FALSE(send_over(fd, "nonsense", 8, {nested.fd()}));
  CHECK(send_over(fd, "nonsense", 8, {}));
  const auto start = std::chrono::steady_clock::now();
  CHECK(feedlane_loader_poll(l.get(), nullptr) >= 0);
  CHECK(worker_of(l.get(), 0).state == FEEDLANE_WORKER_NONE);
  CHECK(seconds_since(start) < 10);
  (void)::close(fd);
}
