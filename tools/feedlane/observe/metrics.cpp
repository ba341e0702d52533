// SPDX-License-Identifier: Apache-2.0
// `feedlane metrics`: all numbers of loaders once, for Prometheus and what else reads its formats.
#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "commands.hpp"
#include "exposition.hpp"
#include "output_file.hpp"
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
  const bool is_to_file = !options.file.empty() && options.file != "-";
  const Search search = find_loaders(options.pid);
  if (search.is_short || (options.pid != 0 && search.loaders.empty())) return 1;  // it was said why
  Metrics all;
  if (options.pid == 0)
    all.add(
        {"skipped_processes", Kind::gauge, "",
         "Processes with a loader or ring that cannot be read, or with too many to look at: named on standard error."},
        {}, search.unreadable.size());
  for (const Found& found : search.loaders) add_loader(all, found);
  const std::string text = all.text(form_of(options));
  if (is_to_file) {
    OutputFile file(options.file);
    return file.create() && file.put(text) ? 0 : 1;
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return 0;
  say("cannot write standard output: {}", std::strerror(errno));
  return 1;
}

}  // namespace

void add_metrics(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("metrics", "Print all numbers of your loaders once, as OpenMetrics text");
  add_pid(*command, options->pid, "Print only this process's (default: all of your processes'; root: all users')");
  command->add_option("-o,--output", options->file, "Write this file, replaced at once (default: standard output)")
      ->type_name("FILE");
  command
      ->add_option("--format", options->format,
                   "Print openmetrics (1.0) or prometheus (text format 0.0.4) (default: openmetrics; prometheus for a "
                   "FILE named *.prom)")
      ->check(CLI::IsMember({"openmetrics", "prometheus"}));
  command->add_flag("--json", options->json, "Print one JSON value instead")->excludes("--format");
  command->callback([options, &exit_status] { exit_status = write_metrics(*options); });
  command->footer(
      "node_exporter's textfile collector reads files named *.prom in the Prometheus text format. Run this command "
      "from a "
      "timer.");
}

}  // namespace observe
