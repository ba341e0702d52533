// SPDX-License-Identifier: Apache-2.0
// The training loop of one rank. All ranks take the same steps and end each epoch after the same batch.
#pragma once

#include <feedlane/loader.hpp>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>

#include "../digits_trainer/training.hpp"
#include "checkpoint.hpp"
#include "network.hpp"
#include "options.hpp"
#include "ranks.hpp"

namespace mpi_digits {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

class Training {
 public:
  /// Goes on from `checkpoint` if there is one. `loader` is this rank's place at its machine's feeder. Throws.
  Training(const Options& options, const Ranks& ranks, feedlane::Loader& loader, const digits::HeldOut& held_out,
           const std::optional<Checkpoint>& checkpoint);

  /// To the end, or to --stop-at-batch. What fails throws.
  void run();

 private:
  enum class Outcome { epoch_over, stopped };

  Outcome run_epoch();
  bool is_to_be_killed() const;
  std::optional<feedlane::Batch> next_batch();
  void learn(const feedlane::Batch& batch);
  /// Of the position after `batch`. Every rank calls it.
  void save(const feedlane::Batch& batch);
  void write_samples(const feedlane::Batch& batch);
  void report_epoch();
  /// How often each sample of this epoch was trained on, by all ranks.
  std::vector<int64_t> trained_by_all() const;

  const Options& options_;
  const Ranks& ranks_;
  feedlane::Loader& loader_;
  const digits::HeldOut& held_out_;
  Network network_;
  Progress progress_;
  File losses_, samples_;
  double accuracy_ = 0;  ///< the first rank's, after the newest epoch
};

}  // namespace mpi_digits
