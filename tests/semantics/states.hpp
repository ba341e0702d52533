// SPDX-License-Identifier: Apache-2.0
// Loaders that are saved and resumed.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/trainer.hpp"

namespace feedlane::test::states {

using State = std::vector<std::byte>;

inline State state_of(feedlane_loader* l, std::uint64_t token = 0) {
  Error e;
  std::uint64_t bytes = 0;
  CHECK(feedlane_loader_state(l, token, nullptr, 0, &bytes, &e) == FEEDLANE_E_LIMIT);
  CHECK(e.needed == static_cast<std::int64_t>(bytes));
  State state(bytes);
  const std::int32_t s = feedlane_loader_state(l, token, state.data(), state.size(), &bytes, &e);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
  CHECK(bytes == state.size());
  return state;
}

inline feedlane_state_info info_of(const State& state) {
  auto info = fresh<feedlane_state_info>();
  Error e;
  const std::int32_t s = feedlane_state_read(state.data(), state.size(), &info, &e);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
  return info;
}

// The seed comes from the state.
inline Setup& go_on(Setup& s, const State& state) {
  s.config.state = state.data();
  s.config.state_bytes = state.size();
  s.config.has_seed = 0;
  s.config.seed = 0;
  return s;
}

inline void check_same(const std::vector<Taken>& found, const std::vector<Taken>& expected, std::size_t from = 0) {
  REQUIRE(found.size() + from == expected.size());
  for (std::size_t i = 0; i < found.size(); i++) {
    CHECK(found[i].batch == expected[from + i].batch);
    CHECK(found[i].indices == expected[from + i].indices);
    CHECK(found[i].bytes == expected[from + i].bytes);
  }
}

constexpr std::int64_t samples = 53;

struct Shuffled : Setup {
  explicit Shuffled(std::int64_t batch_size = 5) : Setup(samples, batch_size) {
    sampler = shuffled(samples, 7);
    fields({field("index", int64_type), field("noise", uint8_type, {13}), field("seed", uint64_type)});
  }
};

// The same with a sampler that makes the batches.
struct ShuffledBatches : Shuffled {
  ShuffledBatches() : Shuffled(0) {
    feedlane_sampler* batches = nullptr;
    REQUIRE(batch_sampler(sampler.get(), 5, 0, &batches, nullptr) == FEEDLANE_OK);
    sampler.reset(batches);
  }
};

// Another number of workers, each of which forks.
inline Setup& with_workers(Setup& s, std::int32_t workers) {
  if (workers > 0) s.workers(workers);
  return s;
}

}  // namespace feedlane::test::states
