// SPDX-License-Identifier: Apache-2.0
// Shared loaders: a feeder with too few descriptors.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "semantics/sharing.hpp"
#include "support/events.hpp"
#include "support/few_descriptors.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

// promise: descriptors-elsewhere, descriptors-consumer-path
TEST_CASE("a feeder without descriptors for a joining consumer warns, sleeps, and admits it when there are enough") {
  const std::string path = "/tmp/feedlane-scarcity-" + std::to_string(::getpid());
  Setup s(8);
  s.workers(1);
  s.config.share = FEEDLANE_SHARE_EVERY;
  s.config.consumers = 1;
  s.config.share_path = path.c_str();
  const Loader feeder = s.create();
  Child child({}, [&](Findings& f) {
    feedlane_loader* l = nullptr;
    Error e;
    f.expect(feedlane_loader_join(-1, path.c_str(), nullptr, patience_ns, &l, &e) == FEEDLANE_OK, e.text, __LINE__);
    EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
  });
  std::vector<feedlane_event> told;
  {
    const FewDescriptors few(0);
    REQUIRE(eventually([&] {
      CHECK(feedlane_loader_serve(feeder.get(), 10'000'000, nullptr) == FEEDLANE_TIMEOUT);
      for (const feedlane_event& e : events_of(feeder.get(), FEEDLANE_EVENT_WARNING)) told.push_back(e);
      return !told.empty();
    }));
    CHECK(told[0].what.os_errno == EMFILE);
    const std::int64_t before = cpu_ns();
    constexpr std::int64_t wait_ns = 300'000'000;
    CHECK(feedlane_loader_serve(feeder.get(), wait_ns, nullptr) == FEEDLANE_TIMEOUT);
    CHECK(cpu_ns() - before < wait_ns / 10);
  }
  CHECK(feedlane_loader_serve(feeder.get(), patience_ns, nullptr) == FEEDLANE_END);
  CHECK(child.finish() == "");
}

// promise: descriptors-elsewhere, feeder-failed-begin
TEST_CASE("a begin that fails in mid-epoch for lack of descriptors stops the consumers' epoch, and can be repeated") {
  Setup s(800);
  s.workers(1);
  s.config.share = FEEDLANE_SHARE_EVERY;
  s.config.consumers = 1;
  const Loader feeder = s.create();
  std::int32_t id = -1, fd = -1;
  REQUIRE(feedlane_loader_open_consumer(feeder.get(), nullptr, &id, &fd, nullptr) == FEEDLANE_OK);
  feedlane_loader* joined = nullptr;
  REQUIRE(feedlane_loader_join(fd, nullptr, nullptr, patience_ns, &joined, nullptr) == FEEDLANE_OK);
  const Loader l(joined);
  const auto polled = [&] {
    std::int32_t status = FEEDLANE_TIMEOUT;
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(feeder.get(), nullptr);
      return (status = take(l.get(), nullptr, 0).status) != FEEDLANE_TIMEOUT;
    }));
    return status;
  };
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(polled() == FEEDLANE_OK);
  {
    const FewDescriptors few(0);
    const auto pid = static_cast<pid_t>(worker_of(feeder.get(), 0).pid);
    REQUIRE(::kill(pid, SIGKILL) == 0);
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(feeder.get(), nullptr);
      return worker_of(feeder.get(), 0).state == FEEDLANE_WORKER_NONE;
    }));
    CHECK(feedlane_loader_begin(feeder.get(), 1, nullptr) == FEEDLANE_E_OS);
  }
  std::int32_t status = FEEDLANE_OK;
  while (status == FEEDLANE_OK) status = polled();
  CHECK(status == FEEDLANE_E_STATE);
  begin(feeder.get(), 1);
  begin(l.get(), 1);
  CHECK(polled() == FEEDLANE_OK);
}
