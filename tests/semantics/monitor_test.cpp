// SPDX-License-Identifier: Apache-2.0
// A loader watched from another process: the same numbers as over there, and nothing over there hangs on it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <feedlane/monitor.hpp>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/scripted.hpp"
#include "support/skip.hpp"
#include "support/trainer.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

using namespace feedlane::test;
using feedlane::Monitor;

namespace {

constexpr std::int32_t worker_count = 2;

// What the trainer says of itself after each step.
struct Said {
  std::int32_t status;
  feedlane_stats stats;
  feedlane_worker_stats workers[worker_count];
};

// A process that trains: a step for each byte that it is sent, and an answer to each. 'b': begins the epoch and waits for
// its workers; 't': takes and releases a batch; 'h': takes one and holds it; 'd': destroys the loader.
class Trainer {
 public:
  Trainer(std::int32_t start, std::int64_t samples)
      : child_({steps_.fds[0], answers_.fds[1]}, [this, start, samples](Findings&) { train(start, samples); }) {}

  Said step(char what) {
    REQUIRE(::write(steps_.fds[1], &what, 1) == 1);
    Said said{};
    REQUIRE(wait_readable(answers_.fds[0]));
    REQUIRE(::read(answers_.fds[0], &said, sizeof said) == sizeof said);
    return said;
  }
  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  void kill() {
    (void)::kill(child_.pid(), SIGKILL);
    (void)child_.finish();
  }

 private:
  void train(std::int32_t start, std::int64_t samples) const {
    Setup s(samples, 2);
    s.workers(worker_count);
    s.connect();
    s.config.keep_workers = 1;
    s.config.start = start;
    if (start == FEEDLANE_START_FORK) s.config.dataset = &s.dataset, s.config.argv = nullptr;
    feedlane_loader* loader = nullptr;
    std::int32_t status = feedlane_loader_create(&s.config, &loader, nullptr);
    for (char what = 0; status >= 0 && ::read(steps_.fds[0], &what, 1) == 1;) {
      status = step_here(loader, what);
      Said said{status, fresh<feedlane_stats>(), {}};
      (void)observe(loader, feedlane_monitor_get_stats, &said.stats);
      for (std::int32_t w = 0; w < worker_count; w++) {
        said.workers[w] = fresh<feedlane_worker_stats>();
        (void)observe(loader, feedlane_monitor_get_worker_stats, w, &said.workers[w]);
      }
      (void)!::write(answers_.fds[1], &said, sizeof said);
    }
  }

  static std::int32_t step_here(feedlane_loader*& loader, char what) {
    if (what == 'd') return feedlane_loader_destroy(&loader);
    if (what == 'b') {
      const std::int32_t status = feedlane_loader_begin(loader, 0, nullptr);
      if (status == FEEDLANE_OK) wait_until_ready(loader, worker_count);
      return status;
    }
    auto batch = fresh<feedlane_batch>();
    const std::int32_t status = feedlane_loader_next(loader, patience_ns, &batch, nullptr);
    return status == FEEDLANE_OK && what == 't' ? feedlane_batch_release(loader, batch.token) : status;
  }

  Pipe steps_, answers_;
  Child child_;
};

Monitor watch(std::int64_t pid, int nth = 0) {
  feedlane::Error error;
  std::optional<Monitor> monitor = Monitor::open(pid, nth, error);
  REQUIRE_MESSAGE(!error, error.what());
  REQUIRE(monitor.has_value());
  return std::move(*monitor);
}

std::int32_t open_status(std::int64_t pid, std::int32_t nth, feedlane_error* e = nullptr) {
  feedlane_monitor* m = reinterpret_cast<feedlane_monitor*>(64);
  const std::int32_t status = feedlane_monitor_open(pid, nth, &m, e);
  if (status != FEEDLANE_OK) CHECK(m == nullptr);
  else (void)feedlane_monitor_destroy(&m);
  return status;
}

void check_same(const Monitor& monitor, const Said& said) {
  const feedlane_stats seen = monitor.stats();
  CHECK(std::memcmp(&seen, &said.stats, sizeof seen) == 0);
  const std::vector<feedlane_worker_stats> workers = monitor.worker_stats();
  REQUIRE(workers.size() == worker_count);
  for (std::size_t w = 0; w < worker_count; w++) {
    CHECK(workers[w].pid == said.workers[w].pid);
    CHECK(workers[w].state == said.workers[w].state);
    CHECK(workers[w].generation == said.workers[w].generation);
  }
}

// Lines of /proc/self/maps with a segment of a loader.
std::vector<std::string> segments_here() {
  std::ifstream file("/proc/self/maps");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (line.find("memfd:feedlane-") != std::string::npos) lines.push_back(line);
  return lines;
}

// A descriptor of this process that looks like a loader's control segment as far as its name goes.
int forge(const void* bytes, std::size_t count, int seals) {
  const int fd = ::memfd_create("feedlane-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(fd, 8192) == 0);
  REQUIRE(::pwrite(fd, bytes, count, 0) == static_cast<ssize_t>(count));
  REQUIRE(::fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

bool is_control(int fd) {
  char target[64] = {};
  (void)!::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
  return std::string(target) == "/memfd:feedlane-control (deleted)";
}

}  // namespace

// promise: monitor-other-process
TEST_CASE("a monitor in another process reads the same statistics as the loader's own process") {
  for (const std::int32_t start : {FEEDLANE_START_SPAWN, FEEDLANE_START_FORK}) {
    CAPTURE(start);
    Trainer trainer(start, 40);
    Said said = trainer.step('b');
    REQUIRE(said.status == FEEDLANE_OK);
    const Monitor monitor = watch(trainer.pid());
    check_same(monitor, said);
    CHECK(monitor.stats().epochs == 1);
    for (const feedlane_worker_stats& w : monitor.worker_stats()) {
      CHECK(w.state == FEEDLANE_WORKER_READY);
      CHECK(is_running(static_cast<pid_t>(w.pid)));
    }
    for (std::uint64_t taken = 1; taken <= 5; taken++) {
      check_same(monitor, said = trainer.step('t'));
      CHECK(monitor.stats().batches == taken);
      CHECK(monitor.stats().samples == 2 * taken);
      CHECK(monitor.stats().slots_held == 0);
    }
    check_same(monitor, trainer.step('h'));
    CHECK(monitor.stats().slots_held == 1);
    std::uint64_t made = 0;
    for (const feedlane_worker_stats& w : monitor.worker_stats()) made += w.samples;
    CHECK_MESSAGE(made >= 12, "rows that the workers themselves have counted");
  }
}

// promise: monitor-other-process
TEST_CASE("a monitor shows a replaced worker with its new process id and generation") {
  Trainer trainer(FEEDLANE_START_SPAWN, 400);
  const Said before = trainer.step('b');
  const Monitor monitor = watch(trainer.pid());
  REQUIRE(::kill(static_cast<pid_t>(before.workers[0].pid), SIGKILL) == 0);
  Said said = before;
  for (int i = 0; i < 150 && said.stats.restarts == 0; i++) said = trainer.step('t');
  check_same(monitor, said);
  CHECK(monitor.stats().restarts == 1);
  CHECK(monitor.worker_stats()[0].generation == 1);
  CHECK(monitor.worker_stats()[0].pid != before.workers[0].pid);
  CHECK(monitor.worker_stats()[1].generation == 0);
}

// promise: monitor-other-process
TEST_CASE("a monitor maps both segments read-only and keeps no descriptor of them open") {
  Trainer trainer(FEEDLANE_START_SPAWN, 40);
  (void)trainer.step('b');
  const std::vector<int> before = open_descriptors();
  {
    const Monitor monitor = watch(trainer.pid());
    const std::vector<std::string> lines = segments_here();
    REQUIRE(lines.size() == 2);
    for (const std::string& line : lines) CHECK_MESSAGE(line.find(" r--s ") != std::string::npos, line);
    CHECK(open_descriptors() == before);
    CHECK_MESSAGE(open_status(::getpid(), 0) == FEEDLANE_END, "a monitor is no loader");
  }
  CHECK(segments_here().empty());
  CHECK(open_descriptors() == before);
}

// promise: monitor-other-process
TEST_CASE("a monitor keeps the last statistics after the trainer is killed or its loader is destroyed") {
  Trainer killed(FEEDLANE_START_SPAWN, 40);
  (void)killed.step('b');
  const Said last = killed.step('t');
  const Monitor monitor = watch(killed.pid());
  killed.kill();
  check_same(monitor, last);
  CHECK(monitor.stats().batches == 1);
  Error e;
  CHECK(open_status(killed.pid(), 0, &e) == FEEDLANE_E_PEER_DEAD);
  CHECK(std::string(e.argument) == "pid");
  CHECK(e.found == killed.pid());

  Trainer ended(FEEDLANE_START_SPAWN, 40);
  (void)ended.step('b');
  (void)ended.step('t');
  const Monitor other = watch(ended.pid());
  (void)ended.step('d');
  CHECK(other.stats().batches == 1);
  for (const feedlane_worker_stats& w : other.worker_stats()) {
    CHECK(w.pid == 0);
    CHECK(w.state == FEEDLANE_WORKER_NONE);
  }
  CHECK_MESSAGE(open_status(ended.pid(), 0) == FEEDLANE_END, "it has no loader any more");
}

// promise: monitor-other-process
TEST_CASE("monitors select a loader of a process by its number, and rings and other memfds aren't counted") {
  auto ring = fresh<feedlane_ring_config>();
  ring.message_bytes = 8;
  ring.capacity = 8;
  feedlane_rx* rx = nullptr;
  REQUIRE(feedlane_rx_create(&ring, &rx, nullptr) == FEEDLANE_OK);
  CHECK_MESSAGE(open_status(::getpid(), 0) == FEEDLANE_END, "a ring is no loader");
  const int impostor = forge("nothing of ours", 15, 0);
  CHECK_MESSAGE(open_status(::getpid(), 0) == FEEDLANE_END, "nor is what only has the name");
  Setup first_setup(6, 2), second_setup(9, 3);
  Loader first = first_setup.create();
  const Loader second = second_setup.create();
  (void)take_epoch(first.get(), 0);
  (void)take_epoch(second.get(), 0);
  std::vector<int> again;
  for (const int fd : open_descriptors())
    if (is_control(fd)) again.push_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  CHECK(again.size() == 3);
  CHECK(watch(::getpid(), 0).stats().samples == 6);
  CHECK(watch(::getpid(), 1).stats().samples == 9);
  CHECK(watch(::getpid(), 1).worker_stats().empty());
  CHECK(open_status(::getpid(), 2) == FEEDLANE_END);
  CHECK(open_status(::getpid(), INT32_MAX) == FEEDLANE_END);
  for (const int fd : again) (void)::close(fd);
  first.reset();
  CHECK(watch(::getpid(), 0).stats().samples == 9);
  CHECK(open_status(::getpid(), 1) == FEEDLANE_END);
  (void)::close(impostor);
  (void)feedlane_rx_destroy(&rx);
}

// promise: monitor-other-process
TEST_CASE("monitoring a loader of a library with another layout fails with E_ABI") {
  struct {
    std::uint64_t magic = 0x454e414c44454546;
    std::uint32_t kind = 1;
    std::uint16_t major = 6, minor = 0;
    std::uint32_t byte_order = 0x01020304;
    std::uint32_t page_bytes = 4096;
    std::uint64_t layout_hash = 42;
  } header;  // the beginning of docs/layout.md's SegmentHeader
  const int fd = forge(&header, sizeof header, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  Error e;
  CHECK(open_status(::getpid(), 0, &e) == FEEDLANE_E_ABI);
  CHECK(std::string(e.argument) == "layout_hash");
  CHECK(e.found == 42);
  CHECK_MESSAGE(open_status(::getpid(), 1) == FEEDLANE_END, "it counts");
  (void)::close(fd);
}

// promise: monitor-other-process
TEST_CASE("monitoring a process that doesn't exist, has exited or belongs to another user is refused") {
  Error e;
  pid_t ended = 0;
  {
    const Child child([](Findings&) {});
    ended = child.pid();
    CHECK(eventually([&] { return !is_running(ended); }));
    CHECK_MESSAGE(open_status(ended, 0, &e) == FEEDLANE_E_PEER_DEAD, "not reaped yet");
    CHECK(e.found == ended);
  }
  CHECK(open_status(ended, 0, &e) == FEEDLANE_E_PEER_DEAD);
  CHECK(e.found == ended);
  const Loader mine = Setup(2).create();
  const pid_t parent = ::getpid();
  // As root: somebody else from here on. Else process 1 is somebody else's.
  const bool was_root = ::geteuid() == 0;
  const auto becomes_another_user = [was_root] { return !was_root || ::setresuid(65534, 65534, 65534) == 0; };
  if (in_child([&](Findings& f) { EXPECT(f, becomes_another_user()); }) != "")
    return skip("root may not become another user here");
  CHECK(in_child([&](Findings& f) {
          EXPECT(f, becomes_another_user());
          Error why;
          EXPECT(f, open_status(was_root ? parent : 1, 0, &why) == FEEDLANE_E_OS);
          EXPECT(f, why.os_errno == EACCES);
          EXPECT(f, why.says("same user"));
        }) == "");
}
