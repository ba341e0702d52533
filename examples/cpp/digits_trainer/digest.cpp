// SPDX-License-Identifier: Apache-2.0
// Reads ten epochs of raw digits and computes their digest.
#include "digest.hpp"

#include <feedlane/feedlane.hpp>

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>

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

}  // namespace

uint64_t digest(const std::string& directory, int32_t workers) {
  const auto sampler = feedlane::Sampler::random(digit_count, digest_seed);
  const feedlane_dataset dataset = feedlane::dataset_of<RawDigits>();
  feedlane::LoaderOptions wanted{
      .sampler = &sampler,
      .fields = {feedlane::field<uint8_t>("image", {side, side}), feedlane::field<int64_t>("label")},
      .batch_size = digest_batch,
      .workers = workers,
      .keep_workers = workers > 0,
      .worker_config = std::as_bytes(std::span(directory))};
  if (workers > 0) wanted.start = feedlane::Start::fork;
  wanted.dataset = &dataset;
  feedlane::Loader loader(wanted);
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

}  // namespace digits
