// SPDX-License-Identifier: Apache-2.0
// Ways to get messages from one process to another, all with the same two calls: Feedlane's ring through its C API, and its
// peers. A channel is made before the fork; then each side opens its end.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
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

// ---- Feedlane ----

template <class M = Message>
class Ring {
 public:
  using Message = M;
  // `commit` messages are committed at once, up to `peek` are taken at once.
  explicit Ring(std::uint32_t lanes = 1, std::uint32_t commit = 1, std::uint32_t peek = 1)
      : lanes_(lanes), commit_(commit), peek_(peek) {
    static int number = 0;
    path_ = "/tmp/feedlane-bench-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
    feedlane_init(&error_, sizeof error_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { close(); }

  void open_receiver() {
    feedlane_ring_config config;
    feedlane_init(&config, sizeof config);
    config.message_bytes = sizeof(Message);
    config.capacity = ring_messages<M>;
    config.lanes = lanes_;
    config.path = path_.c_str();
    check("feedlane_rx_create", feedlane_rx_create(&config, &rx_, &error_), error_);
  }
  void open_sender() {
    while (::access(path_.c_str(), F_OK) != 0) (void)::usleep(100);
    std::int32_t s = FEEDLANE_E_OS;
    for (int tries = 0; tries < 100 && s != FEEDLANE_OK; tries++) {  // bound, but not listened at yet
      if (tries != 0) (void)::usleep(1000);
      s = feedlane_tx_attach(-1, path_.c_str(), FEEDLANE_FOREVER, &tx_, &error_);
    }
    check("feedlane_tx_attach", s, error_);
    reserve();
  }
  // Committed one by one, or by so many. The place of the next one is reserved before it is known what will lie there.
  void send(const Message& m) {
    std::memcpy(static_cast<std::byte*>(room_.data) + pending_ * room_.stride, &m, sizeof m);
    if (++pending_ < room_.count) return;
    flush();
    reserve();
  }
  void receive(Message& m) {
    if (taken_ == got_.count) {
      give_back();
      check("feedlane_rx_peek", feedlane_rx_peek(rx_, peek_, FEEDLANE_FOREVER, &got_, &error_), error_);
    }
    std::memcpy(&m, static_cast<const std::byte*>(got_.data) + taken_++ * got_.stride, sizeof m);
  }
  // After the last message: a sender may be waiting for the place of one that it won't send.
  void give_back() {
    if (got_.count != 0) (void)feedlane_rx_release(rx_, got_.lane, got_.count, nullptr);
    got_.count = taken_ = 0;
  }
  // By the process that opened an end, also when it ends without destructors: the receiver's path goes away here.
  void close() {
    if (tx_ != nullptr && pending_ != 0) flush();
    (void)feedlane_tx_destroy(&tx_);
    (void)feedlane_rx_destroy(&rx_);
  }

 private:
  void flush() {
    check("feedlane_tx_commit", feedlane_tx_commit(tx_, pending_, &error_), error_);
    pending_ = 0;
  }
  void reserve() {
    check("feedlane_tx_reserve", feedlane_tx_reserve(tx_, commit_, FEEDLANE_FOREVER, &room_, &error_), error_);
  }
  std::uint32_t lanes_, commit_, peek_;
  std::string path_;
  feedlane_rx* rx_ = nullptr;
  feedlane_tx* tx_ = nullptr;
  feedlane_error error_;
  feedlane_span room_{}, got_{};
  std::uint32_t pending_ = 0, taken_ = 0;
};

// ---- peers ----

// Boost's queues without pointers inside lie in shared memory as they are.
template <class Queue>
class BoostQueue {
 public:
  using Message = typename Queue::value_type;
  void open_sender() {}
  void open_receiver() {}
  void send(const Message& m) {
    while (!queue_->push(m)) continue;
  }
  void receive(Message& m) {
    while (!queue_->pop(m)) continue;
  }
  void close() {}

 private:
  Queue* queue_ = make_shared_object<Queue>();
};
// Queues for one producer each, pushed to and popped from by so many messages at once; the consumer goes round them.
template <class M = Message>
class BoostLanes {
 public:
  using Message = M;
  explicit BoostLanes(std::uint32_t lanes = 1, std::uint32_t push = 1, std::uint32_t pop = 1)
      : lanes_(lanes), push_(push), pop_(pop) {
    if (lanes > most_lanes || push > most_at_once || pop > most_at_once) fail("more than BoostLanes is made for");
  }
  void open_sender() { queue_ = &shared_->queues[shared_->senders.fetch_add(1, std::memory_order_relaxed)]; }
  void open_receiver() {}
  void send(const Message& m) {
    buffer_[pending_] = m;
    if (++pending_ == push_) flush();
  }
  void receive(Message& m) {
    while (taken_ == got_) {
      got_ = static_cast<std::uint32_t>(shared_->queues[next_].pop(buffer_.data(), pop_));
      taken_ = 0;
      if (++next_ == lanes_) next_ = 0;
    }
    m = buffer_[taken_++];
  }
  void close() {
    if (queue_ != nullptr) flush();
  }

 private:
  void flush() {
    for (std::uint32_t done = 0; done < pending_;)
      done += static_cast<std::uint32_t>(queue_->push(buffer_.data() + done, pending_ - done));
    pending_ = 0;
  }
  static constexpr std::uint32_t most_lanes = 8, most_at_once = 64;
  using Queue = boost::lockfree::spsc_queue<M, boost::lockfree::capacity<ring_messages<M>>>;
  struct Shared {
    std::atomic<std::uint32_t> senders;
    Queue queues[most_lanes];
  };
  std::uint32_t lanes_, push_, pop_;
  Shared* shared_ = make_shared_object<Shared>();
  Queue* queue_ = nullptr;  // the sender's
  std::uint32_t pending_ = 0, taken_ = 0, got_ = 0, next_ = 0;
  std::vector<Message> buffer_{most_at_once};
};

template <class M = Message>
using BoostSpsc = BoostQueue<boost::lockfree::spsc_queue<M, boost::lockfree::capacity<ring_messages<M>>>>;
template <class M = Message>
using BoostMpmc = BoostQueue<
    boost::lockfree::queue<M, boost::lockfree::fixed_sized<true>, boost::lockfree::capacity<ring_messages<M>>>>;

template <class M = Message>
class BoostMessageQueue {
 public:
  using Message = M;
  BoostMessageQueue() : name_("feedlane-bench-" + std::to_string(::getpid())) {
    using namespace boost::interprocess;
    (void)message_queue::remove(name_.c_str());
    queue_ = std::make_unique<message_queue>(create_only, name_.c_str(), ring_messages<M>, sizeof(Message));
    (void)message_queue::remove(name_.c_str());  // it is mapped, and a fork inherits that
  }
  void open_sender() {}
  void open_receiver() {}
  void send(const Message& m) { queue_->send(&m, sizeof m, 0); }
  void receive(Message& m) {
    boost::interprocess::message_queue::size_type got = 0;
    unsigned priority = 0;
    queue_->receive(&m, sizeof m, got, priority);
  }
  void close() {}

 private:
  std::string name_;
  std::unique_ptr<boost::interprocess::message_queue> queue_;
};

template <class M = Message>
class Pipe {
 public:
  using Message = M;
  Pipe() {
    if (::pipe2(fds_, O_CLOEXEC) != 0) fail("pipe2 was refused");
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    (void)::close(fds_[0]);
    (void)::close(fds_[1]);
  }
  void open_sender() {}
  void open_receiver() {}
  void send(const Message& m) {
    for (std::size_t done = 0; done < sizeof m;) {  // beyond PIPE_BUF in parts
      const ssize_t n = ::write(fds_[1], reinterpret_cast<const char*>(&m) + done, sizeof m - done);
      if (n <= 0) fail("write to a pipe");
      done += static_cast<std::size_t>(n);
    }
  }
  void receive(Message& m) {
    for (std::size_t done = 0; done < sizeof m;) {
      const ssize_t n = ::read(fds_[0], reinterpret_cast<char*>(&m) + done, sizeof m - done);
      if (n <= 0) fail("read from a pipe");
      done += static_cast<std::size_t>(n);
    }
  }
  void close() {}

 private:
  int fds_[2] = {-1, -1};
};

// The message in a line, the news of it by an eventfd: what any sleeping hand-over costs at least.
class Event {
 public:
  using Message = bench::Message;
  Event() : fd_(::eventfd(0, EFD_CLOEXEC)) {
    if (fd_ < 0) fail("eventfd was refused");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { (void)::close(fd_); }
  void open_sender() {}
  void open_receiver() {}
  void close() {}
  void send(const Message& m) {
    *message_ = m;
    if (::eventfd_write(fd_, 1) != 0) fail("write to an eventfd");
  }
  void receive(Message& m) {
    eventfd_t count = 0;
    if (::eventfd_read(fd_, &count) != 0) fail("read from an eventfd");
    m = *message_;
  }

 private:
  int fd_;
  Message* message_ = make_shared_object<Message>();
};

}  // namespace bench
