// SPDX-License-Identifier: Apache-2.0
/** @file sampler.hpp Samplers: what order the indices of an epoch come in. */
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** Move-only; one thread at a time. Loaders take a copy of their own. */
class Sampler {
 public:
  /** 0, 1, ... length - 1. */
  static Sampler sequential(std::int64_t length) {
    Sampler s;
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_sequential(length, &s.handle_, e); });
    return s;
  }
  /** torch.randperm(length) with generator seed `seed + epoch`. */
  static Sampler random(std::int64_t length, std::uint64_t seed) {
    Sampler s;
    feedlane_random_config config;
    feedlane_init(&config, sizeof config);
    config.length = length;
    config.seed = seed;
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_random(&config, &s.handle_, e); });
    return s;
  }

  /** `other` can only be assigned to or destroyed after. */
  Sampler(Sampler&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Exchanges the two. */
  Sampler& operator=(Sampler&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  ~Sampler() { (void)feedlane_sampler_destroy(&handle_); }

  /** Starts an epoch (>= 0) over. */
  void restart(std::int64_t epoch) {
    detail::checked([&](feedlane_error* e) { return feedlane_sampler_restart(handle_, epoch, e); });
  }
  /** Fills from the front; fewer than asked only at the end, 0 after it. */
  std::size_t next(std::span<std::int64_t> indices) {
    std::uint64_t got = 0;
    const std::int32_t s = detail::checked(
        [&](feedlane_error* e) { return feedlane_sampler_next(handle_, indices.data(), indices.size(), &got, e); });
    return s == FEEDLANE_END ? 0 : static_cast<std::size_t>(got);
  }
  /** Indices in an epoch. */
  [[nodiscard]] std::int64_t length() const {
    std::int64_t length = 0;
    (void)feedlane_sampler_length(handle_, &length);
    return length;
  }
  /** The handle, for the C interface; still owned by this. */
  [[nodiscard]] const feedlane_sampler* c() const { return handle_; }

 private:
  Sampler() = default;
  feedlane_sampler* handle_ = nullptr;
};

}  // namespace v1
}  // namespace feedlane
