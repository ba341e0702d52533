// SPDX-License-Identifier: Apache-2.0
// Batch normalisation over a batch that is spread over ranks: its statistics are those of all rows of all ranks.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace mpi_digits {

/// Sums each element over all ranks, in place.
using SumOverRanks = std::function<void(std::span<double>)>;

template <size_t Units>
class BatchNorm {
 public:
  using Row = std::array<double, Units>;

  BatchNorm() {
    gain_.fill(1);
    running_variance_.fill(1);
  }

  /// Normalises this rank's rows in place. One sum over ranks. Returns the number of rows of all ranks.
  double forward(std::vector<Row>& rows, const SumOverRanks& sum);
  /// The gradient by the outputs becomes that by the inputs. One sum over ranks.
  void backward(std::vector<Row>& gradients, const SumOverRanks& sum);
  /// One row, by the running statistics.
  void evaluate(Row& row) const;
  /// One step of SGD with momentum along the gradient, which is already that of all ranks.
  void step(double rate);

  /// What a checkpoint keeps.
  std::array<std::span<double>, 6> state() {
    return {gain_, shift_, gain_velocity_, shift_velocity_, running_mean_, running_variance_};
  }

 private:
  static constexpr double epsilon = 1e-5;
  static constexpr double momentum = 0.9;
  static constexpr double renewal = 0.1;  // weight of the newest batch in the running statistics

  Row gain_{}, shift_{}, gain_velocity_{}, shift_velocity_{};
  Row running_mean_{}, running_variance_{};
  // Of the newest batch.
  std::vector<Row> normalised_;
  Row deviation_inverse_{}, gain_gradient_{}, shift_gradient_{};
  double rows_ = 0;
};

template <size_t Units>
double BatchNorm<Units>::forward(std::vector<Row>& rows, const SumOverRanks& sum) {
  std::array<double, 2 * Units + 1> sums{};  // of values, of squares; rows
  for (const Row& row : rows) {
    for (size_t u = 0; u < Units; u++) {
      sums[u] += row[u];
      sums[Units + u] += row[u] * row[u];
    }
  }
  sums.back() = static_cast<double>(rows.size());
  sum(sums);
  rows_ = sums.back();

  Row mean;
  for (size_t u = 0; u < Units; u++) {
    mean[u] = sums[u] / rows_;
    const double variance = std::max(sums[Units + u] / rows_ - mean[u] * mean[u], 0.0);
    deviation_inverse_[u] = 1 / std::sqrt(variance + epsilon);
    const double unbiased = rows_ > 1 ? variance * rows_ / (rows_ - 1) : variance;
    running_mean_[u] += renewal * (mean[u] - running_mean_[u]);
    running_variance_[u] += renewal * (unbiased - running_variance_[u]);
  }
  normalised_.resize(rows.size());
  for (size_t r = 0; r < rows.size(); r++) {
    for (size_t u = 0; u < Units; u++) {
      normalised_[r][u] = (rows[r][u] - mean[u]) * deviation_inverse_[u];
      rows[r][u] = gain_[u] * normalised_[r][u] + shift_[u];
    }
  }
  return rows_;
}

template <size_t Units>
void BatchNorm<Units>::backward(std::vector<Row>& gradients, const SumOverRanks& sum) {
  std::array<double, 2 * Units> sums{};  // by shift, by gain
  for (size_t r = 0; r < gradients.size(); r++) {
    for (size_t u = 0; u < Units; u++) {
      sums[u] += gradients[r][u];
      sums[Units + u] += gradients[r][u] * normalised_[r][u];
    }
  }
  sum(sums);
  for (size_t u = 0; u < Units; u++) {
    shift_gradient_[u] = sums[u];
    gain_gradient_[u] = sums[Units + u];
  }
  for (size_t r = 0; r < gradients.size(); r++) {
    for (size_t u = 0; u < Units; u++) {
      const double through_statistics = (shift_gradient_[u] + normalised_[r][u] * gain_gradient_[u]) / rows_;
      gradients[r][u] = gain_[u] * deviation_inverse_[u] * (gradients[r][u] - through_statistics);
    }
  }
}

template <size_t Units>
void BatchNorm<Units>::evaluate(Row& row) const {
  for (size_t u = 0; u < Units; u++)
    row[u] = gain_[u] * (row[u] - running_mean_[u]) / std::sqrt(running_variance_[u] + epsilon) + shift_[u];
}

template <size_t Units>
void BatchNorm<Units>::step(double rate) {
  for (size_t u = 0; u < Units; u++) {
    gain_velocity_[u] = momentum * gain_velocity_[u] - rate * gain_gradient_[u] / rows_;
    shift_velocity_[u] = momentum * shift_velocity_[u] - rate * shift_gradient_[u] / rows_;
    gain_[u] += gain_velocity_[u];
    shift_[u] += shift_velocity_[u];
  }
}

}  // namespace mpi_digits
