// SPDX-License-Identifier: Apache-2.0
// The sampler of batches under a token budget.
#include <algorithm>
#include <array>
#include <numeric>

#include "sampler/checks.hpp"
#include "sampler/content.hpp"
#include "sampler/kinds.hpp"
#include "sampler/state.hpp"
#include "sampler/token_batches.hpp"

namespace feedlane::sampler {
namespace {

constexpr std::int64_t most_rows = std::int64_t{1} << 30;  // same limit as a loader's batch_size
constexpr std::uint64_t default_window = 8192;
constexpr std::int32_t most_ranks = 1 << 20;  // a step takes memory for this many batches
constexpr std::uint32_t most_stages = 1024;

// Shared by copies of a sampler.
struct Lengths {
  std::vector<std::uint32_t> values;
  std::uint64_t content = 0;
};

// A stretch of the epoch: `world` ranks did `steps` steps. A step is one batch on each rank.
struct Stage {
  std::uint32_t world;
  std::int64_t steps;
};

// At the start of an epoch the samples are shuffled and put into batches for this world. A state of another world
// resumes with the samples that its ranks have not yielded, put into batches for this world.
class Tokens final : public Sampler {
 public:
  Tokens(std::shared_ptr<const Lengths> lengths, const feedlane_sampler_config& config, const RankSource& rank,
         std::shared_ptr<const TokenBatches> first)
      : lengths_(std::move(lengths)), config_(config), rank_(rank), first_(std::move(first)), batches_(first_) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override {
    return std::make_unique<Tokens>(lengths_, config_, rank_, first_);
  }
  Status restart(std::int64_t epoch, std::uint64_t seed, Error& error) override;
  Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) override;
  [[nodiscard]] std::int64_t length() const override {
    return before_ + static_cast<std::int64_t>(batches_->size() / world());
  }
  [[nodiscard]] std::int64_t batch_rows() const override { return config_.max_rows; }
  [[nodiscard]] Place place() const override { return {rank_.rank, rank_.world}; }
  Status save(std::int64_t position, std::vector<std::byte>& out, Error& error) const override;
  Status load(std::span<const std::byte> state, Error& error) override;
  [[nodiscard]] const char* rank_source() const override { return rank_.source; }
  [[nodiscard]] const char* rank_warning() const override { return rank_.warning; }

  static TokenRules rules_of(const feedlane_sampler_config& config);

 private:
  [[nodiscard]] std::uint32_t world() const { return static_cast<std::uint32_t>(rank_.world); }
  [[nodiscard]] std::array<Fact, 10> facts() const;
  [[nodiscard]] TokenBatches made(std::int64_t epoch, std::uint32_t world) const;
  Status follow(std::vector<Stage> stages, Error& error);

  std::shared_ptr<const Lengths> lengths_;
  feedlane_sampler_config config_;
  RankSource rank_;
  std::shared_ptr<const TokenBatches> first_;    // of epoch 0, so that a new sampler has a length
  std::shared_ptr<const TokenBatches> batches_;  // of the epoch, from step `before_` on
  std::vector<Stage> stages_;                    // the steps before `before_`
  std::int64_t epoch_ = 0;
  std::int64_t position_ = 0;  // steps
  std::int64_t before_ = 0;
};

TokenRules Tokens::rules_of(const feedlane_sampler_config& config) {
  return {static_cast<std::uint32_t>(config.max_tokens),
          static_cast<std::uint32_t>(config.max_rows),
          static_cast<std::uint64_t>(config.window),
          config.padded != 0,
          config.no_shuffle == 0,
          config.drop_last != 0};
}

std::array<Fact, 10> Tokens::facts() const {
  const auto number = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {{{"length", lengths_->values.size()},
           {"seed", config_.no_shuffle != 0 ? 0 : config_.seed},
           {"max_tokens", number(config_.max_tokens)},
           {"max_rows", number(config_.max_rows)},
           {"window", number(config_.window)},
           {"padded", number(config_.padded)},
           {"no_shuffle", number(config_.no_shuffle)},
           {"drop_last", number(config_.drop_last)},
           {"drop_long", number(config_.drop_long)},
           {"length checksum", lengths_->content}}};
}

TokenBatches Tokens::made(std::int64_t epoch, std::uint32_t world) const {
  TokenBatches batches(lengths_->values, rules_of(config_), config_.seed + static_cast<std::uint64_t>(epoch));
  batches.fill(world);
  batches.shuffle(world);
  return batches;
}

Status Tokens::restart(std::int64_t epoch, std::uint64_t, Error&) {
  batches_ = epoch == 0 ? first_ : std::make_shared<const TokenBatches>(made(epoch, world()));
  epoch_ = epoch;
  stages_.clear();
  position_ = before_ = 0;
  return FEEDLANE_OK;
}

Status Tokens::next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) {
  got = 0;
  if (const Status s = check_room(cap, config_.max_rows, error); s != FEEDLANE_OK) return s;
  if (position_ >= length()) return FEEDLANE_END;
  const std::int64_t step = position_ - before_;
  const auto batch = batches_->at(static_cast<std::uint64_t>(step) * world() + static_cast<std::uint64_t>(rank_.rank));
  std::copy(batch.begin(), batch.end(), indices);
  got = batch.size();
  position_++;
  return FEEDLANE_OK;
}

Status Tokens::save(std::int64_t position, std::vector<std::byte>& out, Error& error) const {
  position = std::min(position < 0 ? position_ : position, length());
  if (position < before_)
    return error.refuse(FEEDLANE_E_ARGUMENT, "position", position, before_,
                        "position is {}: must be at least {}, the position of the loaded state", position, before_);
  // Consecutive steps of one world are one stage, because the rest of a filled list needs no filling.
  std::vector<Stage> stages = stages_;
  const std::int64_t steps = position - before_;
  if (stages.empty() || (steps > 0 && stages.back().world != world())) stages.push_back({world(), 0});
  stages.back().steps += steps;
  if (stages.size() > most_stages)
    return error.refuse(FEEDLANE_E_LIMIT, "state", stages.size(), most_stages,
                        "the number of ranks has changed {} times in this epoch: a state has room for only {} numbers",
                        stages.size() - 1, most_stages);
  const auto definition = facts();
  StateWriter state(out, Kind::tokens, definition, epoch_);
  state.more().u32(static_cast<std::uint32_t>(stages.size()));
  for (const Stage& stage : stages) {
    state.more().u32(stage.world);
    state.more().i64(stage.steps);
  }
  state.finish();
  return FEEDLANE_OK;
}

Status Tokens::load(std::span<const std::byte> state, Error& error) {
  const auto definition = facts();
  ByteReader more({});
  const Status s = open_state(state, Kind::tokens, definition, epoch_, more, error);
  if (s != FEEDLANE_OK) return s;
  const std::uint32_t count = more.u32();
  if (!more.ok() || count == 0 || count > most_stages || more.left() != std::size_t{count} * 12)
    return refuse_damaged(error);
  std::vector<Stage> stages;
  stages.reserve(count);
  for (std::uint32_t i = 0; i < count; i++) {
    const std::uint32_t world = more.u32();
    const std::int64_t steps = more.i64();
    if (world < 1 || world > static_cast<std::uint32_t>(most_ranks) || steps < (i == 0 ? 0 : 1))
      return refuse_damaged(error);
    stages.push_back({world, steps});
  }
  return follow(std::move(stages), error);
}

// Skips the batches of a state's stages, and fills the rest for this world.
Status Tokens::follow(std::vector<Stage> stages, Error& error) {
  if (stages.size() == 1 && stages[0].world == world()) {
    if (!stages_.empty()) (void)restart(epoch_, 0, error);
    if (stages[0].steps > length()) return refuse_damaged(error);
    position_ = stages[0].steps;
    return FEEDLANE_OK;
  }
  TokenBatches batches = made(epoch_, stages[0].world);
  for (std::size_t i = 0; i < stages.size(); i++) {
    if (i > 0) batches.fill(stages[i].world);
    if (static_cast<std::uint64_t>(stages[i].steps) > batches.size() / stages[i].world) return refuse_damaged(error);
    batches.skip(static_cast<std::uint64_t>(stages[i].steps) * stages[i].world);
  }
  batches.fill(world());
  batches_ = std::make_shared<const TokenBatches>(std::move(batches));
  stages_ = std::move(stages);
  position_ = before_ = std::accumulate(stages_.begin(), stages_.end(), std::int64_t{0},
                                        [](std::int64_t sum, const Stage& stage) { return sum + stage.steps; });
  return FEEDLANE_OK;
}

Status check(const feedlane_sampler_config& c, Error& error) {
  const Ranged numbers[] = {
      {"config.max_tokens", c.max_tokens, 1, INT32_MAX}, {"config.max_rows", c.max_rows, 1, most_rows},
      {"config.window", c.window, 0, INT64_MAX},         {"config.padded", c.padded, 0, 1},
      {"config.no_shuffle", c.no_shuffle, 0, 1},         {"config.drop_last", c.drop_last, 0, 1},
      {"config.drop_long", c.drop_long, 0, 1},           {"config.detect_off", c.detect_off, 0, 1},
      {"config.world", c.world, 0, most_ranks},          {"config.rank", c.rank, 0, c.world > 0 ? c.world - 1 : 0}};
  return check_ranges(numbers, error);
}

// Copies the lengths. A length beyond the budget is refused, or left out later.
Status read_lengths(std::span<const std::int64_t> lengths, const feedlane_sampler_config& c, Lengths& out,
                    Error& error) {
  out.values.reserve(lengths.size());  // throws before anything is read if memory is short
  for (std::size_t i = 0; i < lengths.size(); i++) {
    if (lengths[i] < 0)
      return error.refuse(FEEDLANE_E_ARGUMENT, "config.lengths", lengths[i], 0,
                          "lengths[{}] is {}: must not be negative", i, lengths[i]);
    if (lengths[i] > c.max_tokens && c.drop_long == 0)
      return error.refuse(
          FEEDLANE_E_ARGUMENT, "config.lengths", lengths[i], c.max_tokens,
          "lengths[{}] is {}: must be at most config.max_tokens, {}; config.drop_long skips longer samples", i,
          lengths[i], c.max_tokens);
    out.values.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(lengths[i], UINT32_MAX)));
  }
  out.content = content_of(std::span<const std::uint32_t>(out.values));
  return FEEDLANE_OK;
}

}  // namespace

Status make_tokens(const feedlane_sampler_config& config, const Sampler*, const Environment& environment, Made& out,
                   Error& error) {
  feedlane_sampler_config c = config;
  const std::int64_t* const lengths = c.lengths;
  const std::uint64_t count = c.count;
  if (lengths == nullptr && count != 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.lengths", 0, 1, "config.lengths is NULL, but config.count is {}",
                        count);
  if (count > INT32_MAX)
    return refuse(error, "config.count", std::min<std::uint64_t>(count, INT64_MAX), INT32_MAX, "must be below 2^31");
  Status s = check(c, error);
  if (s != FEEDLANE_OK) return s;
  if (c.window == 0) c.window = default_window;
  RankSource rank;
  s = choose_rank(c, environment, rank, error);
  if (s == FEEDLANE_OK && rank.world > most_ranks)
    s = refuse(error, "config.world", rank.world, most_ranks, "must be at most 2^20; the environment variables set it");
  auto shared = std::make_shared<Lengths>();
  if (s == FEEDLANE_OK) s = read_lengths({lengths, static_cast<std::size_t>(count)}, c, *shared, error);
  if (s != FEEDLANE_OK) return s;
  const auto world = static_cast<std::uint32_t>(rank.world);
  auto first = std::make_shared<TokenBatches>(shared->values, Tokens::rules_of(c), c.seed);
  first->fill(world);
  first->shuffle(world);
  out = std::make_unique<Tokens>(std::move(shared), c, rank, std::move(first));
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
