// SPDX-License-Identifier: Apache-2.0
// A small network in plain C++: 64 pixels, one hidden layer of ReLUs, softmax over ten classes; cross entropy, SGD with
// momentum. All sums run in one fixed order, so the same rows in the same order give the same losses to the last bit,
// in any worker and at any address. (-ffast-math would break that.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dense.hpp"
#include "digits.hpp"

namespace digits {

struct Score {
  double loss = 0;  ///< sum over the rows
  int64_t correct = 0;
  int64_t rows = 0;

  void add(const Score& other);
  double mean_loss() const { return loss / static_cast<double>(rows); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(rows); }
};

class Network {
 public:
  explicit Network(uint64_t seed);

  /// One step of SGD over `rows` images of 64 floats; the score is the one before the step.
  Score learn(const float* images, const int64_t* labels, size_t rows, float rate);
  Score evaluate(const float* images, const int64_t* labels, size_t rows) const;

 private:
  static constexpr size_t hidden_units = 128;
  using Hidden = std::array<float, hidden_units>;
  using Classes = std::array<float, classes>;

  /// Fills `hidden` and `probability` for one image and scores them.
  Score forward(const float* image, int64_t label, Hidden& hidden, Classes& probability) const;

  Dense<pixels, hidden_units> lower_;
  Dense<hidden_units, classes> upper_;
};

}  // namespace digits
