// SPDX-License-Identifier: Apache-2.0
// The sending end of a standalone ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "channel/copying.hpp"
#include "feedlane/ring.h"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "ring/waiter.hpp"
#include "shm/ring_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::channel {

class Sender {
 public:
  // Takes ownership of the socket in every case. OK once the receiver has accepted this sender; see
  // greeting/ring.hpp.
  static Status attach(os::Fd socket, os::Deadline deadline, std::unique_ptr<Sender>& out, Error& error);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  // Leaves the ring. The receiver can still take committed messages.
  ~Sender();

  [[nodiscard]] std::uint32_t message_bytes() const { return plan_.geometry.message_bytes; }
  // Returns one to `want` cells to fill. TIMEOUT, INTERRUPTED, E_PEER_DEAD, E_CORRUPT.
  Status reserve(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error);
  // Publishes the first `count` reserved cells. The other cells are no longer reserved.
  Status commit(std::uint32_t count, Error& error);
  // Copies `count` messages, which lie message_bytes apart, and publishes them, in several parts if not all fit at
  // once. Returns the statuses of reserve. `sent` counts the published messages.
  Status send(const std::byte* messages, std::uint32_t count, std::int64_t timeout_ns, std::uint32_t& sent,
              Error& error);

  // The try_ functions don't wait. If one returns false, call its other form, which waits or reports an error.
  bool try_reserve(std::uint32_t want, feedlane_span& got) {
    reserved_ = producer_.reserve(want);
    if (reserved_ == 0 || producer_.broken()) return false;
    got = {producer_.message(0), plan_.geometry.cell_bytes, reserved_, lane_};
    return true;
  }
  bool try_commit(std::uint32_t count) {
    if (count - 1 >= reserved_) return false;  // also if count is 0
    reserved_ = 0;
    producer_.commit(count);
    (void)bell_.ring();
    return true;
  }
  // Publishes in one part, and only messages of one cache line. Doesn't read the receiver's position, so it may return
  // false although there is room.
  bool try_send(const std::byte* messages, std::uint32_t count) {
    if (message_bytes() > line_bytes || !producer_.has_room(count)) return false;
    publish(messages, count, CopyLine{});
    return true;
  }

  // Ends current and later waits with INTERRUPTED. Thread safety: any thread.
  void close();

 private:
  Sender() = default;
  // Copies messages into free cells and commits them.
  template <class Copy>
  void publish(const std::byte* messages, std::uint32_t count, Copy copy) {
    copy_messages(producer_.message(0), plan_.geometry.cell_bytes, messages, message_bytes(), count, message_bytes(),
                  copy);
    reserved_ = 0;
    producer_.commit(count);
    (void)bell_.ring();
  }
  Status reserve_until(os::Deadline deadline, std::uint32_t want, feedlane_span& got, Error& error);
  Status receive_welcome(int socket, os::Deadline deadline, Error& error);
  Status wait(os::Deadline deadline, Error& error);

  shm::RingPlan plan_;
  shm::SegmentPair segments_;
  os::Fd socket_;
  os::Fd own_event_;
  os::Fd receiver_event_;
  os::Fd receiver_;  // pidfd
  ring::Waiter waiter_;
  std::uint32_t lane_ = 0;
  ring::Producer producer_;
  ring::Doorbell bell_;
  std::uint32_t reserved_ = 0;
  bool wants_pidfd_ = false;  // the receiver wants a pidfd of this process
  bool receiver_gone_ = false;
  std::atomic<bool> closed_{false};
};

}  // namespace feedlane::channel
