// SPDX-License-Identifier: Apache-2.0
// `feedlane metrics`: all numbers of loaders once, for Prometheus and what else reads its formats.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "commands.hpp"
#include "exposition.hpp"
#include "sample.hpp"

namespace observe {
namespace {

using Family = Metrics::Family;

// A counter of feedlane_stats.
struct Total {
  std::uint64_t feedlane_stats::*member;
  Family family;
};

constexpr Total totals[] = {
    {&feedlane_stats::batches, {"batches", Kind::counter, "", "Batches yielded."}},
    {&feedlane_stats::samples, {"samples", Kind::counter, "", "Samples yielded."}},
    {&feedlane_stats::bytes, {"yielded_bytes", Kind::counter, "bytes", "Bytes of tensors yielded."}},
    {&feedlane_stats::epochs, {"epochs", Kind::counter, "", "Epochs begun."}},
    {&feedlane_stats::redispatched, {"redispatched_tasks", Kind::counter, "", "Tasks sent out again."}},
    {&feedlane_stats::quarantined, {"quarantined_batches", Kind::counter, "", "Batches given up."}},
    {&feedlane_stats::invalid_results, {"invalid_results", Kind::counter, "", "Results refused by validation."}},
    {&feedlane_stats::late_results, {"late_results", Kind::counter, "", "Results of abandoned tasks."}},
    {&feedlane_stats::retried, {"retried_samples", Kind::counter, "", "Samples that were retried."}},
    {&feedlane_stats::substituted, {"substituted_samples", Kind::counter, "", "Samples that others replaced."}},
    {&feedlane_stats::skipped, {"skipped_samples", Kind::counter, "", "Samples left out."}},
    {&feedlane_stats::hung, {"hung_workers", Kind::counter, "", "Workers that exceeded their deadline."}},
};

struct Reason {
  std::uint64_t feedlane_stats::*member;
  const char* name;
};

constexpr Reason reasons[] = {
    {&feedlane_stats::restarts_signal, "signal"},
    {&feedlane_stats::restarts_exit, "exit"},
    {&feedlane_stats::restarts_hung, "hung"},
    {&feedlane_stats::restarts_invalid, "invalid"},
    {&feedlane_stats::restarts_unattached, "unattached"},
};

struct Step {
  feedlane_histogram feedlane_timings::*member;
  Family family;
};

constexpr Step steps[] = {
    {&feedlane_timings::exposed,
     {"exposed_wait_seconds", Kind::histogram, "seconds",
      "Time that the trainer waited for a batch, without the first batches of epochs."}},
    {&feedlane_timings::start,
     {"first_batch_wait_seconds", Kind::histogram, "seconds",
      "Time that the trainer waited for the first batch of an epoch."}},
    {&feedlane_timings::queue,
     {"queue_seconds", Kind::histogram, "seconds", "Time from the dispatch of a batch until its worker began it."}},
    {&feedlane_timings::work,
     {"work_seconds", Kind::histogram, "seconds", "Time from then until the worker committed the batch."}},
    {&feedlane_timings::ready,
     {"ready_seconds", Kind::histogram, "seconds", "Time from then until the trainer took the batch."}},
    {&feedlane_timings::hold,
     {"hold_seconds", Kind::histogram, "seconds", "Time from then until the slot of the batch was free."}},
};

constexpr Family worker_work = {"worker_work_seconds", Kind::histogram, "seconds",
                                "Time that a worker took for a batch."};

Labels with(Labels labels, const char* name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

void add_about(Metrics& all, const Labels& labels, const Sample& s) {
  const feedlane_loader_info& info = s.info;
  Labels about = with(labels, "version", info.version);
  about = with(about, "start", info.workers == 0 ? "inline" : start_name(info.start));
  all.add({"loader", Kind::info, "", "The loader's library and how its workers are started."}, about, 1);
  all.add({"start_time_seconds", Kind::gauge, "seconds", "When the loader was created, since 1970."}, labels,
          seconds_text(unix_time_ns() - s.age_ns()));
  if (info.epoch >= 0)
    all.add({"epoch", Kind::gauge, "", "The newest epoch."}, labels, static_cast<std::uint64_t>(info.epoch));
  all.add({"in_epoch", Kind::gauge, "", "1: an epoch is in progress."}, labels, info.in_epoch != 0 ? 1 : 0);
  all.add({"epoch_batch", Kind::gauge, "", "The number in the epoch of the batch that is next."}, labels,
          static_cast<std::uint64_t>(info.batch));
  if (info.batches >= 0)
    all.add({"epoch_batches", Kind::gauge, "", "Batches in the epoch."}, labels,
            static_cast<std::uint64_t>(info.batches));
}

void add_totals(Metrics& all, const Labels& labels, const Sample& s) {
  for (const Total& t : totals) all.add(t.family, labels, s.stats.*t.member);
  all.add({"wait_seconds", Kind::counter, "seconds", "Time that the trainer waited for batches."}, labels,
          seconds_text(s.stats.wait_ns));
  all.add({"start_wait_seconds", Kind::counter, "seconds", "Of that, for the first batch of each epoch."}, labels,
          seconds_text(s.stats.start_wait_ns));
  for (const Reason& r : reasons)
    all.add({"restarts", Kind::counter, "", "Workers that replaced one that died, by how it died."},
            with(labels, "reason", r.name), s.stats.*r.member);
}

void add_memory(Metrics& all, const Labels& labels, const Sample& s) {
  const Family slots = {"slots", Kind::gauge, "",
                        "Slots that are free, held by the trainer, or in use by batches that are made."};
  const std::uint64_t idle = s.stats.slots_free + s.stats.slots_held;
  all.add(slots, with(labels, "state", "free"), s.stats.slots_free);
  all.add(slots, with(labels, "state", "held"), s.stats.slots_held);
  all.add(slots, with(labels, "state", "used"), s.stats.slots - std::min(s.stats.slots, idle));
  const Family segments = {"segment_bytes", Kind::gauge, "bytes", "Size of the segments, reserved or not."};
  all.add(segments, with(labels, "segment", "control"), s.stats.control_bytes);
  all.add(segments, with(labels, "segment", "data"), s.stats.data_bytes);
  all.add({"reserved_bytes", Kind::gauge, "bytes", "Memory reserved for both segments."}, labels,
          s.stats.reserved_bytes);
  all.add({"huge_page_bytes", Kind::gauge, "bytes", "Of the data segment, in huge pages from the start."}, labels,
          s.stats.huge_bytes);
}

void add_worker(Metrics& all, const Labels& labels, const feedlane_worker_stats& w) {
  const auto counter = [&](const char* name, const char* unit, const char* help, const std::string& value) {
    all.add({name, Kind::counter, unit, help}, labels, value);
  };
  counter("worker_tasks", "", "Tasks that the worker committed, failed or dropped.", std::to_string(w.tasks));
  counter("worker_samples", "", "Samples that the worker committed.", std::to_string(w.samples));
  counter("worker_committed_bytes", "bytes", "Bytes of tensors that the worker committed.", std::to_string(w.bytes));
  counter("worker_errors", "", "Tasks that the worker failed.", std::to_string(w.errors));
  counter("worker_busy_seconds", "seconds", "Time from receipt of tasks to their commit or failure.",
          seconds_text(w.work_ns));
  counter("worker_wait_seconds", "seconds", "Time that the worker slept.", seconds_text(w.wait_ns));
  all.add({"worker_generation", Kind::gauge, "", "How often the worker was replaced."}, labels,
          static_cast<std::uint64_t>(w.generation));
  for (int state = FEEDLANE_WORKER_NONE; state <= FEEDLANE_WORKER_FAILED; state++)
    all.add({"worker_state", Kind::gauge, "", "1 for the state that the worker is in."},
            with(labels, "state", state_name(state)), w.state == state ? 1 : 0);
}

void add_loader(Metrics& all, const Found& found) {
  const Sample s = take_sample(found.monitor);
  const Labels labels = {
      {"pid", std::to_string(found.pid)}, {"loader", std::to_string(found.nth)}, {"name", s.info.name}};
  add_about(all, labels, s);
  add_totals(all, labels, s);
  add_memory(all, labels, s);
  const feedlane_timings timings = found.monitor.timings();
  for (const Step& step : steps) all.add(step.family, labels, timings.*step.member);
  for (std::size_t id = 0; id < s.workers.size(); id++) {
    const Labels worker = with(labels, "worker", std::to_string(id));
    add_worker(all, worker, s.workers[id]);
    all.add(worker_work, worker, found.monitor.timings(static_cast<std::int32_t>(id)).work);
  }
}

bool complain(const char* what, const std::string& path) {
  fmt::print(stderr, "feedlane: {} {}: {}\n", what, path, std::strerror(errno));
  return false;
}

bool write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return true;
}

// A reader sees the file as it was, or as it is: it is written under another name and renamed.
bool write_file(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return complain("cannot create", temporary);
  bool is_whole = write_all(fd, text) && ::fdatasync(fd) == 0;
  if (!is_whole) complain("cannot write", temporary);
  (void)::close(fd);
  if (is_whole && ::rename(temporary.c_str(), path.c_str()) != 0) is_whole = complain("cannot replace", path);
  if (!is_whole) (void)::unlink(temporary.c_str());
  return is_whole;
}

struct Options {
  std::int64_t pid = 0;
  std::string file;
  std::string format;
  bool json = false;
};

Exposition form_of(const Options& options) {
  if (options.json) return Exposition::json;
  const bool is_prometheus = options.format.empty() ? options.file.ends_with(".prom") : options.format == "prometheus";
  return is_prometheus ? Exposition::prometheus : Exposition::openmetrics;
}

int write_metrics(const Options& options) {
  bool is_short = false;
  const std::vector<Found> loaders = find_loaders(options.pid, is_short);
  if (is_short || (options.pid != 0 && loaders.empty())) return 1;  // it was said why
  Metrics all;
  for (const Found& found : loaders) add_loader(all, found);
  const std::string text = all.text(form_of(options));
  if (options.file.empty() || options.file == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return 0;
    complain("cannot write", "standard output");
    return 1;
  }
  return write_file(options.file, text) ? 0 : 1;
}

}  // namespace

void add_metrics(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("metrics", "All numbers of loaders once, as OpenMetrics text");
  command->add_option("--pid", options->pid, "of this process; without it of all processes of this user")
      ->check(CLI::PositiveNumber);
  command->add_option("-o,--output", options->file, "written to another name in its folder, then renamed")
      ->type_name("FILE");
  command->add_option("--format", options->format, "openmetrics (1.0) or prometheus (text format 0.0.4)")
      ->check(CLI::IsMember({"openmetrics", "prometheus"}));
  command->add_flag("--json", options->json, "the same as one JSON value")->excludes("--format");
  command->callback([options, &exit_status] { exit_status = write_metrics(*options); });
  command->footer(
      "node_exporter's textfile collector reads files named *.prom in the Prometheus text format: for a FILE that ends "
      "so this\n"
      "is the default. A timer runs this command there.");
}

}  // namespace observe
