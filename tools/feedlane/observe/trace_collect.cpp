// SPDX-License-Identifier: Apache-2.0
// Reads the records of a loader that runs: from its trace, as often as they are written, and in the end from its slots.
#include "trace_collect.hpp"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <set>
#include <utility>

#include "descriptor.hpp"

namespace observe {
namespace {

using namespace std::chrono_literals;
using Duration = std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

// Between two looks. The shortest empties a trace of 4096 records before it is full at 8 million batches a second.
constexpr Duration shortest = 250us;
constexpr Duration longest = 2ms;
// Records of a look, between two moments at which a signal ends following.
constexpr std::uint64_t most_between_signals = std::uint64_t{1} << 18;
// How often it is asked whether the loader is still there, which takes system calls.
constexpr Duration life_check = 100ms;

// While it exists SIGINT and SIGTERM make a descriptor readable and do nothing else.
class Interruption {
 public:
  Interruption() : old_(block()), fd_(::signalfd(-1, &set_, SFD_CLOEXEC)) {}
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  ~Interruption() {
    // What has arrived is taken: it asked for the end of following, not of this process.
    const timespec none{};
    while (::sigtimedwait(&set_, nullptr, &none) > 0) {
    }
    (void)::sigprocmask(SIG_SETMASK, &old_, nullptr);
  }
  [[nodiscard]] int get() const { return fd_.get(); }

 private:
  sigset_t block() {
    sigset_t old;
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGINT);
    ::sigaddset(&set_, SIGTERM);
    (void)::sigprocmask(SIG_BLOCK, &set_, &old);
    return old;
  }
  sigset_t set_{};
  sigset_t old_;
  Descriptor fd_;
};

std::uint64_t read_clock(clockid_t id) {
  timespec now{};
  (void)::clock_gettime(id, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// Three clocks cannot be read at once: of several attempts the one that was interrupted least.
Clocks read_clocks() {
  Clocks best;
  std::uint64_t best_gap = UINT64_MAX;
  for (int attempt = 0; attempt < 8; attempt++) {
    const std::uint64_t before = read_clock(CLOCK_MONOTONIC);
    const std::uint64_t boottime = read_clock(CLOCK_BOOTTIME);
    const std::uint64_t realtime = read_clock(CLOCK_REALTIME);
    const std::uint64_t after = read_clock(CLOCK_MONOTONIC);
    if (after - before >= best_gap) continue;
    best_gap = after - before;
    best = {before + best_gap / 2, boottime, realtime};
  }
  return best;
}

}  // namespace

Collector::Collector(Found loader, std::uint64_t max_records) : loader_(std::move(loader)), max_records_(max_records) {
  recording_.pid = loader_.pid;
  recording_.nth = loader_.nth;
  recording_.program = loader_.program;
  recording_.info = loader_.monitor.info();
  recording_.clocks.push_back(read_clocks());
  feedlane_batch_record empty{};
  empty.size = sizeof empty;
  buffer_.assign(std::min<std::uint64_t>(recording_.info.trace, 1 << 16), empty);
}

// What another process writes may say that there is no end of records: a look has one.
std::uint64_t Collector::look(std::uint64_t most) {
  const std::uint64_t before = next_;
  most = std::min(most, recording_.info.trace);
  for (std::uint64_t read = 0; read < most;) {
    std::uint64_t count = 0;
    if (feedlane_monitor_get_trace(loader_.monitor.c(), next_, buffer_.data(), buffer_.size(), &count) != FEEDLANE_OK)
      break;
    for (std::uint64_t i = 0; i < count; i++) {
      const feedlane_batch_record& r = buffer_[i];
      if (next_ == 0) recording_.earlier = r.sequence - 1;
      else recording_.lost += r.sequence - next_;
      next_ = r.sequence + 1;
      keep(r);
    }
    read += count;
    if (count < buffer_.size()) break;
  }
  from_ring_ = recording_.records.size();
  return next_ - before;
}

// The newest take the places of the oldest: they are put in order at the end.
void Collector::keep(const feedlane_batch_record& record) {
  if (recording_.records.size() < max_records_) {
    recording_.records.push_back(record);
    return;
  }
  recording_.records[oldest_] = record;
  oldest_ = (oldest_ + 1) % recording_.records.size();
  recording_.lost++;
}

void Collector::follow(double seconds) {
  const Interruption interruption;
  const Descriptor process(::syscall(SYS_pidfd_open, loader_.pid, 0));
  const auto end =
      seconds > 0 ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))
                  : Clock::time_point::max();
  auto next_check = Clock::now();
  Duration interval = shortest;
  for (;;) {
    // No more than a quarter of the trace is written between two looks, if it is written at an even pace.
    const std::uint64_t written = look(most_between_signals);
    if (written > recording_.info.trace / 4) interval = shortest;
    else if (written < recording_.info.trace / 16) interval = std::min(interval * 2, longest);
    const auto now = Clock::now();
    if (now >= end) return;
    if (now >= next_check) {
      recording_.ended = is_gone();
      if (recording_.ended) return;
      next_check = now + life_check;
    }
    const auto wait = std::min<Clock::duration>(interval, end - now);
    const timespec timeout{0, std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count()};
    pollfd events[] = {{interruption.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
    if (::ppoll(events, 2, &timeout, nullptr) <= 0) continue;
    recording_.ended = events[1].revents != 0;
    return;
  }
}

Recording Collector::finish() {
  // A record is in the trace before its slot is used again: in this order none is missed.
  const std::vector<feedlane_batch_record> slots = loader_.monitor.slots();
  look(UINT64_MAX);
  std::rotate(recording_.records.begin(), recording_.records.begin() + static_cast<std::ptrdiff_t>(oldest_),
              recording_.records.end());
  add_slots(slots);
  if (recording_.info.iterable == 0) add_tasks_in_hand();
  recording_.clocks.push_back(read_clocks());
  return std::move(recording_);
}

// Batches that the trace does not have yet, each task once.
void Collector::add_slots(const std::vector<feedlane_batch_record>& slots) {
  std::vector<std::uint64_t> known;
  for (const feedlane_batch_record& r : recording_.records) known.push_back(r.task);
  std::sort(known.begin(), known.end());
  std::set<std::uint64_t> added;
  for (const feedlane_batch_record& r : slots)
    if (r.task != 0 && !std::binary_search(known.begin(), known.end(), r.task) && added.insert(r.task).second)
      recording_.records.push_back(r);
}

// The trainer learns from a worker's result when the task was begun. Until then the worker's own row says it.
void Collector::add_tasks_in_hand() {
  const std::vector<feedlane_worker_stats> workers = loader_.monitor.worker_stats();
  for (std::size_t i = from_ring_; i < recording_.records.size(); i++) {
    feedlane_batch_record& r = recording_.records[i];
    if (r.worker < 0 || static_cast<std::size_t>(r.worker) >= workers.size()) continue;
    const feedlane_worker_stats& worker = workers[static_cast<std::size_t>(r.worker)];
    if (worker.task_since_ns == 0 || r.epoch != worker.epoch || r.batch != worker.batch || r.swept_ns != 0 ||
        r.released_ns != 0)
      continue;
    if (worker.task_since_ns >= r.dispatched_ns) r.begun_ns = worker.task_since_ns;
  }
}

// Whether the process has no longer the loader that was opened.
bool Collector::is_gone() const {
  feedlane::Error error;
  for (const Found& found : loaders_of(loader_.pid, error))
    if (found.monitor.info().created_ns == recording_.info.created_ns) return false;
  return !is_cut_short(error);
}

}  // namespace observe
