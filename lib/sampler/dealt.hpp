// SPDX-License-Identifier: Apache-2.0
// Base of samplers that deal one list to the ranks: rank r of w yields every w-th index of it, from the r-th on. So that all ranks
// get the same number, the list is repeated from its start, or cut.
//
// After a state is loaded, the list is still the one that was padded for the world which began the epoch, and the indices that its
// ranks have not yielded are divided among the present ranks.
#pragma once

#include "sampler/listed.hpp"
#include "sampler/rank.hpp"

namespace feedlane::sampler {

class Dealt : public Listed {
 public:
  [[nodiscard]] std::int64_t length() const final { return before_ + own(); }
  [[nodiscard]] Place place() const final;
  [[nodiscard]] const char* rank_source() const final { return rank_.source; }
  [[nodiscard]] const char* rank_warning() const final { return rank_.warning; }

 protected:
  // `length`: of the list, at most 2^62.
  Dealt(std::int64_t length, bool drop_last, const RankSource& rank)
      : list_length_(length), drop_last_(drop_last), rank_(rank) {
    deal(rank.world, 0, 0);
  }
  [[nodiscard]] const RankSource& rank() const { return rank_; }
  // Makes the list of `epoch`.
  virtual Status make_list(std::int64_t epoch, Error& error) = 0;
  // The `count` indices at `first`, first + step, ...; each place modulo the list's length.
  virtual void look_up(std::int64_t first, std::int64_t step, std::int64_t* indices, std::uint64_t count) const = 0;

 private:
  Status prepare(std::int64_t epoch, Error& error) final;
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const final {
    look_up(start_ + (first - before_) * rank_.world + rank_.rank, rank_.world, indices, count);
  }
  [[nodiscard]] std::int64_t earliest() const final { return before_; }
  void save_more(std::int64_t position, ByteWriter& more) const final;
  Status load_more(std::int64_t position, ByteReader& more, Error& error) final;

  // Length of the list as padded, or cut, for `world` ranks.
  [[nodiscard]] std::int64_t padded(std::int64_t world) const {
    return (list_length_ / world + (list_length_ % world != 0 && !drop_last_ ? 1 : 0)) * world;
  }
  void deal(std::int64_t origin, std::int64_t start, std::int64_t before);
  // Number of this rank's indices from `start_` on.
  [[nodiscard]] std::int64_t own() const;

  std::int64_t list_length_;
  bool drop_last_;
  RankSource rank_;
  std::int64_t origin_ = 1;  // the world that the list is padded for
  std::int64_t total_ = 0;   // length of the padded list
  std::int64_t start_ = 0;   // from there on every world-th index is this rank's; 0 unless a state was loaded
  std::int64_t before_ = 0;  // indices of this epoch that were yielded before the state was loaded
};

}  // namespace feedlane::sampler
