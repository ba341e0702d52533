// SPDX-License-Identifier: Apache-2.0
// Workers that are threads of this program (--start thread): they decode into the memory that the trainer reads, with no
// process between the two. They can't be killed and replaced as processes can.
#pragma once

#include <feedlane/loader.hpp>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace common {

class WorkerThreads {
 public:
  /// `loader` must outlive this.
  explicit WorkerThreads(feedlane::Loader& loader) : loader_(loader) {}
  /// Stops the loader, the threads' sign to leave, and joins them.
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  void start(int32_t count);
  /// Whether one of them had to give up, which the user has been told and the loader's wait interrupted for.
  /// Pairs with the store in work().
  bool failed() const { return failed_.load(std::memory_order_acquire); }

 private:
  void work();

  feedlane::Loader& loader_;
  std::atomic<bool> failed_{false};
  std::vector<std::thread> threads_;
};

}  // namespace common
