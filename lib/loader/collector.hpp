// SPDX-License-Identifier: Apache-2.0
// From the workers' results to the ledger: matches each result with its entry, reads what the task left in its slot,
// checks every word of it, and finishes the entry.
//
// Used by the loader's thread only.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "loader/config.hpp"
#include "loader/failure.hpp"
#include "loader/ledger.hpp"
#include "loader/memory.hpp"
#include "loader/order.hpp"
#include "loader/stamps.hpp"
#include "shm/layout.hpp"
#include "supervisor/task_ring.hpp"

namespace feedlane::loader {

class Collector {
 public:
  // All must outlive the collector.
  Collector(const Config& config, Memory& memory, Stamps& stamps, Ledger& ledger, Failure& failure)
      : config_(config), memory_(memory), stamps_(stamps), ledger_(ledger), failure_(failure) {}
  void use(Order& order) { order_ = &order; }

  // A result of this worker. ABANDONED: the task was taken back before. E_CORRUPT: the result is invalid; `blamed` is
  // the task to blame, 0: none.
  Status collect(std::uint32_t worker, supervisor::TaskRing& tasks, const shm::ResultMessage& result,
                 std::uint64_t& blamed, Error& error);
  // Finishes the sent task of `entry` with its result. The ledger changes last, so if an allocation fails earlier, the
  // result can be read again. E_CORRUPT.
  Status read_result(const Entry& entry, const shm::ResultMessage& result, Error& error);

 private:
  Status read_made(const Entry& entry, const shm::ResultMessage& result, Error& error);
  Status read_failed(const Entry& entry, const shm::ResultMessage& result, Error& error);
  Status check_records(const std::vector<shm::SampleRecord>& records, Error& error) const;

  const Config& config_;
  Memory& memory_;
  Stamps& stamps_;
  Ledger& ledger_;
  Failure& failure_;
  Order* order_ = nullptr;
};

}  // namespace feedlane::loader
