// SPDX-License-Identifier: Apache-2.0
// Reads a loader's counters from its segments.
#include "monitor/stats.hpp"

#include <algorithm>

#include "monitor/histogram.hpp"
#include "monitor/records.hpp"
#include "os/clock.hpp"

namespace feedlane::monitor {
namespace {

template <class Word>
auto read(const Word& counter) {
  return counter.load(std::memory_order_relaxed);  // only a statistic
}

// While the trainer waits, the word holds the sum minus the time at which the wait began: see loader/stamps.cpp.
std::uint64_t read_wait(const shm::LoaderCounters& c) {
  const auto waited = static_cast<std::int64_t>(read(c.wait_ns));
  return static_cast<std::uint64_t>(waited < 0 ? std::max<std::int64_t>(waited + os::now_ns(), 0) : waited);
}

}  // namespace

feedlane_stats read_counters(const shm::LoaderCounters& c) {
  feedlane_stats s{};
  s.size = sizeof s;
  s.batches = read(c.batches);
  s.samples = read(c.samples);
  s.bytes = read(c.bytes);
  s.epochs = read(c.epochs);
  s.wait_ns = read_wait(c);
  s.restarts = read(c.restarts);
  s.redispatched = read(c.redispatched);
  s.quarantined = read(c.quarantined);
  s.invalid_results = read(c.invalid_results);
  s.late_results = read(c.late_results);
  s.retried = read(c.retried);
  s.substituted = read(c.substituted);
  s.skipped = read(c.skipped);
  s.hung = read(c.hung);
  s.slots_held = read(c.slots_held);
  s.huge_bytes = read(c.huge_bytes);
  s.start_wait_ns = read(c.start_wait_ns);
  s.restarts_signal = read(c.restarts_signal);
  s.restarts_exit = read(c.restarts_exit);
  s.restarts_hung = read(c.restarts_hung);
  s.restarts_invalid = read(c.restarts_invalid);
  s.restarts_unattached = read(c.restarts_unattached);
  return s;
}

feedlane_stats read_stats(const shm::Segments& segments) {
  feedlane_stats s = read_counters(*segments.counters());
  s.slots = segments.plan().geometry.slots;
  // The two counters are not read at the same time, so a slot that moves from one to the other may count twice.
  s.slots_free = s.slots - std::min(s.slots, read(segments.counters()->slots_taken) + s.slots_held);
  s.control_bytes = segments.plan().control_bytes;
  s.data_bytes = segments.plan().data_bytes;
  s.reserved_bytes = segments.plan().reserved_bytes();
  return s;
}

namespace {

// Limit of the slots searched for all workers together, so that a segment of any size takes at most a tenth of a
// second. Loaders with 4096 workers have no more slots than this allows.
constexpr std::uint64_t most_looks = std::uint64_t{1} << 26;

// Finds the batch of a task, if a slot has it. `task` comes from the worker and may have any value.
void find_batch(const shm::Segments& segments, std::uint64_t task, std::uint32_t w, feedlane_worker_stats& out) {
  const shm::Geometry& geometry = segments.plan().geometry;
  const std::uint64_t looks = std::min<std::uint64_t>(geometry.slots, most_looks / geometry.workers);
  for (std::uint64_t slot = 0; slot < looks; slot++) {
    if (read(segments.slot_record(static_cast<std::uint32_t>(slot))->task) != task) continue;
    feedlane_batch_record record;
    (void)read_slot(segments, slot, record);
    if (record.task == task) add_batch(segments, record, w, out);
    return;
  }
}

}  // namespace

std::uint64_t read_worker_row(const shm::Segments& segments, std::uint32_t w, feedlane_worker_stats& out) {
  const shm::TrainerRow& trainers = *segments.trainer_row(w);
  const shm::WorkerRow& own = *segments.worker_row(w);
  out = {};
  out.size = sizeof out;
  out.pid = static_cast<std::int64_t>(read(trainers.pid));
  out.state = static_cast<std::int32_t>(read(trainers.state));
  out.generation = static_cast<std::int32_t>(read(trainers.generation));
  out.tasks = read(own.tasks);
  out.samples = read(own.samples);
  out.bytes = read(own.bytes);
  out.errors = read(own.errors);
  out.work_ns = read(own.work_ns);
  out.wait_ns = read(own.wait_ns);
  out.state_since_ns = read(trainers.state_since_ns);
  out.epoch = out.batch = out.row = -1;
  const std::uint64_t task = read(own.started_task);
  if (task == 0 || out.state != FEEDLANE_WORKER_READY) return 0;
  out.task_since_ns = std::min(read(own.started_ns), static_cast<std::uint64_t>(os::now_ns()));
  return task;
}

void add_batch(const shm::Segments& segments, const feedlane_batch_record& record, std::uint32_t w,
               feedlane_worker_stats& out) {
  out.epoch = record.epoch;
  out.batch = record.batch;
  const std::uint64_t row = read(segments.worker_row(w)->started_sample);
  if (row < record.rows) out.row = static_cast<std::int64_t>(row);
}

Status read_worker_stats(const shm::Segments& segments, std::int32_t worker, feedlane_worker_stats& out) {
  if (worker < 0) return FEEDLANE_E_ARGUMENT;
  const auto w = static_cast<std::uint32_t>(worker);
  if (w >= segments.plan().geometry.workers) return FEEDLANE_END;
  if (const std::uint64_t task = read_worker_row(segments, w, out); task != 0) find_batch(segments, task, w, out);
  return FEEDLANE_OK;
}

Status read_timings(const shm::Segments& segments, std::int32_t worker, feedlane_timings& out) {
  if (worker < -1) return FEEDLANE_E_ARGUMENT;
  const shm::Plan& plan = segments.plan();
  if (worker >= static_cast<std::int32_t>(plan.geometry.workers)) return FEEDLANE_END;
  out = {};
  out.size = sizeof out;
  const std::uint32_t first = worker < 0 ? 0 : static_cast<std::uint32_t>(worker);
  const std::uint32_t end = worker < 0 ? static_cast<std::uint32_t>(plan.timing_rows()) : first + 1;
  const auto add = [&](shm::Histogram shm::TimingRow::*step, feedlane_histogram& to, feedlane_percentiles& at) {
    Durations sum;
    for (std::uint32_t row = first; row < end; row++) add_to(sum, segments.timing_row(row)->*step);
    to = by_powers(sum);
    at = percentiles(sum);
  };
  add(&shm::TimingRow::exposed, out.exposed, out.exposed_percentiles);
  add(&shm::TimingRow::start, out.start, out.start_percentiles);
  add(&shm::TimingRow::queue, out.queue, out.queue_percentiles);
  add(&shm::TimingRow::work, out.work, out.work_percentiles);
  add(&shm::TimingRow::ready, out.ready, out.ready_percentiles);
  add(&shm::TimingRow::hold, out.hold, out.hold_percentiles);
  return FEEDLANE_OK;
}

feedlane_loader_info read_info(const shm::Segments& segments) {
  const shm::Geometry& geometry = segments.plan().geometry;
  const shm::LoaderFacts& facts = *segments.facts();
  const shm::LoaderCounters& c = *segments.counters();
  feedlane_loader_info info{};
  info.size = sizeof info;
  info.pid = static_cast<std::int64_t>(facts.pid);
  info.created_ns = facts.created_ns;
  info.start = static_cast<std::int32_t>(facts.start);
  info.workers = static_cast<std::int32_t>(geometry.workers);
  info.prefetch_factor = static_cast<std::int32_t>(read(c.prefetch));
  info.held = static_cast<std::int32_t>(facts.held);
  info.batch_size = geometry.max_rows;
  info.task_timeout_ns = facts.task_timeout_ns;
  info.iterable = (geometry.flags & shm::geometry_iterable) != 0 ? 1 : 0;
  info.in_epoch = read(c.in_epoch) != 0 ? 1 : 0;
  info.epoch = static_cast<std::int64_t>(read(c.epoch));
  info.batch = static_cast<std::int64_t>(read(c.epoch_first) + read(c.epoch_done));
  info.batches = static_cast<std::int64_t>(read(c.epoch_batches));
  info.begun_ns = read(c.begun_ns);
  info.yielded_ns = read(c.yielded_ns);
  info.waiting_since_ns = read(c.waiting_since_ns);
  info.trace = geometry.trace_records == 0 ? 0 : geometry.trace_records - 1;  // see Memory::plan
  copy_text(info.name, sizeof info.name, facts.name);
  copy_text(info.version, sizeof info.version, facts.version);
  info.next_epoch = -1;
  return info;
}

}  // namespace feedlane::monitor
