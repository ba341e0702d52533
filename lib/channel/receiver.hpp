// SPDX-License-Identifier: Apache-2.0
// The receiving end of a standalone ring: creates the ring, admits senders, takes their messages, observes their ends.
//
// Each sender gets its own data segment when it is admitted and maps no other segment for writing, so it can damage
// only its own messages. After the sender's end at most `capacity` messages are taken, so it can't keep its lane by
// refilling it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "channel/copying.hpp"
#include "feedlane/ring.h"
#include "greeting/guests.hpp"
#include "greeting/ring.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/limits.hpp"
#include "os/poller.hpp"
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

  // If `path` is empty, senders come only through offer(). Otherwise processes of this user may also connect to a Unix
  // socket at `path`.
  Status create(const shm::RingPlan& plan, const std::string& path, const os::SystemFiles& files, Error& error);
  // Returns a connected socket for one sender. E_LIMIT if every lane is taken; E_MEMORY.
  Status offer(os::Fd& theirs, Error& error);

  // Returns up to `want` messages of one lane. OK with count > 0; TIMEOUT; INTERRUPTED; END if every accepted sender
  // has left or died and all messages have been taken. A later sender ends this state. Pending requests for a lane are
  // handled before END is returned.
  Status peek(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error);
  // Releases the first `count` messages of the last peek.
  Status release(std::uint32_t lane, std::uint32_t count, Error& error);
  // Copies the messages that peek would return to `messages`, message_bytes apart, and releases them. Cancels an
  // earlier peek.
  Status receive(std::byte* messages, std::uint32_t want, std::int64_t timeout_ns, std::uint32_t& got,
                 std::uint32_t& lane, Error& error);

  // The try_ functions don't wait. If one returns false, call its other form, which waits or reports an error.
  bool try_peek(std::uint32_t want, feedlane_span& got) {
    waiter_.cancel();
    std::uint32_t count = 0;
    const ring::Lanes::Message m = lanes_.peek_many(want, count);
    if (m.data == nullptr) return false;
    peeked_lane_ = m.lane;
    peeked_ = count;
    senders_[m.lane].peeked = {finds_, lanes_.position(m.lane) + count};
    got = {const_cast<std::byte*>(m.data), plan_.geometry.cell_bytes, count, m.lane};
    return true;
  }
  bool try_release(std::uint32_t lane, std::uint32_t count) {
    if (lane != peeked_lane_ || count > peeked_) return false;
    const Sender& sender = senders_[lane];
    if (sender.state != Sender::State::attached) return false;
    peeked_ -= count;
    lanes_.release(lane, count);
    // The sender may be waiting for room.
    (void)bell_of(sender).ring();
    return true;
  }
  // Only for messages of one cache line.
  bool try_receive(std::byte* messages, std::uint32_t want, std::uint32_t& got, std::uint32_t& lane) {
    return plan_.geometry.message_bytes <= line_bytes && take(messages, want, got, lane, CopyLine{});
  }

  // Ends current and later waits with INTERRUPTED. Thread safety: any thread.
  void close();

  Status arm(Error& error);
  [[nodiscard]] int wait_fd() const { return waiter_.fd(); }

 private:
  // The sender of one lane. States: free -> offered -> attached -> left (messages are still to be taken) -> free. No
  // message is taken from an offered lane, which becomes free as soon as its sender is gone.
  struct Sender {
    enum class State { free, offered, attached, left } state = State::free;
    std::uint32_t generation = 0;
    shm::DataSegment memory;
    os::Fd socket;
    os::Fd process;  // pidfd; none for a sender in this process
    os::Fd sender_event;
    os::Fd receiver_event;
    const ring::SleepFlag* sleeping = nullptr;
    ring::FencedBy fenced_by = ring::FencedBy::publisher;  // of our doorbell to the sender
    // The caller holds messages before position `end`, until it releases them or a later peek finds no message.
    struct Peeked {
      std::uint64_t finds = 0;
      std::uint64_t end = 0;
    } peeked;
    std::uint64_t end = 0;  // in state left: no message at or after this position is taken
  };
  // A poller's tag consists of the kind of descriptor, the number of its lane, and a generation. Late events of a former
  // sender carry an old generation and are ignored.
  enum Kind : std::uint64_t { kind_doorbell, kind_process, kind_socket };
  static std::uint64_t make_tag(std::uint32_t generation, std::uint32_t lane, Kind kind) {
    return std::uint64_t{generation} << 32 | std::uint64_t{lane} << 2 | kind;
  }

  static ring::Doorbell bell_of(const Sender& sender) {
    return {sender.sleeping, sender.sender_event.get(), sender.fenced_by};
  }

  template <class Copy>
  bool take(std::byte* messages, std::uint32_t want, std::uint32_t& got, std::uint32_t& lane, Copy copy) {
    waiter_.cancel();
    std::uint32_t count = 0;
    const ring::Lanes::Message m = lanes_.peek_many(want, count);
    if (m.data == nullptr) return false;
    const std::uint32_t bytes = plan_.geometry.message_bytes;
    copy_messages(messages, bytes, m.data, plan_.geometry.cell_bytes, count, bytes, copy);
    got = count;
    lane = m.lane;
    peeked_ = 0;
    lanes_.release(m.lane, count);
    Sender& sender = senders_[m.lane];
    // The caller holds no messages of this lane any more.
    sender.peeked.finds = 0;
    if (sender.state == Sender::State::attached) (void)bell_of(sender).ring();  // the sender may be waiting for room
    else free_if_empty(m.lane);
    return true;
  }

  // admission.cpp
  Status find_free(std::uint32_t& lane, Error& error);
  Status make_room(std::uint32_t lane, Error& error);
  Status admit(std::uint32_t lane, os::Fd socket, Error& error);
  Status handle_guest(std::uint64_t tag, Error& error);
  void end_gone();
  void read_message(std::uint32_t lane);
  void end_sender(std::uint32_t lane);
  void free_if_empty(std::uint32_t lane);

  Status handle(const os::Poller::Event& event, Error& error);
  void record_arrival();
  [[nodiscard]] bool has_ended();
  template <class Try>
  Status find(std::int64_t timeout_ns, Try&& try_it, Error& error);
  Status wait(os::Deadline deadline, Error& error);
  Status handle_events(Error& error);

  shm::RingPlan plan_;
  os::SystemFiles files_;
  shm::SegmentPair segments_;  // only control
  std::vector<Sender> senders_;
  ring::Lanes lanes_;
  ring::Waiter waiter_;
  greeting::Guests guests_{waiter_.poller(), ring_asking_magic, sizeof(greeting::Word)};
  os::Fd close_event_;
  std::atomic<bool> closed_{false};
  os::Fd self_;
  pid_t owner_ = 0;  // only this process shuts the sockets down, not a forked child
  bool has_arrivals_ = false;
  bool end_returned_ = false;  // peek has returned END since the last arrival
  std::uint64_t finds_ = 1;    // counts peeks and receives that found no message at first
  std::uint32_t peeked_lane_ = 0;
  std::uint32_t peeked_ = 0;
};

}  // namespace feedlane::channel
