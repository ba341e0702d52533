// SPDX-License-Identifier: Apache-2.0
// The weighted sampler, with and without replacement.
#include <algorithm>
#include <cmath>

#include "sampler/alias.hpp"
#include "sampler/content.hpp"
#include "sampler/feistel.hpp"
#include "sampler/kinds.hpp"
#include "sampler/listed.hpp"

namespace feedlane::sampler {
namespace {

// Shared by copies of a sampler.
struct Weights {
  std::vector<double> values;  // without replacement
  AliasTable table;            // with replacement
  std::uint64_t content = 0;
  std::uint64_t count = 0;
};

class Weighted final : public Listed {
 public:
  Weighted(std::shared_ptr<const Weights> weights, const feedlane_sampler_config& config)
      : weights_(std::move(weights)), config_(config) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override {
    return std::make_unique<Weighted>(weights_, config_);
  }
  [[nodiscard]] std::int64_t length() const override { return config_.num_samples; }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::weighted; }
  [[nodiscard]] std::vector<Fact> facts() const override {
    return {{"length", weights_->count},
            {"seed", config_.seed},
            {"num_samples", static_cast<std::uint64_t>(config_.num_samples)},
            {"without_replacement", static_cast<std::uint64_t>(config_.without_replacement)},
            {"weight checksum", weights_->content}};
  }
  Status prepare(std::int64_t epoch, Error&) override;
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const override;

  std::shared_ptr<const Weights> weights_;
  feedlane_sampler_config config_;
  std::uint64_t key_ = 0;
  std::vector<std::int64_t> order_;  // without replacement
};

// Efraimidis, Spirakis (2006): each index gets an exponential random time with rate w, and the smallest time is drawn
// first. Computed with logarithms, so that no weight is too small or too large.
std::vector<std::int64_t> draw_without_replacement(std::span<const double> weights, std::int64_t count,
                                                   std::uint64_t key) {
  struct Clock {
    double rings;
    std::int64_t index;
    bool operator<(const Clock& other) const {
      return rings != other.rings ? rings < other.rings : index < other.index;
    }
  };
  std::vector<Clock> clocks;
  clocks.reserve(weights.size());
  for (std::size_t i = 0; i < weights.size(); i++) {
    if (weights[i] == 0) continue;
    const std::uint64_t number = row_seed(key, static_cast<std::int64_t>(i));
    const double uniform = (static_cast<double>(number >> 11) + 0.5) * 0x1p-53;  // neither 0 nor 1
    clocks.push_back({std::log(-std::log(uniform)) - std::log(weights[i]), static_cast<std::int64_t>(i)});
  }
  std::partial_sort(clocks.begin(), clocks.begin() + count, clocks.end());
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::transform(clocks.begin(), clocks.begin() + count, order.begin(), [](const Clock& c) { return c.index; });
  return order;
}

Status Weighted::prepare(std::int64_t epoch, Error&) {
  key_ = feistel_key(config_.seed + static_cast<std::uint64_t>(epoch), 0);
  if (config_.without_replacement != 0) order_ = draw_without_replacement(weights_->values, config_.num_samples, key_);
  return FEEDLANE_OK;
}

void Weighted::read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const {
  if (config_.without_replacement != 0) {
    std::copy_n(order_.begin() + static_cast<std::ptrdiff_t>(first), count, indices);
    return;
  }
  for (std::uint64_t i = 0; i < count; i++) {
    const std::uint64_t number = row_seed(key_, first + static_cast<std::int64_t>(i));
    indices[i] = weights_->table.draw(number, scatter(number + golden_gamma));
  }
}

Status check(std::span<const double> weights, std::int64_t& positive, Error& error) {
  positive = 0;
  for (std::size_t i = 0; i < weights.size(); i++) {
    const double w = weights[i];
    if (!std::isfinite(w) || w < 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.weights", i, 0,
                          "weights[{}] is {}: must be finite and not negative", i, w);
    if (w > 0) positive++;
  }
  if (positive == 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.weights", 0, 1,
                        "no weight is above 0 ({} weights): at least one must be", weights.size());
  return FEEDLANE_OK;
}

}  // namespace

Status make_weighted(const feedlane_sampler_config& config, const Sampler*, const Environment&, Made& out,
                     Error& error) {
  feedlane_sampler_config c = config;
  const double* const weights = c.weights;
  const std::uint64_t count = c.count;
  if (weights == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, "config.weights", 0, 1, "config.weights is NULL");
  if (count == 0) return refuse(error, "config.count", 0, 1, "must be at least 1");
  if (c.num_samples < 0) return refuse(error, "config.num_samples", c.num_samples, 0, "must not be negative");
  if (c.without_replacement < 0 || c.without_replacement > 1)
    return refuse(error, "config.without_replacement", c.without_replacement, c.without_replacement < 0 ? 0 : 1,
                  "must be 0 or 1");
  auto shared = std::make_shared<Weights>();
  std::vector<double>& values = shared->values;
  values.reserve(count);  // throws before anything is read if memory is short
  values.assign(weights, weights + count);
  std::int64_t positive = 0;
  const Status s = check(values, positive, error);
  if (s != FEEDLANE_OK) return s;
  if (c.num_samples == 0) c.num_samples = static_cast<std::int64_t>(count);
  if (c.without_replacement != 0 && c.num_samples > positive)
    return refuse(error, "config.num_samples", c.num_samples, positive,
                  "must be at most the number of weights above 0, because samples are drawn without replacement");
  shared->count = count;
  shared->content = content_of(std::span<const double>(values));
  if (c.without_replacement == 0) {
    shared->table = AliasTable(values);
    values = {};
  }
  out = std::make_unique<Weighted>(std::move(shared), c);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
