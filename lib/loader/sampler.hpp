// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"

namespace feedlane::loader {

// Yields the indices of an epoch in order. One thread at a time.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // Another sampler of the same definition, at the start of epoch 0.
  [[nodiscard]] virtual std::unique_ptr<Sampler> clone() const = 0;
  virtual Status restart(std::int64_t epoch, Error& error) = 0;
  // Up to `cap` indices; fewer only at the end; END when none is left.
  virtual Status next(std::int64_t* indices, std::uint64_t cap, std::uint64_t& got, Error& error) = 0;
  [[nodiscard]] virtual std::int64_t length() const = 0;
};

Status make_sequential(std::int64_t length, std::unique_ptr<Sampler>& out, Error& error);
// The permutations of torch.randperm on CPU, epoch e seeded with seed + e.
Status make_random(std::int64_t length, std::uint64_t seed, std::unique_ptr<Sampler>& out, Error& error);

// torch.randperm(n) of a CPU generator seeded with `seed`.
void torch_permutation(std::uint64_t seed, std::vector<std::int64_t>& permutation, std::int64_t n);

}  // namespace feedlane::loader
