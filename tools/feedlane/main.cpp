// SPDX-License-Identifier: Apache-2.0
// The `feedlane` command.
#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "bench/batches.hpp"
#include "bench/bench.hpp"

int main(int argc, char** argv) {
  (void)bench::processors();  // before anything is pinned
  if (const int fd = feedlane_worker_fd(); fd >= 0) return bench::work_as_spawned(fd);
  CLI::App app{"Feedlane: a shared-memory runtime that feeds training loops"};
  app.require_subcommand(1);
  app.set_version_flag("--version", FEEDLANE_COMMAND_VERSION);

  bench::Options options;
  CLI::App* measure = app.add_subcommand("bench", "Measures, beside a floor and peers, in rounds by turns");
  measure->require_subcommand(1);
  measure->fallthrough();
  measure->add_option("--rounds", options.rounds, "rounds, of which the median is taken")->check(CLI::Range(1, 1001));
  measure->add_flag("--json", options.json, "JSON instead of a table");
  measure->add_flag("--quick", options.quick, "fewer messages, batches and sizes in a round");

  bench::Json result;
  const auto add = [&](const char* name, const char* what, bench::Json (*run)(const bench::Options&)) {
    return measure->add_subcommand(name, what)->callback([&, run] {
      // Processes that wait busily for each other on one processor would measure its scheduler.
      if (bench::processors().size() < 2) bench::fail("measurements need two processors, this process may use one");
      result = run(options);
    });
  };
  add("floor", "a line of 56 bytes between two processes, and nothing else", bench::floor);
  CLI::App* ring = add("ring", "a ring between two processes, beside Boost's queues, a pipe, an eventfd", bench::ring);
  add("lanes", "several producers to one consumer, beside Boost's queue", bench::lanes);
  CLI::App* handoff =
      add("handoff", "batches from workers to a trainer, beside a bare copy into the same slots", bench::handoff);
  for (CLI::App* command : {ring, handoff})
    command->add_option("--plot", options.plot, "a picture over sizes, as SVG, by gnuplot")->type_name("FILE");
  handoff->add_option("--bytes", options.bytes, "of a batch; several are several rows")
      ->check(CLI::Range(1ULL, 1ULL << 33));
  add("loader", "samples collated into batches, beside a loop; many workers, beside eventfds", bench::loader);
  CLI::App* startup = add("startup", "first batch, next epoch, end", bench::startup);
  for (CLI::App* command : {handoff, startup})
    command->add_option("--workers", options.workers, "how many; several are several rows")->check(CLI::Range(1, 256));

  CLI11_PARSE(app, argc, argv);
  if (options.json) fmt::print("{}\n", result.dump(2));
  return 0;
}
