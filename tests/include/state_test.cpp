// SPDX-License-Identifier: Apache-2.0
// A run that goes on from a saved state.
#include <doctest/doctest.h>

#include <feedlane/feedlane.hpp>
#include <vector>

namespace {

struct Index {
  explicit Index(const feedlane::WorkerInfo&) {}
  void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = row.index(); }
};

/// What two epochs of 10 samples, by 3, yield, as the state was after each batch.
struct Run {
  std::vector<std::int64_t> seen;
  std::vector<std::vector<std::byte>> states;
};

Run run(std::span<const std::byte> from) {
  const feedlane::Sampler order = feedlane::Sampler::random(10, 5);
  const feedlane_dataset dataset = feedlane::dataset_of<Index>();
  feedlane::Loader loader({.sampler = &order,
                           .fields = {feedlane::field<std::int64_t>("index")},
                           .batch_size = 3,
                           .dataset = &dataset,
                           .state = from});
  Run result;
  while (loader.next_epoch() < 2) {
    for (const feedlane::Batch& batch : loader) {
      for (const std::int64_t x : batch[0].as<std::int64_t>()) result.seen.push_back(x);
      result.states.push_back(loader.state(batch));
      CHECK(result.states.back() == loader.state());
    }
    result.states.push_back(loader.state());
  }
  return result;
}

}  // namespace

// promise: state-other-workers
TEST_CASE("a loader resumed from a state yields exactly the remaining samples, also across epochs") {
  const Run whole = run({});
  REQUIRE(whole.states.size() == 10);
  REQUIRE(whole.seen.size() == 20);
  for (std::size_t i = 0; i < whole.states.size(); i++) {
    const feedlane::StateInfo info = feedlane::read_state(whole.states[i]);
    const auto done = static_cast<std::size_t>(10 * info.epoch + info.samples);
    CHECK(info.ended == (i % 5 == 4));
    const Run rest = run(whole.states[i]);
    CHECK(rest.seen ==
          std::vector<std::int64_t>(whole.seen.begin() + static_cast<std::ptrdiff_t>(done), whole.seen.end()));
  }
}

TEST_CASE("read_state() refuses bytes that are not a state") {
  const std::vector<std::byte> none(100);
  CHECK_THROWS_AS((void)feedlane::read_state(none), feedlane::Error);
}
