// SPDX-License-Identifier: Apache-2.0
// Makes batches in the thread that calls `next`.
#include "loader/inline.hpp"

#include <array>
#include <span>
#include <utility>

#include "shm/shared_read.hpp"

namespace feedlane::loader {
namespace {

// Between samples a timeout or an interruption ends the call; the next one continues with the batch.
class InlinePace final : public dataset::Pace {
 public:
  InlinePace(os::Deadline deadline, Wakeups& wakeups, os::Poller& poller, Error& error)
      : Pace(position_, {wakeups.attention(), 0}, {looks_at_clock, deadline.is_never() ? 1U : 0U}),
        deadline_(deadline),
        wakeups_(wakeups),
        poller_(poller),
        error_(error) {}
  Status look() override {
    if (wakeups_.is_closed() || wakeups_.take_interruption()) return FEEDLANE_INTERRUPTED;
    return deadline_.remaining_ns() == 0 ? FEEDLANE_TIMEOUT : FEEDLANE_OK;
  }
  Status pause(std::int64_t until_ns) override {
    while (os::now_ns() < until_ns) {
      if (const Status s = look(); s != FEEDLANE_OK) return s;
      std::array<os::Poller::Event, 4> events{};
      std::size_t count = 0;
      const Status s = poller_.wait(deadline_.earlier(os::Deadline::at(until_ns)), events, count, error_);
      for (const os::Poller::Event& event : std::span(events).first(count)) (void)wakeups_.handle(event);
      if (s < 0 || s == FEEDLANE_INTERRUPTED) return s;
    }
    return FEEDLANE_OK;
  }

 private:
  static constexpr std::atomic<std::uint64_t> looks_at_clock{1};
  std::atomic<std::uint64_t> position_{0};  // nobody reads it
  os::Deadline deadline_;
  Wakeups& wakeups_;
  os::Poller& poller_;
  Error& error_;
};

}  // namespace

void Inline::use(Order& order) {
  order_ = &order;
  task_.prepare(config_.fields, memory_.segments.plan().geometry, 0, nullptr);
}

void Inline::begin() {
  drop();
  config_.dataset.close();
  feedlane_worker_info info{};
  info.size = sizeof info;
  info.id = -1;
  info.config = config_.worker_config.data();
  info.config_bytes = config_.worker_config.size();
  info.fields = config_.declared.data();
  info.field_count = config_.declared.size();
  info.epoch = order_->epoch();
  dataset::set_by_geometry(info, memory_.segments.plan().geometry, 0);
  Error error;
  if (config_.dataset.open(info, error) != FEEDLANE_OK) failure_.set(error);
}

Status Inline::start(Error& error) {
  if (!order_->has_slot()) {
    std::uint32_t slot = 0;
    if (!memory_.slots.take(slot))
      return error.refuse(FEEDLANE_SLOTS_HELD, "config.held", memory_.slots.held(), memory_.slots.size(),
                          "the trainer holds every slot ({}): release a batch", memory_.slots.size());
    stamps_.settle(slot);
    order_->use_slot(slot);
  }
  const Status s = order_->draw(error);
  if (s < 0) return s;
  if (s == FEEDLANE_AGAIN || order_->is_exhausted()) {
    if (const auto slot = order_->drop_drawn()) memory_.slots.put_back(*slot);
    return s == FEEDLANE_AGAIN ? s : FEEDLANE_END;
  }
  const Entry& entry = order_->add_drawn(ledger_);
  slot_ = entry.slot;
  const std::uint64_t id = ledger_.send(slot_, 0);
  begun_ns_ = static_cast<std::uint64_t>(stamps_.tick());
  stamps_.on_send(entry, order_->epoch(), UINT32_MAX);
  task_.open(order_->message_for(entry, id), memory_.segments.index_list(slot_),
             tensors::Slot::of(memory_.segments, slot_));
  task_.unpoison();
  progress_ = {};
  return FEEDLANE_OK;
}

// The result goes through the slot, as a worker's result does.
void Inline::finish(Status made, Error& error) {
  const Entry& entry = ledger_.at(slot_);
  Contents& contents = ledger_.contents(slot_);
  const std::uint64_t position = progress_.position;
  const auto now = static_cast<std::uint64_t>(stamps_.tick());
  shm::ResultMessage result{entry.id, slot_, entry.attempt, made, 0, begun_ns_, now};
  if (made == FEEDLANE_OK) {
    result.rows = static_cast<std::uint32_t>(progress_.made);
    (void)task_.describe(progress_.made);
  } else if (made != FEEDLANE_END) {
    result.status = made == FEEDLANE_E_INIT ? made : FEEDLANE_E_SAMPLE;
    if (order_->has_shards()) result.rows = static_cast<std::uint32_t>(position + (error.sample >= 0 ? 1 : 0));
    task_.describe_failure(error.sample >= 0 ? static_cast<std::int64_t>(position) : -1, error.transient, error.text,
                           error.detail);
  }
  Error refused;
  const Status s = collector_.read_result(entry, result, refused);  // short of memory: it is run and read once more
  task_.advance_shard(made == FEEDLANE_OK ? position : result.rows);
  task_.close();
  if (s != FEEDLANE_OK) {
    contents.error = std::move(refused);
    ledger_.fail(slot_);
    return;
  }
  if (entry.state != Entry::State::failed) return;
  // The complete traceback, because it did not have to fit into a slot.
  contents.error.detail = std::move(error.detail);
  contents.error.os_errno = error.os_errno;
  contents.error.worker = -1;
}

Status Inline::next(os::Deadline deadline, Delivery& delivery, feedlane_batch& out, Error& error) {
  if (wakeups_.take_interruption()) return FEEDLANE_INTERRUPTED;
  (void)stamps_.tick();
  const Stamps::Wait waited(stamps_);
  for (bool is_last = false;; is_last = deadline.remaining_ns() == 0) {  // although a sampler may be woken for ever
    if (wakeups_.is_closed()) return FEEDLANE_INTERRUPTED;
    if (failure_.is_set()) {
      error = failure_.error;
      return error.code;
    }
    // Read before slots and buffers are counted. So if one is given back in between, it counts as free.
    const bool may_wait = memory_.any_release_pending();
    if (delivery.is_ready()) {
      stamps_.end_wait();
      return delivery.yield(out, error);
    }
    stamps_.begin_wait();  // the time in which the batch is made, too
    Status s = delivery.obstacle(error);
    if (s == FEEDLANE_OK && ledger_.any_done()) s = FEEDLANE_SLOTS_HELD;  // until a stream has given a buffer back
    if (s == FEEDLANE_OK) s = make(deadline, error);
    if (s == FEEDLANE_AGAIN) {
      stamps_.end_wait();  // it waits for indices, not for data
      s = is_last ? FEEDLANE_TIMEOUT : wakeups_.await_sampler(error);
      if (s == FEEDLANE_OK) s = wait_for_event(deadline, error);
    }
    if (s == FEEDLANE_SLOTS_HELD && may_wait) s = wait_for_event(deadline, error);
    if (s != FEEDLANE_OK) return s;
  }
}

// Makes one batch and finishes its entry. END: there are no more batches. AGAIN: the sampler has no indices now.
Status Inline::make(os::Deadline deadline, Error& error) {
  if (!task_.is_open()) {
    if (order_->is_exhausted()) return FEEDLANE_END;
    if (const Status s = start(error); s != FEEDLANE_OK) return s;
  }
  InlinePace pace(deadline, wakeups_, poller_, error);
  const Status s = config_.dataset.run(task_, progress_, pace, error);
  if (s > 0 && !(s == FEEDLANE_END && order_->has_shards())) return s;
  finish(s, error);
  return FEEDLANE_OK;
}

// Waits until a stream has given a slot or a buffer back, or a live sampler may have indices. INTERRUPTED, TIMEOUT.
Status Inline::wait_for_event(os::Deadline deadline, Error& error) {
  std::array<os::Poller::Event, 4> events{};
  std::size_t count = 0;
  const Status s = poller_.wait(deadline, events, count, error);
  (void)stamps_.tick();
  for (const os::Poller::Event& event : std::span(events).first(count)) (void)wakeups_.handle(event);
  return s == FEEDLANE_OK && wakeups_.take_interruption() ? FEEDLANE_INTERRUPTED : s;
}

}  // namespace feedlane::loader
