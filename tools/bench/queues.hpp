// SPDX-License-Identifier: Apache-2.0
// Other projects' queues for one producer and one consumer, placed in shared memory between two processes. They are
// compiled in where Meson's option `peers` leads to their headers, as they are there.
#pragma once

// As their own benchmarks are built: without their assertions, of which one in each call looks at the other side's
// index.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define NDEBUG 1
#ifdef BENCH_PEER_RIGTORP
#include <rigtorp/SPSCQueue.h>
#endif
#ifdef BENCH_PEER_FOLLY
#include <folly/concurrency/CacheLocality.h>

#include <cstdlib>
#endif
#include "measure.hpp"
#ifdef BENCH_PEER_FOLLY
// It takes the memory of its records by std::malloc: from a mapping that forked processes share, for this one header.
// It is never destroyed, so it frees nothing.
#pragma push_macro("malloc")
#define malloc(bytes) move(bench::shared_memory(bytes))
#include <folly/ProducerConsumerQueue.h>
#pragma pop_macro("malloc")
#endif
#pragma pop_macro("NDEBUG")

#include <cstddef>
#include <string>
#include <vector>

#include "channels.hpp"

namespace bench {

constexpr const char *rigtorp_name = "rigtorp::SPSCQueue", *folly_name = "folly::ProducerConsumerQueue";

#ifdef BENCH_PEER_RIGTORP
constexpr bool has_rigtorp = true;
template <class T>
struct SharedAllocator {
  using value_type = T;
  T* allocate(std::size_t count) { return static_cast<T*>(shared_memory(count * sizeof(T))); }
  void deallocate(T*, std::size_t) {}
};

class RigtorpSpsc {
 public:
  using Message = bench::Message;
  void open_sender() {}
  void open_receiver() {}
  void send(const Message& m) { queue_->push(m); }
  void receive(Message& m) {
    const Message* front = queue_->front();
    while (front == nullptr) front = queue_->front();
    m = *front;
    queue_->pop();
  }
  void close() {}

 private:
  using Queue = rigtorp::SPSCQueue<Message, SharedAllocator<Message>>;
  Queue* queue_ = new (shared_memory(sizeof(Queue))) Queue(ring_messages<Message>);
};
#else
constexpr bool has_rigtorp = false;
#endif

#ifdef BENCH_PEER_FOLLY
constexpr bool has_folly = true;
class FollySpsc {
 public:
  using Message = bench::Message;
  void open_sender() {}
  void open_receiver() {}
  void send(const Message& m) {
    while (!queue_->write(m)) continue;
  }
  void receive(Message& m) {
    while (!queue_->read(m)) continue;
  }
  void close() {}

 private:
  using Queue = folly::ProducerConsumerQueue<Message>;
  Queue* queue_ = new (shared_memory(sizeof(Queue))) Queue(ring_messages<Message> + 1);  // one place stays free
};
#else
constexpr bool has_folly = false;
#endif

}  // namespace bench
