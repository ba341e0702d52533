// SPDX-License-Identifier: Apache-2.0
// The random sampler: torch's order, or one computed index by index.
#include <algorithm>

#include "base/splitmix.hpp"
#include "sampler/feistel.hpp"
#include "sampler/kinds.hpp"
#include "sampler/listed.hpp"
#include "sampler/torch_random.hpp"

namespace feedlane::sampler {
namespace {

// torch's RandomSampler. The complete epoch is a list in memory.
class TorchRandom final : public Listed {
 public:
  explicit TorchRandom(const feedlane_sampler_config& config) : config_(config), epochs_(config.seed) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override { return std::make_unique<TorchRandom>(config_); }
  [[nodiscard]] std::int64_t length() const override { return config_.num_samples; }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::random; }
  [[nodiscard]] std::vector<Fact> facts() const override;
  Status prepare(std::int64_t epoch, Error& error) override;
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const override {
    std::copy_n(order_.begin() + static_cast<std::ptrdiff_t>(first), count, indices);
  }

  feedlane_sampler_config config_;
  TorchEpochs epochs_;
  std::vector<std::int64_t> order_;
};

// An order computed index by index, in constant memory.
class ComputedRandom final : public Listed {
 public:
  explicit ComputedRandom(const feedlane_sampler_config& config) : config_(config) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override { return std::make_unique<ComputedRandom>(config_); }
  [[nodiscard]] std::int64_t length() const override { return config_.num_samples; }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::random; }
  [[nodiscard]] std::vector<Fact> facts() const override;
  Status prepare(std::int64_t epoch, Error&) override {
    seed_ = config_.seed + static_cast<std::uint64_t>(epoch);
    return FEEDLANE_OK;
  }
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const override;

  feedlane_sampler_config config_;
  std::uint64_t seed_ = 0;
};

std::vector<Fact> facts_of(const feedlane_sampler_config& c) {
  return {{"length", static_cast<std::uint64_t>(c.length)},
          {"seed", c.seed},
          {"num_samples", static_cast<std::uint64_t>(c.num_samples)},
          {"replacement", static_cast<std::uint64_t>(c.replacement)},
          {"shuffle", static_cast<std::uint64_t>(c.shuffle)}};
}

std::vector<Fact> TorchRandom::facts() const { return facts_of(config_); }
std::vector<Fact> ComputedRandom::facts() const { return facts_of(config_); }

Status TorchRandom::prepare(std::int64_t epoch, Error& error) {
  const bool as_loader = config_.shuffle == FEEDLANE_SHUFFLE_TORCH_LOADER;
  if (as_loader && epoch > TorchEpochs::most)
    return error.refuse(FEEDLANE_E_LIMIT, "epoch", epoch, TorchEpochs::most,
                        "epoch is {}: must be at most {} with FEEDLANE_SHUFFLE_TORCH_LOADER", epoch, TorchEpochs::most);
  TorchGenerator generator(as_loader ? epochs_.seed(epoch) : config_.seed + static_cast<std::uint64_t>(epoch));
  const std::int64_t n = config_.length;
  order_.clear();
  if (config_.replacement != 0) {
    generator.randint(n, config_.num_samples, order_);
    return FEEDLANE_OK;
  }
  // Rounded up to complete passes, because each pass is a full permutation before the last one is cut. Both numbers are
  // below 2^63.
  const auto whole = static_cast<std::uint64_t>(config_.num_samples) + static_cast<std::uint64_t>(n) - 1;
  order_.reserve(whole - whole % static_cast<std::uint64_t>(n));
  for (std::int64_t left = config_.num_samples; left > 0; left -= std::min(n, left))
    generator.randperm(n, std::min(n, left), order_);
  return FEEDLANE_OK;
}

// Number `place` of the random stream of `key`, below n. This is not torch's stream.
std::int64_t draw(std::uint64_t key, std::int64_t place, std::int64_t n) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::int64_t>((Wide{row_seed(key, place)} * static_cast<std::uint64_t>(n)) >> 64);
}

void ComputedRandom::read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const {
  if (config_.replacement != 0) {
    const std::uint64_t key = feistel_key(seed_, 0);
    for (std::uint64_t i = 0; i < count; i++)
      indices[i] = draw(key, first + static_cast<std::int64_t>(i), config_.length);
    return;
  }
  while (count > 0) {
    const std::int64_t pass = first / config_.length;
    const std::int64_t place = first % config_.length;
    const std::uint64_t part = std::min(count, static_cast<std::uint64_t>(config_.length - place));
    const Feistel permutation(config_.length, feistel_key(seed_, pass));
    for (std::uint64_t i = 0; i < part; i++) indices[i] = permutation.at(place + static_cast<std::int64_t>(i));
    first += static_cast<std::int64_t>(part);
    indices += part;
    count -= part;
  }
}

}  // namespace

Status make_random(const feedlane_sampler_config& config, const Sampler*, const Environment&, Made& out, Error& error) {
  feedlane_sampler_config c = config;
  if (c.length <= 0) return refuse(error, "config.length", c.length, 1, "must be at least 1");
  if (c.num_samples < 0) return refuse(error, "config.num_samples", c.num_samples, 0, "must not be negative");
  if (c.replacement < 0 || c.replacement > 1)
    return refuse(error, "config.replacement", c.replacement, c.replacement < 0 ? 0 : 1, "must be 0 or 1");
  if (c.shuffle < FEEDLANE_SHUFFLE_TORCH || c.shuffle > FEEDLANE_SHUFFLE_TORCH_LOADER)
    return refuse(error, "config.shuffle", c.shuffle, c.shuffle < 0 ? 0 : FEEDLANE_SHUFFLE_TORCH_LOADER,
                  "must be one of FEEDLANE_SHUFFLE_...");
  if (c.num_samples == 0) c.num_samples = c.length;
  if (c.shuffle != FEEDLANE_SHUFFLE_FEISTEL) {
    out = std::make_unique<TorchRandom>(c);
    return FEEDLANE_OK;
  }
  if (c.length > Feistel::most)
    return refuse(error, "config.length", c.length, Feistel::most,
                  "must be at most 2^62 with FEEDLANE_SHUFFLE_FEISTEL");
  out = std::make_unique<ComputedRandom>(c);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
