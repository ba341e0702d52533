// SPDX-License-Identifier: Apache-2.0
// The distributions of crops and flips, over fixed seeds: the numbers are the same in each run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "view.hpp"

using images::Region;
using images::Transform;
using images::View;

namespace {

constexpr std::uint64_t count = 20000;

View view(const Transform& transform, std::uint32_t width, std::uint32_t height, std::uint64_t seed) {
  return images::choose_view(transform, width, height, {224, 224}, seed);
}

// The largest distance between the distribution of these numbers and the uniform one over 0 .. 1 (Kolmogorov and Smirnov).
// Chance alone makes it larger than 2 / sqrt(count) once in 1,500 sets of seeds.
double distance_from_uniform(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  double most = 0;
  const auto n = static_cast<double>(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); i++)
    most = std::max({most, std::abs(numbers[i] - static_cast<double>(i) / n),
                     std::abs(static_cast<double>(i + 1) / n - numbers[i])});
  return most;
}

// Over many crops of a picture in which each one fits at the first try.
double distance_of(const std::function<double(const Region&)>& number_of) {
  std::vector<double> numbers;
  for (std::uint64_t seed = 0; seed < count; seed++)
    numbers.push_back(number_of(view({.train = true, .scale = {0.08, 0.7}}, 40000, 40000, seed).region));
  return distance_from_uniform(numbers);
}

const double allowed = 2 / std::sqrt(static_cast<double>(count));

}  // namespace

TEST_CASE("image_folder: the area of random crops is uniform between the limits of scale") {
  CHECK(distance_of([](const Region& r) { return (double{1} * r.width * r.height / 1.6e9 - 0.08) / 0.62; }) < allowed);
}

TEST_CASE("image_folder: the logarithm of the ratio of random crops is uniform between the limits of ratio") {
  const double low = std::log(3.0 / 4), high = std::log(4.0 / 3);
  CHECK(distance_of([&](const Region& r) { return (std::log(double{1} * r.width / r.height) - low) / (high - low); }) <
        allowed);
}

TEST_CASE("image_folder: random crops lie anywhere in the picture with equal probability") {
  CHECK(distance_of([](const Region& r) { return r.x / (40000.0 - r.width); }) < allowed);
  CHECK(distance_of([](const Region& r) { return r.y / (40000.0 - r.height); }) < allowed);
}

TEST_CASE("image_folder: flips have the probability that was asked for and do not depend on the crop") {
  for (const double probability : {0.0, 0.25, 0.5, 1.0}) {
    CAPTURE(probability);
    double flips = 0, flips_of_left = 0, left = 0;
    for (std::uint64_t seed = 0; seed < count; seed++) {
      const View v = view({.train = true, .flip = probability}, 500, 375, seed);
      const bool is_left = v.region.x + v.region.width / 2 < 250;
      flips += v.flip;
      left += is_left;
      flips_of_left += v.flip && is_left;
    }
    CHECK(std::abs(flips / count - probability) < 0.0125);  // 3.5 standard deviations of 0.5
    CHECK(std::abs(flips_of_left / left - probability) < 0.0175);
    CHECK((flips == 0) == (probability == 0));
    CHECK((flips == count) == (probability == 1));
  }
}

TEST_CASE("image_folder: crops lie within pictures of any shape, and have the limits that were asked for") {
  for (const images::Size& size : {images::Size{500, 375}, {1, 1}, {3, 2}, {1000, 40}, {7, 900}})
    for (std::uint64_t seed = 0; seed < 2000; seed++) {
      const Region r = view({.train = true}, size.width, size.height, seed).region;
      CAPTURE(size.width);
      CAPTURE(size.height);
      CAPTURE(seed);
      REQUIRE(r.width >= 1);
      REQUIRE(r.height >= 1);
      REQUIRE(r.x + r.width <= size.width);
      REQUIRE(r.y + r.height <= size.height);
    }
}

TEST_CASE(
    "image_folder: a picture into which no crop fits gives the largest crop in the middle that has an allowed ratio") {
  const Transform all{.train = true, .scale = {1, 1}};
  const Region wide = view(all, 1000, 90, 7).region, high = view(all, 90, 1000, 7).region;
  CHECK(wide.width == 120);
  CHECK(wide.height == 90);
  CHECK(wide.x == 440);
  CHECK(wide.y == 0);
  CHECK(high.width == 90);
  CHECK(high.height == 120);
  CHECK(high.x == 0);
  CHECK(high.y == 440);
}

TEST_CASE("image_folder: without train the middle of the resized picture is taken, as by Resize and CenterCrop") {
  // torchvision resizes 500 x 375 to 341 x 256, and crops at round((341 - 224) / 2.0) = 58 and 16.
  const View v = view({}, 500, 375, 1);
  CHECK(v.box.x == doctest::Approx(58 * 500.0 / 341));
  CHECK(v.box.y == doctest::Approx(16 * 375.0 / 256));
  CHECK(v.box.width == doctest::Approx(224 * 500.0 / 341));
  CHECK(v.box.height == doctest::Approx(224 * 375.0 / 256));
  CHECK(!v.flip);
}
