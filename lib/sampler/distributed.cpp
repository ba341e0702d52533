// SPDX-License-Identifier: Apache-2.0
// The distributed sampler: each rank's share of one order.
#include <optional>

#include "sampler/dealt.hpp"
#include "sampler/feistel.hpp"
#include "sampler/kinds.hpp"
#include "sampler/torch_random.hpp"

namespace feedlane::sampler {
namespace {

// torch's DistributedSampler.
class Distributed final : public Dealt {
 public:
  Distributed(const feedlane_sampler_config& config, const RankSource& rank)
      : Dealt(config.length, config.drop_last != 0, rank), config_(config) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override {
    return std::make_unique<Distributed>(config_, rank());
  }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::distributed; }
  [[nodiscard]] std::vector<Fact> facts() const override {
    return {{"length", static_cast<std::uint64_t>(config_.length)},
            {"seed", config_.no_shuffle != 0 ? 0 : config_.seed},
            {"no_shuffle", static_cast<std::uint64_t>(config_.no_shuffle)},
            {"shuffle", static_cast<std::uint64_t>(config_.shuffle)},
            {"drop_last", static_cast<std::uint64_t>(config_.drop_last)}};
  }
  Status make_list(std::int64_t epoch, Error& error) override;
  void look_up(std::int64_t first, std::int64_t step, std::int64_t* indices, std::uint64_t count) const override {
    for (std::uint64_t i = 0; i < count; i++, first += step) indices[i] = at(first % config_.length);
  }
  [[nodiscard]] std::int64_t at(std::int64_t place) const {
    if (permutation_) return permutation_->at(place);
    return order_.empty() ? place : order_[static_cast<std::size_t>(place)];
  }

  feedlane_sampler_config config_;
  std::vector<std::int64_t> order_;       // torch's order, otherwise empty
  std::optional<Feistel> permutation_{};  // feistel
};

Status Distributed::make_list(std::int64_t epoch, Error&) {
  const std::uint64_t seed = config_.seed + static_cast<std::uint64_t>(epoch);
  if (config_.no_shuffle != 0) return FEEDLANE_OK;
  if (config_.shuffle == FEEDLANE_SHUFFLE_FEISTEL) {
    permutation_ = Feistel(config_.length, feistel_key(seed, 0));
    return FEEDLANE_OK;
  }
  order_.clear();
  TorchGenerator(seed).randperm(config_.length, config_.length, order_);
  return FEEDLANE_OK;
}

Status check(const feedlane_sampler_config& c, Error& error) {
  if (c.length < 0) return refuse(error, "config.length", c.length, 0, "must not be negative");
  if (c.length > Feistel::most) return refuse(error, "config.length", c.length, Feistel::most, "must be at most 2^62");
  if (c.world < 0) return refuse(error, "config.world", c.world, 0, "must not be negative");
  if (c.world == 0 && c.rank != 0)
    return refuse(error, "config.rank", c.rank, 0, "must be 0 unless config.world is set");
  if (c.rank < 0 || (c.world > 0 && c.rank >= c.world))
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.rank", c.rank, c.rank < 0 ? 0 : c.world,
                        "config.rank is {}: must be at least 0 and less than config.world, {}", c.rank, c.world);
  const struct {
    const char* name;
    std::int32_t value;
  } flags[] = {{"config.no_shuffle", c.no_shuffle},
               {"config.drop_last", c.drop_last},
               {"config.shuffle", c.shuffle},
               {"config.detect_off", c.detect_off}};
  for (const auto& flag : flags)
    if (flag.value < 0 || flag.value > 1)
      return refuse(error, flag.name, flag.value, flag.value < 0 ? 0 : 1, "must be 0 or 1");
  if (c.no_shuffle != 0 && c.shuffle != 0)
    return refuse(error, "config.shuffle", c.shuffle, 0, "must be 0 if config.no_shuffle is 1");
  return FEEDLANE_OK;
}

}  // namespace

Status make_distributed(const feedlane_sampler_config& config, const Sampler*, const Environment& environment,
                        Made& out, Error& error) {
  Status s = check(config, error);
  if (s != FEEDLANE_OK) return s;
  RankSource rank;
  s = choose_rank(config, environment, rank, error);
  if (s == FEEDLANE_OK) out = std::make_unique<Distributed>(config, rank);
  return s;
}

}  // namespace feedlane::sampler
