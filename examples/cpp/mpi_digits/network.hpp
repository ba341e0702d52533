// SPDX-License-Identifier: Apache-2.0
// The network: 64 pixels, one hidden layer with batch normalisation and ReLUs, softmax over ten classes; cross entropy,
// SGD with momentum. It is computed in double, so that the order in which ranks are summed shows in the last digits only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../digits_trainer/dense.hpp"
#include "../digits_trainer/digits.hpp"
#include "../digits_trainer/network.hpp"
#include "batch_norm.hpp"

namespace mpi_digits {

class Network {
 public:
  explicit Network(uint64_t seed);

  /// One step of SGD over this rank's images of 64 floats together with those of the other ranks, which call it too. The
  /// score is that of all ranks before the step. Three sums over ranks.
  digits::Score learn(std::span<const float> images, std::span<const int64_t> labels, double rate,
                      const SumOverRanks& sum);
  digits::Score evaluate(std::span<const float> images, std::span<const int64_t> labels) const;

  /// Everything that a checkpoint keeps, part by part.
  std::vector<std::span<double>> state();

 private:
  static constexpr size_t hidden_units = 128;
  using Image = std::array<double, digits::pixels>;
  using Hidden = std::array<double, hidden_units>;
  using Classes = std::array<double, digits::classes>;

  /// Scores a row of ReLUs, and leaves the probabilities of its classes.
  digits::Score classify(const Hidden& hidden, int64_t label, Classes& probability) const;

  digits::Dense<digits::pixels, hidden_units, double> lower_;
  BatchNorm<hidden_units> norm_;
  digits::Dense<hidden_units, digits::classes, double> upper_;
};

}  // namespace mpi_digits
