// SPDX-License-Identifier: Apache-2.0
// Ways to get messages from one process to another besides Feedlane's, with the two calls of channels.hpp: Boost's
// queues, and the kernel's pipe.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "channels.hpp"
#include "measure.hpp"

namespace bench {

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
    if (lanes > most_lanes || push > most_at_once || pop > most_at_once) fail("more than BoostLanes supports");
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
    if (::pipe2(fds_, O_CLOEXEC) != 0) fail("pipe2 failed");
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
      if (n <= 0) fail("cannot write to a pipe");
      done += static_cast<std::size_t>(n);
    }
  }
  void receive(Message& m) {
    for (std::size_t done = 0; done < sizeof m;) {
      const ssize_t n = ::read(fds_[0], reinterpret_cast<char*>(&m) + done, sizeof m - done);
      if (n <= 0) fail("cannot read from a pipe");
      done += static_cast<std::size_t>(n);
    }
  }
  void close() {}

 private:
  int fds_[2] = {-1, -1};
};

// Messages in a queue of Boost's, the news of each by an eventfd, on which the receiver sleeps.
class EventQueue {
 public:
  using Message = bench::Message;
  EventQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {
    if (fd_ < 0) fail("eventfd failed");
  }
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue() { (void)::close(fd_); }
  void open_sender() {}
  void open_receiver() {}
  void close() {}
  void send(const Message& m) {
    queue_.send(m);
    if (::eventfd_write(fd_, 1) != 0) fail("cannot write to an eventfd");
  }
  void receive(Message& m) {
    eventfd_t count = 0;
    if (::eventfd_read(fd_, &count) != 0) fail("cannot read from an eventfd");
    queue_.receive(m);
  }

 private:
  int fd_;
  BoostSpsc<> queue_;
};

}  // namespace bench
