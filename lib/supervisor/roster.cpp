// SPDX-License-Identifier: Apache-2.0
// Queries about all workers of a crew.
#include "supervisor/roster.hpp"

#include <algorithm>

namespace feedlane::supervisor {

void Roster::set_up(std::uint32_t workers, const shm::Segments& segments) {
  members_ = std::vector<Member>(workers);
  for (std::uint32_t w = 0; w < workers; w++) {
    members_[w].peer.init(w, segments);
    (void)lanes_.add({segments.result_lane(w), shm::loader_cell_bytes, segments.plan().geometry.ring_capacity}, 0,
                     &segments.trainer_row(w)->result_position);
  }
}

bool Roster::any_ending() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& m) { return m.peer.is_ending() && !m.is_undead(); });
}

bool Roster::any_there() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.is_there() && !m.is_undead(); });
}

std::uint32_t Roster::to_replace() const {
  const auto count =
      std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.died && !m.was_given_up; });
  return static_cast<std::uint32_t>(count);
}

// A worker whose predecessor was given up before its data set was open counts only once it is ready. Otherwise two
// workers that never open their data sets would be replaced in turn for ever.
bool Roster::others_continue(std::uint32_t worker) const {
  const Member* const own = &members_[worker];
  return std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
    const bool may_open = m.peer.state() == State::ready || !m.was_late;
    return &m != own && m.peer.has_attached() && m.peer.is_live() && !m.is_stuck && may_open;
  });
}

}  // namespace feedlane::supervisor
