// SPDX-License-Identifier: Apache-2.0
// The plan of a mixture.
#include "sampler/sources.hpp"

#include <algorithm>
#include <bit>

namespace feedlane::sampler {
namespace {

// How many of a node's first `picks` go to its left side, and whether the next one goes there.
struct Division {
  std::int64_t left;
  bool next_is_left;
};

Division divide(std::int64_t picks, std::uint64_t left, std::uint64_t all) {
  __extension__ using Wide = unsigned __int128;
  const Wide scaled = static_cast<Wide>(picks) * left + all / 2;
  const auto quotient = static_cast<std::uint64_t>(scaled / all);
  const auto rest = static_cast<std::uint64_t>(scaled - static_cast<Wide>(quotient) * all);
  return {static_cast<std::int64_t>(quotient), rest + left >= all};
}

}  // namespace

Sources::Sources(std::uint64_t count, std::span<const std::int64_t> from, std::span<const std::uint64_t> shares)
    : leaves_(std::bit_ceil(count)), from_(from.begin(), from.end()) {
  nodes_.resize(from.size() * 2 * leaves_);
  picked_.resize(from.size() * leaves_);
  std::vector<std::int64_t> picks(leaves_);
  for (std::size_t stage = 0; stage < from.size(); stage++) {
    std::uint64_t* const nodes = nodes_.data() + stage * 2 * leaves_;
    std::copy_n(shares.begin() + static_cast<std::ptrdiff_t>(stage * count), count, nodes + leaves_);
    for (std::uint64_t n = leaves_ - 1; n > 0; n--) nodes[n] = nodes[2 * n] + nodes[2 * n + 1];
    const auto before = std::span(picked_).subspan(stage * leaves_, leaves_);
    std::copy(picks.begin(), picks.end(), before.begin());
    if (stage + 1 == from.size()) break;
    this->count(stage, 1, from[stage + 1] - from[stage], picks);
    for (std::size_t s = 0; s < leaves_; s++) picks[s] += before[s];
  }
}

// How many of a node's first `picks` each source gets.
void Sources::count(std::size_t stage, std::size_t node, std::int64_t picks, std::span<std::int64_t> out) const {
  if (node >= leaves_) {
    out[node - leaves_] = picks;
    return;
  }
  const auto nodes = tree(stage);
  const std::int64_t left = nodes[node] == 0 ? 0 : divide(picks, nodes[2 * node], nodes[node]).left;
  count(stage, 2 * node, left, out);
  count(stage, 2 * node + 1, picks - left, out);
}

Sources::Pick Sources::at(std::int64_t position) const {
  const auto after = std::upper_bound(from_.begin(), from_.end(), position);
  const auto stage = static_cast<std::size_t>(after - from_.begin()) - 1;
  const auto nodes = tree(stage);
  std::int64_t picks = position - from_[stage];
  std::uint64_t node = 1;
  while (node < leaves_) {
    const Division d = divide(picks, nodes[2 * node], nodes[node]);
    picks = d.next_is_left ? d.left : picks - d.left;
    node = 2 * node + (d.next_is_left ? 0 : 1);
  }
  const std::uint64_t source = node - leaves_;
  return {static_cast<std::uint32_t>(source), picked_[stage * leaves_ + source] + picks};
}

}  // namespace feedlane::sampler
