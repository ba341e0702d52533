// SPDX-License-Identifier: Apache-2.0
// A worker's place in the crew: its Peer, and the supervisor's notes about the current generation and about the place.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "supervisor/peer.hpp"

namespace feedlane::supervisor {

struct Member {
  Peer peer;

  // Why a generation ended that was not asked to end.
  enum class Loss { exit, signal, hung, invalid, unattached };

  // ---- the current generation ----

  bool is_due = false;        // it attaches, or its socket is closed: tasks may wait for it
  bool is_to_ring = false;    // it was sent tasks, and its doorbell has not been rung since
  bool is_stuck = false;      // a thread that hangs, or a process that SIGKILL does not end; its tasks go to others
  bool lost_message = false;  // its Attached message could not be received
  bool is_late = false;       // it is ended because it exceeded a deadline
  bool is_invalid = false;    // it is ended because it sent something invalid
  bool has_hung_up = false;   // it is ended because it closed its socket and did not exit
  Error verdict;              // why the trainer ends it; code OK: it doesn't
  std::uint64_t refused_task = 0;                     // the task to blame if it was cut off; 0: none
  std::int64_t start_deadline_ns = FEEDLANE_FOREVER;  // of its next step: to attach, then to open its data set
  os::Deadline end_deadline = os::Deadline::never();  // to end, after Leaving
  std::int64_t progress_ns = 0;                       // when progress was last seen
  std::uint32_t excused = 0;    // how often its deadline was restarted since then because the trainer was away
  std::uint64_t seen_task = 0;  // the newest task that was seen begun
  std::uint64_t seen_passed_over = 0;

  // ---- the place ----

  std::uint32_t start_failures = 0;  // generations in a row that ended before they were ready
  bool was_late = false;            // a worker was given up before its data set was open, and none has been ready since
  bool was_given_up = false;        // no worker replaces the last one: the place stays empty until the next epoch
  bool died = false;                // the previous generation ended unexpectedly
  Loss loss = Loss::exit;           // if so, why
  std::int64_t start_again_ns = 0;  // when to try again to start a replacement; 0: no retry is due

  // The worker has made progress: restarts the time limit of its task.
  void note_progress(std::int64_t at_ns) {
    progress_ns = at_ns;
    excused = 0;
  }
  void reset_generation() {
    is_stuck = lost_message = is_late = is_invalid = has_hung_up = was_given_up = false;
    refused_task = 0;
    end_deadline = os::Deadline::never();
    excused = 0;
    seen_task = seen_passed_over = 0;
    start_again_ns = 0;
    verdict = {};
  }
  // A process that still exists long after SIGKILL. It keeps its place, its rings and the slot of its task in hand.
  [[nodiscard]] bool is_undead() const { return is_stuck && !peer.is_thread(); }
  // No worker in this place will make batches unless an event changes that.
  [[nodiscard]] bool is_lost() const { return is_stuck || was_given_up; }
  [[nodiscard]] bool is_ready() const { return peer.state() == State::ready && peer.is_live() && !is_stuck; }
  [[nodiscard]] bool is_there() const { return peer.state() != State::none; }
};

}  // namespace feedlane::supervisor
