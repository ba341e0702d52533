// SPDX-License-Identifier: Apache-2.0
// Sends tasks to one worker and takes them back.
#include "supervisor/task_ring.hpp"

#include <algorithm>
#include <cstring>

#include "ring/fence.hpp"

namespace feedlane::supervisor {

void TaskRing::init(std::uint32_t worker, const shm::Segments& segments) {
  trainer_row_ = segments.trainer_row(worker);
  row_ = segments.worker_row(worker);
  capacity_ = segments.plan().geometry.ring_capacity;
  revoked_.reserve(capacity_);
  ring_ = ring::Producer({segments.task_ring(worker), shm::loader_cell_bytes, capacity_}, 0, nullptr);
}

void TaskRing::reset(int worker_event) {
  unfinished_ = 0;
  last_sent_ = 0;
  revoked_.clear();
  set_revoked(0, 0);
  // Clears the predecessor's values. Relaxed: the welcome, which is sent later over the socket, orders these stores.
  row_->sleeping.store(0, std::memory_order_relaxed);
  row_->started_task.store(0, std::memory_order_relaxed);
  row_->thread.store(0, std::memory_order_relaxed);
  row_->begun_through.store(0, std::memory_order_relaxed);
  row_->passed_over.store(0, std::memory_order_relaxed);
  bell_ = ring::Doorbell(&row_->sleeping, worker_event);
}

void TaskRing::send(const shm::TaskMessage& message) {
  (void)ring_.reserve(1);
  std::memcpy(ring_.message(0), &message, sizeof message);
  ring_.commit(1);
  last_sent_ = message.id;
  unfinished_++;
}

void TaskRing::set_revoked(std::uint64_t from, std::uint64_t until) {
  revoked_from_ = from;
  revoked_until_ = until;
  // First an empty range, then the end, then the beginning: until the last store no task is covered. Release: pairs
  // with the acquire load in Worker::is_revoked.
  trainer_row_->revoked_from.store(UINT64_MAX, std::memory_order_release);
  trainer_row_->revoked_until.store(until, std::memory_order_release);
  trainer_row_->revoked_from.store(from, std::memory_order_release);
}

// The worker stores which task it begins, then loads the revoked range. The trainer stores the range, then loads which
// tasks were begun. With a fence on either side, at least one of the two sees the other's store.
std::size_t TaskRing::revoke(const std::vector<std::uint64_t>& ids, std::uint64_t oldest) {
  const std::uint64_t until = ids.back() + 1;
  // The worker may still decline a task of the last range that it kept. Until that task is answered, the range may only
  // grow.
  if (revoked_.empty() && oldest >= revoked_until_) {
    set_revoked(ids.front(), until);
  } else {  // covered tasks stay covered
    if (until > revoked_until_) {
      revoked_until_ = until;
      trainer_row_->revoked_until.store(until, std::memory_order_release);  // see set_revoked
    }
    if (ids.front() < revoked_from_) {  // a task that was left out before, because it was about to be begun
      revoked_from_ = ids.front();
      trainer_row_->revoked_from.store(revoked_from_, std::memory_order_release);
    }
  }
  ring::doorbell_fence();
  const std::uint64_t begun = begun_through();
  std::size_t kept = 0;
  while (kept < ids.size() && ids[kept] <= begun) kept++;
  revoked_.insert(revoked_.end(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end());
  unfinished_ -= static_cast<std::uint32_t>(ids.size() - kept);
  return kept;
}

bool TaskRing::forget_revoked(std::uint64_t id) {
  const auto found = std::find(revoked_.begin(), revoked_.end(), id);
  if (found == revoked_.end()) return false;
  revoked_.erase(found);
  return true;
}

void TaskRing::ring_done(std::uint32_t generation) {
  // Release: pairs with the acquire load in Worker::is_done.
  trainer_row_->done_through.store(std::uint64_t{generation} + 1, std::memory_order_release);
  ring_doorbell();
}

}  // namespace feedlane::supervisor
