// SPDX-License-Identifier: Apache-2.0
// Checks of a worker's marks and lane.
#include "supervisor/audit.hpp"

namespace feedlane::supervisor {

Status check_marks(std::uint32_t w, const Member& m, const TaskRing::Marks& marks, const ring::Lanes& lanes,
                   std::uint64_t oldest, Error& error) {
  const TaskRing& tasks = m.peer.tasks();
  const std::uint64_t newest = tasks.last_sent();
  if (m.peer.state() == State::opening && marks.begun != 0)
    return error.refuse(FEEDLANE_E_CORRUPT, "row.begun_through", marks.begun, 0,
                        "worker {} began task {} before it sent Ready", w, marks.begun);
  if (marks.begun < m.seen_task || marks.begun > newest)
    return error.refuse(
        FEEDLANE_E_CORRUPT, "row.begun_through", marks.begun, newest,
        "worker {} reports that it began task {}, but its newest task is {}, and it had already begun task {}", w,
        marks.begun, newest, m.seen_task);
  if (marks.in_hand != 0 && (marks.in_hand < marks.begun || marks.in_hand > newest))
    return error.refuse(
        FEEDLANE_E_CORRUPT, "row.started_task", marks.in_hand, newest,
        "worker {} reports that it works on task {}, but it last began task {}, and its newest task is {}", w,
        marks.in_hand, marks.begun, newest);
  if (lanes.is_torn(w, tasks.unfinished() + static_cast<std::uint32_t>(tasks.revoked())))
    return error.fail(FEEDLANE_E_CORRUPT, "worker {} wrote invalid data into its result lane", w);
  if (oldest <= marks.answered() && lanes.peek_lane(w).data == nullptr)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.id", marks.answered(), oldest,
                        "worker {} reports that it answered its tasks up to {}, but it sent no result of task {}", w,
                        marks.answered(), oldest);
  return FEEDLANE_OK;
}

}  // namespace feedlane::supervisor
