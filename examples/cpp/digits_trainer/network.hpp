// SPDX-License-Identifier: Apache-2.0
// A small network in plain C++: 64 pixels, one hidden layer of ReLUs, softmax over ten classes; cross entropy, SGD with
// momentum. All sums run in one fixed order, so the same rows in the same order give the same losses to the last bit,
// in any worker and at any address. (-ffast-math would break that.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "../common/random.hpp"
#include "digits.hpp"

namespace digits {

/// A fully connected layer with its gradient and its momentum. Weights lie input by input, so that the inner loops run
/// over outputs without a sum across them: the compiler can vectorise them and still keep the order of additions.
template <size_t In, size_t Out>
class Dense {
 public:
  using Input = std::array<float, In>;
  using Output = std::array<float, Out>;

  void initialise(common::Random& random);
  void forward(const float* input, Output& output) const;
  /// Adds to the gradient; what the layer below needs goes to `input_gradient` unless that is null.
  void backward(const float* input, const Output& output_gradient, Input* input_gradient);
  /// One step along the gradient, which is then zero again.
  void step(float rate, float scale);

 private:
  static constexpr size_t parameters = In * Out + Out;  // the weights, then the biases

  std::array<float, parameters> value_{};
  std::array<float, parameters> gradient_{};
  std::array<float, parameters> velocity_{};
};

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
