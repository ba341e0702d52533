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
  int loader = 0;
  std::string output;
  std::string form;   // "chrome", "perfetto"; empty: by the name of the output
  std::string merge;  // a file of torch's profiler; empty: none
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
  auto monitor = feedlane::Monitor::open(options.pid, options.loader, error);
  if (!monitor) {
    if (error.code() != 0) fail("{}", error.what());
    else fail("process {} has no loader {}: feedlane ls numbers them", options.pid, options.loader);
    return std::nullopt;
  }
  Found found{options.pid, options.loader, program_of(options.pid, 200), std::move(*monitor)};
  if (found.monitor.info().trace != 0) return found;
  fail(
      "loader {} of process {} keeps no trace: set config.trace, or start the program with FEEDLANE_TRACE=4096 in its "
      "environment",
      options.loader, options.pid);
  return std::nullopt;
}

bool is_chrome(const Options& options) {
  return options.form.empty() ? options.output.ends_with(".json") : options.form == "chrome";
}

// JSON of both. If torch's file cannot be used, JSON of ours: what was collected is not lost.
int write_merged(const Options& options, const Recording& recording, OutputFile& file) {
  std::ifstream in(options.merge, std::ios::binary);
  const std::string torch{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::string why = in.is_open() ? "" : std::strerror(errno);
  std::string both;
  if (in.is_open()) both = merged_trace(recording, torch, why);
  if (!both.empty()) return file.put(both) ? 0 : 1;
  if (file.put(chrome_trace(recording)))
    fail("cannot merge {}: {}; {} has only the loader's events", options.merge, why, options.output);
  return 1;
}

int write_recording(const Options& options, const Recording& recording, OutputFile& file) {
  int status = 0;
  if (!options.merge.empty()) status = write_merged(options, recording, file);
  else status = file.put(is_chrome(options) ? chrome_trace(recording) : perfetto_trace(recording)) ? 0 : 1;
  if (status == 0)
    say("wrote {} batches to {}; {} records were lost, {} were overwritten before the first look",
        recording.records.size(), options.output, recording.lost, recording.earlier);
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
  CLI::App* command =
      app.add_subcommand("trace", "Write the timeline of a loader's batches to a file, for ui.perfetto.dev");
  add_pid(*command, options->pid, "Trace a loader of this process")->required();
  command->add_option("--loader", options->loader, "Trace this loader of the process, as numbered by ls (default: 0)")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  command->add_option("-o,--output", options->output, "Write to this file, replacing it atomically")
      ->required()
      ->type_name("FILE");
  CLI::Option* form =
      command
          ->add_option("--form", options->form,
                       "Write in this form: chrome or perfetto (default: chrome for a FILE named *.json, else perfetto)")
          ->check(CLI::IsMember({"chrome", "perfetto"}));
  command
      ->add_option("--merge", options->merge,
                   "Add the loader's events to this file of torch's profiler, and write the result in Chrome's form")
      ->type_name("TORCH.json")
      ->excludes(form);
  CLI::Option* follow =
      command->add_flag("--follow", options->follow,
                        "Record until the loader ends or Ctrl-C (default: write the records that exist now)");
  command
      ->add_option("--seconds", options->seconds,
                   "Record for this many seconds (default: write the records that exist now)")
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
