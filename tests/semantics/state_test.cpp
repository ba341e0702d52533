// SPDX-License-Identifier: Apache-2.0
// 6. Mid-epoch state: what follows is what would have followed.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "semantics/states.hpp"
#include "support/events.hpp"
#include "support/process.hpp"

using namespace feedlane::test;
using namespace feedlane::test::states;

// promise: seed-after-resume, state-during-epoch, state-other-workers, torch-resume
TEST_CASE("a state after any batch of an epoch resumes with any number of workers, with the same bytes and seeds") {
  for (const std::int32_t before : {0, 2}) {
    Shuffled first;
    const Loader l = with_workers(first, before).create();
    const std::vector<Taken> expected = take_epoch(l.get(), 4);
    REQUIRE(expected.size() == 11);
    begin(l.get(), 4);
    std::vector<State> states;
    for (std::size_t i = 0; i < expected.size(); i++) {
      (void)take(l.get());
      states.push_back(state_of(l.get()));
      CHECK(states.back().size() < 512);
      CHECK(info_of(states.back()).epoch == 4);
      CHECK(info_of(states.back()).batch == static_cast<std::int64_t>(i) + 1);
      CHECK(info_of(states.back()).base_seed == 99);
      CHECK(info_of(states.back()).ended == 0);
    }
    for (std::size_t i = 0; i < states.size(); i++)
      for (const std::int32_t after : {0, 1, 3}) {
        if (after != 0 && i % 4 != 0) continue;  // processes take their time
        CAPTURE(i);
        CAPTURE(after);
        Shuffled again;
        const Loader resumed = go_on(with_workers(again, after), states[i]).create();
        CHECK(state_of(resumed.get()) == states[i]);
        check_same(take_epoch(resumed.get(), 4), expected, i + 1);
        check_same(take_epoch(resumed.get(), 4), expected);  // an epoch begun once more is a whole one
      }
  }
}

// promise: state-during-epoch
TEST_CASE("with a sampler that makes batches a state resumes after any batch") {
  for (const std::int32_t workers : {0, 2}) {
    ShuffledBatches first;
    const Loader l = with_workers(first, workers).create();
    const std::vector<Taken> expected = take_epoch(l.get(), 4);
    REQUIRE(expected.size() == 11);
    CHECK(expected.back().indices.size() == 3);
    begin(l.get(), 4);
    for (std::size_t i = 0; i < expected.size(); i++) {
      CAPTURE(i);
      (void)take(l.get());
      const State state = state_of(l.get());
      CHECK(info_of(state).batch == static_cast<std::int64_t>(i) + 1);
      if (workers != 0 && i % 4 != 0) continue;  // processes take their time
      ShuffledBatches again;
      const Loader resumed = go_on(with_workers(again, workers), state).create();
      CHECK(state_of(resumed.get()) == state);
      check_same(take_epoch(resumed.get(), 4), expected, i + 1);
      check_same(take_epoch(resumed.get(), 4), expected);
    }
  }
}

// promise: sampler-tokens-resume
TEST_CASE("with a tokens sampler a state resumes after any batch, with the same bytes and seeds") {
  const auto set_up = [](Setup& s) {
    auto config = fresh<feedlane_sampler_config>();
    config.max_tokens = 20;
    config.max_rows = 4;
    config.seed = 11;
    config.world = 2;
    config.rank = 1;
    std::vector<std::int64_t> lengths(43);
    for (std::size_t i = 0; i < lengths.size(); i++) lengths[i] = static_cast<std::int64_t>(i * 7 % 19);
    feedlane_sampler* tokens = nullptr;
    REQUIRE(tokens_sampler(lengths.data(), lengths.size(), &config, &tokens, nullptr) == FEEDLANE_OK);
    s.sampler.reset(tokens);
    s.config.sampler = tokens;
    s.config.batch_size = 0;
  };
  Shuffled first;
  set_up(first);
  const Loader l = with_workers(first, 2).create();
  const std::vector<Taken> expected = take_epoch(l.get(), 4);
  REQUIRE(expected.size() > 8);
  begin(l.get(), 4);
  for (std::size_t i = 0; i < expected.size(); i++) {
    CAPTURE(i);
    (void)take(l.get());
    const State state = state_of(l.get());
    Shuffled again;
    set_up(again);
    const Loader resumed = go_on(with_workers(again, 0), state).create();
    check_same(take_epoch(resumed.get(), 4), expected, i + 1);
  }
}

// promise: state-named-batch
TEST_CASE("a state of a held batch resumes after that batch, although later batches were taken") {
  Shuffled s;
  s.config.held = 4;
  const Loader l = s.workers(2).create();
  const std::vector<Taken> expected = take_epoch(l.get(), 0);
  begin(l.get(), 0);
  std::vector<feedlane_batch> held;
  for (int i = 0; i < 4; i++) {
    auto batch = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &batch, nullptr) == FEEDLANE_OK);
    held.push_back(batch);
  }
  std::vector<State> states;
  for (const feedlane_batch& b : held) states.push_back(state_of(l.get(), b.token));
  CHECK(states.back() == state_of(l.get()));
  for (const feedlane_batch& b : held) (void)feedlane_batch_release(l.get(), b.token);
  Error e;
  std::uint64_t bytes = 0;
  CHECK(feedlane_loader_state(l.get(), held[1].token, nullptr, 0, &bytes, &e) == FEEDLANE_E_STALE);
  for (std::size_t i = 0; i < states.size(); i++) {
    Shuffled again;
    const Loader resumed = go_on(again, states[i]).create();
    check_same(take_epoch(resumed.get(), 0), expected, i + 1);
  }
}

// promise: state-at-end, torch-resume
TEST_CASE("a state at the end of an epoch resumes with the next epoch, which is complete") {
  Shuffled s;
  const Loader l = s.create();
  const std::vector<Taken> next = take_epoch(l.get(), 1);
  (void)take_epoch(l.get(), 0);
  const State state = state_of(l.get());
  CHECK(info_of(state).ended == 1);
  for (const std::int32_t workers : {0, 2}) {
    Shuffled again;
    const Loader resumed = go_on(with_workers(again, workers), state).create();
    CHECK(take_epoch(resumed.get(), 0).empty());
    check_same(take_epoch(resumed.get(), 1), next);
  }
}

// promise: state-other-workers
TEST_CASE("a state counts a failed batch as yielded, and resumes with the batch after it") {
  Shuffled s;
  s.plan.fail_index = 17;
  const Loader l = s.create();
  begin(l.get(), 0);
  Error e;
  Taken t;
  std::size_t seen = 0;
  while ((t = take(l.get(), &e)).status == FEEDLANE_OK) seen++;
  REQUIRE(t.status == FEEDLANE_E_SAMPLE);
  const State state = state_of(l.get());
  const std::vector<Taken> rest = take_rest(l.get());
  Shuffled again;
  const Loader resumed = go_on(again, state).create();
  check_same(take_epoch(resumed.get(), 0), rest);
  CHECK(rest.size() + seen + 1 == 11);
}

// promise: state-out-of-order
TEST_CASE("with out_of_order a state records batches that were yielded early, and they are not yielded again") {
  int ahead = 0;
  for (std::size_t after = 1; after < 27; after += 5) {
    Shuffled s(2);
    s.config.out_of_order = 1;
    s.config.prefetch_factor = 4;
    // The first sample of batch 3 waits: others overtake it.
    const Loader plain = Shuffled(2).create();
    const std::vector<Taken> expected = take_epoch(plain.get(), 0);
    int gate[2];
    REQUIRE(::pipe(gate) == 0);
    s.plan.gate_fd = gate[0];
    s.plan.gate_index = expected[3].indices[0];
    const Loader l = s.workers(3).create();
    begin(l.get(), 0);
    std::map<std::int64_t, Taken> seen;
    for (std::size_t i = 0; i < after; i++) {
      if (i == 8) REQUIRE(::write(gate[1], "xxxx", 4) == 4);
      Taken t = take(l.get());
      REQUIRE(t.status == FEEDLANE_OK);
      const std::int64_t batch = t.batch;
      CHECK(seen.emplace(batch, std::move(t)).second);
    }
    const State state = state_of(l.get());
    if (after < 8) ahead += static_cast<int>(seen.rbegin()->first) >= static_cast<int>(after) ? 1 : 0;
    REQUIRE(::write(gate[1], "xxxx", 4) == 4);
    (void)::close(gate[0]);
    (void)::close(gate[1]);
    for (const std::int32_t workers : {0, 2}) {
      Shuffled again(2);
      again.config.out_of_order = workers == 0 ? 0 : 1;
      const Loader resumed = go_on(with_workers(again, workers), state).create();
      std::map<std::int64_t, Taken> all = seen;
      for (Taken& t : take_epoch(resumed.get(), 0)) {
        const std::int64_t batch = t.batch;
        CHECK_MESSAGE(all.emplace(batch, std::move(t)).second, "batch " << batch << " a second time");
      }
      REQUIRE(all.size() == expected.size());
      for (const Taken& e : expected) {
        CHECK(all.at(e.batch).indices == e.indices);
        CHECK(all.at(e.batch).bytes == e.bytes);
      }
    }
    Shuffled other(3);
    other.config.out_of_order = 1;
    Loader refused;
    Error e;
    const bool has_ahead = static_cast<std::size_t>(info_of(state).batch) != after;
    CHECK(go_on(other, state).try_create(refused, &e) == (has_ahead ? FEEDLANE_E_ARGUMENT : FEEDLANE_OK));
    if (has_ahead) CHECK(std::string(e.argument) == "config.batch_size");
  }
  CHECK(ahead > 0);
}

// promise: state-out-of-order
TEST_CASE("with out_of_order a resumed loader can be saved and resumed again") {
  for (std::size_t first = 2; first < 8; first++) {
    const Gate gate;
    Shuffled s(2);
    s.config.out_of_order = 1;
    s.config.prefetch_factor = 4;
    const std::vector<Taken> expected = take_epoch(Shuffled(2).create().get(), 0);
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = expected[0].indices[0];  // all others overtake batch 0
    std::map<std::int64_t, Taken> seen;
    const auto take_some = [&](feedlane_loader* l, std::size_t count) {
      for (std::size_t i = 0; i < count; i++) {
        Taken t = take(l);
        REQUIRE(t.status == FEEDLANE_OK);
        const std::int64_t batch = t.batch;
        CHECK(seen.emplace(batch, std::move(t)).second);
      }
      return state_of(l);
    };
    const Loader l = s.workers(2).create();
    begin(l.get(), 0);
    const State one = take_some(l.get(), first);
    CHECK(info_of(one).batch == 0);
    gate.open();
    State two = one;
    for (const std::size_t count : {std::size_t{1}, std::size_t{3}, first}) {
      Shuffled again(2);
      again.config.out_of_order = 1;
      const Loader resumed = go_on(again, two).create();
      begin(resumed.get(), 0);
      two = take_some(resumed.get(), count);
    }
    CHECK(info_of(two).batch > static_cast<std::int64_t>(first));
    Shuffled last(2);
    const Loader resumed = go_on(last, two).create();
    for (Taken& t : take_epoch(resumed.get(), 0)) {
      const std::int64_t batch = t.batch;
      CHECK(seen.emplace(batch, std::move(t)).second);
    }
    REQUIRE(seen.size() == expected.size());
    for (const Taken& e : expected) CHECK(seen.at(e.batch).indices == e.indices);
  }
}

// promise: state-failed-begin, descriptors-resumed
TEST_CASE("a resumed loader whose begin failed resumes with the next begin") {
  Shuffled s;
  const Loader l = s.create();
  const std::vector<Taken> expected = take_epoch(l.get(), 0);
  begin(l.get(), 0);
  for (int i = 0; i < 4; i++) (void)take(l.get());
  const State state = state_of(l.get());
  Shuffled again;
  const Loader resumed = go_on(again.workers(2), state).create();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{static_cast<rlim_t>(open_descriptors().size()) + 1, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(feedlane_loader_begin(resumed.get(), 0, nullptr) < 0);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  check_same(take_epoch(resumed.get(), 0), expected, 4);
}

namespace {

Sampler distributed(std::int64_t length, std::int32_t world, std::int32_t rank) {
  auto config = fresh<feedlane_sampler_config>();
  config.length = length;
  config.world = world;
  config.rank = rank;
  config.seed = 3;
  feedlane_sampler* s = nullptr;
  Error e;
  const std::int32_t status = distributed_sampler(&config, &s, &e);
  REQUIRE_MESSAGE(status == FEEDLANE_OK, e.text);
  return Sampler(s);
}

struct Rank : Setup {
  Rank(std::int32_t world, std::int32_t rank, std::int64_t batch_size = 3) : Setup(1, batch_size) {
    sampler = distributed(101, world, rank);
  }
};

// What each index of the padded list was made with: the seed, by index; a padded one may come twice, with two seeds.
using Seeds = std::multimap<std::int64_t, std::uint64_t>;

void note(const std::vector<Taken>& taken, Seeds& seeds) {
  for (const Taken& t : taken)
    for (std::size_t row = 0; row < t.indices.size(); row++) seeds.emplace(t.indices[row], t.seed(row));
}

}  // namespace

// promise: seed-after-resume, state-other-world
TEST_CASE("another number of ranks shares the rest of an epoch, with the original seeds") {
  constexpr std::int32_t world = 4;
  Seeds expected;
  for (std::int32_t rank = 0; rank < world; rank++) note(take_epoch(Rank(world, rank).create().get(), 2), expected);
  CHECK(expected.size() == 104);
  for (const std::int32_t second : {1, 2, 3, 4, 6})
    for (const int batches : {0, 1, 5, 8, 9}) {
      CAPTURE(second);
      CAPTURE(batches);
      Seeds found;
      std::vector<State> states;
      for (std::int32_t rank = 0; rank < world; rank++) {
        Rank s(world, rank);
        const Loader l = s.create();
        begin(l.get(), 2);
        for (int i = 0; i < batches; i++) note({take(l.get())}, found);
        states.push_back(state_of(l.get()));
      }
      std::vector<Loader> resumed;
      for (std::int32_t rank = 0; rank < second; rank++) {
        Rank s(second, rank, 4);
        resumed.push_back(go_on(s, states[static_cast<std::size_t>(rank % world)]).create());
        begin(resumed.back().get(), 2);
        if (batches == 5) note({take(resumed.back().get())}, found);
      }
      if (batches == 5) {  // and once more, in a third world
        const State state = state_of(resumed[0].get());
        resumed.clear();
        for (std::int32_t rank = 0; rank < 2; rank++) {
          Rank s(2, rank, 1);
          resumed.push_back(go_on(s, state).create());
          begin(resumed.back().get(), 2);
        }
      }
      for (const Loader& l : resumed) note(take_rest(l.get()), found);
      const auto all = [](const Seeds& s) {
        std::vector<std::pair<std::int64_t, std::uint64_t>> pairs(s.begin(), s.end());
        std::sort(pairs.begin(), pairs.end());
        return pairs;
      };
      CHECK(all(found) == all(expected));
    }
}

// promise: state-other-world
TEST_CASE("a state with batches that were yielded early is refused with another number of ranks") {
  const Gate gate;
  Rank s(1, 0, 2);
  s.config.out_of_order = 1;
  s.config.prefetch_factor = 4;
  const std::vector<Taken> expected = take_epoch(Rank(1, 0, 2).create().get(), 0);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = expected[0].indices[0];
  const Loader l = s.workers(2).create();
  begin(l.get(), 0);
  for (int i = 0; i < 3; i++) (void)take(l.get());
  const State state = state_of(l.get());
  gate.open();
  Rank other(2, 0, 2);
  Loader refused;
  Error e;
  CHECK(go_on(other, state).try_create(refused, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "config.sampler");
  CHECK(e.found == 2);
  CHECK(e.needed == 1);
  Rank same(1, 0, 2);
  CHECK(go_on(same, state).create() != nullptr);
}

// ---- the trainer is killed ----

namespace {

// A trainer in a process of its own: tells every batch that it has taken, and then the state after it.
[[noreturn]] void train(int to, std::int32_t workers, const State* from) {
  Shuffled s(2);
  if (from != nullptr) (void)go_on(s, *from);
  const Loader l = with_workers(s, workers).create();
  begin(l.get(), 6);
  for (;;) {
    const Taken t = take(l.get());
    if (t.status != FEEDLANE_OK) ::_exit(t.status == FEEDLANE_END ? 0 : 1);
    const State state = state_of(l.get());
    const std::uint64_t head[2] = {static_cast<std::uint64_t>(t.batch), state.size()};
    if (::write(to, head, sizeof head) != sizeof head ||
        ::write(to, state.data(), state.size()) != static_cast<ssize_t>(state.size()))
      ::_exit(1);
  }
}

bool read_whole(int fd, void* buffer, std::size_t bytes) {
  auto* at = static_cast<char*>(buffer);
  while (bytes != 0) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// The last state that a trainer wrote before it was killed, some time after `batches` of them.
State state_of_killed_trainer(int batches, std::int32_t workers, const State* from, std::int64_t& last) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t trainer = ::fork();
  if (trainer == 0) train(ends[1], workers, from);
  (void)::close(ends[1]);
  State state;
  for (int i = 0;; i++) {
    if (i == batches) REQUIRE(::kill(trainer, SIGKILL) == 0);
    std::uint64_t head[2];
    if (!read_whole(ends[0], head, sizeof head)) break;
    State next(head[1]);
    if (!read_whole(ends[0], next.data(), next.size())) break;  // killed in between
    last = static_cast<std::int64_t>(head[0]);
    state = std::move(next);
  }
  (void)::close(ends[0]);
  int status = -1;
  REQUIRE(::waitpid(trainer, &status, 0) == trainer);
  CAPTURE(status);
  const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  CHECK_MESSAGE((was_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)), "its own checks didn't end it");
  return state;
}

}  // namespace

// promise: state-other-workers
TEST_CASE("a trainer killed again and again resumes, each time with another number of workers") {
  Shuffled whole(2);
  const std::vector<Taken> expected = take_epoch(whole.create().get(), 6);
  REQUIRE(expected.size() == 27);
  std::mt19937 random(4);
  for (int run = 0; run < 5; run++) {
    State state;
    std::int64_t last = -1;
    for (int life = 0; life < 4 && last < 20; life++) {
      const auto workers = static_cast<std::int32_t>(1 + random() % 3);
      const int batches = 1 + static_cast<int>(random() % 5);
      const std::int64_t before = last;
      State next = state_of_killed_trainer(batches, workers, state.empty() ? nullptr : &state, last);
      if (next.empty()) continue;
      CHECK(last > before);
      state = std::move(next);
    }
    REQUIRE_FALSE(state.empty());
    CHECK(info_of(state).batch == last + 1);
    for (const std::int32_t workers : {0, 4}) {
      Shuffled again(2);
      const Loader l = go_on(with_workers(again, workers), state).create();
      check_same(take_epoch(l.get(), 6), expected, static_cast<std::size_t>(last) + 1);
    }
  }
}

// promise: seed-after-resume
TEST_CASE("a resumed loader reports the epoch's number of batches, including those that were yielded before") {
  State state;
  for (const bool is_resumed : {false, true}) {
    Shuffled s;
    if (is_resumed) go_on(s, state);
    const Loader l = s.create();
    begin(l.get(), 0);
    for (int i = 0; i < 3; i++) REQUIRE(take(l.get()).status == FEEDLANE_OK);
    auto info = fresh<feedlane_loader_info>();
    REQUIRE(observe(l.get(), feedlane_monitor_get_info, &info) == FEEDLANE_OK);
    CHECK(info.batches == 11);
    CHECK(info.batch == (is_resumed ? 6 : 3));
    if (!is_resumed) state = state_of(l.get());
  }
}
