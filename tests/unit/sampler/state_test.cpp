// SPDX-License-Identifier: Apache-2.0
// Saving as of an earlier position, which a loader does: what it has yielded lags behind what it has pulled.
#include <doctest/doctest.h>

#include <string>

#include "support/kinds.hpp"

using feedlane::Error;
using feedlane::sampler::Sampler;

namespace {

using Indices = std::vector<std::int64_t>;
using State = std::vector<std::byte>;
using Pointer = std::unique_ptr<Sampler>;

Pointer shuffled() {
  Pointer s;
  Error error;
  feedlane_sampler_config config{};
  config.length = 10;
  config.seed = 4;
  config.num_samples = 23;
  REQUIRE(feedlane::sampler::make_random(config, nullptr, {}, s, error) == FEEDLANE_OK);
  return s;
}

Pointer distributed(std::int32_t world, std::int32_t rank) {
  Pointer s;
  Error error;
  feedlane_sampler_config config{};
  config.length = 47;
  config.world = world;
  config.rank = rank;
  REQUIRE(feedlane::sampler::make_distributed(config, nullptr, {}, s, error) == FEEDLANE_OK);
  return s;
}

Pointer batches(const Sampler& inner, bool drop_last = false) {
  Pointer s;
  Error error;
  REQUIRE(feedlane::test::make_batch(inner, 4, drop_last ? 1 : 0, s, error) == FEEDLANE_OK);
  return s;
}

// What is left, a piece of up to 4 an entry.
std::vector<Indices> rest(Sampler& s) {
  std::vector<Indices> all;
  Error error;
  for (;;) {
    Indices piece(4);
    std::uint64_t got = 0;
    if (s.next(piece.data(), 4, got, error) != FEEDLANE_OK) return all;
    piece.resize(got);
    all.push_back(piece);
  }
}

State save(const Sampler& s, std::int64_t position) {
  State state;
  Error error;
  REQUIRE(s.save(position, state, error) == FEEDLANE_OK);
  return state;
}

void load(Sampler& s, std::int64_t epoch, const State& state) {
  Error error;
  REQUIRE(s.restart(epoch, 0, error) == FEEDLANE_OK);
  REQUIRE_MESSAGE(s.load(state, error) == FEEDLANE_OK, error.text);
}

std::vector<Indices> from(const std::vector<Indices>& all, std::size_t piece) {
  return {all.begin() + static_cast<std::ptrdiff_t>(std::min(piece, all.size())), all.end()};
}

}  // namespace

TEST_CASE("a state of any earlier position can be saved at the end of the epoch") {
  for (const auto& original : {shuffled(), distributed(3, 1)}) {
    REQUIRE(original->seekable());
    const auto all = rest(*original);
    for (std::size_t piece = 0; piece <= all.size(); piece++) {
      const auto copy = original->clone();
      load(*copy, 0, save(*original, static_cast<std::int64_t>(piece) * 4));
      CHECK(rest(*copy) == from(all, piece));
    }
  }
}

TEST_CASE("positions of a batch sampler count batches, and a position beyond the last batch is the end") {
  for (const bool drop_last : {false, true}) {
    const auto original = batches(*shuffled(), drop_last);
    const auto all = rest(*original);
    CHECK(static_cast<std::int64_t>(all.size()) == original->length());
    for (const std::int64_t position : {INT64_C(0), INT64_C(1), INT64_C(5), INT64_C(6), INT64_C(7), INT64_MAX}) {
      const auto copy = original->clone();
      load(*copy, 0, save(*original, position));
      CHECK(rest(*copy) == from(all, static_cast<std::size_t>(position)));
    }
  }
}

TEST_CASE("saving appends a state to a buffer and leaves the bytes before it unchanged") {
  const auto s = shuffled();
  State both(3, std::byte{1});
  Error error;
  REQUIRE(s->save(4, both, error) == FEEDLANE_OK);
  const State alone = save(*s, 4);
  CHECK(State(both.begin() + 3, both.end()) == alone);
}

TEST_CASE("after a state is loaded into another world size, no earlier position can be saved") {
  const auto two = distributed(2, 0);
  const auto three = distributed(3, 0);
  load(*three, 0, save(*two, 6));
  State state;
  Error error;
  CHECK(three->save(5, state, error) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(error.argument) == "position");
  CHECK(error.found == 5);
  CHECK(error.needed == 6);
  CHECK(state.empty());
  CHECK(save(*three, 6).size() == save(*two, 6).size());
}

TEST_CASE("after a change of world size, batches of ranks of different lengths still share the list") {
  // 48 in the list, two batches of 4 yielded by each of two ranks; 32 are left for five: 7, 7, 6, 6, 6.
  std::vector<Pointer> ranks;
  for (std::int32_t rank = 0; rank < 5; rank++) ranks.push_back(batches(*distributed(5, rank)));
  const State state = save(*batches(*distributed(2, 1)), 2);
  Indices found;
  for (const auto& s : ranks) {
    load(*s, 0, state);
    for (const Indices& batch : rest(*s)) found.insert(found.end(), batch.begin(), batch.end());
  }
  CHECK(found.size() == 48 - 2 * 8);
  // After the last batch every rank says that nothing is left, the short ones too.
  for (const auto& s : ranks) {
    const auto one = batches(*distributed(1, 0));
    load(*one, 0, save(*s, s->length()));
    CHECK(rest(*one).empty());
  }
}

TEST_CASE("samples dropped by drop_last are not yielded after a change of world size") {
  const auto two = batches(*distributed(2, 0), true);  // 24 each
  const auto three = batches(*distributed(3, 0), true);
  load(*three, 0, save(*two, 4));  // 16 are left: 6, 5, 5
  CHECK(three->length() == 5);
  CHECK(rest(*three).size() == 1);
  for (const std::int64_t position : {INT64_C(5), INT64_C(-1)}) {
    const auto one = batches(*distributed(1, 0), true);
    load(*one, 0, save(*three, position));
    CHECK(rest(*one).empty());
  }
}

// promise: rank-reported
TEST_CASE("a distributed sampler, its copies and batches name the source of the rank") {
  CHECK(std::string(distributed(2, 1)->rank_source()) == "config");
  CHECK(std::string(batches(*distributed(2, 1))->rank_source()) == "config");
  CHECK(std::string(shuffled()->rank_source()).empty());
  feedlane_sampler_config config{};
  config.length = 4;
  Pointer s;
  Error error;
  const auto environment = [](const char* name) -> const char* {
    const std::string wanted = name;
    return wanted == "RANK" ? "1" : wanted == "WORLD_SIZE" ? "2" : wanted == "PMI_RANK" ? "0" : nullptr;
  };
  REQUIRE(feedlane::sampler::make_distributed(config, nullptr, environment, s, error) == FEEDLANE_OK);
  CHECK(std::string(s->rank_source()) == "torchrun");
  CHECK(std::string(s->clone()->rank_warning()).find("PMI_RANK") != std::string::npos);
}
