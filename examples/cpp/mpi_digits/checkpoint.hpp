// SPDX-License-Identifier: Apache-2.0
// What a run must find again to go on exactly where it was, with any number of ranks: the network, how far it is, the
// loader's state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../digits_trainer/network.hpp"
#include "network.hpp"

namespace mpi_digits {

/// How far the training is, the same on every rank but for `trained`.
struct Progress {
  int64_t epoch = 0;
  int64_t batches = 0;           ///< over all epochs
  int64_t batches_of_epoch = 0;  ///< so far
  digits::Score score;           ///< of the epoch so far
  /// How often each sample of the data set was trained on in this epoch: by this rank since the program began. In a
  /// checkpoint: by all ranks.
  std::vector<int64_t> trained = std::vector<int64_t>(digits::train_count);
};

struct Checkpoint {
  Progress progress;
  int64_t global_batch = 0;
  uint64_t seed = 0;
  std::vector<double> network;    ///< Network::state, part after part
  std::vector<std::byte> loader;  ///< Loader::state

  std::string bytes() const;
  /// Throws when `bytes` are no checkpoint; `path` is where they come from.
  static Checkpoint parse(const std::string& bytes, const std::string& path);
};

/// Copies the parts out of and into the network.
std::vector<double> network_values(Network& network);
void set_network_values(Network& network, const std::vector<double>& values);

}  // namespace mpi_digits
