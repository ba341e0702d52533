// SPDX-License-Identifier: Apache-2.0
// `feedlane trace`: batches over time, in a file.
#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "commands.hpp"
#include "output_file.hpp"
#include "trace_collect.hpp"
#include "trace_forms.hpp"

namespace observe {
namespace {

struct Options {
  std::int64_t pid = 0;
  int nth = 0;
  std::string output;
  std::string merge;  // a file of torch's profiler; empty: none
  bool json = false;
  bool follow = false;
  double seconds = 0;
  std::uint64_t max_records = 4'000'000;  // 512 MB
};

template <typename... Arguments>
int fail(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  say(format, std::forward<Arguments>(arguments)...);
  return 1;
}

// The loader that the options name, with a trace. Says on standard error why there is none.
std::optional<Found> find(const Options& options) {
  feedlane::Error error;
  auto monitor = feedlane::Monitor::open(options.pid, options.nth, error);
  if (!monitor) {
    if (error.code() != 0) fail("{}", error.what());
    else fail("process {} has no loader {}; --nth counts them from 0", options.pid, options.nth);
    return std::nullopt;
  }
  Found found{options.pid, options.nth, program_of(options.pid, 200), std::move(*monitor)};
  if (found.monitor.info().trace != 0) return found;
  fail(
      "loader {} of process {} keeps no trace: set config.trace when it is created, or start the program with "
      "FEEDLANE_TRACE=4096 in the environment",
      options.nth, options.pid);
  return std::nullopt;
}

bool is_json(const Options& options) { return options.json || options.output.ends_with(".json"); }

// JSON of both. If torch's file cannot be used, JSON of ours: what was collected is not lost.
int write_merged(const Options& options, const Recording& recording, OutputFile& file) {
  std::ifstream in(options.merge, std::ios::binary);
  const std::string torch{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::string why = in.is_open() ? "" : std::strerror(errno);
  std::string both;
  if (in.is_open()) both = merged_trace(recording, torch, why);
  if (!both.empty()) return file.put(both) ? 0 : 1;
  if (file.put(chrome_trace(recording)))
    fail("{}: {}. {} holds the loader's trace alone", options.merge, why, options.output);
  return 1;
}

int write_recording(const Options& options, const Recording& recording, OutputFile& file) {
  int status = 0;
  if (!options.merge.empty()) status = write_merged(options, recording, file);
  else status = file.put(is_json(options) ? chrome_trace(recording) : perfetto_trace(recording)) ? 0 : 1;
  if (status == 0)
    say("{} batches in {}; {} records lost, {} overwritten earlier", recording.records.size(), options.output,
        recording.lost, recording.earlier);
  return status;
}

int run(const Options& options) {
  std::optional<Found> found = find(options);
  if (!found) return 1;
  OutputFile file(options.output);
  if (!file.create()) return 1;  // before time is spent on following
  Collector collector(std::move(*found), options.max_records);
  if (options.follow || options.seconds > 0) collector.follow(options.seconds);
  return write_recording(options, collector.finish(), file);
}

}  // namespace

void add_trace(CLI::App& app, int& exit_status) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("trace", "Write a file of a running loader's batches, for ui.perfetto.dev");
  add_pid(*command, options->pid, "Trace a loader of this process")->required();
  command->add_option("--nth", options->nth, "Trace this one of its loaders, counted from 0 (default: 0)")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("-o,--output", options->output,
                   "Write this file: Chrome's JSON if it is named *.json, else Perfetto's form")
      ->required()
      ->type_name("FILE");
  command->add_flag("--json", options->json, "Write Chrome's JSON whatever the name of FILE");
  command->add_option("--merge", options->merge, "Write JSON that also has the events of this file of torch's profiler")
      ->type_name("TORCH.json");
  CLI::Option* follow = command->add_flag(
      "--follow", options->follow, "Record until the loader ends, or Ctrl-C (default: the records that exist now)");
  command
      ->add_option("--seconds", options->seconds, "Record for this many seconds (default: the records that exist now)")
      ->type_name("S")
      ->check(seconds_between(0.001, 1e8))
      ->excludes(follow);
  command
      ->add_option("--max", options->max_records,
                   "Keep the newest N records, of 128 bytes each; others count as lost (default: 4000000)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 32))
      ->type_name("N");
  command->callback([options, &exit_status] { exit_status = run(*options); });
}

}  // namespace observe
