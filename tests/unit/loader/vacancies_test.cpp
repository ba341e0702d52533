// SPDX-License-Identifier: Apache-2.0
// The ready worker with the fewest tasks, compared with a search through all.
#include "loader/vacancies.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using feedlane::loader::Vacancies;

namespace {

constexpr std::uint32_t all = UINT32_MAX;
bool anyone(std::uint32_t) { return true; }

}  // namespace

TEST_CASE("workers with equally many tasks take turns") {
  Vacancies v;
  v.reset(200, 4);
  for (const std::uint32_t w : {3U, 64U, 199U}) v.set(w, 1);
  CHECK(v.find({0, 200, 2, all}, anyone) == 3);
  CHECK(v.find({3, 200, 2, all}, anyone) == 64);
  CHECK(v.find({64, 200, 2, all}, anyone) == 199);
  CHECK(v.find({199, 200, 2, all}, anyone) == 3);
}

TEST_CASE("only so many workers are looked at") {
  Vacancies v;
  v.reset(100, 1);
  for (std::uint32_t w = 0; w < 100; w++) v.set(w, 0);
  int looks = 0;
  const auto count = [&](std::uint32_t) {
    looks++;
    return false;
  };
  CHECK(v.find({50, 100, 1, 7}, count) == Vacancies::none);
  CHECK(looks == 7);
}

TEST_CASE("whatever changes, it finds what a search through all workers finds") {
  constexpr std::uint32_t workers = 130;
  constexpr std::uint32_t most = 5;
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t limit) { return static_cast<std::uint32_t>(random() % limit); };
  Vacancies v;
  v.reset(workers, most);
  std::vector<std::uint32_t> tasks_of(workers, Vacancies::none);
  for (int step = 0; step < 20'000; step++) {
    const std::uint32_t changed = below(workers);
    tasks_of[changed] = below(4) == 0 ? Vacancies::none : below(most + 1);
    v.set(changed, tasks_of[changed]);

    const std::uint32_t after = below(workers), among = 1 + below(workers), limit = below(most + 2), step_over = below(3);
    const auto accepts = [&](std::uint32_t w) { return w % 3 != step_over; };
    std::uint32_t best = Vacancies::none, ready = 0, busy = 0;
    for (std::uint32_t i = 1; i <= workers; i++) {
      const std::uint32_t w = (after + i) % workers;
      if (tasks_of[w] == Vacancies::none) continue;
      ready++;
      busy += tasks_of[w] >= 2 ? 1 : 0;
      if (w < among && tasks_of[w] < limit && accepts(w) && (best == Vacancies::none || tasks_of[w] < tasks_of[best]))
        best = w;
    }
    REQUIRE(v.find({after, among, limit, all}, accepts) == best);
    REQUIRE(v.size() == ready);
    REQUIRE(v.any_from(2) == (busy != 0));
  }
}
