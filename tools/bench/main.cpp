// SPDX-License-Identifier: Apache-2.0
// compare-peers: compares Feedlane with other libraries and measures single parts, for its developers. It is not
// installed. `feedlane bench` measures a machine. Both print the same JSON.
#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "batches.hpp"
#include "bench.hpp"
#include "compare.hpp"

namespace {

struct Measurement {
  const char* name;
  const char* what;
  bench::Report (*run)(const bench::Options&);
};

constexpr Measurement measurements[] = {
    {"ring", "Send messages through a ring, and through queues of Boost and others, a pipe and an eventfd",
     compare::ring},
    {"latency", "Send messages at a fixed rate, and measure from the time when each was due", compare::latency},
    {"lanes", "Send messages from several producers to one consumer, compared with Boost's queues", compare::lanes},
    {"loader", "Collate samples into batches, compared with plain loops, with up to more workers than processors",
     compare::loader},
    {"small", "Break down the cost of a small sample without workers: batch, call, cache misses", compare::small},
    {"cpp", "Access rows, tensors and DLPack through the C++ interface, compared with the C interface", compare::cpp},
    {"reads", "Load samples that take 20 ms to read, with and without reading ahead", compare::reads},
    {"sharing", "Share one loader among several consumers, compared with one loader for each", compare::sharing},
    {"work", "Load batches that take 0 to 2,000 us of processor time, with up to 32 workers", compare::work},
};

bench::Json measure(const Measurement& m, const bench::Options& options) {
  const double before = bench::line_ns(options);
  if (!options.json) fmt::print("== {}: {}\n", m.name, m.what);
  const bench::Report report = m.run(options);
  return {{"rows", report.rows},
          {"ratios", report.ratios},
          {"line_ns", {bench::rounded(before), bench::rounded(bench::line_ns(options))}}};
}

}  // namespace

int main(int argc, char** argv) {
  (void)bench::processors();  // before anything is pinned
  if (const int fd = feedlane_worker_fd(); fd >= 0) return bench::work_as_spawned(fd);
  CLI::App app{"Compare Feedlane with other libraries, and measure its parts, in alternating rounds"};
  app.require_subcommand(1);
  app.fallthrough();
  bench::Options options;
  bool free = false;
  app.add_option("--rounds", options.rounds, "Run this many rounds and print their median (default: 9)")
      ->check(CLI::Range(1, 1001));
  app.add_flag("--json", options.json, "Print one JSON value instead of tables");
  app.add_flag("--quick", options.quick, "Use fewer messages and batches per round");
  app.add_flag("--tiny", options.tiny, "Do very little work, only to test this program; the results are meaningless");
  app.add_flag("--no-pin", free, "Let the system choose processors (default: each process is pinned)");
  for (const Measurement& m : measurements) {
    CLI::App* sub = app.add_subcommand(m.name, m.what);
    if (m.run == compare::ring)
      sub->add_option("--plot", options.plot, "Draw the results over sizes into this SVG file, with gnuplot");
    if (m.run == compare::work) {
      sub->add_option("--us", options.work_us, "Let batches take these times (default: 0, 20, 200, 2000)");
      sub->add_option("--workers", options.workers, "Use these numbers of workers (default: 1, 2, 4, 8, 32)");
      sub->add_option("--trainer-us", options.trainer_us, "Let the trainer work so long with each batch (default: 0)");
    }
  }
  CLI11_PARSE(app, argc, argv);

  if (bench::processors().size() < 2) bench::fail("measurements need two processors, this process may use one");
  if (free) bench::leave_placement_alone();
  if (!options.json) bench::print_machine();
  bench::Json groups = bench::Json::object();
  for (const Measurement& m : measurements)
    if (app.got_subcommand(m.name)) groups[m.name] = measure(m, options);
  if (options.json) fmt::print("{}\n", bench::Json({{"machine", bench::machine()}, {"groups", groups}}).dump(1));
  return 0;
}
