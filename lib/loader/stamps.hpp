// SPDX-License-Identifier: Apache-2.0
// When what happened to the batches: stamps in the slots' records, histograms, the trace, and for how long `next` waited.
//
// Used by the loader's thread only. What it writes is in control, for any reader: see monitor/records.hpp.
#pragma once

#include <cstdint>

#include "feedlane/batch.h"
#include "loader/ledger.hpp"
#include "monitor/records.hpp"
#include "shm/segment.hpp"

namespace feedlane::loader {

class Stamps {
 public:
  // `segments` must outlive this.
  void use(const shm::Segments& segments);

  // The time of all that happens until the next tick: one clock read serves several stamps.
  std::int64_t tick();

  // ---- a batch ----

  // Its slot was taken: what the trace has to tell of the slot's batch before is complete.
  void settle(std::uint32_t slot);
  // All slots whose batches were released, at the end of an epoch.
  void settle_all();
  // It was sent to its worker under entry.id.
  void on_send(const Entry& entry, std::int64_t epoch, std::uint32_t worker);
  // Its worker's result is in. Its stamps are limited to the time between those of this side.
  void on_result(std::uint32_t slot, std::uint64_t begun_ns, std::uint64_t committed_ns);
  // next yields it, or its error.
  struct Yielded {
    std::int64_t batch = 0;
    std::int32_t status = FEEDLANE_OK;
    std::uint64_t rows = 0;
    std::uint64_t bytes = 0;
  };
  // For how long next waited for it.
  struct Exposure {
    std::uint64_t waited_ns = 0;
    std::int64_t yielded_ns = 0;
    bool is_first = false;  // of its epoch
  };
  Exposure on_yield(std::uint32_t slot, const Yielded& yielded);
  // The stamps of a yielded batch.
  void list(std::uint32_t slot, feedlane_batch& out) const;

  // ---- an epoch ----

  struct Epoch {
    std::int64_t number = 0;
    std::int64_t first = 0;    // its first batch
    std::int64_t batches = 0;  // -1: unknown
  };
  // As of the last tick.
  void on_begin(const Epoch& epoch);
  void on_end();

  // ---- waiting ----

  // `next`, or a host that sleeps on wait_fd, has no batch, as of the last tick. Called again it changes nothing.
  void begin_wait();
  // A call that may not wait found no batch: the batch that comes was not ready.
  void note_absence();
  // As of the last tick, it waits no more.
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
  std::int64_t now_ns_ = 0;
  std::int64_t since_ns_ = 0;     // when the present wait began; 0: there is none
  std::int64_t waited_ns_ = 0;    // in all
  std::uint64_t exposed_ns_ = 0;  // since the newest batch was yielded
  bool is_first_ = true;          // no batch of the epoch was yielded yet
};

}  // namespace feedlane::loader
