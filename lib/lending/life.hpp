// SPDX-License-Identifier: Apache-2.0
// The lifetime of a loader's handle: until its owners, batches, local workers and monitors have all let go.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "pinned/pool.hpp"

namespace feedlane::lending {

// The handle derives from this class and is deleted with the last count. All owners together have one count, and so do
// each batch that the trainer holds or a stream uses, each local worker, and each monitor.
//
// Thread safety: any thread.
class Life : public pinned::Pool::Deferred {
 public:
  Life() = default;
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  // Relaxed: the caller relies on an existing count, which is not let go during this call.
  void keep() { count_.fetch_add(1, std::memory_order_relaxed); }
  void let_go() {
    if (is_last()) delete this;
  }
  // Like let_go, for a stream's callback, which must not call the driver. The pool's next call deletes the handle.
  void let_go_later(pinned::Pool& pool) {
    if (is_last()) pool.defer(*this);
  }

 private:
  // Release: orders this thread's use before the decrement. Acquire: the last thread sees the use by all others.
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
  // The receiver now has to let go of the count.
  Life* pass_on() { return std::exchange(life_, nullptr); }

 private:
  Life* life_;
};

}  // namespace feedlane::lending
