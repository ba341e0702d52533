// SPDX-License-Identifier: Apache-2.0
// Forward pass, backward pass and update, with the three sums over ranks.
#include "network.hpp"

#include <algorithm>
#include <cmath>

namespace mpi_digits {
namespace {

template <size_t Units>
void rectify(std::array<double, Units>& row) {
  for (double& unit : row) unit = std::max(unit, 0.0);
}

template <class Image>
Image image_at(std::span<const float> images, size_t row) {
  Image image;
  std::copy_n(images.data() + row * image.size(), image.size(), image.begin());
  return image;
}

/// Sums the gradients of both layers and the score in one message.
void sum_gradients(std::span<double> lower, std::span<double> upper, digits::Score& score, const SumOverRanks& sum) {
  std::vector<double> all(lower.begin(), lower.end());
  all.insert(all.end(), upper.begin(), upper.end());
  all.insert(all.end(), {score.loss, static_cast<double>(score.correct), static_cast<double>(score.rows)});
  sum(all);
  std::copy_n(all.begin(), lower.size(), lower.begin());
  std::copy_n(&all[lower.size()], upper.size(), upper.begin());
  const double* const rest = &all[lower.size() + upper.size()];
  score = {rest[0], static_cast<int64_t>(rest[1]), static_cast<int64_t>(rest[2])};
}

}  // namespace

Network::Network(uint64_t seed) {
  common::Random random(seed);
  lower_.initialise(random);
  upper_.initialise(random);
}

digits::Score Network::classify(const Hidden& hidden, int64_t label, Classes& probability) const {
  upper_.forward(hidden.data(), probability);
  const auto greatest = std::max_element(probability.begin(), probability.end());
  const int64_t guess = greatest - probability.begin();
  const double most = *greatest;
  double sum = 0;
  for (double& p : probability) sum += p = std::exp(p - most);
  for (double& p : probability) p /= sum;
  const double chosen = std::max(probability[static_cast<size_t>(label)], 1e-300);
  return {-std::log(chosen), guess == label ? 1 : 0, 1};
}

digits::Score Network::learn(std::span<const float> images, std::span<const int64_t> labels, double rate,
                             const SumOverRanks& sum) {
  const size_t rows = labels.size();
  std::vector<Image> inputs(rows);
  std::vector<Hidden> hidden(rows), gradients(rows);
  for (size_t row = 0; row < rows; row++) {
    inputs[row] = image_at<Image>(images, row);
    lower_.forward(inputs[row].data(), hidden[row]);
  }
  const double rows_of_all = norm_.forward(hidden, sum);

  digits::Score score;
  Classes probability;
  for (size_t row = 0; row < rows; row++) {
    rectify(hidden[row]);
    score.add(classify(hidden[row], labels[row], probability));
    // The gradient of the cross entropy of a softmax: the probabilities less the truth.
    probability[static_cast<size_t>(labels[row])] -= 1;
    upper_.backward(hidden[row].data(), probability, &gradients[row]);
    for (size_t u = 0; u < hidden_units; u++)
      if (hidden[row][u] <= 0) gradients[row][u] = 0;
  }
  norm_.backward(gradients, sum);
  for (size_t row = 0; row < rows; row++) lower_.backward(inputs[row].data(), gradients[row], nullptr);

  sum_gradients(lower_.gradient(), upper_.gradient(), score, sum);
  lower_.step(rate, 1 / rows_of_all);
  norm_.step(rate);
  upper_.step(rate, 1 / rows_of_all);
  return score;
}

digits::Score Network::evaluate(std::span<const float> images, std::span<const int64_t> labels) const {
  digits::Score score;
  Hidden hidden;
  Classes probability;
  for (size_t row = 0; row < labels.size(); row++) {
    lower_.forward(image_at<Image>(images, row).data(), hidden);
    norm_.evaluate(hidden);
    rectify(hidden);
    score.add(classify(hidden, labels[row], probability));
  }
  return score;
}

std::vector<std::span<double>> Network::state() {
  std::vector<std::span<double>> parts{lower_.value(), lower_.velocity(), upper_.value(), upper_.velocity()};
  for (const std::span<double> part : norm_.state()) parts.push_back(part);
  return parts;
}

}  // namespace mpi_digits
