// SPDX-License-Identifier: Apache-2.0
// Finds the bottleneck of a run. Interval::decide applies the rules in order; docs/observing.md describes them.
#include "monitor/diagnosis.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "monitor/histogram.hpp"
#include "monitor/words.hpp"
#include "os/other_process.hpp"

namespace feedlane::monitor {
namespace {

// If next has no batch for less than this share of the time, the trainer is the bottleneck.
constexpr double small_share = 0.05;
// A worker is slow if a batch takes it this many times as long as the median of the others.
constexpr double slow_factor = 3;
// A task in hand is suspicious after this multiple of the usual time, and not before stuck_ns.
constexpr double stuck_factor = 8;
constexpr double stuck_ns = 1e9;
// A stopped process is reported after this time.
constexpr double stopped_ns = 0.2e9;
// Workers are busy above this share of the time of all workers.
constexpr double busy_share = 0.7;
// From this share of the wait on, it is explained by processes that waited for a processor.
constexpr double held_up_share = 0.5;
// Without workers the trainer does their work in place of its wait: worth advice below this share of the wait, and not
// for fewer batches than this.
constexpr double inline_share = 0.9;
constexpr std::uint64_t inline_batches = 100;
// A loader without workers whose batches take less than this gains nothing by workers, which hand over their batches.
constexpr double hand_over_ns = 20e3;
constexpr const char* more_processors =
    "end other programs, or give this one more processors: taskset, cpuset.cpus, cpu.max, --cpus of a container";

// Whether os::describe_process reports a process stopped by a signal or by a tracer.
bool says_stopped(const std::string& state) { return state.starts_with("state T") || state.starts_with("state t"); }

double percent(double share) { return std::round(100 * share); }

// The statistics of an interval, and the rules that are applied to them.
class Interval {
 public:
  Interval(const Snapshot& before, const Snapshot& after) : after_(after) {
    d_.size = sizeof d_;
    d_.worker = -1;
    d_.interval_ns = difference(after.at_ns, before.at_ns);
    d_.batches = difference(after.stats.batches, before.stats.batches);
    d_.samples = difference(after.stats.samples, before.stats.samples);
    d_.bytes = difference(after.stats.bytes, before.stats.bytes);
    d_.exposed_ns = difference(after.stats.wait_ns, before.stats.wait_ns);
    // Counted when a wait ends, so a part of it may lie before the interval.
    d_.start_ns = std::min(difference(after.stats.start_wait_ns, before.stats.start_wait_ns), d_.exposed_ns);
    restarts_ = difference(after.stats.restarts, before.stats.restarts);
    is_one_epoch_ = after.stats.epochs == before.stats.epochs;
    for (std::size_t w = 0; w < workers(); w++) {
      d_.busy_ns += busy_between(before, after, w);
      const double delay = delay_between(before, after, w);
      knows_delays_ = knows_delays_ && delay >= 0;
      delay_ns_ += std::max(0.0, delay);
    }
    if (before.trainer_delay >= 0 && after.trainer_delay >= before.trainer_delay)
      trainer_delay_ns_ = static_cast<double>(after.trainer_delay - before.trainer_delay);
    for (std::size_t row = 0; row < after.work.size(); row++) {
      const Durations exposed = between(before.exposed[row], after.exposed[row]);
      d_.asked += exposed.count;
      d_.ready += exposed.buckets[0];
      exposed_.push_back(static_cast<double>(exposed.sum_ns));
      work_.push_back(between(before.work[row], after.work[row]));
    }
  }

  feedlane_diagnosis decide() {
    if (d_.interval_ns == 0 || (after_.info.in_epoch == 0 && d_.batches == 0))
      return tell(FEEDLANE_BOUND_NOTHING, "no epoch is in progress", "");
    if (workers() == 0) return inline_bound();
    if (finds_stuck_worker() || finds_stopped_trainer() || finds_start()) return d_;
    if (exposed_share() < small_share) return trainer_bound();
    if (finds_slow_worker() || finds_slot_shortage() || finds_processor_shortage()) return d_;
    return data_bound();
  }

 private:
  [[nodiscard]] std::size_t workers() const { return after_.workers.size(); }
  [[nodiscard]] double span() const { return static_cast<double>(d_.interval_ns); }
  // Without the waits for the first batches of epochs: they say nothing about the time after the workers have started.
  [[nodiscard]] double running() const { return std::max(1.0, span() - static_cast<double>(d_.start_ns)); }
  [[nodiscard]] double exposed_share() const {
    return std::min(1.0, static_cast<double>(d_.exposed_ns - d_.start_ns) / running());
  }
  [[nodiscard]] double busy() const {
    return std::min(1.0, static_cast<double>(d_.busy_ns) / (running() * static_cast<double>(workers())));
  }
  [[nodiscard]] bool is_waiting() const { return after_.info.waiting_since_ns != 0; }
  // How long the trainer takes for one batch, including its own work.
  [[nodiscard]] double trainer_ns() const {
    return d_.batches == 0
               ? 0
               : std::max(0.0, span() - static_cast<double>(d_.exposed_ns)) / static_cast<double>(d_.batches);
  }
  [[nodiscard]] double in_hand_ns(std::size_t w) const {
    const std::uint64_t since = after_.workers[w].task_since_ns;
    return since == 0 ? 0 : static_cast<double>(difference(after_.at_ns, since));
  }
  // Mean of the worker's batches in the interval; at least the age of the task in hand.
  [[nodiscard]] double work_ns(std::size_t w) const { return std::max(mean_ns(work_[w]), in_hand_ns(w)); }
  // Mean over the loader's life.
  [[nodiscard]] double usual_work_ns() const {
    Durations all;
    for (const Durations& work : after_.work) add_to(all, work);
    return mean_ns(all);
  }

  feedlane_diagnosis tell(std::int32_t bound, const std::string& text, const std::string& advice) {
    d_.bound = bound;
    copy_text(d_.text, sizeof d_.text, text.c_str());
    copy_text(d_.advice, sizeof d_.advice, advice.c_str());
    return d_;
  }

  feedlane_diagnosis inline_bound() {
    if (exposed_share() < small_share) return trainer_bound();
    if (trainer_delay() >= held_up_share * exposed_share())
      return tell(
          FEEDLANE_BOUND_PROCESSORS,
          text_of("the processors: the data set runs in the thread that calls next, for %.0f %% of the time, and "
                  "that thread waited for a processor for %.0f %%",
                  percent(exposed_share()), percent(trainer_delay())),
          more_processors);
    std::string text = text_of("the data set: it runs in the thread that calls next, for %.0f %% of the time",
                               percent(exposed_share()));
    const double work = d_.batches == 0 ? 0 : static_cast<double>(d_.exposed_ns) / static_cast<double>(d_.batches);
    if (work >= hand_over_ns || d_.batches < inline_batches)
      return tell(FEEDLANE_BOUND_DATA, text, "the loader runs inline: set config.workers to load in the background");
    text += text_of("; a batch takes %s", duration(work).c_str());
    return tell(FEEDLANE_BOUND_DATA, text,
                "make the data set faster, or batches larger: workers would need as long to hand such batches over");
  }

  // A function below whose name begins with `finds` returns true if its rule applies, and then has filled in d_.

  // How long a worker has had its oldest task, which is in hand, or sent and not begun.
  [[nodiscard]] double task_age_ns(std::size_t w) const {
    if (after_.workers[w].task_since_ns != 0) return in_hand_ns(w);
    const std::uint64_t sent = after_.oldest[w].dispatched_ns;
    return after_.oldest[w].task == 0 ? 0 : static_cast<double>(difference(after_.at_ns, sent));
  }

  // One worker keeps the trainer waiting and returns no results.
  bool finds_stuck_worker() {
    if (!is_waiting()) return false;
    const double usual = usual_work_ns();
    for (std::size_t w = 0; w < workers(); w++) {
      const double age = task_age_ns(w);
      const feedlane_worker_stats& worker = after_.workers[w];
      if (age == 0 || worker.state != FEEDLANE_WORKER_READY) continue;
      const bool is_process = worker.pid > 0 && after_.sees_processes && after_.info.start != FEEDLANE_START_THREAD;
      const bool is_long = age > std::max(stuck_ns, stuck_factor * usual) && usual != 0 && others_are_idle(w);
      const std::string state = is_process && age > stopped_ns ? os::describe_process(worker.pid) : "";
      const bool is_stopped = says_stopped(state);
      if (!is_stopped && !is_long) continue;
      tell_stuck(w, age, state, is_stopped);
      return true;
    }
    return false;
  }

  void tell_stuck(std::size_t w, double age, const std::string& state, bool is_stopped) {
    const feedlane_worker_stats& worker = after_.workers[w];
    const auto pid = static_cast<long long>(worker.pid);
    const bool has_begun = worker.task_since_ns != 0;
    const auto batch = static_cast<long long>(has_begun ? worker.batch : after_.oldest[w].batch);
    d_.worker = static_cast<std::int32_t>(w);
    (void)tell(FEEDLANE_BOUND_WORKER,
               text_of("worker %zu (process %lld): it %s batch %lld for %s, and the trainer is waiting%s%s", w, pid,
                       has_begun ? "has worked on" : "has not begun", batch, duration(age).c_str(),
                       state.empty() ? "" : "; ", state.c_str()),
               is_stopped
                   ? text_of("the process is stopped: resume it with kill -CONT %lld, or detach the debugger", pid)
                   : "inspect its stack; set config.task_timeout_ns to replace workers that hang");
  }

  // No other worker makes the batch that the trainer waits for: each is idle, or has had its task at most half as long.
  [[nodiscard]] bool others_are_idle(std::size_t worker) const {
    for (std::size_t w = 0; w < workers(); w++)
      if (w != worker && in_hand_ns(w) > task_age_ns(worker) / 2) return false;
    return true;
  }

  // The trainer is stopped in `next`, and no worker has a task in hand.
  bool finds_stopped_trainer() {
    if (!is_waiting() || !after_.sees_processes) return false;
    for (std::size_t w = 0; w < workers(); w++)
      if (in_hand_ns(w) != 0) return false;
    const std::string state = os::describe_process(after_.info.pid);
    if (!says_stopped(state)) return false;
    const auto pid = static_cast<long long>(after_.info.pid);
    (void)tell(FEEDLANE_BOUND_TRAINER, text_of("the trainer: its process %lld is stopped; %s", pid, state.c_str()),
               text_of("resume it with kill -CONT %lld, or detach the debugger", pid));
    return true;
  }

  // No worker is ready, or most of the wait was for the first batch of an epoch.
  bool finds_start() {
    std::size_t starting = 0, opening = 0, ready = 0;
    std::uint64_t since = after_.at_ns;
    for (const feedlane_worker_stats& w : after_.workers) {
      starting += w.state == FEEDLANE_WORKER_STARTING ? 1 : 0;
      opening += w.state == FEEDLANE_WORKER_OPENING ? 1 : 0;
      ready += w.state == FEEDLANE_WORKER_READY ? 1 : 0;
      if (w.state == FEEDLANE_WORKER_STARTING || w.state == FEEDLANE_WORKER_OPENING)
        since = std::min(since, w.state_since_ns);
    }
    const char* const advice = "make the data set open faster, or keep workers between epochs (config.keep_workers)";
    const bool is_missed = is_waiting() || static_cast<double>(d_.exposed_ns) >= small_share * span();
    if (is_missed && ready == 0 && starting + opening != 0) {
      std::string text = "starting: no worker is ready";
      if (starting != 0) text += text_of("; %zu of %zu are starting", starting, workers());
      if (opening != 0) text += text_of("; %zu of %zu are opening their data sets", opening, workers());
      text += text_of("; the first began %s ago", duration(static_cast<double>(after_.at_ns - since)).c_str());
      (void)tell(FEEDLANE_BOUND_STARTING, text, advice);
      return true;
    }
    const auto start = static_cast<double>(d_.start_ns);
    if (start < 0.5 * static_cast<double>(d_.exposed_ns) || start < 0.3 * span()) return false;
    (void)tell(FEEDLANE_BOUND_STARTING,
               text_of("starting: next waited %s for first batches of epochs, %.0f %% of the time",
                       duration(start).c_str(), percent(start / span())),
               advice);
    return true;
  }

  feedlane_diagnosis trainer_bound() {
    std::string text =
        d_.asked == 0
            ? text_of("the trainer: it waited for %.1f %% of the time", 100 * exposed_share())
            : text_of("the trainer: %.0f %% of its batches were ready when it asked; it waited for %.1f %% of the time",
                      percent(static_cast<double>(d_.ready) / static_cast<double>(d_.asked)), 100 * exposed_share());
    if (d_.batches != 0) text += text_of(" and takes %s per batch", duration(trainer_ns()).c_str());
    std::string advice;
    const double needed = static_cast<double>(workers()) * busy() / busy_share;
    if (workers() > 1 && d_.batches > 10 && std::ceil(needed) < static_cast<double>(workers()))
      advice = text_of("faster loading would not help: workers are busy for %.0f %% of the time; %.0f would be enough",
                       percent(busy()), std::max(1.0, std::ceil(needed)));
    return tell(FEEDLANE_BOUND_TRAINER, text, advice);
  }

  // Workers are idle, because no slot is free for their tasks.
  bool finds_slot_shortage() {
    const std::uint64_t held = after_.stats.slots_held;
    const std::uint64_t left = after_.stats.slots - std::min(after_.stats.slots, held);
    const bool holds_more = held > static_cast<std::uint64_t>(std::max(1, after_.info.held));
    if (left >= workers() || after_.stats.slots_free != 0 || busy() > busy_share) return false;
    (void)tell(
        FEEDLANE_BOUND_SLOTS,
        text_of("memory: the trainer holds %llu of %llu slots, which leaves %llu for %zu workers; they are busy for "
                "%.0f %% of the time",
                static_cast<unsigned long long>(held), static_cast<unsigned long long>(after_.stats.slots),
                static_cast<unsigned long long>(left), workers(), percent(busy())),
        holds_more
            ? text_of("release batches earlier, or raise config.held (now %d) to the number that is held at once",
                      after_.info.held)
            : "raise config.arena_bytes: it allows fewer slots than the workers could use");
    return true;
  }

  bool finds_slow_worker() {
    if (workers() < 2) return false;
    std::size_t slow = 0;
    double most = 0;
    std::vector<double> others;
    for (std::size_t w = 0; w < workers(); w++) {
      if (work_ns(w) > most) most = work_ns(w), slow = w;
    }
    for (std::size_t w = 0; w < workers(); w++)
      if (w != slow && work_ns(w) != 0) others.push_back(work_ns(w));
    if (others.empty()) return false;
    const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
    std::nth_element(others.begin(), middle, others.end());
    double all_exposed = 0;
    for (const double e : exposed_) all_exposed += e;
    // If the worker has a batch in hand, the current wait is for that batch.
    const auto since = static_cast<double>(difference(after_.at_ns, after_.info.waiting_since_ns));
    const double now = is_waiting() && in_hand_ns(slow) > 0 ? std::min(since, span()) : 0;
    if (most < slow_factor * *middle || exposed_[slow] + now < 0.5 * (all_exposed + now)) return false;
    d_.worker = static_cast<std::int32_t>(slow);
    (void)tell(
        FEEDLANE_BOUND_WORKER,
        text_of(
            "worker %zu (process %lld): it takes %s per batch, the others %s; %.0f %% of the wait was for its batches",
            slow, static_cast<long long>(after_.workers[slow].pid), duration(most).c_str(), duration(*middle).c_str(),
            percent((exposed_[slow] + now) / std::max(1.0, all_exposed + now))),
        "check what else uses its processor, disk or network; with config.out_of_order, other workers' batches do not "
        "wait for it");
    return true;
  }

  // Share of the running time that workers (on average) and the trainer waited for a processor, as far as known.
  [[nodiscard]] double worker_delay() const {
    return std::min(1.0, delay_ns_ / (running() * static_cast<double>(workers())));
  }
  [[nodiscard]] double trainer_delay() const { return std::min(1.0, trainer_delay_ns_ / running()); }

  // Processes that were ready to run had no processor. Or the trainer waited while no worker had a batch in hand, which
  // no data set causes.
  bool finds_processor_shortage() {
    const double waited = exposed_share() * running();
    const bool are_held_up = knows_delays_ && worker_delay() + trainer_delay() >= held_up_share * exposed_share();
    const bool are_idle = static_cast<double>(d_.busy_ns) < held_up_share * waited && restarts_ == 0;
    const bool is_faster_inline =
        d_.batches >= inline_batches && restarts_ == 0 && static_cast<double>(d_.busy_ns) < inline_share * waited;
    if (!are_held_up && !are_idle && !is_faster_inline) return false;
    std::string text =
        text_of("the processors: workers are busy for %.0f %% of the time, and the trainer waits for %.0f %%",
                percent(busy()), percent(exposed_share()));
    if (knows_delays_)
      text += text_of("; workers waited for a processor for %.0f %% of the time, the trainer for %.0f %%",
                      percent(worker_delay()), percent(trainer_delay()));
    else text += "; how long they waited for a processor is unknown";
    if (is_faster_inline) {
      const auto batches = static_cast<double>(d_.batches);
      const double work = static_cast<double>(d_.busy_ns) / batches, wait = waited / batches;
      text += text_of("; for a batch, workers work for %s, and the trainer waits for %s", duration(work).c_str(),
                      duration(wait).c_str());
      (void)tell(FEEDLANE_BOUND_PROCESSORS, text,
                 text_of("set config.workers to 0 (num_workers=0): without workers a batch would take about %s instead "
                         "of %s",
                         duration(running() / batches - wait + work).c_str(), duration(running() / batches).c_str()));
      return true;
    }
    (void)tell(FEEDLANE_BOUND_PROCESSORS, text,
               are_held_up
                   ? more_processors
                   : "check what else runs on these processors; if batches are small, make them larger: most of the "
                     "time is spent on handing them over");
    return true;
  }

  feedlane_diagnosis data_bound() {
    Durations all;
    for (const Durations& h : work_) add_to(all, h);
    const double mean = mean_ns(all);
    std::string text =
        text_of("the data set: workers are busy for %.0f %% of the time, and the trainer waits for %.0f %%",
                percent(busy()), percent(exposed_share()));
    if (mean != 0) text += text_of("; a batch takes %s", duration(mean).c_str());
    std::string advice;
    if (busy() < busy_share) {
      if (all.count != 0)
        text +=
            text_of(" (p50 %s, p99 %s)", duration(quantile(all, 0.5)).c_str(), duration(quantile(all, 0.99)).c_str());
      if (restarts_ != 0) {
        text += text_of("; %llu workers were replaced", static_cast<unsigned long long>(restarts_));
        advice = "find out why workers die: see the loader's events and errors";
      } else if (is_one_epoch_ && after_.info.iterable == 0 && d_.batches > 2 * workers()) {
        advice = text_of(
            "batches arrive at irregular intervals; prefetching more of them smooths this out (now %d per worker; see "
            "config.prefetch_factor, or config.arena_bytes if the number is chosen automatically)",
            after_.info.prefetch_factor);
      }
    } else if (mean != 0 && trainer_ns() > 0) {
      const double wanted = std::ceil(mean / trainer_ns());
      const auto now = static_cast<double>(workers());
      const std::string takes = duration(trainer_ns());
      if (wanted > 16 * now)
        advice = text_of(
            "make the data set faster, or use more workers if more processors are available: the trainer takes %s per "
            "batch, which about %.0f workers would keep up with",
            takes.c_str(), wanted);
      else if (wanted > now)
        advice = text_of(
            "make the data set faster, or use %.0f workers instead of %zu if enough processors are available: the "
            "trainer "
            "takes %s per batch",
            wanted, workers(), takes.c_str());
      else advice = "make the data set faster, or use more workers";
    } else {
      advice = "make the data set faster, or use more workers";
    }
    return tell(FEEDLANE_BOUND_DATA, text, advice);
  }

  const Snapshot& after_;
  feedlane_diagnosis d_{};
  std::uint64_t restarts_ = 0;
  bool is_one_epoch_ = true;
  std::vector<double> exposed_;
  std::vector<Durations> work_;
  bool knows_delays_ = true;
  double delay_ns_ = 0;  // of all workers
  double trainer_delay_ns_ = 0;
};

}  // namespace

feedlane_diagnosis diagnose(const Snapshot& before, const Snapshot& after) { return Interval(before, after).decide(); }

}  // namespace feedlane::monitor
