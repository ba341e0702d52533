// SPDX-License-Identifier: Apache-2.0
// Policies for data sets that make whole batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "semantics/policies.hpp"

using namespace feedlane::test;
using namespace feedlane::test::policies;

namespace {

// The second of two attempts at batch 1 succeeds; what it does then is `make`.
struct Fetched {
  std::int32_t transient = 1;
  std::int32_t attempts = 0;
  std::int32_t failing = 1;
  std::int64_t blamed = -1;                                 // the index that it names
  void (*leave)(const feedlane_task*, Fetched&) = nullptr;  // in every attempt
  std::int32_t left = 0;                                    // what leaving a record was answered
  std::vector<std::int64_t> without;                        // positions of batch 1 that it makes no row of
  const std::uint64_t* made = nullptr;                      // what it says to have made of batch 1
};

std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error* err) {
  auto& f = *static_cast<Fetched*>(self);
  const bool is_it = task->batch == 1;
  if (is_it && f.leave != nullptr) f.leave(task, f);
  if (is_it && f.attempts++ < f.failing) {
    (void)std::snprintf(err->text, sizeof err->text, "no connection");
    err->transient = f.transient;
    err->sample = f.blamed;
    return FEEDLANE_E_OS;
  }
  std::uint64_t row = 0;
  for (std::uint64_t i = 0; i < task->count; i++) {
    if (is_it && std::count(f.without.begin(), f.without.end(), static_cast<std::int64_t>(i)) != 0) continue;
    static_cast<std::int64_t*>(task->tensors[0].data)[row++] = task->indices[i];
  }
  if (is_it && f.made != nullptr) row = *f.made;
  return row == task->count ? FEEDLANE_OK : set_rows(task, row);
}

struct FetchPolicies : Setup {
  explicit FetchPolicies(std::int32_t workers) : Setup(12, 4) {
    auto table = fresh<feedlane_dataset>();
    table.user_data = &fetched;
    table.fetch = fetch;
    forked(workers, table);
    fields({field("index", int64_type)});
    config.retry_backoff_ns = 0;
  }
  Fetched fetched;
};

void skip_second(const feedlane_task* task, Fetched& f) { f.left = fail_sample(task, 1, "second"); }

}  // namespace

// promise: policy-whole-retry
TEST_CASE("a whole batch that fails is retried as a whole, and the record of its retry names no sample") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.retries = 2;
    p.config.retry_backoff_ns = 1;
    p.fetched.failing = 2;
    const Loader l = p.create();
    check_sequence(take_epoch(l.get(), 0), 12, 4);
    const std::vector<Told> told = told_of_samples(l.get(), workers);
    REQUIRE(told.size() == 1);
    CHECK(told[0] == Told(FEEDLANE_EVENT_SAMPLE_RETRIED, 0, 1, -1, 2, 0, FEEDLANE_E_OS, "no connection"));
    CHECK(stats_of(l.get()).retried == 1);
  }
}

// promise: policy-whole-retry
TEST_CASE("a whole batch that keeps failing fails with E_SAMPLE, and no sample is skipped") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.skip_budget = -1;
    p.fetched.transient = 0;
    p.fetched.failing = 1000;
    const Loader l = p.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    REQUIRE(taken.size() == 3);
    CHECK(taken[1].status == FEEDLANE_E_SAMPLE);
    CHECK(taken[1].sample == -1);
    CHECK(stats_of(l.get()).skipped == 0);
  }
}

// promise: policy-whole-retry
TEST_CASE(
    "a data set that makes whole batches may name the sample that failed; an index outside the batch is ignored") {
  for (const std::int32_t workers : {0, 2})
    for (const std::int64_t blamed : {4, 6, 7, 3, 8, -2}) {
      CAPTURE(workers);
      CAPTURE(blamed);
      FetchPolicies p(workers);
      p.config.retries = 1;
      p.fetched.failing = 1000;
      p.fetched.blamed = blamed;
      const Loader l = p.create();
      begin(l.get(), 0);
      const std::vector<Taken> taken = take_outcomes(l.get());
      REQUIRE(taken.size() == 3);
      CHECK(taken[1].status == FEEDLANE_E_SAMPLE);
      CHECK(taken[1].text == "no connection");
      CHECK_MESSAGE(taken[1].sample == (blamed >= 4 && blamed < 8 ? blamed : -1), "batch 1 has 4 to 7");
    }
}

// promise: policy-whole-retry
TEST_CASE("a data set that makes whole batches reports skipped samples one by one") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.skip_budget = 3;
    p.fetched.failing = 0;
    p.fetched.without = {1};
    p.fetched.leave = skip_second;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    REQUIRE(taken.size() == 3);
    CHECK(taken[1].indices == std::vector<std::int64_t>{4, 6, 7});
    CHECK(taken[1].skipped == std::vector<std::int64_t>{5});
    check_rows(taken);
    const std::vector<Told> told = told_of_samples(l.get(), workers);
    REQUIRE(told.size() == 1);
    CHECK(told[0] == Told(FEEDLANE_EVENT_SAMPLE_SKIPPED, 0, 1, 5, 0, 0, FEEDLANE_E_OS, "second"));
  }
}

// promise: policy-whole-skip
TEST_CASE("a whole batch with no rows, or with more rows than requested, fails with E_SAMPLE and the number of rows") {
  for (const std::int32_t workers : {0, 2})
    for (const std::uint64_t made : {std::uint64_t{0}, std::uint64_t{5}, UINT64_MAX}) {
      CAPTURE(workers);
      CAPTURE(made);
      FetchPolicies p(workers);
      p.fetched.failing = 0;
      p.fetched.made = &made;
      const Loader l = p.create();
      begin(l.get(), 0);
      REQUIRE(take(l.get()).status == FEEDLANE_OK);
      Error e;
      CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
      CHECK(std::string(e.text).find("fetch made " + std::to_string(made) + " rows") != std::string::npos);
      CHECK(take(l.get()).status == FEEDLANE_OK);
      CHECK(take(l.get()).status == FEEDLANE_END);
    }
}

// promise: policy-whole-skip
TEST_CASE("a data set that makes whole batches may skip all samples of a batch") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.skip_budget = 4;
    p.fetched.failing = 0;
    p.fetched.without = {0, 1, 2, 3};
    p.fetched.leave = [](const feedlane_task* task, Fetched& f) {
      for (std::uint64_t i = 0; i < task->count; i++) f.left = fail_sample(task, i, "all");
    };
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    REQUIRE(taken.size() == 2);
    CHECK(taken[0].batch == 0);
    CHECK(taken[1].batch == 2);
    CHECK(stats_of(l.get()).skipped == 4);
    CHECK(stats_of(l.get()).restarts == 0);
  }
}

// promise: policy-whole-skip
TEST_CASE("a whole batch with more rows than samples that are not skipped fails alone, with E_SAMPLE") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.skip_budget = 3;
    p.fetched.failing = 0;
    p.fetched.leave = skip_second;
    const Loader l = p.create();
    begin(l.get(), 0);
    CHECK(take(l.get()).status == FEEDLANE_OK);
    Error e;
    CHECK(take(l.get(), &e).status == FEEDLANE_E_SAMPLE);
    CHECK(e.batch == 1);
    CHECK(e.says("4 rows"));
    CHECK(take(l.get()).status == FEEDLANE_OK);
    CHECK(take(l.get()).status == FEEDLANE_END);
    CHECK(stats_of(l.get()).restarts == 0);
  }
}

// promise: policy-whole-retry
TEST_CASE("a retried whole batch has the records of its last attempt, and a record of the retry") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.skip_budget = 3;
    p.config.retries = 1;
    p.config.retry_backoff_ns = 1;
    p.fetched.without = {1};
    p.fetched.leave = skip_second;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    REQUIRE(taken.size() == 3);
    CHECK(taken[1].attempt == 0);
    CHECK(taken[1].indices == std::vector<std::int64_t>{4, 6, 7});
    CHECK(taken[1].skipped == std::vector<std::int64_t>{5});
    check_rows(taken);
    const std::vector<Told> told = told_of_samples(l.get(), workers);
    REQUIRE(told.size() == 2);
    CHECK(told[0] == Told(FEEDLANE_EVENT_SAMPLE_SKIPPED, 0, 1, 5, 0, 0, FEEDLANE_E_OS, "second"));
    CHECK(told[1] == Told(FEEDLANE_EVENT_SAMPLE_RETRIED, 0, 1, -1, 1, 0, FEEDLANE_E_OS, "no connection"));
    CHECK(stats_of(l.get()).invalid_results == 0);
  }
}

// promise: policy-whole-retry
TEST_CASE("a retried batch is yielded although the records of its samples leave no room for a record of the retry") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.skip_budget = 4;
    p.config.retries = 1;
    p.config.retry_backoff_ns = 1;
    p.fetched.leave = [](const feedlane_task* task, Fetched&) {
      for (std::uint64_t i = 0; i < task->count; i++) CHECK(fail_sample(task, i, "", true) == FEEDLANE_AGAIN);
    };
    const Loader l = p.create();
    check_sequence(take_epoch(l.get(), 0), 12, 4);
    CHECK(told_of_samples(l.get(), workers).size() >= 4);
    CHECK(stats_of(l.get()).restarts == 0);
  }
}

// promise: policy-records
TEST_CASE("a failed sample out of order, or outside the batch, is refused with the argument's name") {
  struct Row {
    std::uint64_t position;
    std::int32_t status;
    const char* argument;
  };
  static const Row rows[] = {
      {4, FEEDLANE_E_ARGUMENT, "position"},
      {UINT64_MAX - 1, FEEDLANE_E_ARGUMENT, "position"},
      {2, FEEDLANE_AGAIN, ""},
      {1, FEEDLANE_E_ARGUMENT, "position"},
      {2, FEEDLANE_E_ARGUMENT, "position"},
      {3, FEEDLANE_AGAIN, ""},
      {3, FEEDLANE_E_SAMPLE, ""},
      {3, FEEDLANE_E_ARGUMENT, "position"},
  };
  FetchPolicies p(0);
  p.config.retries = 1;
  p.fetched.failing = 0;
  p.fetched.leave = [](const feedlane_task* task, Fetched&) {
    for (const Row& r : rows) {
      CAPTURE(r.position);
      Error e;
      CHECK(fail_sample(task, r.position, "text", true, nullptr, nullptr, nullptr, &e) == r.status);
      CHECK(std::string(e.argument) == r.argument);
    }
  };
  const Loader l = p.create();
  check_sequence(take_epoch(l.get(), 0), 12, 4);
  CHECK(told_of_samples(l.get(), 0).size() == 2);
}

// promise: policy-records
TEST_CASE("of a data set that makes whole batches, the library decides on failed samples and records the outcome") {
  struct Answers {
    std::int32_t status = FEEDLANE_OK;
    std::vector<std::uint32_t> tries;
  };
  const auto answer = [](void* self, std::int64_t failed, std::uint64_t, std::uint32_t tries, std::int64_t* other,
                         feedlane_error*) {
    auto& a = *static_cast<Answers*>(self);
    a.tries.push_back(tries);
    *other = failed + 100;
    return a.status;
  };
  static feedlane_dataset_substitute_fn substitute;
  substitute = answer;
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    FetchPolicies p(workers);
    p.config.retries = 1;
    p.config.retry_backoff_ns = 5;
    p.config.substitute = 1;
    p.config.skip_budget = -1;
    p.dataset.substitute = answer;
    p.config.batch_size = 6;
    p.fetched.failing = 0;
    p.fetched.without = {2, 3, 4};
    p.fetched.leave = [](const feedlane_task* task, Fetched& f) {
      Answers a;
      std::int64_t index = 0;
      const auto fail = [&](std::uint64_t position, bool is_transient) {
        return fail_sample(task, position, "bad", is_transient, substitute, &a, &index);
      };
      // Retried, then made.
      f.left = fail(0, true) == FEEDLANE_AGAIN && index == task->indices[0] && a.tries.empty() ? 0 : 1;
      // A substitute that fails is retried, and has a substitute.
      for (const bool is_transient : {false, true, true}) f.left += fail(1, is_transient) == FEEDLANE_AGAIN ? 0 : 1;
      f.left += index == task->indices[1] + 200 && a.tries == std::vector<std::uint32_t>{0, 1} ? 0 : 1;
      // At most 16 substitutes, then the sample is skipped.
      a.tries.clear();
      std::int32_t status = FEEDLANE_AGAIN;
      while (status == FEEDLANE_AGAIN) status = fail(2, false);
      f.left += status == FEEDLANE_OK && a.tries.size() == 16 ? 0 : 1;
      // No substitute.
      a.status = FEEDLANE_END;
      f.left += fail(3, false) == FEEDLANE_OK ? 0 : 1;
      // The substitute function wants to stop: nothing is decided.
      a.status = FEEDLANE_INTERRUPTED;
      f.left += fail(4, false) == FEEDLANE_INTERRUPTED ? 0 : 1;
      f.left += fail_sample(task, 4, "bad") == FEEDLANE_OK ? 0 : 1;
    };
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    REQUIRE(taken.size() == 2);
    if (workers == 0) CHECK(p.fetched.left == 0);
    CHECK(taken[1].indices == std::vector<std::int64_t>{6, 207, 11});
    CHECK(taken[1].skipped == std::vector<std::int64_t>{8, 9, 10});
    const std::vector<Told> told = told_of_samples(l.get(), workers);
    REQUIRE(told.size() == 5);
    CHECK(told[0] == Told(FEEDLANE_EVENT_SAMPLE_RETRIED, 0, 1, 6, 1, 0, FEEDLANE_E_OS, "bad"));
    CHECK(std::get<0>(told[1]) == FEEDLANE_EVENT_SAMPLE_SUBSTITUTED);
    for (const std::size_t i : {2U, 3U, 4U}) CHECK(std::get<0>(told[i]) == FEEDLANE_EVENT_SAMPLE_SKIPPED);
    CHECK(stats_of(l.get()).restarts == 0);
  }
}
