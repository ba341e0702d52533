// SPDX-License-Identifier: Apache-2.0
// No workers: the same data set, slots and seeds, run by the thread that calls next.
#include "loader/loader.hpp"

namespace feedlane::loader {

Status Loader::begin_inline(Error& error) {
  drop_inline();
  config_.dataset.close();
  feedlane_worker_info info{};
  info.size = sizeof info;
  info.id = -1;
  info.seed = config_.seed;
  info.config = config_.worker_config.data();
  info.config_bytes = config_.worker_config.size();
  info.fields = config_.declared.data();
  info.field_count = config_.declared.size();
  if (config_.dataset.open(info, error) != FEEDLANE_OK) fail(error);  // told by the first next, as with workers
  return FEEDLANE_OK;
}

// A batch begun and not finished: a timeout came in between, or nobody wants it any more.
void Loader::drop_inline() {
  if (inline_task_.is_open()) slots_.put_back(inline_slot_);
  inline_task_.close();
}

Status Loader::next_inline(os::Deadline deadline, feedlane_batch& out, Error& error) {
  if (interrupted_.exchange(false, std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;
  if (failure_.code != FEEDLANE_OK) {
    error = failure_;
    return error.code;
  }
  if (!inline_task_.is_open()) {
    if (exhausted_) return finish_epoch(deadline, error);
    if (!slots_.take(inline_slot_))
      return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", held(), slots_.size(), "the trainer holds all %u slots",
                          slots_.size());
    std::uint32_t rows = 0;
    const Status s = pull(inline_slot_, rows, error);
    if (s != FEEDLANE_OK || rows == 0) {
      slots_.put_back(inline_slot_);
      return s != FEEDLANE_OK ? s : finish_epoch(deadline, error);
    }
    inline_task_.open({ledger_.take_id(), epoch_, next_batch_, next_position_, inline_slot_, 0, rows, 0},
                      segments_.index_list(inline_slot_), slot(inline_slot_));
    inline_row_ = 0;
    next_batch_++;
    next_position_ += rows;
  }
  // Between samples; a batch that was interrupted goes on with the next call.
  const auto keep_going = [&](std::uint64_t) -> Status {
    if (interrupted_.load(std::memory_order_relaxed)) {
      interrupted_.store(false, std::memory_order_relaxed);
      return FEEDLANE_INTERRUPTED;
    }
    return deadline.remaining_ns() == 0 ? FEEDLANE_TIMEOUT : FEEDLANE_OK;
  };
  const shm::TaskMessage message = inline_task_.message();
  const Status s = config_.dataset.run(inline_task_, inline_row_, keep_going, error);
  if (s > 0) return s;
  inline_task_.close();
  if (s != FEEDLANE_OK) {
    error.epoch = epoch_;
    error.batch = message.batch;
    error.attempt = 0;
    slots_.put_back(inline_slot_);
    return s;
  }
  Record& record = ledger_.at(inline_slot_);
  record.batch = message.batch;
  record.made_rows = message.rows;
  record.attempt = 0;
  record.tensors = inline_task_.tensors();
  return hand_out(inline_slot_, -1, out);
}

}  // namespace feedlane::loader
