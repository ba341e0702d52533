// SPDX-License-Identifier: Apache-2.0
// The feeder's stock: a slot is free with its last holder, and states of recent rounds stay what they were.
#include "sharing/stock.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "loader/loader.hpp"
#include "support/kinds.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::loader::Loader;
using feedlane::sharing::Stock;

namespace {

std::int32_t get(void*, const feedlane_row*, feedlane_error*) { return FEEDLANE_OK; }

// A loader of 6 batches an epoch that works inline, two of which may be held.
struct Fixture {
  Fixture() {
    field.size = sizeof field;
    field.name = "x";
    field.dtype = {0, 64, 1};
    dataset.size = sizeof dataset;
    dataset.get = get;
    config.size = sizeof config;
    config.dataset = &dataset;
    config.fields = &field;
    config.field_count = 1;
    config.batch_size = 2;
    config.held = 2;
    REQUIRE(feedlane::test::make_sequential(12, sampler, error) == FEEDLANE_OK);
    const Status s = Loader::create(&config, sampler.get(), nullptr, nullptr, {}, loader, error);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
    stock = std::make_unique<Stock>(*loader);
    begin(0);
  }
  void begin(std::int64_t epoch) {
    const Status s = loader->begin(epoch, error);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
  }
  // The loader's next batch, as the feeder takes it.
  std::uint64_t next() {
    feedlane_batch batch{};
    batch.size = sizeof batch;
    const Status s = loader->next(FEEDLANE_FOREVER, batch, error);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
    return batch.token;
  }
  // The next `rounds` batches are delivered and returned; after each its round is recorded, from `first` on. Returns the
  // loader's own states.
  std::vector<std::vector<std::byte>> pass(std::uint64_t first, std::uint64_t rounds) {
    std::vector<std::vector<std::byte>> states;
    for (std::uint64_t round = first; round < first + rounds; round++) {
      stock->put_back(stock->add(next()));
      stock->record(round);
      std::vector<std::byte>& state = states.emplace_back();
      REQUIRE(loader->state(0, state, error) == FEEDLANE_OK);
    }
    return states;
  }
  std::vector<std::byte> state(std::uint64_t round) {
    std::vector<std::byte> bytes;
    const Status s = stock->state(round, bytes, error);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
    return bytes;
  }
  Status ask(std::uint64_t round) {
    std::vector<std::byte> bytes;
    error = {};
    return stock->state(round, bytes, error);
  }
  [[nodiscard]] bool is_held(std::uint64_t token) const {
    std::uint32_t slot = 0;
    return loader->memory().slots.is_held(token, slot);
  }

  Error error;
  feedlane_field field{};
  feedlane_dataset dataset{};
  feedlane_loader_config config{};
  std::unique_ptr<feedlane::sampler::Sampler> sampler;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<Stock> stock;
};

}  // namespace

TEST_CASE("a slot is free when its last holder has put it back, whatever other slots are held") {
  Fixture f;
  const std::uint64_t first = f.next(), second = f.next();
  const std::uint32_t a = f.stock->add(first), b = f.stock->add(second);
  REQUIRE(a != b);
  f.stock->hold(a);
  f.stock->hold(a);
  f.stock->put_back(a);
  f.stock->put_back(a);
  CHECK(f.is_held(first));
  f.stock->put_back(b);
  CHECK_FALSE(f.is_held(second));
  CHECK(f.is_held(first));
  f.stock->put_back(a);
  CHECK_FALSE(f.is_held(first));
}

TEST_CASE("a reused slot has only the holders of its new batch") {
  Fixture f;
  for (int i = 0; i < 6; i++) {
    const std::uint64_t token = f.next();
    const std::uint32_t slot = f.stock->add(token);
    f.stock->hold(slot);
    f.stock->put_back(slot);
    CHECK(f.is_held(token));
    f.stock->put_back(slot);
    CHECK_FALSE(f.is_held(token));
  }
}

TEST_CASE("the state of a round is the loader's state when the round, or the newest round before it, was recorded") {
  Fixture f;
  const auto states = f.pass(10, 3);
  CHECK(states[0] != states[1]);
  CHECK(f.state(10) == states[0]);
  CHECK(f.state(11) == states[1]);
  CHECK(f.state(12) == states[2]);
  CHECK(f.state(99) == states[2]);
  CHECK(f.ask(9) == FEEDLANE_E_STALE);
  CHECK(f.error.needed == 10);
}

TEST_CASE("rounds that can no longer be requested are forgotten") {
  Fixture f;
  const auto states = f.pass(1, 6);
  f.stock->forget_before(3);
  CHECK(f.ask(2) == FEEDLANE_E_STALE);
  CHECK(f.state(3) == states[2]);
  f.stock->forget_before(100);
  CHECK_MESSAGE(f.state(100) == states[5], "the newest one stays: it is the state of every later round");
}

TEST_CASE("of many rounds, only those that can be requested and the newer ones are kept") {
  Fixture f;
  const auto states = f.pass(10, 6);  // rounds 10 to 15
  CHECK(f.stock->has_many(5));
  CHECK_FALSE(f.stock->has_many(6));
  f.stock->keep({13, 11, 11, 99});
  CHECK(f.state(11) == states[1]);
  CHECK(f.state(13) == states[3]);
  CHECK(f.state(15) == states[5]);
  CHECK_MESSAGE(f.state(12) == states[1], "nobody asks about it");
  CHECK(f.ask(10) == FEEDLANE_E_STALE);
  CHECK_MESSAGE(!f.stock->has_many(0), "not before there are twice as many");
  f.stock->forget_before(13);
  CHECK(f.ask(12) == FEEDLANE_E_STALE);
  CHECK(f.state(13) == states[3]);
}

TEST_CASE("the oldest round that can be requested has the state of the newest record not after it") {
  Fixture f;
  const auto states = f.pass(1, 1);
  f.stock->put_back(f.stock->add(f.next()));
  f.stock->record(5);
  f.stock->forget_before(4);  // between two records: that of round 1 is the state of round 4
  CHECK(f.state(4) == states[0]);
}

TEST_CASE("saved states of an epoch stay unchanged when the loader begins the next one") {
  Fixture f;
  const auto states = f.pass(1, 6);
  f.stock->save_epoch();
  f.begin(1);
  for (std::uint64_t round = 1; round <= 6; round++) {
    CAPTURE(round);
    CHECK(f.state(round) == states[round - 1]);
  }
  const auto later = f.pass(8, 1);
  CHECK(f.state(8) == later[0]);
  CHECK(f.state(7) == states[5]);
}
