// SPDX-License-Identifier: Apache-2.0
// What all measurements share: processes on processors of their own, rounds in which everything that is compared takes its
// turn, and medians.
#pragma once

#include <sys/types.h>

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
  bool quick = false;                 // shorter, for a check: fewer messages, batches and sizes
  std::string plot;                   // SVG to draw over sizes
  std::vector<std::uint64_t> bytes;   // of a batch, instead of the usual sizes
  std::vector<std::int32_t> workers;  // instead of the usual numbers
};

// Ends the program. For what a measurement can't go on from.
[[noreturn]] void fail(const std::string& what);
// For statuses of feedlane.h: E_* and anything but 0.
void check(const char* what, std::int32_t status, const feedlane_error& error);

std::int64_t now_ns();

// ---- processors ----

// The ones that this process may use, in ascending order, as they were when the program began.
const std::vector<int>& processors();
// This process and what it starts from here on: processor number `n` of them, modulo how many there are.
void pin(std::size_t n);
void unpin();

// Runs `body` in a forked process on processor `n`; its end with anything but 0 ends this program too. The parent's death
// kills it.
class Child {
 public:
  Child(std::size_t n, const std::function<void()>& body);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

 private:
  pid_t pid_;
};

// Memory that forked processes share, zeroed.
void* shared_memory(std::size_t bytes);
template <class T>
T* make_shared_object() {
  return new (shared_memory(sizeof(T))) T{};
}

// ---- rounds ----

// One figure over the rounds.
class Figure {
 public:
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] double median() const;
  [[nodiscard]] double min() const;
  [[nodiscard]] double max() const;
  [[nodiscard]] bool empty() const { return values_.empty(); }
  // Rounds side by side: the median of the quotients would hide less, but can't be recomputed from what is printed.
  [[nodiscard]] double over(const Figure& other) const { return median() / other.median(); }

 private:
  std::vector<double> values_;
};

struct Entry {
  std::string name;
  std::function<double()> measure;  // one round
  Figure figure = {};
};

// Every entry once in each round, after one round that doesn't count.
void run_rounds(std::vector<Entry>& entries, const Options& options);

// ---- reports ----

// The machine and the build, as far as they matter for a figure.
Json machine();
void print_machine();
// {"median", "min", "max"}, rounded to four digits.
Json spread(const Figure& figure);
double rounded(double value);
// For tables: "median [min .. max]"; "-" where nothing was measured.
std::string cell(const Figure& figure);

}  // namespace bench
