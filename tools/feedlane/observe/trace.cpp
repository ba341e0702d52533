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
  fmt::print(stderr, "feedlane: {}\n", fmt::format(format, std::forward<Arguments>(arguments)...));
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

// With `std::ios::app` and no text: whether the file can be written.
bool write(const std::string& path, const std::string& text, std::ios::openmode mode = std::ios::trunc) {
  std::ofstream file(path, std::ios::binary | mode);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (file) return true;
  fail("{}: {}", path, std::strerror(errno));
  return false;
}

// JSON of both. If torch's file cannot be used, JSON of ours: what was collected is not lost.
int write_merged(const Options& options, const Recording& recording) {
  std::ifstream in(options.merge, std::ios::binary);
  const std::string torch{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::string why = in.is_open() ? "" : std::strerror(errno);
  std::string both;
  if (in.is_open()) both = merged_trace(recording, torch, why);
  if (!both.empty()) return write(options.output, both) ? 0 : 1;
  if (write(options.output, chrome_trace(recording)))
    fail("{}: {}. {} holds the loader's trace alone", options.merge, why, options.output);
  return 1;
}

int write_recording(const Options& options, const Recording& recording) {
  int status = 0;
  if (!options.merge.empty()) status = write_merged(options, recording);
  else status = write(options.output, options.json ? chrome_trace(recording) : perfetto_trace(recording)) ? 0 : 1;
  if (status == 0)
    fmt::print(stderr, "feedlane: {} batches in {}; {} records lost, {} overwritten earlier\n",
               recording.records.size(), options.output, recording.lost, recording.earlier);
  return status;
}

int run(const Options& options) {
  std::optional<Found> found = find(options);
  if (!found) return 1;
  if (!write(options.output, "", std::ios::app)) return 1;  // before time is spent on following
  Collector collector(std::move(*found), options.max_records);
  if (options.follow || options.seconds > 0) collector.follow(options.seconds);
  return write_recording(options, collector.finish());
}

}  // namespace

void add_trace(CLI::App& app, int& exit_status) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("trace", "Writes a file of a running loader's batches, for ui.perfetto.dev");
  command->add_option("--pid", options->pid, "process of the trainer")->required()->check(CLI::PositiveNumber);
  command->add_option("--nth", options->nth, "which of its loaders, from 0")->check(CLI::NonNegativeNumber);
  command->add_option("-o,--output", options->output, "file to write")->required()->type_name("FILE");
  command->add_flag("--json", options->json, "Chrome's JSON instead of Perfetto's form");
  command->add_option("--merge", options->merge, "JSON, together with what this file of torch's profiler has")
      ->type_name("TORCH.json");
  CLI::Option* follow = command->add_flag("--follow", options->follow, "until the loader ends, or Ctrl-C");
  command->add_option("--seconds", options->seconds, "for so long; without this and --follow: what there is now")
      ->check(seconds_between(0.001, 1e8))
      ->excludes(follow);
  command
      ->add_option("--max", options->max_records,
                   "keeps so many records, the newest; 4 million by default, 128 bytes each; others count as lost")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 32))
      ->type_name("N");
  command->callback([options, &exit_status] { exit_status = run(*options); });
}

}  // namespace observe
