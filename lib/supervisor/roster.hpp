// SPDX-License-Identifier: Apache-2.0
// The places of a crew, the workers in them, and the lanes of their results.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ring/lanes.hpp"
#include "shm/segment.hpp"
#include "supervisor/member.hpp"

namespace feedlane::supervisor {

class Roster {
 public:
  void set_up(std::uint32_t workers, const shm::Segments& segments);

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  [[nodiscard]] Member& at(std::uint32_t worker) { return members_[worker]; }
  [[nodiscard]] const Member& at(std::uint32_t worker) const { return members_[worker]; }
  [[nodiscard]] std::span<Member> members() { return members_; }
  [[nodiscard]] std::span<const Member> members() const { return members_; }
  [[nodiscard]] ring::Lanes& lanes() { return lanes_; }

  // Whether a place has a worker. Undead workers don't count.
  [[nodiscard]] bool any_there() const;
  // Whether a worker was asked to end or has failed. Undead workers don't count.
  [[nodiscard]] bool any_ending() const;
  // Whether another worker has attached and takes tasks, or will take them once its data set is open.
  [[nodiscard]] bool others_continue(std::uint32_t worker) const;
  // Number of workers that died and are to be replaced.
  [[nodiscard]] std::uint32_t to_replace() const;

  // Number of workers that are stuck: see Member::is_stuck.
  [[nodiscard]] std::uint32_t stuck() const { return stuck_; }
  void set_stuck(std::uint32_t worker) {
    if (!std::exchange(members_[worker].is_stuck, true)) stuck_++;
  }
  // The worker has answered, or is gone.
  void unstick(std::uint32_t worker) {
    if (std::exchange(members_[worker].is_stuck, false)) stuck_--;
  }

 private:
  std::vector<Member> members_;
  ring::Lanes lanes_;
  std::uint32_t stuck_ = 0;
};

}  // namespace feedlane::supervisor
