// SPDX-License-Identifier: Apache-2.0
// The doorbell's protocol, explored exhaustively: two publishers and a sleeper on a machine with store buffers (x86's
// memory model, the strongest that Feedlane runs on; what fails here fails everywhere). Any publisher may stop for ever at
// any step, as one that is stopped or killed does. A wake-up is lost if the sleeper sleeps for good although a publisher
// that came to the end of its publication has left a message that was not taken.
//
// The model is of the protocol in ring/doorbell.hpp, step by step; the variants leave out one of its rules each.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

namespace {

struct Rules {
  bool publisher_fences = true;
  bool sleeper_fences = true;
  bool publisher_clears_flag = false;  // the tempting variant: ring once only
  bool sleeper_sweeps_again = true;
  bool sleeper_passes_barrier =
      false;  // each publisher's processor has been without stores on the way out since it began
};

constexpr int publishers = 2;
constexpr int messages_each = 2;

// Shared memory: one message counter a publisher, and the flag. The eventfd is no memory: writes to it are seen at once.
enum Word : std::uint8_t { flag_word = publishers };
struct Store {
  std::uint8_t word, value;
  auto operator<=>(const Store&) const = default;
};

struct State {
  std::array<std::uint8_t, publishers + 1> memory{};
  std::array<std::vector<Store>, publishers + 1> buffers;  // a FIFO for each process; the last is the sleeper's
  std::array<std::uint8_t, publishers> at{};               // program counters
  std::array<std::uint8_t, publishers> sent{};
  std::array<bool, publishers> stopped{};  // for ever
  std::array<bool, publishers> passed{};   // the barrier
  std::uint8_t sleeper_at = 0;
  std::array<std::uint8_t, publishers> taken{};
  bool event = false;
  auto operator<=>(const State&) const = default;
};

constexpr int sleeper = publishers;

std::uint8_t load(const State& s, int process, std::uint8_t word) {
  for (auto i = s.buffers[static_cast<std::size_t>(process)].rbegin();
       i != s.buffers[static_cast<std::size_t>(process)].rend(); ++i)
    if (i->word == word) return i->value;
  return s.memory[word];
}

void store(State& s, int process, std::uint8_t word, std::uint8_t value) {
  s.buffers[static_cast<std::size_t>(process)].push_back({word, value});
}

bool buffered(const State& s, int process) { return !s.buffers[static_cast<std::size_t>(process)].empty(); }

// The sleeper looks at every lane and takes what it sees. True if there was something.
bool sweep(State& s) {
  bool found = false;
  for (std::uint8_t p = 0; p < publishers; p++) {
    const std::uint8_t seen = load(s, sleeper, p);
    found = found || seen != s.taken[p];
    s.taken[p] = seen;
  }
  return found;
}

class Model {
 public:
  explicit Model(Rules rules) : rules_(rules) {}

  // Whether some run loses a wake-up. Counts the states on the way.
  bool loses_a_wakeup() {
    std::set<State> seen;
    std::deque<State> todo{State{}};
    seen.insert(State{});
    while (!todo.empty()) {
      const State s = todo.front();
      todo.pop_front();
      std::vector<State> next;
      for (int p = 0; p < publishers; p++) publisher_steps(s, p, next);
      sleeper_steps(s, next);
      for (int process = 0; process <= publishers; process++) drain(s, process, next);
      if (sleeps_on_a_message(s) && next_can_wake(s) == false) return true;
      for (State& n : next)
        if (seen.insert(n).second) todo.push_back(std::move(n));
    }
    states = seen.size();
    return false;
  }
  std::size_t states = 0;

 private:
  // 0 publish, 1 fence, 2 look at the flag, 3 (variant: clear it), 4 write the eventfd, then again.
  void publisher_steps(const State& s, int p, std::vector<State>& out) const {
    const auto i = static_cast<std::size_t>(p);
    if (s.stopped[i]) return;
    State stop = s;
    stop.stopped[i] = true;
    out.push_back(stop);
    State n = s;
    switch (s.at[i]) {
      case 0:
        if (s.sent[i] == messages_each) return;
        n.sent[i]++;
        store(n, p, static_cast<std::uint8_t>(p), n.sent[i]);
        n.at[i] = 1;
        break;
      case 1:
        if (rules_.publisher_fences && buffered(s, p)) return;  // waits until its stores are out
        n.at[i] = 2;
        break;
      case 2: n.at[i] = load(s, p, flag_word) == 0 ? 0 : rules_.publisher_clears_flag ? 3 : 4; break;
      case 3:
        store(n, p, flag_word, 0);
        n.at[i] = 4;
        break;
      case 4:
        if (buffered(s, p)) return;  // a system call is a fence
        n.event = true;
        n.at[i] = 0;
        break;
      default: return;
    }
    out.push_back(n);
  }

  // 0 sweep, 1 set the flag, 2 fence, 6 (variant: barrier), 3 sweep again, 4 asleep, 5 clear the flag and drain the eventfd.
  void sleeper_steps(const State& s, std::vector<State>& out) const {
    State n = s;
    switch (s.sleeper_at) {
      case 0: n.sleeper_at = sweep(n) ? 0 : 1; break;
      case 1:
        store(n, sleeper, flag_word, 1);
        n.sleeper_at = 2;
        break;
      case 2:
        if (rules_.sleeper_fences && buffered(s, sleeper)) return;
        n.sleeper_at = rules_.sleeper_passes_barrier ? 6 : 3;
        n.passed = {};
        break;
      case 6:  // processors are interrupted one by one
        for (int p = 0; p < publishers; p++) {
          State one = s;
          one.passed[static_cast<std::size_t>(p)] = true;
          if (!s.passed[static_cast<std::size_t>(p)] && !buffered(s, p)) out.push_back(one);
        }
        if (s.passed != std::array<bool, publishers>{true, true}) return;
        n.sleeper_at = 3;
        break;
      case 3: n.sleeper_at = rules_.sleeper_sweeps_again && sweep(n) ? 5 : 4; break;
      case 4:
        if (!s.event) return;
        n.sleeper_at = 5;
        break;
      case 5:
        n.event = false;
        store(n, sleeper, flag_word, 0);
        n.sleeper_at = 0;
        break;
      default: return;
    }
    out.push_back(n);
  }

  static void drain(const State& s, int process, std::vector<State>& out) {
    if (!buffered(s, process)) return;
    State n = s;
    auto& buffer = n.buffers[static_cast<std::size_t>(process)];
    n.memory[buffer.front().word] = buffer.front().value;
    buffer.erase(buffer.begin());
    out.push_back(n);
  }

  // A message is in memory, its publisher has finished with it (not stopped on the way: its death is told otherwise), and
  // the sleeper sleeps.
  static bool sleeps_on_a_message(const State& s) {
    if (s.sleeper_at != 4 || s.event) return false;
    for (std::size_t p = 0; p < publishers; p++)
      if (s.at[p] == 0 && s.sent[p] != 0 && s.memory[p] == s.sent[p] && s.taken[p] != s.sent[p]) return true;
    return false;
  }

  // Whether anybody is still on the way to the eventfd: publishers that go on, or may go on.
  static bool next_can_wake(const State& s) {
    for (std::size_t p = 0; p < publishers; p++) {
      const bool done = s.stopped[p] || (s.at[p] == 0 && s.sent[p] == messages_each);
      if (!done) return true;
    }
    return false;
  }

  Rules rules_;
};

}  // namespace

TEST_CASE("no interleaving loses a wake-up") {
  Model model({});
  CHECK_FALSE(model.loses_a_wakeup());
  CHECK(model.states > 10'000);
  MESSAGE("states explored: ", model.states);
}

TEST_CASE("without the publisher's fence a wake-up is lost") {
  CHECK(Model({.publisher_fences = false}).loses_a_wakeup());
}

TEST_CASE("a barrier passed by the sleeper replaces the publishers' fences") {
  Model model({.publisher_fences = false, .sleeper_passes_barrier = true});
  CHECK_FALSE(model.loses_a_wakeup());
  MESSAGE("states explored: ", model.states);
}

TEST_CASE("a barrier passed by the sleeper doesn't replace the sleeper's fence before the barrier") {
  CHECK(Model({.publisher_fences = false, .sleeper_fences = false, .sleeper_passes_barrier = true}).loses_a_wakeup());
}

TEST_CASE("without the sleeper's fence a wake-up is lost") { CHECK(Model({.sleeper_fences = false}).loses_a_wakeup()); }

TEST_CASE("without the second sweep a wake-up is lost") {
  CHECK(Model({.sleeper_sweeps_again = false}).loses_a_wakeup());
}

TEST_CASE("if a publisher clears the flag and is stopped, the wake-up of another publisher is lost") {
  CHECK(Model({.publisher_clears_flag = true}).loses_a_wakeup());
}
