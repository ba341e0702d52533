// SPDX-License-Identifier: Apache-2.0
// A whole trainer in one file: a data set in memory, worker processes forked by the library, two epochs, a checksum. Copy it,
// decode your own samples in Points::get, and train where the checksum is taken.
// Usage: minimal [WORKERS]; the checksum is the same with any number of workers, 1 or more.
#include <feedlane/feedlane.hpp>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

constexpr int64_t samples = 1000, features = 16;
constexpr uint64_t seed = 1;

/// A map-style data set: 16 floats and a label for each index. A forked worker has a copy of the object.
class Points {
 public:
  Points() : values_(samples * features) {
    for (size_t i = 0; i < values_.size(); i++) values_[i] = static_cast<float>(i % 97) / 97.0f;
  }
  /// Writes one sample into its row of the batch, in shared memory. The row's seed is for augmentation.
  void get(const feedlane::Row& row) const {
    const std::span<float> x = row.field<float>(0);
    std::copy_n(values_.begin() + row.index() * features, features, x.begin());
    if (row.seed() % 2 == 1) std::reverse(x.begin(), x.end());
    row.field<int64_t>(1)[0] = row.index() % 10;
  }

 private:
  std::vector<float> values_;
};

/// FNV-1a, continued from `hash`.
uint64_t fnv1a(uint64_t hash, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
  return hash;
}

uint64_t train(int workers) {
  Points points;
  const feedlane_dataset dataset = feedlane::dataset_of(points);
  const feedlane::Sampler order = feedlane::Sampler::random(samples, seed);
  feedlane::Loader loader({.sampler = &order,
                           .fields = {feedlane::field<float>("x", {features}), feedlane::field<int64_t>("label")},
                           .batch_size = 32,
                           .seed = seed,
                           .dataset = &dataset,
                           .workers = workers,
                           .start = feedlane::Start::fork,
                           .keep_workers = true});
  uint64_t hash = 0xcbf29ce484222325u;
  for (int epoch = 0; epoch < 2; epoch++) {
    // Each batch goes back to the workers when the loop comes to the next one.
    for (const feedlane::Batch& batch : loader) hash = fnv1a(fnv1a(hash, batch["x"].bytes()), batch["label"].bytes());
  }
  return hash;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::printf("checksum: %016" PRIx64 "\n", train(argc > 1 ? std::atoi(argv[1]) : 2));
    return 0;
  } catch (const feedlane::Error& error) {
    std::fprintf(stderr, "minimal: %s\n", error.what());
    return 1;
  }
}
