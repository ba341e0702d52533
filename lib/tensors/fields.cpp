// SPDX-License-Identifier: Apache-2.0
// Validates declared fields and shapes, and places fields in a slot.
#include "tensors/fields.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "shm/plan.hpp"

namespace feedlane::tensors {
namespace {

constexpr const char* bad_length = "must have 1 to 31 bytes";
static_assert(shm::name_bytes == 32 && shm::max_slot_bytes == std::uint64_t{1} << 40, "the rules state these numbers");

Status refuse(Error& error, std::size_t index, const char* member, std::int64_t found, std::int64_t needed,
              const char* rule) {
  char argument[48];
  (void)format_to(argument, "config.fields[{}].{}", index, member);
  return error.refuse(FEEDLANE_E_ARGUMENT, argument, found, needed, "{} is {}: {}", argument, found, rule);
}

// `what` follows the member in the text, which states no number of its own.
Status refuse_name(Error& error, std::size_t index, std::int64_t found, std::int64_t needed, const char* what) {
  char argument[48];
  (void)format_to(argument, "config.fields[{}].name", index);
  return error.refuse(FEEDLANE_E_ARGUMENT, argument, found, needed, "{} {}", argument, what);
}

}  // namespace

Status Fields::add(const char* name, feedlane_dtype dtype, std::int32_t ndim, const std::int64_t* shape,
                   std::int64_t max_rows, Error& error) {
  const std::size_t index = fields_.size();
  const std::size_t length = strnlen(name, shm::name_bytes);
  if (length == 0 || length == shm::name_bytes)
    return refuse_name(error, index, static_cast<std::int64_t>(length), shm::name_bytes - 1, bad_length);
  for (const Field& other : fields_)
    if (other.name == name)
      return refuse_name(error, index, static_cast<std::int64_t>(index), -1, "is the name of an earlier field");
  std::uint64_t bytes = 0;
  if (const Flaw f = check_shape(dtype, ndim, FEEDLANE_MAX_NDIM - 1, shape, bytes); f.member != nullptr)
    return refuse(error, index, f.member, f.found, f.needed,
                  std::string_view(f.member) == "ndim" ? "must be 0 to 7, without the batch dimension" : f.rule);
  Field field;
  field.name = name;
  field.dtype = dtype;
  field.ndim = ndim;
  std::copy_n(shape, ndim, field.shape);
  field.row_bytes = bytes;
  field.offset = slot_bytes_;
  if (bytes > shm::max_slot_bytes / static_cast<std::uint64_t>(max_rows) ||
      slot_bytes_ > shm::max_slot_bytes - align_tensor(bytes * static_cast<std::uint64_t>(max_rows)))
    return refuse(error, index, "shape", static_cast<std::int64_t>(bytes),
                  static_cast<std::int64_t>(shm::max_slot_bytes),
                  "bytes per row; the batch would exceed the largest slot, 2^40 bytes");
  slot_bytes_ += align_tensor(bytes * static_cast<std::uint64_t>(max_rows));
  fields_.push_back(std::move(field));
  return FEEDLANE_OK;
}

Status Fields::declare(const feedlane_field* fields, std::uint64_t count, std::int64_t max_rows, Error& error) {
  if (fields == nullptr || count == 0 || count > FEEDLANE_MAX_TENSORS)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.fields", fields == nullptr ? 0 : static_cast<std::int64_t>(count),
                        fields == nullptr || count == 0 ? 1 : FEEDLANE_MAX_TENSORS,
                        "config.fields has {} fields: must have 1 to {}, or none if config.slot_bytes is set",
                        fields == nullptr ? 0ULL : static_cast<unsigned long long>(count), FEEDLANE_MAX_TENSORS);
  // Elements are longer in a caller compiled with a later header, and shorter with an earlier header.
  const std::size_t stride = fields->size;
  constexpr std::size_t least = offsetof(feedlane_field, dtype);  // a field needs at least its name
  const auto* memory = reinterpret_cast<const std::byte*>(fields);
  for (std::uint64_t i = 0; i < count; i++) {
    std::size_t size = 0;
    std::memcpy(&size, memory + i * stride, sizeof size);
    if (stride % alignof(feedlane_field) != 0 || size != stride || size < least || size > std::size_t{1} << 20) {
      const bool is_short = size == stride && size < least;
      (void)refuse(error, i, "size", static_cast<std::int64_t>(size),
                   static_cast<std::int64_t>(is_short ? least : sizeof(feedlane_field)),
                   is_short ? "too small for the name; must be sizeof(feedlane_field)"
                            : "must be sizeof(feedlane_field) in every element");
      return error.code = FEEDLANE_E_ABI;
    }
    const std::size_t known = std::min(size, sizeof(feedlane_field));
    const std::byte* tail = memory + i * stride + known;
    if (std::any_of(tail, memory + (i + 1) * stride, [](std::byte b) { return b != std::byte{0}; })) {
      (void)refuse(error, i, "size", static_cast<std::int64_t>(size), sizeof(feedlane_field),
                   "larger than the struct that this library knows, and the additional bytes are not zero");
      return error.code = FEEDLANE_E_ABI;
    }
    feedlane_field field{};
    std::memcpy(&field, memory + i * stride, known);
    if (field.name == nullptr) return refuse_name(error, i, 0, 1, "is NULL");
    if (const std::size_t length = std::strlen(field.name); length >= shm::name_bytes)
      return refuse_name(error, i, static_cast<std::int64_t>(length), shm::name_bytes - 1, bad_length);
    if (const Status s = add(field.name, field.dtype, field.ndim, field.shape, max_rows, error); s != FEEDLANE_OK)
      return s;
  }
  slot_bytes_ = std::max<std::uint64_t>(slot_bytes_, shm::tensor_alignment);
  return FEEDLANE_OK;
}

Status Fields::read(const shm::FieldRecord* records, std::uint32_t count, std::int64_t max_rows, Error& error) {
  for (std::uint32_t i = 0; i < count; i++) {
    const shm::FieldRecord& r = records[i];
    if (const Status s = add(r.name, {r.code, r.bits, r.lanes}, r.ndim, r.shape, max_rows, error); s != FEEDLANE_OK)
      return error.code = FEEDLANE_E_CORRUPT;
  }
  if (count != 0) slot_bytes_ = std::max<std::uint64_t>(slot_bytes_, shm::tensor_alignment);
  return FEEDLANE_OK;
}

void Fields::write(shm::FieldRecord* records) const {
  for (std::size_t i = 0; i < fields_.size(); i++) {
    const Field& f = fields_[i];
    shm::FieldRecord& r = records[i];
    copy_text(r.name, sizeof r.name, f.name.c_str());
    r.code = f.dtype.code;
    r.bits = f.dtype.bits;
    r.lanes = f.dtype.lanes;
    r.ndim = f.ndim;
    std::memcpy(r.shape, f.shape, sizeof r.shape);
  }
}

std::vector<feedlane_field> Fields::as_declared() const {
  std::vector<feedlane_field> result;
  for (const Field& f : fields_) {
    feedlane_field field{};
    field.size = sizeof field;
    field.name = f.name.c_str();
    field.dtype = f.dtype;
    field.ndim = f.ndim;
    std::memcpy(field.shape, f.shape, sizeof field.shape);
    result.push_back(field);
  }
  return result;
}

void Fields::leave_out_batch_dimension() {
  for (Field& f : fields_) f.unbatched = true;
}

Flaw check_shape(feedlane_dtype& dtype, std::int32_t ndim, std::int32_t max_ndim, const std::int64_t* shape,
                 std::uint64_t& bytes) {
  if (dtype.lanes == 0) dtype.lanes = 1;
  if (dtype.code > 6 || dtype.code == 3)
    return {"dtype.code", dtype.code, 6, "must be 0, 1, 2, 4, 5 or 6 (DLPack's type codes)"};
  if (dtype.bits == 0 || dtype.bits % 8 != 0)
    return {"dtype.bits", dtype.bits, 8, "must be a multiple of 8, but not 0"};
  if (ndim < 0 || ndim > max_ndim) return {"ndim", ndim, max_ndim, "must be 0 to 8"};
  // Every product is checked against the largest slot before it is used, so none can overflow. Strides can't overflow
  // either: like `spread`, they are products in which empty dimensions count as 1.
  bytes = std::uint64_t{dtype.bits} / 8 * dtype.lanes;
  std::uint64_t spread = bytes;
  for (std::int32_t d = 0; d < ndim; d++) {
    if (shape[d] < 0) return {"shape", shape[d], 0, "a dimension must not be negative"};
    const auto extent = static_cast<std::uint64_t>(std::max<std::int64_t>(shape[d], 1));
    if (spread > shm::max_slot_bytes / extent)
      return {"shape", shape[d], static_cast<std::int64_t>(shm::max_slot_bytes),
              "the tensor would exceed the largest slot, 2^40 bytes"};
    spread *= extent;
    bytes *= static_cast<std::uint64_t>(shape[d]);
  }
  return {};
}

feedlane_tensor tensor_of(const Fields::Field& field, std::int64_t rows, std::byte* payload,
                          std::uint64_t payload_offset) {
  std::int64_t shape[FEEDLANE_MAX_NDIM] = {rows};
  const std::int32_t leading = field.unbatched ? 0 : 1;
  std::copy_n(field.shape, field.ndim, shape + leading);
  feedlane_tensor t = row_major(field.dtype, field.ndim + leading, shape);
  t.name = field.name.c_str();
  t.bytes = field.row_bytes * static_cast<std::uint64_t>(rows);
  move_tensor(t, field, payload, payload_offset);
  return t;
}

void write_record(const feedlane_tensor& tensor, std::uint64_t offset, shm::TensorRecord& out) {
  copy_text(out.name, sizeof out.name, tensor.name);
  out.code = tensor.dtype.code;
  out.bits = tensor.dtype.bits;
  out.lanes = tensor.dtype.lanes;
  out.ndim = tensor.ndim;
  std::copy_n(tensor.shape, FEEDLANE_MAX_NDIM, out.shape);
  std::copy_n(tensor.strides, FEEDLANE_MAX_NDIM, out.strides);
  out.offset = offset;
  out.bytes = tensor.bytes;
  out.reserved = 0;
}

feedlane_tensor row_major(feedlane_dtype dtype, std::int32_t ndim, const std::int64_t* shape) {
  feedlane_tensor t{};
  t.dtype = dtype;
  t.ndim = ndim;
  std::copy_n(shape, ndim, t.shape);
  std::int64_t stride = 1;
  for (std::int32_t d = t.ndim - 1; d >= 0; d--) {
    t.strides[d] = stride;
    stride *= std::max<std::int64_t>(t.shape[d], 1);  // an empty dimension counts as 1
  }
  return t;
}

}  // namespace feedlane::tensors
