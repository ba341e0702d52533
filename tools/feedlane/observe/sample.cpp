// SPDX-License-Identifier: Apache-2.0
// Reads a loader's numbers by its monitor.
#include "sample.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace observe {

int Sample::ready_workers() const {
  return static_cast<int>(std::count_if(
      workers.begin(), workers.end(), [](const feedlane_worker_stats& w) { return w.state == FEEDLANE_WORKER_READY; }));
}

Sample take_sample(const feedlane::Monitor& monitor) {
  Sample s;
  s.time_ns = now_ns();
  s.info = monitor.info();
  s.stats = monitor.stats();
  s.workers = monitor.worker_stats();
  return s;
}

namespace {

double per_s(std::uint64_t before, std::uint64_t after, std::uint64_t ns) {
  return ns == 0 || after < before ? 0 : static_cast<double>(after - before) * 1e9 / static_cast<double>(ns);
}

// Up to the time of the sample, the task in hand included.
std::uint64_t busy_until(const Sample& s, std::size_t worker) {
  const feedlane_worker_stats& w = s.workers[worker];
  const bool has_task = w.task_since_ns != 0 && w.task_since_ns < s.time_ns;
  return w.work_ns + (has_task ? s.time_ns - w.task_since_ns : 0);
}

}  // namespace

Rates rates(const Sample& before, const Sample& after) {
  const std::uint64_t ns = after.time_ns - before.time_ns;
  return {per_s(before.stats.batches, after.stats.batches, ns), per_s(before.stats.samples, after.stats.samples, ns),
          per_s(before.stats.bytes, after.stats.bytes, ns)};
}

std::uint64_t busy_ns(const Sample& before, const Sample& after, std::size_t worker) {
  if (worker >= before.workers.size() || worker >= after.workers.size()) return 0;
  const std::uint64_t from = busy_until(before, worker);
  const std::uint64_t to = busy_until(after, worker);
  return to <= from ? 0 : std::min(to - from, after.time_ns - before.time_ns);
}

double tasks_per_s(const Sample& before, const Sample& after, std::size_t worker) {
  if (worker >= before.workers.size() || worker >= after.workers.size()) return 0;
  return per_s(before.workers[worker].tasks, after.workers[worker].tasks, after.time_ns - before.time_ns);
}

double rounded(double number) { return std::round(number * 10) / 10; }

std::string title(const Found& found, const feedlane_loader_info& info) {
  const std::string name = printable(info.name);
  return fmt::format("loader {}{} of process {}", found.nth, name.empty() ? "" : " (" + name + ")", found.pid);
}

std::string progress(const feedlane_loader_info& info) {
  if (info.epoch < 0) return "-";
  return info.batches < 0 ? fmt::format("{}/?", info.batch) : fmt::format("{}/{}", info.batch, info.batches);
}

}  // namespace observe
