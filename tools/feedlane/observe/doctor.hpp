// SPDX-License-Identifier: Apache-2.0
// What `feedlane doctor` finds: checks of the machine, and the state of a running loader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arenas.hpp"
#include "doctor_system.hpp"
#include "loaders.hpp"

namespace observe {

// The exit status of the command is that of the worst state.
enum class State { ok = 0, warning = 1, problem = 2 };
const char* word_of(State state);
inline State worse(State a, State b) { return a < b ? b : a; }

// ---- the machine ----

// One thing that the library needs of the machine.
struct Check {
  const char* name = "";
  State state = State::ok;
  Json found;             // a number, a word, or null: unknown
  Json needed;            // null: nothing is needed, or it cannot be known
  const char* unit = "";  // of both, if they are numbers
  std::string note;       // how it came about
  std::string advice;     // the command or setting that mends it, or empty
};

// What the loaders that run need of the machine, all together.
struct Demand {
  std::int64_t workers = 0;
  std::uint64_t data_bytes = 0;         // the largest data segment
  std::uint64_t small_pages = 0;        // the most memory of a data segment that could have huge pages and has none
  std::uint64_t throttled_ns = 0;       // for how long the processor quota held the process back
  std::uint64_t interval_ns = 0;        // in this time; 0: not measured
  bool is_short_of_processors = false;  // some loader is bound by them
};

// Limits, memory and processors.
void check_limits(const System& system, const Demand& demand, std::vector<Check>& out);
// The kernel, what it offers, and its settings.
void check_kernel(const System& system, const Demand& demand, std::vector<Check>& out);

// ---- a loader ----

// Something that a loader suffers from.
struct Finding {
  const char* kind = "";
  State state = State::warning;
  std::int32_t worker = -1;
  std::string text;
  std::string advice;   // or empty
  std::string command;  // that shows more, or empty
};

// One worker over the interval.
struct WorkerReport {
  feedlane_worker_stats now{};
  std::int64_t pid = 0;       // in this PID namespace; 0: unknown
  ProcessState process;       // of a thread: of its process
  std::uint64_t tasks = 0;    // in the interval
  std::uint64_t mean_ns = 0;  // work of a task in the interval, or, without one, in its life; 0: none yet
  std::uint64_t task_ns = 0;  // for how long it has had its task in hand; 0: it has none
  std::uint64_t queued = 0;   // batches that were sent to it and that it has not begun
  bool was_asleep = false;    // in uninterruptible sleep at the beginning too, with the same task
};

// A loader over the interval.
struct LoaderReport {
  std::int64_t pid = 0;
  int nth = 0;
  std::string program;
  feedlane_loader_info info{};
  feedlane_stats stats{};
  feedlane_timings timings{};
  feedlane_diagnosis diagnosis{};
  ProcessState trainer;
  bool trainer_was_asleep = false;  // in uninterruptible sleep at the beginning too, with the same batch
  std::uint64_t at_ns = 0;          // when it was looked at
  std::vector<WorkerReport> workers;
  // Next waits for a batch of this worker. -1: it does not wait, or it is not known that batches are yielded in order.
  std::int32_t awaited = -1;
  std::vector<feedlane_batch_record> held;  // the trainer holds them
  std::vector<feedlane_error_record> errors;
  std::vector<Finding> findings;
};

// An arena over the interval.
struct ArenaReport {
  Arena arena;
  double seconds = 0;  // the interval's length
  std::vector<Finding> findings;
};

// What is read at the beginning of the interval.
struct Observation {
  explicit Observation(Found loader);
  Found found;
  std::vector<feedlane_worker_stats> workers;
  std::vector<char> states;  // of the workers' processes
  char trainer = 0;          // likewise
  std::uint64_t yielded_ns = 0;
};

// Reads a loader at the end of the interval, and says what it suffers from.
LoaderReport look_at(Observation& observation);
// Adds the findings to what was read.
void examine(LoaderReport& report);
void examine(ArenaReport& report);

// ---- output ----

Json to_json(const Check& check);
Json to_json(const Finding& finding);
Json to_json(const LoaderReport& report);
Json to_json(const ArenaReport& report);
void print(const std::vector<Check>& checks);
void print(const Finding& finding);
void print(const LoaderReport& report);
void print(const ArenaReport& report);

}  // namespace observe
