// SPDX-License-Identifier: Apache-2.0
// The bare worker makes what any worker makes: batches, shaped tensors, errors, records, shards.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bare/bare_trainer.hpp"

using namespace feedlane::test;

TEST_CASE(
    "batches of bare workers arrive whole, once and in order, with 1, 2 and 4 workers, whether workers are kept or "
    "not") {
  for (const std::int32_t workers : {1, 2, 4})
    for (const std::int32_t keep : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(keep);
      Bare b(83, 4, workers);
      b.s.config.keep_workers = keep;
      const Loader l = b.create();
      for (std::int64_t epoch = 0; epoch < 3; epoch++) check_epoch(take_epoch(l.get(), epoch), 83, 4, epoch);
      check_peace(l.get());
      CHECK(stats_of(l.get()).batches == 3 * 21);
    }
}

TEST_CASE("a bare worker attaches with a trace of any length, and the trace has the worker's own time stamps") {
  for (const std::uint64_t trace : {std::uint64_t{1}, std::uint64_t{30}, std::uint64_t{5000}}) {
    CAPTURE(trace);
    Bare b(83, 4);
    b.s.config.trace = trace;
    const Loader l = b.create();
    check_epoch(take_epoch(l.get(), 0), 83, 4, 0);
    check_peace(l.get());
    std::vector<feedlane_batch_record> records(100, fresh<feedlane_batch_record>());
    std::uint64_t count = 0;
    REQUIRE(observe(l.get(), feedlane_monitor_get_trace, 1, records.data(), records.size(), &count) == FEEDLANE_OK);
    CHECK(count == std::min<std::uint64_t>(trace, 21));
    for (std::uint64_t i = 0; i < count; i++) {
      const feedlane_batch_record& r = records[i];
      CHECK(r.dispatched_ns <= r.begun_ns);
      CHECK_MESSAGE(r.begun_ns < r.committed_ns, "without stamps of the worker both would be the trainer's");
      CHECK(r.committed_ns <= r.swept_ns);
    }
  }
}

TEST_CASE("a bare worker's batches are the same with round-robin dispatch, out of order, unbatched and in a rank") {
  SUBCASE("round robin") {
    Bare b(40, 3, 3);
    b.s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
    const Loader l = b.create();
    check_epoch(take_epoch(l.get(), 5), 40, 3, 5);
    check_peace(l.get());
  }
  SUBCASE("out of order") {
    Bare b(40, 3, 3);
    b.s.config.out_of_order = 1;
    const Loader l = b.create();
    std::vector<Taken> all = take_epoch(l.get(), 5);
    std::sort(all.begin(), all.end(), [](const Taken& x, const Taken& y) { return x.batch < y.batch; });
    check_epoch(all, 40, 3, 5);
    check_peace(l.get());
  }
  SUBCASE("unbatched") {
    Bare b(20, FEEDLANE_UNBATCHED, 2);
    const Loader l = b.create();
    const std::vector<Taken> all = take_epoch(l.get(), 0);
    REQUIRE(all.size() == 20);
    CHECK(all[0].shapes[2] == std::vector<std::int64_t>{row_bytes});
    check_epoch(all, 20, 1, 0);
  }
  SUBCASE("the seeds of a rank come from positions in the order of all ranks") {
    auto c = fresh<feedlane_sampler_config>();
    c.length = 40;
    c.rank = 1;
    c.world = 3;
    c.drop_last = 1;
    Bare b(40, 2, 2);
    feedlane_sampler* sampler = nullptr;
    REQUIRE(distributed_sampler(&c, &sampler, nullptr) == FEEDLANE_OK);
    b.s.sampler.reset(sampler);
    const Loader l = b.create();
    std::int64_t place = 1;
    for (const Taken& t : take_epoch(l.get(), 2))
      for (std::size_t row = 0; row < t.indices.size(); row++, place += 3)
        check_row(t, row, t.indices[row], feedlane_row_seed(99, 2, place));
    CHECK(place == 1 + 3 * 13);
  }
}

TEST_CASE("a bare worker's batches may have tensors of other shapes, an undeclared tensor and metadata") {
  for (const std::int64_t shaped : {1, 2}) {
    CAPTURE(shaped);
    Bare b(35, 8);
    b.o.shaped = shaped;
    b.o.wide_bytes = 5000;  // beyond what is reserved of a slot from the start
    const std::uint64_t width = shaped == 1 ? row_bytes / 2 : 5000;
    const Loader l = b.create();
    for (std::int64_t epoch = 0; epoch < 3; epoch++) {
      const std::vector<Taken> all = take_epoch(l.get(), epoch);
      check_sequence(all, 35, 8);
      for (const Taken& t : all) {
        const auto rows = static_cast<std::int64_t>(t.count);
        REQUIRE(t.names == std::vector<std::string>{"index", "seed", "bytes", "batch"});
        CHECK(t.shapes[2] == std::vector<std::int64_t>{rows, static_cast<std::int64_t>(width)});
        CHECK(t.shapes[3] == std::vector<std::int64_t>{rows});
        CHECK(t.dtypes[3].bits == 32);
        CHECK(t.metadata == "batch " + std::to_string(t.batch));
        for (std::size_t row = 0; row < t.count; row++) {
          check_row(t, row, t.indices[row], feedlane_row_seed(99, epoch, t.indices[row]), width);
          std::int32_t number = -1;
          std::memcpy(&number, t.bytes[3].data() + row * 4, 4);
          CHECK(number == t.batch);
        }
      }
    }
    check_peace(l.get());
  }
}

TEST_CASE("a batch that doesn't fit into its slot fails with E_SAMPLE, and the bare worker continues") {
  Bare b(6, 2);
  b.o.shaped = 2;
  b.o.wide_bytes = 1'000'000;
  const Loader l = b.create();
  begin(l.get(), 0);
  const std::vector<Taken> all = take_outcomes(l.get());
  CHECK(all.size() == 3);
  for (const Taken& t : all) {
    CHECK(t.status == FEEDLANE_E_SAMPLE);
    CHECK(t.text.find("a slot has") == 0);
  }
  check_peace(l.get());
}

TEST_CASE("a bare worker's error has the sample, the text and a traceback of at most 64 KiB and the slot's size") {
  struct Case {
    std::int64_t traceback;
    std::uint64_t slot_bytes, told;
  };
  for (const Case& c : {Case{0, 0, 0},
                        {100, 0, 100},
                        {5000, 0, 5000},
                        {65536, 0, 65536},
                        {100'000, 0, 65536},
                        {5000, 4500, 4500},
                        {1 << 20, 1 << 20, 65536}}) {
    CAPTURE(c.traceback);
    CAPTURE(c.slot_bytes);
    Bare b(30, 2);
    b.o.fail_every = 10;
    b.o.traceback_bytes = c.traceback;
    b.s.config.slot_bytes = c.slot_bytes;
    const Loader l = b.create();
    begin(l.get(), 0);
    for (std::int64_t batch = 0; batch < 15; batch++) {
      Error e(100'000);
      const Taken t = take(l.get(), &e);
      CHECK(t.status == (batch % 5 == 4 ? FEEDLANE_E_SAMPLE : FEEDLANE_OK));
      if (t.status == FEEDLANE_OK) continue;
      CHECK(e.batch == batch);
      CHECK(e.sample == 2 * batch + 1);
      CHECK(std::string(e.text) == "sample " + std::to_string(e.sample) + " can't be made");
      CHECK(e.detail_len == c.told);
      const std::string traceback = e.traceback();
      for (std::size_t i = 0; i < traceback.size(); i += 997)
        CHECK(traceback[i] == static_cast<char>('a' + static_cast<int>(i % 26)));
    }
    CHECK(take(l.get()).status == FEEDLANE_END);
    check_peace(l.get());
  }
}

TEST_CASE("samples that a bare worker retries, substitutes or skips are recorded") {
  for (const std::int32_t substitute : {0, 1}) {
    CAPTURE(substitute);
    Bare b(70, 4);
    b.o.fail_every = 7;
    b.o.retry_every = 5;
    b.s.config.retries = 1;
    b.s.config.retry_backoff_ns = 1000;
    b.s.config.skip_budget = -1;
    b.s.config.substitute = substitute;
    const Loader l = b.create();
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      const std::vector<Taken> all = take_epoch(l.get(), epoch);
      REQUIRE(all.size() == 18);
      for (const Taken& t : all) {
        std::vector<std::int64_t> made;
        std::vector<std::int64_t> skipped;
        std::size_t row = 0;
        for (std::int64_t i = 4 * t.batch; i < std::min<std::int64_t>(4 * t.batch + 4, 70); i++) {
          const bool fails = i % 7 == 6;
          if (fails && substitute == 0) {
            skipped.push_back(i);
            continue;
          }
          made.push_back(fails ? i + 1 : i);
          REQUIRE(row < t.count);
          check_row(t, row++, made.back(), feedlane_row_seed(99, epoch, i));
        }
        CHECK(t.indices == made);
        CHECK(t.skipped == skipped);
      }
    }
    const feedlane_stats stats = stats_of(l.get());
    CHECK(stats.retried == 2 * 14);
    CHECK(stats.skipped == (substitute == 0 ? 2 * 10 : 0));
    CHECK(stats.substituted == (substitute == 1 ? 2 * 10 : 0));
    check_peace(l.get());
  }
}

TEST_CASE("a batch in which a bare worker skips every sample is not yielded") {
  Bare b(9, 1);
  b.o.fail_every = 3;
  b.s.config.skip_budget = -1;
  const Loader l = b.create();
  CHECK(take_epoch(l.get(), 0).size() == 6);
  CHECK(stats_of(l.get()).skipped == 3);
  check_peace(l.get());
}

namespace {

// Each worker's part of an epoch, whole and in order: samples s, s + n, s + 2n ... of shard s of n.
void check_shards(const std::vector<Taken>& all, std::int64_t workers, std::int64_t each, std::int64_t epoch,
                  std::int64_t world = 1, std::int64_t rank = 0) {
  std::map<std::int32_t, std::int64_t> next;
  for (std::size_t i = 0; i < all.size(); i++) {
    CHECK(all[i].batch == static_cast<std::int64_t>(i));
    const std::int32_t w = all[i].worker;
    for (std::size_t row = 0; row < all[i].count; row++) {
      const std::int64_t n = next[w]++;
      const std::int64_t shard = rank * workers + w;
      check_row(all[i], row, n * workers * world + shard,
                feedlane_row_seed(99 + static_cast<std::uint64_t>(shard), epoch, n));
    }
  }
  for (std::int32_t w = 0; w < workers; w++) CHECK(next[w] == each);
}

struct Shards : Bare {
  Shards(std::int64_t each, std::int64_t batch_size, std::int32_t workers) : Bare(1, batch_size, workers) {
    s.config.iterable = 1;
    o.shard_samples = each;
  }
};

}  // namespace

TEST_CASE("bare workers' shards come whole to their end in every epoch, with 1, 2 and 4 workers, kept or not") {
  for (const std::int32_t workers : {1, 2, 4})
    for (const std::int32_t keep : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(keep);
      Shards b(23, 4, workers);
      b.s.config.keep_workers = keep;
      const Loader l = b.create();
      for (std::int64_t epoch = 0; epoch < 3; epoch++) check_shards(take_epoch(l.get(), epoch), workers, 23, epoch);
      check_peace(l.get());
    }
}

// promise: shard-per-rank
TEST_CASE("a bare worker of a rank iterates the shards of that rank") {
  Shards b(23, 4, 2);
  b.s.config.world = 3;
  b.s.config.rank = 1;
  const Loader l = b.create();
  check_shards(take_epoch(l.get(), 0), 2, 23, 0, 3, 1);
  check_peace(l.get());
}

TEST_CASE("a bare worker's shard may drop an incomplete last batch, skip samples or fail a batch") {
  SUBCASE("drop_last") {
    Shards b(23, 4, 2);
    b.s.config.drop_last = 1;
    const Loader l = b.create();
    check_shards(take_epoch(l.get(), 0), 2, 20, 0);
  }
  SUBCASE("skipped samples") {
    Shards b(40, 4, 2);
    b.o.fail_every = 4;
    b.s.config.skip_budget = -1;
    const Loader l = b.create();
    std::set<std::int64_t> seen;
    for (const Taken& t : take_epoch(l.get(), 0))
      for (std::size_t row = 0; row < t.count; row++) {
        const std::int64_t n = t.value("index", row) / 2;
        check_row(t, row, 2 * n + t.worker, feedlane_row_seed(99 + static_cast<std::uint64_t>(t.worker), 0, n));
        CHECK(n % 4 != 3);
        CHECK(seen.insert(t.value("index", row)).second);
      }
    CHECK(seen.size() == 60);
    CHECK(stats_of(l.get()).skipped == 20);
  }
  SUBCASE("a failed batch") {
    Shards b(24, 4, 2);
    b.o.fail_every = 24;
    const Loader l = b.create();
    begin(l.get(), 0);
    int failed = 0;
    for (const Taken& t : take_outcomes(l.get())) {
      if (t.status == FEEDLANE_OK) continue;
      CHECK(t.status == FEEDLANE_E_SAMPLE);
      CHECK(t.sample == 23);
      failed++;
    }
    CHECK(failed == 2);
    check_peace(l.get());
  }
}
