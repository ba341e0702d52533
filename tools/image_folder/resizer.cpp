// SPDX-License-Identifier: Apache-2.0
// The weights of the filter and both passes of the resizing.
#include "resizer.hpp"

#include <algorithm>
#include <cmath>

#include "vectors.hpp"

namespace images {
namespace {

constexpr size_t block = 16;  ///< bytes of a row that are mixed at once
static_assert(block <= Pixels::padding);
/// Taps of which each may lose a unit of 16 bits: together half a level of 255.
constexpr size_t most_short_taps = 128;

}  // namespace

Resizer::Resizer(size_t width, size_t height) : width_(width), height_(height), pixels_(width * Pixels::channels) {}

void Resizer::find_taps(const Span& span, size_t outputs, double unit, Taps& taps) {
  const double step = span.length / static_cast<double>(outputs);
  const double radius = std::max(step, 1.0);
  const auto end = static_cast<double>(span.limit);
  const double low = std::clamp(std::floor(span.first), 0.0, end - 1);
  const double high = std::clamp(std::ceil(span.first + span.count), low + 1, end);
  taps.low = static_cast<size_t>(low);
  taps.high = static_cast<size_t>(high);
  taps.count = std::min(taps.high - taps.low, static_cast<size_t>(std::ceil(2 * radius)));
  taps.first.resize(outputs);
  taps.weights.resize(outputs * taps.count);
  for (size_t i = 0; i < outputs; i++) {
    const double centre = span.start + (static_cast<double>(i) + 0.5) * step;
    // All rows of weights have the same length: near the end they begin earlier, with zeros.
    const double first = std::clamp(std::floor(centre - radius + 0.5), low, high - static_cast<double>(taps.count));
    float* const weights = &taps.weights[i * taps.count];
    double sum = 0;
    for (size_t k = 0; k < taps.count; k++) {
      const double distance = std::abs(first + static_cast<double>(k) + 0.5 - centre);
      const double weight = std::max(0.0, 1 - distance / radius);
      weights[k] = static_cast<float>(weight);
      sum += weight;
    }
    const auto norm = static_cast<float>(unit / sum);
    for (size_t k = 0; k < taps.count; k++) weights[k] *= norm;
    taps.first[i] = static_cast<size_t>(first);
  }
}

void Resizer::prepare(const Pixels& from, const Placement& at, const View& view) {
  const Box box = at.of(view.box);
  const Box region = at.of(box_of(view.region));
  // 1 / 256 takes back the factor that mix_rows leaves in.
  find_taps({box.x, box.width, region.x, region.width, from.width()}, width_, 1.0 / 256, across_);
  find_taps({box.y, box.height, region.y, region.height, from.height()}, height_, 65536, down_);
  if (view.flip) {
    std::reverse(across_.first.begin(), across_.first.end());
    for (size_t i = 0; i < width_ / 2; i++)
      std::swap_ranges(&across_.weights[i * across_.count], &across_.weights[(i + 1) * across_.count],
                       &across_.weights[(width_ - 1 - i) * across_.count]);
  }
  row_weights_.resize(down_.weights.size());
  for (size_t i = 0; i < row_weights_.size(); i++)
    row_weights_[i] = static_cast<uint16_t>(std::min(65535.0f, down_.weights[i] + 0.5f));
  const size_t bytes = (across_.high - across_.low) * Pixels::channels;
  mixed_.resize((bytes + block - 1) / block * block);
}

/// Output row `y` of the columns that matter, before they are mixed, times 256: 16 bits hold 8 behind the point.
void Resizer::mix_rows(const Pixels& from, size_t y) {
  const uint8_t* const top = from.row(down_.first[y]) + across_.low * Pixels::channels;
  const uint16_t* const weights = &row_weights_[y * down_.count];
  const size_t stride = from.stride();
  for (size_t at = 0; at < mixed_.size(); at += block) {
    Short8 lower{};
    Short8 upper{};
    for (size_t k = 0; k < down_.count; k++) {
      const auto bytes = load<Byte16>(top + k * stride + at);
      const Short8 weight = Short8{} + weights[k];
      lower += multiply_high(lower_times_256(bytes), weight);
      upper += multiply_high(upper_times_256(bytes), weight);
    }
    float* const out = &mixed_[at];
    store(out, lower_as_float(lower));
    store(out + 4, upper_as_float(lower));
    store(out + 8, lower_as_float(upper));
    store(out + 12, upper_as_float(upper));
  }
}

/// As mix_rows, in floats.
void Resizer::mix_many_rows(const Pixels& from, size_t y) {
  const uint8_t* row = from.row(down_.first[y]) + across_.low * Pixels::channels;
  std::fill(mixed_.begin(), mixed_.end(), 0.0f);
  for (size_t k = 0; k < down_.count; k++, row += from.stride()) {
    const float weight = down_.weights[y * down_.count + k] / 256;
    for (size_t at = 0; at < mixed_.size(); at++) mixed_[at] += static_cast<float>(row[at]) * weight;
  }
}

void Resizer::mix_columns() {
  const float* const weights = across_.weights.data();
  const size_t count = across_.count;
  for (size_t x = 0; x < width_; x++) {
    const float* from = &mixed_[(across_.first[x] - across_.low) * Pixels::channels];
    Float4 sum{};
    for (size_t k = 0; k < count; k++, from += Pixels::channels) {
      sum += load<Float4>(from) * weights[x * count + k];
    }
    store(&pixels_[x * Pixels::channels], sum);
  }
}

template <class Store>
void Resizer::run(const Pixels& from, const Placement& at, const View& view, Store store) {
  prepare(from, at, view);
  for (size_t y = 0; y < height_; y++) {
    if (down_.count <= most_short_taps) mix_rows(from, y);
    else mix_many_rows(from, y);
    mix_columns();
    store(y, pixels_.data());
  }
}

void Resizer::resize(const Pixels& from, const Placement& at, const View& view, const Normalisation& n, float* out) {
  const size_t width = width_;
  const size_t height = height_;
  run(from, at, view, [&](size_t y, const float* row) {
    for (size_t c = 0; c < 3; c++) {
      float* const to = out + (c * height + y) * width;
      const float scale = n.scale[c];
      const float offset = n.offset[c];
      for (size_t x = 0; x < width; x++) to[x] = row[x * Pixels::channels + c] * scale + offset;
    }
  });
}

void Resizer::resize(const Pixels& from, const Placement& at, const View& view, uint8_t* out) {
  const size_t width = width_;
  const size_t height = height_;
  run(from, at, view, [&](size_t y, const float* row) {
    for (size_t c = 0; c < 3; c++) {
      uint8_t* const to = out + (c * height + y) * width;
      for (size_t x = 0; x < width; x++)
        to[x] = static_cast<uint8_t>(std::min(255.0f, row[x * Pixels::channels + c] + 0.5f));
    }
  });
}

}  // namespace images
