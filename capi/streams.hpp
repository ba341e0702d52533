// SPDX-License-Identifier: Apache-2.0
// Streams that use batches, beside those who have references to them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "loader.hpp"

namespace feedlane::capi {

// A stream's use of a batch, begun by Leases::begin_use, until the stream has come so far.
class StreamUse {
 public:
  StreamUse() = default;
  // `notify` gets this object, and is to call `end`.
  StreamUse(feedlane_loader* l, std::uint64_t token, void* stream, void (*notify)(void*, std::int32_t))
      : loader_(l), token_(token), stream_(stream), notify_(notify) {}

  [[nodiscard]] void* stream() const { return stream_; }
  // Has the stream call `notify` when it has done what is enqueued now: this object must be there until then, and the loader's
  // handle is. An error: it won't be called. For a caller that has a life of the handle, or a reference to the batch.
  Status ask(Error& error);
  // After `ask`, whatever it said, once; an error is told as an event. Fit for where the driver calls back, and nothing of it
  // may be called.
  void end(const Error& stream);

 private:
  feedlane_loader* loader_ = nullptr;
  std::uint64_t token_ = 0;
  void* stream_ = nullptr;
  void (*notify_)(void*, std::int32_t) = nullptr;
  pinned::Passed passed_{};
};

// What became of a stream, of which `status` was told.
Error stream_error(std::int32_t status);

// The streams named by feedlane_batch_record_stream, by slots. Any thread.
class RecordedStreams {
 public:
  explicit RecordedStreams(std::uint32_t slots) : slots_(std::make_unique<Slot[]>(slots)) {}

  // For a caller that has a reference to the batch. E_LIMIT.
  Status add(feedlane_loader* l, std::uint64_t token, void* stream, Error& error);
  // The batch's last reference was given back: its streams are asked to end their uses. For the one who gave it back and has
  // a life of the handle.
  void ask(const feedlane_loader* l, std::uint64_t token);

 private:
  // Of the batch of `token`, the last one of this slot that streams were named for. Its uses keep the slot, so none of them
  // is overwritten before it has ended.
  struct Slot {
    std::atomic<std::uint64_t> token{0};
    std::uint32_t count = 0;
    std::array<StreamUse, FEEDLANE_MAX_RECORDED_STREAMS> uses;
  };
  Slot& slot_of(const feedlane_loader* l, std::uint64_t token) const;

  std::unique_ptr<Slot[]> slots_;
  std::mutex mutex_;  // for `add`
};

}  // namespace feedlane::capi
