// SPDX-License-Identifier: Apache-2.0
// Batches that the trainer holds: references to them, and streams that use them. A batch keeps its slot and the
// loader's handle until its last reference is released and no stream uses it.
//
// Thread safety: any thread, as long as the loader exists.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "feedlane/tensor.h"
#include "lending/lender.hpp"
#include "lending/life.hpp"
#include "monitor/events.hpp"
#include "tensors/slot_table.hpp"

namespace feedlane::lending {

class RecordedStreams;

class Leases {
 public:
  // Both must outlive the leases.
  Leases(Lender& lender, monitor::EventQueue& events);
  ~Leases();
  // Sets the handle that batches keep alive, with one count per held batch. Called before the first batch.
  void use(Life& life);
  [[nodiscard]] Life& life() const { return *life_; }

  // ---- covered by the batch's count of the handle; the release of the last count may destroy the leases ----

  // Releases a reference. If it was the last and no stream uses the batch, frees the slot. E_STALE.
  Status give_back(std::uint64_t token);
  // Releases a reference once `stream` has completed the work enqueued so far. After an error the caller keeps the
  // reference.
  Status give_back_on(std::uint64_t token, void* stream, Error& error);
  // `stream` is asked when the last reference is released. E_LIMIT, E_STATE, E_STALE, E_UNSUPPORTED.
  Status record_stream(std::uint64_t token, void* stream, Error& error);

  // ---- the slot alone ----

  Status retain(std::uint64_t token) { return slots_.retain(token); }
  Status release(std::uint64_t token, tensors::SlotTable::Left& left) {
    const Status s = slots_.release(token, left);
    if (left.freed) lender_.on_freed(tensors::SlotTable::slot_number(token));
    return s;
  }
  // The number of batches held.
  [[nodiscard]] std::uint32_t held() const { return slots_.held(); }
  // The tensors of a batch to which the caller has a reference. They don't change until the batch's last release.
  [[nodiscard]] const std::vector<feedlane_tensor>& tensors(std::uint64_t token) const;
  // One tensor of such a batch. E_ARGUMENT.
  Status find_tensor(std::uint64_t token, std::int32_t number, const feedlane_tensor*& out, Error& error) const;
  // DLPack's device type for a tensor that is completely registered; 0: it is not, or the backend has none.
  [[nodiscard]] std::int32_t registered_device(const feedlane_tensor& tensor) const;

  // A stream uses a batch to which the caller has a reference. The batch keeps its slot until end_use. E_STALE,
  // E_LIMIT.
  Status begin_use(std::uint64_t token, Error& error);
  // The stream will report the end of its use, and `next` may wait for that. Called before the stream is asked.
  void expect_end() { lender_.expect_end(); }
  // The use has ended. `stream`: the outcome of the stream, reported as an event if it is an error.
  tensors::SlotTable::Left end_use(std::uint64_t token, const Error& stream);

  [[nodiscard]] pinned::Pool* pool() const { return lender_.pool(); }
  [[nodiscard]] const tensors::SlotTable& slots() const { return slots_; }
  // Whether the kernel refuses writes to the tensors of a batch that is held.
  [[nodiscard]] bool is_read_only(std::uint64_t token) const {
    return lender_.is_read_only(tensors::SlotTable::slot_number(token));
  }

 private:
  Status check_pool(Error& error) const;

  Lender& lender_;
  tensors::SlotTable& slots_;
  monitor::EventQueue& events_;
  Life* life_ = nullptr;
  std::unique_ptr<RecordedStreams> streams_;  // with a pool
};

// A reference to a batch, released at the end of the scope.
class Reference {
 public:
  Reference() = default;
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() {
    if (leases_ != nullptr) (void)leases_->give_back(token_);
  }
  // E_STALE, E_LIMIT.
  Status take(Leases& leases, std::uint64_t token, Error& error);
  // The receiver now has to release the reference.
  void pass_on() { leases_ = nullptr; }

 private:
  Leases* leases_ = nullptr;
  std::uint64_t token_ = 0;
};

}  // namespace feedlane::lending
