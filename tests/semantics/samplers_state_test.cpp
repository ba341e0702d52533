// SPDX-License-Identifier: Apache-2.0
// Samplers saved in the middle of an epoch and loaded again, distributed ones also in another world.
#include <doctest/doctest.h>

#include <functional>

#include "support/samplers.hpp"

using namespace feedlane::test;
using feedlane::Sampler;
using feedlane::Shuffle;

namespace {

using Make = std::function<Sampler()>;
using State = std::vector<std::byte>;

const std::vector<double> weights{1, 2, 3, 4, 5, 6, 7, 8};
const Indices some{9, 7, 5, 3, 1, 0, 2, 4};

// One of each kind, each with more than one epoch's worth of order.
std::vector<std::pair<const char*, Make>> kinds() {
  return {
      {"sequential", [] { return Sampler::sequential(20); }},
      {"random", [] { return Sampler::random(20, 3); }},
      {"random, several passes", [] { return Sampler::random({.length = 6, .seed = 3, .num_samples = 20}); }},
      {"replacement", [] { return Sampler::random({.length = 20, .seed = 3, .replacement = true}); }},
      {"feistel", [] { return Sampler::random({.length = 20, .seed = 3, .shuffle = Shuffle::feistel}); }},
      {"as a loader", [] { return Sampler::random({.length = 20, .seed = 3, .shuffle = Shuffle::torch_loader}); }},
      {"subset", [] { return Sampler::subset(some, 3); }},
      {"list", [] { return Sampler::list(some); }},
      {"weighted", [] { return Sampler::weighted(weights, {.seed = 3, .num_samples = 20}); }},
      {"weighted without", [] { return Sampler::weighted(weights, {.seed = 3, .without_replacement = true}); }},
      {"distributed", [] { return Sampler::distributed({.length = 41, .seed = 3, .world = 2, .rank = 1}); }},
  };
}

std::int32_t load_fails(Sampler& s, const State& state) {
  try {
    s.load(state);
    return FEEDLANE_OK;
  } catch (const feedlane::Error& e) {
    CHECK(e.argument() == "state");
    return e.code();
  }
}

// All ranks of a world, in step.
struct World {
  World(feedlane::DistributedOptions o, int world) {
    o.world = world;
    for (o.rank = 0; o.rank < world; o.rank++) ranks.push_back(Sampler::distributed(o));
  }
  void restart(std::int64_t epoch) {
    for (Sampler& s : ranks) s.restart(epoch);
  }
  // Each rank's next `count`, put together as they were dealt.
  Indices take(std::size_t count) {
    std::vector<Indices> parts;
    for (Sampler& s : ranks) parts.push_back(rest_of(s, count, count));
    Indices all;
    for (std::size_t k = 0; k < count; k++)
      for (const Indices& part : parts)
        if (k < part.size()) all.push_back(part[k]);
    return all;
  }
  std::vector<Sampler> ranks;
};

void append(Indices& all, const Indices& more) { all.insert(all.end(), more.begin(), more.end()); }

}  // namespace

// promise: sampler-state-checked
TEST_CASE("a sampler resumes from a state after any number of indices") {
  for (const auto& kind : kinds()) {
    const Make& make = kind.second;
    INFO(std::string(kind.first));
    Sampler s = make();
    const Indices whole = epoch_of(s, 3);
    for (std::size_t taken = 0; taken <= whole.size(); taken++) {
      s.restart(3);
      (void)rest_of(s, 5, taken);
      const State state = s.save();
      CHECK(state.size() <= 200);
      Sampler other = make();
      other.restart(3);
      other.load(state);
      CHECK(rest_of(other) == Indices(whole.begin() + static_cast<std::ptrdiff_t>(taken), whole.end()));
      CHECK_MESSAGE(epoch_of(other, 3) == whole, "a restart starts over");
    }
  }
}

// promise: sampler-state-checked
TEST_CASE("a batch sampler resumes with the next batch, also at the end of the epoch") {
  for (const bool drop_last : {false, true})
    for (const auto& kind : kinds()) {
      const Make& make = kind.second;
      INFO(std::string(kind.first));
      Sampler s = Sampler::batch(make(), 3, drop_last);
      const auto whole = batches_of(s, 1, 3);
      for (std::size_t taken = 0; taken <= whole.size(); taken++) {
        s.restart(1);
        Indices room(3);
        for (std::size_t i = 0; i < taken; i++) (void)s.next(room);
        Sampler other = Sampler::batch(make(), 3, drop_last);
        other.restart(1);
        other.load(s.save());
        CHECK(rest_of_batches(other, 3) ==
              std::vector(whole.begin() + static_cast<std::ptrdiff_t>(taken), whole.end()));
      }
    }
}

// promise: sampler-state-checked
TEST_CASE("a sampler refuses a state of another kind, of other parameters or of another epoch") {
  const auto all = kinds();
  for (std::size_t i = 0; i < all.size(); i++)
    for (std::size_t j = 0; j < all.size(); j++) {
      INFO(std::string(all[i].first), " into ", std::string(all[j].first));
      Sampler from = all[i].second(), to = all[j].second();
      CHECK(load_fails(to, from.save()) == (i == j ? FEEDLANE_OK : FEEDLANE_E_ARGUMENT));
    }
  Sampler a = Sampler::subset(some, 3), b = Sampler::subset(sorted(some), 3);
  CHECK_MESSAGE(load_fails(b, a.save()) == FEEDLANE_E_ARGUMENT, "other indices, as many");
  Sampler c = Sampler::random(10, 3), d = Sampler::random(10, 4);
  CHECK(load_fails(d, c.save()) == FEEDLANE_E_ARGUMENT);
  Sampler same = Sampler::random(10, 3);
  c.restart(2);
  CHECK_MESSAGE(load_fails(same, c.save()) == FEEDLANE_E_ARGUMENT, "another epoch");
}

// promise: sampler-state-checked
TEST_CASE("a sampler's state that is truncated, or changed in any byte, is refused with E_CORRUPT") {
  Sampler s = Sampler::batch(Sampler::distributed({.length = 41, .seed = 3, .world = 2, .rank = 1}), 4);
  Indices room(4);
  (void)s.next(room);
  State state = s.save();
  for (std::size_t length = 0; length < state.size(); length++)
    CHECK(load_fails(s, State(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(length))) ==
          FEEDLANE_E_CORRUPT);
  for (std::byte& b : state) {
    b ^= std::byte{0x40};
    CHECK(load_fails(s, state) == FEEDLANE_E_CORRUPT);
    b ^= std::byte{0x40};
  }
  CHECK(load_fails(s, state) == FEEDLANE_OK);
}

// promise: state-other-world
TEST_CASE("the rest of an epoch is shared among another number of ranks, several times in a row") {
  for (const Shuffle shuffle : {Shuffle::torch, Shuffle::feistel})
    for (const bool drop_last : {false, true}) {
      const feedlane::DistributedOptions o{.length = 103, .seed = 5, .drop_last = drop_last, .shuffle = shuffle};
      World original(o, 4);
      original.restart(7);
      const Indices list = original.take(30);
      CHECK(list.size() == (drop_last ? 100 : 104));

      original.restart(7);
      Indices found = original.take(6);
      State state = original.ranks[2].save();
      for (const int world : {2, 3, 1, 5}) {
        World next(o, world);
        next.restart(7);
        for (Sampler& s : next.ranks) s.load(state);
        append(found, next.take(5));
        state = next.ranks[static_cast<std::size_t>(world) - 1].save();
        for (Sampler& s : next.ranks) CHECK_MESSAGE(s.save() == state, "all ranks have one state");
      }
      World last(o, 4);
      last.restart(7);
      std::int64_t lengths = 0;
      for (Sampler& s : last.ranks) {
        s.load(state);
        lengths += s.length() - (6 + 4 * 5);
      }
      CHECK_MESSAGE(lengths == static_cast<std::int64_t>(list.size() - found.size()), "length counts yielded ones");
      append(found, last.take(100));
      CHECK(found == list);
      CHECK_MESSAGE((last.restart(8), last.ranks[0].length()) == (drop_last ? 25 : 26), "the next epoch is its own");
    }
}

// promise: state-other-world
TEST_CASE("after an epoch that was resumed with other ranks has ended, the state of each rank has no samples left") {
  const feedlane::DistributedOptions o{.length = 10, .seed = 5};
  World two(o, 2);
  two.restart(0);
  (void)two.take(1);
  World three(o, 3);
  three.restart(0);
  for (Sampler& s : three.ranks) s.load(two.ranks[0].save());
  CHECK(three.ranks[0].length() == 4);  // 8 are left: 3, 3, 2
  CHECK(three.ranks[2].length() == 3);
  CHECK(three.take(4).size() == 8);
  for (Sampler& from : three.ranks) {
    Sampler s = Sampler::distributed({.length = 10, .seed = 5, .world = 1});
    s.load(from.save());
    CHECK(rest_of(s).empty());
  }
}
