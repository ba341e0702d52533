// SPDX-License-Identifier: Apache-2.0
// Base of samplers that deal one list to the ranks: rank r of w yields every w-th index, starting with the r-th. The
// list is padded with its start, or cut, so that all ranks get the same number of indices.
//
// After a state is loaded, the list stays padded for the world that began the epoch. The indices that its ranks have
// not yielded are divided among the current ranks.
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
  // `length` is the length of the list, at most 2^62.
  Dealt(std::int64_t length, bool drop_last, const RankSource& rank)
      : list_length_(length), drop_last_(drop_last), rank_(rank) {
    deal(rank.world, 0, 0);
  }
  [[nodiscard]] const RankSource& rank() const { return rank_; }
  // Makes the list of `epoch`.
  virtual Status make_list(std::int64_t epoch, Error& error) = 0;
  // The `count` indices at positions first, first + step, ..., each modulo the list's length.
  virtual void look_up(std::int64_t first, std::int64_t step, std::int64_t* indices, std::uint64_t count) const = 0;

 private:
  Status prepare(std::int64_t epoch, Error& error) final;
  void read(std::int64_t first, std::int64_t* indices, std::uint64_t count) const final {
    look_up(start_ + (first - before_) * rank_.world + rank_.rank, rank_.world, indices, count);
  }
  [[nodiscard]] std::int64_t earliest() const final { return before_; }
  void save_more(std::int64_t position, ByteWriter& more) const final;
  Status load_more(std::int64_t position, ByteReader& more, Error& error) final;

  // Length of the list after it was padded or cut for `world` ranks.
  [[nodiscard]] std::int64_t padded(std::int64_t world) const {
    return (list_length_ / world + (list_length_ % world != 0 && !drop_last_ ? 1 : 0)) * world;
  }
  void deal(std::int64_t origin, std::int64_t start, std::int64_t before);
  // Number of this rank's indices from `start_` on.
  [[nodiscard]] std::int64_t own() const;

  std::int64_t list_length_;
  bool drop_last_;
  RankSource rank_;
  std::int64_t origin_ = 1;  // the world for which the list is padded
  std::int64_t total_ = 0;   // length of the padded list
  std::int64_t start_ = 0;   // position from which the current ranks take turns; 0 unless a state was loaded
  std::int64_t before_ = 0;  // this rank's indices of the epoch that were yielded before the state was loaded
};

}  // namespace feedlane::sampler
