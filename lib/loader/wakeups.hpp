// SPDX-License-Identifier: Apache-2.0
// What wakes the loader's thread in addition to its workers: interruptions, releases, the end of a copy, a live
// sampler, `close`.
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
  // Marks the outlet's descriptor in the poller. See supervisor::Tag for the tags of workers.
  static constexpr std::uint64_t outlet_tag = UINT64_MAX - 2;

  // `sleeping`: the loader's flag; nullptr inline, where the thread sleeps on descriptors alone.
  Status open(os::Poller& poller, const ring::SleepFlag* sleeping, Error& error);

  // Thread safety: any thread and any signal handler. Ends one wait with INTERRUPTED.
  void interrupt();
  // Any thread: ends the current wait and all later ones.
  void close();
  // Any thread: the loader's wait may be over. Inline, only wait_for_event waits, and this does not wake it.
  void wake();
  // Like `wake`, and wakes wait_for_event too.
  void wake_inline_too();

  // ---- a live sampler; the loader's thread ----

  // `fd`: its descriptor, which must stay open. E_ARGUMENT: epoll cannot watch it.
  Status watch_sampler(os::Poller& poller, int fd, Error& error);
  // It has no indices now. From now on its descriptor is reported when it is readable, even if it already is.
  Status await_sampler(Error& error);
  // It may have indices, or has not been asked since a call began.
  void ask_sampler() { awaits_sampler_ = false; }
  [[nodiscard]] bool awaits_sampler() const { return awaits_sampler_; }

  // ---- the loader's thread ----

  // True once for each interruption.
  bool take_interruption();
  [[nodiscard]] bool is_interrupted() const { return has(interrupted); }
  [[nodiscard]] bool is_closed() const { return has(closed) && !is_ending_for_good_; }
  // 0 unless is_closed or is_interrupted.
  [[nodiscard]] const std::atomic<std::uint64_t>& attention() const { return attention_; }
  // While the loader is being shut down, `close` does not cut its waits short.
  void set_ending_for_good(bool is_ending) { is_ending_for_good_ = is_ending; }
  // Makes the poller readable at `deadline`, for a caller that sleeps in its own event loop.
  Status set_alarm(os::Deadline deadline, Error& error);
  // Takes the event and returns true if it is one of these wakeups. The outlet handles its own event, which only wakes.
  bool handle(const os::Poller::Event& event);
  // Called in a forked child.
  void close_in_child();

 private:
  static constexpr std::uint64_t interrupted = 1, closed = 2;
  [[nodiscard]] bool has(std::uint64_t flag) const { return (attention_.load(std::memory_order_relaxed) & flag) != 0; }

  // Relaxed: the descriptor wakes the loader, and a flag only says why.
  std::atomic<std::uint64_t> attention_{0};
  bool is_ending_for_good_ = false;
  bool awaits_sampler_ = false;
  bool watches_sampler_ = false;  // its descriptor has not been reported since await_sampler
  int sampler_fd_ = 0;
  os::Poller* poller_ = nullptr;  // that watches sampler_fd_
  const ring::SleepFlag* sleeping_ = nullptr;
  os::Fd event_;
  os::Fd timer_;
};

}  // namespace feedlane::loader
