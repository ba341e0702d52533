// SPDX-License-Identifier: Apache-2.0
// The side that lends batches to the trainer, as leases see it: it describes a batch and is notified of freed slots.
#pragma once

#include <cstdint>
#include <vector>

#include "feedlane/tensor.h"
#include "pinned/pool.hpp"
#include "tensors/slot_table.hpp"

namespace feedlane::lending {

// Thread safety: any thread.
class Lender {
 public:
  Lender() = default;
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;
  virtual ~Lender() = default;

  [[nodiscard]] virtual tensors::SlotTable& slots() = 0;
  // nullptr: none.
  [[nodiscard]] virtual pinned::Pool* pool() const = 0;
  // The tensors of a slot. The caller has a reference to its batch.
  [[nodiscard]] virtual const std::vector<feedlane_tensor>& tensors(std::uint32_t slot) const = 0;
  // Whether the kernel refuses writes to the tensors of a slot.
  [[nodiscard]] virtual bool is_read_only(std::uint32_t slot) const = 0;
  // The slot's batch has no reference and no use left.
  virtual void on_freed(std::uint32_t slot) = 0;
  // expect_end: a stream will report the end of its use of a batch. on_end: it has reported it.
  virtual void expect_end() = 0;
  virtual void on_end() = 0;
};

}  // namespace feedlane::lending
