// SPDX-License-Identifier: Apache-2.0
// Loading without workers: the thread that calls `next` runs the data set, with the same slots and seeds.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "dataset/runner.hpp"
#include "dataset/task.hpp"
#include "loader/collector.hpp"
#include "loader/config.hpp"
#include "loader/delivery.hpp"
#include "loader/failure.hpp"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/order.hpp"
#include "loader/wakeups.hpp"
#include "os/clock.hpp"
#include "os/poller.hpp"

namespace feedlane::loader {

class Inline {
 public:
  // All must outlive this.
  Inline(Config& config, Memory& memory, Stamps& stamps, Ledger& ledger, Failure& failure, Wakeups& wakeups,
         os::Poller& poller, Collector& collector)
      : config_(config),
        memory_(memory),
        stamps_(stamps),
        ledger_(ledger),
        failure_(failure),
        wakeups_(wakeups),
        poller_(poller),
        collector_(collector) {}
  void use(Order& order);

  // Opens the data set for an epoch. The first `next` returns its error.
  void begin();
  // Makes a batch and yields it. END: no batch is left. SLOTS_HELD. TIMEOUT and INTERRUPTED: between samples; the next
  // call continues the batch. Or an error of the sampler or the batch.
  Status next(os::Deadline deadline, Delivery& delivery, feedlane_batch& out, Error& error);
  // Whether `next` may have an outcome. False: the sampler had no indices, and no event has arrived since.
  [[nodiscard]] bool has_news() const {
    return !wakeups_.awaits_sampler() || ledger_.in_flight() != 0 || poller_.has_events();
  }
  // Drops a batch that was begun and not finished.
  void drop() { task_.close(); }

 private:
  Status make(os::Deadline deadline, Error& error);
  Status wait_for_event(os::Deadline deadline, Error& error);
  Status start(Error& error);
  void finish(Status made, Error& error);

  Config& config_;
  Memory& memory_;
  Stamps& stamps_;
  Ledger& ledger_;
  Failure& failure_;
  Wakeups& wakeups_;
  os::Poller& poller_;
  Collector& collector_;
  Order* order_ = nullptr;
  std::uint64_t begun_ns_ = 0;  // when the current task was begun
  dataset::Task task_;
  dataset::Progress progress_;
  std::uint32_t slot_ = 0;
};

}  // namespace feedlane::loader
