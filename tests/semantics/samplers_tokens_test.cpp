// SPDX-License-Identifier: Apache-2.0
// Batches within a budget of tokens: what is in them, how ranks share them, how they resume.
#include <doctest/doctest.h>

#include <set>

#include "support/samplers.hpp"

using namespace feedlane::test;
using feedlane::Sampler;
using feedlane::TokensOptions;

namespace {

using State = std::vector<std::byte>;
using Batches = std::vector<Indices>;

// Many short samples, few long ones; from 0 to 99.
Indices lengths_of(std::size_t count) {
  Indices lengths;
  for (std::size_t i = 0; i < count; i++) lengths.push_back(static_cast<std::int64_t>(i * i * 7919 % 10007 % 100));
  return lengths;
}

struct World {
  World(const Indices& lengths, TokensOptions o, int world) {
    o.world = world;
    for (o.rank = 0; o.rank < world; o.rank++) ranks.push_back(Sampler::tokens(lengths, o));
    rows = static_cast<std::size_t>(o.max_rows);
  }
  void restart(std::int64_t epoch) {
    for (Sampler& s : ranks) s.restart(epoch);
  }
  // The batches of up to `most` steps, in the order that all ranks share. Every rank yields as many as every other.
  Batches take(std::size_t most = SIZE_MAX) {
    Batches all;
    Indices room(rows);
    for (std::size_t step = 0; step < most; step++) {
      const std::size_t before = all.size();
      for (Sampler& s : ranks)
        if (const std::size_t got = s.next(room))
          all.emplace_back(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(got));
      if (all.size() == before) break;
      REQUIRE(all.size() - before == ranks.size());
    }
    return all;
  }
  std::vector<Sampler> ranks;
  std::size_t rows = 0;
};

Indices flat(const Batches& batches) {
  Indices all;
  for (const Indices& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

std::int64_t cost(const Indices& batch, const Indices& lengths, bool padded) {
  std::int64_t sum = 0, longest = 0;
  for (const std::int64_t i : batch) {
    sum += lengths[static_cast<std::size_t>(i)];
    longest = std::max(longest, lengths[static_cast<std::size_t>(i)]);
  }
  return padded ? longest * static_cast<std::int64_t>(batch.size()) : sum;
}

std::int64_t padding(const Batches& batches, const Indices& lengths) {
  std::int64_t sum = 0;
  for (const Indices& batch : batches) sum += cost(batch, lengths, true) - cost(batch, lengths, false);
  return sum;
}

std::int32_t load_fails(Sampler& s, const State& state) {
  feedlane::Error error;
  s.load(state, error);
  return error.code();
}

}  // namespace

// promise: sampler-tokens-budget
TEST_CASE("tokens: batches stay within the token and row limits, and each sample is in one batch of one rank") {
  const Indices lengths = lengths_of(1000);
  for (const bool padded : {false, true})
    for (const bool no_shuffle : {false, true})
      for (const std::int64_t window : {1, 50, 0, 5000})
        for (const int world : {1, 2, 3, 7}) {
          World all(lengths,
                    {.max_tokens = 400,
                     .max_rows = 16,
                     .seed = 3,
                     .window = window,
                     .padded = padded,
                     .no_shuffle = no_shuffle},
                    world);
          for (const std::int64_t epoch : {0, 4}) {
            all.restart(epoch);
            const std::int64_t length = all.ranks[0].length();
            const Batches batches = all.take();
            CHECK(static_cast<std::int64_t>(batches.size()) == length * world);
            for (Sampler& s : all.ranks) CHECK(s.length() == length);
            for (const Indices& batch : batches) {
              CHECK(batch.size() <= 16);
              CHECK(cost(batch, lengths, padded) <= 400);
            }
            CHECK(sorted(flat(batches)) == count_up(1000));
          }
        }
}

// promise: sampler-tokens-budget
TEST_CASE("tokens: batches are as full as the budget allows") {
  World sum({5, 5, 5, 4, 1, 10, 0}, {.max_tokens = 10, .max_rows = 4, .window = 1, .no_shuffle = true}, 1);
  CHECK((sum.take() == Batches{{0, 1}, {2, 3, 4}, {5, 6}}));
  World padded({5, 5, 5, 4, 1, 10, 0},
               {.max_tokens = 10, .max_rows = 4, .window = 1, .padded = true, .no_shuffle = true}, 1);
  CHECK((padded.take() == Batches{{0, 1}, {2, 3}, {4}, {5}, {6}}));
  World rows({0, 0, 0, 0, 0}, {.max_tokens = 1, .max_rows = 2, .no_shuffle = true}, 1);
  CHECK((rows.take() == Batches{{0, 1}, {2, 3}, {4}}));
}

// promise: sampler-tokens-lengths
TEST_CASE("tokens: windows are sorted by length, alternately ascending and descending, which reduces padding") {
  World sorts({3, 1, 2, 4, 6, 5}, {.max_tokens = 100, .max_rows = 6, .window = 3, .no_shuffle = true}, 1);
  CHECK((sorts.take() == Batches{{1, 2, 0, 4, 5, 3}}));
  const Indices lengths = lengths_of(2000);
  const auto waste = [&](std::int64_t window) {
    World all(lengths, {.max_tokens = 1000, .max_rows = 32, .window = window, .padded = true}, 2);
    return padding(all.take(), lengths);
  };
  CHECK(waste(500) * 5 < waste(1));
  CHECK(waste(0) < waste(500));
}

// promise: sampler-tokens-lengths
TEST_CASE("tokens: the order depends on seed + epoch, for samples and for batches") {
  const Indices lengths = lengths_of(300);
  TokensOptions o{.max_tokens = 300, .max_rows = 8, .seed = 5};
  World all(lengths, o, 2);
  const Batches first = all.take();
  all.restart(1);
  const Batches second = all.take();
  CHECK(first != second);
  all.restart(0);
  CHECK_MESSAGE(all.take() == first, "an earlier epoch");
  o.seed = 6;
  World next(lengths, o, 2);
  CHECK_MESSAGE(next.take() == second, "epoch e is that of seed + e");
  o.max_rows = 1;
  World singles(lengths, o, 1);
  Indices yielded;
  for (const std::int64_t i : flat(singles.take())) yielded.push_back(lengths[static_cast<std::size_t>(i)]);
  CHECK_MESSAGE(!std::is_sorted(yielded.begin(), yielded.end()), "batches of one window are shuffled");
}

// promise: sampler-tokens-lengths
TEST_CASE("tokens: the batches of all ranks in one step have samples of similar lengths") {
  const Indices lengths = lengths_of(4000);
  World all(lengths, {.max_tokens = 400, .max_rows = 64, .seed = 5}, 4);
  const Batches batches = all.take();
  std::int64_t spread = 0;
  for (std::size_t step = 0; step < batches.size(); step += 4) {
    std::int64_t least = INT64_MAX, most = 0;
    for (std::size_t i = step; i < step + 4; i++) {
      const auto rows = static_cast<std::int64_t>(batches[i].size());
      const std::int64_t longest = rows == 0 ? 0 : cost(batches[i], lengths, true) / rows;
      least = std::min(least, longest);
      most = std::max(most, longest);
    }
    spread = std::max(spread, most - least);
  }
  CHECK_MESSAGE(spread <= 10, "of 100 lengths");
}

// promise: sampler-tokens-even-ranks
TEST_CASE("tokens: batches are split until each rank has as many; with drop_last the excess batches are omitted") {
  const Indices lengths(20, 10);
  const TokensOptions o{.max_tokens = 40, .max_rows = 8, .window = 1, .no_shuffle = true};
  World one(lengths, o, 1);
  CHECK(one.take().size() == 5);
  World four(lengths, o, 4);
  const Batches split = four.take();
  REQUIRE(split.size() == 8);
  CHECK(flat(split) == count_up(20));
  CHECK((split[0] == Indices{0, 1}));
  CHECK((split[6] == Indices{12, 13, 14, 15}));
  TokensOptions drops = o;
  drops.drop_last = true;
  World dropped(lengths, drops, 4);
  CHECK(flat(dropped.take()) == count_up(16));
  World many(lengths, drops, 6);
  CHECK(many.ranks[5].length() == 0);
  CHECK(many.take().empty());
}

// promise: sampler-tokens-even-ranks
TEST_CASE("tokens: with fewer samples than ranks, batches are repeated from the start") {
  World five({1, 1, 1}, {.max_tokens = 10, .max_rows = 8, .no_shuffle = true}, 5);
  CHECK((five.take() == Batches{{0}, {1}, {2}, {0}, {1}}));
  World none({}, {.max_tokens = 10, .max_rows = 8}, 5);
  CHECK(none.ranks[0].length() == 0);
  CHECK(none.take().empty());
}

// promise: sampler-tokens-budget
TEST_CASE(
    "tokens: a sample above the token budget is refused with its index and both numbers, or omitted by drop_long") {
  const Indices lengths{3, 10, 11, 4, std::int64_t{1} << 40};
  feedlane::Error error;
  (void)Sampler::tokens(lengths, {.max_tokens = 10, .max_rows = 8, .world = 1}, error);
  CHECK(error.code() == FEEDLANE_E_ARGUMENT);
  CHECK(error.argument() == "config.lengths");
  CHECK(error.found() == 11);
  CHECK(error.needed() == 10);
  CHECK(std::string(error.what()).find("lengths[2] is 11") != std::string::npos);
  World all(lengths, {.max_tokens = 10, .max_rows = 8, .drop_long = true}, 1);
  CHECK((sorted(flat(all.take())) == Indices{0, 1, 3}));
}

// promise: sampler-tokens-resume
TEST_CASE("tokens: a state of any rank resumes with the same batches after any step") {
  const Indices lengths = lengths_of(120);
  for (const bool drop_last : {false, true})
    for (const std::int64_t epoch : {0, 3}) {
      const TokensOptions o{.max_tokens = 300, .max_rows = 8, .seed = 9, .window = 40, .drop_last = drop_last};
      World all(lengths, o, 3);
      all.restart(epoch);
      const Batches whole = all.take();
      for (std::size_t steps = 0; steps <= whole.size() / 3; steps++) {
        all.restart(epoch);
        (void)all.take(steps);
        const State state = all.ranks[steps % 3].save();
        CHECK(state.size() <= 200);
        for (Sampler& s : all.ranks) CHECK_MESSAGE(s.save() == state, "all ranks have one state");
        World other(lengths, o, 3);
        other.restart(epoch);
        for (Sampler& s : other.ranks) s.load(state);
        CHECK(other.take() == Batches(whole.begin() + static_cast<std::ptrdiff_t>(steps * 3), whole.end()));
        other.restart(epoch);
        CHECK_MESSAGE(other.take() == whole, "a restart starts over");
      }
    }
}

// promise: sampler-tokens-resume
TEST_CASE("tokens: the rest of an epoch is shared evenly among another number of ranks, several times in a row") {
  const Indices lengths = lengths_of(600);
  for (const bool drop_last : {false, true}) {
    const TokensOptions o{.max_tokens = 300, .max_rows = 8, .seed = 9, .drop_last = drop_last};
    World original(lengths, o, 4);
    original.restart(2);
    const Batches whole = original.take();
    original.restart(2);
    Batches found = original.take(6);
    State state = original.ranks[2].save();
    std::size_t lost = 0;
    std::int64_t steps = 6;
    for (const int world : {3, 5, 3, 2, 4}) {
      World next(lengths, o, world);
      next.restart(2);
      for (Sampler& s : next.ranks) {
        s.load(state);
        CHECK_MESSAGE(s.save() == state, "loading alone changes nothing");
      }
      const std::int64_t length = next.ranks[0].length();
      for (Sampler& s : next.ranks) CHECK(s.length() == length);
      const Batches part = next.take(4);
      found.insert(found.end(), part.begin(), part.end());
      steps += 4;
      state = next.ranks[static_cast<std::size_t>(world) - 1].save();
      for (Sampler& s : next.ranks) CHECK(s.save() == state);
      lost += static_cast<std::size_t>(world) - 1;
    }
    World last(lengths, o, 4);
    last.restart(2);
    for (Sampler& s : last.ranks) s.load(state);
    CHECK(last.ranks[0].length() >= steps);
    const Batches part = last.take();
    CHECK(last.ranks[0].length() == steps + static_cast<std::int64_t>(part.size() / 4));
    found.insert(found.end(), part.begin(), part.end());
    for (const Indices& batch : found) CHECK(cost(batch, lengths, false) <= 300);
    const Indices all = sorted(flat(found));
    CHECK_MESSAGE(std::set(all.begin(), all.end()).size() == all.size(), "no index comes twice");
    if (!drop_last) CHECK(all == count_up(600));
    if (drop_last) CHECK(found.size() + lost + 3 >= whole.size());
    if (drop_last) CHECK(found.size() <= whole.size());
    CHECK(Batches(found.begin(), found.begin() + 24) == Batches(whole.begin(), whole.begin() + 24));
    last.restart(2);
    CHECK_MESSAGE(last.take() == whole, "the next restart is this world's own");
  }
}

// promise: sampler-tokens-resume
TEST_CASE("tokens: a damaged state, or a state of a sampler with other settings, is refused") {
  const Indices lengths = lengths_of(50);
  const TokensOptions o{.max_tokens = 300, .max_rows = 8, .seed = 9, .window = 20, .world = 2};
  Sampler s = Sampler::tokens(lengths, o);
  State state = s.save();
  const auto refused = [&](auto change) {
    TokensOptions other = o;
    Indices others = lengths;
    change(other, others);
    Sampler to = Sampler::tokens(others, other);
    return load_fails(to, state) == FEEDLANE_E_ARGUMENT;
  };
  CHECK(refused([](TokensOptions& t, Indices&) { t.max_tokens = 301; }));
  CHECK(refused([](TokensOptions& t, Indices&) { t.max_rows = 9; }));
  CHECK(refused([](TokensOptions& t, Indices&) { t.seed = 10; }));
  CHECK(refused([](TokensOptions& t, Indices&) { t.window = 21; }));
  CHECK(refused([](TokensOptions& t, Indices&) { t.padded = true; }));
  CHECK(refused([](TokensOptions& t, Indices&) { t.no_shuffle = true; }));
  CHECK(refused([](TokensOptions& t, Indices&) { t.drop_last = true; }));
  CHECK(refused([](TokensOptions& t, Indices&) { t.drop_long = true; }));
  CHECK(refused([](TokensOptions&, Indices& l) { l.pop_back(); }));
  CHECK(refused([](TokensOptions&, Indices& l) { std::swap(l[1], l[2]); }));
  CHECK_FALSE(refused([](TokensOptions& t, Indices&) { t.world = 3; }));
  s.restart(1);
  CHECK_MESSAGE(load_fails(s, state) == FEEDLANE_E_ARGUMENT, "another epoch");
  Sampler sequence = Sampler::sequential(50);
  CHECK_MESSAGE(load_fails(sequence, state) == FEEDLANE_E_ARGUMENT, "another kind");
  s.restart(0);
  for (std::byte& b : state) {
    b ^= std::byte{0x40};
    CHECK(load_fails(s, state) == FEEDLANE_E_CORRUPT);
    b ^= std::byte{0x40};
  }
  CHECK(load_fails(s, State(state.begin(), state.end() - 1)) == FEEDLANE_E_CORRUPT);
  CHECK(load_fails(s, state) == FEEDLANE_OK);
}

// promise: sampler-tokens-budget
TEST_CASE("tokens: without a world size the launcher's variables are read, unless this is switched off") {
  const Variables variables({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  const TokensOptions o{.max_tokens = 1, .max_rows = 1, .no_shuffle = true};
  Sampler detected = Sampler::tokens(Indices{1, 1, 1, 1}, o);
  CHECK((batches_of(detected, 0, 1) == Batches{{1}, {3}}));
  TokensOptions off = o;
  off.detect_off = true;
  Sampler alone = Sampler::tokens(Indices{1, 1}, off);
  CHECK((batches_of(alone, 0, 1) == Batches{{0}, {1}}));
}
