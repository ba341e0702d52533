// SPDX-License-Identifier: Apache-2.0
// The distributed sampler: each rank's share of one order.
#include <algorithm>
#include <optional>

#include "sampler/feistel.hpp"
#include "sampler/listed.hpp"
#include "sampler/torch_random.hpp"

namespace feedlane::sampler {
namespace {

// The list that all ranks share: an order of the data set, repeated from its start or cut, so that each of `world` ranks gets
// the same number of indices.
struct PaddedList {
  static std::int64_t total(std::int64_t length, std::int64_t world, bool drop_last) {
    return (length / world + (length % world != 0 && !drop_last ? 1 : 0)) * world;
  }
  [[nodiscard]] std::int64_t at(std::int64_t place) const {
    place %= length;
    if (permutation) return permutation->at(place);
    return order.empty() ? place : order[static_cast<std::size_t>(place)];
  }

  std::int64_t length = 0;
  std::vector<std::int64_t> order;       // torch's order; else empty
  std::optional<Feistel> permutation{};  // feistel
};

// torch's DistributedSampler. From `start_` on, every world-th index of the list is this rank's. `start_` is 0 unless a state
// was loaded: then the list is still the one padded for the world that the epoch began with, and the indices that those ranks
// have not yielded are divided among the present ranks.
class Distributed final : public Listed {
 public:
  Distributed(const feedlane_distributed_config& config, const RankSource& rank) : config_(config), rank_(rank) {
    list_.length = config.length;
    deal(rank.world, 0, 0);
  }
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override {
    return std::make_unique<Distributed>(config_, rank_);
  }
  [[nodiscard]] std::int64_t length() const override { return before_ + own(); }
  // Modulo 2^64: `first` alone may be far below zero, but sums with it are in range.
  [[nodiscard]] Place place() const override {
    const std::uint64_t before = static_cast<std::uint64_t>(before_) * static_cast<std::uint64_t>(rank_.world);
    const std::uint64_t first = static_cast<std::uint64_t>(start_ + rank_.rank) - before;
    return {static_cast<std::int64_t>(first), rank_.world};
  }
  [[nodiscard]] const char* rank_source() const override { return rank_.source; }
  [[nodiscard]] const char* rank_warning() const override { return rank_.warning; }

 private:
  [[nodiscard]] Kind kind() const override { return Kind::distributed; }
  [[nodiscard]] std::vector<Fact> facts() const override {
    return {{"length", static_cast<std::uint64_t>(config_.length)},
            {"seed", config_.no_shuffle != 0 ? 0 : config_.seed},
            {"no_shuffle", static_cast<std::uint64_t>(config_.no_shuffle)},
            {"shuffle", static_cast<std::uint64_t>(config_.shuffle)},
            {"drop_last", static_cast<std::uint64_t>(config_.drop_last)}};
  }
  Status prepare(std::int64_t epoch, Error& error) override;
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const override {
    std::int64_t place = start_ + (first - before_) * rank_.world + rank_.rank;
    for (std::uint64_t i = 0; i < count; i++, place += rank_.world) indices[i] = list_.at(place);
  }
  [[nodiscard]] std::int64_t earliest() const override { return before_; }
  void save_more(std::int64_t position, ByteWriter& more) const override;
  Status load_more(std::int64_t position, ByteReader& more, Error& error) override;

  void deal(std::int64_t origin, std::int64_t start, std::int64_t before) {
    origin_ = origin;
    total_ = PaddedList::total(config_.length, origin, config_.drop_last != 0);
    start_ = start;
    before_ = before;
  }
  // Number of this rank's indices from `start_` on.
  [[nodiscard]] std::int64_t own() const {
    const std::int64_t left = total_ - start_ - rank_.rank;
    return left <= 0 ? 0 : (left - 1) / rank_.world + 1;
  }

  feedlane_distributed_config config_;
  RankSource rank_;
  PaddedList list_;
  std::int64_t origin_ = 1;  // the world that the list is padded for
  std::int64_t total_ = 0;   // length of the padded list
  std::int64_t start_ = 0;
  std::int64_t before_ = 0;  // indices of this epoch that were yielded before the state was loaded
};

Status Distributed::prepare(std::int64_t epoch, Error&) {
  deal(rank_.world, 0, 0);
  const std::uint64_t seed = config_.seed + static_cast<std::uint64_t>(epoch);
  if (config_.no_shuffle != 0) return FEEDLANE_OK;
  if (config_.shuffle == FEEDLANE_SHUFFLE_FEISTEL) {
    list_.permutation = Feistel(config_.length, feistel_key(seed, 0));
    return FEEDLANE_OK;
  }
  list_.order.clear();
  TorchGenerator(seed).randperm(config_.length, config_.length, list_.order);
  return FEEDLANE_OK;
}

// Saves the position of all ranks together. All ranks are saved at the same position, or at their end, which ranks with one
// index fewer reach first.
void Distributed::save_more(std::int64_t position, ByteWriter& more) const {
  const std::int64_t dealt = position - before_;
  const bool over = dealt > (total_ - start_) / rank_.world;
  more.i64(origin_);
  more.i64(over ? total_ : start_ + dealt * rank_.world);
}

// The position of one rank must not be larger than that of all ranks together.
Status Distributed::load_more(std::int64_t position, ByteReader& more, Error& error) {
  const std::int64_t origin = more.i64();
  const std::int64_t start = more.i64();
  if (!more.ok() || origin < 1 || origin > INT32_MAX || position > start ||
      start > PaddedList::total(config_.length, origin, config_.drop_last != 0))
    return refuse_damaged(error);
  deal(origin, start, position);
  return FEEDLANE_OK;
}

Status check(const feedlane_distributed_config& c, Error& error) {
  if (c.length < 0) return refuse(error, "config.length", c.length, 0, "must not be negative");
  if (c.length > Feistel::most)
    return refuse(error, "config.length", c.length, Feistel::most, "must not be more than 2^62");
  if (c.world < 0) return refuse(error, "config.world", c.world, 0, "must not be negative");
  if (c.world == 0 && c.rank != 0) return refuse(error, "config.rank", c.rank, 0, "there is no rank without a world");
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
    return refuse(error, "config.shuffle", c.shuffle, 0, "with no_shuffle there is nothing to shuffle");
  return FEEDLANE_OK;
}

}  // namespace

Status make_distributed(const feedlane_distributed_config& config, const Environment& environment,
                        std::unique_ptr<Sampler>& out, Error& error) {
  Status s = check(config, error);
  if (s != FEEDLANE_OK) return s;
  RankSource rank;
  if (config.world > 0) {
    rank.rank = config.rank;
    rank.world = config.world;
    rank.source = "config";
  } else if (config.detect_off != 0) {
    rank.source = "off";
  } else {
    s = detect_rank(environment, rank, error);
  }
  if (s == FEEDLANE_OK) out = std::make_unique<Distributed>(config, rank);
  return s;
}

}  // namespace feedlane::sampler
