// SPDX-License-Identifier: Apache-2.0
// Device streams that use batches. A stream keeps a batch alive in addition to its references.
//
// Thread safety: any thread, as long as the loader exists.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/error.hpp"
#include "feedlane/batch.h"
#include "pinned/backend.hpp"

namespace feedlane::lending {

class Leases;

// A stream's use of a batch, begun by Leases::begin_use, until the stream has completed its work.
class StreamUse {
 public:
  StreamUse() = default;
  // `notify` receives this object and must call `end`.
  StreamUse(Leases& leases, std::uint64_t token, void* stream, void (*notify)(void*, std::int32_t))
      : leases_(&leases), token_(token), stream_(stream), notify_(notify) {}

  [[nodiscard]] void* stream() const { return stream_; }
  // Makes the stream call `notify` once it has completed the work enqueued so far. This object must exist until then,
  // and the loader's handle does. After an error `notify` is not called. The caller holds a count of the handle or a
  // reference to the batch.
  Status ask(Error& error);
  // Ends the use. Called once after `ask`, whatever `ask` returned. An error is reported as an event. May be called
  // from the driver's callback, because it makes no driver calls.
  void end(const Error& stream);

 private:
  Leases* leases_ = nullptr;
  std::uint64_t token_ = 0;
  void* stream_ = nullptr;
  void (*notify_)(void*, std::int32_t) = nullptr;
  pinned::Passed passed_{};
};

// The error of a stream that ended with `status`.
Error stream_error(std::int32_t status);

// The streams recorded for batches, by slot.
class RecordedStreams {
 public:
  explicit RecordedStreams(std::uint32_t slots) : slots_(std::make_unique<Slot[]>(slots)) {}

  // The caller holds a reference to the batch. E_LIMIT: too many other streams.
  Status add(Leases& leases, std::uint64_t token, void* stream, Error& error);
  // Asks the streams of a batch to end their uses. The caller has released the last reference and holds a count of the
  // handle.
  void ask(const Leases& leases, std::uint64_t token);

 private:
  // The streams of the batch of `token`, the last batch in this slot with a recorded stream. Its uses keep the slot, so
  // no use is overwritten before it has ended.
  struct Slot {
    std::atomic<std::uint64_t> token{0};
    std::uint32_t count = 0;
    std::array<StreamUse, FEEDLANE_MAX_RECORDED_STREAMS> uses;
  };
  Slot& slot_of(const Leases& leases, std::uint64_t token) const;

  std::unique_ptr<Slot[]> slots_;
  std::mutex mutex_;  // for `add`
};

}  // namespace feedlane::lending
