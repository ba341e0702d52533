// SPDX-License-Identifier: Apache-2.0
// Cuts an epoch into batches under a token budget.
#include "sampler/token_batches.hpp"

#include <algorithm>
#include <queue>

#include "sampler/feistel.hpp"

namespace feedlane::sampler {

TokenBatches::TokenBatches(std::span<const std::uint32_t> lengths, const TokenRules& rules, std::uint64_t seed)
    : rules_(rules), seed_(seed) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  const Feistel permutation(count, feistel_key(seed, 0));
  order_.reserve(lengths.size());
  for (std::int64_t i = 0; i < count; i++) {
    const auto sample = static_cast<std::uint32_t>(rules.shuffle ? permutation.at(i) : i);
    if (lengths[sample] <= rules.max_tokens) order_.push_back(sample);
  }
  sort_windows(lengths);
  cut(lengths);
}

// Sorts every other window in descending order, so that a batch across two windows has samples of similar length.
void TokenBatches::sort_windows(std::span<const std::uint32_t> lengths) {
  if (rules_.window < 2) return;
  bool ascending = true;
  for (std::uint64_t first = 0; first < order_.size(); first += rules_.window, ascending = !ascending) {
    const auto window = std::span(order_).subspan(first, std::min<std::uint64_t>(rules_.window, order_.size() - first));
    // Stable: samples of equal length stay in shuffled order, so the result doesn't depend on the standard library.
    std::stable_sort(window.begin(), window.end(), [&](std::uint32_t a, std::uint32_t b) {
      return ascending ? lengths[a] < lengths[b] : lengths[b] < lengths[a];
    });
  }
}

void TokenBatches::cut(std::span<const std::uint32_t> lengths) {
  Batch batch{0, 0};
  std::uint64_t sum = 0, longest = 0;
  for (std::uint32_t place = 0; place < order_.size(); place++) {
    const std::uint64_t length = lengths[order_[place]];
    const std::uint64_t cost =
        rules_.padded ? (std::uint64_t{batch.rows} + 1) * std::max(longest, length) : sum + length;
    if (batch.rows != 0 && (batch.rows == rules_.max_rows || cost > rules_.max_tokens)) {
      batches_.push_back(batch);
      batch = {place, 0};
      sum = longest = 0;
    }
    batch.rows++;
    sum += length;
    longest = std::max(longest, length);
  }
  if (batch.rows != 0) batches_.push_back(batch);
}

void TokenBatches::fill(std::uint32_t world) {
  const std::uint64_t rest = batches_.size() % world;
  if (rest == 0) return;
  if (rules_.drop_last) {
    batches_.resize(batches_.size() - rest);
    return;
  }
  const std::uint64_t wanted = batches_.size() - rest + world;
  split(world - rest);
  batches_.reserve(wanted);
  for (std::uint64_t i = 0; batches_.size() < wanted; i++) batches_.push_back(batches_[i]);
}

// Halves the batch with the most rows, the earliest of several, up to `times` times. The parts stay within the budget.
void TokenBatches::split(std::uint64_t times) {
  struct Part {
    std::uint64_t batch;  // the batch that this is a part of
    Batch rows;
    bool operator<(const Part& other) const {  // whether this part is split after the other
      if (rows.rows != other.rows.rows) return rows.rows < other.rows.rows;
      return batch != other.batch ? batch > other.batch : rows.first > other.rows.first;
    }
  };
  std::priority_queue<Part> parts;
  for (std::uint64_t i = 0; i < batches_.size(); i++) parts.push({i, batches_[i]});
  std::vector<Part> split;
  for (; times > 0 && parts.top().rows.rows > 1; times--) {
    const Part whole = parts.top();
    parts.pop();
    const std::uint32_t half = whole.rows.rows / 2;
    parts.push({whole.batch, {whole.rows.first, whole.rows.rows - half}});
    parts.push({whole.batch, {whole.rows.first + whole.rows.rows - half, half}});
  }
  split.reserve(parts.size());
  for (; !parts.empty(); parts.pop()) split.push_back(parts.top());
  std::sort(split.begin(), split.end(), [](const Part& a, const Part& b) {
    return a.batch != b.batch ? a.batch < b.batch : a.rows.first < b.rows.first;
  });
  batches_.resize(split.size());
  std::transform(split.begin(), split.end(), batches_.begin(), [](const Part& part) { return part.rows; });
}

void TokenBatches::shuffle(std::uint32_t world) {
  if (!rules_.shuffle) return;
  const auto groups = static_cast<std::int64_t>(batches_.size() / world);
  const Feistel permutation(groups, feistel_key(seed_, 1));
  std::vector<Batch> shuffled;
  shuffled.reserve(batches_.size());
  for (std::int64_t i = 0; i < groups; i++) {
    const auto first = batches_.begin() + permutation.at(i) * static_cast<std::int64_t>(world);
    shuffled.insert(shuffled.end(), first, first + static_cast<std::int64_t>(world));
  }
  batches_ = std::move(shuffled);
}

void TokenBatches::skip(std::uint64_t batches) {
  batches_.erase(batches_.begin(), batches_.begin() + static_cast<std::ptrdiff_t>(batches));
}

}  // namespace feedlane::sampler
