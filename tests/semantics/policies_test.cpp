// SPDX-License-Identifier: Apache-2.0
// What becomes of samples that fail: raised, retried, replaced, left out. The same inline and in worker processes.
#include <doctest/doctest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "semantics/policies.hpp"

using namespace feedlane::test;
using namespace feedlane::test::policies;

namespace {

std::int64_t now_ns() {
  timespec t{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Which samples fail, and how often. A forked worker has its own copy, and counts for itself.
struct Broken {
  std::vector<std::int64_t> indices;
  std::int32_t failures = 1'000'000;  // calls for one index that fail before one succeeds
  std::int32_t transient = 0;
  std::int64_t substitute_step = 1;
  std::uint32_t most_substitutes = 1'000'000;
  std::string text = "sample is broken";
  std::map<std::int64_t, std::int32_t> calls;
  std::map<std::int64_t, std::int64_t> since_ns;
};

constexpr std::int32_t broken_code = FEEDLANE_E_CORRUPT;

std::int32_t fail(const Broken& broken, feedlane_error* err) {
  (void)std::snprintf(err->text, sizeof err->text, "%s", broken.text.c_str());
  err->transient = broken.transient;
  return broken_code;
}

bool fails(Broken& broken, std::int64_t index) {
  return std::count(broken.indices.begin(), broken.indices.end(), index) != 0 &&
         broken.calls[index]++ < broken.failures;
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  auto& broken = *static_cast<Broken*>(self);
  const std::int64_t now = now_ns();
  const std::int64_t waited = now - broken.since_ns.emplace(row->index, now).first->second;
  if (fails(broken, row->index)) return fail(broken, err);
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  std::memcpy(row->fields[1], &row->seed, sizeof row->seed);
  std::memcpy(row->fields[2], &waited, sizeof waited);
  return FEEDLANE_OK;
}

std::int32_t substitute(void* self, std::int64_t failed, std::uint64_t, std::uint32_t tries, std::int64_t* other,
                        feedlane_error*) {
  const auto& broken = *static_cast<Broken*>(self);
  if (tries >= broken.most_substitutes) return FEEDLANE_E_ARGUMENT;
  *other = failed + broken.substitute_step;
  return FEEDLANE_OK;
}

struct Policies : Setup {
  Policies(std::int64_t samples, std::int64_t batch_size, std::int32_t workers) : Setup(samples, batch_size) {
    auto table = fresh<feedlane_dataset>();
    table.user_data = &broken;
    table.get = get;
    table.substitute = substitute;
    forked(workers, table);
    fields({field("index", int64_type), field("seed", uint64_type), field("waited", int64_type)});
    config.retry_backoff_ns = 0;
  }
  Broken broken;
};

std::vector<std::int64_t> all_indices(const std::vector<Taken>& taken) {
  std::vector<std::int64_t> all;
  for (const Taken& t : taken) all.insert(all.end(), t.indices.begin(), t.indices.end());
  return all;
}

const std::vector<std::int64_t> one_in_a_hundred{7, 107, 207, 307};

}  // namespace

// promise: error-per-batch, policy-default-off
TEST_CASE("without policies a failing sample fails its batch with E_SAMPLE, and no record is made") {
  for (const std::int32_t workers : {0, 1, 4}) {
    CAPTURE(workers);
    Policies p(400, 8, workers);
    p.broken.indices = one_in_a_hundred;
    const Loader l = p.create();
    begin(l.get(), 3);
    const std::vector<Taken> taken = take_outcomes(l.get());
    REQUIRE(taken.size() == 50);
    std::vector<std::int64_t> failed;
    for (std::size_t i = 0; i < taken.size(); i++) {
      CHECK(taken[i].batch == static_cast<std::int64_t>(i));
      if (taken[i].status == FEEDLANE_OK) continue;
      CHECK(taken[i].status == FEEDLANE_E_SAMPLE);
      CHECK(taken[i].batch == taken[i].sample / 8);
      CHECK(taken[i].text == "sample is broken");
      failed.push_back(taken[i].sample);
    }
    CHECK(failed == one_in_a_hundred);
    CHECK(told_of_samples(l.get(), workers).empty());
    const feedlane_stats stats = stats_of(l.get());
    CHECK(stats.batches == 46);
    CHECK(stats.skipped + stats.retried + stats.substituted == 0);
  }
}

// promise: policy-skip-named, policy-skip-map-style, policy-default-off, policy-records
TEST_CASE("with a skip budget a batch lists the indices that are missing, and each of them has a record") {
  for (const std::int32_t workers : {0, 1, 4}) {
    CAPTURE(workers);
    Policies p(400, 8, workers);
    p.broken.indices = one_in_a_hundred;
    p.config.skip_budget = 4;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 3);
    REQUIRE(taken.size() == 50);
    check_rows(taken);
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < 400; i++)
      if (i % 100 != 7) expected.push_back(i);
    CHECK(all_indices(taken) == expected);
    for (const Taken& t : taken) {
      const bool has_broken = std::any_of(one_in_a_hundred.begin(), one_in_a_hundred.end(),
                                          [&](std::int64_t index) { return index / 8 == t.batch; });
      CHECK(t.count == (has_broken ? 7 : 8));
      CHECK(t.shapes[0] == std::vector<std::int64_t>{static_cast<std::int64_t>(t.count)});
      CHECK(t.skipped.size() == (has_broken ? 1 : 0));
      if (has_broken) CHECK(t.skipped[0] % 100 == 7);
      for (std::size_t row = 0; row < t.count; row++)
        CHECK_MESSAGE(t.seed(row) == feedlane_row_seed(99, 3, t.indices[row]), "the seed is the sample's");
    }
    std::vector<Told> told;
    for (const std::int64_t index : one_in_a_hundred)
      told.emplace_back(FEEDLANE_EVENT_SAMPLE_SKIPPED, 3, index / 8, index, 0, 0, broken_code, "sample is broken");
    CHECK(told_of_samples(l.get(), workers) == told);
    CHECK(stats_of(l.get()).skipped == 4);
    CHECK(stats_of(l.get()).samples == 396);
  }
}

// promise: policy-skip-named
TEST_CASE("a batch lists all samples that were skipped in it, in order") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Policies p(10, 5, workers);
    p.broken.indices = {0, 2, 3, 9};
    p.config.skip_budget = 4;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    REQUIRE(taken.size() == 2);
    check_rows(taken);
    CHECK(taken[0].indices == std::vector<std::int64_t>{1, 4});
    CHECK(taken[0].skipped == std::vector<std::int64_t>{0, 2, 3});
    CHECK(taken[1].indices == std::vector<std::int64_t>{5, 6, 7, 8});
    CHECK(taken[1].skipped == std::vector<std::int64_t>{9});
  }
}

// promise: policy-retry, policy-default-off
TEST_CASE("with retries a sample that fails with a transient error is retried, and no sample is missing") {
  for (const std::int32_t workers : {0, 1, 4}) {
    CAPTURE(workers);
    Policies p(400, 8, workers);
    p.broken.indices = one_in_a_hundred;
    p.broken.failures = 2;
    p.broken.transient = 1;
    p.config.retries = 2;
    p.config.retry_backoff_ns = 1'000'000;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_sequence(taken, 400, 8);
    std::vector<Told> told;
    for (const std::int64_t index : one_in_a_hundred)
      told.emplace_back(FEEDLANE_EVENT_SAMPLE_RETRIED, 0, index / 8, index, 2, 0, broken_code, "sample is broken");
    CHECK(told_of_samples(l.get(), workers) == told);
    CHECK(stats_of(l.get()).retried == 4);
  }
}

// promise: policy-substitute, policy-default-off
TEST_CASE("with substitutes another index replaces a failing sample, and the row keeps its seed") {
  for (const std::int32_t workers : {0, 1, 4}) {
    CAPTURE(workers);
    Policies p(400, 8, workers);
    p.broken.indices = one_in_a_hundred;
    p.config.substitute = 1;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_rows(taken);
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < 400; i++) expected.push_back(i % 100 == 7 ? i + 1 : i);
    CHECK(all_indices(taken) == expected);
    CHECK(taken[0].seed(7) == feedlane_row_seed(99, 0, 7));
    std::vector<Told> told;
    for (const std::int64_t index : one_in_a_hundred)
      told.emplace_back(FEEDLANE_EVENT_SAMPLE_SUBSTITUTED, 0, index / 8, index, 0, index + 1, broken_code,
                        "sample is broken");
    CHECK(told_of_samples(l.get(), workers) == told);
    CHECK(stats_of(l.get()).substituted == 4);
    CHECK(stats_of(l.get()).skipped == 0);
  }
}

// promise: policy-order
TEST_CASE("policies apply in this order: retries, then substitutes with retries of their own, then skip") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    for (const std::uint32_t most : {2u, 1u}) {
      CAPTURE(most);
      Policies p(12, 4, workers);
      p.broken.indices = {5, 1005};
      p.broken.substitute_step = 1000;
      p.broken.most_substitutes = most;
      p.broken.transient = 1;
      p.config.retries = 3;
      p.config.retry_backoff_ns = 1;
      p.config.substitute = 1;
      p.config.skip_budget = 1;
      const Loader l = p.create();
      const std::vector<Taken> taken = take_epoch(l.get(), 0);
      REQUIRE(taken.size() == 3);
      check_rows(taken);
      const std::vector<std::int64_t> with{4, 2005, 6, 7};
      const std::vector<std::int64_t> without{4, 6, 7};
      CHECK(taken[1].indices == (most == 2 ? with : without));
      CHECK(taken[1].skipped.size() == (most == 2 ? 0 : 1));
      const std::vector<Told> told = told_of_samples(l.get(), workers);
      REQUIRE(told.size() == 1);
      const Told expected =
          most == 2 ? Told(FEEDLANE_EVENT_SAMPLE_SUBSTITUTED, 0, 1, 5, 6, 2005, broken_code, "sample is broken")
                    : Told(FEEDLANE_EVENT_SAMPLE_SKIPPED, 0, 1, 5, 6, 0, broken_code, "sample is broken");
      CHECK(told[0] == expected);
      CHECK_MESSAGE(stats_of(l.get()).retried == 1, "a sample counts once");
    }
  }
}

// promise: policy-order
TEST_CASE("a sample that no policy can recover fails its batch with E_SAMPLE, and its retries are reported") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Policies p(12, 4, workers);
    p.broken.indices = {6};
    p.broken.transient = 1;
    p.broken.most_substitutes = 0;
    p.config.retries = 2;
    p.config.retry_backoff_ns = 1;
    p.config.substitute = 1;
    const Loader l = p.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    REQUIRE(taken.size() == 3);
    CHECK(taken[1].status == FEEDLANE_E_SAMPLE);
    CHECK(taken[1].sample == 6);
    CHECK(taken[1].text == "sample is broken");
    const std::vector<Told> told = told_of_samples(l.get(), workers);
    REQUIRE(told.size() == 1);
    CHECK(told[0] == Told(FEEDLANE_EVENT_SAMPLE_RETRIED, 0, 1, 6, 2, 0, broken_code, "sample is broken"));
  }
}

// promise: policy-retry
TEST_CASE("an error that isn't transient is never retried") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Policies p(4, 1, workers);
    p.broken.indices = {2};
    p.broken.failures = 1;
    p.config.retries = 5;
    const Loader l = p.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    REQUIRE(taken.size() == 4);
    CHECK(taken[2].status == FEEDLANE_E_SAMPLE);
    CHECK(told_of_samples(l.get(), workers).empty());
    CHECK(stats_of(l.get()).retried == 0);
  }
}

// promise: policy-retry
TEST_CASE("each retry waits twice as long as the one before") {
  for (const std::int32_t workers : {0, 1}) {
    CAPTURE(workers);
    Policies p(3, 1, workers);
    p.broken.indices = {1};
    p.broken.failures = 3;
    p.broken.transient = 1;
    p.config.retries = 3;
    p.config.retry_backoff_ns = 10'000'000;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    REQUIRE(taken.size() == 3);
    CHECK(taken[1].value("waited") >= 70'000'000);
    CHECK(taken[0].value("waited") == 0);
  }
}

// promise: inline-timeout
TEST_CASE("without workers a timeout ends the wait for a retry, and no sample is lost") {
  Policies p(4, 2, 0);
  p.broken.indices = {1};
  p.broken.failures = 1;
  p.broken.transient = 1;
  p.config.retries = 1;
  p.config.retry_backoff_ns = 20'000'000;
  const Loader l = p.create();
  begin(l.get(), 0);
  Taken first;
  int timeouts = 0;
  do first = take(l.get(), nullptr, 1'000'000);
  while (first.status == FEEDLANE_TIMEOUT && ++timeouts < 100000);
  CHECK(timeouts >= 1);
  CHECK(first.status == FEEDLANE_OK);
  CHECK(first.indices == std::vector<std::int64_t>{0, 1});
  CHECK(first.value("waited", 1) >= 20'000'000);
  CHECK(take_rest(l.get()).size() == 1);
  CHECK(stats_of(l.get()).retried == 1);
}

// promise: inline-timeout
TEST_CASE("without workers a signal ends the wait for a retry, and no sample is lost") {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  Policies p(4, 2, 0);
  p.broken.indices = {1};
  p.broken.failures = 1;
  p.broken.transient = 1;
  p.config.retries = 1;
  p.config.retry_backoff_ns = 200'000'000;
  const Loader l = p.create();
  begin(l.get(), 0);
  std::atomic<bool> done{false};
  std::thread other([&, trainer = ::pthread_self()] {
    while (!done) {
      (void)::pthread_kill(trainer, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  auto b = fresh<feedlane_batch>();
  const std::int32_t status = feedlane_loader_next(l.get(), FEEDLANE_FOREVER, &b, nullptr);
  done = true;
  other.join();
  CHECK(status == FEEDLANE_INTERRUPTED);
  const Taken first = take(l.get());
  CHECK(first.status == FEEDLANE_OK);
  CHECK(first.indices == std::vector<std::int64_t>{0, 1});
  CHECK(take_rest(l.get()).size() == 1);
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
}

// promise: policy-skip-named
TEST_CASE(
    "a failing sample beyond the skip budget fails its batch with E_SAMPLE, and each epoch has the whole budget") {
  for (const std::int32_t workers : {0, 1, 4}) {
    CAPTURE(workers);
    Policies p(40, 4, workers);
    p.broken.indices = {3, 13, 23, 33};
    p.config.skip_budget = 2;
    const Loader l = p.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      begin(l.get(), epoch);
      const std::vector<Taken> taken = take_outcomes(l.get());
      REQUIRE(taken.size() == 10);
      for (const Taken& t : taken) {
        CAPTURE(t.batch);
        CHECK(t.status == (t.batch == 5 || t.batch == 8 ? FEEDLANE_E_SAMPLE : FEEDLANE_OK));
        CHECK(t.skipped.size() == (t.batch == 0 || t.batch == 3 ? 1 : 0));
        if (t.status == FEEDLANE_OK) continue;
        CHECK(t.argument == "config.skip_budget");
        CHECK(t.found == 3);
        CHECK(t.needed == 2);
        CHECK(t.sample == (t.batch == 5 ? 23 : 33));
        CHECK(t.text.find("sample is broken") == 0);
      }
      CHECK(told_of_samples(l.get(), workers).size() == 2);
    }
    CHECK(stats_of(l.get()).skipped == 4);
  }
}

// promise: policy-skip-named
TEST_CASE("a batch whose samples were all skipped is not yielded, at any position in the epoch") {
  for (const std::int32_t workers : {0, 1, 4})
    for (const std::int32_t out_of_order : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(out_of_order);
      Policies p(22, 4, workers);
      p.broken.indices = {0, 1, 2, 3, 8, 9, 10, 11, 17, 20, 21};
      p.config.skip_budget = -1;
      p.config.out_of_order = out_of_order;
      const Loader l = p.create();
      std::vector<Taken> taken = take_epoch(l.get(), 0);
      check_rows(taken);
      std::sort(taken.begin(), taken.end(), [](const Taken& a, const Taken& b) { return a.batch < b.batch; });
      std::vector<std::int64_t> batches;
      for (const Taken& t : taken) batches.push_back(t.batch);
      CHECK(batches == std::vector<std::int64_t>{1, 3, 4});
      CHECK(all_indices(taken) == std::vector<std::int64_t>{4, 5, 6, 7, 12, 13, 14, 15, 16, 18, 19});
      CHECK(stats_of(l.get()).skipped == 11);
      CHECK(stats_of(l.get()).batches == 3);
      CHECK(told_of_samples(l.get(), workers).size() == 11);
    }
}

// promise: policy-skip-named
TEST_CASE("an epoch whose samples were all skipped ends without a batch and without an error") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Policies p(30, 3, workers);
    for (std::int64_t i = 0; i < 30; i++) p.broken.indices.push_back(i);
    p.config.skip_budget = 30;
    const Loader l = p.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) CHECK(take_epoch(l.get(), epoch).empty());
    CHECK(stats_of(l.get()).skipped == 60);
  }
}

// promise: loader-unbatched
TEST_CASE("without batching a skipped sample is missing, and a substitute replaces a failing sample") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Policies p(5, FEEDLANE_UNBATCHED, workers);
    p.broken.indices = {1, 3, 103};
    p.broken.substitute_step = 100;
    p.broken.most_substitutes = 1;
    p.config.substitute = 1;
    p.config.skip_budget = 1;
    const Loader l = p.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    check_rows(taken);
    CHECK(all_indices(taken) == std::vector<std::int64_t>{0, 101, 2, 4});
  }
}

// promise: policy-substitute
TEST_CASE("at most sixteen substitutes are tried") {
  for (const std::int32_t workers : {0, 1})
    for (const std::int64_t broken : {16, 17}) {
      CAPTURE(workers);
      CAPTURE(broken);
      Policies p(1, 1, workers);
      for (std::int64_t i = 0; i < broken; i++) p.broken.indices.push_back(i);
      p.config.substitute = 1;
      const Loader l = p.create();
      begin(l.get(), 0);
      const std::vector<Taken> taken = take_outcomes(l.get());
      REQUIRE(taken.size() == 1);
      CHECK(taken[0].status == (broken == 16 ? FEEDLANE_OK : FEEDLANE_E_SAMPLE));
      if (broken == 16) CHECK(taken[0].indices == std::vector<std::int64_t>{16});
      else CHECK_MESSAGE(taken[0].sample == 0, "the index that was requested");
    }
}

// promise: policy-records
TEST_CASE("an error text that is too long for its record is truncated") {
  for (const std::int32_t workers : {0, 1}) {
    Policies p(2, 1, workers);
    p.broken.indices = {1};
    p.broken.text = std::string(300, 'x');
    p.config.skip_budget = 1;
    const Loader l = p.create();
    CHECK(take_epoch(l.get(), 0).size() == 1);
    const std::vector<Told> told = told_of_samples(l.get(), workers);
    REQUIRE(told.size() == 1);
    CHECK(std::get<7>(told[0]) == std::string(223, 'x'));
  }
}
