// SPDX-License-Identifier: Apache-2.0
// A loader without workers: errors of the data set, timeouts and interrupts.
#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

// promise: error-once-in-order
TEST_CASE("a sample's error is reported once, with index, batch, epoch, text and traceback, and other batches follow") {
  Setup s(9, 3);
  s.plan.fail_index = 4;
  s.plan.traceback_bytes = 100;
  s.plan.transient = 1;
  SUBCASE("one sample at a time") {}
  SUBCASE("the whole batch at once") { s.dataset = scripted_fetch_dataset(); }
  const Loader l = s.create();
  begin(l.get(), 2);
  CHECK(take(l.get()).batch == 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
  CHECK(e.code == FEEDLANE_E_SAMPLE);
  CHECK(e.epoch == 2);
  CHECK(e.batch == 1);
  CHECK(e.sample == (s.dataset.fetch == nullptr ? 4 : -1));
  CHECK(e.worker == -1);
  CHECK(e.attempt == 0);
  CHECK(e.transient == 1);
  CHECK(std::string(e.text) == fail_text);
  CHECK(e.detail_len == 100);
  CHECK(e.traceback().substr(0, 28) == "abcdefghijklmnopqrstuvwxyzab");
  const Taken last = take(l.get());
  CHECK(last.batch == 2);
  CHECK(last.indices == std::vector<std::int64_t>{6, 7, 8});
  CHECK(take(l.get()).status == FEEDLANE_END);
  CHECK(stats_of(l.get()).batches == 2);
  CHECK(stats_of(l.get()).slots_free == stats_of(l.get()).slots);
}

// promise: error-details
TEST_CASE("a traceback is cut to the size of the caller's buffer, and detail_len is its whole length") {
  Setup s(1);
  s.plan.fail_index = 0;
  s.plan.traceback_bytes = 1000;
  const Loader l = s.create();
  begin(l.get(), 0);
  SUBCASE("a buffer that is too small") {
    Error e(10);
    e.buffer.resize(20, '#');
    e.detail = e.buffer.data();
    CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
    CHECK(e.detail_len == 1000);
    CHECK(e.detail_cap == 10);
    CHECK(std::string(e.detail, 11) == "abcdefghij#");
  }
  SUBCASE("a buffer of exactly the right size") {
    Error e(1000);
    CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
    CHECK(e.detail_len == 1000);
    CHECK(e.detail[999] == static_cast<char>('a' + 999 % 26));
  }
  SUBCASE("a buffer without room") {
    Error e;
    e.detail = nullptr;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
    CHECK(e.detail_len == 1000);
    CHECK(std::string(e.text) == fail_text);
  }
  SUBCASE("no error struct") { CHECK(take(l.get(), nullptr).status == FEEDLANE_E_SAMPLE); }
}

TEST_CASE("if a callback only returns a number, the error's text contains it") {
  for (const std::int32_t result : {FEEDLANE_E_OS, -77, 1, 99}) {
    CAPTURE(result);
    static std::int32_t to_return;
    to_return = result;
    Setup s(1);
    s.dataset = fresh<feedlane_dataset>();
    s.dataset.get = [](void*, const feedlane_row*, feedlane_error*) { return to_return; };
    const Loader l = s.create();
    begin(l.get(), 0);
    Error e;
    CHECK_MESSAGE(take(l.get(), &e).status == FEEDLANE_E_SAMPLE, "anything but 0 is an error");
    CHECK(e.says("get"));
    CHECK(e.says(std::to_string(result)));
    CHECK(take(l.get()).status == FEEDLANE_END);
  }
}

// promise: next-usable-after-timeout, inline-timeout
TEST_CASE("a timeout between two samples loses no sample: the batch continues after the last sample") {
  Setup s(8, 4);
  const Reports reports;
  s.plan.report_fd = reports.fd();
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  int timeouts = 0;
  for (;;) {
    Taken t = take(l.get(), nullptr, 0);
    if (t.status == FEEDLANE_END) break;
    if (t.status == FEEDLANE_TIMEOUT) {
      REQUIRE(++timeouts < 100);
      continue;
    }
    REQUIRE(t.status == FEEDLANE_OK);
    taken.push_back(std::move(t));
  }
  CHECK_MESSAGE(timeouts == 6, "\"try once\" makes one sample a call");
  check_sequence(taken, 8, 4);
  CHECK(taken[1].seed(3) == feedlane_row_seed(99, 0, 7));
  std::vector<std::int64_t> made;
  for (const Report& r : reports.drain())
    if (r.what == Report::began) made.push_back(r.index);
  const std::vector<std::int64_t> each_once{0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(made == each_once);
}

TEST_CASE("an unfinished batch is abandoned when a new epoch begins") {
  Setup s(8, 4);
  const Loader l = s.create();
  begin(l.get(), 0);
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  check_sequence(take_epoch(l.get(), 1), 8, 4);
  CHECK(stats_of(l.get()).slots_free == stats_of(l.get()).slots);
}

TEST_CASE("interrupt() called one or more times before next() ends only that one call of next()") {
  Setup s(4, 2);
  const Loader l = s.create();
  begin(l.get(), 0);
  CHECK(feedlane_loader_interrupt(l.get()) == FEEDLANE_OK);
  CHECK(feedlane_loader_interrupt(l.get()) == FEEDLANE_OK);
  CHECK(take(l.get()).status == FEEDLANE_INTERRUPTED);
  check_sequence(take_rest(l.get()), 4, 2);
  CHECK(feedlane_loader_interrupt(l.get()) == FEEDLANE_OK);
  CHECK_MESSAGE(take(l.get()).status == FEEDLANE_INTERRUPTED, "at the end too");
  CHECK(take(l.get()).status == FEEDLANE_END);
}

TEST_CASE("an interrupt from another thread ends next between two samples, and no sample is lost") {
  Setup s(4, 4);
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 1;
  s.plan.report_fd = reports.fd();
  const Loader l = s.create();
  begin(l.get(), 0);
  std::thread other([&] {
    for (auto r = reports.wait_for(Report::began); r && r->index != 1;) r = reports.wait_for(Report::began);
    (void)feedlane_loader_interrupt(l.get());
    gate.open();
  });
  const std::int32_t status = take(l.get()).status;
  other.join();
  CHECK(status == FEEDLANE_INTERRUPTED);
  check_sequence(take_rest(l.get()), 4, 4);
}

namespace {
feedlane_loader* to_interrupt;
void interrupt_it(int) { (void)feedlane_loader_interrupt(to_interrupt); }
}  // namespace

TEST_CASE("an interrupt from a signal handler ends next between two samples") {
  Setup s(4, 4);
  static feedlane_dataset scripted;
  scripted = scripted_dataset();
  s.dataset.get = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (row->index == 2) (void)::raise(SIGUSR1);
    return scripted.get(self, row, err);
  };
  const Loader l = s.create();
  to_interrupt = l.get();
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = interrupt_it;
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  begin(l.get(), 0);
  CHECK(take(l.get()).status == FEEDLANE_INTERRUPTED);
  check_sequence(take_rest(l.get()), 4, 4);
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
}
