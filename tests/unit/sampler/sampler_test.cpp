// SPDX-License-Identifier: Apache-2.0
// Every index of torch's is compared by torch_indices_test.py; here is what holds for any sampler.
#include "sampler/sampler.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "support/kinds.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::sampler::make_random;
using feedlane::sampler::Sampler;
using feedlane::test::make_sequential;

namespace {

using Indices = std::vector<std::int64_t>;

std::unique_ptr<Sampler> sequential(std::int64_t length) {
  std::unique_ptr<Sampler> sampler;
  Error error;
  REQUIRE(make_sequential(length, sampler, error) == FEEDLANE_OK);
  return sampler;
}

std::unique_ptr<Sampler> shuffled(std::int64_t length, std::uint64_t seed) {
  std::unique_ptr<Sampler> sampler;
  Error error;
  feedlane_sampler_config config{};
  config.length = length;
  config.seed = seed;
  REQUIRE(make_random(config, nullptr, {}, sampler, error) == FEEDLANE_OK);
  return sampler;
}

// Up to `most` indices, in pieces of `cap`.
Indices pull(Sampler& sampler, std::uint64_t cap, std::size_t most = SIZE_MAX) {
  Indices all;
  Indices piece(cap + 1, -99);
  Error error;
  for (;;) {
    std::uint64_t got = 12345;
    const Status s = sampler.next(piece.data(), std::min<std::uint64_t>(cap, most - all.size()), got, error);
    CHECK_MESSAGE(piece[cap] == -99, "no more than there is room for");
    if (s != FEEDLANE_OK) {
      CHECK(s == FEEDLANE_END);
      CHECK(got == 0);
      return all;
    }
    CHECK(got > 0);
    all.insert(all.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(got));
    if (all.size() == most) return all;
    if (got < cap) {
      CHECK_MESSAGE(sampler.next(piece.data(), cap, got, error) == FEEDLANE_END, "fewer only at the end");
      return all;
    }
  }
}

Indices count_up(std::int64_t n) {
  Indices result(static_cast<std::size_t>(n));
  std::iota(result.begin(), result.end(), std::int64_t{0});
  return result;
}

bool is_permutation_of(Indices indices, std::int64_t n) {
  std::sort(indices.begin(), indices.end());
  return indices == count_up(n);
}

void restart(Sampler& sampler, std::int64_t epoch) {
  Error error;
  REQUIRE(sampler.restart(epoch, 0, error) == FEEDLANE_OK);
}

}  // namespace

TEST_CASE("a sequential order is 0, 1, 2 ... in every epoch, in pieces of any size") {
  for (const std::int64_t length : {0, 1, 7, 100})
    for (const std::uint64_t cap : {1u, 3u, 7u, 1000u}) {
      const auto sampler = sequential(length);
      CHECK(sampler->length() == length);
      CHECK(pull(*sampler, cap) == count_up(length));
      CHECK(pull(*sampler, cap).empty());
      restart(*sampler, 5);
      CHECK(pull(*sampler, cap) == count_up(length));
    }
}

// promise: sampler-random-once
TEST_CASE("a random order is a permutation, in pieces of any size") {
  for (const std::int64_t length : {1, 2, 7, 1000}) {
    const Indices whole = pull(*shuffled(length, 3), 5000);
    CHECK(is_permutation_of(whole, length));
    for (const std::uint64_t cap : {1u, 3u, 7u}) CHECK(pull(*shuffled(length, 3), cap) == whole);
    CHECK(shuffled(length, 3)->length() == length);
  }
}

TEST_CASE("a new random sampler is at the start of epoch 0") {
  const auto sampler = shuffled(100, 9);
  const Indices first = pull(*sampler, 10);
  restart(*sampler, 0);
  CHECK(pull(*sampler, 10) == first);
}

// promise: sampler-order-by-epoch
TEST_CASE("epoch e of a random sampler is the permutation of seed + e") {
  const auto sampler = shuffled(100, 9);
  restart(*sampler, 4);
  const Indices fourth = pull(*sampler, 10);
  CHECK(fourth == pull(*shuffled(100, 13), 10));
  restart(*sampler, 5);
  CHECK(pull(*sampler, 10) != fourth);
  const auto last = shuffled(100, UINT64_MAX);
  restart(*last, 1);
  CHECK_MESSAGE(pull(*last, 10) == pull(*shuffled(100, 0), 10), "seeds wrap around");
}

TEST_CASE("a random sampler uses the low 32 bits of a seed, like torch's generator") {
  CHECK(pull(*shuffled(50, 7), 10) == pull(*shuffled(50, 7 + (std::uint64_t{1} << 32)), 10));
  CHECK(pull(*shuffled(50, 7), 10) != pull(*shuffled(50, 8), 10));
}

TEST_CASE("an epoch can be restarted at any position") {
  for (const auto& sampler : {sequential(30), shuffled(30, 2)}) {
    const Indices whole = pull(*sampler, 7);
    restart(*sampler, 0);
    CHECK(pull(*sampler, 7, 14).size() == 14);
    restart(*sampler, 0);
    CHECK(pull(*sampler, 7) == whole);
  }
}

TEST_CASE("a clone has the same definition, starts at epoch 0, and is independent of the original") {
  for (const auto& sampler : {sequential(30), shuffled(30, 2)}) {
    const Indices whole = pull(*sampler, 7);
    restart(*sampler, 3);
    (void)pull(*sampler, 7, 14);
    const auto clone = sampler->clone();
    CHECK(clone->length() == 30);
    CHECK(pull(*clone, 7) == whole);
    CHECK(pull(*sampler, 7).size() == 16);
  }
}

TEST_CASE("impossible lengths are refused, and the error has the number") {
  std::unique_ptr<Sampler> sampler;
  Error error;
  CHECK(make_sequential(-1, sampler, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == "config.length");
  CHECK(error.found == -1);
  for (const std::int64_t length : {std::int64_t{0}, std::int64_t{-5}}) {
    feedlane_sampler_config config{};
    config.length = length;
    CHECK(make_random(config, nullptr, {}, sampler, error) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(error.argument) == "config.length");
    CHECK(error.found == length);
    CHECK(error.needed == 1);
  }
  CHECK(sampler == nullptr);
}
