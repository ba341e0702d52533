// SPDX-License-Identifier: Apache-2.0
// Memory that is too short in any call of a sampler: it says E_MEMORY, loses and leaks nothing, and succeeds when it is called
// again.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "semantics/every_allocation.hpp"

using namespace feedlane::test;

namespace {

using Make = std::function<std::int32_t(feedlane_sampler**)>;

void live_as_sampler(const Make& make, std::uint64_t rows) {
  feedlane_sampler* s = nullptr;
  SUCCEEDS(make(&s));
  std::vector<std::int64_t> first(rows);
  std::vector<std::int64_t> again(rows);
  std::uint64_t got = 0;
  SUCCEEDS(feedlane_sampler_restart(s, 1, nullptr));
  SUCCEEDS(feedlane_sampler_next(s, first.data(), rows, &got, nullptr));
  std::vector<char> state(4096);
  std::uint64_t bytes = 0;
  SUCCEEDS(feedlane_sampler_save(s, state.data(), state.size(), &bytes, nullptr));
  SUCCEEDS(feedlane_sampler_next(s, first.data(), rows, &got, nullptr));
  SUCCEEDS(feedlane_sampler_restart(s, 1, nullptr));
  SUCCEEDS(feedlane_sampler_load(s, state.data(), bytes, nullptr));
  SUCCEEDS(feedlane_sampler_next(s, again.data(), rows, &got, nullptr));
  CHECK(first == again);
  end(feedlane_sampler_destroy, &s);
}

std::int32_t make_random(std::int32_t replacement, feedlane_sampler** out) {
  auto config = fresh<feedlane_sampler_config>();
  config.length = 50;
  config.seed = 3;
  config.replacement = replacement;
  return random_sampler(&config, out, nullptr);
}

std::int32_t make_weighted(std::int32_t without_replacement, feedlane_sampler** out) {
  static const std::vector<double> weights(50, 1.5);
  auto config = fresh<feedlane_sampler_config>();
  config.num_samples = 40;
  config.without_replacement = without_replacement;
  return weighted_sampler(weights.data(), weights.size(), &config, out, nullptr);
}

std::int32_t make_distributed(feedlane_sampler** out) {
  auto config = fresh<feedlane_sampler_config>();
  config.length = 50;
  config.world = 2;
  return distributed_sampler(&config, out, nullptr);
}

std::int32_t make_tokens(feedlane_sampler** out) {
  static const std::vector<std::int64_t> lengths(50, 3);
  auto config = fresh<feedlane_sampler_config>();
  config.max_tokens = 10;
  config.max_rows = 4;
  config.world = 2;
  return tokens_sampler(lengths.data(), lengths.size(), &config, out, nullptr);
}

std::int32_t make_mixture(feedlane_sampler** out) {
  static const std::vector<std::int64_t> lengths{30, 0, 20}, from{0, 10};
  static const std::vector<double> weights{1, 0, 2, 2, 0, 1};
  auto config = fresh<feedlane_sampler_config>();
  config.from = from.data();
  config.stages = from.size();
  config.world = 2;
  return mixture_sampler(lengths.data(), lengths.size(), weights.data(), &config, out, nullptr);
}

}  // namespace

// promise: memory-in-other-calls, allocation-sampler
TEST_CASE("a sampler call returns E_MEMORY if one of its allocations fails, and the next call succeeds") {
  static const std::vector<std::int64_t> subset{9, 1, 4, 4, 7, 3, 2, 0, 5};
  const Sampler inner = sequential(50);
  struct Kind {
    const char* name;
    Make make;
  };
  for (const Kind& kind :
       {Kind{"sequential", [](auto** out) { return sequential_sampler(50, out, nullptr); }},
        {"random", [](auto** out) { return make_random(0, out); }},
        {"draws", [](auto** out) { return make_random(1, out); }},
        {"subset", [](auto** out) { return subset_sampler(subset.data(), subset.size(), 0, 3, out, nullptr); }},
        {"weighted", [](auto** out) { return make_weighted(0, out); }},
        {"weighted, without replacement", [](auto** out) { return make_weighted(1, out); }},
        {"batch", [&](auto** out) { return batch_sampler(inner.get(), 4, 0, out, nullptr); }},
        {"distributed", make_distributed},
        {"tokens", make_tokens},
        {"mixture", make_mixture}}) {
    CAPTURE(std::string(kind.name));
    at_every_allocation([&] { live_as_sampler(kind.make, 4); });
  }
}

// promise: memory-in-other-calls
TEST_CASE("indices already drawn are kept when a custom sampler and the library run out of memory together") {
  for (const bool with_detail : {false, true}) {
    CAPTURE(with_detail);
    struct Source {
      std::int64_t at = 0;
      int calls = 0;
      bool with_detail;
    } source{0, 0, with_detail};
    auto table = fresh<feedlane_sampler_callbacks>();
    table.user_data = &source;
    table.next = [](void* self, std::int64_t* indices, std::uint64_t, std::uint64_t* got, feedlane_error* err) {
      auto& from = *static_cast<Source*>(self);
      if (++from.calls == 3) {
        if (from.with_detail && err->detail != nullptr) {
          std::memset(err->detail, 'x', 100);
          err->detail_len = 100;
        }
        fail_allocation(0);
        return std::int32_t{FEEDLANE_E_MEMORY};
      }
      if (from.at == 12) return std::int32_t{FEEDLANE_END};
      indices[0] = from.at++;
      *got = 1;
      return std::int32_t{FEEDLANE_OK};
    };
    feedlane_sampler* sampler = nullptr;
    REQUIRE(custom_sampler(&table, &sampler, nullptr) == FEEDLANE_OK);
    std::vector<std::int64_t> all;
    std::int64_t indices[4];
    std::uint64_t got = 0;
    CHECK(armed([&] { return feedlane_sampler_next(sampler, indices, 4, &got, nullptr); }) == FEEDLANE_E_MEMORY);
    fail_allocation(-1);
    while (feedlane_sampler_next(sampler, indices, 4, &got, nullptr) == FEEDLANE_OK)
      all.insert(all.end(), indices, indices + got);
    CHECK(all == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    CHECK(feedlane_sampler_destroy(&sampler) == FEEDLANE_OK);
  }
}
