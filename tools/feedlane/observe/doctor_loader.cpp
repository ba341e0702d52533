// SPDX-License-Identifier: Apache-2.0
// Reads a loader and its processes at both ends of the interval.
#include <algorithm>
#include <utility>

#include "doctor.hpp"

namespace observe {
namespace {

// The process of a worker, as this command sees it. A thread's is the trainer's.
std::int64_t process_of(std::int64_t trainer, const ProcessNumbers& numbers, const feedlane_loader_info& info,
                        const feedlane_worker_stats& worker) {
  if (info.start == FEEDLANE_START_THREAD) return trainer;
  return worker.state == FEEDLANE_WORKER_NONE ? 0 : numbers.here(worker.pid);
}

bool has_same_task(const feedlane_worker_stats& a, const feedlane_worker_stats& b) {
  return a.generation == b.generation && a.task_since_ns != 0 && a.task_since_ns == b.task_since_ns;
}

WorkerReport report_on(const feedlane_worker_stats& now, const feedlane_worker_stats& before, std::int64_t pid,
                       char state_before, std::uint64_t at_ns) {
  WorkerReport w;
  w.now = now;
  w.pid = pid;
  if (pid != 0) w.process = state_of(pid);
  w.tasks = now.tasks - std::min(now.tasks, before.tasks);
  // The counters are the worker's own, and are read one after another while it works.
  if (w.tasks != 0) w.mean_ns = (now.work_ns - std::min(now.work_ns, before.work_ns)) / w.tasks;
  else if (now.tasks != 0) w.mean_ns = now.work_ns / now.tasks;
  if (now.task_since_ns != 0) w.task_ns = at_ns - std::min(at_ns, now.task_since_ns);
  w.was_asleep = state_before == 'D' && has_same_task(before, now);
  return w;
}

bool is_held(const feedlane_batch_record& record) {
  return record.task != 0 && record.yielded_ns != 0 && record.released_ns == 0 && record.status == 0;
}

// Whether the trainer has read a batch of the epoch and not yielded it while it waits for another one: with
// config.out_of_order it would have. Only then is info.batch the batch that it waits for. An iterable data set's batches have
// their numbers when they are yielded.
bool waits_in_order(const std::vector<feedlane_batch_record>& slots, const LoaderReport& report) {
  constexpr std::uint64_t long_ago_ns = 10'000'000;  // between reading and yielding a batch
  const feedlane_loader_info& info = report.info;
  if (info.waiting_since_ns == 0 || info.iterable != 0) return false;
  return std::any_of(slots.begin(), slots.end(), [&](const feedlane_batch_record& r) {
    return r.task != 0 && r.epoch == info.epoch && r.batch > info.batch && r.swept_ns != 0 && r.yielded_ns == 0 &&
           r.released_ns == 0 && r.swept_ns + long_ago_ns < report.at_ns;
  });
}

// Which batches are held, which wait for their worker, and which the trainer waits for.
void sort_out(const std::vector<feedlane_batch_record>& slots, LoaderReport& report) {
  const feedlane_loader_info& info = report.info;
  const bool in_order = waits_in_order(slots, report);
  for (const feedlane_batch_record& record : slots) {
    if (is_held(record)) report.held.push_back(record);
    const bool is_on_its_way = record.task != 0 && record.epoch == info.epoch && record.committed_ns == 0 &&
                               record.dispatched_ns != 0 && record.released_ns == 0;
    if (!is_on_its_way || record.worker < 0 || static_cast<std::size_t>(record.worker) >= report.workers.size())
      continue;
    if (record.begun_ns == 0) report.workers[static_cast<std::size_t>(record.worker)].queued++;
    if (in_order && record.batch == info.batch) report.awaited = record.worker;
  }
}

}  // namespace

Observation::Observation(Found loader) : found(std::move(loader)) {
  (void)found.monitor.diagnose();  // the next call's interval begins here
  workers = found.monitor.worker_stats();
  const feedlane_loader_info info = found.monitor.info();
  trainer = state_of(found.pid).state;
  yielded_ns = info.yielded_ns;
  const ProcessNumbers numbers(found.pid);
  for (const feedlane_worker_stats& worker : workers) {
    const std::int64_t pid = process_of(found.pid, numbers, info, worker);
    states.push_back(pid == 0 ? '\0' : state_of(pid).state);
  }
}

LoaderReport look_at(Observation& observation) {
  feedlane::Monitor& monitor = observation.found.monitor;
  LoaderReport report;
  report.pid = observation.found.pid;
  report.nth = observation.found.nth;
  report.program = observation.found.program;
  report.diagnosis = monitor.diagnose();
  report.info = monitor.info();
  report.stats = monitor.stats();
  report.timings = monitor.timings();
  report.trainer = state_of(report.pid);
  report.trainer_was_asleep = observation.trainer == 'D' && observation.yielded_ns == report.info.yielded_ns;
  const std::vector<feedlane_worker_stats> now = monitor.worker_stats();
  const std::vector<feedlane_batch_record> slots = monitor.slots();
  report.errors = monitor.errors();
  report.at_ns = now_ns();  // after all stamps
  const ProcessNumbers numbers(report.pid);
  for (std::size_t w = 0; w < std::min(now.size(), observation.workers.size()); w++) {
    const std::int64_t pid = process_of(report.pid, numbers, report.info, now[w]);
    report.workers.push_back(report_on(now[w], observation.workers[w], pid, observation.states[w], report.at_ns));
  }
  sort_out(slots, report);
  examine(report);
  return report;
}

}  // namespace observe
