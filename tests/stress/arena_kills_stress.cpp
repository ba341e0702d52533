// SPDX-License-Identifier: Apache-2.0
// Members of an arena are killed at instructions of all that they do with it: join, reserve, publish, get, release, send,
// receive, wait for a key, make an entry, give up, drop, leave. The owner goes on, and so does another member. What a killed
// member had published or sent is there, what it had half made is not; its leases, its memory and its right to make an entry
// are free again; and neither the owner's process nor its memory grows.
//   arena_kills_stress                     each operation, at every action; with FEEDLANE_STRESS=full at instructions too, see Plan
//   arena_kills_stress actions OP          one operation, at every action
//   arena_kills_stress every OP [STRIDE]   one operation, at every STRIDE-th instruction
// promise: arena-any-instruction
#include <poll.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "arenas.hpp"
#include "chaos.hpp"
#include "footprint.hpp"
#include "nursery.hpp"
#include "support/arena_numbers.hpp"
#include "support/slowness.hpp"

namespace {

using namespace feedlane::test::arenas;
using arenas::expect;
using arenas::expect_ok;
using arenas::expect_released;
using arenas::join;
using chaos::patience_ns;

enum class Op : std::uint8_t {
  none,
  join,
  reserve,
  publish,
  get,
  release,
  map,
  send,
  receive,
  wait,
  make,
  give_up,
  publish_made,
  drop,
  leave
};
constexpr std::array<const char*, 15> names{"none",    "join",    "reserve",      "publish", "get",
                                            "release", "map",     "send",         "receive", "wait",
                                            "make",    "give_up", "publish_made", "drop",    "leave"};

// What a member says before and after each operation.
struct Word {
  Op op = Op::none;
  bool is_done = false;
  std::int64_t round = 0;

  [[nodiscard]] std::uint64_t pack() const {
    return static_cast<std::uint64_t>(op) | std::uint64_t{is_done} << 8 | static_cast<std::uint64_t>(round) << 16;
  }
  static Word unpack(std::uint64_t w) {
    return {static_cast<Op>(w & 0xff), (w >> 8 & 1) != 0, static_cast<std::int64_t>(w >> 16)};
  }
};

// ---- entries ----

constexpr std::uint64_t arena_bytes = std::uint64_t{4} << 20;

// The key of the member that is killed, of the one beside it, and one that every process would make.
constexpr char own_key[] = "own", beside_key[] = "beside", made_key[] = "made", stop_key[] = "stop";

// The first number of what the life-th member makes in a round, and how many numbers there are.
std::int64_t first_in(std::int64_t life, std::int64_t round) { return life << 20 | round << 4; }
std::int64_t length_in(std::int64_t round) { return 1 + round * 5; }

// ---- the member that is killed ----

template <class F>
void doing(Op op, std::int64_t round, F&& f) {
  stress::announce(Word{op, false, round}.pack());
  f();
  stress::announce(Word{op, true, round}.pack());
}

int be_killed(const std::string& path, std::int64_t life, std::int64_t leave) {
  feedlane_arena* a = nullptr;
  doing(Op::join, 0, [&] { a = join(path); });
  feedlane::test::Error e;
  for (std::int64_t round = 0; round != leave; round++) {
    const std::int64_t first = first_in(life, round), length = length_in(round);
    feedlane_batch batch;
    doing(Op::reserve, round,
          [&] { expect_ok("reserve", reserve(a, own_key, first, length, patience_ns, batch, &e), e); });
    doing(Op::publish, round,
          [&] { expect_ok("publish", feedlane_arena_publish(a, batch.token, patience_ns, &e), e); });
    doing(Op::get, round, [&] { expect_ok("get", get(a, own_key, batch, patience_ns, &e), e); });
    expect("the own entry", first_of(batch), first);
    doing(Op::release, round, [&] { expect_released(a, batch.token); });
    doing(round == 0 ? Op::map : Op::get, round,
          [&] { expect_ok("get", get(a, beside_key, batch, patience_ns, &e), e); });
    if (first_of(batch) < 0) stress::die("the entry of the member beside", 0, 1);
    expect_released(a, batch.token);
    doing(Op::send, round, [&] { expect_ok("send", put(a, "", first, length, patience_ns, &e), e); });
    for (pollfd p{-1, POLLIN, 0}; feedlane_arena_arm(a, &p.fd) == FEEDLANE_OK;) (void)::poll(&p, 1, -1);
    doing(Op::receive, round,
          [&] { expect_ok("receive", feedlane_arena_receive(a, patience_ns, &batch, &e), e); });  // the owner's answer
    expect("the owner's answer", first_of(batch), first);
    expect_released(a, batch.token);
    doing(Op::wait, round, [&] { expect("wait", get(a, "absent", batch, 1'000'000), FEEDLANE_TIMEOUT); });
    doing(Op::make, round,
          [&] { expect("make", get(a, made_key, batch, patience_ns, &e, FEEDLANE_GET_MAKE), FEEDLANE_ABSENT); });
    const std::uint64_t bytes = std::strlen(made_key);
    if (round % 2 == 0) {
      doing(Op::give_up, round,
            [&] { expect_ok("give up", feedlane_arena_drop(a, made_key, bytes, patience_ns, &e), e); });
      continue;
    }
    doing(Op::publish_made, round, [&] { expect_ok("put", put(a, made_key, first, length, patience_ns, &e), e); });
    doing(Op::drop, round, [&] { expect_ok("drop", feedlane_arena_drop(a, made_key, bytes, patience_ns, &e), e); });
  }
  doing(Op::leave, leave, [&] { expect("destroy", feedlane_arena_destroy(&a), FEEDLANE_OK); });
  return 0;
}

// ---- the member beside it ----

int be_beside(const std::string& path) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  feedlane_arena* a = join(path);
  feedlane::test::Error e;
  auto batch = feedlane::test::fresh<feedlane_batch>();
  std::int64_t answers = 0;
  for (std::int64_t round = 1; look(a, stop_key, 0) < 0; round++) {
    expect_ok("put", put(a, beside_key, round, 100, patience_ns, &e), e);
    expect("the entry of the member beside", look(a, beside_key), round);
    for (; feedlane_arena_receive(a, 0, &batch, nullptr) == FEEDLANE_OK; answers++) {
      if (first_of(batch) < 0) stress::die("an entry of the owner's that is whole", 0, 1);
      expect_released(a, batch.token);
    }
    if (get(a, own_key, batch, 0) == FEEDLANE_OK) {
      if (first_of(batch) < 0) stress::die("an entry of a killed member that is whole", 0, 1);
      chaos::nap(500'000);
      if (first_of(batch) < 0) stress::die("an entry that stays whole while it is held", 0, 1);
      expect_released(a, batch.token);
    }
    const std::int32_t s = get(a, made_key, batch, 5'000'000, &e, FEEDLANE_GET_MAKE);
    if (s == FEEDLANE_OK) expect_released(a, batch.token);
    else if (s == FEEDLANE_ABSENT)
      expect_ok("give up", feedlane_arena_drop(a, made_key, std::strlen(made_key), patience_ns, &e), e);
    else if (s != FEEDLANE_TIMEOUT) chaos::die("get", e);
    chaos::nap(1'000'000);
  }
  expect("destroy", feedlane_arena_destroy(&a), FEEDLANE_OK);
  std::printf("the member beside received %lld answers, each whole\n", static_cast<long long>(answers));
  return 0;
}

// ---- the owner, and who leads the members ----

class Leader {
 public:
  explicit Leader(const std::string& path) : path_(path) {
    auto config = feedlane::test::fresh<feedlane_arena_config>();
    config.bytes = arena_bytes;
    config.path = path_.c_str();
    feedlane::test::Error e;
    expect_ok("create", feedlane_arena_create(&config, &a_, &e), e);
    beside_ = stress::start_again({"arena_kills_stress", "beside", path_, ""}, STDERR_FILENO, nullptr, false);
    server_ = std::thread([this] { serve(); });
    (void)look(a_, beside_key, patience_ns);
    base_bytes_ = arenas::stats_of(a_).used_bytes;
  }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;
  ~Leader() = default;

  // Kills a member in this operation after so many steps. False: the operation came to its end before.
  bool kill(Op op, stress::Unit unit, std::uint64_t steps) {
    (void)::alarm(60 * static_cast<unsigned>(feedlane::test::slowness()));
    life_++;
    const bool is_once = op == Op::join || op == Op::map || op == Op::leave;
    std::uint64_t nth = is_once ? 0 : random_(3);
    Word w, before;
    stress::Led led({"arena_kills_stress", "killed", path_, std::to_string(life_),
                     op == Op::leave ? std::to_string(random_(3)) : "-1"},
                    STDERR_FILENO);
    do {
      before = w;
      const auto word = led.run();
      if (!word) stress::die("a member ended by itself: its wait status", led.end_status(), SIGKILL);
      w = Word::unpack(*word);
      known_.see(w);
    } while (w.op != op || w.is_done || nth-- != 0);
    const stress::Led::Walk walk = led.walk(unit, steps);
    if (walk.word) known_.see(Word::unpack(*walk.word));
    led.kill();
    Tally& t = tallies_[op];
    t.kills++;
    t.whole += walk.word ? 1 : 0;
    t.length.take(unit, walk);
    last_ = std::string(names[static_cast<std::size_t>(op)]) + " after " + std::to_string(walk.steps);
    check(walk.word.has_value() ? Op::none : op, w.round);
    if (++kills_ == 50) first_ = stress::footprint();
    return !walk.word.has_value();
  }
  void carry_out(const stress::Plan& plan, Op op) {
    plan.carry_out(names[static_cast<std::size_t>(op)], 16, random_, tallies_[op].length,
                   [&](stress::Unit unit, std::uint64_t steps) { return kill(op, unit, steps); });
  }

  void finish() {
    (void)::alarm(60 * static_cast<unsigned>(feedlane::test::slowness()));
    if (kills_ > 50)  // all of the arena may have been mapped here meanwhile
      stress::check_growth(first_, stress::footprint(),
                           {.resident_kib = arena_bytes / 1024 + 2048, .descriptors = 2, .mappings = 2});
    expect("put", put(a_, stop_key, 1), FEEDLANE_OK);
    int status = -1;
    if (::waitpid(beside_, &status, 0) != beside_ || status != 0)
      stress::die("the end of the member beside", static_cast<std::uint64_t>(status), 0);
    for (const char* key : {stop_key, beside_key}) drop(key);
    arenas::expect_empty(a_);
    is_over_.store(true, std::memory_order_relaxed);
    (void)feedlane_loader_interrupt(a_);
    server_.join();
    expect("destroy", feedlane_arena_destroy(&a_), FEEDLANE_OK);
    (void)::alarm(0);
    for (const auto& [op, t] : tallies_)
      std::printf("%-12s %5llu kills, %llu whole; %s\n", names[static_cast<std::size_t>(op)],
                  static_cast<unsigned long long>(t.kills), static_cast<unsigned long long>(t.whole),
                  t.length.text().c_str());
    std::printf("%llu kills, %llu entries received\n", static_cast<unsigned long long>(kills_),
                static_cast<unsigned long long>(received_total_));
  }

 private:
  struct Tally {
    std::uint64_t kills = 0, whole = 0;
    stress::Length length;
  };
  // What the member of this life has certainly done.
  struct Known {
    std::int64_t published = -1;  // the newest round of its own key
    std::int64_t made = -1;       // the round of the made key; -1: there is none
    std::int64_t sent = 0;        // entries

    void see(const Word& w) {
      if (w.op == Op::join && !w.is_done) *this = {};
      if (!w.is_done) return;
      if (w.op == Op::publish) published = w.round;
      if (w.op == Op::publish_made) made = w.round;
      if (w.op == Op::drop) made = -1;
      if (w.op == Op::send) sent = w.round + 1;
    }
  };

  // `in`: the operation that was cut short; none: none was.
  void check(Op in, std::int64_t round) {
    // The owner has seen its end, and has handled all that it had sent.
    await("the end of a killed member", [](const feedlane_arena_stats& s) { return s.members == 2; });
    const auto found_or_none = [&](const char* key, std::int64_t sure, bool may_be_newer, bool may_be_gone) {
      const std::int64_t found = look(a_, key, 0);
      const std::int64_t needed = sure < 0 ? nothing : first_in(life_, sure);
      const bool is_newer = may_be_newer && found == first_in(life_, round);
      if (found != needed && !is_newer && !(may_be_gone && found == nothing))
        stress::die(("the entry " + std::string(key) + " after a kill in " + last_).c_str(),
                    static_cast<std::uint64_t>(found), static_cast<std::uint64_t>(needed));
      return found != nothing;
    };
    if (found_or_none(own_key, known_.published, in == Op::publish, false)) drop(own_key);
    (void)found_or_none(made_key, known_.made, in == Op::publish_made, in == Op::drop);
    // The right to make it is free again, even if the member had it; the one beside has it now and then.
    auto batch = feedlane::test::fresh<feedlane_batch>();
    feedlane::test::Error e;
    const std::int32_t s = get(a_, made_key, batch, patience_ns, &e, FEEDLANE_GET_MAKE);
    if (s != FEEDLANE_OK && s != FEEDLANE_ABSENT) chaos::die(("make after a kill in " + last_).c_str(), e);
    if (s == FEEDLANE_OK) expect_released(a_, batch.token);
    drop(made_key);
    const std::int64_t sent = known_.sent;
    await("entries that a killed member had sent", [&](const feedlane_arena_stats&) { return received() >= sent; });
    if (received() > sent + (in == Op::send ? 1 : 0))
      stress::die(("entries sent before a kill in " + last_).c_str(), static_cast<std::uint64_t>(received()),
                  static_cast<std::uint64_t>(sent));
    await("a killed member's leases", [](const feedlane_arena_stats& stats) { return stats.leased == 0; });
    await("a killed member's memory",
          [&](const feedlane_arena_stats& stats) { return stats.entries == 1 && stats.used_bytes == base_bytes_; });
  }
  void drop(const char* key) { arenas::drop(a_, key); }
  template <class F>
  void await(const char* what, F&& holds) {
    arenas::await(a_, std::string(what) + ", after a kill in " + last_, holds);
  }
  // Entries of this life's member that have come.
  std::int64_t received() {
    const std::scoped_lock lock(mutex_);
    return received_life_ == life_ ? received_ : 0;
  }

  // Receives what members send, and answers each entry with the same numbers, to all members.
  void serve() {
    auto batch = feedlane::test::fresh<feedlane_batch>();
    feedlane::test::Error e;
    while (!is_over_.load(std::memory_order_relaxed)) {
      const std::int32_t s = feedlane_arena_receive(a_, FEEDLANE_FOREVER, &batch, &e);
      if (s == FEEDLANE_INTERRUPTED) continue;
      expect_ok("receive", s, e);
      const std::int64_t first = first_of(batch);
      const std::int64_t length = batch.tensors[0].shape[0];
      expect_released(a_, batch.token);
      {
        const std::scoped_lock lock(mutex_);
        if (received_life_ != first >> 20) received_life_ = first >> 20, received_ = 0;
        expect("the next entry of a member", first, first_in(received_life_, received_));
        expect("its length", length, length_in(received_));
        received_++, received_total_++;
      }
      expect_ok("put", put(a_, "", first, length, patience_ns, &e), e);
    }
  }

  std::string path_;
  feedlane_arena* a_ = nullptr;
  pid_t beside_ = -1;
  stress::Random random_{0xa5e7a};
  std::int64_t life_ = 0;
  Known known_;
  std::string last_ = "none";
  std::uint64_t kills_ = 0, base_bytes_ = 0;
  std::map<Op, Tally> tallies_;
  stress::Footprint first_;
  std::atomic<bool> is_over_{false};
  std::mutex mutex_;
  std::int64_t received_life_ = 0, received_ = 0;
  std::uint64_t received_total_ = 0;
  std::thread server_;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> arguments(argv, argv + argc);
  if (argc > 3 && arguments[1] == "killed") return be_killed(arguments[2], std::atoll(argv[3]), std::atoll(argv[4]));
  if (argc > 3 && arguments[1] == "beside") return be_beside(arguments[2]);
  (void)::setenv("LD_BIND_NOW", "1", 1);  // else much of what is walked through is the dynamic linker
  const stress::Plan plan = stress::Plan::of(arguments, 2);
  char folder[] = "/tmp/feedlane-kills.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  {
    Leader leader(std::string(folder) + "/arena");
    for (std::size_t op = 1; op < names.size(); op++) leader.carry_out(plan, static_cast<Op>(op));
    leader.finish();
  }
  (void)::rmdir(folder);
  return 0;
}
