// SPDX-License-Identifier: Apache-2.0
// The trainer's side: takes batches from the loader, starts external workers and threads.
#include "loader_source.hpp"

#include <signal.h>

#include <chrono>
#include <stdexcept>

#include "digits_dataset.hpp"

namespace digits {
namespace {

/// More replacements than any run of this example needs.
constexpr int64_t spare_starts = 100;

}  // namespace

LoaderSource::LoaderSource(const feedlane::LoaderOptions& options) : loader_(options), interrupts_(loader_) {
  if (options.start == feedlane::Start::external) {
    external_.emplace(options.workers + spare_starts).start_missing(loader_);
  } else if (options.start == feedlane::Start::thread) {
    threads_.emplace(loader_).start(options.workers);
  }
}

void LoaderSource::begin(int64_t epoch) {
  batch_.reset();
  loader_.start_epoch(epoch);
}

int32_t LoaderSource::next(Batch& batch) {
  batch_.reset();  // trained on: its memory is free for another
  const int32_t outcome = wait();
  if (outcome != FEEDLANE_OK) return outcome;
  batch = {(*batch_)[image_field].as<float>(), (*batch_)[label_field].as<int64_t>()};
  yielded_++;
  if (kill_at_ && yielded_ > *kill_at_ && kill_one_worker()) kill_at_.reset();
  return FEEDLANE_OK;
}

/// The loader's next(), with what an impatient user and the owner of workers have to add.
int32_t LoaderSource::wait() {
  for (;;) {
    if (external_) external_->start_missing(loader_);
    if (threads_ && threads_->failed()) throw std::runtime_error("a worker thread has given up");
    if (common::interrupt_requested()) return FEEDLANE_INTERRUPTED;
    batch_ = loader_.next(std::chrono::nanoseconds::max(), error_);
    // Some other signal (a stop and continue of the program, for one): nothing is lost, wait on.
    if (loader_.outcome() == FEEDLANE_INTERRUPTED) continue;
    // The last external worker has died: the next round starts another.
    if (loader_.outcome() == FEEDLANE_E_PEER_DEAD && external_) continue;
    if (error_) throw error_;
    return loader_.outcome();
  }
}

bool LoaderSource::kill_one_worker() const {
  for (const feedlane_worker_stats& worker : loader_.monitor().worker_stats()) {
    if (worker.state == FEEDLANE_WORKER_READY && worker.pid > 0) {
      return kill(static_cast<pid_t>(worker.pid), SIGKILL) == 0;
    }
  }
  return false;
}

}  // namespace digits
