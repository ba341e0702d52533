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
  // Owns the socket in every case. OK when the receiver has accepted this sender; see channel/greeting.hpp.
  static Status attach(os::Fd socket, os::Deadline deadline, std::unique_ptr<Sender>& out, Error& error);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  // Leaves the ring. The receiver can still take what was committed.
  ~Sender();

  [[nodiscard]] std::uint32_t message_bytes() const { return plan_.geometry.message_bytes; }
  // Up to `want` cells to fill, at least one. TIMEOUT, INTERRUPTED, E_PEER_DEAD, E_CORRUPT.
  Status reserve(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error);
  // Publishes the first `count` of them. The others are no longer reserved.
  Status commit(std::uint32_t count, Error& error);
  // Copies `count` messages, which lie message_bytes apart, and publishes them, in parts where not all fit at once. Statuses as
  // reserve; `sent` counts what was published before.
  Status send(const std::byte* messages, std::uint32_t count, std::int64_t timeout_ns, std::uint32_t& sent,
              Error& error);

  // The same without waiting. False if that isn't possible at once, or an error is to report: then call the other form.
  bool try_reserve(std::uint32_t want, feedlane_span& got) {
    reserved_ = producer_.reserve(want);
    if (reserved_ == 0 || producer_.broken()) return false;
    got = {producer_.message(0), plan_.geometry.cell_bytes, reserved_, lane_};
    return true;
  }
  bool try_commit(std::uint32_t count) {
    if (count - 1 >= reserved_) return false;  // 0 too
    reserved_ = 0;
    producer_.commit(count);
    (void)bell_.ring();
    return true;
  }
  // In one part, of messages of one line. False also where only a look at the receiver's position would find room.
  bool try_send(const std::byte* messages, std::uint32_t count) {
    if (message_bytes() > line_bytes || !producer_.has_room(count)) return false;
    publish(messages, count, CopyLine{});
    return true;
  }

  // From here on every wait ends with INTERRUPTED. Thread safety: any thread.
  void close();

 private:
  Sender() = default;
  // Into free cells.
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
  Status greet(os::Deadline deadline, Error& error);
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
