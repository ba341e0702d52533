// SPDX-License-Identifier: Apache-2.0
// Computes the shares of ranks.
#include "sampler/dealt.hpp"

namespace feedlane::sampler {

void Dealt::deal(std::int64_t origin, std::int64_t start, std::int64_t before) {
  origin_ = origin;
  total_ = padded(origin);
  start_ = start;
  before_ = before;
}

std::int64_t Dealt::own() const {
  const std::int64_t left = total_ - start_ - rank_.rank;
  return left <= 0 ? 0 : (left - 1) / rank_.world + 1;
}

// Computed modulo 2^64: `first` may be far below zero, but sums with it are in range.
Sampler::Place Dealt::place() const {
  const std::uint64_t before = static_cast<std::uint64_t>(before_) * static_cast<std::uint64_t>(rank_.world);
  const std::uint64_t first = static_cast<std::uint64_t>(start_ + rank_.rank) - before;
  return {static_cast<std::int64_t>(first), rank_.world};
}

Status Dealt::prepare(std::int64_t epoch, Error& error) {
  deal(rank_.world, 0, 0);
  return make_list(epoch, error);
}

// Saves the position of all ranks together. All ranks are saved after the same number of indices, or at their end,
// which ranks with one index fewer reach first.
void Dealt::save_more(std::int64_t position, ByteWriter& more) const {
  const std::int64_t dealt = position - before_;
  const bool over = dealt > (total_ - start_) / rank_.world;
  more.i64(origin_);
  more.i64(over ? total_ : start_ + dealt * rank_.world);
}

// A rank's position must not be larger than the position of all ranks together.
Status Dealt::load_more(std::int64_t position, ByteReader& more, Error& error) {
  const std::int64_t origin = more.i64();
  const std::int64_t start = more.i64();
  if (!more.ok() || origin < 1 || origin > INT32_MAX || position > start || start > padded(origin))
    return refuse_damaged(error);
  deal(origin, start, position);
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
