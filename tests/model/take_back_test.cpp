// SPDX-License-Identifier: Apache-2.0
// Taking tasks back from a worker's ring, explored exhaustively: a trainer that revokes up to twice and sends tasks in
// between, and a worker that takes them one by one, on a machine with store buffers (see doorbell_test.cpp). The worker may
// begin at any time: it may still be starting, or be at work without the trainer having heard of it. No task may be
// made by the worker after the trainer has given it to another; whatever the worker declines the trainer must be able to
// account for.
//
// The model is of TaskRing::revoke, TaskRing::set_revoked and Worker::take_task, step by step; the variants leave out one rule each.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

namespace {

struct Rules {
  bool trainer_fences = true;
  bool worker_fences = true;
  bool worker_reads_end_first = true;  // of the range, then its beginning
  bool begun_only_grows = true;        // the variant: what is in hand, nothing in between
  bool old_beginning_goes_first = true;
  bool waits_for_the_whole_range = true;  // the variant: for what was revoked in it
  bool range_grows_down = true;
  bool looks_again = true;  // the variant: who hasn't been heard of has begun nothing
};

constexpr std::uint8_t at_first = 3;  // tasks in the ring at first
constexpr std::uint8_t tasks = 5;     // ids 1 .. 5
constexpr std::uint8_t nothing = 255;

enum Word : std::uint8_t { begun_word, from_word, until_word, sent_word, answer_word, words = answer_word + tasks + 1 };
enum Answer : std::uint8_t { none, made, declined };
enum Process : std::uint8_t { trainer, worker };

struct Store {
  std::uint8_t word, value;
  auto operator<=>(const Store&) const = default;
};

struct State {
  std::array<std::uint8_t, words> memory{0, nothing, 0, at_first};
  std::array<std::vector<Store>, 2> buffers;
  // worker
  std::uint8_t worker_at = 0, task = 1, from = 0, until = 0;
  // trainer
  std::uint8_t trainer_at = 0, sent = at_first, revocations = 0, heard = 1, begin = nothing, end = 0, first = 0,
               last = 0;
  std::array<bool, tasks + 1> revoked{};
  bool wrong = false;
  auto operator<=>(const State&) const = default;
};

std::uint8_t load(const State& s, Process p, std::uint8_t word) {
  for (auto i = s.buffers[p].rbegin(); i != s.buffers[p].rend(); ++i)
    if (i->word == word) return i->value;
  return s.memory[word];
}
void store(State& s, Process p, std::uint8_t word, std::uint8_t value) { s.buffers[p].push_back({word, value}); }

class Model {
 public:
  explicit Model(Rules rules) : rules_(rules) {}

  bool goes_wrong() {
    std::set<State> seen{State{}};
    std::deque<State> todo{State{}};
    while (!todo.empty()) {
      const State s = todo.front();
      todo.pop_front();
      std::vector<State> next;
      worker_steps(s, next);
      trainer_steps(s, next);
      for (const Process p : {trainer, worker}) drain(s, p, next);
      if (s.wrong || (next.empty() && is_unfinished(s))) return true;
      for (State& n : next)
        if (seen.insert(n).second) todo.push_back(std::move(n));
    }
    states = seen.size();
    return false;
  }
  std::size_t states = 0;

 private:
  // 0 begin a task, 1 fence, 2 and 3 the range, 4 decide, 5 (variant: nothing in hand).
  void worker_steps(const State& s, std::vector<State>& out) const {
    State n = s;
    switch (s.worker_at) {
      case 0:
        if (s.task > load(s, worker, sent_word)) return;
        store(n, worker, begun_word, s.task);
        n.worker_at = 1;
        break;
      case 1:
        if (rules_.worker_fences && !s.buffers[worker].empty()) return;
        n.worker_at = 2;
        break;
      case 2:
      case 3: {
        const bool is_end = (s.worker_at == 2) == rules_.worker_reads_end_first;
        (is_end ? n.until : n.from) = load(s, worker, is_end ? until_word : from_word);
        n.worker_at++;
        break;
      }
      case 4: {
        const bool is_another_s = s.task >= s.from && s.task < s.until;
        if (!is_another_s && s.revoked[s.task]) n.wrong = true;  // two workers at one slot
        store(n, worker, static_cast<std::uint8_t>(answer_word + s.task), is_another_s ? declined : made);
        n.task++;
        n.worker_at = rules_.begun_only_grows ? 0 : 5;
        break;
      }
      case 5:
        store(n, worker, begun_word, 0);
        n.worker_at = 0;
        break;
      default: return;
    }
    out.push_back(n);
  }

  // Answers come in order. One that declines must be of a task that was revoked, or lies in the range.
  void hear(const State& s, std::vector<State>& out) const {
    if (s.heard > s.sent) return;
    const std::uint8_t answer = load(s, trainer, static_cast<std::uint8_t>(answer_word + s.heard));
    if (answer == none) return;
    State n = s;
    const bool in_range = s.heard >= s.begin && s.heard < s.end;
    if (answer == made && s.revoked[s.heard]) n.wrong = true;
    if (answer == declined && !s.revoked[s.heard] && !in_range) n.wrong = true;
    n.heard++;
    out.push_back(n);
  }

  // Whether a task of the last range is unanswered: it may still be declined, though it was left to the worker.
  [[nodiscard]] bool any_outstanding(const State& s) const {
    if (rules_.waits_for_the_whole_range) return s.heard < s.end;
    for (std::uint8_t id = s.heard; id <= s.sent; id++)
      if (s.revoked[id]) return true;
    return false;
  }

  void begin_to_revoke(const State& s, std::uint8_t first, std::vector<State>& out) const {
    State n = s;
    n.revocations++;
    n.first = first;
    n.last = s.sent;
    if (any_outstanding(s)) {  // the range grows at its end
      n.end = static_cast<std::uint8_t>(s.sent + 1);
      store(n, trainer, until_word, n.end);
      if (first < s.begin && rules_.range_grows_down) {  // one that was left before, as it was about to be begun
        n.begin = first;
        store(n, trainer, from_word, n.begin);
      }
      n.trainer_at = 3;
    } else {
      if (rules_.old_beginning_goes_first) store(n, trainer, from_word, nothing);
      n.trainer_at = 1;
    }
    out.push_back(n);
  }

  // 0 idle: hear, send, or look and begin to revoke; 1 end, 2 beginning, 3 fence, 4 look again.
  void trainer_steps(const State& s, std::vector<State>& out) const {
    State n = s;
    switch (s.trainer_at) {
      case 0: {
        hear(s, out);
        if (s.sent < tasks) {
          State sends = s;
          sends.sent++;
          store(sends, trainer, sent_word, sends.sent);
          out.push_back(sends);
        }
        const std::uint8_t begun = load(s, trainer, begun_word);
        std::uint8_t first = 0;
        for (std::uint8_t id = s.sent; id >= s.heard && id > begun; id--)
          if (!s.revoked[id]) first = id;
        if (s.revocations == 2 || first == 0) return;
        // None in hand: of one that is ready, that one is left, as it is about to begin it. Of one that is starting, is
        // opening its data set, or is stuck, it is taken too.
        if (first == s.heard) {
          begin_to_revoke(s, first, out);
          first++;
        }
        if (first <= s.sent) begin_to_revoke(s, first, out);
        return;
      }
      case 1:
        n.end = static_cast<std::uint8_t>(s.last + 1);
        store(n, trainer, until_word, n.end);
        n.trainer_at = 2;
        break;
      case 2:
        n.begin = s.first;
        store(n, trainer, from_word, n.begin);
        n.trainer_at = 3;
        break;
      case 3:
        if (rules_.trainer_fences && !s.buffers[trainer].empty()) return;
        n.trainer_at = 4;
        break;
      case 4: {
        const std::uint8_t begun = rules_.looks_again ? load(s, trainer, begun_word) : std::uint8_t{0};
        for (std::uint8_t id = s.first; id <= s.last; id++)
          if (id > begun && !s.revoked[id]) {
            n.revoked[id] = true;
            if (s.memory[answer_word + id] == made) n.wrong = true;  // it was made before
          }
        n.trainer_at = 0;
        break;
      }
      default: return;
    }
    out.push_back(n);
  }

  static void drain(const State& s, Process p, std::vector<State>& out) {
    if (s.buffers[p].empty()) return;
    State n = s;
    n.memory[n.buffers[p].front().word] = n.buffers[p].front().value;
    n.buffers[p].erase(n.buffers[p].begin());
    out.push_back(n);
  }

  static bool is_unfinished(const State& s) { return s.heard != tasks + 1; }

  Rules rules_;
};

}  // namespace

TEST_CASE("no interleaving gives a task to two workers or loses a task") {
  Model model({});
  CHECK_FALSE(model.goes_wrong());
  CHECK(model.states > 10'000);
  MESSAGE("states explored: ", model.states);
}

TEST_CASE("without the trainer's fence a task is made twice") { CHECK(Model({.trainer_fences = false}).goes_wrong()); }

TEST_CASE("without the worker's fence a task is made twice") { CHECK(Model({.worker_fences = false}).goes_wrong()); }

TEST_CASE("a worker that reads a range's beginning before its end may decline a task of its own") {
  CHECK(Model({.worker_reads_end_first = false}).goes_wrong());
}

TEST_CASE("a range whose end grows before its old beginning is removed covers too many tasks") {
  CHECK(Model({.old_beginning_goes_first = false}).goes_wrong());
}

TEST_CASE("a new range set before the last range is completely answered leaves a declined task unaccounted for") {
  CHECK(Model({.waits_for_the_whole_range = false}).goes_wrong());
}

TEST_CASE("if a range grows only at its end, the oldest task, which it left out before, is made twice") {
  CHECK(Model({.range_grows_down = false}).goes_wrong());
}

TEST_CASE("if the trainer assumes that a worker without a report has begun nothing, a task is made twice") {
  CHECK(Model({.looks_again = false}).goes_wrong());
}

TEST_CASE("a trainer that reads only the task in hand misses tasks that were begun and finished in between") {
  CHECK(Model({.begun_only_grows = false}).goes_wrong());
}
