// SPDX-License-Identifier: Apache-2.0
// The `feedlane` command.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/batches.hpp"
#include "bench/bench.hpp"
#include "observe/commands.hpp"
#include "observe/words.hpp"

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
    {"floor", "a line of 56 bytes between two processes, and nothing else", bench::floor},
    {"ring", "a ring between two processes, beside queues of Boost and others, a pipe, an eventfd", bench::ring},
    {"latency", "messages at a fixed rate, from when each was due, beside Boost's queue, an eventfd, a pipe",
     bench::latency},
    {"lanes", "several producers to one consumer, beside Boost's queues", bench::lanes},
    {"handoff", "batches from workers to a trainer, beside as many threads that copy into the same slots",
     bench::handoff},
    {"loader", "samples collated into batches, beside loops; many workers, beside eventfds", bench::loader},
    {"small", "what a small sample costs inline: the batch, the call, the cache misses", bench::small},
    {"cpp", "rows, tensors and DLPack by the C++ interface, beside the raw C calls", bench::cpp},
    {"startup", "first batch, next epoch, end", bench::startup},
    {"reads", "samples that take 20 ms to read, with reads ahead of the task in hand and without", bench::reads},
    {"sharing", "one loader for several consumers, beside as many loaders", bench::sharing},
    {"device", "copies to a GPU out of registered slots, beside other memory; skipped where there is no GPU",
     bench::device, bench::device_missing},
};

// How many letters have to be inserted, left out, changed or swapped with the next one.
std::size_t distance_between(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); i++) {
    for (std::size_t k = 0; k <= b.size(); k++) {
      d[i][k] = i == 0 || k == 0
                    ? i + k
                    : std::min({d[i - 1][k] + 1, d[i][k - 1] + 1, d[i - 1][k - 1] + (a[i - 1] != b[k - 1])});
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
        d[i][k] = std::min(d[i][k], d[i - 2][k - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

bool has_command(const CLI::App& app, const std::string& name) {
  return !app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; }).empty();
}

// Says that there is no such command, and which one is meant. The exit status.
int refuse_command(const CLI::App& app, const std::string& given) {
  std::string nearest;
  std::size_t least = 3;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::size_t distance = distance_between(given.substr(0, 32), command->get_name());
    if (distance < least) least = distance, nearest = command->get_name();
  }
  const std::string hint = nearest.empty() ? "feedlane --help lists the commands" : "did you mean " + nearest + "?";
  observe::say("there is no command {}: {}", given.substr(0, 32), hint);
  return static_cast<int>(CLI::ExitCodes::ExtrasError);
}

// With where the processors were before and after it: what two of one core do can't be compared with what two cores do.
bench::Json measure(const Measurement& m, const bench::Options& options) {
  const double before = bench::line_ns(options);
  if (!options.json) fmt::print("== {}: {}\n", m.name, m.what);
  bench::Report report = m.run(options);
  return {{"rows", report.rows},
          {"ratios", report.ratios},
          {"line_ns", {bench::rounded(before), bench::rounded(bench::line_ns(options))}}};
}

}  // namespace

int main(int argc, char** argv) {
  (void)bench::processors();  // before anything is pinned
  if (const int fd = feedlane_worker_fd(); fd >= 0) return bench::work_as_spawned(fd);
  CLI::App app{"Feedlane: a shared-memory runtime that feeds training loops"};
  app.require_subcommand(1);
  app.set_version_flag("--version", FEEDLANE_COMMAND_VERSION);

  bench::Options options;
  CLI::App* command = app.add_subcommand("bench", "Measures, beside a floor and peers, in alternating rounds");
  command->require_subcommand(1);
  command->fallthrough();
  command->add_option("--rounds", options.rounds, "rounds, of which the median is taken")->check(CLI::Range(1, 1001));
  command->add_flag("--json", options.json, "JSON instead of a table");
  command->add_flag("--quick", options.quick, "fewer messages and batches in a round");
  command->add_flag("--tiny", options.tiny, "hardly any of them, for tests of this command: the figures say nothing");
  bool free = false;
  command->add_flag("--no-pin", free, "leave it to the system which processors processes run on");

  bench::Json groups = bench::Json::object();
  const auto run = [&](const Measurement* first, std::size_t count) {
    if (const std::string why = first->why_not(); count == 1 && !why.empty()) {
      fmt::print(stderr, "feedlane: bench {}: skipped: {}\n", first->name, why);
      std::exit(exit_skipped);
    }
    // Processes that wait busily for each other on one processor would measure its scheduler.
    if (bench::processors().size() < 2) bench::fail("measurements need two processors, this process may use one");
    if (free) bench::leave_placement_alone();
    if (!options.json) bench::print_machine();
    for (const Measurement* m = first; m != first + count; m++)
      if (m->why_not().empty()) groups[m->name] = measure(*m, options);
  };
  for (const Measurement& m : measurements) {
    CLI::App* sub = command->add_subcommand(m.name, m.what)->callback([&run, &m] { run(&m, 1); });
    const std::string name = m.name;
    if (name == "ring" || name == "handoff")
      sub->add_option("--plot", options.plot, "a picture over sizes, as SVG, by gnuplot")->type_name("FILE");
    if (name == "handoff" || name == "startup")
      sub->add_option("--workers", options.workers, "how many; several are several rows")->check(CLI::Range(1, 256));
    if (name != "handoff") continue;
    sub->add_option("--bytes", options.bytes, "of a batch; several are several rows")
        ->check(CLI::Range(1ULL, 1ULL << 33));
    sub->add_option("--prefetch", options.prefetch, "batches in flight for each worker; default 32 below 1 MiB, else 2")
        ->check(CLI::Range(1, 1024));
    sub->add_flag("--rate-only", options.rate_only, "nothing but the batches a second");
  }
  command->add_subcommand("all", "all of these that can be measured here")->callback([&run] {
    run(measurements, std::size(measurements));
  });

  int exit_status = 0;
  observe::add_ls(app, exit_status);
  observe::add_top(app, exit_status);
  observe::add_metrics(app, exit_status);
  observe::add_trace(app, exit_status);
  observe::add_doctor(app, exit_status);

  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) return refuse_command(app, argv[1]);
  CLI11_PARSE(app, argc, argv);
  if (options.json) fmt::print("{}\n", bench::Json({{"machine", bench::machine()}, {"groups", groups}}).dump(1));
  return exit_status;
}
