// SPDX-License-Identifier: Apache-2.0
#include "loader/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace feedlane::loader {
namespace {

class Sequential final : public Sampler {
 public:
  explicit Sequential(std::int64_t length) : length_(length) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override { return std::make_unique<Sequential>(length_); }
  Status restart(std::int64_t, Error&) override {
    position_ = 0;
    return FEEDLANE_OK;
  }
  Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error&) override {
    got = std::min(cap, static_cast<std::uint64_t>(length_ - position_));
    std::iota(indices, indices + got, position_);
    position_ += static_cast<std::int64_t>(got);
    return got == 0 ? FEEDLANE_END : FEEDLANE_OK;
  }
  [[nodiscard]] std::int64_t length() const override { return length_; }

 private:
  std::int64_t length_;
  std::int64_t position_ = 0;
};

class Random final : public Sampler {
 public:
  Random(std::int64_t length, std::uint64_t seed) : length_(length), seed_(seed) {}
  [[nodiscard]] std::unique_ptr<Sampler> clone() const override { return std::make_unique<Random>(length_, seed_); }
  Status restart(std::int64_t epoch, Error&) override {
    torch_permutation(seed_ + static_cast<std::uint64_t>(epoch), order_, length_);
    position_ = 0;
    return FEEDLANE_OK;
  }
  Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) override {
    if (order_.empty())
      if (const Status s = restart(0, error); s != FEEDLANE_OK) return s;
    got = std::min<std::uint64_t>(cap, order_.size() - position_);
    std::copy_n(order_.begin() + static_cast<std::ptrdiff_t>(position_), got, indices);
    position_ += got;
    return got == 0 ? FEEDLANE_END : FEEDLANE_OK;
  }
  [[nodiscard]] std::int64_t length() const override { return length_; }

 private:
  std::int64_t length_;
  std::uint64_t seed_;
  std::vector<std::int64_t> order_;
  std::uint64_t position_ = 0;
};

}  // namespace

void torch_permutation(std::uint64_t seed, std::vector<std::int64_t>& permutation, std::int64_t n) {
  // torch seeds its mt19937 with the low 32 bits.
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  permutation.resize(static_cast<std::size_t>(n));
  std::iota(permutation.begin(), permutation.end(), std::int64_t{0});
  // From this length on torch takes 64 bits a position and builds the permutation from the inside out.
  if (n < std::int64_t{UINT32_MAX} / 20) {
    for (std::size_t i = 0; i + 1 < permutation.size(); i++) {
      const std::size_t step = generator() % (permutation.size() - i);
      std::swap(permutation[i], permutation[i + step]);
    }
  } else {
    for (std::size_t i = 0; i < permutation.size(); i++) {
      const std::uint64_t high = generator();
      const std::uint64_t low = generator();
      std::swap(permutation[i], permutation[(high << 32 | low) % (i + 1)]);
    }
  }
}

Status make_sequential(std::int64_t length, std::unique_ptr<Sampler>& out, Error& error) {
  if (length < 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "length", length, 0, "length is %lld, must not be negative",
                        static_cast<long long>(length));
  out = std::make_unique<Sequential>(length);
  return FEEDLANE_OK;
}

Status make_random(std::int64_t length, std::uint64_t seed, std::unique_ptr<Sampler>& out, Error& error) {
  if (length <= 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.length", length, 1,
                        "config.length is %lld: a random sampler needs a data set that isn't empty",
                        static_cast<long long>(length));
  out = std::make_unique<Random>(length, seed);
  return FEEDLANE_OK;
}

}  // namespace feedlane::loader
