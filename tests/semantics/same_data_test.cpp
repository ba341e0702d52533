// SPDX-License-Identifier: Apache-2.0
// The same data whoever makes it.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Two epochs of a shuffled data set, in a loader of so many workers.
std::vector<Taken> two_epochs(std::int32_t workers, const char* form) {
  Setup s(53, 5);
  s.sampler = shuffled(53, 11);
  s.fields({field("index", int64_type), field("noise", uint8_type, {13}), field("seed", uint64_type)});
  if (workers > 0) s.workers(workers, form);
  if (workers == 0 && std::string(form) == "fetch") s.dataset = scripted_fetch_dataset();
  const Loader l = s.create();
  std::vector<Taken> all = take_epoch(l.get(), 0);
  for (Taken& t : take_epoch(l.get(), 3)) all.push_back(std::move(t));
  return all;
}

}  // namespace

// promise: loader-fetch, loader-inline, seed-any-workers, torch-start-modes, torch-reproducible
TEST_CASE("bytes, seeds and indices are the same with 0, 1, 2 and 4 workers, in every form of data set") {
  const std::vector<Taken> expected = two_epochs(0, "get");
  REQUIRE(expected.size() == 22);
  for (const char* form : {"get", "fetch", "pull"})
    for (const std::int32_t workers : {0, 1, 2, 4}) {
      CAPTURE(std::string(form));
      CAPTURE(workers);
      const std::vector<Taken> found = two_epochs(workers, form);
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); i++) {
        CHECK(found[i].epoch == expected[i].epoch);
        CHECK(found[i].batch == expected[i].batch);
        CHECK(found[i].indices == expected[i].indices);
        CHECK(found[i].names == expected[i].names);
        CHECK(found[i].bytes == expected[i].bytes);
        CHECK((found[i].worker >= 0) == (workers > 0));
      }
    }
}

// promise: seed-per-sample, torch-reproducible
TEST_CASE("the seed of a row depends on base seed, epoch and position, not on the worker that makes the batch") {
  std::size_t rows = 0;
  std::set<std::uint64_t> all;
  for (const Taken& t : two_epochs(3, "get"))
    for (std::size_t row = 0; row < t.indices.size(); row++, rows++) {
      CHECK(t.seed(row) == feedlane_row_seed(99, t.epoch, t.batch * 5 + static_cast<std::int64_t>(row)));
      all.insert(t.seed(row));
    }
  CHECK(rows == 106);
  CHECK(all.size() == rows);
}

// promise: torch-interleaved
TEST_CASE("several loaders whose batches are taken in turn don't affect each other") {
  Setup a(20, 3);
  a.workers(2);
  Setup b(15, 2);
  b.workers(1, "pull");
  Setup c(9, 1);
  const Loader la = a.create();
  const Loader lb = b.create();
  const Loader lc = c.create();
  std::vector<Taken> found[3];
  feedlane_loader* const loaders[] = {la.get(), lb.get(), lc.get()};
  for (feedlane_loader* l : loaders) begin(l, 0);
  for (bool more = true; more;) {
    more = false;
    for (int i = 0; i < 3; i++) {
      Taken t = take(loaders[i]);
      if (t.status == FEEDLANE_END) continue;
      REQUIRE(t.status == FEEDLANE_OK);
      found[i].push_back(std::move(t));
      more = true;
    }
  }
  check_sequence(found[0], 20, 3);
  check_sequence(found[1], 15, 2);
  check_sequence(found[2], 9, 1);
}

// promise: index-int64
TEST_CASE("64-bit indices, also negative ones, reach the data set unchanged") {
  const std::vector<std::int64_t> some{INT64_MAX, INT64_MIN, -3, 0, INT64_C(1) << 32, (INT64_C(1) << 40) + 7};
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Setup s(0, 2);
    feedlane_sampler* made = nullptr;
    REQUIRE(subset_sampler(some.data(), some.size(), 1, 0, &made, nullptr) == FEEDLANE_OK);
    s.sampler.reset(made);
    if (workers != 0) s.workers(workers);
    const Loader l = s.create();
    std::vector<std::int64_t> indices;
    for (const Taken& t : take_epoch(l.get(), 0))
      for (std::size_t row = 0; row < t.indices.size(); row++) {
        CHECK(t.value("index", row) == t.indices[row]);
        indices.push_back(t.indices[row]);
      }
    CHECK(indices == some);
  }
}

// promise: torch-long-indices
TEST_CASE("a batch of many indices reaches the worker complete") {
  Setup s(81920, 40960);
  s.workers(2, "fetch");
  const Loader l = s.create();
  const std::vector<Taken> taken = take_epoch(l.get(), 0);
  REQUIRE(taken.size() == 2);
  for (std::size_t i = 0; i < 2; i++) {
    REQUIRE(taken[i].indices.size() == 40960);
    bool right = true;
    for (std::size_t row = 0; row < 40960; row++) {
      const auto expected = static_cast<std::int64_t>(i * 40960 + row);
      right = right && taken[i].indices[row] == expected && taken[i].value("index", row) == expected;
    }
    CHECK(right);
  }
}
