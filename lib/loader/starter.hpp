// SPDX-License-Identifier: Apache-2.0
// Starts workers in the places of a roster, and replacements for workers that are gone.
//
//   starter.cpp  starting
//   replace.cpp  replacing
//
// Used by the loader's thread only, except take_offer.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "loader/dispatcher.hpp"
#include "loader/failure.hpp"
#include "monitor/events.hpp"
#include "os/fd.hpp"
#include "ring/waiter.hpp"
#include "shm/segment.hpp"
#include "supervisor/deadlines.hpp"
#include "supervisor/launcher.hpp"
#include "supervisor/roster.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::loader {

class Starter {
 public:
  // All arguments must outlive the starter.
  Starter(const supervisor::Settings& settings, shm::Segments& segments, monitor::EventQueue& events,
          ring::Waiter& waiter, supervisor::Roster& roster, Failure& failure, Dispatcher& dispatcher,
          supervisor::Deadlines& deadlines)
      : settings_(settings),
        segments_(segments),
        events_(events),
        waiter_(waiter),
        roster_(roster),
        failure_(failure),
        dispatcher_(dispatcher),
        deadlines_(deadlines) {}
  Status set_up(supervisor::ChildMain child_main, Error& error);
  // Whether this process can open the descriptors of all workers. E_LIMIT.
  Status check_descriptors(Error& error) const;
  [[nodiscard]] supervisor::Launcher& launcher() { return *launcher_; }
  [[nodiscard]] const supervisor::Launcher& launcher() const { return *launcher_; }

  // Starts a worker in each empty place that the library fills.
  Status start_missing(Error& error);
  // Opens a place for a worker that the host starts: see feedlane_loader_open_worker.
  Status open_place(std::int32_t& id, os::Fd& fd, Error& error);
  // The socket for a thread that is to work. END: no worker is missing. Thread safety: any thread.
  Status take_offer(os::Fd& fd, Error& error);
  // A worker is gone that was not asked to end: starts a replacement, or leaves that to the host, or gives up the place.
  void replace(std::uint32_t w, bool was_ready, const Gone& gone);
  // Tries again to start a replacement that could not be started.
  void start_at_last(std::uint32_t w);
  // In a forked child: closes the trainer's descriptors.
  void close_in_child();

  // Why there is no worker, until the error was returned or a worker has attached; code OK: no error.
  [[nodiscard]] Error& error() { return error_; }

 private:
  void count_restart(supervisor::Member::Loss loss);
  Status open(std::uint32_t w, os::Fd& theirs, Error& error);
  Status start(std::uint32_t w, Error& error);
  Status start_again(std::uint32_t w, Error& error);
  void start_later(std::uint32_t w, Error& error);
  bool exceeds_restarts(std::uint32_t w, const Gone& gone);
  void give_up_place(std::uint32_t w, const Gone& gone);

  const supervisor::Settings& settings_;
  shm::Segments& segments_;
  monitor::EventQueue& events_;
  ring::Waiter& waiter_;
  supervisor::Roster& roster_;
  Failure& failure_;
  Dispatcher& dispatcher_;
  supervisor::Deadlines& deadlines_;
  std::unique_ptr<supervisor::Launcher> launcher_;
  os::Fd self_;  // pidfd of this process
  Error error_;
};

}  // namespace feedlane::loader
