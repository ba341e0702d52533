// SPDX-License-Identifier: Apache-2.0
// The machine's loader: a thread of the machine's first rank that serves batches to all ranks of the machine.
#pragma once

#include <feedlane/feedlane.hpp>

#include <atomic>
#include <cstdint>
#include <thread>

namespace mpi_digits {

class Feeder {
 public:
  /// `options` has Share::deal. Throws.
  explicit Feeder(const feedlane::LoaderOptions& options)
      : loader_(options), own_place_(feedlane::open_consumer(loader_, {.id = 0})) {}
  ~Feeder() { stop(); }
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;

  /// Serves epochs `first` to `end` - 1, in a thread of its own.
  void start(int64_t first, int64_t end);
  /// Stops the workers and waits for the thread.
  void stop();

  /// For the rank that runs this feeder: joins with consumer 0's place. Once. The feeder must have been started. Throws.
  feedlane::Loader join() { return feedlane::join(own_place_.release()); }

 private:
  void run(int64_t first, int64_t end);
  int32_t serve();

  feedlane::Loader loader_;
  feedlane::Place own_place_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mpi_digits
