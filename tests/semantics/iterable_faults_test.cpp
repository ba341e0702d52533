// SPDX-License-Identifier: Apache-2.0
// Iterable data sets when samples fail, and when workers die.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "semantics/shards.hpp"

using namespace feedlane::test;
using namespace feedlane::test::shards;

// ---- errors ----

// promise: error-once-in-order
TEST_CASE("a failing sample is reported once, in its batch's position, by its number in the shard; the rest follows") {
  for (const bool without_workers : {false, true})
    for (const std::int64_t broken : {0, 4}) {
      CAPTURE(without_workers);
      CAPTURE(broken);
      Iterable s(without_workers ? Numbers{10} : Numbers{10, 4}, 3, without_workers);
      s.shards.trouble = Shards::broken;
      s.shards.trouble_at = broken;
      const Loader l = s.create();
      begin(l.get(), 2);
      const std::vector<Taken> taken = take_outcomes(l.get());
      const std::size_t place = broken == 0 ? 0 : without_workers ? 1 : 2;
      REQUIRE(taken.size() > place);
      int errors = 0;
      for (const Taken& t : taken) errors += t.status == FEEDLANE_OK ? 0 : 1;
      CHECK(errors == 1);
      CHECK(taken[place].status == FEEDLANE_E_SAMPLE);
      CHECK(taken[place].epoch == 2);
      CHECK(taken[place].batch == static_cast<std::int64_t>(place));
      CHECK(taken[place].sample == broken);
      CHECK(taken[place].worker == (without_workers ? -1 : 0));
      CHECK(taken[place].text == "record " + std::to_string(broken) + " is torn");
      Numbers expected = all_of(s.shards.lengths);
      // Made before it in the batch, and itself.
      expected.erase(expected.begin() + broken / 3 * 3, expected.begin() + broken + 1);
      CHECK(sorted(values_of(taken)) == expected);
      for (const Taken& t : taken)
        for (std::size_t row = 0; row < t.count; row++) CHECK(t.value("index", row) == t.value("value", row) % 1000);
      CHECK(stats_of(l.get()).restarts == 0);
    }
}

// promise: policy-skip-named
TEST_CASE("skipped samples of shards count against the skip budget") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s({12}, 2, without_workers);
    s.config.skip_budget = 1;
    s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
      if (at(self).position != 3 && at(self).position != 7) return next(self, row, err);
      at(self).position++;
      return std::int32_t{FEEDLANE_E_OS};
    };
    const Loader l = s.create();
    begin(l.get(), 0);
    int failed = 0;
    Numbers values;
    for (const Taken& t : take_outcomes(l.get())) {
      if (t.status == FEEDLANE_OK) {
        for (const std::int64_t value : values_of({t})) values.push_back(value);
        continue;
      }
      CHECK(t.status == FEEDLANE_E_SAMPLE);
      CHECK(t.argument == "config.skip_budget");
      CHECK(t.found == 2);
      failed++;
    }
    CHECK(failed == 1);
    CHECK(values == Numbers{0, 1, 2, 4, 5, 6, 10, 11});
  }
}

// promise: error-open-repeated
TEST_CASE("if a shard can't be restarted, next returns E_INIT with the worker's number until the next begin") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{6} : Numbers{6, 6}, 3, without_workers);
    s.shards.fail_restart_in_epoch = 1;
    const Loader l = s.create();
    CHECK(sorted(values_of(take_epoch(l.get(), 0))) == all_of(s.shards.lengths));
    begin(l.get(), 1);
    for (int i = 0; i < 2; i++) {
      Error e;
      std::int32_t status = FEEDLANE_OK;
      while (status == FEEDLANE_OK) status = take(l.get(), &e).status;  // the other's may come before
      CHECK(status == FEEDLANE_E_INIT);
      CHECK(e.worker == (without_workers ? -1 : 0));
      CHECK(e.says("the shard is gone"));
    }
    CHECK(sorted(values_of(take_epoch(l.get(), 2))) == all_of(s.shards.lengths));
  }
}

// promise: error-wrong-style
TEST_CASE("if a worker program's data set is not iterable, next returns E_INIT and names the missing callbacks") {
  Setup s(4);
  s.workers(2);
  s.config.iterable = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_INIT);
  CHECK(e.worker >= 0);
  CHECK(e.says("an iterable data set needs the callback next or fetch"));
}

// promise: policy-skip-iterable
TEST_CASE("a batch of a shard with a skipped sample is filled up with the samples that follow") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{10} : Numbers{10, 4}, 3, without_workers);
    s.shards.trouble = Shards::broken;
    s.shards.trouble_at = 4;
    s.config.skip_budget = 1;
    const Loader l = s.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> taken = take_epoch(l.get(), epoch);
      const std::size_t place = without_workers ? 1 : 2;
      CHECK(values_of({taken[place]}) == Numbers{3, 5, 6});
      CHECK(taken[place].value("index", 1) == 5);
      Numbers expected = all_of(s.shards.lengths);
      expected.erase(expected.begin() + 4);
      CHECK(sorted(values_of(taken)) == expected);
      const std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED);
      REQUIRE(told.size() == 1);
      CHECK(told[0].what.sample == 4);
      CHECK(told[0].what.batch == static_cast<std::int64_t>(place));
      CHECK(told[0].what.epoch == epoch);
      CHECK(told[0].what.code == FEEDLANE_E_OS);
    }
  }
}

// promise: policy-retry
TEST_CASE("a retried sample of a shard keeps its position") {
  for (const bool without_workers : {false, true}) {
    CAPTURE(without_workers);
    Iterable s(without_workers ? Numbers{10} : Numbers{10, 4}, 3, without_workers);
    s.shards.trouble = Shards::broken_once;
    s.shards.trouble_at = 4;
    s.config.retries = 1;
    s.config.retry_backoff_ns = 1;
    const Loader l = s.create();
    check_batches(take_epoch(l.get(), 0), by_turns(s.shards.lengths, 3));
    const std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_RETRIED);
    REQUIRE(told.size() == 1);
    CHECK(told[0].what.sample == 4);
    CHECK(told[0].what.found == 1);
  }
}

namespace {

// Every sample fails but each tenth.
std::int32_t mostly_broken(void* self, const feedlane_row* row, feedlane_error* err) {
  Shards& s = at(self);
  if (s.position >= length_of(s)) return FEEDLANE_END;
  const std::int64_t value = s.worker * 1000 + s.position++;
  std::memcpy(row->fields[0], &value, sizeof value);
  (void)std::snprintf(err->text, sizeof err->text, "torn");
  return value % 10 == 0 ? FEEDLANE_OK : FEEDLANE_E_OS;
}

}  // namespace

// promise: policy-skip-iterable
TEST_CASE("many consecutive samples of a shard may be skipped, with small and large batches") {
  for (const bool without_workers : {false, true})
    for (const std::int64_t batch_size : {FEEDLANE_UNBATCHED, 1, 2, 7}) {
      CAPTURE(without_workers);
      CAPTURE(batch_size);
      Iterable s(without_workers ? Numbers{35} : Numbers{35, 12}, batch_size, without_workers);
      s.dataset.next = mostly_broken;
      s.config.skip_budget = -1;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 2; epoch++) {
        const Numbers expected = without_workers ? Numbers{0, 10, 20, 30} : Numbers{0, 10, 20, 30, 1000, 1010};
        CHECK(sorted(values_of(take_epoch(l.get(), epoch))) == expected);
        std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED);
        CHECK(told.size() == (without_workers ? 31 : 41));
        Numbers samples;
        for (const feedlane_event& e : told)
          if (e.what.worker <= 0) samples.push_back(e.what.sample);
        for (const std::int64_t sample : samples) CHECK(sample % 10 != 0);
        CHECK(samples.size() == 31);
        CHECK(sorted(samples) == samples);
        CHECK(std::adjacent_find(samples.begin(), samples.end()) == samples.end());
      }
    }
}

// ---- workers that die ----

// promise: seed-after-crash, fault-shard-skips, fault-shard-state, worker-shard-resumed
TEST_CASE("the replacement of a killed iterable worker continues after the last committed batch") {
  enum Way { deterministic, saving, both };
  for (const Way way : {deterministic, saving, both})
    for (const std::int64_t at_sample : {0, 1, 3, 7, 19}) {
      CAPTURE(static_cast<int>(way));
      CAPTURE(at_sample);
      Iterable s({20, 7, 11}, 3);
      s.shards.trouble = Shards::killed;
      s.shards.trouble_at = at_sample;
      s.config.deterministic = way != saving ? 1 : 0;
      if (way != deterministic) {
        s.dataset.save = save;
        s.dataset.load = load;
      }
      const Loader l = s.create();
      const std::vector<Taken> taken = take_epoch(l.get(), 0);
      check_batches(taken, by_turns(s.shards.lengths, 3));
      CHECK(stats_of(l.get()).restarts == 1);
      const std::int64_t committed = at_sample / 3 * 3;
      for (const Taken& t : taken)
        for (std::size_t row = 0; row < t.count; row++) {
          const bool by_replacement = t.worker == 0 && t.value("value", row) >= committed;
          CHECK(t.value("generation", row) == (by_replacement ? 1 : 0));
          CHECK(t.value("index", row) == t.value("value", row) % 1000);
          CHECK(t.seed(row) == feedlane_row_seed(99 + static_cast<std::uint64_t>(t.worker), 0, t.value("index", row)));
          if (by_replacement)
            CHECK(t.value("loaded", row) == (way == deterministic || committed == 0 ? -1 : committed));
        }
    }
}

// promise: fault-shard-skips
TEST_CASE("the shard of a killed worker is resumed, also if its data set makes whole batches of different sizes") {
  for (const std::int64_t at_sample : {0, 3, 7, 8}) {
    CAPTURE(at_sample);
    Iterable s({13, 6}, 4);
    s.fetching({3, 4, 1});
    s.shards.trouble = Shards::killed;
    s.shards.trouble_at = at_sample;
    s.config.deterministic = 1;
    const Loader l = s.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    for (const Taken& t : taken) CHECK_MESSAGE(t.status == FEEDLANE_OK, t.text);
    CHECK(sorted(values_of(taken)) == all_of(s.shards.lengths));
    CHECK(stats_of(l.get()).restarts == 1);
  }
}

// promise: fault-shard-skips
TEST_CASE("a replacement may take longer than the deadline to skip the samples that a killed worker delivered") {
  Iterable s({300}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 240;
  s.config.deterministic = 1;
  s.config.task_timeout_ns = 700'000'000;
  s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (at(self).generation != 0 && at(self).position < 240) ::usleep(6000);  // together twice the deadline
    return next(self, row, err);
  };
  const Loader l = s.create();
  check_batches(take_epoch(l.get(), 0), by_turns({300}, 3));
  CHECK(stats_of(l.get()).hung == 0);
  CHECK(stats_of(l.get()).restarts == 1);
}

// promise: fault-shard-skips
TEST_CASE("samples that a replacement skips are not counted again as delivered when the next one resumes") {
  Iterable s({300}, 3);
  s.config.deterministic = 1;
  s.config.task_timeout_ns = 700'000'000;
  s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    const std::int64_t ends_at[] = {240, 250};
    if (at(self).generation < 2 && at(self).position == ends_at[at(self).generation]) (void)::raise(SIGKILL);
    if (at(self).generation == 2 && at(self).position < 240) ::usleep(6000);
    return next(self, row, err);
  };
  const Loader l = s.create();
  check_batches(take_epoch(l.get(), 0), by_turns({300}, 3));
  CHECK(stats_of(l.get()).hung == 0);
  CHECK(stats_of(l.get()).restarts == 2);
}

// promise: fault-shard-skips
TEST_CASE("metadata and skip records of delivered batches are not repeated after their worker was killed") {
  for (const bool by_fetch : {false, true}) {
    CAPTURE(by_fetch);
    Iterable s({12, 0}, by_fetch ? 4 : 3);
    s.shards.trouble = Shards::killed;
    s.shards.trouble_at = by_fetch ? 8 : 7;
    s.config.deterministic = 1;
    s.config.skip_budget = -1;
    s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
      if (at(self).position == 0) (void)feedlane_task_store(row->task, FEEDLANE_STORE_METADATA, "first", 5, err);
      return next(self, row, err);
    };
    // By fours, of which the second is left out.
    if (by_fetch)
      s.dataset.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) {
        Shards& shards = at(self);
        if (shards.position >= length_of(shards)) return std::int32_t{FEEDLANE_END};
        if (shards.generation == 0 && shards.position == shards.trouble_at) (void)::raise(SIGKILL);
        if (shards.position == 0) (void)feedlane_task_store(task, FEEDLANE_STORE_METADATA, "first", 5, err);
        std::int64_t row = 0;
        for (std::int64_t i = 0; i < 4; i++, shards.position++)
          if (i != 1) static_cast<std::int64_t*>(task->tensors[0].data)[row++] = shards.position;
        (void)fail_sample(task, 1, "second");
        return set_rows(task, 3);
      };
    if (by_fetch) s.dataset.next = nullptr;
    const Loader l = s.create();
    const std::vector<Taken> taken = take_epoch(l.get(), 0);
    if (by_fetch) check_batches(taken, {{0, 2, 3}, {4, 6, 7}, {8, 10, 11}});
    else check_batches(taken, by_turns({12}, 3));
    for (const Taken& t : taken) CHECK(t.metadata == (t.batch == 0 ? "first" : ""));
    CHECK(stats_of(l.get()).restarts == 1);
    std::vector<std::int64_t> left_out;
    for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED)) left_out.push_back(e.what.sample);
    CHECK(left_out == (by_fetch ? Numbers{1, 5, 9} : Numbers{}));
  }
}

// promise: fault-shard-skips
TEST_CASE("a sample skipped before its worker was killed is neither yielded nor reported again") {
  Iterable s({20, 7}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 10;
  s.config.deterministic = 1;
  s.config.skip_budget = -1;
  s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (at(self).position != 4) return next(self, row, err);
    at(self).position++;
    return std::int32_t{FEEDLANE_E_OS};
  };
  const Loader l = s.create();
  Numbers expected = all_of(s.shards.lengths);
  expected.erase(expected.begin() + 4);
  CHECK(sorted(values_of(take_epoch(l.get(), 0))) == std::vector<std::int64_t>([&] {
          Numbers without = expected;  // and of the other shard
          without.erase(std::find(without.begin(), without.end(), 1004));
          return without;
        }()));
  CHECK(events_of(l.get(), FEEDLANE_EVENT_SAMPLE_SKIPPED).size() == 2);
  CHECK(stats_of(l.get()).restarts == 1);
}

// promise: fault-shard-neither, worker-shard-lost
TEST_CASE("a killed worker whose data set can't resume is reported as one error, and the other shards continue") {
  for (const std::int32_t out_of_order : {0, 1}) {
    CAPTURE(out_of_order);
    Iterable s({20, 7, 11}, 3);
    s.shards.trouble = Shards::killed;
    s.shards.trouble_at = 7;
    s.config.out_of_order = out_of_order;
    s.config.keep_workers = 1;
    const Loader l = s.create();
    begin(l.get(), 0);
    const std::vector<Taken> taken = take_outcomes(l.get());
    int errors = 0;
    for (const Taken& t : taken) {
      if (t.status == FEEDLANE_OK) continue;
      errors++;
      CHECK(t.status == FEEDLANE_E_PEER_DEAD);
      CHECK(t.worker == 0);
      CHECK(t.epoch == 0);
      CHECK(t.argument == "config.deterministic");
      CHECK(t.text.find("signal 9") != std::string::npos);
      CHECK(t.text.find("after 6 samples") != std::string::npos);
    }
    CHECK(errors == 1);
    Numbers expected = all_of(s.shards.lengths);
    expected.erase(expected.begin() + 6, expected.begin() + 20);
    CHECK(sorted(values_of(taken)) == expected);
    CHECK_MESSAGE(sorted(values_of(take_epoch(l.get(), 1))) == all_of(s.shards.lengths), "the next epoch has all");
  }
}

// promise: torch-segfault
TEST_CASE("a segmentation fault in a worker of shards is reported as signal 11 in the error and in the event") {
  for (const std::int32_t deterministic : {0, 1}) {
    CAPTURE(deterministic);
    Setup s(0, 3);
    s.workers(2, "shard").fields({field("index", int64_type)});
    s.config.iterable = 1;
    s.config.deterministic = deterministic;
    s.plan.end_index = 7;
    s.plan.end_attempts = 1;
    s.plan.end_signal = SIGSEGV;
    const Loader l = s.create();
    begin(l.get(), 0);
    int errors = 0;
    for (const Taken& t : take_outcomes(l.get())) {
      if (t.status == FEEDLANE_OK) continue;
      errors++;
      CHECK(t.status == FEEDLANE_E_PEER_DEAD);
      CHECK(t.text.find("was killed by signal 11") != std::string::npos);
    }
    CHECK_MESSAGE(errors == (deterministic != 0 ? 0 : 2), "each worker comes to its sample 7");
    const std::vector<feedlane_event> deaths = events_of(l.get(), FEEDLANE_EVENT_WORKER_DIED);
    CHECK(deaths.size() == 2);
    for (const feedlane_event& e : deaths)
      CHECK(std::string(e.what.text).find("was killed by signal 11") != std::string::npos);
  }
}

// promise: fault-shard-fetch-fails
TEST_CASE("if fetch always fails while its shard is resumed, next returns E_INIT with the text of fetch") {
  Iterable s({20, 7}, 4);
  s.fetching({4});
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 8;
  s.config.deterministic = 1;
  s.dataset.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) {
    if (at(self).worker != 0 || at(self).generation == 0 || at(self).position != 4) return fetch(self, task, err);
    (void)std::snprintf(err->text, sizeof err->text, "the disk is gone");
    return std::int32_t{FEEDLANE_E_OS};
  };
  const Loader l = s.create();
  begin(l.get(), 0);
  const std::vector<Taken> taken = take_outcomes(l.get());
  REQUIRE(!taken.empty());
  CHECK(taken.back().status == FEEDLANE_E_INIT);
  CHECK(taken.back().worker == 0);
  CHECK(taken.back().text == "the disk is gone");
}

// promise: fault-shard-skips
TEST_CASE("a shard without a committed batch is reopened, even if its data set can't resume") {
  Iterable s({20, 7}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 2;
  const Loader l = s.create();
  check_batches(take_epoch(l.get(), 0), by_turns(s.shards.lengths, 3));
  CHECK(stats_of(l.get()).restarts == 1);
}

// promise: fault-shard-neither
TEST_CASE("if a resumed shard does not yield the samples already delivered, next returns E_INIT with their number") {
  Iterable s({20, 7}, 3);
  s.shards.trouble = Shards::killed;
  s.shards.trouble_at = 10;
  s.shards.shrink_to = 5;
  s.config.deterministic = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  const std::vector<Taken> taken = take_outcomes(l.get());
  REQUIRE(!taken.empty());
  CHECK(taken.back().status == FEEDLANE_E_INIT);
  CHECK(taken.back().worker == 0);
  CHECK(taken.back().text.find("does not yield the 9 samples that were already delivered") != std::string::npos);
}

// promise: fault-quarantine
TEST_CASE("a batch with a sample that kills every worker is quarantined together with the rest of its shard") {
  Iterable s({20, 7}, 3);
  s.config.deterministic = 1;
  s.config.max_kills_per_batch = 2;
  s.dataset.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
    if (at(self).worker == 0 && at(self).position == 7) (void)::raise(SIGKILL);
    return next(self, row, err);
  };
  const Loader l = s.create();
  begin(l.get(), 0);
  const std::vector<Taken> taken = take_outcomes(l.get());
  int quarantined = 0;
  for (const Taken& t : taken) quarantined += t.status == FEEDLANE_E_QUARANTINED ? 1 : 0;
  CHECK(quarantined == 1);
  Numbers expected = all_of(s.shards.lengths);
  expected.erase(expected.begin() + 6, expected.begin() + 20);
  CHECK(sorted(values_of(taken)) == expected);
  CHECK(stats_of(l.get()).restarts >= 1);
}

// promise: fault-shard-skips
TEST_CASE("no sample is lost when iterable workers are killed from outside again and again") {
  Iterable s({60, 41}, 2);
  s.config.deterministic = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<Taken> taken;
  for (int i = 0; i < 6; i++) {
    taken.push_back(take(l.get()));
    REQUIRE(taken.back().status == FEEDLANE_OK);
    const auto pid = static_cast<pid_t>(worker_of(l.get(), i % 2).pid);
    if (pid > 0) (void)::kill(pid, SIGKILL);
  }
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  check_batches(taken, by_turns(s.shards.lengths, 2));
}
