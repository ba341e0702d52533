// SPDX-License-Identifier: Apache-2.0
// Where a trainer's batches come from: a loader of its own, the feeder of a shared one, or a consumer of one. What the C
// interface calls a loader.
//
// Thread safety: one thread at a time, except where it says "any thread".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "feedlane/batch.h"
#include "feedlane/monitor.h"
#include "feedlane/observe.h"
#include "loader/leases.hpp"

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
  // The epoch as of the batch of `token`; 0: of the newest one yielded.
  virtual Status state(std::uint64_t token, std::vector<std::byte>& out, Error& error) = 0;
  // `for_good`: even if it was closed, which ends waits otherwise.
  virtual Status stop(bool for_good, Error& error) = 0;
  // Without a wait: before it is freed.
  virtual void abandon() noexcept = 0;
  // After `close`, without a wait: whatever works for it is asked to end.
  virtual void ask_to_end() noexcept = 0;

  // ---- any thread ----

  virtual void interrupt() = 0;  // any signal handler too
  // From here on every wait ends with INTERRUPTED, but those of a stop for good.
  virtual void close() = 0;
  [[nodiscard]] virtual Leases& leases() = 0;
  virtual bool next_event(feedlane_event& out) = 0;
  [[nodiscard]] virtual feedlane_stats stats() const = 0;
  [[nodiscard]] virtual feedlane_loader_info info() const = 0;
};

}  // namespace feedlane::loader
