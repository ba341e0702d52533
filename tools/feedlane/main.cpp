// SPDX-License-Identifier: Apache-2.0
// The `feedlane` command.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/batches.hpp"
#include "bench/bench.hpp"
#include "observe/commands.hpp"
#include "refuse.hpp"

namespace {

struct Measurement {
  const char* name;
  const char* what;
  bench::Report (*run)(const bench::Options&);
  std::string (*missing)() = nullptr;  // why it can't be measured here; empty: it can
  [[nodiscard]] std::string why_not() const { return missing != nullptr ? missing() : std::string(); }
};

constexpr int exit_skipped = 77;  // as test programs say it

constexpr Measurement measurements[] = {
    {"floor", "Send a cache line of 56 bytes between two processes", bench::floor},
    {"ring",
     "Measure messages sent through a ring, and compare them with a single cache line passed between two processes",
     bench::ring},
    {"handoff",
     "Measure batches passed from workers to a trainer, and compare them with threads that copy into the same slots",
     bench::handoff},
    {"arena",
     "Measure entries of an arena that are got and sent, and compare them with threads that copy as many bytes",
     bench::arena},
    {"startup", "Measure how long the first batch, the next epoch and the shutdown take", bench::startup},
    {"device", "Copy batches to a GPU from registered slots and from other memory; skipped without a GPU",
     bench::device, bench::device_missing},
};

// With where the processors were before and after it: what two of one core do can't be compared with what two cores do.
bench::Json measure(const Measurement& m, const bench::Options& options) {
  const double before = bench::line_ns(options);
  if (!options.json) fmt::print("== {}: {}\n", m.name, m.what);
  bench::Report report = m.run(options);
  return {{"rows", report.rows},
          {"ratios", report.ratios},
          {"line_ns", {bench::rounded(before), bench::rounded(bench::line_ns(options))}}};
}

// The options of one benchmark.
void add_options(CLI::App& sub, const std::string& name, bench::Options& options) {
  if (name == "handoff")
    sub.add_option("--plot", options.plot,
                   "Draw the results over sizes into this SVG file, with gnuplot (default: no picture)")
        ->type_name("FILE");
  if (name == "handoff" || name == "startup")
    sub.add_option("--workers", options.workers, "Use these numbers of workers, one row each (default: 1 and 2)")
        ->check(CLI::Range(1, 256));
  if (name == "arena")
    sub.add_option("--bytes", options.bytes, "Use entries of these sizes (default: 4 KiB to 16 MiB)")
        ->check(CLI::Range(4096ULL, 1ULL << 30));
  if (name != "handoff") return;
  sub.add_option("--bytes", options.bytes, "Use batches of these sizes, one row each (default: 4 KiB to 147 MiB)")
      ->check(CLI::Range(1ULL, 1ULL << 33));
  sub.add_option("--prefetch", options.prefetch,
                 "Keep this many batches in flight per worker (default: 32 below 1 MiB, else 2)")
      ->check(CLI::Range(1, 1024));
  sub.add_flag("--rate-only", options.rate_only, "Measure only batches per second");
}

}  // namespace

int main(int argc, char** argv) {
  (void)bench::processors();  // before anything is pinned
  if (const int fd = feedlane_worker_fd(); fd >= 0) return bench::work_as_spawned(fd);
  CLI::App app{"Observe and benchmark Feedlane loaders"};
  app.require_subcommand(1);
  app.set_version_flag("--version", FEEDLANE_COMMAND_VERSION);

  bench::Options options;
  CLI::App* command = app.add_subcommand(
      "bench", "Benchmark the library on this machine, compared with the least time that the hardware allows");
  command->require_subcommand(1);
  command->fallthrough();
  command->add_option("--rounds", options.rounds, "Run this many rounds and print their median (default: 9)")
      ->check(CLI::Range(1, 1001));
  command->add_flag("--json", options.json, "Print one JSON value instead of text");
  command->add_flag("--quick", options.quick, "Use fewer messages and batches per round");
  command->add_flag("--tiny", options.tiny,
                    "Do very little work, only to test this command; the results are meaningless");
  bool free = false;
  command->add_flag("--no-pin", free, "Let the system choose processors (default: each process is pinned)");

  bench::Json groups = bench::Json::object();
  const auto run = [&](const Measurement* first, std::size_t count) {
    if (const std::string why = first->why_not(); count == 1 && !why.empty()) {
      fmt::print(stderr, "feedlane: bench {}: skipped: {}\n", first->name, why);
      std::exit(exit_skipped);
    }
    // Processes that wait busily for each other on one processor would measure its scheduler.
    if (bench::processors().size() < 2) bench::fail("benchmarks need two processors; this process may use one");
    if (free) bench::leave_placement_alone();
    if (!options.json) bench::print_machine();
    for (const Measurement* m = first; m != first + count; m++)
      if (m->why_not().empty()) groups[m->name] = measure(*m, options);
  };
  for (const Measurement& m : measurements) {
    CLI::App* sub = command->add_subcommand(m.name, m.what)->callback([&run, &m] { run(&m, 1); });
    add_options(*sub, m.name, options);
  }
  command->add_subcommand("all", "Run every benchmark that this machine supports")->callback([&run] {
    run(measurements, std::size(measurements));
  });

  int exit_status = 0;
  observe::add_ls(app, exit_status);
  observe::add_top(app, exit_status);
  observe::add_metrics(app, exit_status);
  observe::add_trace(app, exit_status);
  observe::add_doctor(app, exit_status);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : refuse(app, error);  // 0: --help, --version
  }
  if (options.json) fmt::print("{}\n", bench::Json({{"machine", bench::machine()}, {"groups", groups}}).dump(1));
  return exit_status;
}
