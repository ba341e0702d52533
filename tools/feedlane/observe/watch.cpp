// SPDX-License-Identifier: Apache-2.0
// Follows loaders that begin and end.
#include "watch.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace observe {
namespace {

bool is_same(const feedlane_loader_info& a, const feedlane_loader_info& b) {
  return a.pid == b.pid && a.created_ns == b.created_ns;
}

double share(std::uint64_t part, double whole) { return whole <= 0 ? -1 : static_cast<double>(part) / whole; }

}  // namespace

double Watched::exposed() const {
  return std::min(1.0, share(diagnosis.exposed_ns, static_cast<double>(diagnosis.interval_ns)));
}

double Watched::readiness() const { return share(diagnosis.ready, static_cast<double>(diagnosis.asked)); }

double Watched::busy() const {
  const double all = static_cast<double>(diagnosis.interval_ns) * after.info.workers;
  return std::min(1.0, share(diagnosis.busy_ns, all));
}

double Watched::worker_busy(std::size_t worker) const {
  return share(busy_ns(before, after, worker), static_cast<double>(after.time_ns - before.time_ns));
}

void Watch::find() {
  drop_ended();
  const std::uint64_t now = now_ns();
  if (now < next_search_ns_) return;
  next_search_ns_ = now + 1'000'000'000;
  error_ = {};
  if (pid_ != 0) return add(loaders_of(pid_, error_, true));
  std::vector<Unreadable> unreadable;  // looked for again in a second
  add(all_loaders(unreadable));
  for (const Unreadable& u : unreadable)
    if (told_.insert(u.pid).second) say("process {} ({}) is not watched: {}", u.pid, u.program, u.error.what());
}

void Watch::add(std::vector<Found> found) {
  std::set<std::pair<std::int64_t, std::uint64_t>> known;
  for (const Watched& w : all_) known.emplace(w.before.info.pid, w.before.info.created_ns);
  for (Found& f : found) {
    const feedlane_loader_info info = f.monitor.info();
    if (!known.emplace(info.pid, info.created_ns).second) continue;
    const Sample first = take_sample(f.monitor);
    // What was before this does not count: the first diagnosis begins when the monitor was opened.
    all_.push_back({std::move(f), first, first, {}, false});
    has_seen_one_ = true;
  }
}

// A monitor keeps the last numbers of a loader that has ended, so the processes are looked at again.
void Watch::drop_ended() {
  std::map<std::int64_t, std::vector<Watched>> by_process;  // each process is looked at once
  for (Watched& w : all_) by_process[w.found.pid].push_back(std::move(w));
  std::vector<Watched> kept;
  for (auto& [pid, of_process] : by_process) drop_those_of(pid, of_process, kept);
  all_ = std::move(kept);
}

void Watch::drop_those_of(std::int64_t pid, std::vector<Watched>& of_process, std::vector<Watched>& kept) {
  feedlane::Error error;
  const std::vector<Found> present = loaders_of(pid, error, pid_ != 0);
  for (Watched& w : of_process) {
    const bool is_there = std::any_of(present.begin(), present.end(),
                                      [&](const Found& f) { return is_same(f.monitor.info(), w.before.info); });
    const bool is_unknown = !is_there && is_cut_short(error);
    if (is_unknown && !w.is_unknown)
      say("{} cannot be read and may have ended; it will be tried again: {}", title(w.found, w.before.info),
          error.what());
    w.is_unknown = is_unknown;
    if (is_there || is_unknown) kept.push_back(std::move(w));
    else say("{} has ended", title(w.found, w.before.info));
  }
}

void Watch::measure() {
  for (Watched& w : all_) {
    w.before = std::move(w.after);
    w.after = take_sample(w.found.monitor);
    w.diagnosis = w.found.monitor.diagnose();
  }
}

namespace {

Json worker_json(const Watched& w, std::size_t id) {
  const feedlane_worker_stats& s = w.after.workers[id];
  const feedlane_timings timings = w.found.monitor.timings(static_cast<std::int32_t>(id));
  const bool has_task = s.task_since_ns != 0;
  return {{"id", id},
          {"pid", s.pid},
          {"state", state_name(s.state)},
          {"state_ns", w.after.time_ns - std::min(w.after.time_ns, s.state_since_ns)},
          {"generation", s.generation},
          {"task_ns", has_task ? Json(w.after.time_ns - std::min(w.after.time_ns, s.task_since_ns)) : Json()},
          {"epoch", or_null(has_task ? s.epoch : -1)},
          {"batch", or_null(has_task ? s.batch : -1)},
          {"row", or_null(has_task ? s.row : -1)},
          {"busy_ns", busy_ns(w.before, w.after, id)},
          {"batches_per_s", rounded(tasks_per_s(w.before, w.after, id))},
          {"work_p50_ns", timings.work_percentiles.p50_ns},
          {"work_p99_ns", timings.work_percentiles.p99_ns},
          {"total_tasks", s.tasks},
          {"total_samples", s.samples},
          {"total_bytes", s.bytes},
          {"total_errors", s.errors}};
}

}  // namespace

Json watched_json(const Watched& w, bool with_workers) {
  const Rates rate = rates(w.before, w.after);
  const feedlane_diagnosis& d = w.diagnosis;
  Json line = {{"time_unix_ns", unix_time_ns()},
               {"pid", w.found.pid},
               {"loader", w.found.nth},
               {"name", w.after.info.name},
               {"in_epoch", w.after.info.in_epoch != 0},
               {"epoch", or_null(w.after.info.epoch)},
               {"batch", w.after.info.batch},
               {"batches", or_null(w.after.info.batches)},
               {"interval_ns", d.interval_ns},
               {"batches_per_s", rounded(rate.batches)},
               {"samples_per_s", rounded(rate.samples)},
               {"bytes_per_s", rounded(rate.bytes)},
               {"exposed_ns", d.exposed_ns},
               {"start_ns", d.start_ns},
               {"busy_ns", d.busy_ns},
               {"ready", d.ready},
               {"asked", d.asked},
               {"workers", w.after.info.workers},
               {"workers_ready", w.after.ready_workers()},
               {"slots", w.after.stats.slots},
               {"slots_free", w.after.stats.slots_free},
               {"slots_held", w.after.stats.slots_held},
               {"total_batches", w.after.stats.batches},
               {"total_samples", w.after.stats.samples},
               {"total_bytes", w.after.stats.bytes},
               {"total_restarts", w.after.stats.restarts},
               {"bound", bound_name(d.bound)},
               {"bound_worker", or_null(d.worker)},
               {"text", d.text},
               {"advice", d.advice}};
  if (!with_workers) return line;
  line["each_worker"] = Json::array();
  for (std::size_t id = 0; id < w.after.workers.size(); id++) line["each_worker"].push_back(worker_json(w, id));
  return line;
}

}  // namespace observe
