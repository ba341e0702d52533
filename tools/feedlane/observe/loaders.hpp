// SPDX-License-Identifier: Apache-2.0
// Finds the loaders that a command is about, and what all commands say of one.
#pragma once

#include <cstdint>
#include <feedlane/monitor.hpp>
#include <feedlane/progress.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace observe {

using Json = nlohmann::ordered_json;

// A loader in process `pid`, by which this command sees it.
struct Found {
  std::int64_t pid = 0;
  int nth = 0;
  std::string program;  // its command line's first words
  feedlane::Monitor monitor;
};

// Processes of this user (root: all), in order of pid, without this one. Writes on standard error why they cannot be listed.
std::vector<std::int64_t> processes();
// The loaders of one process. `error` says why the process, or one of its loaders, cannot be read; its code is 0 if none is
// missing. E_PEER_DEAD: there is no such process. E_OS: it belongs to another user. E_ABI: another version's loader.
std::vector<Found> loaders_of(std::int64_t pid, feedlane::Error& error);
// Whether the list that came with this error may lack loaders of a process that runs: there was no descriptor left, for example.
// E_ABI and E_CORRUPT are about one loader; the others are in the list.
bool is_cut_short(const feedlane::Error& error);
// Whether this command lacked descriptors or memory to look.
bool is_shortage(const feedlane::Error& error);
// Whether an error says that a process has more than what is listed: a shortage, or a loader or ring of another version or a damaged
// one. Other errors mean that the process has ended, or may not be looked at.
bool is_unreadable(const feedlane::Error& error);
// A loader or ring that cannot be read, or a process of which this command lacked descriptors or memory to find them all.
struct Unreadable {
  std::int64_t pid = 0;
  std::string program;
  feedlane::Error error;
};

// The loaders of all processes, each once: not also in forked workers, which inherit its descriptors. `unreadable` is added to.
std::vector<Found> all_loaders(std::vector<Unreadable>& unreadable);
// Those of `pid`, or of all processes if it is 0. Writes on standard error what cannot be read, and why `pid` has none. `is_short`:
// some were left out for lack of descriptors or memory.
std::vector<Found> find_loaders(std::int64_t pid, bool& is_short);

// A process's number in its own PID namespace.
std::int64_t pid_as_it_sees_itself(std::int64_t pid);
// The command line of a process, printable, at most `most` characters, or its name in brackets.
std::string program_of(std::int64_t pid, std::size_t most = 60);

// ---- words ----

const char* start_name(std::int32_t start);    // "spawn", "fork", "thread", "external"
const char* state_name(std::int32_t state);    // "none", "starting", "opening", "ready", "stopping", "failed"
using feedlane::bound_name;                    // "nothing", "trainer", "data", "worker", "slots", "starting"
std::string error_name(std::int32_t code);     // "E_SAMPLE", or the number
std::string event_name(std::int32_t kind);     // "worker_died"; 0: "error"
std::string duration(double seconds);          // "250 us", "1.5 s", "3 min 10 s"
std::string bytes_text(double bytes);          // "4.0 KiB"
std::string printable(std::string_view text);  // control characters replaced by '?'
std::string json_text(const Json& value);      // one line; bytes that are not UTF-8 are replaced
Json or_null(std::int64_t number);             // null for the -1 that stands for "none" or "unknown"
std::uint64_t now_ns();                        // CLOCK_MONOTONIC
std::uint64_t unix_time_ns();                  // CLOCK_REALTIME
// The largest duration in bucket b: 2^b - 1 ns. The last bucket has no upper bound; its number is the same power.
std::uint64_t bucket_bound(int b);
// The bound of the bucket in which the fraction `p` (0 to 1) of all durations is reached, ns; 0: empty.
std::uint64_t percentile(const feedlane_histogram& h, double p);

}  // namespace observe
