// SPDX-License-Identifier: Apache-2.0
// Progress of an epoch, in order and out of order.
#include "checkpoint/progress.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

using feedlane::checkpoint::Blob;
using feedlane::checkpoint::Progress;

namespace {

Blob blob_of(std::int64_t number) {
  auto bytes = std::make_shared<std::vector<std::byte>>(sizeof number);
  std::memcpy(bytes->data(), &number, sizeof number);
  return bytes;
}

std::int64_t number_of(const Blob& blob) {
  std::int64_t number = -1;
  if (blob != nullptr) std::memcpy(&number, blob->data(), sizeof number);
  return number;
}

}  // namespace

TEST_CASE("progress in order counts batches and indices, and has the newest sampler state") {
  Progress p;
  CHECK_FALSE(p.has(0));
  for (std::int64_t batch = 0; batch < 5; batch++) {
    p.yield({batch, 3, 10, blob_of(batch)});
    CHECK(p.batches == batch + 1);
    CHECK(p.positions == 3 * (batch + 1));
    CHECK(p.ahead.empty());
    CHECK(number_of(p.sampler_state) == batch);
    CHECK(p.has(batch));
    CHECK_FALSE(p.has(batch + 1));
  }
}

TEST_CASE("a batch without a sampler state clears the state of the batch before") {
  Progress p;
  p.yield({0, 3, 10, blob_of(0)});
  p.yield({1, 3, 10, nullptr});
  CHECK(p.sampler_state == nullptr);
}

TEST_CASE("a batch yielded early stays in the list `ahead` until all batches before it are yielded") {
  Progress p;
  p.yield({2, 5, 10, blob_of(2)});
  p.yield({1, 4, 10, blob_of(1)});
  CHECK(p.batches == 0);
  CHECK(p.positions == 0);
  CHECK(p.sampler_state == nullptr);
  CHECK(p.ahead.size() == 2);
  CHECK(p.has(1));
  CHECK(p.has(2));
  CHECK_FALSE(p.has(0));
  CHECK_FALSE(p.has(3));
  p.yield({4, 1, 10, blob_of(4)});
  p.yield({0, 3, 10, blob_of(0)});
  CHECK(p.batches == 3);
  CHECK(p.positions == 12);
  CHECK(number_of(p.sampler_state) == 2);
  REQUIRE(p.ahead.size() == 1);
  CHECK(p.ahead[0].batch == 4);
  CHECK_FALSE(p.has(3));
  CHECK(p.has(4));
}

TEST_CASE("progress is correct after each batch, in whatever order the batches are yielded") {
  std::vector<std::int64_t> order{0, 1, 2, 3, 4, 5};
  do {
    Progress p;
    std::set<std::int64_t> yielded;
    for (const std::int64_t batch : order) {
      p.yield({batch, static_cast<std::uint32_t>(batch + 1), 10, blob_of(batch)});
      yielded.insert(batch);
      std::int64_t whole = 0;
      while (yielded.count(whole) != 0) whole++;
      CHECK(p.batches == whole);
      CHECK(p.positions == whole * (whole + 1) / 2);
      CHECK(p.ahead.size() == yielded.size() - static_cast<std::size_t>(whole));
      CHECK(number_of(p.sampler_state) == whole - 1);
      for (std::int64_t b = 0; b < 7; b++) CHECK(p.has(b) == (yielded.count(b) != 0));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("progress with 500 000 batches ahead in reverse order handles each batch in short time") {
  // A scan of all batches ahead for each batch would take hours.
  constexpr std::int64_t many = 500'000;
  Progress p;
  p.ahead.reserve(many);
  for (std::int64_t batch = many; batch > 0; batch--) p.ahead.push_back({batch, 1, 1, nullptr, false});
  for (std::int64_t batch = 1; batch <= many; batch++) {
    REQUIRE(p.has(batch));
    p.set_sampler_state(batch, blob_of(batch));
  }
  CHECK(p.batches == 0);
  p.yield({0, 1, 1, blob_of(0)});
  CHECK(p.batches == many + 1);
  CHECK(p.ahead.empty());
  CHECK(number_of(p.sampler_state) == many);
}
