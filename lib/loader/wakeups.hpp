// SPDX-License-Identifier: Apache-2.0
// What wakes the loader's thread beside its workers: interruptions, releases, the end of a copy, the closing of the loader.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "ring/doorbell.hpp"

namespace feedlane::loader {

class Wakeups {
 public:
  // Of the outlet's descriptor in the poller. See supervisor::Tag for those of workers.
  static constexpr std::uint64_t outlet_tag = UINT64_MAX - 2;

  // `sleeping`: the loader's flag; nullptr inline, where the thread sleeps on descriptors alone.
  Status open(os::Poller& poller, const ring::SleepFlag* sleeping, Error& error);

  // Thread safety: any thread and any signal handler. Ends one wait with INTERRUPTED.
  void interrupt();
  // Any thread: ends every wait from here on.
  void close();
  // Any thread: what the loader waits for may have changed. Inline, nobody waits for that but in wait_for_release.
  void wake();
  // The same, for such a wait too.
  void wake_inline_too();

  // ---- the loader's thread ----

  // True once for each interruption.
  bool take_interruption();
  [[nodiscard]] bool is_interrupted() const { return interrupted_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_closed() const {  // relaxed: the descriptor is what wakes, the flag only says why
    return closed_.load(std::memory_order_relaxed) && !is_ending_for_good_;
  }
  // While the loader is ended for good, waits are not cut short.
  void set_ending_for_good(bool is_ending) { is_ending_for_good_ = is_ending; }
  // Makes the poller readable at `deadline`, for a caller who sleeps in an event loop of its own.
  Status set_alarm(os::Deadline deadline, Error& error);
  // True if the event was one of these; it is taken. That of the outlet only wakes: the outlet knows what to do.
  bool handle(const os::Poller::Event& event);
  // In a forked child.
  void close_in_child();

 private:
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> closed_{false};
  bool is_ending_for_good_ = false;
  const ring::SleepFlag* sleeping_ = nullptr;
  os::Fd event_;
  os::Fd timer_;
};

}  // namespace feedlane::loader
