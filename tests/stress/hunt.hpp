// SPDX-License-Identifier: Apache-2.0
// A thread of the trainer that starts workers for its places and kills them, one after another, each at an instruction that
// was chosen. One more worker is left alone, so that the epoch gets on.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nursery.hpp"
#include "ring/spsc.hpp"
#include "shared.hpp"
#include "shm/segment.hpp"

namespace hunt {

// What a worker does. `ring` is the end of a commit, from the instruction on with which the result is there: the doorbell,
// and what follows; `grow` is an allocation beyond what was reserved of its slot.
enum class Op : std::uint8_t { none, attach, ready, receive, grow, allocate, commit, ring, fail, detach };
constexpr std::array<const char*, 10> names{"none",     "attach", "ready", "receive", "grow",
                                            "allocate", "commit", "ring",  "fail",    "detach"};
inline Op op_of(const std::string& name) {
  const auto found = std::find(names.begin() + 1, names.end(), name);
  return found == names.end() ? Op::none : static_cast<Op>(found - names.begin());
}

// What a worker says before each operation, and, with Op::none, after it.
struct Word {
  Op op;
  bool in_hand;
  std::int64_t epoch, batch, attempt;

  [[nodiscard]] std::uint64_t pack() const {
    return static_cast<std::uint64_t>(op) | std::uint64_t{in_hand} << 8 | static_cast<std::uint64_t>(attempt) << 9 |
           static_cast<std::uint64_t>(batch) << 24 | static_cast<std::uint64_t>(epoch) << 44;
  }
  static Word unpack(std::uint64_t w) {
    const auto bits = [&](int from, int count) {
      return static_cast<std::int64_t>(w >> from & ((std::uint64_t{1} << count) - 1));
    };
    return {static_cast<Op>(bits(0, 8)), bits(8, 1) != 0, bits(44, 20), bits(24, 20), bits(9, 15)};
  }
};

struct Kill {
  Op op;
  Word at;  // what it said before the operation; of a receive that was whole, after it
  std::uint64_t steps;
  bool committed;  // in this operation, before the kill
  bool whole;      // the operation had come to its end
};

// Instructions and actions of an operation, of those that were walked through whole.
struct Length {
  std::uint64_t walks = 0;
  std::uint64_t longest = 0;  // in instructions
  std::uint64_t actions = 0;

  void take(Op op, stress::Unit unit, std::uint64_t steps) {
    if (unit == stress::Unit::action) {
      actions = std::max(actions, steps);
      return;
    }
    // Now and then an allocation has to grow too, which is another operation: for it the shortest counts.
    longest = walks++ == 0 ? steps : op == Op::allocate ? std::min(longest, steps) : std::max(longest, steps);
  }
};
using Lengths = std::array<Length, names.size()>;

// Where the next one is to be killed.
class Choice {
 public:
  struct Pick {
    Op op;
    stress::Unit unit;
    std::uint64_t steps;
  };
  virtual ~Choice() = default;
  virtual Pick next(const Lengths& lengths) = 0;
  // False: that was the last one.
  virtual bool go_on(const Kill& last) = 0;
};

// Every operation in its turn, at any instruction of it. Those that take long by single steps come less often.
class AtRandom : public Choice {
 public:
  AtRandom(std::uint64_t kills, bool grows) : left_(kills), grows_(grows) {}
  Pick next(const Lengths& lengths) override {
    do turn_++;
    while (is_left_out());
    const Length& l = lengths[static_cast<std::size_t>(op())];
    if (l.walks == 0) return {op(), stress::Unit::instruction, UINT64_MAX};
    // Half of the rings end where they begin: a store that comes too late for the result would be there.
    if (op() == Op::ring && random_(2) == 0) return {op(), stress::Unit::instruction, random_(16)};
    return {op(), stress::Unit::instruction,
            random_(l.longest + l.longest / 8 + 1)};  // perhaps there is a longer way than those seen
  }
  bool go_on(const Kill&) override { return --left_ != 0; }

 private:
  static constexpr std::uint64_t ops = names.size() - 1;
  [[nodiscard]] Op op() const { return static_cast<Op>(turn_ % ops + 1); }
  // Attaching takes ten times as long as the others, and growing, which reads the system's accounts, a hundred times.
  [[nodiscard]] bool is_left_out() const {
    const std::uint64_t round = turn_ / ops;
    return (op() == Op::attach && round % 3 != 0) || (op() == Op::grow && (!grows_ || round % 9 != 0));
  }
  std::uint64_t left_;
  bool grows_;
  std::uint64_t turn_ = UINT64_MAX;
  stress::Random random_{0x5eed5eed};
};

// One operation, after 0, 1, 2 ... instructions or actions, until it was whole a few times in a row: it isn't always of one
// length.
class Every : public Choice {
 public:
  Every(Op op, stress::Unit unit) : op_(op), unit_(unit) {}
  Pick next(const Lengths&) override { return {op_, unit_, steps_++}; }
  bool go_on(const Kill& last) override {
    whole_ = last.whole ? whole_ + 1 : 0;
    return whole_ < (unit_ == stress::Unit::action ? 10 : 100);
  }

 private:
  Op op_;
  stress::Unit unit_;
  std::uint64_t steps_ = 0;
  int whole_ = 0;
};

// One choice after another.
class InTurn : public Choice {
 public:
  void add(std::unique_ptr<Choice> choice) { choices_.push_back(std::move(choice)); }
  Pick next(const Lengths& lengths) override { return choices_.front()->next(lengths); }
  bool go_on(const Kill& last) override {
    if (!choices_.front()->go_on(last)) choices_.pop_front();
    return !choices_.empty();
  }

 private:
  std::deque<std::unique_ptr<Choice>> choices_;
};

inline std::unique_ptr<Choice> every(Op op, stress::Unit unit) {
  return op == Op::none ? nullptr : std::make_unique<Every>(op, unit);
}
// Each operation at every action, then at instructions drawn at random. `ring` is a part of `commit`.
inline std::unique_ptr<Choice> all(std::uint64_t random_kills, bool grows) {
  auto both = std::make_unique<InTurn>();
  for (std::size_t op = 1; stress::knows_actions && op < names.size(); op++)
    if (static_cast<Op>(op) != Op::ring) both->add(every(static_cast<Op>(op), stress::Unit::action));
  both->add(std::make_unique<AtRandom>(random_kills, grows));
  return both;
}

// The loader's own result lanes, as a monitor sees them: whether a worker that stands still has committed.
class LaneView {
 public:
  LaneView() {
    feedlane::Error error;
    const int control = memfd_named(feedlane::shm::control_name);
    const int data = memfd_named(feedlane::shm::data_name);
    if (segments_.watch(control, data, error) != FEEDLANE_OK) stress::die(error.text, 0, 1);
  }
  // Grows with every result of the worker at this place.
  [[nodiscard]] std::uint64_t results(std::int32_t place) const { return newest(place).sequence; }
  // The newest result declines a task that the trainer had taken back: a worker that receives says so.
  [[nodiscard]] bool is_declined(std::int32_t place) const { return newest(place).status == FEEDLANE_ABANDONED; }

 private:
  static int memfd_named(const std::string& name) {
    for (int fd = 3; fd < 100; fd++) {
      char target[64] = {};
      const std::string path = "/proc/self/fd/" + std::to_string(fd);
      if (::readlink(path.c_str(), target, sizeof target - 1) > 0 && target == "/memfd:" + name + " (deleted)")
        return fd;
    }
    stress::die(name.c_str(), 0, 1);
  }
  struct Newest {
    std::uint64_t sequence = 0;
    std::int32_t status = FEEDLANE_OK;
  };
  [[nodiscard]] Newest newest(std::int32_t place) const {
    const auto& geometry = segments_.plan().geometry;
    const feedlane::ring::Cells cells{segments_.result_lane(static_cast<std::uint32_t>(place)),
                                      feedlane::shm::loader_cell_bytes, geometry.ring_capacity};
    Newest found;
    for (std::uint64_t i = 0; i < geometry.ring_capacity; i++) {
      const std::uint64_t sequence = cells.sequence(i).load(std::memory_order_acquire);
      if (sequence <= found.sequence) continue;
      feedlane::shm::ResultMessage result;
      std::memcpy(&result, cells.message(i), sizeof result);
      found = {sequence, result.status};
    }
    return found;
  }
  feedlane::shm::Segments segments_;
};

constexpr std::int32_t places = 2;  // of the one that is left alone, and of its neighbour

struct Offer {
  std::int32_t place = -1;
  std::int32_t fd = -1;
};

class Hunter {
 public:
  explicit Hunter(Choice& choice) : choice_(choice) {
    if (::pipe2(offers_, O_CLOEXEC) != 0) stress::die("pipe", 0, 1);
    (void)::setenv("LD_BIND_NOW", "1", 1);  // else most of what is walked through is the dynamic linker
  }
  Hunter(const Hunter&) = delete;
  Hunter& operator=(const Hunter&) = delete;
  ~Hunter() = default;

  // When the loader is there.
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  // A place to fill; its descriptor is closed here.
  void offer(const Offer& o) const {
    if (::write(offers_[1], &o, sizeof o) != sizeof o) stress::die("write", 0, sizeof o);
  }
  [[nodiscard]] bool is_done() const { return done_.load(std::memory_order_relaxed); }  // a flag by itself
  [[nodiscard]] std::uint64_t kills() const { return count_.load(std::memory_order_relaxed); }
  // When the loader is gone.
  std::deque<Kill> finish() {
    (void)::close(offers_[1]);
    thread_.join();
    (void)::close(offers_[0]);
    return std::move(kills_);
  }
  [[nodiscard]] const Lengths& lengths() const { return lengths_; }

 private:
  void run() {
    const stress::OneProcessor processor;
    const LaneView lanes;
    Offer o;
    pid_t left_alone = -1;
    while (::read(offers_[0], &o, sizeof o) == sizeof o) {
      if (left_alone < 0)
        left_alone = stress::start_again(arguments(o.fd, "-1", "free"), o.fd, &processor.all(), false);
      else if (!is_done()) hunt(lanes, o);
      (void)::close(o.fd);
    }
    int status = -1;
    if (::waitpid(left_alone, &status, 0) != left_alone || status != 0)
      stress::die("the end of the worker that was left alone", static_cast<std::uint64_t>(status), 0);
  }

  void hunt(const LaneView& lanes, const Offer& o) {
    const Choice::Pick pick = choice_.next(lengths_);
    const Op op = pick.op == Op::ring ? Op::commit : pick.op;
    // Which of the worker's operations of this kind; when it is to leave.
    const bool has_many = op != Op::attach && op != Op::ready && op != Op::detach;
    std::uint64_t nth = has_many && op != Op::grow ? random_(3) : 0;  // only a slot's first allocation grows for sure
    const std::string leave = op == Op::detach ? std::to_string(random_(3)) : "-1";
    stress::Led worker(arguments(o.fd, leave, random_(2) == 0 && op == Op::detach ? "in-hand" : ""), o.fd);
    Word at{};
    do {
      const auto word = worker.run();
      if (!word) stress::die("a worker ended by itself: its wait status", worker.end_status(), SIGKILL);
      at = Word::unpack(*word);
    } while (at.op != op || nth-- != 0);
    kill(worker, lanes, o.place, pick, at);
  }

  void kill(stress::Led& worker, const LaneView& lanes, std::int32_t place, const Choice::Pick& pick, const Word& at) {
    const std::uint64_t before = lanes.results(place);
    const auto has_result = [&] { return lanes.results(place) != before; };
    if (pick.op == Op::ring)
      while (!has_result())
        if (worker.walk(stress::Unit::instruction, 1).word) stress::die("a commit without a result", 0, 1);
    const stress::Led::Walk walk = worker.walk(pick.unit, pick.steps);
    // Once a worker has said that it leaves, the trainer prepares the lane's cells for the next one.
    const bool committed =
        pick.op != Op::detach && has_result() && !(pick.op == Op::receive && lanes.is_declined(place));
    worker.kill();
    if (walk.word) lengths_[static_cast<std::size_t>(pick.op)].take(pick.op, pick.unit, walk.steps);
    const bool has_task = pick.op == Op::receive && walk.word.has_value();
    kills_.push_back({pick.op, has_task ? Word::unpack(*walk.word) : at, walk.steps, committed, walk.word.has_value()});
    count_.fetch_add(1, std::memory_order_relaxed);
    if (!choice_.go_on(kills_.back())) done_.store(true, std::memory_order_relaxed);
  }

  static std::vector<std::string> arguments(int fd, const std::string& leave, const std::string& how) {
    return {"kill_sampling_stress", "worker", std::to_string(fd), leave, how};
  }

  Choice& choice_;
  Lengths lengths_{};
  std::deque<Kill> kills_;
  stress::Random random_{0xfeed};
  int offers_[2] = {-1, -1};
  std::atomic<bool> done_{false};
  std::atomic<std::uint64_t> count_{0};
  std::thread thread_;
};

inline void print(const std::deque<Kill>& kills, const Lengths& lengths) {
  std::printf("%-9s %6s %13s %8s %12s %10s %11s\n", "in", "kills", "instructions", "actions", "uncommitted",
              "committed", "at the end");
  for (std::size_t op = 1; op < names.size(); op++) {
    std::array<unsigned long long, 4> n{};
    for (const Kill& k : kills) {
      if (k.op != static_cast<Op>(op)) continue;
      n[0]++;
      if (k.at.in_hand) n[k.committed ? 2 : 1]++;
      if (k.whole) n[3]++;
    }
    std::printf("%-9s %6llu %13llu %8llu %12llu %10llu %11llu\n", names[op], n[0],
                static_cast<unsigned long long>(lengths[op].longest),
                static_cast<unsigned long long>(lengths[op].actions), n[1], n[2], n[3]);
  }
}

}  // namespace hunt
