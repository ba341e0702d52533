// SPDX-License-Identifier: Apache-2.0
// How long a loader's handle lives: until its owners, its batches and the threads that work for it have all let go.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "pinned/pool.hpp"

namespace feedlane::loader {

// The handle derives from it, and is deleted with the last count. It has one count for all owners, one for each batch that
// the trainer holds or that a stream uses, one for each local worker
// and each monitor.
//
// Thread safety: any thread.
class Life : public pinned::Pool::Deferred {
 public:
  Life() = default;
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  // For a caller for whom a count is there meanwhile; so relaxed is enough.
  void keep() { count_.fetch_add(1, std::memory_order_relaxed); }
  void let_go() {
    if (is_last()) delete this;
  }
  // The same where a stream's callback runs, in which nothing of the driver may be called: the pool's next call deletes it.
  void let_go_later(pinned::Pool& pool) {
    if (is_last()) pool.defer(*this);
  }

 private:
  // Release: this thread's use comes before; acquire: the last one sees that of all others.
  bool is_last() { return count_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  std::atomic<std::uint64_t> count_{1};
};

// One count, let go at the end of the scope unless it was passed on.
class Hold {
 public:
  explicit Hold(Life& life) : life_(&life) { life.keep(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    if (life_ != nullptr) life_->let_go();
  }
  // The count is now the receiver's to let go.
  Life* pass_on() { return std::exchange(life_, nullptr); }

 private:
  Life* life_;
};

}  // namespace feedlane::loader
