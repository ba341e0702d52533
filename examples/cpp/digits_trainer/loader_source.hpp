// SPDX-License-Identifier: Apache-2.0
// Batches from Feedlane's loader: made by workers (or inline), trained on where they lie in shared memory.
#pragma once

#include <cstdint>
#include <optional>

#include "../common/interrupt.hpp"
#include "../common/worker_threads.hpp"
#include "batch_source.hpp"
#include "external_workers.hpp"

namespace digits {

class LoaderSource final : public BatchSource {
 public:
  /// If `options` say that workers are external or threads, this program starts them.
  explicit LoaderSource(const feedlane::LoaderOptions& options);

  /// Kills a worker once batch number `batch`, counted from 0 over all epochs, is here: to watch the recovery.
  void kill_worker_at(int64_t batch) { kill_at_ = batch; }

  void begin(int64_t epoch) override;
  int32_t next(Batch& batch) override;
  int64_t batches_per_epoch() const override { return loader_.length(); }
  const feedlane::Loader* loader() const override { return &loader_; }

 private:
  int32_t wait();
  bool kill_one_worker() const;

  // The order matters: threads go before the loader that they work for; external workers can be waited for after it.
  std::optional<ExternalWorkers> external_;
  feedlane::Loader loader_;
  std::optional<common::WorkerThreads> threads_;
  common::InterruptsLoader interrupts_;
  feedlane::Error error_;
  std::optional<feedlane::Batch> batch_;
  int64_t yielded_ = 0;
  std::optional<int64_t> kill_at_;
};

}  // namespace digits
