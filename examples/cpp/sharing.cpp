// SPDX-License-Identifier: Apache-2.0
// One loader for several trainers: a feeder, and trainers that join it by a path, each started on its own. Each trainer gets
// every batch; with `deal` trainer K of N gets the batches K, K + N, ...
// Usage: sharing feed PATH TRAINERS [deal] | sharing train PATH
#include <feedlane/feedlane.hpp>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int64_t samples = 1000, features = 16;
constexpr int epochs = 2;

/// Decode your own samples here.
class Points {
 public:
  void get(const feedlane::Row& row) const {
    for (float& x : row.field<float>(0)) x = static_cast<float>(row.index() % 97) / 97.0f;
    row.field<int64_t>(1)[0] = row.index() % 10;
  }
};

void feed(const std::string& path, int trainers, feedlane::Share share) {
  Points points;
  const feedlane_dataset dataset = feedlane::dataset_of(points);
  const feedlane::Sampler order = feedlane::Sampler::random(samples, 1);
  feedlane::Loader loader({.sampler = &order,
                           .fields = {feedlane::field<float>("x", {features}), feedlane::field<int64_t>("label")},
                           .batch_size = 32,
                           .seed = 1,
                           .dataset = &dataset,
                           .workers = 2,
                           .start = feedlane::Start::fork,
                           .share = share,
                           .consumers = trainers,
                           .share_path = path});
  feedlane::serve(loader);  // until all trainers have joined
  for (int epoch = 0; epoch < epochs; epoch++) {
    loader.start_epoch(epoch);
    feedlane::serve(loader);
  }
  feedlane::serve(loader);  // until the last trainer has left
}

void train(const std::string& path) {
  feedlane::Loader loader = feedlane::join(path);
  int64_t batches = 0, sum = 0;
  for (int epoch = 0; epoch < epochs; epoch++)
    for (const feedlane::Batch& batch : loader) {
      batches++;
      for (const int64_t index : batch.indices()) sum += index;
    }
  std::printf("batches: %" PRId64 ", sum of indices: %" PRId64 "\n", batches, sum);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool feeds = argc >= 4 && std::strcmp(argv[1], "feed") == 0;
    const bool deals = argc == 5 && std::strcmp(argv[4], "deal") == 0;
    if (feeds) feed(argv[2], std::atoi(argv[3]), deals ? feedlane::Share::deal : feedlane::Share::every);
    else if (argc == 3 && std::strcmp(argv[1], "train") == 0) train(argv[2]);
    else return std::fputs("usage: sharing feed PATH TRAINERS [deal] | sharing train PATH\n", stderr), 2;
    return 0;
  } catch (const feedlane::Error& error) {
    std::fprintf(stderr, "sharing: %s\n", error.what());
    return 1;
  }
}
