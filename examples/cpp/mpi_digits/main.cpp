// SPDX-License-Identifier: Apache-2.0
// Trains on handwritten digits with several ranks on several machines. On each machine the first rank runs a feeder, one
// loader for all ranks of the machine; between machines the distributed sampler divides the epoch. The workers are this
// program, started again.
#include <feedlane/feedlane.hpp>

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "../common/program.hpp"
#include "../digits_trainer/digits.hpp"
#include "../digits_trainer/digits_dataset.hpp"
#include "checkpoint.hpp"
#include "feeder.hpp"
#include "options.hpp"
#include "ranks.hpp"
#include "training.hpp"

namespace mpi_digits {
namespace {

constexpr uint64_t split_seed = 7;  // fixed: which digits are held out is no matter of --seed

/// A directory for the feeder's socket, which is gone when all have joined.
class SocketDirectory {
 public:
  SocketDirectory() {
    std::string path = (std::filesystem::temp_directory_path() / "mpi_digits.XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error(path + ": can't be made");
    path_ = path;
  }
  ~SocketDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  SocketDirectory(const SocketDirectory&) = delete;
  SocketDirectory& operator=(const SocketDirectory&) = delete;

  std::string socket() const { return path_ + "/feeder"; }

 private:
  std::string path_;
};

std::optional<Checkpoint> read_checkpoint(const Options& options, const Ranks& ranks) {
  if (options.resume.empty()) return std::nullopt;
  std::string bytes;
  if (ranks.is_first()) {
    std::ifstream file(options.resume, std::ios::binary);
    if (!file) throw std::runtime_error(options.resume + ": can't be read");
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  Checkpoint checkpoint = Checkpoint::parse(ranks.from_first(bytes), options.resume);
  if (checkpoint.global_batch != options.global_batch || checkpoint.seed != options.seed)
    throw std::runtime_error(options.resume + ": was written with another --batch or --seed");
  return checkpoint;
}

std::unique_ptr<Feeder> make_feeder(const Options& options, const Ranks& ranks, const std::string& socket,
                                    const std::optional<Checkpoint>& checkpoint) {
  const auto sampler = feedlane::Sampler::distributed({.length = static_cast<int64_t>(digits::train_count),
                                                       .seed = options.seed,
                                                       .world = ranks.machines(),
                                                       .rank = ranks.machine(),
                                                       .drop_last = true});
  // Another process may have another working directory.
  const std::string directory = std::filesystem::absolute(options.data).string();
  const std::string worker_config = digits::digits_worker_config(directory, split_seed);
  feedlane::LoaderOptions wanted{.sampler = &sampler,
                                 .fields = digits::digits_fields(),
                                 .batch_size = options.global_batch / ranks.machines() / ranks.local_ranks(),
                                 .drop_last = true,
                                 .seed = options.seed,
                                 .workers = options.workers,
                                 .keep_workers = true,
                                 .worker_config = std::as_bytes(std::span(worker_config)),
                                 .share = feedlane::Share::deal,
                                 .consumers = ranks.local_ranks(),
                                 .share_path = socket};
  if (checkpoint) wanted.state = checkpoint->loader;
  return std::make_unique<Feeder>(wanted);
}

/// This rank's place at the feeder of its machine, which the machine's first rank starts in `feeder`.
feedlane::Loader join_feeder(const Options& options, const Ranks& ranks, const std::optional<Checkpoint>& checkpoint,
                             std::unique_ptr<Feeder>& feeder) {
  std::optional<SocketDirectory> directory;
  if (ranks.is_first_of_machine()) {
    directory.emplace();
    feeder = make_feeder(options, ranks, directory->socket(), checkpoint);
    feeder->start(checkpoint ? checkpoint->progress.epoch : 0, options.epochs);
  }
  const std::string socket = ranks.from_first_of_machine(directory ? directory->socket() : "");
  feedlane::Loader loader =
      feeder ? feeder->join() : feedlane::join(socket, feedlane::ConsumerOptions{.id = ranks.local_rank()});
  ranks.meet_on_machine();
  return loader;
}

int run(const Options& options, const Ranks& ranks) {
  const int64_t parts = int64_t{ranks.machines()} * ranks.local_ranks();
  if (!ranks.all(options.global_batch % parts == 0)) {
    if (ranks.is_first())
      common::refuse("--batch must be a multiple of machines times ranks, on each machine", common::exit_usage);
    return common::exit_usage;
  }
  const std::optional<Checkpoint> checkpoint = read_checkpoint(options, ranks);
  digits::Digits digits;
  if (std::string why; !digits.open(options.data, split_seed, why)) throw std::runtime_error(why);
  const digits::HeldOut held_out(digits);

  if (ranks.is_first()) {
    std::printf("ranks: %d, machines: %d\n", ranks.world(), ranks.machines());
    if (checkpoint) {
      std::printf("goes on after %lld batches, %lld of them of epoch %lld\n",
                  static_cast<long long>(checkpoint->progress.batches),
                  static_cast<long long>(checkpoint->progress.batches_of_epoch),
                  static_cast<long long>(checkpoint->progress.epoch));
    }
  }
  std::unique_ptr<Feeder> feeder;
  feedlane::Loader loader = join_feeder(options, ranks, checkpoint, feeder);
  Training(options, ranks, loader, held_out, checkpoint).run();
  ranks.meet_on_machine();
  if (feeder) feeder->stop();
  return 0;
}

/// Any rank that fails ends the job.
int run_rank(const Options& options) {
  try {
    const Ranks ranks(options.ranks_per_machine);
    return run(options, ranks);
  } catch (const feedlane::Error& error) {
    common::complain("trainer", error);
  } catch (const std::exception& error) {
    common::refuse(error.what(), common::exit_failure);
  }
  MPI_Abort(MPI_COMM_WORLD, common::exit_failure);
  return common::exit_failure;
}

}  // namespace
}  // namespace mpi_digits

int main(int argc, char** argv) {
  // First of all: was this process started as a worker? A worker is no rank.
  if (feedlane::is_worker()) return common::run_worker<digits::DigitsDataset>();

  mpi_digits::Options options;
  options.data = DIGITS_DATA_DIR;
  std::string complaint;
  const common::Parsed parsed = mpi_digits::parse_options(argc, argv, options, complaint);
  if (parsed != common::Parsed::run) return common::run_trainer(parsed, mpi_digits::usage, complaint, [] { return 0; });

  int threads = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);  // the feeder's thread calls nothing of MPI
  const int exit_code = mpi_digits::run_rank(options);
  MPI_Finalize();
  return exit_code;
}
