// SPDX-License-Identifier: Apache-2.0
// What all measurements share: processes on processors of their own, rounds in which everything that is compared takes its
// turn, and medians.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "feedlane.h"

namespace bench {

using Json = nlohmann::ordered_json;

struct Options {
  int rounds = 9;
  bool json = false;
  bool quick = false;                 // shorter, for a check: fewer messages and batches
  bool tiny = false;                  // of those hardly any, for tests of the command: its figures say nothing
  bool rate_only = false;             // of handoff nothing but the loader's rate
  std::int32_t prefetch = 0;          // batches in flight for each worker of handoff, instead of the usual number
  std::string plot;                   // SVG to draw over sizes
  std::vector<std::uint64_t> bytes;   // of a batch, instead of the usual sizes
  std::vector<std::int32_t> workers;  // instead of the usual numbers
  std::vector<std::int64_t> work_us;  // of a batch, instead of the usual times
  std::int64_t trainer_us = 0;        // what the trainer of `work` does with each batch

  // How many of something a round takes.
  [[nodiscard]] std::int64_t count(std::int64_t usual, std::int64_t quickly, std::int64_t least) const {
    return tiny ? std::max(quickly / 2500, least) : quick ? quickly : usual;
  }
};

// Ends the program. For what a measurement can't go on from.
[[noreturn]] void fail(const std::string& what);
[[noreturn]] void fail_call(const char* what, std::int32_t status, const feedlane_error& error);
// For statuses of feedlane.h: E_* and anything but 0.
inline void check(const char* what, std::int32_t status, const feedlane_error& error) {
  if (status != FEEDLANE_OK) fail_call(what, status, error);
}

std::int64_t now_ns();

// ---- processors ----

// The ones that this process may use, in ascending order, as they were when the program began.
const std::vector<int>& processors();
// This thread and what it starts from here on: processor number `n` of them, modulo how many there are. Nothing after
// leave_placement_alone.
void pin(std::size_t n);
// This thread and what it starts from here on: any of them.
void unpin();
// For comparisons with programs that pin nothing.
void leave_placement_alone();
[[nodiscard]] bool placement_is_ours();
// CPU time of this thread.
std::int64_t cpu_ns();
// Returns when process `pid` has been asleep at two looks a millisecond apart, in a call of the kernel's.
void wait_until_asleep(pid_t pid);

// Runs `body` in a forked process on processor `n`; its end with anything but 0 ends this program too. The parent's death
// kills it.
class Child {
 public:
  Child(std::size_t n, const std::function<void()>& body);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Memory that forked processes share, zeroed.
void* shared_memory(std::size_t bytes);
template <class T>
T* make_shared_object() {
  return new (shared_memory(sizeof(T))) T{};
}

// Processor time of several processes: each, between `begin` and `end`, adds what its thread used.
class CpuOfAll {
 public:
  void begin() { began_ = cpu_ns(); }
  void end() { sum_->fetch_add(cpu_ns() - began_, std::memory_order_relaxed); }  // read after the processes have ended
  [[nodiscard]] double per(std::uint64_t count) const {
    return static_cast<double>(sum_->load(std::memory_order_relaxed)) / static_cast<double>(count);
  }

 private:
  std::atomic<std::int64_t>* sum_ = make_shared_object<std::atomic<std::int64_t>>();
  std::int64_t began_ = 0;
};

// Lets processes or threads on when so many have come.
class Gate {
 public:
  void pass(std::uint64_t everybody);

 private:
  std::atomic<std::uint64_t>* came_ = make_shared_object<std::atomic<std::uint64_t>>();
};

// ---- rounds ----

// One figure over the rounds.
class Figure {
 public:
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] double median() const;
  [[nodiscard]] double min() const;
  [[nodiscard]] double max() const;
  [[nodiscard]] bool empty() const { return values_.empty(); }
  [[nodiscard]] const std::vector<double>& rounds() const { return values_; }
  // Round by round: what disturbed a whole round disturbed both sides of its quotient, or of its difference.
  [[nodiscard]] Figure over(const Figure& other) const;
  [[nodiscard]] Figure minus(const Figure& other) const;
  [[nodiscard]] Figure best_with(const Figure& other) const;  // the larger of both

 private:
  std::vector<double> values_;
};

// What one round measured of a contender.
struct Measured {
  double value;
  double cpu_ns =
      0;  // processor time per message of both sides, what they spend while they wait included; 0: not measured
  // NOLINTNEXTLINE(google-explicit-constructor): a contender without processor time returns its value
  Measured(double measured, double cpu = 0) : value(measured), cpu_ns(cpu) {}
};

struct Entry {
  std::string name;
  std::function<Measured()> measure;  // one round
  Figure figure = {}, cpu_ns = {};
};

// Calls `measure(i, whether it counts)` for each i < count once in each round, in every other round from the last to the first,
// after one round that doesn't count.
void alternate(std::size_t count, const Options& options, const std::function<void(std::size_t, bool)>& measure);
// The same for entries with one figure.
void run_rounds(std::vector<Entry>& entries, const Options& options);

// ---- reports ----

// The machine and the build, as far as they matter for a figure.
Json machine();
void print_machine();
// {"median", "min", "max", "rounds"}, rounded to four digits; null where nothing was measured.
Json spread(const Figure& figure);
double rounded(double value);
// For tables: "median [min .. max]"; "-" where nothing was measured.
std::string cell(const Figure& figure);

// What a measurement answers: rows for its table, and the ratios by which it is held against a record of them (see
// tools/bench/goals.py). A ratio's name doesn't change: "ring.batched_over_spsc".
struct Report {
  Json rows = Json::array();
  Json ratios = Json::object();

  void ratio(const std::string& name, const Figure& figure) { ratios[name] = spread(figure); }
};

}  // namespace bench
