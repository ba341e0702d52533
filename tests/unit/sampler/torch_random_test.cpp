// SPDX-License-Identifier: Apache-2.0
// What torch's own answers in torch_indices_test.py don't reach.
#include "sampler/torch_random.hpp"

#include <doctest/doctest.h>

using feedlane::sampler::TorchEpochs;
using feedlane::sampler::TorchGenerator;

// promise: sampler-torch-indices
TEST_CASE("randint draws 32 bits per number for ranges below 2^28, and 64 bits for larger ranges") {
  for (const std::int64_t n : {(INT64_C(1) << 28) - 1, INT64_C(1) << 28, INT64_C(1) << 32, INT64_MAX}) {
    std::vector<std::int64_t> found;
    TorchGenerator(7).randint(n, 5, found);
    TorchGenerator draws(7);
    const auto range = static_cast<std::uint64_t>(n);
    for (const std::int64_t number : found)
      CHECK(static_cast<std::uint64_t>(number) == (n < INT64_C(1) << 28 ? draws.random() : draws.random64()) % range);
  }
}

TEST_CASE("permutations and numbers are appended, and are drawn in sequence from one generator") {
  std::vector<std::int64_t> found{-1};
  TorchGenerator generator(3);
  generator.randperm(5, 5, found);
  generator.randperm(5, 2, found);
  REQUIRE(found.size() == 8);
  std::vector<std::int64_t> second;
  TorchGenerator draws(3);
  for (int i = 0; i < 4; i++) (void)draws.random();  // one permutation of 5
  draws.randperm(5, 2, second);
  CHECK(std::vector(found.end() - 2, found.end()) == second);
}

// promise: seed-python-torch
TEST_CASE("the first seed of a generator is the base seed of torch's DataLoader") {
  // From torch 2.14.1.
  CHECK(TorchGenerator(0).seed() == 900450186894289455);
  CHECK(TorchGenerator(42).seed() == 6909045637428952499);
  CHECK(TorchGenerator(std::uint64_t{42} + (std::uint64_t{1} << 40)).seed() == 6909045637428952499);
}

TEST_CASE("the seed of an epoch is the same whichever epochs were requested before") {
  TorchEpochs forward(11), back(11);
  std::vector<std::uint64_t> seeds;
  for (std::int64_t epoch = 0; epoch < 5; epoch++) seeds.push_back(forward.seed(epoch));
  for (const std::int64_t epoch : {4, 4, 0, 3, 1, 2, 2})
    CHECK(back.seed(epoch) == seeds[static_cast<std::size_t>(epoch)]);
}

TEST_CASE("the seed of an epoch far ahead is the seed after the same number of draws") {
  TorchGenerator draws(11);
  constexpr int epoch = 1000;
  for (int i = 0; i < 2 * epoch + 1; i++) (void)draws.seed();
  CHECK(TorchEpochs(11).seed(epoch) == draws.seed());
}
