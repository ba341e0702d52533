// SPDX-License-Identifier: Apache-2.0
// Batches from Feedlane's loader: made by worker processes (or inline), trained on where they lie in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "batch_source.hpp"
#include "external_workers.hpp"
#include "handles.hpp"
#include "interrupt.hpp"

namespace digits {

class LoaderSource final : public BatchSource {
 public:
  /// If `config` says that workers are external, this program starts them. Null: the user has been told why.
  static std::unique_ptr<LoaderSource> create(const feedlane_loader_config& config);

  /// Kills a worker once batch number `batch`, counted from 0 over all epochs, is here: to watch the recovery.
  void kill_worker_at(int64_t batch) { kill_at_ = batch; }

  int32_t begin(int64_t epoch) override;
  int32_t next(Batch& batch) override;
  int32_t release() override;
  int64_t batches_per_epoch() const override;
  const feedlane_loader* loader() const override { return loader_.get(); }

 private:
  LoaderSource() = default;
  int32_t wait();
  bool kill_one_worker() const;

  // The order matters: the loader goes first, then its external workers can be waited for.
  std::optional<ExternalWorkers> external_;
  Loader loader_;
  std::optional<InterruptsLoader> interrupts_;
  feedlane_batch batch_ = initialised<feedlane_batch>();
  int64_t yielded_ = 0;
  std::optional<int64_t> kill_at_;
};

}  // namespace digits
