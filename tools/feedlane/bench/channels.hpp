// SPDX-License-Identifier: Apache-2.0
// Ways to get messages from one process to another, all with the same two calls: the bare line, an eventfd, and
// Feedlane's ring through its C API, in place and by copies. A channel is made before the fork; then each side opens its
// end. tools/bench has others.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "measure.hpp"

namespace bench {

// What is sent: 56 bytes, with Feedlane's sequence number a line, or so many lines.
template <std::size_t lines>
struct Lines {
  std::uint64_t words[8 * lines - 1];
};
using Message = Lines<1>;
static_assert(sizeof(Message) == 56);

// Room in every channel that has a size.
template <class M>
constexpr std::uint32_t ring_messages = sizeof(M) < 4096 ? 1024 : 64;

// ---- the floor: a line there, a line back, nothing else ----

class Line {
 public:
  using Message = bench::Message;
  void open_sender() {}
  void open_receiver() {}
  void close() {}
  void send(const Message& m) {
    cell_->message = m;
    cell_->sequence.store(++sent_, std::memory_order_release);  // pairs with the load in receive
  }
  void receive(Message& m) {
    while (cell_->sequence.load(std::memory_order_acquire) == seen_) continue;
    seen_++;
    m = cell_->message;
  }

 private:
  struct alignas(128) Cell {
    Message message;
    std::atomic<std::uint64_t> sequence;
  };
  Cell* cell_ = make_shared_object<Cell>();
  std::uint64_t sent_ = 0, seen_ = 0;
};

// The message in a line, the news of it by an eventfd: what any sleeping hand-over costs at least.
class Event {
 public:
  using Message = bench::Message;
  Event() : fd_(::eventfd(0, EFD_CLOEXEC)) {
    if (fd_ < 0) fail("eventfd failed");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { (void)::close(fd_); }
  void open_sender() {}
  void open_receiver() {}
  void close() {}
  void send(const Message& m) {
    *message_ = m;
    if (::eventfd_write(fd_, 1) != 0) fail("cannot write to an eventfd");
  }
  void receive(Message& m) {
    eventfd_t count = 0;
    if (::eventfd_read(fd_, &count) != 0) fail("cannot read from an eventfd");
    m = *message_;
  }

 private:
  int fd_;
  Message* message_ = make_shared_object<Message>();
};

// ---- Feedlane ----

// Both ends of a ring with so many lanes.
template <class M>
class RingEnds {
 public:
  using Message = M;
  explicit RingEnds(std::uint32_t lanes) : lanes_(lanes) {
    static int number = 0;
    path_ = "/tmp/feedlane-bench-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
    feedlane_init(&error_, sizeof error_);
  }
  RingEnds(const RingEnds&) = delete;
  RingEnds& operator=(const RingEnds&) = delete;

  void open_receiver() {
    feedlane_ring_config config;
    feedlane_init(&config, sizeof config);
    config.message_bytes = sizeof(Message);
    config.capacity = ring_messages<M>;
    config.lanes = lanes_;
    config.path = path_.c_str();
    check("feedlane_rx_create", feedlane_rx_create(&config, &rx_, &error_), error_);
  }
  void attach() {
    while (::access(path_.c_str(), F_OK) != 0) (void)::usleep(100);
    std::int32_t s = FEEDLANE_E_OS;
    for (int tries = 0; tries < 100 && s != FEEDLANE_OK; tries++) {  // bound, but not listened at yet
      if (tries != 0) (void)::usleep(1000);
      s = feedlane_tx_attach(-1, path_.c_str(), FEEDLANE_FOREVER, &tx_, nullptr, &error_);
    }
    check("feedlane_tx_attach", s, error_);
  }

 protected:
  ~RingEnds() = default;
  // By the process that opened an end, also when it ends without destructors: the receiver's path goes away here.
  void destroy() {
    (void)feedlane_tx_destroy(&tx_);
    (void)feedlane_rx_destroy(&rx_);
  }

  feedlane_rx* rx_ = nullptr;
  feedlane_tx* tx_ = nullptr;
  feedlane_error error_;

 private:
  std::uint32_t lanes_;
  std::string path_;
};

// Messages in place: reserve and commit, peek and release.
template <class M = Message>
class Ring : public RingEnds<M> {
 public:
  // `commit` messages are committed at once, up to `peek` are taken at once.
  explicit Ring(std::uint32_t lanes = 1, std::uint32_t commit = 1, std::uint32_t peek = 1)
      : RingEnds<M>(lanes), commit_(commit), peek_(peek) {}
  ~Ring() { close(); }

  void open_sender() {
    this->attach();
    reserve();
  }
  // Committed one by one, or by so many. The place of the next one is reserved before it is known what will lie there.
  void send(const M& m) {
    // Not by memcpy, which reads 16 bytes where 8 were just written, and waits for them. Others' queues assign it too.
    new (static_cast<std::byte*>(room_.data) + pending_ * room_.stride) M(m);
    if (++pending_ < room_.count) return;
    flush();
    reserve();
  }
  void receive(M& m) {
    if (taken_ == got_.count) {
      give_back();
      check("feedlane_rx_peek", feedlane_rx_peek(rx_, peek_, FEEDLANE_FOREVER, &got_, &error_), error_);
    }
    m = *reinterpret_cast<const M*>(static_cast<const std::byte*>(got_.data) + taken_++ * got_.stride);
  }
  // After the last message: a sender may be waiting for the place of one that it won't send.
  void give_back() {
    if (got_.count != 0) (void)feedlane_rx_release(rx_, got_.lane, got_.count, nullptr);
    got_.count = taken_ = 0;
  }
  void close() {
    if (tx_ != nullptr && pending_ != 0) flush();
    this->destroy();
  }

 private:
  using RingEnds<M>::rx_, RingEnds<M>::tx_, RingEnds<M>::error_;
  void flush() {
    check("feedlane_tx_commit", feedlane_tx_commit(tx_, pending_, &error_), error_);
    pending_ = 0;
  }
  void reserve() {
    check("feedlane_tx_reserve", feedlane_tx_reserve(tx_, commit_, FEEDLANE_FOREVER, &room_, &error_), error_);
  }
  std::uint32_t commit_, peek_;
  feedlane_span room_{}, got_{};
  std::uint32_t pending_ = 0, taken_ = 0;
};

// Messages copied: send and receive, a call for each message.
template <class M = Message>
class RingCalls : public RingEnds<M> {
 public:
  explicit RingCalls(std::uint32_t lanes = 1) : RingEnds<M>(lanes) {}
  ~RingCalls() { close(); }

  void open_sender() { this->attach(); }
  void send(const M& m) {
    check("feedlane_tx_send", feedlane_tx_send(this->tx_, &m, 1, FEEDLANE_FOREVER, nullptr, &this->error_),
          this->error_);
  }
  void receive(M& m) {
    std::uint32_t got = 0;
    check("feedlane_rx_receive", feedlane_rx_receive(this->rx_, &m, 1, FEEDLANE_FOREVER, &got, nullptr, &this->error_),
          this->error_);
  }
  void close() { this->destroy(); }
};

// The same, a call for many: from one buffer and to another.
template <class M = Message>
class RingBatches : public RingEnds<M> {
 public:
  // `send` messages are sent at once, up to `receive` received at once.
  explicit RingBatches(std::uint32_t lanes = 1, std::uint32_t send = 1, std::uint32_t receive = 1)
      : RingEnds<M>(lanes), out_(send), in_(receive) {}
  ~RingBatches() { close(); }

  void open_sender() { this->attach(); }
  void send(const M& m) {
    out_[pending_] = m;
    if (++pending_ == out_.size()) flush();
  }
  void receive(M& m) {
    if (taken_ == got_) {
      check("feedlane_rx_receive",
            feedlane_rx_receive(this->rx_, in_.data(), static_cast<std::uint32_t>(in_.size()), FEEDLANE_FOREVER, &got_,
                                nullptr, &this->error_),
            this->error_);
      taken_ = 0;
    }
    m = in_[taken_++];
  }
  void close() {
    if (this->tx_ != nullptr && pending_ != 0) flush();
    this->destroy();
  }

 private:
  void flush() {
    check("feedlane_tx_send",
          feedlane_tx_send(this->tx_, out_.data(), pending_, FEEDLANE_FOREVER, nullptr, &this->error_), this->error_);
    pending_ = 0;
  }
  std::vector<M> out_, in_;
  std::uint32_t pending_ = 0, taken_ = 0, got_ = 0;
};

}  // namespace bench
