// SPDX-License-Identifier: Apache-2.0
// Finds problems of a loader: its bottleneck, workers that are slow, stopped or stuck, and failures.
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "doctor.hpp"

namespace observe {
namespace {

constexpr std::uint64_t second = 1'000'000'000;
constexpr std::uint64_t millisecond = 1'000'000;

std::string time_text(std::uint64_t ns) { return duration(double(ns) / 1e9); }

std::string worker_text(const LoaderReport& r, std::int32_t w) {
  const WorkerReport& worker = r.workers[static_cast<std::size_t>(w)];
  if (r.info.start == FEEDLANE_START_THREAD) return fmt::format("worker {} (a thread)", w);
  return worker.pid == 0 ? fmt::format("worker {}", w) : fmt::format("worker {} (pid {})", w, worker.pid);
}

// The batch in hand, and for how long.
std::string task_text(const WorkerReport& w) {
  if (w.task_ns == 0) return fmt::format("it has no batch in hand and {} in its queue", w.queued);
  std::string text =
      fmt::format("it has had batch {} of epoch {} in hand for {}", w.now.batch, w.now.epoch, time_text(w.task_ns));
  if (w.now.row >= 0) text += fmt::format(", at row {}", w.now.row);
  return text;
}

double exposed_share(const LoaderReport& r) {
  const auto& d = r.diagnosis;
  return d.interval_ns == 0 ? 0 : double(d.exposed_ns) / double(d.interval_ns);
}

// A task in hand for longer than this is far beyond the usual.
std::uint64_t long_task_ns(const LoaderReport& r) {
  constexpr std::uint64_t without_history = 10 * second;
  const std::uint64_t usual = r.timings.work_percentiles.p99_ns;
  return usual == 0 ? without_history : std::max(second, 10 * usual);
}

// ---- processes ----

// What the kernel's state of a process says against it. `who` begins a sentence.
std::optional<Finding> examine_process(const char* kind_of[3], const std::string& who, const ProcessState& p,
                                       std::int64_t pid, bool sleeps_for_long) {
  Finding f;
  if (p.state == 'T') {
    f = {kind_of[0],
         State::problem,
         -1,
         fmt::format("{} is stopped (state T)", who),
         fmt::format("resume it with kill -CONT {}", pid),
         stack_command(pid, p.state)};
  } else if (p.state == 't') {
    f = {kind_of[1],
         State::problem,
         -1,
         fmt::format("{} is stopped by its tracer, process {} (state t)", who, p.tracer),
         "resume it in the debugger, or detach the debugger",
         fmt::format("ps -fp {}", p.tracer)};
  } else if (p.state == 'D' && sleeps_for_long) {
    f = {kind_of[2],
         State::problem,
         -1,
         fmt::format("{} is in uninterruptible sleep (state D)", who),
         "its storage may not respond: check dmesg, network file systems and disks",
         stack_command(pid, p.state)};
    if (!p.wait.empty()) f.text += fmt::format(", waiting in {}", p.wait);
  } else {
    return std::nullopt;
  }
  return f;
}

void examine_trainer(LoaderReport& r) {
  if (r.trainer.state == 0 || r.trainer.state == 'Z' || r.trainer.state == 'X') {
    r.findings.push_back(
        {"trainer_ended",
         State::problem,
         -1,
         fmt::format("the trainer (pid {}) ended during the interval; its last figures are shown", r.pid),
         {},
         {}});
    return;
  }
  static const char* kinds[3] = {"trainer_stopped", "trainer_traced", "trainer_uninterruptible"};
  const std::string who = fmt::format("the trainer (pid {})", r.pid);
  if (auto f = examine_process(kinds, who, r.trainer, r.pid, r.trainer_was_asleep)) {
    r.findings.push_back(std::move(*f));
    return;
  }
  // A step of the trainer that lasts: the newest batch was yielded long ago, and next was not called since.
  if (r.info.in_epoch == 0 || r.info.waiting_since_ns != 0 || r.info.yielded_ns == 0) return;
  const std::uint64_t step = r.at_ns - std::min(r.at_ns, r.info.yielded_ns);
  const std::uint64_t usual = r.timings.hold_percentiles.p99_ns;
  if (step <= std::max(30 * second, 10 * usual)) return;
  r.findings.push_back({"trainer_hung", State::warning, -1,
                        fmt::format("{} has not asked for a batch for {}", who, time_text(step)),
                        "its stack shows what it does instead", stack_command(r.pid, r.trainer.state)});
}

// ---- workers ----

bool examine_worker_process(LoaderReport& r, std::int32_t w) {
  if (r.info.start == FEEDLANE_START_THREAD) return false;  // examine_trainer says it
  const WorkerReport& worker = r.workers[static_cast<std::size_t>(w)];
  static const char* kinds[3] = {"worker_stopped", "worker_traced", "worker_uninterruptible"};
  const bool sleeps = worker.was_asleep || worker.task_ns > long_task_ns(r);
  auto f = examine_process(kinds, worker_text(r, w), worker.process, worker.pid, sleeps);
  if (!f) return false;
  f->worker = w;
  f->text += ": " + task_text(worker);
  r.findings.push_back(std::move(*f));
  return true;
}

bool examine_start(LoaderReport& r, std::int32_t w) {
  constexpr std::uint64_t long_start = 5 * second;
  const WorkerReport& worker = r.workers[static_cast<std::size_t>(w)];
  const std::string who = worker_text(r, w);
  const std::string command = worker.pid == 0 ? "" : stack_command(worker.pid, worker.process.state);
  if (worker.now.state == FEEDLANE_WORKER_FAILED) {
    r.findings.push_back(
        {"worker_failed", State::problem, w, who + " could not open its data set", "see the errors below", {}});
    return true;
  }
  const bool is_opening = worker.now.state == FEEDLANE_WORKER_OPENING;
  if (!is_opening && worker.now.state != FEEDLANE_WORKER_STARTING) return false;
  const std::uint64_t since = r.at_ns - std::min(r.at_ns, worker.now.state_since_ns);
  if (since < long_start) return true;
  Finding f{"worker_starting", State::warning, w, {}, {}, command};
  if (is_opening) {
    f.text = fmt::format("{} has been opening its data set for {}", who, time_text(since));
    f.advice = "make the data set open faster (imports, file listings, downloads), or keep workers between epochs";
  } else if (r.info.start == FEEDLANE_START_EXTERNAL && worker.pid == 0) {
    f.text = fmt::format("{} has waited for {} for a process to attach", who, time_text(since));
    f.advice = "start a process that attaches with a descriptor from feedlane_loader_open_worker";
  } else {
    f.text = fmt::format("{} was started {} ago and has not attached", who, time_text(since));
    f.advice = "check what its program does before it attaches";
  }
  r.findings.push_back(std::move(f));
  return true;
}

bool examine_task(LoaderReport& r, std::int32_t w) {
  const WorkerReport& worker = r.workers[static_cast<std::size_t>(w)];
  const std::uint64_t usual = r.timings.work.count == 0 ? 0 : r.timings.work.sum_ns / r.timings.work.count;
  if (worker.task_ns <= long_task_ns(r)) return false;
  Finding f{"worker_hung", worker.task_ns > 10 * long_task_ns(r) ? State::problem : State::warning, w, {}, {}, {}};
  f.text = fmt::format("{} is stuck: {}", worker_text(r, w), task_text(worker));
  if (usual != 0) f.text += fmt::format("; a batch usually takes {}", time_text(usual));
  if (worker.process.state != 0)
    f.text += fmt::format(" (state {}, {}{})", worker.process.state, state_words(worker.process.state),
                          worker.process.wait.empty() ? "" : ", waiting in " + worker.process.wait);
  f.advice = "its stack shows where; set config.task_timeout_ns to replace workers that hang";
  if (worker.pid != 0) f.command = stack_command(worker.pid, worker.process.state);
  r.findings.push_back(std::move(f));
  return true;
}

// What the worker takes for a batch, the one in hand included where that is longer.
std::uint64_t pace_of(const WorkerReport& w) { return std::max(w.mean_ns, w.task_ns); }

// The median of what the other workers take for a batch; 0: no other has made one.
std::uint64_t pace_of_others(const LoaderReport& r, std::int32_t w) {
  std::vector<std::uint64_t> paces;
  for (std::size_t i = 0; i < r.workers.size(); i++)
    if (static_cast<std::int32_t>(i) != w && r.workers[i].mean_ns != 0) paces.push_back(pace_of(r.workers[i]));
  if (paces.empty()) return 0;
  const auto middle = paces.begin() + static_cast<std::ptrdiff_t>(paces.size() / 2);
  std::nth_element(paces.begin(), middle, paces.end());
  return *middle;
}

void examine_pace(LoaderReport& r, std::int32_t w) {
  constexpr double much = 3;
  constexpr double hidden = 0.01;  // so little exposed wait is no loss
  const WorkerReport& worker = r.workers[static_cast<std::size_t>(w)];
  const std::uint64_t others = pace_of_others(r, w);
  const std::uint64_t own = pace_of(worker);
  const bool is_bound = r.diagnosis.bound == FEEDLANE_BOUND_WORKER && r.diagnosis.worker == w;
  Finding f{"worker_slow", State::warning, w, {}, {}, {}};
  if (worker.pid != 0) f.command = stack_command(worker.pid, worker.process.state);
  if (others != 0 && own > others + millisecond && double(own) > much * double(others)) {
    if (!is_bound && exposed_share(r) < hidden) return;
    f.text = fmt::format("{} takes {} per batch, the others {}: {:.0f} times as long", worker_text(r, w),
                         time_text(own), time_text(others), double(own) / double(others));
    f.advice =
        r.info.iterable != 0
            ? "compare its shard, storage and processor with the others'"
            : "compare its storage and processor with the others'; config.out_of_order hides a part of the delay";
  } else if (is_bound) {
    f.text = r.diagnosis.text;
    f.advice = r.diagnosis.advice;
  } else {
    return;
  }
  r.findings.push_back(std::move(f));
}

// ---- the run ----

// Whether the library named another cause: another worker, memory, or the start.
bool is_bound_otherwise(const LoaderReport& r) {
  const feedlane_diagnosis& d = r.diagnosis;
  return d.bound == FEEDLANE_BOUND_SLOTS || d.bound == FEEDLANE_BOUND_STARTING ||
         (d.bound == FEEDLANE_BOUND_WORKER && d.worker != r.awaited);
}

// The trainer waits for a worker that does not run: that one bounds the run, though times do not show it yet.
void examine_awaited(LoaderReport& r) {
  if (is_bound_otherwise(r)) return;
  for (const Finding& f : r.findings) {
    if (f.worker < 0 || f.worker != r.awaited || f.state != State::problem) continue;
    r.diagnosis.bound = FEEDLANE_BOUND_WORKER;
    r.diagnosis.worker = f.worker;
    (void)fmt::format_to_n(r.diagnosis.text, sizeof r.diagnosis.text - 1, "{}, and the trainer is waiting for it{:c}",
                           f.text, '\0');
    (void)fmt::format_to_n(r.diagnosis.advice, sizeof r.diagnosis.advice - 1, "{}{:c}", f.advice, '\0');
    return;
  }
}

void examine_bound(LoaderReport& r) {
  constexpr double little = 0.05;
  const auto& d = r.diagnosis;
  if (d.bound == FEEDLANE_BOUND_DATA && exposed_share(r) >= little)
    r.findings.push_back({"data",
                          State::warning,
                          -1,
                          fmt::format("the data set is the bottleneck: next waited for {:.0f} % of the time",
                                      100 * std::min(1.0, exposed_share(r))),
                          d.advice,
                          {}});
  if (d.bound == FEEDLANE_BOUND_SLOTS) r.findings.push_back({"slots", State::warning, -1, d.text, d.advice, {}});
  if (d.bound == FEEDLANE_BOUND_PROCESSORS)
    r.findings.push_back({"processors", State::warning, -1, d.text, d.advice, {}});
}

// Whether `later` is more than `many` after `batch`. Both numbers are what another process says.
bool is_far_behind(std::int64_t batch, std::int64_t later, std::int64_t many) {
  std::int64_t distance = 0;
  return later > batch && (__builtin_sub_overflow(later, batch, &distance) || distance > many);
}

void examine_held(LoaderReport& r) {
  // A batch is held for long when many later ones were yielded. How many of them a trainer has at once, config.held says.
  const std::int64_t many = std::max<std::int64_t>(8, 4 * std::int64_t{r.info.held});
  std::uint64_t longest = 0;
  std::uint64_t count = 0;
  const feedlane_batch_record* oldest = nullptr;
  for (const feedlane_batch_record& b : r.held) {
    const bool is_old = b.epoch < r.info.epoch || is_far_behind(b.batch, r.info.batch, many) ||
                        r.diagnosis.bound == FEEDLANE_BOUND_SLOTS;
    const std::uint64_t held = r.at_ns - std::min(r.at_ns, b.yielded_ns);
    if (!is_old || held < second) continue;
    count++;
    if (held <= longest) continue;
    longest = held;
    oldest = &b;
  }
  if (oldest == nullptr) return;
  r.findings.push_back(
      {"held",
       State::warning,
       -1,
       fmt::format("the trainer has not released {} old batches; it has held batch {} of epoch {} for {}", count,
                   oldest->batch, oldest->epoch, time_text(longest)),
       "release batches, or copy the data to keep; if the program needs them, raise config.held",
       {}});
}

void examine_restarts(LoaderReport& r) {
  const feedlane_stats& s = r.stats;
  if (s.restarts == 0) return;
  std::string reasons;
  const auto add = [&](std::uint64_t count, const char* why) {
    if (count != 0) reasons += fmt::format("{}{} {}", reasons.empty() ? "" : ", ", count, why);
  };
  add(s.restarts_signal, "killed by a signal");
  add(s.restarts_exit, "exited");
  add(s.restarts_hung, "hung");
  add(s.restarts_invalid, "sent invalid results");
  add(s.restarts_unattached, "ended before they attached");
  Finding f{
      "restarts", State::warning,
      -1,         fmt::format("{} worker{} replaced: {}", s.restarts, s.restarts == 1 ? " was" : "s were", reasons),
      {},         {}};
  const std::uint64_t killed = killed_for_memory(System{"", std::to_string(r.pid)});
  if (s.restarts_signal != 0 && killed != 0)
    f.advice = fmt::format(
        "the OOM killer has killed {} processes of this cgroup: raise its memory limit, or reduce the memory use "
        "of workers",
        killed);
  else f.advice = "the errors below show how each worker ended";
  r.findings.push_back(std::move(f));
}

void examine_errors(LoaderReport& r) {
  struct Sum {
    std::uint64_t kinds = 0;
    std::uint64_t count = 0;
    void add(const feedlane_error_record& e) { kinds++, count += e.count; }
  };
  Sum errors;
  Sum warnings;  // of the library
  for (const feedlane_error_record& e : r.errors) {
    if (e.kind == FEEDLANE_EVENT_WORKER_STARTED || e.kind == FEEDLANE_EVENT_WORKER_WANTED) continue;
    (e.kind == FEEDLANE_EVENT_WARNING ? warnings : errors).add(e);
  }
  const auto tell = [&r](const char* kind, const char* word, const Sum& sum) {
    if (sum.kinds == 0) return;
    const std::string text = fmt::format("{} {}{} of {} kind{}: see below", sum.count, word, sum.count == 1 ? "" : "s",
                                         sum.kinds, sum.kinds == 1 ? "" : "s");
    r.findings.push_back({kind, State::warning, -1, text, {}, {}});
  };
  tell("errors", "error", errors);
  tell("warnings", "warning", warnings);
}

void examine_descriptors(LoaderReport& r) {
  constexpr std::uint64_t few = 8;  // what the start of a worker takes
  const System system{"", std::to_string(r.pid)};
  const std::uint64_t limit = limit_of(system, "Max open files").soft;
  const std::uint64_t open = entries_of(system.of_process("fd"));
  if (open == 0 || limit == unlimited || open + few <= limit) return;
  r.findings.push_back(
      {"descriptors",
       State::warning,
       -1,
       fmt::format("the trainer has {} of {} descriptors open: too few are free to replace a worker", open, limit),
       fmt::format("prlimit --pid {} --nofile={} now, and ulimit -n before the next start", r.pid, 2 * limit),
       {}});
}

}  // namespace

void examine(LoaderReport& r) {
  examine_trainer(r);
  for (std::int32_t w = 0; w < static_cast<std::int32_t>(r.workers.size()); w++) {
    if (r.workers[static_cast<std::size_t>(w)].now.state == FEEDLANE_WORKER_NONE) continue;
    if (examine_worker_process(r, w) || examine_start(r, w) || examine_task(r, w)) continue;
    examine_pace(r, w);
  }
  examine_awaited(r);
  examine_bound(r);
  examine_held(r);
  examine_restarts(r);
  examine_errors(r);
  examine_descriptors(r);
}

}  // namespace observe
