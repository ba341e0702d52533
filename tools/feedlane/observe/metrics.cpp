// SPDX-License-Identifier: Apache-2.0
// `feedlane metrics`: all metrics of loaders and arenas once, for Prometheus and compatible systems.
#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "arenas.hpp"
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
    {&feedlane_stats::substituted, {"substituted_samples", Kind::counter, "", "Samples that were replaced by others."}},
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
  const char* name;
  feedlane_histogram feedlane_timings::*histogram;
  feedlane_percentiles feedlane_timings::*percentiles;
  Family family;
};

constexpr Step steps[] = {
    {"exposed",
     &feedlane_timings::exposed,
     &feedlane_timings::exposed_percentiles,
     {"exposed_wait_seconds", Kind::histogram, "seconds",
      "Time that the trainer waited for a batch, without the first batches of epochs."}},
    {"start",
     &feedlane_timings::start,
     &feedlane_timings::start_percentiles,
     {"first_batch_wait_seconds", Kind::histogram, "seconds",
      "Time that the trainer waited for the first batch of an epoch."}},
    {"queue",
     &feedlane_timings::queue,
     &feedlane_timings::queue_percentiles,
     {"queue_seconds", Kind::histogram, "seconds", "Time from the dispatch of a batch until its worker began it."}},
    {"work",
     &feedlane_timings::work,
     &feedlane_timings::work_percentiles,
     {"work_seconds", Kind::histogram, "seconds",
      "Time from when a worker began a batch until it committed the batch."}},
    {"ready",
     &feedlane_timings::ready,
     &feedlane_timings::ready_percentiles,
     {"ready_seconds", Kind::histogram, "seconds", "Time from a batch's commit until the trainer took it."}},
    {"hold",
     &feedlane_timings::hold,
     &feedlane_timings::hold_percentiles,
     {"hold_seconds", Kind::histogram, "seconds", "Time from when the trainer took a batch until its slot was free."}},
};

constexpr Family worker_work = {"worker_work_seconds", Kind::histogram, "seconds",
                                "Time that a worker took for a batch."};

// Histograms have one bucket per power of two, which is too coarse: these are computed from the loader's finer ones.
constexpr Family percentile = {"percentile_seconds", Kind::gauge, "seconds",
                               "Percentiles of the durations in the histograms, over the loader's life."};
constexpr Family worker_percentile = {"worker_work_percentile_seconds", Kind::gauge, "seconds",
                                      "Percentiles of the time that a worker took for a batch."};

Labels with(Labels labels, const char* name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

void add_percentiles(Metrics& all, const Family& family, const Labels& labels, const feedlane_percentiles& at) {
  all.add(family, with(labels, "quantile", "0.5"), seconds_text(at.p50_ns));
  all.add(family, with(labels, "quantile", "0.9"), seconds_text(at.p90_ns));
  all.add(family, with(labels, "quantile", "0.99"), seconds_text(at.p99_ns));
}

void add_about(Metrics& all, const Labels& labels, const Sample& s) {
  const feedlane_loader_info& info = s.info;
  Labels about = with(labels, "version", info.version);
  about = with(about, "start", info.workers == 0 ? "inline" : start_name(info.start));
  all.add({"loader", Kind::info, "", "The loader's library and how its workers are started."}, about, 1);
  all.add({"start_time_seconds", Kind::gauge, "seconds", "When the loader was created, in seconds since 1970."}, labels,
          seconds_text(unix_time_ns() - s.age_ns()));
  if (info.epoch >= 0)
    all.add({"epoch", Kind::gauge, "", "The newest epoch."}, labels, static_cast<std::uint64_t>(info.epoch));
  all.add({"in_epoch", Kind::gauge, "", "1 if an epoch is in progress, else 0."}, labels, info.in_epoch != 0 ? 1 : 0);
  all.add({"epoch_batch", Kind::gauge, "", "The next batch's number in the epoch."}, labels,
          static_cast<std::uint64_t>(info.batch));
  if (info.batches >= 0)
    all.add({"epoch_batches", Kind::gauge, "", "Batches in the epoch."}, labels,
            static_cast<std::uint64_t>(info.batches));
}

void add_totals(Metrics& all, const Labels& labels, const Sample& s) {
  for (const Total& t : totals) all.add(t.family, labels, s.stats.*t.member);
  all.add({"wait_seconds", Kind::counter, "seconds", "Time that the trainer waited for batches."}, labels,
          seconds_text(s.stats.wait_ns));
  all.add({"start_wait_seconds", Kind::counter, "seconds",
           "The part of feedlane_wait_seconds that was for the first batch of each epoch."},
          labels, seconds_text(s.stats.start_wait_ns));
  for (const Reason& r : reasons)
    all.add({"restarts", Kind::counter, "", "Replaced workers, by how they ended."}, with(labels, "reason", r.name),
            s.stats.*r.member);
}

void add_memory(Metrics& all, const Labels& labels, const Sample& s) {
  const Family slots = {"slots", Kind::gauge, "",
                        "Slots that are free, held by the trainer, or used by batches in progress or ready."};
  const std::uint64_t idle = s.stats.slots_free + s.stats.slots_held;
  all.add(slots, with(labels, "state", "free"), s.stats.slots_free);
  all.add(slots, with(labels, "state", "held"), s.stats.slots_held);
  all.add(slots, with(labels, "state", "used"), s.stats.slots - std::min(s.stats.slots, idle));
  const Family segments = {"segment_bytes", Kind::gauge, "bytes",
                           "Size of each segment, including address space without memory."};
  all.add(segments, with(labels, "segment", "control"), s.stats.control_bytes);
  all.add(segments, with(labels, "segment", "data"), s.stats.data_bytes);
  all.add({"reserved_bytes", Kind::gauge, "bytes", "Memory reserved for both segments."}, labels,
          s.stats.reserved_bytes);
  all.add(
      {"huge_page_bytes", Kind::gauge, "bytes", "Bytes of the data segment that were in huge pages at its creation."},
      labels, s.stats.huge_bytes);
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
  for (const Step& step : steps) {
    all.add(step.family, labels, timings.*step.histogram);
    add_percentiles(all, percentile, with(labels, "step", step.name), timings.*step.percentiles);
  }
  for (std::size_t id = 0; id < s.workers.size(); id++) {
    const Labels worker = with(labels, "worker", std::to_string(id));
    add_worker(all, worker, s.workers[id]);
    const feedlane_timings of_worker = found.monitor.timings(static_cast<std::int32_t>(id));
    all.add(worker_work, worker, of_worker.work);
    add_percentiles(all, worker_percentile, worker, of_worker.work_percentiles);
  }
}

void add_arena(Metrics& all, const Arena& arena) {
  const feedlane_arena_stats& s = arena.before.stats;
  const Labels labels = {{"pid", std::to_string(arena.pid)}, {"arena", std::to_string(arena.nth)}};
  const Family bytes = {"arena_bytes", Kind::gauge, "bytes", "Memory of the arena: used by entries, and the rest."};
  all.add(bytes, with(labels, "state", "used"), s.used_bytes);
  all.add(bytes, with(labels, "state", "free"), s.free_bytes);
  all.add({"arena_entries", Kind::gauge, "", "Entries, with and without a key."}, labels, s.entries);
  all.add({"arena_held_entries", Kind::gauge, "", "Entries that any process holds."}, labels, s.leased);
  all.add({"arena_published_entries", Kind::counter, "", "Entries published."}, labels, s.published);
  all.add({"arena_evicted_entries", Kind::counter, "", "Entries evicted."}, labels, s.evicted);
  const Family gets = {"arena_gets", Kind::counter, "", "Gets, by whether they found their entry."};
  all.add(gets, with(labels, "found", "yes"), s.hits);
  all.add(gets, with(labels, "found", "no"), s.misses);
  for (const feedlane_arena_member& m : arena.before.members) {
    const Labels member = with(with(labels, "member", std::to_string(m.number)), "member_pid", std::to_string(m.pid));
    all.add({"arena_member_held_entries", Kind::gauge, "", "Entries that the member holds."}, member, m.held);
    all.add({"arena_member_waiting", Kind::gauge, "", "The member's requests that wait for memory or for a key."},
            member, m.waiting);
  }
}

struct Options {
  std::int64_t pid = 0;
  std::string file;
  std::string form;
  bool json = false;
};

Exposition form_of(const Options& options) {
  if (options.json) return Exposition::json;
  const bool is_prometheus = options.form.empty() ? options.file.ends_with(".prom") : options.form == "prometheus";
  return is_prometheus ? Exposition::prometheus : Exposition::openmetrics;
}

int write_metrics(const Options& options) {
  const bool is_to_file = !options.file.empty() && options.file != "-";
  Search search = find_loaders_quietly(options.pid);
  const std::vector<Arena> arenas = find_arenas(options.pid, search.unreadable);
  say_unreadable(search.unreadable);
  const bool is_empty = options.pid != 0 && search.loaders.empty() && arenas.empty();
  if (is_empty && search.unreadable.empty()) say("process {} has no loader or arena", options.pid);
  if (search.is_short || is_empty) return 1;
  Metrics all;
  if (options.pid == 0)
    all.add({"skipped_processes", Kind::gauge, "",
             "Processes whose loaders, rings or arenas cannot be read or are too many; standard error names them."},
            {}, search.unreadable.size());
  for (const Found& found : search.loaders) add_loader(all, found);
  for (const Arena& arena : arenas) add_arena(all, arena);
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
  CLI::App* command =
      app.add_subcommand("metrics", "Print all metrics of your loaders and arenas once, in OpenMetrics form");
  add_pid(*command, options->pid,
          "Print only this process's metrics (default: those of all your processes; root: all users')");
  command
      ->add_option("-o,--output", options->file,
                   "Write to this file, replacing it atomically (default: standard output)")
      ->type_name("FILE");
  command
      ->add_option(
          "--form", options->form,
          "Print in this form: openmetrics (1.0) or prometheus (text format 0.0.4) (default: prometheus for a FILE "
          "named *.prom, else openmetrics)")
      ->check(CLI::IsMember({"openmetrics", "prometheus"}));
  command->add_flag("--json", options->json, "Print one JSON value instead of text")->excludes("--form");
  command->callback([options, &exit_status] { exit_status = write_metrics(*options); });
  command->footer(
      "node_exporter's textfile collector reads files named *.prom in the Prometheus text format. Run this command "
      "from a timer.");
}

}  // namespace observe
