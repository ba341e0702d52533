// SPDX-License-Identifier: Apache-2.0
// Plans, writes and reads the contents of entries.
#include "arena/contents.hpp"

#include <algorithm>
#include <cstring>

#include "shm/shared_read.hpp"
#include "tensors/fields.hpp"

namespace feedlane::arena {
namespace {

bool is_inside(std::uint64_t offset, std::uint64_t bytes, std::uint64_t end) {
  return offset <= end && bytes <= end - offset;
}

Status read_tensor(const shm::TensorRecord& shared, std::size_t i, std::span<std::byte> entry, std::uint64_t base,
                   Described& out, Error& error) {
  const auto r = shm::read_once<shm::TensorRecord>(&shared);
  feedlane_dtype dtype{r.code, r.bits, r.lanes};
  std::uint64_t bytes = 0;
  if (const tensors::Flaw f = tensors::check_shape(dtype, r.ndim, FEEDLANE_MAX_NDIM, r.shape, bytes);
      f.member != nullptr)
    return error.refuse(FEEDLANE_E_CORRUPT, "entry", f.found, f.needed, "{} of tensor {} is {}: {}", f.member, i,
                        f.found, f.rule);
  if (r.bytes != bytes || !is_inside(r.offset, bytes, entry.size()))
    return error.refuse(FEEDLANE_E_CORRUPT, "entry", r.bytes, bytes,
                        "tensor {} has {} bytes at offset {}, but its shape takes {} and the entry has {}", i, r.bytes,
                        r.offset, bytes, entry.size());
  if (r.offset % shm::tensor_alignment != 0)
    return error.refuse(FEEDLANE_E_CORRUPT, "entry", r.offset, shm::tensor_alignment,
                        "tensor {} is at offset {}, which is not a multiple of {}", i, r.offset, shm::tensor_alignment);
  auto& name = out.names[i];
  std::copy_n(r.name, sizeof r.name, name.data());
  name.back() = '\0';
  feedlane_tensor& t = out.tensors[i];
  t = tensors::row_major(dtype, r.ndim, r.shape);
  t.name = name.data();
  t.data = entry.data() + r.offset;
  t.bytes = bytes;
  t.offset = base + r.offset;
  return FEEDLANE_OK;
}

}  // namespace

Status plan_entry(const feedlane_put& put, EntryPlan& out, Error& error) {
  out = {};
  tensors::Fields fields;
  if (put.field_count != 0)
    if (const Status s = fields.declare(put.fields, put.field_count, 1, error); s != FEEDLANE_OK) return s;
  fields.leave_out_batch_dimension();
  std::uint64_t end = tensors::align_tensor(sizeof(shm::ArenaContents) + put.field_count * sizeof(shm::TensorRecord));
  for (std::size_t i = 0; i < fields.all().size(); i++) {
    const tensors::Fields::Field& field = fields.all()[i];
    feedlane_tensor t = tensors::row_major(field.dtype, field.ndim, field.shape);
    t.bytes = field.row_bytes;
    t.offset = end;
    end += tensors::align_tensor(t.bytes);
    out.tensors.push_back(t);
  }
  // Their names are those of the caller's fields, which `fields` has checked.
  const auto* memory = reinterpret_cast<const std::byte*>(put.fields);
  for (std::size_t i = 0; i < out.tensors.size(); i++) {
    feedlane_field field{};
    std::memcpy(&field, memory + i * put.fields->size, std::min(put.fields->size, sizeof field));
    out.tensors[i].name = field.name;
  }
  out.metadata_offset = end;
  out.metadata_bytes = put.metadata_bytes;
  out.bytes = tensors::align_tensor(end + put.metadata_bytes);
  return FEEDLANE_OK;
}

void write_contents(const EntryPlan& plan, const void* metadata, std::byte* entry) {
  auto& head = *reinterpret_cast<shm::ArenaContents*>(entry);
  head = {};
  head.magic = shm::arena_contents_magic;
  head.tensor_count = plan.tensors.size();
  head.metadata_offset = plan.metadata_offset;
  head.metadata_bytes = plan.metadata_bytes;
  auto* record = reinterpret_cast<shm::TensorRecord*>(entry + sizeof head);
  for (const feedlane_tensor& t : plan.tensors) tensors::write_record(t, t.offset, *record++);
  if (plan.metadata_bytes != 0) std::memcpy(entry + plan.metadata_offset, metadata, plan.metadata_bytes);
}

Status read_contents(std::span<std::byte> entry, std::uint64_t offset, Described& out, Error& error) {
  if (entry.size() < sizeof(shm::ArenaContents))
    return error.refuse(FEEDLANE_E_CORRUPT, "entry", entry.size(), sizeof(shm::ArenaContents),
                        "the entry has only {} bytes", entry.size());
  const auto head = shm::read_once<shm::ArenaContents>(entry.data());
  if (head.magic != shm::arena_contents_magic || head.tensor_count > FEEDLANE_MAX_TENSORS ||
      !is_inside(sizeof head, head.tensor_count * sizeof(shm::TensorRecord), entry.size()) ||
      !is_inside(head.metadata_offset, head.metadata_bytes, entry.size()))
    return error.refuse(
        FEEDLANE_E_CORRUPT, "entry", head.tensor_count, FEEDLANE_MAX_TENSORS,
        "its description is invalid: magic number {}, {} tensors, and {} bytes of metadata at offset {}",
        Hex{head.magic}, head.tensor_count, head.metadata_bytes, head.metadata_offset);
  out.tensors.resize(head.tensor_count);
  out.names.resize(head.tensor_count);
  const auto* records = reinterpret_cast<const shm::TensorRecord*>(entry.data() + sizeof head);
  for (std::size_t i = 0; i < head.tensor_count; i++)
    if (const Status s = read_tensor(records[i], i, entry, offset, out, error); s != FEEDLANE_OK) return s;
  out.metadata = head.metadata_bytes == 0 ? nullptr : entry.data() + head.metadata_offset;
  out.metadata_bytes = head.metadata_bytes;
  return FEEDLANE_OK;
}

}  // namespace feedlane::arena
