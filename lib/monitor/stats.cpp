// SPDX-License-Identifier: Apache-2.0
// Reads a loader's counters from its segments.
#include "monitor/stats.hpp"

#include <algorithm>

namespace feedlane::monitor {
namespace {

template <class Word>
auto read(const Word& counter) {
  return counter.load(std::memory_order_relaxed);  // only a statistic
}

}  // namespace

feedlane_stats read_stats(const shm::Segments& segments) {
  const shm::LoaderCounters& c = *segments.counters();
  feedlane_stats s{};
  s.size = sizeof s;
  s.batches = read(c.batches);
  s.samples = read(c.samples);
  s.bytes = read(c.bytes);
  s.epochs = read(c.epochs);
  s.wait_ns = read(c.wait_ns);
  s.restarts = read(c.restarts);
  s.redispatched = read(c.redispatched);
  s.quarantined = read(c.quarantined);
  s.invalid_results = read(c.invalid_results);
  s.late_results = read(c.late_results);
  s.retried = read(c.retried);
  s.substituted = read(c.substituted);
  s.skipped = read(c.skipped);
  s.hung = read(c.hung);
  s.slots = segments.plan().geometry.slots;
  s.slots_held = read(c.slots_held);
  // The two counters are not read at once: a slot that moves from one to the other may count twice.
  s.slots_free = s.slots - std::min(s.slots, read(c.slots_taken) + s.slots_held);
  s.control_bytes = segments.plan().control_bytes;
  s.data_bytes = segments.plan().data_bytes;
  s.reserved_bytes = segments.plan().reserved_bytes();
  s.huge_bytes = read(c.huge_bytes);
  return s;
}

Status read_worker_stats(const shm::Segments& segments, std::int32_t worker, feedlane_worker_stats& out) {
  if (worker < 0) return FEEDLANE_E_ARGUMENT;
  const auto w = static_cast<std::uint32_t>(worker);
  if (w >= segments.plan().geometry.workers) return FEEDLANE_END;
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
  return FEEDLANE_OK;
}

}  // namespace feedlane::monitor
