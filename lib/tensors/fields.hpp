// SPDX-License-Identifier: Apache-2.0
// Declared fields: name, type and shape of each tensor of a sample, and its place in a slot.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "feedlane/tensor.h"
#include "shm/layout.hpp"

namespace feedlane::tensors {

// The declared layout of a sample. It determines a slot's layout: all rows of a field are one row-major tensor at the
// field's offset.
class Fields {
 public:
  // Trainer: reads the caller's declarations, `fields->size` bytes apart. E_ARGUMENT and E_ABI name the field.
  Status declare(const feedlane_field* fields, std::uint64_t count, std::int64_t max_rows, Error& error);
  // For tasks of one sample each: removes the batch dimension from every tensor.
  void leave_out_batch_dimension();
  // Worker: reads the records in control. E_CORRUPT.
  Status read(const shm::FieldRecord* records, std::uint32_t count, std::int64_t max_rows, Error& error);
  void write(shm::FieldRecord* records) const;

  struct Field {
    std::string name;
    feedlane_dtype dtype{};
    std::int32_t ndim = 0;  // without the batch dimension
    std::int64_t shape[FEEDLANE_MAX_NDIM] = {};
    std::uint64_t row_bytes = 0;
    std::uint64_t offset = 0;  // in the slot's payload
    bool unbatched = false;
  };
  [[nodiscard]] std::span<const Field> all() const { return fields_; }
  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  // The fields as the caller declared them. Their pointers are valid for the lifetime of this object.
  [[nodiscard]] std::vector<feedlane_field> as_declared() const;

 private:
  Status add(const char* name, feedlane_dtype dtype, std::int32_t ndim, const std::int64_t* shape,
             std::int64_t max_rows, Error& error);

  std::vector<Field> fields_;
  std::uint64_t slot_bytes_ = 0;
};

// The tensor that holds `rows` rows of a field, in the slot whose payload begins at `payload`.
feedlane_tensor tensor_of(const Fields::Field& field, std::int64_t rows, std::byte* payload,
                          std::uint64_t payload_offset);

// Moves a field's tensor to another slot.
inline void move_tensor(feedlane_tensor& t, const Fields::Field& field, std::byte* payload,
                        std::uint64_t payload_offset) {
  t.data = payload + field.offset;
  t.offset = payload_offset + field.offset;
}

// A flaw in a tensor's type or shape: the member, its value, and the value needed. None if `member` is nullptr.
struct Flaw {
  const char* member = nullptr;
  std::int64_t found = 0;
  std::int64_t needed = 0;
  const char* rule = "";
};
// Checks type and shape, replaces a `lanes` of 0 by 1, and computes the tensor's bytes. No product overflows, neither
// here nor in the strides of an accepted shape.
Flaw check_shape(feedlane_dtype& dtype, std::int32_t ndim, std::int32_t max_ndim, const std::int64_t* shape,
                 std::uint64_t& bytes);

// A row-major tensor of a shape that check_shape() has accepted. The caller fills in name, data, offset and bytes.
feedlane_tensor row_major(feedlane_dtype dtype, std::int32_t ndim, const std::int64_t* shape);

// Describes a tensor in shared memory.
void write_record(const feedlane_tensor& tensor, std::uint64_t offset, shm::TensorRecord& out);

constexpr std::uint64_t align_tensor(std::uint64_t offset) {
  return (offset + shm::tensor_alignment - 1) & ~(shm::tensor_alignment - 1);
}

}  // namespace feedlane::tensors
