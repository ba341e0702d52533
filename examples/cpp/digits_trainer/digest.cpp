// SPDX-License-Identifier: Apache-2.0
// Reads ten epochs of raw digits and computes their digest.
#include "digest.hpp"

#include <feedlane/feedlane.hpp>

#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>

#include "../common/program.hpp"
#include "digits.hpp"
#include "idx.hpp"

namespace digits {
namespace {

constexpr int64_t digest_epochs = 10;
constexpr int64_t digest_batch = 64;
constexpr uint64_t digest_seed = 1;

/// The digits as they are in the files, in the files' order.
class RawDigits {
 public:
  explicit RawDigits(const feedlane::WorkerInfo& info) {
    const std::span<const std::byte> config = info.config();
    const std::string directory(reinterpret_cast<const char*>(config.data()), config.size());
    std::string why;
    if (!read_idx(directory + "/optdigits-images-idx3-ubyte", 3, images_, why) ||
        !read_idx(directory + "/optdigits-labels-idx1-ubyte", 1, labels_, why))
      throw std::runtime_error(why);
    if (images_.values.size() != digit_count * pixels || labels_.values.size() != digit_count)
      throw std::runtime_error(directory + ": not the 1,797 digits");
  }
  void get(const feedlane::Row& row) const {
    const auto index = static_cast<size_t>(row.index());
    std::memcpy(row.field<uint8_t>(0).data(), images_.values.data() + index * pixels, pixels);
    *row.field<int64_t>(1).data() = labels_.values[index];
  }

 private:
  Idx images_;
  Idx labels_;
};

uint64_t fnv1a(uint64_t hash, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
  return hash;
}

std::vector<std::string> words_of(const std::string& command) {
  std::istringstream words(command);
  return {std::istream_iterator<std::string>(words), {}};
}

feedlane::Loader make_loader(const Options& options) {
  const auto sampler = feedlane::Sampler::random(digit_count, digest_seed);
  const feedlane_dataset dataset = feedlane::dataset_of<RawDigits>();
  // A worker in another language may have another working directory.
  const std::string directory = std::filesystem::absolute(options.data).string();
  feedlane::LoaderOptions wanted{
      .sampler = &sampler,
      .fields = {feedlane::field<uint8_t>("image", {side, side}), feedlane::field<int64_t>("label")},
      .batch_size = digest_batch,
      .workers = options.workers,
      .keep_workers = options.workers > 0,
      .argv = words_of(options.worker),
      .worker_config = std::as_bytes(std::span(directory))};
  if (options.worker.empty()) {
    if (options.workers > 0) wanted.start = feedlane::Start::fork;
    wanted.dataset = &dataset;
  }
  if (!options.feed.empty()) {
    wanted.share = feedlane::Share::every;
    wanted.consumers = options.consumers;
    wanted.share_path = options.feed;
  }
  return feedlane::Loader(wanted);
}

void feed(feedlane::Loader& loader) {
  std::puts("listening");
  std::fflush(stdout);
  feedlane::serve(loader);  // until all consumers have joined
  for (int64_t epoch = 0; epoch < digest_epochs; epoch++) {
    loader.start_epoch(epoch);
    feedlane::serve(loader);
  }
  feedlane::serve(loader);  // until the last consumer has left
}

uint64_t digest(feedlane::Loader& loader) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t epoch = 0; epoch < digest_epochs; epoch++) {
    loader.start_epoch(epoch);
    while (true) {
      const std::optional<feedlane::Batch> batch = loader.next();
      if (!batch && loader.outcome() == FEEDLANE_INTERRUPTED) continue;
      if (!batch) break;
      for (size_t tensor = 0; tensor < 2; tensor++) hash = fnv1a(hash, (*batch)[tensor].bytes());
    }
  }
  return hash;
}

}  // namespace

void run_digest(const Options& options) {
  feedlane::Loader loader = options.join.empty() ? make_loader(options) : feedlane::join(options.join);
  if (options.feed.empty()) std::printf("digest: %016" PRIx64 "\n", digest(loader));
  else feed(loader);
}

int run_digest_worker() { return common::run_worker<RawDigits>(); }

}  // namespace digits
