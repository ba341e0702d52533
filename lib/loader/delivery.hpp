// SPDX-License-Identifier: Apache-2.0
// From the ledger to the trainer: stages the next batch if necessary, yields it, and reports its failed samples.
//
// Used by the loader's thread only, except as `Staging` states.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "feedlane/batch.h"
#include "loader/config.hpp"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/order.hpp"
#include "loader/prefetch.hpp"
#include "loader/staging.hpp"
#include "loader/stamps.hpp"
#include "loader/wakeups.hpp"
#include "monitor/events.hpp"

namespace feedlane::loader {

class Delivery {
 public:
  // All must outlive the delivery.
  Delivery(const Config& config, Memory& memory, Stamps& stamps, Prefetch& prefetch, Ledger& ledger,
           monitor::EventQueue& events)
      : config_(config), memory_(memory), stamps_(stamps), prefetch_(prefetch), ledger_(ledger), events_(events) {}
  void use(Order& order) { order_ = &order; }
  // Yields batches in registered memory: in the arena itself, or copied to buffers of the pool.
  Status use(pinned::Pool& pool, Error& error);

  // Whether a batch or an error can be yielded. Also settles tasks that ended without a batch.
  [[nodiscard]] bool is_ready();
  // Yields the next batch (OK) or returns its error. If an allocation fails, nothing changes.
  Status yield(feedlane_batch& out, Error& error);

  // ---- staging ----

  [[nodiscard]] Staging* staging() { return staging_.get(); }
  // For a trainer about to sleep: whether the next batch is in its buffer, or its copy could be started.
  [[nodiscard]] bool has_staging_work() const;
  // The trainer holds every buffer.
  [[nodiscard]] bool is_out_of_buffers() const;
  // Why a finished batch cannot be copied: SLOTS_HELD, E_PEER_DEAD.
  Status obstacle(Error& error);
  // By when a copying thread has to attach.
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
  Stamps& stamps_;
  Prefetch& prefetch_;
  Ledger& ledger_;
  monitor::EventQueue& events_;
  Order* order_ = nullptr;
  std::unique_ptr<Staging> staging_;  // nullptr: batches are yielded in place
  os::Deadline copier_deadline_ = os::Deadline::never();
};

}  // namespace feedlane::loader
