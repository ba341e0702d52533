// SPDX-License-Identifier: Apache-2.0
// `feedlane doctor`: checks the machine, running loaders and arenas, and suggests fixes.
#include "doctor.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <list>
#include <memory>
#include <thread>

#include "commands.hpp"

namespace observe {
namespace {

struct Options {
  std::int64_t pid = 0;
  double seconds = 2;
  bool json = false;
  std::string root;  // other files than the system's, for tests
};

constexpr int no_loader = 3;

// What the loaders need of the machine.
Demand demand_of(const std::vector<LoaderReport>& loaders) {
  constexpr std::uint64_t worth_huge_pages = std::uint64_t{8} << 20;
  Demand demand;
  for (const LoaderReport& r : loaders) {
    demand.workers += r.info.workers;
    demand.data_bytes = std::max(demand.data_bytes, r.stats.data_bytes);
    demand.is_short_of_processors = demand.is_short_of_processors || r.diagnosis.bound == FEEDLANE_BOUND_PROCESSORS;
    // Not the size of the segment: most of a slot may be address space without memory.
    const std::uint64_t memory = r.stats.reserved_bytes - std::min(r.stats.reserved_bytes, r.stats.control_bytes);
    if (memory >= worth_huge_pages && r.stats.huge_bytes == 0)
      demand.small_pages = std::max(demand.small_pages, memory);
  }
  return demand;
}

struct Result {
  std::vector<Check> machine;
  std::vector<LoaderReport> loaders;
  std::vector<ArenaReport> arenas;
  bool is_short = false;  // some processes could not be looked at, which was said

  [[nodiscard]] State state() const {
    State worst = State::ok;
    for (const Check& c : machine) worst = worse(worst, c.state);
    for (const LoaderReport& r : loaders)
      for (const Finding& f : r.findings) worst = worse(worst, f.state);
    for (const ArenaReport& r : arenas)
      for (const Finding& f : r.findings) worst = worse(worst, f.state);
    return worst;
  }
};

// Watches the loaders and arenas for the interval, then checks the machine for them.
Result examine_all(const Options& options, std::vector<Found> found, std::vector<Arena> arenas) {
  // What limits the process of one loader is asked of that process.
  const System system{options.root, options.pid != 0 ? std::to_string(options.pid) : "self"};
  Result result;
  Demand demand;
  if (!found.empty() || !arenas.empty()) {
    std::list<Observation> observations;
    for (Found& f : found) observations.emplace_back(std::move(f));
    const std::uint64_t throttled = throttled_ns(system);
    const std::uint64_t began = now_ns();
    std::this_thread::sleep_for(std::chrono::duration<double>(options.seconds));
    for (Observation& o : observations) result.loaders.push_back(look_at(o));
    const double seconds = static_cast<double>(now_ns() - began) * 1e-9;
    for (Arena& arena : arenas)
      if (read_again(arena)) examine(result.arenas.emplace_back(ArenaReport{std::move(arena), seconds, {}}));
    demand = demand_of(result.loaders);
    demand.interval_ns = now_ns() - began;
    demand.throttled_ns = throttled_ns(system) - throttled;
  }
  check_limits(system, demand, result.machine);
  check_kernel(system, demand, result.machine);
  return result;
}

void print_json(const Result& result) {
  Json machine = Json::array();
  for (const Check& c : result.machine) machine.push_back(to_json(c));
  Json loaders = Json::array();
  for (const LoaderReport& r : result.loaders) loaders.push_back(to_json(r));
  Json arenas = Json::array();
  for (const ArenaReport& r : result.arenas) arenas.push_back(to_json(r));
  const Json all{{"machine", std::move(machine)},
                 {"loaders", std::move(loaders)},
                 {"arenas", std::move(arenas)},
                 {"status", word_of(result.state())}};
  fmt::print("{}\n", json_text(all));
}

void print_text(const Result& result) {
  print(result.machine);
  for (const LoaderReport& r : result.loaders) print(r);
  for (const ArenaReport& r : result.arenas) print(r);
  if (result.loaders.empty() && result.arenas.empty())
    fmt::print("\n{}\n", result.is_short ? "no loader was found" : "no loader is running");
  fmt::print("\nstatus: {}\n", word_of(result.state()));
}

int run(const Options& options) {
  (void)std::signal(SIGXFSZ, SIG_IGN);  // a segment beyond RLIMIT_FSIZE is something to report
  Search search;
  std::vector<Arena> arenas;
  if (options.root.empty()) {
    search = find_loaders_quietly(options.pid);
    arenas = find_arenas(options.pid, search.unreadable);
    say_unreadable(search.unreadable);
  }
  const bool is_empty = search.loaders.empty() && arenas.empty();
  if (is_empty && options.pid != 0 && search.unreadable.empty()) say("process {} has no loader or arena", options.pid);
  if (is_empty && options.pid != 0) return no_loader;
  Result result = examine_all(options, std::move(search.loaders), std::move(arenas));
  result.is_short = search.is_short;
  if (options.json) print_json(result);
  else print_text(result);
  return static_cast<int>(result.state());
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_status) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Check the machine, your running loaders and arenas for problems, and suggest fixes");
  add_pid(*command, options->pid,
          "Check only this process's loaders (default: those of all your processes; root: all users')");
  command->add_option("--seconds", options->seconds, "Watch loaders for this many seconds (default: 2)")
      ->check(seconds_between(0.1, 3600))
      ->type_name("S");
  command->add_flag("--json", options->json, "Print one JSON value instead of text");
  command->add_option("--root", options->root)->group("");  // where /proc and /sys of a test are
  command->footer(
      "Exit status: 0 no findings, 1 warnings, 2 problems, 3 the process has no loader or arena that can be read.");
  command->callback([options, &exit_status] { exit_status = run(*options); });
}

}  // namespace observe
