// SPDX-License-Identifier: Apache-2.0
// Data sets with failing samples: what they throw, and what the policies make of it.
#include <doctest/doctest.h>

#include <feedlane/feedlane.hpp>
#include <optional>
#include <string>
#include <vector>

namespace {

/// Sample 2 fails: for good, or transiently on its first try.
struct Failing {
  explicit Failing(const feedlane::WorkerInfo& info) : transient_(!info.config().empty()) {}
  void get(const feedlane::Row& row) {
    if (row.index() == 2 && !transient_) throw std::runtime_error("sample 2 is bad");
    if (row.index() == 2 && tries_++ == 0) throw feedlane::Transient("sample 2 is late");
    row.field<std::int64_t>(0)[0] = row.index();
  }
  std::optional<std::int64_t> substitute(std::int64_t failed, std::uint64_t, std::uint32_t) {
    CHECK(failed == 2);
    return 5;
  }

 private:
  bool transient_;
  int tries_ = 0;
};

struct Result {
  std::vector<std::int64_t> seen;
  std::int32_t code = 0;
  std::string text;
  bool transient = false;
  feedlane_stats stats{};
};

Result epoch_of(feedlane::LoaderOptions options) {
  const feedlane::Sampler order = feedlane::Sampler::sequential(4);
  const feedlane_dataset dataset = feedlane::dataset_of<Failing>();
  options.sampler = &order;
  options.fields = {feedlane::field<std::int64_t>("index")};
  options.batch_size = 4;
  options.dataset = &dataset;
  if (options.retries != 0) options.retry_backoff = std::chrono::nanoseconds(1);
  feedlane::Loader loader(options);
  loader.start_epoch(0);
  feedlane::Error error;
  Result result;
  if (const std::optional<feedlane::Batch> batch = loader.next(std::chrono::nanoseconds::max(), error)) {
    const auto all = (*batch)[0].as<std::int64_t>();
    result.seen.assign(all.begin(), all.end());
  }
  result.code = error.code();
  result.text = error.text();
  result.transient = error.transient();
  result.stats = loader.monitor().stats();
  return result;
}

constexpr std::byte some[1]{};

}  // namespace

TEST_CASE("an exception of a data set fails its batch with E_SAMPLE and the exception's text") {
  const Result result = epoch_of({});
  CHECK(result.code == FEEDLANE_E_SAMPLE);
  CHECK(result.text.find("sample 2 is bad") != std::string::npos);
  CHECK_FALSE(result.transient);
}

TEST_CASE("an error text of more than 383 bytes is cut between characters, and the traceback has all of it") {
  struct Verbose {
    explicit Verbose(const feedlane::WorkerInfo&) {}
    void get(const feedlane::Row&) { throw std::runtime_error(text()); }
    static std::string text() {
      std::string all = "x";
      for (int i = 0; i < 1000; i++) all += "\u00e4";  // two bytes each
      return all;
    }
  };
  const feedlane::Sampler order = feedlane::Sampler::sequential(4);
  const feedlane_dataset dataset = feedlane::dataset_of<Verbose>();
  feedlane::Loader loader(
      {.sampler = &order, .fields = {feedlane::field<std::int64_t>("index")}, .batch_size = 4, .dataset = &dataset});
  loader.start_epoch(0);
  feedlane::Error error;
  CHECK_FALSE(loader.next(std::chrono::nanoseconds::max(), error));
  CHECK(error.code() == FEEDLANE_E_SAMPLE);
  CHECK(error.text() == Verbose::text().substr(0, 383));
  CHECK(error.traceback() == Verbose::text());
}

TEST_CASE("dataset_of(object) uses the object itself, opens it for a worker and restarts it for each epoch") {
  struct Counter {
    int opened = 0;
    std::int64_t base = 100;
    void open(const feedlane::WorkerInfo& info) {
      CHECK(info.id() == -1);
      opened++;
    }
    void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = base + row.index(); }
  };
  Counter counter;
  const feedlane::Sampler order = feedlane::Sampler::sequential(3);
  const feedlane_dataset dataset = feedlane::dataset_of(counter);
  feedlane::Loader loader(
      {.sampler = &order, .fields = {feedlane::field<std::int64_t>("index")}, .batch_size = 3, .dataset = &dataset});
  for (int epoch = 0; epoch < 2; epoch++) {
    for (const feedlane::Batch& batch : loader) CHECK(batch[0].as<std::int64_t>()[2] == counter.base + 2);
    counter.base++;
  }
  CHECK(counter.opened >= 1);

  struct Numbers {
    std::int64_t at = 0;
    void restart(std::int64_t) { at = 0; }
    bool next(const feedlane::Row& row) {
      if (at == 3) return false;
      row.field<std::int64_t>(0)[0] = at++;
      return true;
    }
  };
  Numbers numbers;
  const feedlane_dataset shard = feedlane::dataset_of(numbers);
  feedlane::Loader iterating(
      {.fields = {feedlane::field<std::int64_t>("x")}, .batch_size = 3, .dataset = &shard, .iterable = true});
  for (int epoch = 0; epoch < 2; epoch++)
    for (const feedlane::Batch& batch : iterating) CHECK(batch[0].as<std::int64_t>()[2] == 2);
}

TEST_CASE("a feedlane::Transient gives a transient error, and its sample is retried if retries are allowed") {
  const Result told = epoch_of({.worker_config = some});
  CHECK(told.code == FEEDLANE_E_SAMPLE);
  CHECK(told.transient);
  const Result retried = epoch_of({.worker_config = some, .retries = 1});
  CHECK(retried.seen == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(retried.stats.retried == 1);
}

TEST_CASE("substitute() returns the sample that replaces a failed sample") {
  const Result result = epoch_of({.substitute = true});
  CHECK(result.seen == std::vector<std::int64_t>{0, 1, 5, 3});
  CHECK(result.stats.substituted == 1);
}

TEST_CASE("with a skip budget a batch leaves out its failed sample") {
  CHECK(epoch_of({.skip_budget = -1}).seen == std::vector<std::int64_t>{0, 1, 3});
}
