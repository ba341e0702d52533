// SPDX-License-Identifier: Apache-2.0
// Whether the descriptors of all workers are left is known when a loader is created: not one more is asked for than they take.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/few_descriptors.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

std::vector<std::unique_ptr<Process>> external;

}  // namespace

// promise: descriptors-for-workers, descriptors-creation-workers
TEST_CASE("creating a loader fails with E_LIMIT and both numbers if fewer descriptors are left than its workers need") {
  for (const std::int32_t start : {FEEDLANE_START_SPAWN, FEEDLANE_START_FORK, FEEDLANE_START_EXTERNAL}) {
    for (const std::int32_t workers : {1, 3}) {
      CAPTURE(start);
      CAPTURE(workers);
      Setup s(40);
      if (start == FEEDLANE_START_SPAWN) s.workers(workers);
      else if (start == FEEDLANE_START_FORK) s.forked(workers, scripted_dataset());
      else s.external(workers);
      const auto begin_all = [&](feedlane_loader* l, Error& e) {
        std::int32_t status = feedlane_loader_begin(l, 0, &e);
        for (std::int32_t w = 0; start == FEEDLANE_START_EXTERNAL && status == FEEDLANE_OK && w < workers; w++) {
          std::int32_t id = -1;
          std::int32_t fd = -1;
          status = feedlane_loader_open_worker(l, &id, &fd, &e);
          if (status == FEEDLANE_OK) external.push_back(std::make_unique<Process>(worker_program, "get", fd));
          if (status == FEEDLANE_OK) {
            (void)::close(fd);
            wait_until_ready(l, w + 1);  // the trainer has its pidfd
          }
        }
        return status;
      };
      const std::size_t before = open_descriptors().size();
      std::size_t own = 0;
      {
        const Loader l = s.create();
        own = open_descriptors().size() - before;
      }
      std::size_t needed = 0;
      {
        const FewDescriptors few(own);
        Loader l;
        Error e;
        REQUIRE(s.try_create(l, &e) == FEEDLANE_E_LIMIT);
        CHECK(std::string(e.argument) == "RLIMIT_NOFILE");
        CHECK(e.found == 0);
        needed = static_cast<std::size_t>(e.needed);
        CHECK(e.says("ulimit -n"));
      }
      CHECK(open_descriptors().size() == before);
      {
        const FewDescriptors few(own + needed - 1);
        Loader l;
        Error e;
        REQUIRE(s.try_create(l, &e) == FEEDLANE_E_LIMIT);
        CHECK(e.found == e.needed - 1);
      }
      {
        const FewDescriptors few(own + needed);
        const Loader l = s.create();
        Error e;
        REQUIRE_MESSAGE(begin_all(l.get(), e) == FEEDLANE_OK, e.text);
        wait_until_ready(l.get(), workers);
        if (start != FEEDLANE_START_EXTERNAL) {
          REQUIRE(::kill(static_cast<pid_t>(worker_of(l.get(), 0).pid), SIGKILL) == 0);
          REQUIRE(eventually([&] {
            (void)feedlane_loader_poll(l.get(), nullptr);
            return stats_of(l.get()).restarts == 1;
          }));
        }
        check_sequence(take_rest(l.get()), 40, 1);
      }
      external.clear();
      {
        const Loader l = s.create();
        const FewDescriptors few(needed - 1);
        Error e;
        CHECK(begin_all(l.get(), e) == FEEDLANE_E_OS);
        CHECK(e.os_errno == EMFILE);
      }
      external.clear();
    }
  }
}

// promise: descriptors-for-workers, descriptors-creation-workers
TEST_CASE("worker threads need no more descriptors than the loader required at its creation") {
  Setup s(40);
  s.connect();
  s.config.start = FEEDLANE_START_THREAD;
  s.config.workers = 3;
  s.config.dataset = &s.dataset;
  feedlane_loader* made = nullptr;
  std::int64_t needed = 0;
  Error e;
  for (std::size_t more = 0; feedlane_loader_create(&s.config, &made, &e) == FEEDLANE_OK && more < 100; more++) {
    (void)feedlane_loader_destroy(&made);
    const FewDescriptors few(more);
    if (feedlane_loader_create(&s.config, &made, &e) == FEEDLANE_OK) break;
    needed = e.code == FEEDLANE_E_LIMIT ? e.needed : needed;
  }
  const Loader l(made);
  REQUIRE(l);
  CHECK(needed >= 3 * 10);
  const FewDescriptors few(static_cast<std::size_t>(needed) - 3 * 5);  // what the threads open by themselves
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) threads.emplace_back([&] { (void)feedlane_worker_run(-1, l.get(), nullptr, nullptr); });
  begin(l.get(), 0);
  wait_until_ready(l.get(), 3);
  check_sequence(take_rest(l.get()), 40, 1);
  (void)feedlane_loader_stop(l.get(), nullptr);
  for (std::thread& t : threads) t.join();
}
