// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../common/command_line.hpp"

namespace mpi_digits {

struct Options {
  int32_t ranks_per_machine = 0;  ///< 0: as the ranks share memory
  int64_t global_batch = 24;      ///< rows of all ranks
  int32_t workers = 1;            ///< of each machine
  int64_t epochs = 40;
  uint64_t seed = 1;
  std::string data;                ///< directory of the IDX files
  std::string losses;              ///< file to write, empty: none
  std::string samples;             ///< directory for a file of each rank, empty: none
  std::string save;                ///< checkpoint to write, empty: none
  int64_t save_every = 0;          ///< batches; 0: at the stop only
  std::string resume;              ///< checkpoint to go on from, empty: none
  std::optional<int64_t> stop_at;  ///< batch number; this and kill_at count from the first epoch
  std::optional<int64_t> kill_at;  ///< batch number
  std::optional<int32_t> kill_rank, kill_machine;
};

extern const char* const usage;

/// `wrong`: `complaint` is a line that names the option.
common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint);

}  // namespace mpi_digits
