// SPDX-License-Identifier: Apache-2.0
// Communicators. MPI's own handler ends the job on any error of its calls.
#include "ranks.hpp"

#include <utility>

namespace mpi_digits {
namespace {

std::string broadcast(std::string bytes, MPI_Comm among) {
  int length = static_cast<int>(bytes.size());
  MPI_Bcast(&length, 1, MPI_INT, 0, among);
  bytes.resize(static_cast<size_t>(length));
  MPI_Bcast(bytes.data(), length, MPI_CHAR, 0, among);
  return bytes;
}

}  // namespace

Ranks::Ranks(int ranks_per_machine) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &world_);
  if (ranks_per_machine > 0) MPI_Comm_split(MPI_COMM_WORLD, rank_ / ranks_per_machine, rank_, &local_);
  else MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local_);
  MPI_Comm_rank(local_, &local_rank_);
  MPI_Comm_size(local_, &local_ranks_);

  // Machines are numbered by their first ranks.
  const int is_first = is_first_of_machine() ? 1 : 0;
  int firsts = 0;
  MPI_Scan(&is_first, &firsts, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  machine_ = firsts - 1;
  MPI_Bcast(&machine_, 1, MPI_INT, 0, local_);
  MPI_Allreduce(&is_first, &machines_, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

Ranks::~Ranks() { MPI_Comm_free(&local_); }

void Ranks::sum(std::span<double> values) const {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

void Ranks::sum(std::span<int64_t> values) const {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
}

bool Ranks::all(bool value) const {
  int agreed = value ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &agreed, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
  return agreed != 0;
}

std::string Ranks::from_first(std::string bytes) const { return broadcast(std::move(bytes), MPI_COMM_WORLD); }
std::string Ranks::from_first_of_machine(std::string bytes) const { return broadcast(std::move(bytes), local_); }

void Ranks::meet_on_machine() const { MPI_Barrier(local_); }

}  // namespace mpi_digits
