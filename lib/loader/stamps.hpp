// SPDX-License-Identifier: Apache-2.0
// The time of each step of a batch: stamps in the slots' records, histograms, the trace, and how long `next` waited.
//
// Used by the loader's thread only. It writes to control, where any reader may read: see monitor/records.hpp.
#pragma once

#include <cstdint>

#include "feedlane/batch.h"
#include "loader/ledger.hpp"
#include "loader/pace.hpp"
#include "monitor/records.hpp"
#include "shm/segment.hpp"

namespace feedlane::loader {

class Stamps {
 public:
  // `segments` must outlive this.
  void use(const shm::Segments& segments);

  // Reads the clock. All stamps until the next tick use this time.
  std::int64_t tick();
  [[nodiscard]] std::int64_t now_ns() const { return now_ns_; }
  // Of the workers' results.
  [[nodiscard]] const Pace& pace() const { return pace_; }

  // ---- a batch ----

  // The slot was taken for another batch, so the trace record of its previous batch is complete.
  void settle(std::uint32_t slot);
  // Settles all slots whose batches were released, at the end of an epoch.
  void settle_all();
  // The batch was sent to its worker under entry.id.
  void on_send(const Entry& entry, std::int64_t epoch, std::uint32_t worker);
  // The worker's result has arrived. Its stamps are clamped to the interval between this side's stamps.
  void on_result(std::uint32_t slot, std::uint64_t begun_ns, std::uint64_t committed_ns);
  // A batch, or its error, that `next` yields.
  struct Yielded {
    std::int64_t batch = 0;
    std::int32_t status = FEEDLANE_OK;
    std::uint64_t rows = 0;
    std::uint64_t bytes = 0;
  };
  // How long `next` waited for it.
  struct Exposure {
    std::uint64_t waited_ns = 0;
    std::int64_t yielded_ns = 0;
    bool is_first = false;  // of its epoch
  };
  Exposure on_yield(std::uint32_t slot, const Yielded& yielded);
  // Copies the stamps of a yielded batch to `out`.
  void list(std::uint32_t slot, feedlane_batch& out) const;

  // ---- an epoch ----

  struct Epoch {
    std::int64_t number = 0;
    std::int64_t first = 0;    // its first batch
    std::int64_t batches = 0;  // -1: unknown
  };
  // Both use the time of the last tick.
  void on_begin(const Epoch& epoch);
  void on_end();

  // ---- waiting ----

  // At the last tick, `next` or a host that sleeps on wait_fd had no batch. Another call changes nothing.
  void begin_wait();
  // A call that may not wait found no batch, so the next batch counts as not ready.
  void note_absence();
  // The wait ended at the last tick.
  void end_wait();
  // The wait ends with the scope.
  class Wait {
   public:
    explicit Wait(Stamps& stamps) : stamps_(stamps) {}
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    ~Wait() {
      if (stamps_.since_ns_ == 0) return;
      (void)stamps_.tick();
      stamps_.end_wait();
    }

   private:
    Stamps& stamps_;
  };

 private:
  [[nodiscard]] shm::TimingRow& timings_of(const shm::BatchRecord& record) const;
  void count_times(shm::BatchRecord& record);

  const shm::Segments* segments_ = nullptr;
  shm::LoaderCounters* counters_ = nullptr;
  monitor::TraceWriter trace_;
  Pace pace_;
  std::int64_t now_ns_ = 0;
  std::int64_t since_ns_ = 0;     // when the current wait began; 0: no wait
  std::int64_t waited_ns_ = 0;    // in total
  std::uint64_t exposed_ns_ = 0;  // wait since the newest batch was yielded
  bool is_first_ = true;          // no batch of the epoch has been yielded yet
};

}  // namespace feedlane::loader
