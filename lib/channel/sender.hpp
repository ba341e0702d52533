// SPDX-License-Identifier: Apache-2.0
// The sending end of a standalone ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/error.hpp"
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
  // Takes the socket in every case. OK when the receiver has let it in; see channel/greeting.hpp.
  static Status attach(os::Fd socket, os::Deadline deadline, std::unique_ptr<Sender>& out, Error& error);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  // Leaves: what was committed stays to be taken.
  ~Sender();

  // Up to `want` cells to fill, at least one. TIMEOUT, INTERRUPTED, E_PEER_DEAD, E_CORRUPT.
  Status reserve(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error);
  // Publishes the first `count` of them; the others are given back.
  Status commit(std::uint32_t count, Error& error);

  // The same, at once or not at all: false where it takes a wait or an explanation.
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

  // Any thread: from here on every wait ends with INTERRUPTED.
  void close();

 private:
  Sender() = default;
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
  bool wants_pidfd_ = false;  // the receiver does, of this process
  bool receiver_gone_ = false;
  std::atomic<bool> closed_{false};
};

}  // namespace feedlane::channel
