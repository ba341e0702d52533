// SPDX-License-Identifier: Apache-2.0
// A program without exceptions: everything by the forms that take an Error&, failures of the data set too.
#include <cstdio>
#include <feedlane/feedlane.hpp>

namespace {

// Sample 5 is bad; the data set can't be opened for a configuration that is there.
struct Index {
  Index(const feedlane::WorkerInfo& info, feedlane::Error& error) {
    if (!info.config().empty()) error.fail("no such file");
  }
  void get(const feedlane::Row& row, feedlane::Error& error) {
    if (row.index() == 5) return error.fail("sample 5 is bad");
    if (const auto x = row.field<std::int64_t>(0, error); !error) x[0] = row.index();
  }
};

struct WrongType {
  explicit WrongType(const feedlane::WorkerInfo&) {}
  void get(const feedlane::Row& row, feedlane::Error& error) { (void)row.field<float>(0, error); }
};

int failures = 0;
void check(bool holds, const char* what) {
  if (holds) return;
  failures++;
  std::printf("doesn't hold: %s\n", what);
}

feedlane::LoaderOptions options_of(const feedlane::Sampler& order, const feedlane_dataset& dataset) {
  return {.sampler = &order, .fields = {feedlane::field<std::int64_t>("index")}, .batch_size = 2, .dataset = &dataset};
}

void run_epoch() {
  feedlane::Error error;
  const feedlane::Sampler order = feedlane::Sampler::sequential(8, error);
  const feedlane_dataset dataset = feedlane::dataset_of<Index>();
  feedlane::Loader loader(options_of(order, dataset), error);
  check(!error, "a loader is made");
  loader.start_epoch(0, error);
  std::int64_t sum = 0;
  int bad = 0;
  for (;;) {
    const std::optional<feedlane::Batch> batch = loader.next(std::chrono::nanoseconds::max(), error);
    if (loader.outcome() == FEEDLANE_END) break;
    if (!batch) {
      bad++;
      check(error.code() == FEEDLANE_E_SAMPLE && error.text() == "sample 5 is bad" && error.sample() == 5,
            error.what());
      continue;
    }
    for (const std::int64_t x : batch->at("index", error).as<std::int64_t>(error)) sum += x;
    check(!error, "a tensor");
    (void)batch->at("y", error);
    check(error.code() == FEEDLANE_E_ARGUMENT, "no such tensor");
  }
  check(bad == 1 && sum == 0 + 1 + 2 + 3 + 6 + 7, "all but the batch of sample 5");
}

void check_failures() {
  feedlane::Error error;
  const feedlane::Sampler order = feedlane::Sampler::sequential(8, error);
  const feedlane_dataset dataset = feedlane::dataset_of<Index>();
  feedlane::LoaderOptions options = options_of(order, dataset);
  constexpr std::byte some[1]{};
  options.worker_config = some;
  feedlane::Loader unopened(options, error);
  unopened.start_epoch(0, error);
  (void)unopened.next(std::chrono::nanoseconds::max(), error);
  check(error.code() == FEEDLANE_E_INIT && error.text().find("no such file") != error.text().npos, error.what());

  const feedlane_dataset wrong = feedlane::dataset_of<WrongType>();
  feedlane::Loader loader(options_of(order, wrong), error);
  loader.start_epoch(0, error);
  (void)loader.next(std::chrono::nanoseconds::max(), error);
  check(error.code() == FEEDLANE_E_SAMPLE && error.text().find("has type int64, not float32") != error.text().npos,
        error.what());
}

}  // namespace

int main() {
  run_epoch();
  check_failures();
  return failures == 0 ? 0 : 1;
}
