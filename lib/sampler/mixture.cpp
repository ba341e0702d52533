// SPDX-License-Identifier: Apache-2.0
// The mixture sampler.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/splitmix.hpp"
#include "sampler/checks.hpp"
#include "sampler/content.hpp"
#include "sampler/dealt.hpp"
#include "sampler/feistel.hpp"
#include "sampler/kinds.hpp"
#include "sampler/sources.hpp"

namespace feedlane::sampler {
namespace {

constexpr std::int64_t default_window = 1024;
constexpr std::uint64_t most_weights = std::uint64_t{1} << 24;

// Shared by copies of a sampler.
struct Recipe {
  Recipe(std::span<const std::int64_t> sizes, std::span<const std::int64_t> from, std::span<const std::uint64_t> shares)
      : lengths(sizes.begin(), sizes.end()), sources(sizes.size(), from, shares) {
    std::int64_t samples = 0;
    for (const std::int64_t length : sizes) {
      first.push_back(samples);
      samples += length;
    }
    content = scatter(content_of(sizes) ^ scatter(content_of(from) ^ scatter(content_of(shares))));
  }
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> first;  // the data set's index of each source's sample 0
  Sources sources;
  std::uint64_t content = 0;
};

// Epochs are pieces of one stream, so a rarely picked source does not start over in each epoch. Windows of the stream
// are shuffled, so that each rank and each batch gets its share of every source. A source's samples are shuffled once
// in each pass over the source.
class Mixture final : public Dealt {
 public:
  Mixture(std::shared_ptr<const Recipe> recipe, const feedlane_sampler_config& config, const RankSource& rank)
      : Dealt(config.num_samples, config.drop_last != 0, rank), recipe_(std::move(recipe)), config_(config) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override {
    return std::make_unique<Mixture>(recipe_, config_, rank());
  }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::mixture; }
  [[nodiscard]] std::vector<Fact> facts() const override {
    const bool uses_seed = config_.no_shuffle == 0 || config_.window > 1;
    return {{"source and weight checksum", recipe_->content},
            {"num_samples", static_cast<std::uint64_t>(config_.num_samples)},
            {"seed", uses_seed ? config_.seed : 0},
            {"window", static_cast<std::uint64_t>(config_.window)},
            {"no_shuffle", static_cast<std::uint64_t>(config_.no_shuffle)},
            {"drop_last", static_cast<std::uint64_t>(config_.drop_last)}};
  }
  Status make_list(std::int64_t epoch, Error& error) override;
  void look_up(std::int64_t first, std::int64_t step, std::int64_t* indices, std::uint64_t count) const override;
  [[nodiscard]] std::int64_t index_of(const Sources::Pick& pick) const;

  std::shared_ptr<const Recipe> recipe_;
  feedlane_sampler_config config_;
  std::int64_t start_ = 0;  // position in the stream at which the epoch begins
};

Status Mixture::make_list(std::int64_t epoch, Error& error) {
  if (epoch >= Feistel::most / config_.num_samples)
    return error.refuse(FEEDLANE_E_LIMIT, "epoch", epoch, Feistel::most / config_.num_samples - 1,
                        "epoch {} of {} samples each would exceed 2^62 samples in total", epoch, config_.num_samples);
  start_ = epoch * config_.num_samples;
  return FEEDLANE_OK;
}

void Mixture::look_up(std::int64_t first, std::int64_t step, std::int64_t* indices, std::uint64_t count) const {
  const std::int64_t window = config_.window;
  std::optional<Feistel> shuffled;  // of the current window
  std::int64_t present = -1;
  for (std::uint64_t i = 0; i < count; i++, first += step) {
    std::int64_t position = start_ + first % config_.num_samples;
    if (window > 1) {
      const std::int64_t nth = position / window;
      if (nth != present) shuffled.emplace(window, feistel_key(scatter(config_.seed), nth));
      present = nth;
      position = nth * window + shuffled->at(position - nth * window);
    }
    indices[i] = index_of(recipe_->sources.at(position));
  }
}

std::int64_t Mixture::index_of(const Sources::Pick& pick) const {
  const std::int64_t length = recipe_->lengths[pick.source];
  const std::int64_t pass = pick.number / length;
  std::int64_t sample = pick.number % length;
  if (config_.no_shuffle == 0)
    sample = Feistel(length, feistel_key(feistel_key(config_.seed, pick.source), pass)).at(sample);
  return recipe_->first[pick.source] + sample;
}

// ---- creation ----

Status check(const feedlane_sampler_config& c, Error& error) {
  const Ranged numbers[] = {{"config.num_samples", c.num_samples, 0, Feistel::most},
                            {"config.window", c.window, 0, Feistel::most},
                            {"config.no_shuffle", c.no_shuffle, 0, 1},
                            {"config.drop_last", c.drop_last, 0, 1},
                            {"config.detect_off", c.detect_off, 0, 1},
                            {"config.world", c.world, 0, INT32_MAX},
                            {"config.rank", c.rank, 0, c.world > 0 ? c.world - 1 : 0}};
  return check_ranges(numbers, error);
}

Status check_lengths(std::span<const std::int64_t> lengths, std::int64_t& samples, Error& error) {
  samples = 0;
  for (std::size_t i = 0; i < lengths.size(); i++) {
    if (lengths[i] < 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.lengths", lengths[i], 0,
                          "lengths[{}] is {}: must not be negative", i, lengths[i]);
    if (lengths[i] > Feistel::most - samples)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.lengths", lengths[i], Feistel::most - samples,
                          "lengths[{}] is {}: all sources together must have at most 2^62 samples", i, lengths[i]);
    samples += lengths[i];
  }
  return FEEDLANE_OK;
}

Status check_stages(std::span<const std::int64_t> from, Error& error) {
  for (std::size_t s = 0; s < from.size(); s++) {
    const std::int64_t least = s == 0 ? 0 : from[s - 1] + 1;
    const std::int64_t most = s == 0 ? 0 : Feistel::most;
    if (from[s] < least || from[s] > most)
      return error.refuse(
          FEEDLANE_E_ARGUMENT, "config.from", from[s], from[s] < least ? least : most,
          "config.from[{}] is {}: the first must be 0, each other one larger than the one before, and all at most 2^62",
          s, from[s]);
  }
  return FEEDLANE_OK;
}

// Converts the weights of one stage to shares of Sources::unit, in proportion. A positive weight never becomes 0.
Status read_weights(std::span<const double> weights, std::span<const std::int64_t> lengths, std::size_t stage,
                    std::vector<std::uint64_t>& shares, Error& error) {
  double sum = 0, largest = 0;
  for (std::size_t i = 0; i < weights.size(); i++) {
    if (!std::isfinite(weights[i]) || weights[i] < 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.weights", static_cast<std::int64_t>(i), 0,
                          "the weight of source {} in stage {} is {}: must be finite and not negative", i, stage,
                          weights[i]);
    if (weights[i] > 0 && lengths[i] == 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.weights", static_cast<std::int64_t>(i), 0,
                          "source {} has weight {} in stage {}, but no samples: its weight must be 0", i, weights[i],
                          stage);
    largest = std::max(largest, weights[i]);
  }
  if (largest == 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.weights", 0, 1,
                        "all weights of stage {} are 0: at least one must be above 0", stage);
  for (const double w : weights) sum += w / largest;
  for (const double w : weights) {
    const auto share = static_cast<std::uint64_t>(std::llround(w / largest / sum * static_cast<double>(Sources::unit)));
    shares.push_back(w > 0 ? std::max<std::uint64_t>(share, 1) : 0);
  }
  return FEEDLANE_OK;
}

}  // namespace

Status make_mixture(const feedlane_sampler_config& config, const Sampler*, const Environment& environment, Made& out,
                    Error& error) {
  feedlane_sampler_config c = config;
  const std::int64_t* const lengths = c.lengths;
  const double* const weights = c.weights;
  const std::uint64_t count = c.count;
  constexpr std::int64_t at_once = 0;
  if (lengths == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, "config.lengths", 0, 1, "config.lengths is NULL");
  if (weights == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, "config.weights", 0, 1, "config.weights is NULL");
  const auto as_signed = [](std::uint64_t n) {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(n, INT64_MAX));
  };
  if (count == 0 || count > Sources::most)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.count", as_signed(count),
                        count == 0 ? 1 : as_signed(Sources::most), "config.count is {}: must be between 1 and {}",
                        count, Sources::most);
  if ((c.from == nullptr) != (c.stages == 0))
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.stages", as_signed(c.stages), c.from == nullptr ? 0 : 1,
                        "config.from is {}, but config.stages is {}: set both or neither",
                        c.from == nullptr ? "NULL" : "given", c.stages);
  if (c.stages > most_weights / count)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.stages", as_signed(c.stages), as_signed(most_weights / count),
                        "{} stages of {} sources: at most {} weights are supported", c.stages, count, most_weights);
  const std::span from = c.stages == 0 ? std::span(&at_once, 1) : std::span(c.from, static_cast<std::size_t>(c.stages));
  const std::span sizes(lengths, static_cast<std::size_t>(count));
  std::int64_t samples = 0;
  Status s = check(c, error);
  if (s == FEEDLANE_OK) s = check_lengths(sizes, samples, error);
  if (s == FEEDLANE_OK) s = check_stages(from, error);
  std::vector<std::uint64_t> shares;
  for (std::size_t stage = 0; s == FEEDLANE_OK && stage < from.size(); stage++)
    s = read_weights({weights + stage * sizes.size(), sizes.size()}, sizes, stage, shares, error);
  RankSource rank;
  if (s == FEEDLANE_OK) s = choose_rank(c, environment, rank, error);
  if (s != FEEDLANE_OK) return s;
  if (c.num_samples == 0) c.num_samples = samples;
  if (c.window == 0) c.window = default_window;
  c.from = nullptr;  // belongs to the caller
  out = std::make_unique<Mixture>(std::make_shared<Recipe>(sizes, from, shares), c, rank);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
