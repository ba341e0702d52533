// SPDX-License-Identifier: Apache-2.0
// Overlapping calls: those that allow one thread at a time answer E_BUSY, the others work; and NULL handles.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "support/events.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// A loader with another thread inside next, in the data set's callback, until `leave`.
struct Occupied {
  Occupied() : setup(6, 2) {
    setup.config.held = 2;
    setup.plan.gate_fd = gate.fd();
    setup.plan.gate_index = 2;
    setup.plan.report_fd = reports.fd();
    loader = setup.create();
    begin(loader.get(), 0);
    held = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(loader.get(), patience_ns, &held, nullptr) == FEEDLANE_OK);
    inside = std::thread([this] { other = feedlane_loader_next(loader.get(), patience_ns, &made, nullptr); });
    for (auto r = reports.wait_for(Report::began); r && r->index != 2;) r = reports.wait_for(Report::began);
  }
  ~Occupied() {
    if (inside.joinable()) leave();
  }
  void leave() {
    gate.open();
    inside.join();
  }
  Gate gate;
  Reports reports;
  Setup setup;
  Loader loader;
  feedlane_batch held{};
  feedlane_batch made = fresh<feedlane_batch>();
  std::int32_t other = -1000;
  std::thread inside;
};

}  // namespace

TEST_CASE("a function for one thread at a time returns E_BUSY during another call and does not disturb that call") {
  Occupied o;
  feedlane_loader* l = o.loader.get();
  auto b = fresh<feedlane_batch>();
  std::int32_t number = -1;
  Error e;
  CHECK(feedlane_loader_next(l, 0, &b, &e) == FEEDLANE_E_BUSY);
  CHECK(e.code == FEEDLANE_E_BUSY);
  CHECK(feedlane_loader_begin(l, 0, &e) == FEEDLANE_E_BUSY);
  CHECK(feedlane_loader_poll(l, &e) == FEEDLANE_E_BUSY);
  CHECK(feedlane_loader_arm(l, nullptr) == FEEDLANE_E_BUSY);
  CHECK(feedlane_loader_stop(l, &e) == FEEDLANE_E_BUSY);
  CHECK(feedlane_loader_open_worker(l, &number, &number, &e) == FEEDLANE_E_BUSY);
  o.leave();
  CHECK(o.other == FEEDLANE_OK);
  CHECK(o.made.batch == 1);
  CHECK(feedlane_batch_release(l, o.made.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l, o.held.token) == FEEDLANE_OK);
  CHECK(take(l).batch == 2);
  CHECK(take(l).status == FEEDLANE_END);
}

TEST_CASE("functions for any thread work during another call") {
  Occupied o;
  feedlane_loader* l = o.loader.get();
  std::int64_t length = 0;
  CHECK(length_of(l, &length) == FEEDLANE_OK);
  CHECK(length == 3);
  CHECK(stats_of(l).batches == 1);
  auto worker = fresh<feedlane_worker_stats>();
  CHECK(observe(l, feedlane_monitor_get_worker_stats, 0, &worker) == FEEDLANE_END);
  CHECK(feedlane_batch_retain(l, o.held.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l, o.held.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l, o.held.token) == FEEDLANE_OK);
  CHECK(feedlane_loader_interrupt(l) == FEEDLANE_OK);
  o.leave();
  CHECK(o.other == FEEDLANE_INTERRUPTED);
}

TEST_CASE("a callback that calls its own loader gets E_BUSY") {
  static feedlane_loader* l;
  static std::int32_t answer, destroyed;
  answer = destroyed = 0;
  Setup s(1);
  s.dataset = fresh<feedlane_dataset>();
  s.dataset.get = [](void*, const feedlane_row*, feedlane_error*) {
    auto b = fresh<feedlane_batch>();
    answer = feedlane_loader_next(l, 0, &b, nullptr);
    feedlane_loader* copy = l;
    destroyed = feedlane_loader_destroy(&copy);
    return copy == l ? 0 : FEEDLANE_E_STATE;
  };
  const Loader loader = s.create();
  l = loader.get();
  begin(l, 0);
  CHECK(take(l).status == FEEDLANE_OK);
  CHECK(answer == FEEDLANE_E_BUSY);
  CHECK_MESSAGE(destroyed == FEEDLANE_E_BUSY, "it would wait for itself");
  CHECK_MESSAGE(take(l).status == FEEDLANE_END, "not closed");
}

TEST_CASE("every function fails with E_ARGUMENT and the argument's name for a NULL handle") {
  auto b = fresh<feedlane_batch>();
  auto stats = fresh<feedlane_stats>();
  auto worker = fresh<feedlane_worker_stats>();
  auto info = fresh<feedlane_worker_info>();
  std::int32_t number = -1;
  std::int64_t length = 0;
  const feedlane_task* task = nullptr;
  const auto refused = [](std::int32_t status, const Error& e, const char* argument) {
    CHECK(status == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == argument);
  };
  Error e;
  refused(feedlane_loader_begin(nullptr, 0, &e), e, "l");
  refused(feedlane_loader_next(nullptr, 0, &b, &e), e, "l");
  refused(feedlane_loader_poll(nullptr, &e), e, "l");
  refused(feedlane_loader_stop(nullptr, &e), e, "l");
  refused(feedlane_loader_open_worker(nullptr, &number, &number, &e), e, "l");
  refused(feedlane_worker_ready(nullptr, 0, nullptr, &e), e, "w");
  refused(feedlane_worker_next(nullptr, 0, &task, &e), e, "w");
  refused(feedlane_task_commit(nullptr, 1, &e), e, "task");
  refused(feedlane_task_fail(nullptr, -1, 0, nullptr, nullptr, &e), e, "task");
  CHECK(feedlane_loader_arm(nullptr, nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_loader_interrupt(nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(length_of(nullptr, &length) == FEEDLANE_E_ARGUMENT);
  CHECK(observe(nullptr, feedlane_monitor_get_stats, &stats) == FEEDLANE_E_ARGUMENT);
  CHECK(observe(nullptr, feedlane_monitor_get_worker_stats, 0, &worker) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_worker_get_info(nullptr, &info) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_worker_check(nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_worker_arm(nullptr, nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_worker_scratch(nullptr, 8, 8) == nullptr);
  CHECK(feedlane_worker_destroy(nullptr) == FEEDLANE_OK);
}

TEST_CASE("a NULL pointer for a result is refused") {
  Setup s(1);
  const Loader l = s.create();
  std::int32_t number = -1;
  Error e;
  CHECK(feedlane_loader_open_worker(l.get(), nullptr, &number, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "id");
  CHECK(feedlane_loader_open_worker(l.get(), &number, nullptr, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "fd");
}
