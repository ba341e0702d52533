// SPDX-License-Identifier: Apache-2.0
// The data set itself, knowing nothing of Feedlane: 1,797 digits from two IDX files, split into a part to train on and
// a part held out, and how one digit becomes numbers for the network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "idx.hpp"

namespace digits {

constexpr size_t side = 8;
constexpr size_t pixels = side * side;
constexpr size_t classes = 10;

constexpr size_t digit_count = 1797;
constexpr size_t held_out_count = 360;
constexpr size_t train_count = digit_count - held_out_count;

class Digits {
 public:
  /// Reads both files of `directory` and splits them by `split_seed`. False: `why` says what is wrong.
  bool open(const std::string& directory, uint64_t split_seed, std::string& why);

  /// Sample `index` (< train_count) to train on, in [0, 1], moved by up to a pixel each way as `seed` says.
  void decode_train(size_t index, uint64_t seed, float* image, int64_t* label) const;

  /// Sample `index` (< held_out_count) of the held out ones, in [0, 1], as it is.
  void decode_held_out(size_t index, float* image, int64_t* label) const;

 private:
  void decode(size_t digit, int dx, int dy, float* image, int64_t* label) const;

  Idx images_;
  Idx labels_;
  std::vector<size_t> order_;  ///< all digits, shuffled: first the held out ones, then those to train on
};

}  // namespace digits
