// SPDX-License-Identifier: Apache-2.0
// Takes snapshots and subtracts them.
#include "monitor/snapshot.hpp"

#include <algorithm>

#include "monitor/records.hpp"
#include "monitor/stats.hpp"
#include "os/clock.hpp"
#include "os/other_process.hpp"

namespace feedlane::monitor {

void Snapshot::reserve(const shm::Segments& segments) {
  const shm::Plan& plan = segments.plan();
  workers.resize(plan.geometry.workers);
  exposed.resize(plan.timing_rows());
  work.resize(plan.timing_rows());
  delays.assign(plan.geometry.workers, -1);
  oldest.resize(plan.geometry.workers);
}

void Snapshot::take(const shm::Segments& segments) {
  stats = read_stats(segments);
  info = read_info(segments);
  for (std::size_t w = 0; w < workers.size(); w++)
    (void)read_worker_row(segments, static_cast<std::uint32_t>(w), workers[w]);
  for (std::size_t row = 0; row < work.size(); row++) {
    const shm::TimingRow& timings = *segments.timing_row(static_cast<std::uint32_t>(row));
    add_to(exposed[row] = {}, timings.exposed);
    add_to(work[row] = {}, timings.work);
  }
  find_batches(segments);
  at_ns = static_cast<std::uint64_t>(os::now_ns());
}

void Snapshot::take_delays(const shm::Segments& segments) {
  if (!sees_processes) return;
  trainer_delay = os::run_delay_ns(info.pid);
  for (std::size_t w = 0; w < workers.size(); w++) {
    const shm::WorkerRow& row = *segments.worker_row(static_cast<std::uint32_t>(w));
    // A thread id that another process reports may belong to another PID namespace. Relaxed: only a statistic.
    const bool is_thread = info.start == FEEDLANE_START_THREAD;
    delays[w] = os::run_delay_ns(is_thread ? static_cast<std::int64_t>(row.thread.load(std::memory_order_relaxed))
                                           : workers[w].pid);
  }
}

// Finds the batch that each worker has in hand, and its oldest unanswered batch, in one pass over the slots.
void Snapshot::find_batches(const shm::Segments& segments) {
  std::fill(oldest.begin(), oldest.end(), feedlane_batch_record{});
  feedlane_batch_record record{};
  for (std::uint64_t slot = 0; read_slot(segments, slot, record) == FEEDLANE_OK; slot++) {
    const auto w = static_cast<std::size_t>(record.worker);
    if (record.task == 0 || record.swept_ns != 0 || record.worker < 0 || w >= oldest.size()) continue;
    // A task that was begun and is not in hand is answered, even if the trainer has not read the result. The worker's
    // words are only hints. Relaxed: only a statistic.
    const shm::WorkerRow& row = *segments.worker_row(static_cast<std::uint32_t>(w));
    const bool is_begun = row.begun_through.load(std::memory_order_relaxed) >= record.task;
    const bool is_in_hand = row.started_task.load(std::memory_order_relaxed) == record.task;
    if (is_in_hand && workers[w].task_since_ns != 0)
      add_batch(segments, record, static_cast<std::uint32_t>(w), workers[w]);
    if (is_begun && !is_in_hand) continue;
    if (oldest[w].task == 0 || record.dispatched_ns < oldest[w].dispatched_ns) oldest[w] = record;
  }
}

// ---- an epoch ----

void EpochFigures::reserve(const shm::Segments& segments) {
  begin_.reserve(segments);
  begin_.take(segments);
}

void EpochFigures::begin(const shm::Segments& segments) {
  const std::lock_guard lock(mutex_);
  begin_.take(segments);
  end_ns_ = 0;
}

// A report's figures don't change until the next begin, so it is enough to store the time.
void EpochFigures::end() {
  const std::lock_guard lock(mutex_);
  if (end_ns_ == 0) end_ns_ = static_cast<std::uint64_t>(os::now_ns());
}

void EpochFigures::read(const shm::Segments& segments, Snapshot& before, Snapshot& after) const {
  before.reserve(segments);
  after.reserve(segments);
  after.take(segments);
  after.take_delays(segments);
  const std::lock_guard lock(mutex_);  // held for one copy, because begin and next wait for it
  before = begin_;
  if (end_ns_ != 0) after.at_ns = std::min(after.at_ns, end_ns_);
  // An epoch began after `after` was taken.
  if (before.at_ns > after.at_ns) after = before;
}

// ---- differences ----

namespace {

// Time of the task in hand, which work_ns does not include yet.
std::uint64_t in_hand(const Snapshot& snapshot, std::size_t worker) {
  const std::uint64_t since = snapshot.workers[worker].task_since_ns;
  return since == 0 ? 0 : difference(snapshot.at_ns, since);
}

}  // namespace

std::uint64_t busy_between(const Snapshot& before, const Snapshot& after, std::size_t worker) {
  const std::uint64_t until_now = after.workers[worker].work_ns + in_hand(after, worker);
  const std::uint64_t until_then = before.workers[worker].work_ns + in_hand(before, worker);
  return std::min(difference(until_now, until_then), difference(after.at_ns, before.at_ns));
}

double delay_between(const Snapshot& before, const Snapshot& after, std::size_t worker) {
  const std::int64_t until_now = after.delays[worker];
  const std::int64_t until_then = before.delays[worker];
  if (until_now < 0) return -1;
  if (before.workers[worker].generation == after.workers[worker].generation && before.workers[worker].pid != 0)
    return until_then < 0 ? -1 : static_cast<double>(std::max<std::int64_t>(until_now - until_then, 0));
  // The worker was started between the snapshots.
  return std::min(static_cast<double>(until_now), static_cast<double>(difference(after.at_ns, before.at_ns)));
}

Durations between(const Durations& before, const Durations& after) {
  Durations result;
  for (std::size_t b = 0; b < shm::histogram_buckets; b++)
    result.count += result.buckets[b] = difference(after.buckets[b], before.buckets[b]);
  result.sum_ns = difference(after.sum_ns, before.sum_ns);
  return result;
}

}  // namespace feedlane::monitor
