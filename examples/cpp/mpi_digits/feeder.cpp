// SPDX-License-Identifier: Apache-2.0
// The feeder's loop. It makes no MPI calls.
#include "feeder.hpp"

#include <chrono>

#include "../common/complain.hpp"

namespace mpi_digits {

void Feeder::start(int64_t first, int64_t end) {
  thread_ = std::thread([this, first, end] { run(first, end); });
}

void Feeder::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);  // pairs with the load in serve()
  loader_.interrupt();
  thread_.join();
}

void Feeder::run(int64_t first, int64_t end) {
  try {
    int32_t status = FEEDLANE_END;
    for (int64_t epoch = first; epoch < end && status == FEEDLANE_END; epoch++) {
      loader_.start_epoch(epoch);
      status = serve();
    }
    if (status == FEEDLANE_END) (void)serve();  // until the last rank has left: they return batches and ask for states
  } catch (const feedlane::Error& error) {
    common::complain("feeder", error);
  }
  feedlane::Error ignored;
  loader_.stop(ignored);  // tells ranks that still wait for a batch
}

/// FEEDLANE_END, or FEEDLANE_INTERRUPTED by stop(). Throws.
int32_t Feeder::serve() {
  for (;;) {
    feedlane::Error error;
    const int32_t status = feedlane::serve(loader_, std::chrono::nanoseconds::max(), error);
    if (status == FEEDLANE_END) return status;
    if (status != FEEDLANE_INTERRUPTED && status != FEEDLANE_TIMEOUT) throw error;
    if (stopping_.load(std::memory_order_acquire)) return FEEDLANE_INTERRUPTED;  // pairs with the store in stop()
  }
}

}  // namespace mpi_digits
