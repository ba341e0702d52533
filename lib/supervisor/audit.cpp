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
                        "worker {} has begun task {} without Ready", w, marks.begun);
  if (marks.begun < m.seen_task || marks.begun > newest)
    return error.refuse(FEEDLANE_E_CORRUPT, "row.begun_through", marks.begun, newest,
                        "worker {} says that it has begun task {}; its newest is {}, and it had begun {}", w,
                        marks.begun, newest, m.seen_task);
  if (marks.in_hand != 0 && (marks.in_hand < marks.begun || marks.in_hand > newest))
    return error.refuse(FEEDLANE_E_CORRUPT, "row.started_task", marks.in_hand, newest,
                        "worker {} says that it has task {} in hand; it has begun {}, and its newest is {}", w,
                        marks.in_hand, marks.begun, newest);
  if (lanes.is_torn(w, tasks.unfinished() + static_cast<std::uint32_t>(tasks.revoked())))
    return error.fail(FEEDLANE_E_CORRUPT, "the result lane of worker {} holds what no worker leaves there", w);
  if (oldest <= marks.answered() && lanes.peek_lane(w).data == nullptr)
    return error.refuse(FEEDLANE_E_CORRUPT, "result.id", marks.answered(), oldest,
                        "worker {} says that it has answered its tasks up to {}, but there is no result of {}", w,
                        marks.answered(), oldest);
  return FEEDLANE_OK;
}

}  // namespace feedlane::supervisor
