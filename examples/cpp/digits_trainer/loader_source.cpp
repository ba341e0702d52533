// SPDX-License-Identifier: Apache-2.0
#include "loader_source.hpp"

#include <signal.h>

#include "digits_dataset.hpp"

namespace digits {
namespace {

/// More replacements than any run of this example needs.
constexpr int64_t spare_starts = 100;

}  // namespace

std::unique_ptr<LoaderSource> LoaderSource::create(const feedlane_loader_config& config) {
  std::unique_ptr<LoaderSource> source(new LoaderSource);
  auto error = initialised<feedlane_error>();
  feedlane_loader* loader = nullptr;
  const int32_t status = feedlane_loader_create(&config, &loader, &error);
  if (status < 0) {
    complain("loader", status, error);
    return nullptr;
  }
  source->loader_.reset(loader);
  source->interrupts_.emplace(loader);
  if (config.start == FEEDLANE_START_EXTERNAL) {
    source->external_.emplace(config.workers + spare_starts);
    if (source->external_->start_missing(loader) < 0) return nullptr;
  }
  return source;
}

int32_t LoaderSource::begin(int64_t epoch) {
  auto error = initialised<feedlane_error>();
  const int32_t status = feedlane_loader_begin(loader_.get(), epoch, &error);
  return status < 0 ? complain("begin", status, error) : status;
}

int32_t LoaderSource::next(Batch& batch) {
  const int32_t status = wait();
  if (status != FEEDLANE_OK) return status;
  const feedlane_tensor& image = batch_.tensors[image_field];
  const feedlane_tensor& label = batch_.tensors[label_field];
  batch = {static_cast<const float*>(image.data), static_cast<const int64_t*>(label.data),
           static_cast<size_t>(batch_.count)};
  yielded_++;
  if (kill_at_ && yielded_ > *kill_at_ && kill_one_worker()) kill_at_.reset();
  return FEEDLANE_OK;
}

/// next(), with what an impatient user and the owner of external workers have to add.
int32_t LoaderSource::wait() {
  auto error = initialised<feedlane_error>();
  for (;;) {
    if (external_) {
      const int32_t status = external_->start_missing(loader_.get());
      if (status < 0) return status;
    }
    if (interrupt_requested()) return FEEDLANE_INTERRUPTED;
    const int32_t status = feedlane_loader_next(loader_.get(), FEEDLANE_FOREVER, &batch_, &error);
    // Some other signal (a stop and continue of the program, for one): nothing is lost, wait on.
    if (status == FEEDLANE_INTERRUPTED) continue;
    // The last external worker has died: the next round starts another.
    if (status == FEEDLANE_E_PEER_DEAD && external_) continue;
    return status < 0 ? complain("next", status, error) : status;
  }
}

int32_t LoaderSource::release() {
  const int32_t status = feedlane_batch_release(loader_.get(), batch_.token);
  return status < 0 ? complain("release", status, initialised<feedlane_error>()) : status;
}

int64_t LoaderSource::batches_per_epoch() const {
  int64_t batches = 0;
  feedlane_loader_length(loader_.get(), &batches);
  return batches;
}

bool LoaderSource::kill_one_worker() const {
  auto stats = initialised<feedlane_worker_stats>();
  for (int32_t worker = 0; feedlane_loader_worker_stats(loader_.get(), worker, &stats) == FEEDLANE_OK; worker++) {
    if (stats.state == FEEDLANE_WORKER_READY && stats.pid > 0) return kill(static_cast<pid_t>(stats.pid), SIGKILL) == 0;
  }
  return false;
}

}  // namespace digits
