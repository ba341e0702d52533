// SPDX-License-Identifier: Apache-2.0
// Forward pass, backward pass and update of the network.
#include "network.hpp"

#include <algorithm>
#include <cmath>

namespace digits {

void Score::add(const Score& other) {
  loss += other.loss;
  correct += other.correct;
  rows += other.rows;
}

Network::Network(uint64_t seed) {
  common::Random random(seed);
  lower_.initialise(random);
  upper_.initialise(random);
}

Score Network::forward(const float* image, int64_t label, Hidden& hidden, Classes& probability) const {
  lower_.forward(image, hidden);
  for (float& unit : hidden) unit = std::max(unit, 0.0f);
  upper_.forward(hidden.data(), probability);

  // Softmax with the greatest value taken off first, so that no exponential overflows.
  const auto greatest = std::max_element(probability.begin(), probability.end());
  const int64_t guess = greatest - probability.begin();
  const float most = *greatest;
  float sum = 0;
  for (float& p : probability) {
    p = std::exp(p - most);
    sum += p;
  }
  for (float& p : probability) p /= sum;
  // A probability may round to zero; its logarithm must stay finite.
  const float chosen = std::max(probability[static_cast<size_t>(label)], 1e-30f);
  return {-static_cast<double>(std::log(chosen)), guess == label ? 1 : 0, 1};
}

Score Network::learn(const float* images, const int64_t* labels, size_t rows, float rate) {
  Score score;
  Hidden hidden{};
  Hidden hidden_gradient{};
  Classes probability{};
  for (size_t row = 0; row < rows; row++) {
    const float* image = images + row * pixels;
    score.add(forward(image, labels[row], hidden, probability));
    // The gradient of the cross entropy of a softmax: the probabilities less the truth.
    probability[static_cast<size_t>(labels[row])] -= 1.0f;
    upper_.backward(hidden.data(), probability, &hidden_gradient);
    for (size_t u = 0; u < hidden_units; u++) {
      if (hidden[u] <= 0.0f) hidden_gradient[u] = 0.0f;
    }
    lower_.backward(image, hidden_gradient, nullptr);
  }
  const float scale = 1.0f / static_cast<float>(rows);
  lower_.step(rate, scale);
  upper_.step(rate, scale);
  return score;
}

Score Network::evaluate(const float* images, const int64_t* labels, size_t rows) const {
  Score score;
  Hidden hidden{};
  Classes probability{};
  for (size_t row = 0; row < rows; row++) {
    score.add(forward(images + row * pixels, labels[row], hidden, probability));
  }
  return score;
}

}  // namespace digits
