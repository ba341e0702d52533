// SPDX-License-Identifier: Apache-2.0
// Mixtures: how often each source comes, in which order its samples come, how ranks share the stream, how it resumes.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>

#include "support/samplers.hpp"

using namespace feedlane::test;
using feedlane::MixtureOptions;
using feedlane::Sampler;

namespace {

using State = std::vector<std::byte>;

// Which source each index is of.
std::vector<std::size_t> sources_of(const Indices& indices, const Indices& lengths) {
  std::vector<std::size_t> all;
  for (std::int64_t i : indices) {
    std::size_t source = 0;
    while (i >= lengths[source]) i -= lengths[source++];
    all.push_back(source);
  }
  return all;
}

std::vector<std::int64_t> counts_of(const Indices& indices, const Indices& lengths) {
  std::vector<std::int64_t> counts(lengths.size());
  for (const std::size_t source : sources_of(indices, lengths)) counts[source]++;
  return counts;
}

// So many epochs one behind the other.
Indices stream_of(Sampler& s, std::int64_t epochs) {
  Indices all;
  for (std::int64_t e = 0; e < epochs; e++) {
    const Indices epoch = epoch_of(s, e);
    all.insert(all.end(), epoch.begin(), epoch.end());
  }
  return all;
}

struct World {
  World(const Indices& lengths, const std::vector<double>& weights, MixtureOptions o, int world) {
    o.world = world;
    for (o.rank = 0; o.rank < world; o.rank++) ranks.push_back(Sampler::mixture(lengths, weights, o));
  }
  void restart(std::int64_t epoch) {
    for (Sampler& s : ranks) s.restart(epoch);
  }
  // Up to `steps` indices of each rank, in the order that all ranks share.
  Indices take(std::size_t steps = SIZE_MAX) {
    Indices all;
    for (std::size_t i = 0; i < steps; i++) {
      const std::size_t before = all.size();
      for (Sampler& s : ranks) {
        std::int64_t index = 0;
        if (s.next(std::span(&index, 1)) == 1) all.push_back(index);
      }
      if (all.size() == before) break;
    }
    return all;
  }
  std::vector<Sampler> ranks;
};

const Indices sizes{700, 40, 0, 1000};
const std::vector<double> shares{3, 1.5, 0, 0.25};

std::int32_t load_fails(Sampler& s, const State& state) {
  feedlane::Error error;
  s.load(state, error);
  return error.code();
}

}  // namespace

// promise: sampler-mixture-shares
TEST_CASE("mixture: after any number of samples the count from each source is close to its share of the weights") {
  for (const std::size_t count : {1U, 2U, 3U, 7U, 40U}) {
    Indices lengths;
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t i = 0; i < count; i++) {
      lengths.push_back(static_cast<std::int64_t>(5 + 3 * i));
      weights.push_back(i % 5 == 3 ? 0 : 1 / static_cast<double>(1 + i * i));
      sum += weights.back();
    }
    Sampler s = Sampler::mixture(lengths, weights, {.num_samples = 3000, .window = 1, .world = 1});
    const double bound = std::log2(static_cast<double>(count)) + 1;
    std::vector<double> seen(count);
    double n = 0;
    bool is_even = true;
    for (const std::size_t source : sources_of(epoch_of(s, 2), lengths)) {
      seen[source]++;
      n++;
      // Of the epoch; what was picked before it is as even.
      for (std::size_t i = 0; i < count; i++)
        is_even = is_even && std::abs(seen[i] - n * weights[i] / sum) <= 2 * bound;
    }
    CHECK(is_even);
    CHECK(n == 3000);
  }
}

// promise: sampler-mixture-shares
TEST_CASE("mixture: each pass over a source, also across epochs, has each sample once, and its own order if shuffled") {
  for (const bool no_shuffle : {false, true}) {
    Sampler s = Sampler::mixture(sizes, shares,
                                 {.num_samples = 130, .seed = 4, .window = 1, .no_shuffle = no_shuffle, .world = 1});
    std::vector<Indices> of(sizes.size());
    for (const std::int64_t i : stream_of(s, 20)) of[sources_of({i}, sizes)[0]].push_back(i);
    CHECK(of[2].empty());
    const std::ptrdiff_t passes = std::ssize(of[1]) / 40;
    REQUIRE(passes >= 10);
    std::set<Indices> orders;
    for (std::ptrdiff_t p = 0; p < passes; p++) {
      const Indices pass(of[1].begin() + 40 * p, of[1].begin() + 40 * (p + 1));
      orders.insert(pass);
      Indices wanted = count_up(40);
      for (std::int64_t& i : wanted) i += 700;
      CHECK(sorted(pass) == wanted);
    }
    CHECK(std::ssize(orders) == (no_shuffle ? 1 : passes));
    REQUIRE(of[0].size() >= 700);
    CHECK((Indices(of[0].begin(), of[0].begin() + 700) == count_up(700)) == no_shuffle);
  }
}

// promise: sampler-mixture-shares
TEST_CASE("mixture: a window shuffles the order of its samples, and no sample leaves its window") {
  const MixtureOptions plain{.num_samples = 1000, .seed = 9, .window = 1, .world = 1};
  for (const std::int64_t window : {10, 250}) {
    MixtureOptions o = plain;
    o.window = window;
    Sampler in_turn = Sampler::mixture(sizes, shares, plain), mixed = Sampler::mixture(sizes, shares, o);
    const Indices a = epoch_of(in_turn, 3), b = epoch_of(mixed, 3);
    CHECK(a != b);
    for (std::int64_t at = 0; at < 1000; at += window)
      CHECK(sorted({a.begin() + at, a.begin() + at + window}) == sorted({b.begin() + at, b.begin() + at + window}));
  }
  // Two equal sources and two ranks: without windows each rank would get one of them.
  World two({500, 500}, {1, 1}, {.seed = 1}, 2);
  for (Sampler& s : two.ranks) {
    const auto counts = counts_of(rest_of(s), {500, 500});
    CHECK(std::abs(counts[0] - counts[1]) < 150);
  }
  MixtureOptions other = plain;
  other.window = 0;
  Sampler by_seed = Sampler::mixture(sizes, shares, other);
  const Indices first = epoch_of(by_seed, 0);
  other.seed = 10;
  Sampler another = Sampler::mixture(sizes, shares, other);
  CHECK(epoch_of(another, 0) != first);
  CHECK(epoch_of(by_seed, 1) != first);
  CHECK(epoch_of(by_seed, 0) == first);
}

// promise: sampler-mixture-shares
TEST_CASE("mixture: the weights change at the start of a stage, and each source continues at its position") {
  const Indices lengths{100, 100, 100};
  const std::vector<double> weights{1, 0, 0, 0, 1, 0, 1, 1, 2};
  const Indices from{0, 60, 200};
  Sampler s = Sampler::mixture(lengths, weights,
                               {.num_samples = 400, .window = 1, .from = from, .no_shuffle = true, .world = 1});
  const Indices all = epoch_of(s, 0);
  CHECK(Indices(all.begin(), all.begin() + 60) == count_up(60));
  const auto part = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
    return counts_of({all.begin() + begin, all.begin() + end}, lengths);
  };
  CHECK(part(60, 200) == std::vector<std::int64_t>{0, 140, 0});
  CHECK(part(200, 400) == std::vector<std::int64_t>{50, 50, 100});
  Indices first_source;
  for (const std::int64_t i : all)
    if (i < 100) first_source.push_back(i);
  Indices wanted = count_up(100);
  wanted.insert(wanted.end(), wanted.begin(), wanted.begin() + 10);
  CHECK(first_source == wanted);
  // The third epoch is the last stage, and so are all after it.
  CHECK(counts_of(epoch_of(s, 2), lengths) == std::vector<std::int64_t>{100, 100, 200});
}

// promise: sampler-mixture-resume
TEST_CASE("mixture: ranks share one stream, which is padded from the epoch's start, or cut short with drop_last") {
  for (const bool drop_last : {false, true})
    for (const int world : {1, 2, 3, 7})
      for (const std::int64_t epoch : {0, 5}) {
        MixtureOptions o{.num_samples = 500, .seed = 2, .drop_last = drop_last};
        World one(sizes, shares, o, 1), all(sizes, shares, o, world);
        one.restart(epoch);
        all.restart(epoch);
        Indices wanted = one.take();
        const std::size_t each =
            drop_last ? 500 / static_cast<std::size_t>(world) : (499 / static_cast<std::size_t>(world)) + 1;
        for (std::size_t i = 0; wanted.size() < each * static_cast<std::size_t>(world); i++)
          wanted.push_back(wanted[i]);
        wanted.resize(each * static_cast<std::size_t>(world));
        CHECK(all.take() == wanted);
        for (Sampler& s : all.ranks) CHECK(s.length() == static_cast<std::int64_t>(each));
      }
}

// promise: sampler-mixture-resume
TEST_CASE("mixture: a state resumes after any number of samples, also with another number of ranks") {
  const MixtureOptions o{.num_samples = 90, .seed = 3, .window = 16};
  World whole(sizes, shares, o, 1);
  whole.restart(4);
  const Indices wanted = whole.take();
  for (std::size_t steps = 0; steps <= 45; steps++) {
    World two(sizes, shares, o, 2), three(sizes, shares, o, 3);
    two.restart(4);
    three.restart(4);
    Indices all = two.take(steps);
    const State state = two.ranks[steps % 2].save();
    for (Sampler& s : three.ranks) s.load(state);
    const Indices after = three.take();
    all.insert(all.end(), after.begin(), after.end());
    CHECK(all == wanted);
  }
}

// promise: sampler-mixture-resume
TEST_CASE("mixture: a state of a sampler with other settings is refused") {
  const MixtureOptions o{.num_samples = 90, .seed = 3, .world = 1};
  Sampler s = Sampler::mixture(sizes, shares, o);
  s.restart(0);
  (void)rest_of(s, 7, 20);
  const State state = s.save();
  const Indices rest = rest_of(s);
  const auto refuses = [&](const Indices& lengths, const std::vector<double>& weights, const MixtureOptions& other) {
    Sampler t = Sampler::mixture(lengths, weights, other);
    t.restart(0);
    return load_fails(t, state) == FEEDLANE_E_ARGUMENT;
  };
  MixtureOptions other = o;
  CHECK(!refuses(sizes, shares, o));
  CHECK(!refuses(sizes, {6, 3, 0, 0.5}, o));  // the same shares
  CHECK(refuses({700, 40, 0, 1001}, shares, o));
  CHECK(refuses(sizes, {3, 1.5, 0, 0.26}, o));
  other.num_samples = 91;
  CHECK(refuses(sizes, shares, other));
  other = o;
  other.seed = 4;
  CHECK(refuses(sizes, shares, other));
  other = o;
  other.window = 5;
  CHECK(refuses(sizes, shares, other));
  other = o;
  other.no_shuffle = true;
  CHECK(refuses(sizes, shares, other));
  Sampler again = Sampler::mixture(sizes, shares, o);
  again.restart(0);
  again.load(state);
  CHECK(rest_of(again) == rest);
}

// States that were saved by one release are loaded by another.
// promise: sampler-mixture-resume
TEST_CASE("mixture: the order of the samples is the same in every release") {
  Sampler plain = Sampler::mixture(Indices{5, 3, 9}, std::vector<double>{2, 1, 4},
                                   {.num_samples = 14, .window = 1, .no_shuffle = true, .world = 1});
  CHECK(epoch_of(plain, 0) == Indices{8, 0, 9, 5, 10, 1, 11, 12, 2, 13, 6, 14, 3, 15});
  Sampler shuffled = Sampler::mixture(Indices{5, 3, 9}, std::vector<double>{2, 1, 4},
                                      {.num_samples = 14, .seed = 7, .window = 8, .world = 1});
  CHECK(epoch_of(shuffled, 1) == Indices{1, 14, 10, 7, 4, 12, 11, 2, 15, 9, 7, 3, 13, 14});
}

// promise: sampler-mixture-shares
TEST_CASE("mixture: the largest lengths and weights work, and an epoch beyond the limit is refused with E_LIMIT") {
  constexpr std::int64_t most = std::int64_t{1} << 62;
  Sampler large = Sampler::mixture(Indices{most / 2, most / 2}, std::vector<double>{1e-300, 1e300},
                                   {.num_samples = most, .world = 1});
  const Indices some = [&] {
    large.restart(0);
    return rest_of(large, 100, 1000);
  }();
  CHECK(std::set<std::int64_t>(some.begin(), some.end()).size() == 1000);
  for (const std::int64_t i : some) CHECK((i >= 0 && i < most));
  feedlane::Error error;
  large.restart(1, error);
  CHECK(error.code() == FEEDLANE_E_LIMIT);
  // The last sample of the stream.
  Sampler last = Sampler::mixture(Indices{3, 4}, std::vector<double>{1, 2}, {.num_samples = 2, .world = 1});
  last.restart(most / 2 - 1);
  CHECK(rest_of(last).size() == 2);
  std::vector<double> weights(65536, 1);
  Indices lengths(65536, most / 65536);
  Sampler many = Sampler::mixture(lengths, weights, {.num_samples = 65536, .world = 1});
  many.restart(7);
  const auto counts = counts_of(rest_of(many, 4096), {most / 2, most / 2});
  CHECK(counts[0] == 32768);
}
