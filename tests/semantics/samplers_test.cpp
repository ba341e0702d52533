// SPDX-License-Identifier: Apache-2.0
// Which indices the samplers yield. Every index of torch's is compared by tests/unit/loader/torch_indices_test.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

#include "support/samplers.hpp"

using namespace feedlane::test;
using feedlane::Sampler;
using feedlane::Shuffle;

namespace {

// sum over cells of (found - expected)^2 / expected
double chi_square(const std::vector<std::int64_t>& found, const std::vector<double>& expected) {
  double sum = 0;
  for (std::size_t i = 0; i < found.size(); i++)
    if (expected[i] > 0) sum += std::pow(static_cast<double>(found[i]) - expected[i], 2) / expected[i];
  return sum;
}

std::vector<std::int64_t> counts(const Indices& indices, std::size_t cells) {
  std::vector<std::int64_t> result(cells);
  for (const std::int64_t i : indices) result.at(static_cast<std::size_t>(i))++;
  return result;
}

}  // namespace

// promise: sampler-sequential
TEST_CASE("a sequential sampler counts up from 0, and starts without delay at any length") {
  Sampler s = Sampler::sequential(INT64_MAX);
  Indices first(3);
  CHECK(s.next(first) == 3);
  CHECK(first == Indices{0, 1, 2});
  CHECK(s.length() == INT64_MAX);
}

// promise: sampler-sequential, config-other-invalid
TEST_CASE("a sampler is created from a configuration with its kind, and an unknown kind is refused") {
  feedlane_sampler_config config{};
  config.kind = FEEDLANE_SAMPLER_SEQUENTIAL;
  config.length = 3;
  Sampler s = Sampler::of(config);
  CHECK(epoch_of(s, 0) == Indices{0, 1, 2});
  config.kind = -1;
  feedlane::Error error;
  (void)Sampler::of(config, error);
  CHECK(error.argument() == std::string("config.kind"));
}

// promise: sampler-random-repeated
TEST_CASE("num_samples larger than the data set yields whole permutations, then a part of another") {
  for (const Shuffle shuffle : {Shuffle::torch, Shuffle::feistel, Shuffle::torch_loader}) {
    Sampler s = Sampler::random({.length = 10, .seed = 3, .num_samples = 25, .shuffle = shuffle});
    CHECK(s.length() == 25);
    const Indices all = epoch_of(s, 2);
    REQUIRE(all.size() == 25);
    const Indices one(all.begin(), all.begin() + 10), two(all.begin() + 10, all.begin() + 20);
    CHECK(sorted(one) == count_up(10));
    CHECK(sorted(two) == count_up(10));
    CHECK(one != two);
    CHECK(std::set(all.begin() + 20, all.end()).size() == 5);
    CHECK(epoch_of(s, 2, 3) == all);
    CHECK(epoch_of(s, 1) != all);
    CHECK_MESSAGE(epoch_of(s, 2) == all, "an earlier epoch");
  }
}

// promise: sampler-random-drawn
TEST_CASE("a random sampler with replacement draws each index with the same probability") {
  for (const Shuffle shuffle : {Shuffle::torch, Shuffle::feistel}) {
    Sampler s =
        Sampler::random({.length = 50, .seed = 1, .num_samples = 50000, .replacement = true, .shuffle = shuffle});
    CHECK(chi_square(counts(epoch_of(s, 0), 50), std::vector<double>(50, 1000)) < 100);  // 49 degrees of freedom
  }
}

// promise: sampler-feistel
TEST_CASE("a feistel shuffle of 10^12 indices starts without delay and takes constant memory") {
  const auto start = std::chrono::steady_clock::now();
  Sampler s = Sampler::random({.length = 1'000'000'000'000, .seed = 1, .shuffle = Shuffle::feistel});
  Sampler rank = Sampler::distributed(
      {.length = 1'000'000'000'000, .seed = 1, .world = 8, .rank = 7, .shuffle = Shuffle::feistel});
  Indices some(1000);
  for (Sampler* const sampler : {&s, &rank}) {
    sampler->restart(5);
    REQUIRE(sampler->next(some) == 1000);
    CHECK(std::set(some.begin(), some.end()).size() == 1000);
    CHECK(*std::max_element(some.begin(), some.end()) > 900'000'000'000);
  }
  CHECK(rank.length() == 125'000'000'000);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
}

// promise: sampler-subset
TEST_CASE("a subset sampler permutes its indices, a list sampler keeps their order, and an empty subset yields none") {
  const Indices some{5, 50, 500, -5, 5};
  Sampler s = Sampler::subset(some, 4);
  CHECK(sorted(epoch_of(s, 0)) == sorted(some));
  bool differs = false;
  for (std::int64_t epoch = 1; epoch < 5; epoch++) differs = differs || epoch_of(s, epoch) != epoch_of(s, 0);
  CHECK(differs);
  Sampler list = Sampler::list(some);
  CHECK(epoch_of(list, 3) == some);
  Sampler empty = Sampler::subset({}, 0);
  CHECK(empty.length() == 0);
  CHECK(epoch_of(empty, 0).empty());
}

// promise: sampler-weighted-drawn
TEST_CASE("a weighted sampler with replacement draws in proportion to the weights, and no index of weight zero") {
  const std::vector<double> weights{0, 1, 2, 3, 0, 4, 0.5, 0, 9.5};
  Sampler s = Sampler::weighted(weights, {.seed = 5, .num_samples = 200000});
  std::vector<double> expected;
  for (const double w : weights) expected.push_back(w / 20 * 200000);
  const auto found = counts(epoch_of(s, 0), weights.size());
  for (std::size_t i = 0; i < weights.size(); i++)
    if (weights[i] == 0) CHECK(found[i] == 0);
  CHECK(chi_square(found, expected) < 35);  // 5 degrees of freedom
  CHECK(epoch_of(s, 0) != epoch_of(s, 1));
  Sampler same = Sampler::weighted(weights, {.seed = 6, .num_samples = 200000});
  CHECK_MESSAGE(epoch_of(same, 0) == epoch_of(s, 1), "epoch e is drawn with seed + e");
}

// promise: sampler-weighted-drawn
TEST_CASE("weights of any magnitude work") {
  for (const double scale : {5e-324, 1e-300, 1.0, 1e300, 1.7e308}) {
    for (const bool without : {false, true}) {
      Sampler s = Sampler::weighted(std::vector<double>{0, scale, scale, 0, scale},
                                    {.seed = 5, .num_samples = 3, .without_replacement = without});
      for (const std::int64_t i : epoch_of(s, 0)) CHECK((i == 1 || i == 2 || i == 4));
    }
  }
  for (const double scale : {5e-324, 1.7e308}) {
    Sampler s =
        Sampler::weighted(std::vector<double>{scale, scale, scale}, {.num_samples = 3, .without_replacement = true});
    std::set<Indices> orders;
    for (std::int64_t epoch = 0; epoch < 100; epoch++) orders.insert(epoch_of(s, epoch));
    CHECK_MESSAGE(orders.size() == 6, "all of them");
  }
  Sampler s = Sampler::weighted(std::vector<double>{1e-300, 0, 1e300}, {.num_samples = 2, .without_replacement = true});
  CHECK_MESSAGE((epoch_of(s, 0) == Indices{2, 0}), "the light one comes last");
}

// promise: sampler-weighted-once
TEST_CASE("a weighted sampler without replacement draws no index twice, the first in proportion to the weights") {
  const std::vector<double> weights{1, 2, 0, 3, 4};
  Sampler s = Sampler::weighted(weights, {.seed = 1, .num_samples = 4, .without_replacement = true});
  constexpr int epochs = 20000;
  std::vector<std::int64_t> first(5);
  std::vector<std::int64_t> after_4(5);  // the second, where the first was 4
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    const Indices all = epoch_of(s, epoch);
    REQUIRE(sorted(all) == Indices{0, 1, 3, 4});
    first[static_cast<std::size_t>(all[0])]++;
    if (all[0] == 4) after_4[static_cast<std::size_t>(all[1])]++;
  }
  CHECK(chi_square(first, {2000, 4000, 0, 6000, 8000}) < 28);  // 3 degrees of freedom
  const double n = static_cast<double>(first[4]);
  CHECK(chi_square(after_4, {n / 6, n / 3, 0, n / 2, 0}) < 24);  // 2 degrees of freedom
}

// promise: sampler-batches, sampler-length
TEST_CASE("the length of a batch sampler is rounded down with drop_last, and up without") {
  for (const bool drop_last : {false, true})
    for (const std::int64_t length : {0, 1, 3, 4, 7, 8, 9}) {
      Sampler s = Sampler::batch(Sampler::sequential(length), 4, drop_last);
      const auto all = batches_of(s, 0, 4);
      CHECK(s.length() == (drop_last ? length / 4 : (length + 3) / 4));
      CHECK(static_cast<std::int64_t>(all.size()) == s.length());
      Indices flat;
      for (const Indices& batch : all) flat.insert(flat.end(), batch.begin(), batch.end());
      CHECK(flat == count_up(drop_last ? length / 4 * 4 : length));
      CHECK_MESSAGE(batches_of(s, 1, 9) == all, "more room is no larger batch");
    }
}

// promise: sampler-batches
TEST_CASE("a batch sampler copies its inner sampler") {
  Sampler inner = Sampler::random(10, 3);
  Sampler s = Sampler::batch(inner, 10);
  const Indices whole = epoch_of(inner, 4);
  CHECK(batches_of(s, 4, 10).at(0) == whole);
  CHECK(epoch_of(inner, 4) == whole);
}

// promise: sampler-distributed, sampler-order-by-epoch
TEST_CASE("distributed ranks share the order evenly; it is padded from its start, or cut short with drop_last") {
  for (const Shuffle shuffle : {Shuffle::torch, Shuffle::feistel})
    for (const int world : {1, 2, 3, 8, 25})
      for (const bool drop_last : {false, true}) {
        feedlane::DistributedOptions o{.length = 10, .seed = 7, .world = world, .drop_last = drop_last};
        o.shuffle = shuffle;
        const std::int64_t each = drop_last ? 10 / world : (10 + world - 1) / world;
        std::vector<Indices> parts;
        for (o.rank = 0; o.rank < world; o.rank++) {
          Sampler s = Sampler::distributed(o);
          CHECK(s.length() == each);
          parts.push_back(epoch_of(s, 2));
          CHECK(static_cast<std::int64_t>(parts.back().size()) == each);
        }
        Indices list;
        for (std::int64_t k = 0; k < each; k++)
          for (const Indices& part : parts) list.push_back(part[static_cast<std::size_t>(k)]);
        for (std::size_t i = 10; i < list.size(); i++) CHECK(list[i] == list[i - 10]);
        list.resize(std::min<std::size_t>(list.size(), 10));
        CHECK(std::set(list.begin(), list.end()).size() == list.size());
      }
}

// promise: rank-sources, rank-disagreement, rank-detect-off
TEST_CASE("a distributed sampler without a world size reads the launcher's variables, unless this is switched off") {
  const Variables variables({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "4"}});
  Sampler detected = Sampler::distributed({.length = 8, .no_shuffle = true});
  CHECK(epoch_of(detected, 0) == Indices{1, 5});
  Sampler told = Sampler::distributed({.length = 8, .world = 2, .rank = 0, .no_shuffle = true});
  CHECK(epoch_of(told, 0) == Indices{0, 2, 4, 6});
  Sampler off = Sampler::distributed({.length = 8, .no_shuffle = true, .detect_off = true});
  CHECK(epoch_of(off, 0) == count_up(8));
  const feedlane::Rank rank = feedlane::detect_rank();
  CHECK(rank.rank == 1);
  CHECK(rank.world == 4);
  CHECK(rank.source == "torchrun");
  CHECK(rank.warning.find("PMI_RANK") != std::string::npos);
}
