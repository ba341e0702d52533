// SPDX-License-Identifier: Apache-2.0
// States whose checksum is right and whose numbers are not: what a loader would count on from them must not overflow, nor
// become a state that it can't read itself.
#include "checkpoint/state.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "base/bytes.hpp"
#include "loader/loader.hpp"
#include "support/kinds.hpp"

using feedlane::Error;
using feedlane::Status;
namespace checkpoint = feedlane::checkpoint;
namespace loader = feedlane::loader;
namespace sampler = feedlane::sampler;

namespace {

using Bytes = std::vector<std::byte>;

checkpoint::SavedState map_style() {
  checkpoint::SavedState s;
  s.batch_size = 4;
  s.progress.epoch = 1;
  s.progress.batches = 2;
  s.progress.positions = s.progress.wanted = 8;
  return s;
}

checkpoint::SavedState iterable() {
  checkpoint::SavedState s = map_style();
  s.iterable = true;
  s.progress.shards.resize(2);
  return s;
}

Status read(const checkpoint::SavedState& state, checkpoint::SavedState& out) {
  Bytes bytes;
  checkpoint::write_state(state, bytes);
  Error error;
  return checkpoint::read_state(bytes, out, error);
}

Status read_changed(checkpoint::SavedState state, const std::function<void(checkpoint::Progress&)>& change) {
  change(state.progress);
  checkpoint::SavedState ignored;
  return read(state, ignored);
}

// A sampler's state is as it was but for one number of 8 bytes, `from_end` before its checksum.
Bytes changed(Bytes state, std::size_t from_end, std::int64_t value) {
  std::byte* end = state.data() + state.size() - 8;
  std::memcpy(end - from_end, &value, 8);
  const std::uint64_t sum = feedlane::checksum(std::span<std::byte>(state).first(state.size() - 8));
  std::memcpy(end, &sum, 8);
  return state;
}

std::unique_ptr<sampler::Sampler> distributed(std::int64_t length, std::int32_t world) {
  feedlane_sampler_config config{};
  config.length = length;
  config.world = world;
  config.no_shuffle = 1;
  std::unique_ptr<sampler::Sampler> s;
  Error error;
  REQUIRE(sampler::make_distributed(config, nullptr, {}, s, error) == FEEDLANE_OK);
  return s;
}

}  // namespace

TEST_CASE("a valid state is read as it was written") {
  checkpoint::SavedState found;
  REQUIRE(read(map_style(), found) == FEEDLANE_OK);
  CHECK(found.progress.positions == 8);
  REQUIRE(read(iterable(), found) == FEEDLANE_OK);
  CHECK(found.progress.shards.size() == 2);
  CHECK(found.rank == 0);
  checkpoint::SavedState ranked = iterable();
  ranked.ranks = 3;
  ranked.rank = 2;
  REQUIRE(read(ranked, found) == FEEDLANE_OK);
  CHECK(found.ranks == 3);
  CHECK(found.rank == 2);
}

TEST_CASE("a state whose rank is outside its world is E_CORRUPT") {
  for (const std::int64_t rank : {-1, 3}) {
    checkpoint::SavedState state = iterable(), ignored;
    state.ranks = 3;
    state.rank = rank;
    CHECK(read(state, ignored) == FEEDLANE_E_CORRUPT);
  }
}

TEST_CASE("a state with a count above 2^62 is E_CORRUPT") {
  constexpr std::int64_t too_many = (std::int64_t{1} << 62) + 1;
  CHECK(read_changed(map_style(), [](auto& p) { p.batches = too_many; }) == FEEDLANE_E_CORRUPT);
  CHECK(read_changed(map_style(), [](auto& p) { p.positions = p.wanted = too_many; }) == FEEDLANE_E_CORRUPT);
  CHECK(read_changed(map_style(), [](auto& p) { p.skipped = too_many; }) == FEEDLANE_E_CORRUPT);
  CHECK(read_changed(iterable(), [](auto& p) { p.shards[1].taken = too_many; }) == FEEDLANE_E_CORRUPT);
  CHECK(read_changed(iterable(), [](auto& p) { p.shards[1].taken = UINT64_MAX; }) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("a map-style state with shards and an iterable state with batches ahead are E_CORRUPT") {
  CHECK(read_changed(map_style(), [](auto& p) { p.shards.resize(1); }) == FEEDLANE_E_CORRUPT);
  CHECK(read_changed(iterable(), [](auto& p) { p.ahead.push_back({5, 4, 4, {}}); }) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("an epoch resumed at batch 2^62 yields that batch from a sampler of 2^63 - 1 indices") {
  std::unique_ptr<sampler::Sampler> s;
  Error error;
  REQUIRE(feedlane::test::make_sequential(INT64_MAX, s, error) == FEEDLANE_OK);
  checkpoint::SavedState saved = map_style();
  saved.batch_size = 1;
  saved.progress.batches = std::int64_t{1} << 62;
  REQUIRE(s->restart(1, 0, error) == FEEDLANE_OK);
  REQUIRE(s->save(8, saved.sampler, error) == FEEDLANE_OK);
  Bytes state;
  checkpoint::write_state(saved, state);
  feedlane_dataset dataset{};
  dataset.size = sizeof dataset;
  dataset.get = [](void*, const feedlane_row*, feedlane_error*) { return std::int32_t{FEEDLANE_OK}; };
  feedlane_field field{};
  field.size = sizeof field;
  field.name = "x";
  field.dtype = {0, 8, 1};
  feedlane_loader_config config{};
  config.size = sizeof config;
  config.dataset = &dataset;
  config.fields = &field;
  config.field_count = 1;
  config.state = state.data();
  config.state_bytes = state.size();
  std::unique_ptr<loader::Loader> l;
  REQUIRE(loader::Loader::create(&config, s.get(), nullptr, nullptr, {}, l, error) == FEEDLANE_OK);
  REQUIRE(l->begin(1, error) == FEEDLANE_OK);
  feedlane_batch batch{};
  REQUIRE(l->next(0, batch, error) == FEEDLANE_OK);
  CHECK(batch.batch == std::int64_t{1} << 62);
  CHECK(batch.indices[0] == 8);
  feedlane::tensors::SlotTable::Left left;
  CHECK(l->leases().release(batch.token, left) == FEEDLANE_OK);
}

TEST_CASE("a batch sampler's state with a negative number of batches, or more than an epoch has, is E_CORRUPT") {
  std::unique_ptr<sampler::Sampler> s, inner;
  Error error;
  REQUIRE(feedlane::test::make_sequential(10, inner, error) == FEEDLANE_OK);
  REQUIRE(feedlane::test::make_batch(*inner, 4, 0, s, error) == FEEDLANE_OK);
  Bytes state, of_inner;
  REQUIRE(s->save(1, state, error) == FEEDLANE_OK);
  REQUIRE(inner->save(4, of_inner, error) == FEEDLANE_OK);
  const std::size_t at = 8 + 8 + of_inner.size();  // the number of batches, a length, the inner one's state
  for (const std::int64_t most : {std::int64_t{1}, std::int64_t{3}}) {
    REQUIRE(s->restart(0, 0, error) == FEEDLANE_OK);
    CHECK(s->load(changed(state, at, most), error) == FEEDLANE_OK);
  }
  for (const std::int64_t beyond : {std::int64_t{4}, INT64_MAX, std::int64_t{-1}}) {
    REQUIRE(s->restart(0, 0, error) == FEEDLANE_OK);
    CHECK(s->load(changed(state, at, beyond), error) == FEEDLANE_E_CORRUPT);
  }
}

TEST_CASE("a distributed sampler's state in which one rank yielded more than all ranks together is E_CORRUPT") {
  constexpr std::int64_t length = std::int64_t{1} << 62;
  const auto s = distributed(length, 3);
  Error error;
  Bytes state;
  REQUIRE(s->restart(0, 0, error) == FEEDLANE_OK);
  REQUIRE(s->save(5, state, error) == FEEDLANE_OK);
  // Three consecutive numbers: position, the world for which the list is padded, the dealt part of the list.
  CHECK(s->load(changed(state, 24, 15), error) == FEEDLANE_OK);
  CHECK(s->load(changed(state, 24, 16), error) == FEEDLANE_E_CORRUPT);
  CHECK(s->load(changed(state, 24, length), error) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("2^31 - 1 ranks resume at the right index after one rank has yielded almost 2^62 indices") {
  constexpr std::int64_t length = std::int64_t{1} << 62;
  const auto one = distributed(length, 1);
  const auto many = distributed(length, INT32_MAX);
  Error error;
  Bytes state;
  REQUIRE(one->restart(0, 0, error) == FEEDLANE_OK);
  REQUIRE(one->save(length - 10, state, error) == FEEDLANE_OK);
  REQUIRE(many->restart(0, 0, error) == FEEDLANE_OK);
  REQUIRE(many->load(state, error) == FEEDLANE_OK);
  const auto place = many->place();
  const std::uint64_t next = static_cast<std::uint64_t>(place.first) +
                             static_cast<std::uint64_t>(length - 10) * static_cast<std::uint64_t>(place.stride);
  CHECK_MESSAGE(next == static_cast<std::uint64_t>(length - 10), "the first of what is left, modulo 2^64");
  std::int64_t index = -1;
  std::uint64_t got = 0;
  CHECK(many->next(&index, 1, got, error) == FEEDLANE_OK);
  CHECK(index == length - 10);
}
