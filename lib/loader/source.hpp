// SPDX-License-Identifier: Apache-2.0
// The source of a trainer's batches: its own loader, or the feeder or a consumer of a shared loader. The C interface
// calls each of them a loader.
//
// Thread safety: one thread at a time, except where a comment says "any thread".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "feedlane/batch.h"
#include "feedlane/monitor.h"
#include "feedlane/observe.h"
#include "lending/leases.hpp"

namespace feedlane::loader {

class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  virtual Status begin(std::int64_t epoch, Error& error) = 0;
  virtual Status next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) = 0;
  virtual Status poll(Error& error) = 0;
  virtual Status arm(Error& error) = 0;
  [[nodiscard]] virtual int wait_fd() const = 0;
  // Saves the epoch's progress as of the batch of `token`; 0: as of the newest yielded batch.
  virtual Status state(std::uint64_t token, std::vector<std::byte>& out, Error& error) = 0;
  // `for_good`: waits even after `close`, which otherwise ends waits.
  virtual Status stop(bool for_good, Error& error) = 0;
  // Called before the source is freed. Doesn't wait.
  virtual void abandon() noexcept = 0;
  // Called after `close`: asks everything that works for the source to end. Doesn't wait.
  virtual void ask_to_end() noexcept = 0;

  // ---- any thread ----

  virtual void interrupt() = 0;  // any signal handler too
  // From now on every wait ends with INTERRUPTED, except waits of a stop with `for_good`.
  virtual void close() = 0;
  [[nodiscard]] virtual lending::Leases& leases() = 0;
  virtual bool next_event(feedlane_event& out) = 0;
  [[nodiscard]] virtual feedlane_stats stats() const = 0;
  [[nodiscard]] virtual feedlane_loader_info info() const = 0;
};

}  // namespace feedlane::loader
