// SPDX-License-Identifier: Apache-2.0
// Errors of the data set in worker processes.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

// promise: error-once-in-order, error-details, error-then-continue
TEST_CASE("a failed batch is reported once, in order, with worker, sample, text and traceback, and the rest follows") {
  for (const char* form : {"get", "fetch", "pull"}) {
    CAPTURE(std::string(form));
    Setup s(20, 2);
    s.workers(3, form);
    s.plan.fail_index = 7;
    s.plan.traceback_bytes = 400;
    s.plan.transient = 1;
    const Loader l = s.create();
    begin(l.get(), 4);
    for (std::int64_t batch = 0; batch < 10; batch++) {
      Error e;
      const Taken t = take(l.get(), &e);
      if (batch != 3) {
        REQUIRE(t.status == FEEDLANE_OK);
        CHECK(t.batch == batch);
        continue;
      }
      CHECK(t.status == FEEDLANE_E_SAMPLE);
      CHECK(e.code == FEEDLANE_E_SAMPLE);
      CHECK(e.epoch == 4);
      CHECK(e.batch == 3);
      CHECK(e.sample == (std::string(form) == "fetch" ? -1 : 7));
      CHECK(e.worker >= 0);
      CHECK(e.worker < 3);
      CHECK(e.attempt == 0);
      CHECK(e.transient == 1);
      CHECK(std::string(e.text) == fail_text);
      CHECK(e.detail_len == 400);
      CHECK(e.traceback().substr(0, 3) == "abc");
      CHECK(e.traceback().substr(398) == std::string({'a' + 398 % 26, 'a' + 399 % 26}));
      std::uint64_t errors = 0;
      for (std::int32_t w = 0; w < 3; w++) errors += worker_of(l.get(), w).errors;
      CHECK(errors == 1);
    }
    CHECK(take(l.get()).status == FEEDLANE_END);
    CHECK_MESSAGE(stats_of(l.get()).restarts == 0, "the worker survives");
    CHECK(stats_of(l.get()).batches == 9);
  }
}

// promise: error-then-continue, error-per-batch, torch-each-batch-error
TEST_CASE("next returns one error for each failing batch, and then ends the epoch with END") {
  Setup s(12, 3);
  s.workers(2);
  s.plan.fail_index = 4;
  s.config.keep_workers = 1;
  const Loader l = s.create();
  for (std::int64_t epoch = 0; epoch < 3; epoch++) {
    begin(l.get(), epoch);
    int errors = 0;
    int batches = 0;
    for (;;) {
      const std::int32_t status = take(l.get()).status;
      if (status == FEEDLANE_END) break;
      REQUIRE((status == FEEDLANE_OK || status == FEEDLANE_E_SAMPLE));
      (status == FEEDLANE_OK ? batches : errors)++;
    }
    CHECK(errors == 1);
    CHECK(batches == 3);
  }
}

// promise: loader-inline, error-details
TEST_CASE("an error has the same contents with and without workers") {
  for (const std::int64_t sample : {0, 5}) {
    CAPTURE(sample);
    const auto error_of = [sample](std::int32_t workers, Error& e) {
      Setup s(8, 4);
      if (workers > 0) s.workers(workers);
      s.plan.fail_index = sample;
      s.plan.traceback_bytes = 60;
      s.plan.transient = 1;
      const Loader l = s.create();
      begin(l.get(), 1);
      if (sample >= 4) CHECK(take(l.get()).status == FEEDLANE_OK);
      CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
    };
    Error alone;
    Error with_workers;
    error_of(0, alone);
    error_of(2, with_workers);
    CHECK(std::string(alone.text) == std::string(with_workers.text));
    CHECK(alone.traceback() == with_workers.traceback());
    CHECK(alone.transient == with_workers.transient);
    CHECK(alone.epoch == with_workers.epoch);
    CHECK(alone.batch == with_workers.batch);
    CHECK(alone.sample == with_workers.sample);
    CHECK(alone.attempt == with_workers.attempt);
    CHECK(alone.worker == -1);
    CHECK(with_workers.worker >= 0);
    CHECK(alone.sample == sample);
  }
}

// promise: error-open-reported, torch-open-errors, worker-cant-open
TEST_CASE("if a data set can't be opened, the first next returns E_INIT with the worker's number and its text") {
  for (const char* form : {"get", "pull"}) {
    CAPTURE(std::string(form));
    Setup s(8);
    s.workers(1, form);
    s.plan.fail_open = 0;
    const Loader l = s.create();
    // Many times: the worker says why and ends at once, and the trainer may see its end first.
    for (std::int64_t epoch = 0; epoch < 12; epoch++) {
      begin(l.get(), epoch);
      for (int i = 0; i < 2; i++) {
        Error e;
        CHECK_MESSAGE(take(l.get(), &e).status == FEEDLANE_E_INIT, "repeated until begin");
        CHECK(e.worker == 0);
        CHECK(e.says(fail_open_text));
      }
    }
    CHECK(stats_of(l.get()).batches == 0);
    CHECK_MESSAGE(stats_of(l.get()).restarts == 0, "a worker that can't open its data set is not restarted");
  }
}

// promise: error-open-repeated
TEST_CASE("after a data set couldn't be opened, next returns E_INIT until begin, even if other workers make batches") {
  Setup s(8);
  s.workers(2);
  const Gate gate;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = -2;
  s.plan.fail_open = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(e.worker == 1);
  gate.open();
  // Until the other worker has made the whole window, what the first had been given included.
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return worker_of(l.get(), 0).tasks == 4;
  }));
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(stats_of(l.get()).batches == 0);
}

// promise: error-open-repeated
TEST_CASE("a worker that has reported a failure to open its data set gets END from its next call") {
  Setup s(8);
  s.workers(1, "refuse");
  const Reports reports;
  s.plan.report_fd = reports.fd();
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(e.worker == 0);
  CHECK(e.text[0] != '\0');
  const auto end = reports.next();
  REQUIRE(end);
  CHECK_MESSAGE(end->what == Report::closed, "it gets no task, and doesn't wait for one");
}
