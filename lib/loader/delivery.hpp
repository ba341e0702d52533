// SPDX-License-Identifier: Apache-2.0
// From the ledger to the trainer: the batch that is yielded next, staged if it has to be, and what is told with it.
//
// Used by the loader's thread only, but for what `Staging` says.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "feedlane/batch.h"
#include "loader/config.hpp"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/order.hpp"
#include "loader/staging.hpp"
#include "loader/wakeups.hpp"
#include "monitor/events.hpp"

namespace feedlane::loader {

class Delivery {
 public:
  // All must outlive the delivery.
  Delivery(const Config& config, Memory& memory, Ledger& ledger, monitor::EventQueue& events)
      : config_(config), memory_(memory), ledger_(ledger), events_(events) {}
  void use(Order& order) { order_ = &order; }
  // Batches go to registered memory: the arena itself, or buffers of the pool that they are copied to.
  Status use(pinned::Pool& pool, Error& error);

  // Whether there is something to yield. Tasks that ended without a batch are settled on the way.
  [[nodiscard]] bool is_ready();
  // Yields it: OK with a batch, or its error. Nothing changes if memory is too short.
  Status yield(feedlane_batch& out, Error& error);

  // ---- staging ----

  [[nodiscard]] Staging* staging() { return staging_.get(); }
  // For a trainer about to sleep: whether the batch to be yielded next is in its buffer, or could be on its way there.
  [[nodiscard]] bool has_staging_work() const;
  // The trainer holds every buffer.
  [[nodiscard]] bool is_out_of_buffers() const;
  // What keeps a batch that is made from being copied: SLOTS_HELD, E_PEER_DEAD.
  Status obstacle(Error& error);
  // By when a thread has to come that copies.
  [[nodiscard]] os::Deadline copier_deadline() const { return copier_deadline_; }

 private:
  void settle_front();
  void check_skip_budget(const Entry& entry);
  void finish(const Entry& entry);
  Status hand_out(const Entry& entry, feedlane_batch& out);
  void unpoison_tensors(const Entry& entry) const;
  void tell_records(const Entry& entry);
  void stage_ahead();

  const Config& config_;
  Memory& memory_;
  Ledger& ledger_;
  monitor::EventQueue& events_;
  Order* order_ = nullptr;
  std::unique_ptr<Staging> staging_;  // none: batches stay where they are
  os::Deadline copier_deadline_ = os::Deadline::never();
};

}  // namespace feedlane::loader
