// SPDX-License-Identifier: Apache-2.0
// feedlane_sampler_*: every sampler by itself, without a loader.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/api.hpp"

using namespace feedlane::test;

namespace {

// All of one epoch, `cap` at a time.
std::vector<std::int64_t> drain(feedlane_sampler* s, std::uint64_t cap) {
  std::vector<std::int64_t> all;
  std::vector<std::int64_t> part(cap);
  for (;;) {
    std::uint64_t got = 99;
    const std::int32_t status = feedlane_sampler_next(s, part.data(), cap, &got, nullptr);
    all.insert(all.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(std::min(got, cap)));
    if (status != FEEDLANE_OK) {
      CHECK(status == FEEDLANE_END);
      CHECK(got == 0);
      return all;
    }
    CHECK(got > 0);
  }
}

std::vector<std::int64_t> epoch_of(feedlane_sampler* s, std::int64_t epoch) {
  REQUIRE(feedlane_sampler_restart(s, epoch, nullptr) == FEEDLANE_OK);
  return drain(s, 7);
}

std::vector<std::int64_t> count_to(std::int64_t n) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); i++) all[i] = static_cast<std::int64_t>(i);
  return all;
}

void check_refusal(const Error& e, std::int32_t status, const char* argument, std::int64_t found, std::int64_t needed) {
  CHECK(e.code == status);
  CHECK(std::string(e.argument) == argument);
  CHECK(e.found == found);
  CHECK(e.needed == needed);
  CHECK(e.text[0] != '\0');
}

}  // namespace

// promise: sampler-sequential
TEST_CASE("a sequential sampler counts up in pieces of any size and then returns END") {
  const Sampler s = sequential(10);
  for (const std::uint64_t cap : {1U, 3U, 10U, 64U}) {
    REQUIRE(feedlane_sampler_restart(s.get(), 5, nullptr) == FEEDLANE_OK);
    CHECK(drain(s.get(), cap) == count_to(10));
  }
}

TEST_CASE("fewer indices than requested are returned only at the end, and END is repeated") {
  const Sampler s = sequential(5);
  std::int64_t indices[3] = {};
  std::uint64_t got = 0;
  CHECK(feedlane_sampler_next(s.get(), indices, 3, &got, nullptr) == FEEDLANE_OK);
  CHECK(got == 3);
  CHECK(feedlane_sampler_next(s.get(), indices, 3, &got, nullptr) == FEEDLANE_OK);
  CHECK(got == 2);
  CHECK(indices[1] == 4);
  for (int i = 0; i < 2; i++) {
    got = 1;
    CHECK(feedlane_sampler_next(s.get(), indices, 3, &got, nullptr) == FEEDLANE_END);
    CHECK(got == 0);
  }
}

TEST_CASE("an empty sequential sampler returns END at once") {
  const Sampler s = sequential(0);
  REQUIRE(s != nullptr);
  CHECK(drain(s.get(), 4).empty());
}

// promise: sampler-random-once
TEST_CASE("a random sampler yields each index once, in a new order each epoch and in the same order after restart") {
  const Sampler s = shuffled(100, 7);
  const std::vector<std::int64_t> first = drain(s.get(), 7);
  CHECK_MESSAGE(first == epoch_of(s.get(), 0), "a fresh sampler stands at the start of epoch 0");
  const std::vector<std::int64_t> second = epoch_of(s.get(), 1);
  CHECK(first != second);
  CHECK(epoch_of(s.get(), 1) == second);
  for (std::vector<std::int64_t> order : {first, second}) {
    std::sort(order.begin(), order.end());
    CHECK(order == count_to(100));
  }
  const Sampler same = shuffled(100, 8);
  CHECK_MESSAGE(epoch_of(same.get(), 0) == second, "epoch e of seed s is epoch 0 of seed s + e");
}

// promise: sampler-torch-indices
TEST_CASE("a random sampler yields the same order as torch.randperm") {
  const Sampler s = shuffled(10, 0);
  CHECK(epoch_of(s.get(), 0) == std::vector<std::int64_t>{4, 1, 7, 5, 3, 9, 0, 8, 6, 2});
  CHECK(epoch_of(s.get(), 42) == std::vector<std::int64_t>{2, 6, 1, 8, 4, 5, 0, 9, 3, 7});
  const Sampler large = shuffled(1000, 42);
  const std::vector<std::int64_t> order = epoch_of(large.get(), 0);
  CHECK(std::vector(order.begin(), order.begin() + 4) == std::vector<std::int64_t>{542, 618, 816, 68});
  CHECK(std::vector(order.end() - 4, order.end()) == std::vector<std::int64_t>{284, 638, 96, 455});
}

// promise: loader-length, sampler-length
TEST_CASE("a sampler's length is the number of its indices, at any position") {
  for (const Sampler& s : {sequential(12), shuffled(12, 3)}) {
    std::int64_t length = -1;
    CHECK(feedlane_sampler_length(s.get(), &length) == FEEDLANE_OK);
    CHECK(length == 12);
    (void)drain(s.get(), 5);
    CHECK(feedlane_sampler_length(s.get(), &length) == FEEDLANE_OK);
    CHECK(length == 12);
  }
}

TEST_CASE("an invalid sampler is refused with the numbers, and its pointer is NULL") {
  auto* s = reinterpret_cast<feedlane_sampler*>(1);
  Error e;
  CHECK(sequential_sampler(-3, &s, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "config.length", -3, 0);
  CHECK(s == nullptr);
  auto config = fresh<feedlane_sampler_config>();
  for (const std::int64_t length : {0, -1}) {
    config.length = length;
    s = reinterpret_cast<feedlane_sampler*>(1);
    CHECK(random_sampler(&config, &s, &e) == FEEDLANE_E_ARGUMENT);
    check_refusal(e, FEEDLANE_E_ARGUMENT, "config.length", length, 1);
    CHECK(s == nullptr);
  }
  CHECK(random_sampler(nullptr, &s, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "config", 0, 1);
  CHECK(sequential_sampler(1, nullptr, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "out", 0, 1);
  config.length = 4;
  CHECK(random_sampler(&config, nullptr, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "out", 0, 1);
}

TEST_CASE("a random configuration can be shorter, or longer with trailing zeros") {
  struct {
    feedlane_sampler_config known;
    std::uint64_t later = 0;
  } config{fresh<feedlane_sampler_config>()};
  config.known.length = 10;
  config.known.seed = 42;
  feedlane_sampler* handle = nullptr;
  Error e;

  config.known.size = offsetof(feedlane_sampler_config, seed);
  REQUIRE(random_sampler(&config.known, &handle, &e) == FEEDLANE_OK);
  const Sampler shorter(handle);
  const Sampler seed_0 = shuffled(10, 0);
  CHECK_MESSAGE(epoch_of(shorter.get(), 0) == epoch_of(seed_0.get(), 0), "the seed behind its size does not count");

  config.known.size = sizeof config;
  REQUIRE(random_sampler(&config.known, &handle, &e) == FEEDLANE_OK);
  const Sampler longer(handle);
  const Sampler seed_42 = shuffled(10, 42);
  CHECK(epoch_of(longer.get(), 0) == epoch_of(seed_42.get(), 0));

  config.later = 1;
  CHECK(random_sampler(&config.known, &handle, &e) == FEEDLANE_E_ABI);
  check_refusal(e, FEEDLANE_E_ABI, "config", sizeof config, sizeof config.known);
  CHECK(handle == nullptr);
  config.known.size = 4;
  CHECK(random_sampler(&config.known, &handle, &e) == FEEDLANE_E_ABI);
  check_refusal(e, FEEDLANE_E_ABI, "config", 4, sizeof config.known);
}

TEST_CASE("invalid arguments of a sampler's functions are refused by name, and the position is unchanged") {
  const Sampler s = sequential(4);
  Error e;
  std::int64_t index = -1;
  std::uint64_t got = 7;
  CHECK(feedlane_sampler_restart(s.get(), -2, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "epoch", -2, 0);
  CHECK(feedlane_sampler_restart(nullptr, 0, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "s", 0, 1);
  CHECK(feedlane_sampler_next(nullptr, &index, 1, &got, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "s", 0, 1);
  CHECK(feedlane_sampler_next(s.get(), nullptr, 1, &got, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "indices", 0, 1);
  CHECK(feedlane_sampler_next(s.get(), &index, 1, nullptr, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "got", 0, 1);
  CHECK(feedlane_sampler_next(s.get(), &index, 0, &got, &e) == FEEDLANE_E_ARGUMENT);
  check_refusal(e, FEEDLANE_E_ARGUMENT, "cap", 0, 1);
  CHECK(feedlane_sampler_length(nullptr, &index) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_sampler_length(s.get(), nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK_MESSAGE(got == 7, "outputs are written on 0 only");
  CHECK(drain(s.get(), 2) == count_to(4));
}

TEST_CASE("destroying a sampler clears the pointer; destroying it twice or destroying NULL is allowed") {
  feedlane_sampler* s = nullptr;
  REQUIRE(sequential_sampler(3, &s, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_sampler_destroy(&s) == FEEDLANE_OK);
  CHECK(s == nullptr);
  CHECK(feedlane_sampler_destroy(&s) == FEEDLANE_OK);
  CHECK(feedlane_sampler_destroy(nullptr) == FEEDLANE_OK);
}

TEST_CASE("an order that doesn't fit into memory is refused with E_MEMORY") {
  const Sampler s = shuffled(INT64_MAX, 1);
  REQUIRE(s != nullptr);
  Error e;
  CHECK(feedlane_sampler_restart(s.get(), 0, &e) == FEEDLANE_E_MEMORY);
}

TEST_CASE("a rank struct of an older header gets only the members it has") {
  feedlane_rank rank;
  std::memset(&rank, 0x5a, sizeof rank);
  rank.size = offsetof(feedlane_rank, warning);
  Error e;
  (void)setenv("FEEDLANE_RANK", "2", 1);
  (void)setenv("FEEDLANE_WORLD_SIZE", "5", 1);
  const std::int32_t status = feedlane_rank_detect(&rank, &e);
  (void)unsetenv("FEEDLANE_RANK");
  (void)unsetenv("FEEDLANE_WORLD_SIZE");
  REQUIRE(status == FEEDLANE_OK);
  CHECK(rank.rank == 2);
  CHECK(rank.world == 5);
  CHECK(std::string(rank.source) == "feedlane");
  CHECK(rank.warning[0] == 0x5a);
}

TEST_CASE("if the buffer is too small for a state, the needed size is returned") {
  const Sampler s = sequential(5);
  Error e;
  std::uint64_t bytes = 0;
  CHECK(feedlane_sampler_save(s.get(), nullptr, 0, &bytes, &e) == FEEDLANE_E_LIMIT);
  check_refusal(e, FEEDLANE_E_LIMIT, "cap", 0, static_cast<std::int64_t>(bytes));
  std::vector<unsigned char> state(bytes + 1, 0x5a);
  CHECK(feedlane_sampler_save(s.get(), state.data(), bytes, &bytes, &e) == FEEDLANE_OK);
  CHECK(bytes == state.size() - 1);
  CHECK(state.back() == 0x5a);
  CHECK(feedlane_sampler_load(s.get(), state.data(), bytes, &e) == FEEDLANE_OK);
}
