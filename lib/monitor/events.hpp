// SPDX-License-Identifier: Apache-2.0
// The queue of events that a loader reports, until the host takes them.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "base/error.hpp"
#include "feedlane/monitor.h"
#include "monitor/errors.hpp"

namespace feedlane::monitor {

// A bounded queue. When it is full, the oldest event is dropped and counted as lost. Thread safety: any thread.
// All events but WORKER_STARTED and WORKER_WANTED, and errors that are not events, are also counted in the table of
// distinct errors.
class EventQueue {
 public:
  // From here on, errors are counted in control.
  void use(const shm::Segments& segments);
  void push(std::int32_t kind, const Error& what);
  // Counts an error that next returned. It is not an event.
  void note(const Error& what);
  bool pop(feedlane_event& out);

 private:
  static constexpr std::size_t capacity = 4096;
  std::mutex mutex_;
  ErrorTable errors_;
  std::deque<feedlane_event> events_;
  std::uint64_t lost_ = 0;
};

}  // namespace feedlane::monitor
