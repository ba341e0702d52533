// SPDX-License-Identifier: Apache-2.0
// A worker's place in the crew: who is there now, and what the supervisor notes about it.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "supervisor/peer.hpp"

namespace feedlane::supervisor {

struct Member {
  Peer peer;

  // Why a generation ended, if it was not asked to.
  enum class Loss { exit, signal, hung, invalid, unattached };

  // ---- of the generation that is there ----

  bool is_stuck = false;      // a thread that hangs, or a process that SIGKILL does not end: what it has is lost to it
  bool lost_message = false;  // its word that it attached could not be received
  bool is_late = false;       // it is ended because it exceeded a deadline
  bool is_invalid = false;    // it is ended because it sent something invalid
  bool has_hung_up = false;   // it is ended because it closed its socket and did not exit
  Error verdict;              // why this process ends it; code OK: it does not
  std::uint64_t refused_task = 0;                     // to blame for what it was cut off for; 0: it was not
  std::int64_t start_deadline_ns = FEEDLANE_FOREVER;  // for its next step: to attach, then to open its data set
  os::Deadline end_deadline = os::Deadline::never();  // of one that leaves
  std::int64_t progress_ns = 0;                       // when it was last seen to make progress
  std::uint32_t excused = 0;    // how often its deadline began anew since then, because the trainer was away
  std::uint64_t seen_task = 0;  // the newest task that it was seen to have begun
  std::uint64_t seen_passed_over = 0;

  // ---- of the place ----

  std::uint32_t start_failures = 0;  // generations in a row that ended before they attached
  bool was_late = false;             // one was given up before its data set was open, and none has been ready since
  bool was_given_up = false;         // its starts have failed too often: it stays empty until the next epoch
  bool died = false;                 // the generation before, unexpectedly
  Loss loss = Loss::exit;            // if so, why
  std::int64_t start_again_ns = 0;   // when to try again to replace it; 0: not

  void reset_generation() {
    is_stuck = lost_message = is_late = is_invalid = has_hung_up = was_given_up = false;
    refused_task = 0;
    end_deadline = os::Deadline::never();
    excused = 0;
    seen_task = seen_passed_over = 0;
    start_again_ns = 0;
    verdict = {};
  }
  // A process that is still there long after SIGKILL. It keeps its place, its rings and the slot of what it had in hand.
  [[nodiscard]] bool is_undead() const { return is_stuck && !peer.is_thread(); }
  // Nobody in this place makes batches, as long as nothing happens.
  [[nodiscard]] bool is_lost() const { return is_stuck || was_given_up; }
  [[nodiscard]] bool is_ready() const { return peer.state() == State::ready && peer.is_live() && !is_stuck; }
  [[nodiscard]] bool is_there() const { return peer.state() != State::none; }
};

}  // namespace feedlane::supervisor
