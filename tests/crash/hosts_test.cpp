// SPDX-License-Identifier: Apache-2.0
// Hosts as they are: that start workers from threads which end, fork children of their own, reap everything, or live in
// another pid namespace than their workers. A program that is its own worker.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "feedlane.h"
#include "support/api.hpp"
#include "support/namespaces.hpp"
#include "support/skip.hpp"

namespace {

constexpr int deadline_ms = 30'000;
constexpr std::int64_t deadline_ns = std::int64_t{deadline_ms} * 1'000'000;

// What the workers do: 'f': the one that makes sample 3 first forks a child that holds on to all it has; 'k': the first
// attempt at sample 3 kills its worker.
std::int32_t open_worker(void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
  *self = const_cast<void*>(info->config);
  return FEEDLANE_OK;
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error*) {
  const char mode = *static_cast<const char*>(self);
  if (row->index == 3 && row->task->attempt == 0) {
    if (mode == 'f' && ::fork() == 0)
      for (;;) (void)::pause();
    if (mode == 'f' || mode == 'k') (void)::raise(SIGKILL);
  }
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

struct Loader {
  explicit Loader(char mode, std::int32_t start = FEEDLANE_START_SPAWN, std::int64_t samples = 40) {
    feedlane_init(&err, sizeof err);
    feedlane_sampler* sampler = nullptr;
    REQUIRE(feedlane::test::sequential_sampler(samples, &sampler, &err) == FEEDLANE_OK);
    feedlane_field field{};
    field.size = sizeof field;
    field.name = "index";
    field.dtype = {0, 64, 1};
    feedlane_loader_config config;
    feedlane_init(&config, sizeof config);
    config.sampler = sampler;
    config.fields = &field;
    config.field_count = 1;
    config.workers = 2;
    config.keep_workers = 1;
    config.start = start;
    config.worker_config = &mode;
    config.worker_config_bytes = 1;
    REQUIRE_MESSAGE(feedlane_loader_create(&config, &handle, &err) == FEEDLANE_OK, err.text);
    (void)feedlane_sampler_destroy(&sampler);
  }
  ~Loader() { (void)feedlane_loader_destroy(&handle); }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  void begin(std::int64_t epoch = 0) {
    REQUIRE_MESSAGE(feedlane_loader_begin(handle, epoch, &err) == FEEDLANE_OK, err.text);
  }
  // The rest of the epoch, in order, nothing lost or doubled.
  void take_all(std::int64_t samples = 40) {
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    for (std::int64_t i = 0; i < samples; i++) {
      REQUIRE_MESSAGE(feedlane_loader_next(handle, deadline_ns, &batch, &err) == FEEDLANE_OK, err.text);
      std::int64_t index = -1;
      std::memcpy(&index, batch.tensors[0].data, sizeof index);
      CHECK(index == i);
      CHECK(feedlane_batch_release(handle, batch.token) == FEEDLANE_OK);
    }
    CHECK(feedlane_loader_next(handle, deadline_ns, &batch, &err) == FEEDLANE_END);
  }
  std::int64_t pid(std::int32_t worker) {
    feedlane_worker_stats stats{};
    stats.size = sizeof stats;
    REQUIRE(feedlane::test::observe(handle, feedlane_monitor_get_worker_stats, worker, &stats) == FEEDLANE_OK);
    return stats.pid;
  }
  std::uint64_t restarts() {
    feedlane_stats stats{};
    stats.size = sizeof stats;
    REQUIRE(feedlane::test::observe(handle, feedlane_monitor_get_stats, &stats) == FEEDLANE_OK);
    return stats.restarts;
  }

  feedlane_error err{};
  feedlane_loader* handle = nullptr;
};

int open_pidfd(std::int64_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)); }

bool ends(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, deadline_ms) == 1;
}

bool group_is_gone(std::int64_t leader) { return ::kill(static_cast<pid_t>(-leader), 0) != 0 && errno == ESRCH; }

}  // namespace

// promise: fault-reaping-host
TEST_CASE("workers outlive the thread that started them, as with threads of Go and Julia") {
  Loader loader('-');
  std::thread([&] { loader.begin(); }).join();
  loader.take_all();
  std::thread([&] { loader.begin(1); }).join();
  loader.take_all();
  CHECK(loader.restarts() == 0);
}

// promise: fault-trainer-killed, trainer-forked-child
TEST_CASE("idle workers end with their trainer although a forked child of the trainer holds the lifelines open") {
  int said[2];
  REQUIRE(::pipe2(said, O_CLOEXEC) == 0);
  const pid_t trainer = ::fork();
  if (trainer == 0) {
    Loader loader('-');
    loader.begin();
    loader.take_all();
    const pid_t child = ::fork();
    if (child == 0)
      for (;;) (void)::pause();
    const std::int64_t pids[3] = {loader.pid(0), loader.pid(1), child};
    (void)!::write(said[1], pids, sizeof pids);
    for (;;) (void)::pause();
  }
  std::int64_t pids[3] = {};
  REQUIRE(::read(said[0], pids, sizeof pids) == sizeof pids);
  const int first = open_pidfd(pids[0]);
  const int second = open_pidfd(pids[1]);
  (void)::kill(trainer, SIGKILL);
  (void)::waitpid(trainer, nullptr, 0);
  CHECK(ends(first));
  CHECK(ends(second));
  (void)::kill(static_cast<pid_t>(pids[2]), SIGKILL);
  for (const int fd : {first, second, said[0], said[1]}) (void)::close(fd);
}

TEST_CASE("a dead worker is replaced although its child holds all its descriptors, and the child is killed") {
  Loader loader('f');
  loader.begin();
  const std::int64_t pids[2] = {loader.pid(0), loader.pid(1)};
  loader.take_all();
  CHECK(loader.restarts() == 1);
  // One of the two led a group that had a child in it.
  const std::int64_t dead = loader.pid(0) == pids[0] ? pids[1] : pids[0];
  for (int i = 0; i < deadline_ms && !group_is_gone(dead); i++)
    (void)::poll(nullptr, 0, 1);  // init reaps it when it can
  CHECK(group_is_gone(dead));
}

// promise: fault-reaping-host, trainer-reaps
TEST_CASE("a host that ignores SIGCHLD, or that reaps all children, loses only exit statuses") {
  for (const bool ignores : {true, false}) {
    const auto before = ::signal(SIGCHLD, ignores ? SIG_IGN : SIG_DFL);
    bool ended = false;
    std::thread reaper([&] {
      while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
        if (!ignores) (void)::waitpid(-1, nullptr, WNOHANG);
        (void)::poll(nullptr, 0, 1);
      }
    });
    {
      Loader loader('k');
      loader.begin();
      loader.take_all();
      CHECK(loader.restarts() == 1);
    }
    __atomic_store_n(&ended, true, __ATOMIC_RELAXED);
    reaper.join();
    (void)::signal(SIGCHLD, before);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}

TEST_CASE("external workers in their own PID namespace work, and their deaths are detected") {
  Loader loader('k', FEEDLANE_START_EXTERNAL);
  const auto start = [&] {
    std::int32_t id = -1;
    std::int32_t fd = -1;
    if (feedlane_loader_open_worker(loader.handle, &id, &fd, &loader.err) != FEEDLANE_OK) return false;
    const pid_t child = ::fork();
    if (child == 0) {
      if (::unshare(CLONE_NEWPID) != 0) ::_exit(9);
      const pid_t inner = ::fork();  // pid 1 of the new namespace
      if (inner == 0) {
        feedlane_dataset dataset;
        feedlane_init(&dataset, sizeof dataset);
        dataset.open = open_worker;
        dataset.get = get;
        ::_exit(feedlane_worker_run(fd, nullptr, &dataset, nullptr) == FEEDLANE_OK ? 0 : 1);
      }
      int status = 0;
      (void)::close(fd);
      (void)::waitpid(inner, &status, 0);
      ::_exit(0);
    }
    (void)::close(fd);
    return true;
  };
  if (!feedlane::test::has_pid_namespaces()) {
    feedlane::test::skip("this user can't make PID namespaces");
    return;
  }
  REQUIRE(start());
  REQUIRE(start());
  loader.begin();
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (std::int64_t i = 0; i < 40;) {
    // pid 1 of a namespace ignores its own SIGKILL: the worker lives on and makes the sample; nothing else differs.
    const std::int32_t s = feedlane_loader_next(loader.handle, deadline_ns, &batch, &loader.err);
    if (s == FEEDLANE_E_PEER_DEAD) {
      REQUIRE(start());
      continue;
    }
    REQUIRE_MESSAGE(s == FEEDLANE_OK, loader.err.text);
    std::int64_t index = -1;
    std::memcpy(&index, batch.tensors[0].data, sizeof index);
    CHECK(index == i++);
    // From outside it does end. Whoever made this batch has attached, so that its pid is known.
    if (const std::int64_t maker = loader.pid(batch.worker); i == 20 && maker > 0)
      (void)::kill(static_cast<pid_t>(maker), SIGKILL);
    CHECK(feedlane_batch_release(loader.handle, batch.token) == FEEDLANE_OK);
  }
  CHECK(feedlane_loader_stop(loader.handle, &loader.err) == FEEDLANE_OK);
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
}

int main(int argc, char** argv) {
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) {
    feedlane_dataset dataset;
    feedlane_init(&dataset, sizeof dataset);
    dataset.open = open_worker;
    dataset.get = get;
    return feedlane_worker_run(fd, nullptr, &dataset, nullptr) == FEEDLANE_OK ? 0 : 1;
  }
  return doctest::Context(argc, argv).run();
}
