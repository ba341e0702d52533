// SPDX-License-Identifier: Apache-2.0
// The receiving end of a standalone ring: makes it, lets senders in, takes their messages, learns of their ends.
//
// Every sender has a segment of its own, made when it comes. It maps that one for writing and no other, so that nothing of what
// it does there reaches beyond its own messages; and they are counted, so that it can't keep its lane by filling it again after
// its end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "feedlane/ring.h"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
#include "os/socket.hpp"
#include "ring/doorbell.hpp"
#include "ring/lanes.hpp"
#include "ring/waiter.hpp"
#include "shm/ring_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::channel {

class Receiver {
 public:
  Receiver() = default;
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver();

  // `path` empty: senders come by offer(); else also by connecting to that Unix socket, which only this user can.
  Status create(const shm::RingPlan& plan, const std::string& path, const os::SystemFiles& files, Error& error);
  // A connected socket for one sender. E_LIMIT when every lane is taken; E_MEMORY.
  Status offer(os::Fd& theirs, Error& error);

  // Messages of one lane, up to `want`: 0 with count > 0; TIMEOUT; INTERRUPTED; END when every sender that was let in has
  // left or died and all it sent has been taken, each time until another has come; who asks to come in does first.
  Status peek(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error);
  // Gives back the first `count` messages of what the last peek returned.
  Status release(std::uint32_t lane, std::uint32_t count, Error& error);

  // The same, at once or not at all: false where it takes a wait or an explanation.
  bool try_peek(std::uint32_t want, feedlane_span& got) {
    waiter_.cancel();
    std::uint32_t count = 0;
    const ring::Lanes::Message m = lanes_.peek_many(want, count);
    if (m.data == nullptr) return false;
    peeked_lane_ = m.lane;
    peeked_ = count;
    senders_[m.lane].shown = {finds_, lanes_.position(m.lane) + count};
    got = {const_cast<std::byte*>(m.data), plan_.geometry.cell_bytes, count, m.lane};
    return true;
  }
  bool try_release(std::uint32_t lane, std::uint32_t count) {
    if (lane != peeked_lane_ || count > peeked_) return false;
    const Sender& sender = senders_[lane];
    if (sender.state != Sender::State::attached) return false;
    peeked_ -= count;
    lanes_.release(lane, count);
    (void)ring::Doorbell(sender.sleeping, sender.sender_event.get(), sender.fenced_by).ring();  // it may wait for room
    return true;
  }

  // Any thread: from here on every wait ends with INTERRUPTED.
  void close();

  Status arm(Error& error);
  [[nodiscard]] int wait_fd() const { return waiter_.fd(); }

 private:
  // One lane's sender. free -> offered -> attached -> left (messages still to be taken) -> free. Of an offered lane nothing is
  // taken: it is free as soon as it is lost.
  struct Sender {
    enum class State { free, offered, attached, left } state = State::free;
    std::uint32_t generation = 0;
    shm::DataSegment memory;
    os::Fd socket;
    os::Fd process;  // pidfd; none for a sender in this process
    os::Fd sender_event;
    os::Fd receiver_event;
    const ring::SleepFlag* sleeping = nullptr;
    ring::FencedBy fenced_by = ring::FencedBy::publisher;  // our doorbell to it
    // Messages up to `end` are in the caller's hands, until they are released or a peek finds nothing, which they would be.
    struct Shown {
      std::uint64_t finds = 0;
      std::uint64_t end = 0;
    } shown;
    std::uint64_t end = 0;  // left: it can't have committed anything from here on
  };
  // One that has connected to the path and hasn't asked for a lane yet. When there are too many the oldest has to go.
  struct Guest {
    std::uint32_t generation = 0;
    os::Fd socket;
    os::Deadline expected = os::Deadline::never();  // who is going to ask does so at once: END waits for it so long
  };
  static constexpr std::uint32_t max_guests = 64;
  static constexpr std::int64_t guest_patience_ns = 100'000'000;
  // What a member of the poller is, and whose: a lane's or a guest's. The generation tells late events of a predecessor apart.
  enum Kind : std::uint64_t { kind_doorbell, kind_process, kind_socket, kind_guest };
  static std::uint64_t make_tag(std::uint32_t generation, std::uint32_t place, Kind kind) {
    return std::uint64_t{generation} << 32 | std::uint64_t{place} << 2 | kind;
  }
  static constexpr std::uint64_t listener_tag = UINT64_MAX;

  // admission.cpp
  Status make_events(std::uint32_t lane, Error& error);
  Status make_room(std::uint32_t lane, Error& error);
  void give_up_room(std::uint32_t lane);
  Status let_in(std::uint32_t lane, os::Fd socket, Error& error);
  Status accept_one(Error& error);
  Status hear_guest(std::uint32_t guest, Error& error);
  void dismiss(std::uint32_t guest);
  [[nodiscard]] bool expects_guests() const;
  [[nodiscard]] bool find_free(std::uint32_t& lane);
  void hear(std::uint32_t lane);
  Status watch(std::uint32_t lane, os::Received& received, Error& error);
  void lose(std::uint32_t lane);
  void close_if_empty(std::uint32_t lane);

  Status handle(const os::Poller::Event& event, Error& error);
  void note_arrival();
  [[nodiscard]] bool has_ended();
  Status wait(os::Deadline deadline, Error& error);
  Status take_news(Error& error);

  shm::RingPlan plan_;
  os::SystemFiles files_;
  shm::SegmentPair segments_;  // control alone
  std::vector<Sender> senders_;
  std::array<Guest, max_guests> guests_;
  std::uint32_t next_guest_ = 0;  // the place that was filled longest ago
  ring::Lanes lanes_;
  ring::Waiter waiter_;
  os::Fd close_event_;
  std::atomic<bool> closed_{false};
  os::Fd self_;
  os::Fd listener_;
  os::SocketFile file_;  // of the listener
  pid_t owner_ = 0;      // only it ends what the descriptors are of
  bool anybody_came_ = false;
  bool end_told_ = false;    // by peek, since somebody came last
  std::uint64_t finds_ = 1;  // +1 with each peek that found nothing at first
  std::uint32_t peeked_lane_ = 0;
  std::uint32_t peeked_ = 0;
};

}  // namespace feedlane::channel
