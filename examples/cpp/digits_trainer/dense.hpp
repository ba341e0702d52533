// SPDX-License-Identifier: Apache-2.0
// A fully connected layer with its gradient and its momentum, trained by SGD.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>

#include "../common/random.hpp"

namespace digits {

/// Weights lie input by input, so that the inner loops run over outputs without a sum across them: the compiler can
/// vectorise them and still keep the order of additions.
template <size_t In, size_t Out, class Real = float>
class Dense {
 public:
  using Input = std::array<Real, In>;
  using Output = std::array<Real, Out>;

  void initialise(common::Random& random);
  void forward(const Real* input, Output& output) const;
  /// Adds to the gradient; what the layer below needs goes to `input_gradient` unless that is null.
  void backward(const Real* input, const Output& output_gradient, Input* input_gradient);
  /// One step along the gradient, which is then zero again.
  void step(Real rate, Real scale);

  /// The weights, then the biases; of all three.
  std::span<Real> value() { return value_; }
  std::span<Real> gradient() { return gradient_; }
  std::span<Real> velocity() { return velocity_; }

 private:
  static constexpr size_t parameters = In * Out + Out;
  static constexpr Real momentum = Real(0.9);

  std::array<Real, parameters> value_{};
  std::array<Real, parameters> gradient_{};
  std::array<Real, parameters> velocity_{};
};

template <size_t In, size_t Out, class Real>
void Dense<In, Out, Real>::initialise(common::Random& random) {
  // He's range for layers that feed ReLUs; biases stay zero.
  const float limit = std::sqrt(6.0f / static_cast<float>(In));
  for (size_t i = 0; i < In * Out; i++) value_[i] = random.symmetric(limit);
}

template <size_t In, size_t Out, class Real>
void Dense<In, Out, Real>::forward(const Real* input, Output& output) const {
  std::copy_n(&value_[In * Out], Out, output.begin());
  for (size_t i = 0; i < In; i++) {
    const Real* weights = &value_[i * Out];
    for (size_t o = 0; o < Out; o++) output[o] += input[i] * weights[o];
  }
}

template <size_t In, size_t Out, class Real>
void Dense<In, Out, Real>::backward(const Real* input, const Output& output_gradient, Input* input_gradient) {
  for (size_t i = 0; i < In; i++) {
    Real* gradients = &gradient_[i * Out];
    for (size_t o = 0; o < Out; o++) gradients[o] += input[i] * output_gradient[o];
  }
  for (size_t o = 0; o < Out; o++) gradient_[In * Out + o] += output_gradient[o];
  if (input_gradient == nullptr) return;
  for (size_t i = 0; i < In; i++) {
    Real sum = 0;
    for (size_t o = 0; o < Out; o++) sum += value_[i * Out + o] * output_gradient[o];
    (*input_gradient)[i] = sum;
  }
}

template <size_t In, size_t Out, class Real>
void Dense<In, Out, Real>::step(Real rate, Real scale) {
  for (size_t p = 0; p < parameters; p++) {
    velocity_[p] = momentum * velocity_[p] - rate * scale * gradient_[p];
    value_[p] += velocity_[p];
    gradient_[p] = 0;
  }
}

}  // namespace digits
