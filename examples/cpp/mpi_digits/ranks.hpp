// SPDX-License-Identifier: Apache-2.0
// The processes of the job: which of them are on one machine, and what they compute together.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <string>

namespace mpi_digits {

class Ranks {
 public:
  /// Collective. Ranks that share memory are one machine; with `ranks_per_machine` > 0, so many consecutive ranks are.
  explicit Ranks(int ranks_per_machine);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }
  int machine() const { return machine_; }
  int machines() const { return machines_; }
  int local_rank() const { return local_rank_; }
  int local_ranks() const { return local_ranks_; }
  bool is_first() const { return rank_ == 0; }
  bool is_first_of_machine() const { return local_rank_ == 0; }

  /// Sums each element over all ranks, in place. Collective, as are the following.
  void sum(std::span<double> values) const;
  void sum(std::span<int64_t> values) const;
  /// Whether it is true on every rank.
  bool all(bool value) const;
  /// The bytes of the first rank.
  std::string from_first(std::string bytes) const;
  /// Of the machine's first rank. Collective on a machine.
  std::string from_first_of_machine(std::string bytes) const;
  /// Waits for the ranks of this machine.
  void meet_on_machine() const;

 private:
  int rank_ = 0, world_ = 1;
  int machine_ = 0, machines_ = 1;
  int local_rank_ = 0, local_ranks_ = 1;
  MPI_Comm local_ = MPI_COMM_NULL;
};

}  // namespace mpi_digits
