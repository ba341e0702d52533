// SPDX-License-Identifier: Apache-2.0
// No workers: the same data set, slots and seeds, run by the thread that calls next.
#include <algorithm>
#include <array>

#include "loader/loader.hpp"
#include "os/event.hpp"

namespace feedlane::loader {
namespace {

// Between samples a timeout or an interruption ends the call; the next one goes on with the batch.
class InlinePace final : public worker::Pace {
 public:
  InlinePace(os::Deadline deadline, std::atomic<bool>& interrupted, const std::atomic<bool>& closed, os::Poller& poller,
             int wake_event, Error& error)
      : deadline_(deadline),
        interrupted_(interrupted),
        closed_(closed),
        poller_(poller),
        wake_event_(wake_event),
        error_(error) {}
  Status between(std::uint64_t) override {
    if (closed_.load(std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;  // as the other flag
    if (interrupted_.load(std::memory_order_relaxed)) {                        // relaxed: a flag by itself
      interrupted_.store(false, std::memory_order_relaxed);
      return FEEDLANE_INTERRUPTED;
    }
    return deadline_.remaining_ns() == 0 ? FEEDLANE_TIMEOUT : FEEDLANE_OK;
  }
  Status pause(std::int64_t until_ns) override {
    while (os::now_ns() < until_ns) {
      if (const Status s = between(0); s != FEEDLANE_OK) return s;
      std::array<os::Poller::Event, 4> events{};
      std::size_t count = 0;
      const Status s = poller_.wait(deadline_.earlier(os::Deadline::at(until_ns)), events, count, error_);
      if (count != 0) os::drain_event(wake_event_);
      if (s < 0 || s == FEEDLANE_INTERRUPTED) return s;
    }
    return FEEDLANE_OK;
  }

 private:
  os::Deadline deadline_;
  std::atomic<bool>& interrupted_;
  const std::atomic<bool>& closed_;
  os::Poller& poller_;
  int wake_event_;
  Error& error_;
};

}  // namespace

Status Loader::begin_inline(Error& error) {
  drop_inline();
  config_.dataset.close();
  feedlane_worker_info info{};
  info.size = sizeof info;
  info.id = -1;
  info.iterable = config_.iterable ? 1 : 0;
  info.seed = config_.seed;
  info.config = config_.worker_config.data();
  info.config_bytes = config_.worker_config.size();
  info.fields = config_.declared.data();
  info.field_count = config_.declared.size();
  info.retries = static_cast<std::int32_t>(config_.retries);
  info.retry_backoff_ns = config_.retry_backoff_ns;
  info.epoch = epoch_;
  if (config_.dataset.open(info, error) != FEEDLANE_OK) fail(error);  // told by the first next, as with workers
  return FEEDLANE_OK;
}

// A batch begun and not finished: a timeout came in between, or nobody wants it any more.
void Loader::drop_inline() { inline_task_.close(); }

// The next batch's task, without a worker.
Status Loader::start_inline(Error& error) {
  if (!drawn_.has_slot && !slots_.take(drawn_.slot))
    return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", held(), slots_.size(), "the trainer holds all %u slots",
                        slots_.size());
  drawn_.has_slot = true;
  if (config_.iterable) drawn_.rows = static_cast<std::uint32_t>(config_.batch_size);
  else if (const Status s = draw(error); s != FEEDLANE_OK) return s;
  if (exhausted_) {
    drop_drawn();
    return FEEDLANE_END;
  }
  inline_slot_ = drawn_.slot;
  Record& record = add_task();
  pending_ = 0;
  record.home = 0;
  record.id = ledger_.take_id();
  record.state = Record::State::sent;
  inline_task_.open(message_for(record, record.id, inline_slot_), segments_.index_list(inline_slot_),
                    arena::Slot::of(segments_, inline_slot_));
  inline_task_.permit();
  inline_progress_ = {};
  return FEEDLANE_OK;
}

// What was made goes through the slot, as a worker's does.
void Loader::finish_inline(Status made, Error& error) {
  Record& record = ledger_.at(inline_slot_);
  const std::uint64_t position = inline_progress_.position;
  shm::ResultMessage result{record.id, inline_slot_, record.attempt, made, 0};
  if (made == FEEDLANE_OK) {
    result.rows = static_cast<std::uint32_t>(inline_progress_.made);
    (void)inline_task_.describe(inline_progress_.made);
  } else if (made != FEEDLANE_END) {
    result.status = made == FEEDLANE_E_INIT ? made : FEEDLANE_E_SAMPLE;
    result.rows = config_.iterable ? static_cast<std::uint32_t>(position + (error.sample >= 0 ? 1 : 0)) : 0;
    inline_task_.describe_failure(error.sample >= 0 ? static_cast<std::int64_t>(position) : -1, error.transient,
                                  error.text, error.detail);
  }
  Error refused;
  const Status s = read_result(record, inline_slot_, result, refused);  // short of memory: it is run and read once more
  inline_task_.advance_shard(made == FEEDLANE_OK ? position : result.rows);
  inline_task_.close();
  if (s != FEEDLANE_OK) {
    record.error = refused;
    ledger_.finish(inline_slot_, Record::State::failed);
    return;
  }
  if (record.state != Record::State::failed) return;
  // Whole, as it didn't have to fit a slot.
  record.error.detail = std::move(error.detail);
  record.error.os_errno = error.os_errno;
  record.error.worker = -1;
}

// Until a stream has given something back, or an interruption.
Status Loader::wait_for_release(os::Deadline deadline, Error& error) {
  std::array<os::Poller::Event, 4> events{};
  std::size_t count = 0;
  const std::int64_t before = os::now_ns();
  const Status s = poller_.wait(deadline, events, count, error);
  shm::add(counters_->wait_ns, static_cast<std::uint64_t>(os::now_ns() - before));
  if (count != 0) os::drain_event(wake_event_.get());
  return s == FEEDLANE_OK && interrupted_.exchange(false, std::memory_order_relaxed) ? FEEDLANE_INTERRUPTED : s;
}

Status Loader::next_inline(os::Deadline deadline, feedlane_batch& out, Error& error) {
  if (interrupted_.exchange(false, std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;
  for (;;) {
    if (is_cut_short()) return FEEDLANE_INTERRUPTED;
    if (failure_.code != FEEDLANE_OK) {
      error = failure_;
      return error.code;
    }
    // Asked before a slot or a buffer is: one given back in between is there.
    const bool may_wait = any_release_pending();
    if (front_is_done()) return yield(out, error);
    Status started = staging_ == nullptr ? FEEDLANE_OK : staging_obstacle(error);
    if (started == FEEDLANE_OK && ledger_.any_done()) started = FEEDLANE_SLOTS_HELD;  // until a stream has come by
    if (started == FEEDLANE_OK && !inline_task_.is_open()) {
      if (exhausted_) return finish_epoch(deadline, error);
      started = start_inline(error);
    }
    if (started == FEEDLANE_END) return finish_epoch(deadline, error);
    if (started == FEEDLANE_SLOTS_HELD && may_wait) {
      if (const Status s = wait_for_release(deadline, error); s != FEEDLANE_OK) return s;
      continue;
    }
    if (started != FEEDLANE_OK) return started;
    InlinePace pace(deadline, interrupted_, closed_, poller_, wake_event_.get(), error);
    const Status s = config_.dataset.run(inline_task_, inline_progress_, pace, error);
    if (s > 0 && !(s == FEEDLANE_END && config_.iterable)) return s;
    finish_inline(s, error);
  }
}

}  // namespace feedlane::loader
