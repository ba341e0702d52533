// SPDX-License-Identifier: Apache-2.0
// The tasks behind the one in hand: what a data set may begin to read early.
#include "shm/shared_read.hpp"
#include "worker/worker.hpp"

namespace feedlane::worker {

// A cell of the task ring stays unchanged until this worker has answered the task in it. So does the task's list,
// unless the trainer takes the task back: it stores the range of revoked ids, fences (TaskRing::revoke), and may write
// the list from then on. Here the list is copied first, the fence is in is_revoked, and the range is loaded last. So if
// a word of the copy was written after the revocation, the loaded range covers the task, and the copy is not used. A
// range covers a task until the task is answered.
Status Worker::ahead(std::uint64_t after, Ahead& room, feedlane_ahead& out) const {
  if (task_.is_iterable()) return FEEDLANE_END;
  const shm::Geometry& geometry = segments_->plan().geometry;
  for (std::uint32_t n = 0; n < geometry.ring_capacity && tasks_.is_committed(n); n++) {
    const auto message = shm::read_once<shm::TaskMessage>(tasks_.message(n));
    if (message.id <= after || message.id < abandon_before()) continue;
    if (message.slot >= geometry.slots || message.rows == 0 || message.rows > geometry.max_rows)
      return FEEDLANE_END;  // take_task refuses it
    shm::copy_once(segments_->index_list(message.slot), message.rows, room.indices);
    if (is_revoked(message.id)) continue;
    out.size = sizeof out;
    out.id = message.id;
    out.epoch = message.epoch;
    out.batch = message.batch;
    room.seeds.resize(message.rows);
    dataset::fill_seeds(geometry, message, room.seeds);
    out.indices = room.indices.data();
    out.count = message.rows;
    out.seeds = room.seeds.data();
    return FEEDLANE_OK;
  }
  return FEEDLANE_END;
}

}  // namespace feedlane::worker
