// SPDX-License-Identifier: Apache-2.0
// 6. Mid-epoch state: what follows is what would have followed.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

using State = std::vector<std::byte>;

State state_of(feedlane_loader* l, std::uint64_t token = 0) {
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

feedlane_state_info info_of(const State& state) {
  auto info = fresh<feedlane_state_info>();
  Error e;
  const std::int32_t s = feedlane_state_read(state.data(), state.size(), &info, &e);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
  return info;
}

// The seed comes from the state.
Setup& go_on(Setup& s, const State& state) {
  s.config.state = state.data();
  s.config.state_bytes = state.size();
  s.config.has_seed = 0;
  s.config.seed = 0;
  return s;
}

void check_same(const std::vector<Taken>& found, const std::vector<Taken>& expected, std::size_t from = 0) {
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

// Another number of workers, each of which forks.
Setup& with_workers(Setup& s, std::int32_t workers) {
  if (workers > 0) s.workers(workers);
  return s;
}

}  // namespace

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

TEST_CASE("a state of a held batch resumes after it, although later ones were taken") {
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

TEST_CASE("a state at the end of an epoch resumes with the next one, which is whole") {
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

TEST_CASE("in a state a failed batch counts as yielded, a following one does not") {
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

TEST_CASE("out of order, a state contains the batches yielded early, and they don't come again") {
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

TEST_CASE("out of order, a resumed loader can be saved and resumed again") {
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

TEST_CASE("a failed begin of a resumed loader can be repeated, and resumes") {
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
  auto config = fresh<feedlane_distributed_config>();
  config.length = length;
  config.world = world;
  config.rank = rank;
  config.seed = 3;
  feedlane_sampler* s = nullptr;
  Error e;
  const std::int32_t status = feedlane_sampler_distributed(&config, &s, &e);
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

TEST_CASE("another world shares what is left, with the original seeds") {
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

TEST_CASE("with batches yielded early another world is refused by name") {
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

// ---- iterable data sets ----

namespace {

// Worker w of c yields w, w + c, w + 2c ... below `total`, as index and seed.
struct Counting {
  static constexpr std::int64_t total = 47;
  std::int64_t next = 0, first = 0, step = 1;

  static std::int32_t open(void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
    auto* c = new Counting;
    if (info->id >= 0) c->first = info->id, c->step = info->count;
    *self = c;
    return 0;
  }
  static std::int32_t restart(void* self, std::int64_t, feedlane_error*) {
    auto* c = static_cast<Counting*>(self);
    c->next = c->first;
    return 0;
  }
  static std::int32_t take(void* self, const feedlane_row* row, feedlane_error*) {
    auto* c = static_cast<Counting*>(self);
    if (c->next >= total) return FEEDLANE_END;
    std::memcpy(row->fields[0], &c->next, sizeof c->next);
    std::memcpy(row->fields[1], &row->seed, sizeof row->seed);
    c->next += c->step;
    return 0;
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error*) {
    if (cap < sizeof(std::int64_t)) return FEEDLANE_E_LIMIT;
    std::memcpy(buffer, &static_cast<Counting*>(self)->next, *bytes = sizeof(std::int64_t));
    return 0;
  }
  static std::int32_t load(void* self, const void* buffer, std::uint64_t bytes, feedlane_error*) {
    if (bytes != sizeof(std::int64_t)) return FEEDLANE_E_CORRUPT;
    std::memcpy(&static_cast<Counting*>(self)->next, buffer, bytes);
    return 0;
  }
  static void close(void* self) { delete static_cast<Counting*>(self); }
};

struct Iterable {
  Iterable(std::int32_t workers, bool saves) : config(fresh<feedlane_loader_config>()) {
    table.open = Counting::open;
    table.restart = Counting::restart;
    table.next = Counting::take;
    table.close = Counting::close;
    if (saves) table.save = Counting::save, table.load = Counting::load;
    config.dataset = &table;
    config.fields = list.data();
    config.field_count = list.size();
    config.batch_size = 3;
    config.iterable = 1;
    config.deterministic = saves ? 0 : 1;
    config.has_seed = 1;
    config.seed = 5;
    config.workers = workers;
    if (workers > 0) config.start = FEEDLANE_START_FORK;
  }
  Loader create(const State* state = nullptr) {
    if (state != nullptr) {
      config.state = state->data();
      config.state_bytes = state->size();
      config.has_seed = 0, config.seed = 0;
    }
    feedlane_loader* l = nullptr;
    status = feedlane_loader_create(&config, &l, &error);
    return Loader(l);
  }
  feedlane_dataset table = fresh<feedlane_dataset>();
  std::vector<feedlane_field> list{field("index", int64_type), field("seed", uint64_type)};
  feedlane_loader_config config;
  std::int32_t status = 0;
  Error error;
};

}  // namespace

TEST_CASE(
    "an iterable loader resumes by save and load, or by skipping what was delivered, with every batch in its "
    "position") {
  for (const bool saves : {true, false})
    for (const std::int32_t workers : {0, 1, 3}) {
      Iterable first(workers, saves);
      const Loader l = first.create();
      REQUIRE_MESSAGE(l != nullptr, first.error.text);
      const std::vector<Taken> expected = take_epoch(l.get(), 0);
      for (std::size_t i = 0; i <= expected.size(); i += 4) {
        CAPTURE(saves);
        CAPTURE(workers);
        CAPTURE(i);
        begin(l.get(), 0);
        for (std::size_t k = 0; k < i; k++) (void)take(l.get());
        const State state = state_of(l.get());
        CHECK(info_of(state).iterable == 1);
        Iterable again(workers, saves);
        const Loader resumed = again.create(&state);
        REQUIRE_MESSAGE(resumed != nullptr, again.error.text);
        check_same(take_epoch(resumed.get(), 0), expected, i);
        check_same(take_epoch(resumed.get(), 1), take_epoch(l.get(), 1));
      }
    }
}

TEST_CASE("another number of workers, or a data set without promises, is refused by name for an iterable state") {
  Iterable first(2, false);
  const Loader l = first.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State state = state_of(l.get());
  Iterable three(3, false);
  CHECK(three.create(&state) == nullptr);
  CHECK(three.status == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(three.error.argument) == "config.workers");
  CHECK(three.error.found == 3);
  CHECK(three.error.needed == 2);
  Iterable vague(2, false);
  vague.config.deterministic = 0;
  CHECK(vague.create(&state) == nullptr);
  CHECK(std::string(vague.error.argument) == "config.deterministic");
}

TEST_CASE("an iterable state after the last shard's end but before END resumes with END") {
  Iterable first(0, false);
  const Loader l = first.create();
  begin(l.get(), 0);
  const std::size_t batches = (Counting::total + 2) / 3;
  for (std::size_t i = 0; i < batches; i++) REQUIRE(take(l.get()).status == FEEDLANE_OK);
  Iterable forked(2, false);
  const Loader two = forked.create();
  const std::size_t all = take_epoch(two.get(), 0).size();
  begin(two.get(), 0);
  for (std::size_t i = 0; i < all; i++) REQUIRE(take(two.get()).status == FEEDLANE_OK);
  REQUIRE(eventually([&] { return feedlane_loader_poll(two.get(), nullptr) == FEEDLANE_AGAIN; }));
  const State state = state_of(two.get());
  Iterable again(2, false);
  const Loader resumed = again.create(&state);
  REQUIRE_MESSAGE(resumed != nullptr, again.error.text);
  CHECK(take_epoch(resumed.get(), 0).empty());
  const State inline_state = state_of(l.get());
  Iterable alone(0, false);
  CHECK(take_epoch(alone.create(&inline_state).get(), 0).empty());
}

namespace {

// One shard of which the first sample of batch 3 kills whoever comes to it, until told otherwise.
struct Deadly : Counting {
  static inline bool is_deadly = true;
  static std::int32_t take(void* self, const feedlane_row* row, feedlane_error* err) {
    auto* c = static_cast<Counting*>(self);
    if (is_deadly && c->first == 1 && c->next >= 1 + 9 * c->step) (void)::raise(SIGKILL);
    return Counting::take(self, row, err);
  }
};

}  // namespace

TEST_CASE("after a quarantined batch each shard resumes with its own state") {
  Iterable first(2, true);
  first.table.next = Deadly::take;
  first.config.max_kills_per_batch = 1;
  const Loader l = first.create();
  begin(l.get(), 0);
  bool was_quarantined = false;
  std::vector<std::int64_t> seen;
  for (int i = 0; i < 10; i++) {
    const Taken t = take(l.get());
    if (t.status == FEEDLANE_E_QUARANTINED) was_quarantined = true;
    else REQUIRE(t.status == FEEDLANE_OK);
    for (std::size_t row = 0; row < t.bytes.size() / 2 * (t.bytes.empty() ? 0 : t.bytes[0].size() / 8); row++)
      seen.push_back(t.value("index", row));
  }
  CHECK(was_quarantined);
  const State state = state_of(l.get());
  Deadly::is_deadly = false;
  Iterable again(2, true);
  const Loader resumed = again.create(&state);
  REQUIRE_MESSAGE(resumed != nullptr, again.error.text);
  for (const Taken& t : take_epoch(resumed.get(), 0))
    for (std::size_t row = 0; row < t.bytes[0].size() / 8; row++) {
      const std::int64_t value = t.value("index", row);
      CHECK_MESSAGE(std::find(seen.begin(), seen.end(), value) == seen.end(), value << " a second time");
    }
  Deadly::is_deadly = true;
}

// ---- what is refused ----

TEST_CASE("every damaged byte and every cut of a state is E_CORRUPT or E_ABI, and no loader is created") {
  Shuffled s;
  const Loader l = s.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State good = state_of(l.get());
  const auto refused = [](const State& bad) {
    Shuffled again;
    Loader made;
    Error e;
    const std::int32_t status = go_on(again, bad).try_create(made, &e);
    CHECK(made == nullptr);
    CHECK(std::string(e.argument).starts_with("state"));
    auto info = fresh<feedlane_state_info>();
    CHECK(feedlane_state_read(bad.data(), bad.size(), &info, nullptr) == status);
    return status == FEEDLANE_E_CORRUPT || status == FEEDLANE_E_ABI;
  };
  for (std::size_t i = 0; i < good.size(); i++) {
    State bad = good;
    bad[i] = bad[i] ^ std::byte{0x40};
    CHECK(refused(bad));
  }
  for (std::size_t length = 1; length < good.size(); length++)
    CHECK(refused(State(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length))));
  State longer = good;
  longer.push_back({});
  CHECK(refused(longer));
}

TEST_CASE("a state of another data set, order, seed or kind is refused with what differs and both numbers") {
  Shuffled s;
  const Loader l = s.create();
  begin(l.get(), 0);
  (void)take(l.get());
  const State state = state_of(l.get());
  struct Case {
    const char* what;
    void (*change)(Shuffled&);
    const char* argument;
  };
  for (const Case& c : {Case{"another length", [](Shuffled& x) { x.sampler = shuffled(54, 7); }, "state"},
                        {"another order", [](Shuffled& x) { x.sampler = sequential(53); }, "state"},
                        {"another sampler's seed", [](Shuffled& x) { x.sampler = shuffled(53, 8); }, "state"},
                        {"another base seed", [](Shuffled& x) { x.config.seed = 98; }, "config.seed"}}) {
    CAPTURE(std::string(c.what));
    Shuffled again;
    (void)go_on(again, state);
    c.change(again);
    Loader made;
    Error e;
    CHECK(again.try_create(made, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == c.argument);
    CHECK(e.found != e.needed);
  }
}

TEST_CASE("before the first epoch there is no state") {
  Shuffled s;
  const Loader l = s.create();
  Error e;
  std::uint64_t bytes = 0;
  CHECK(feedlane_loader_state(l.get(), 0, nullptr, 0, &bytes, &e) == FEEDLANE_E_STATE);
}

namespace {

// 0, 1 ... 11 of the user's own, which a copy shares.
struct Own {
  std::int64_t at = 0;

  static std::int32_t restart(void* self, std::int64_t, std::uint64_t, feedlane_error*) {
    static_cast<Own*>(self)->at = 0;
    return FEEDLANE_OK;
  }
  static std::int32_t next(void* self, std::int64_t* indices, std::uint64_t, std::uint64_t* got, feedlane_error*) {
    auto& own = *static_cast<Own*>(self);
    *got = 0;
    if (own.at == 12) return FEEDLANE_END;
    indices[(*got)++] = own.at++;
    return FEEDLANE_OK;
  }
  static std::int32_t save(void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error*) {
    if ((*bytes = sizeof at) > cap) return FEEDLANE_E_LIMIT;
    std::memcpy(buffer, &static_cast<Own*>(self)->at, sizeof at);
    return FEEDLANE_OK;
  }
  static std::int32_t load(void* self, const void* buffer, std::uint64_t bytes, feedlane_error*) {
    if (bytes != sizeof at) return FEEDLANE_E_CORRUPT;
    std::memcpy(&static_cast<Own*>(self)->at, buffer, sizeof at);
    return FEEDLANE_OK;
  }
  Sampler sampler(bool saves) {
    auto callbacks = fresh<feedlane_sampler_callbacks>();
    callbacks.user_data = this;
    callbacks.restart = restart;
    callbacks.next = next;
    if (saves) callbacks.save = save, callbacks.load = load;
    feedlane_sampler* s = nullptr;
    REQUIRE(feedlane_sampler_custom(&callbacks, &s, nullptr) == FEEDLANE_OK);
    return Sampler(s);
  }
};

}  // namespace

TEST_CASE("a custom sampler's state is in the loader's by save and load, also for another number of workers") {
  for (const std::int32_t before : {0, 2})
    for (const std::int32_t after : {0, 2}) {
      CAPTURE(before);
      CAPTURE(after);
      Own first_order, second_order;
      Setup first(12, 2), second(12, 2);
      first.sampler = first_order.sampler(true);
      second.sampler = second_order.sampler(true);
      const Loader l = with_workers(first, before).create();
      begin(l.get(), 3);
      for (int i = 0; i < 2; i++) CHECK(take(l.get()).batch == i);
      const State state = state_of(l.get());
      const std::vector<Taken> rest = take_rest(l.get());
      CHECK(rest.size() == 4);
      const Loader resumed = go_on(with_workers(second, after), state).create();
      check_same(take_epoch(resumed.get(), 3), rest);
    }
}

TEST_CASE("resumed with batches missing, a custom sampler has a state after every batch") {
  Own order;
  Setup first(12, 1);
  first.sampler = order.sampler(true);
  const Gate gate;
  first.plan.gate_fd = gate.fd();
  first.plan.gate_index = 3;
  first.config.out_of_order = 1;
  first.config.prefetch_factor = 4;
  const Loader l = with_workers(first, 2).create();
  begin(l.get(), 0);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 7; i++) seen.insert(take(l.get()).batch);
  REQUIRE(seen.size() == 7);
  REQUIRE(seen.count(3) == 0);
  const State state = state_of(l.get());
  gate.open();
  // Makes a batch at a time, so that those that were yielded ahead are drawn again later than the gap is closed.
  const auto rest_of = [](const State& from, bool look_further) {
    std::vector<State> states;
    Own again;
    Setup second(12, 1);
    second.sampler = again.sampler(true);
    second.config.out_of_order = 1;
    const Loader resumed = go_on(second, from).create();
    begin(resumed.get(), 0);
    std::set<std::int64_t> rest;
    for (auto batch = fresh<feedlane_batch>();
         feedlane_loader_next(resumed.get(), 0, &batch, nullptr) == FEEDLANE_OK;) {
      CHECK(rest.insert(batch.batch).second);
      if (look_further) states.push_back(state_of(resumed.get(), batch.token));
      CHECK(feedlane_batch_release(resumed.get(), batch.token) == FEEDLANE_OK);
    }
    return std::pair(rest, states);
  };
  const auto [rest, states] = rest_of(state, true);
  CHECK(rest.size() == 5);
  for (const std::int64_t batch : rest) CHECK(seen.count(batch) == 0);
  for (std::size_t i = 0; i < states.size(); i++) CHECK(rest_of(states[i], false).first.size() == rest.size() - i - 1);
}

TEST_CASE("a state with a custom sampler without save and load is refused by name") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Own order;
    Setup s(12, 2);
    s.sampler = order.sampler(false);
    const Loader l = with_workers(s, workers).create();
    begin(l.get(), 0);
    CHECK(take(l.get()).batch == 0);
    Error e;
    std::uint64_t bytes = 0;
    CHECK(feedlane_loader_state(l.get(), 0, nullptr, 0, &bytes, &e) == FEEDLANE_E_UNSUPPORTED);
    CHECK(std::string(e.argument) == "config.sampler");
    CHECK(take_rest(l.get()).size() == 5);
  }
}
