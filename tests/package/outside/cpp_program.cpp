// SPDX-License-Identifier: Apache-2.0
// A program outside of the tree: two workers, which are this program again, feed it. Adds up what it gets, prints the sum.
#include <cstdint>
#include <exception>
#include <feedlane/feedlane.hpp>
#include <iostream>

namespace {

struct Numbers {
  explicit Numbers(const feedlane::WorkerInfo&) {}
  // Sample i is i, four times.
  void get(const feedlane::Row& row) {
    for (std::int64_t& x : row.field<std::int64_t>(0)) x = row.index();
  }
};

}  // namespace

int main() try {
  if (feedlane::is_worker()) return feedlane::run_worker<Numbers>();

  const feedlane::Sampler order = feedlane::Sampler::sequential(1000);
  feedlane::LoaderOptions options;
  options.sampler = &order;
  options.fields = {feedlane::field<std::int64_t>("x", {4})};
  options.batch_size = 32;
  options.workers = 2;
  feedlane::Loader loader(options);
  std::int64_t sum = 0;
  for (feedlane::Batch& batch : loader) {
    if (batch.worker() < 0) return 1;  // nobody but a worker has made it
    for (const std::int64_t x : batch["x"].as<std::int64_t>()) sum += x;
  }
  std::cout << "feedlane " << feedlane_version() << ", sum: " << sum << '\n';
  return 0;
} catch (const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
