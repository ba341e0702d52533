// SPDX-License-Identifier: Apache-2.0
// The options and which of them go together.
#include "options.hpp"

#include <vector>

namespace mpi_digits {

const char* const usage =
    "Usage: mpirun -n RANKS mpi_digits [options]\n"
    "Trains a network with batch normalisation on handwritten digits, data-parallel, with one loader a machine.\n"
    "\n"
    "  --ranks-per-machine N  so many consecutive ranks are a machine with a loader of its own (default: those that\n"
    "                         share memory)\n"
    "  --batch N              rows of a batch over all ranks (default 24), a multiple of machines times ranks of each\n"
    "  --workers N            worker processes of each machine (default 1)\n"
    "  --epochs N             default 40\n"
    "  --seed N               of order and augmentation (default 1)\n"
    "  --data DIR             where the two optdigits files are\n"
    "  --losses FILE          write a line for each epoch: its number and its mean loss as a hexadecimal float\n"
    "  --samples DIR          each rank writes a file there, a line for each batch: epoch, batch, its samples\n"
    "  --save FILE            write a checkpoint: with --stop-at-batch there, and as --save-every says\n"
    "  --save-every N         batches from one checkpoint to the next\n"
    "  --stop-at-batch N      end before batch N, counted from 0 over all epochs\n"
    "  --resume FILE          go on from a checkpoint, with any number of ranks and machines\n"
    "  --kill-at-batch N      SIGKILL a rank, or all of a machine, at batch N, counted from 0 over all epochs\n"
    "  --kill-rank N          which rank\n"
    "  --kill-machine N       which machine's\n"
    "  --help\n";

common::Parsed parse_options(int argc, char** argv, Options& options, std::string& complaint) {
  const std::vector<common::Option> table = {common::number("--ranks-per-machine", 1, 65536, options.ranks_per_machine),
                                             common::number("--batch", 1, 1024, options.global_batch),
                                             common::number("--workers", 1, 256, options.workers),
                                             common::number("--epochs", 1, 1000000, options.epochs),
                                             common::number<uint64_t>("--seed", 0, UINT64_MAX, options.seed),
                                             common::path("--data", options.data),
                                             common::path("--losses", options.losses),
                                             common::path("--samples", options.samples),
                                             common::path("--save", options.save),
                                             common::number("--save-every", 1, INT64_MAX, options.save_every),
                                             common::number("--stop-at-batch", 1, INT64_MAX, options.stop_at),
                                             common::path("--resume", options.resume),
                                             common::number("--kill-at-batch", 0, INT64_MAX, options.kill_at),
                                             common::number("--kill-rank", 0, 65535, options.kill_rank),
                                             common::number("--kill-machine", 0, 65535, options.kill_machine)};
  const auto operand = [](const std::string&) { return false; };
  const auto finish = [&]() -> std::string {
    if (options.save_every > 0 && options.save.empty()) return "--save-every needs --save";
    if (options.kill_at.has_value() != (options.kill_rank || options.kill_machine))
      return "--kill-at-batch goes with --kill-rank or --kill-machine";
    return {};
  };
  return common::parse_command_line(argc, argv, table, operand, finish, complaint);
}

}  // namespace mpi_digits
