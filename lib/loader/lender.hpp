// SPDX-License-Identifier: Apache-2.0
// The side that lends batches to the trainer, as leases see it: what a batch has, and whom a free slot concerns.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/slot_table.hpp"
#include "feedlane/tensor.h"
#include "pinned/pool.hpp"

namespace feedlane::loader {

// Thread safety: any thread.
class Lender {
 public:
  Lender() = default;
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;
  virtual ~Lender() = default;

  [[nodiscard]] virtual arena::SlotTable& slots() = 0;
  // nullptr: none.
  [[nodiscard]] virtual pinned::Pool* pool() const = 0;
  // Of a slot whose batch the caller has a reference to.
  [[nodiscard]] virtual const std::vector<feedlane_tensor>& tensors(std::uint32_t slot) const = 0;
  // Whether the kernel refuses writes to the tensors.
  [[nodiscard]] virtual bool is_read_only() const = 0;
  // A batch has no reference and no use left.
  virtual void on_freed(std::uint32_t slot) = 0;
  // A stream will report the end of its use of a batch; and has.
  virtual void expect_end() = 0;
  virtual void on_end() = 0;
};

}  // namespace feedlane::loader
