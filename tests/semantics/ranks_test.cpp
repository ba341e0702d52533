// SPDX-License-Identifier: Apache-2.0
// 2. Samplers in a loader: ranks that are processes of their own, and an order too long for any list.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

using Indices = std::vector<std::int64_t>;

constexpr std::int64_t samples = 103;

// What a launcher starts: finds its rank in the environment, goes through an epoch with two workers of its own, and tells
// every index; behind the last one -1 and then its state, if it stops after so many batches.
[[noreturn]] void be_rank(int to, int rank, int world, int batches, const std::vector<std::byte>& state) {
  (void)::setenv("RANK", std::to_string(rank).c_str(), 1);
  (void)::setenv("WORLD_SIZE", std::to_string(world).c_str(), 1);
  auto order = fresh<feedlane_sampler_config>();
  order.length = samples;
  order.seed = 17;
  feedlane_sampler* sampler = nullptr;
  if (distributed_sampler(&order, &sampler, nullptr) != FEEDLANE_OK) ::_exit(1);
  Setup s(1, 4);
  s.sampler.reset(sampler);
  s.workers(2);
  if (!state.empty()) {
    s.config.state = state.data();
    s.config.state_bytes = state.size();
    s.config.has_seed = 0;
    s.config.seed = 0;
  }
  Loader l;
  if (s.try_create(l, nullptr) != FEEDLANE_OK || feedlane_loader_begin(l.get(), 3, nullptr) != FEEDLANE_OK) ::_exit(2);
  std::int64_t position = rank;  // in the order that all ranks share
  for (int i = 0; i != batches; i++) {
    const Taken t = take(l.get());
    if (t.status == FEEDLANE_END) break;
    if (t.status != FEEDLANE_OK) ::_exit(3);
    for (std::size_t row = 0; row < t.indices.size(); row++, position += world) {
      if (::write(to, &t.indices[row], sizeof(std::int64_t)) != sizeof(std::int64_t)) ::_exit(4);
      if (state.empty() && t.seed(row) != feedlane_row_seed(s.config.seed, 3, position)) ::_exit(7);
    }
  }
  const std::int64_t end = -1;
  std::byte saved[1024];
  std::uint64_t bytes = 0;
  if (feedlane_loader_state(l.get(), 0, saved, sizeof saved, &bytes, nullptr) != FEEDLANE_OK) ::_exit(5);
  if (::write(to, &end, sizeof end) != sizeof end || ::write(to, saved, bytes) != static_cast<ssize_t>(bytes))
    ::_exit(6);
  l.reset();
  ::_exit(0);
}

struct Answer {
  Indices indices;
  std::vector<std::byte> state;
};

// All ranks at once, each a process.
std::vector<Answer> run(int world, int batches, const std::vector<std::byte>& state) {
  std::vector<pid_t> pids;
  std::vector<int> ends;
  for (int rank = 0; rank < world; rank++) {
    int fds[2];
    REQUIRE(::pipe(fds) == 0);
    pids.push_back(::fork());
    if (pids.back() == 0) be_rank(fds[1], rank, world, batches, state);
    (void)::close(fds[1]);
    ends.push_back(fds[0]);
  }
  std::vector<Answer> answers(static_cast<std::size_t>(world));
  for (std::size_t rank = 0; rank < answers.size(); rank++) {
    std::string all;
    char part[4096];
    for (ssize_t got = 0; (got = ::read(ends[rank], part, sizeof part)) > 0;)
      all.append(part, static_cast<std::size_t>(got));
    (void)::close(ends[rank]);
    int status = -1;
    REQUIRE(::waitpid(pids[rank], &status, 0) == pids[rank]);
    REQUIRE(status == 0);
    std::size_t at = 0;
    for (std::int64_t index = 0; at + sizeof index <= all.size(); answers[rank].indices.push_back(index)) {
      std::memcpy(&index, all.data() + at, sizeof index);
      at += sizeof index;
      if (index < 0) break;
    }
    const auto* rest = reinterpret_cast<const std::byte*>(all.data());
    answers[rank].state.assign(rest + at, rest + all.size());
  }
  return answers;
}

Indices together(const std::vector<Answer>& answers) {
  Indices all;
  for (const Answer& a : answers) all.insert(all.end(), a.indices.begin(), a.indices.end());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

// promise: rank-processes
TEST_CASE("four ranks in four processes share the data evenly, and two ranks resume from a state of them") {
  const std::vector<Answer> whole = run(4, -1, {});
  const Indices expected = together(whole);
  CHECK(expected.size() == 104);  // ceil(103 / 4) * 4: one index is there twice
  Indices once = expected;
  once.erase(std::unique(once.begin(), once.end()), once.end());
  CHECK(once.size() == 103);
  for (const Answer& a : whole) CHECK(a.indices.size() == 26);

  const std::vector<Answer> before = run(4, 3, {});
  for (const Answer& a : before) CHECK(a.indices.size() == 12);
  Indices all = together(before);
  const std::vector<Answer> after = run(2, -1, before[2].state);
  for (const Answer& a : after) CHECK(a.indices.size() == 28);
  const Indices rest = together(after);
  all.insert(all.end(), rest.begin(), rest.end());
  std::sort(all.begin(), all.end());
  CHECK(all == expected);
}

// promise: sampler-huge-shuffle
TEST_CASE("the first batches of a feistel shuffle of 10^12 samples are yielded in constant memory") {
  constexpr std::int64_t length = 1'000'000'000'000;
  auto order = fresh<feedlane_sampler_config>();
  order.length = length;
  order.seed = 5;
  order.shuffle = FEEDLANE_SHUFFLE_FEISTEL;
  const std::uint64_t before = resident_bytes();
  feedlane_sampler* sampler = nullptr;
  REQUIRE(random_sampler(&order, &sampler, nullptr) == FEEDLANE_OK);
  Setup s(1, 64);
  s.sampler.reset(sampler);
  const Loader l = s.create();
  std::int64_t batches = 0;
  REQUIRE(length_of(l.get(), &batches) == FEEDLANE_OK);
  CHECK(batches == length / 64);
  begin(l.get(), 0);
  Indices seen;
  for (int i = 0; i < 100; i++) {
    const Taken t = take(l.get());
    REQUIRE(t.status == FEEDLANE_OK);
    for (const std::int64_t index : t.indices) {
      CHECK(index >= 0);
      CHECK(index < length);
      seen.push_back(index);
    }
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  // A list would take eight terabytes, a bit an index 125 GB; what AddressSanitizer keeps aside is a few megabytes.
  CHECK(resident_bytes() < before + (std::uint64_t{64} << 20));
}

// promise: rank-processes
TEST_CASE("a loader warns if the variables of two launchers give different ranks") {
  for (const bool agree : {true, false}) {
    CAPTURE(agree);
    CHECK(in_child([&](Findings& f) {
            for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK"}) (void)::setenv(name, "1", 1);
            for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}) (void)::setenv(name, "4", 1);
            if (!agree) (void)::setenv("OMPI_COMM_WORLD_RANK", "2", 1);
            auto order = fresh<feedlane_sampler_config>();
            order.length = samples;
            feedlane_sampler* sampler = nullptr;
            EXPECT(f, distributed_sampler(&order, &sampler, nullptr) == FEEDLANE_OK);
            Setup s(1, 4);
            s.sampler.reset(sampler);
            const Loader l = s.create();
            const std::vector<feedlane_event> told = events_of(l.get(), FEEDLANE_EVENT_WARNING);
            EXPECT(f, told.size() == (agree ? 0 : 1));
            EXPECT(f, agree || std::string(told[0].what.text).find("using rank 1 of 4 from torchrun, but OMPI") == 0);
          }) == "");
  }
}
