// SPDX-License-Identifier: Apache-2.0
// Writes and reads the catalogue of delivered batches.
#include "sharing/catalogue.hpp"

#include <algorithm>

#include "shm/shared_read.hpp"
#include "tensors/fields.hpp"

namespace feedlane::sharing {
namespace {

std::byte* base_of(const shm::Segments& segments) { return segments.payload(0) - segments.plan().payload_of(0); }

std::uint64_t offset_in_data(const void* address, const shm::Segments& segments) {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - base_of(segments));
}

bool is_inside(std::uint64_t offset, std::uint64_t bytes, const shm::Segments& segments) {
  const std::uint64_t end = segments.plan().data_bytes;
  return offset <= end && bytes <= end - offset;
}

Status read_tensor(const shm::TensorRecord& shared, std::uint32_t slot, std::uint32_t i, const shm::Segments& segments,
                   Described& described, Error& error) {
  const auto r = shm::read_once<shm::TensorRecord>(&shared);
  feedlane_dtype dtype{r.code, r.bits, r.lanes};
  std::uint64_t bytes = 0;
  if (const tensors::Flaw f = tensors::check_shape(dtype, r.ndim, FEEDLANE_MAX_NDIM, r.shape, bytes);
      f.member != nullptr)
    return error.refuse(FEEDLANE_E_CORRUPT, "catalogue", f.found, f.needed, "{} of tensor {} of slot {} is {}: {}",
                        f.member, i, slot, f.found, f.rule);
  if (r.bytes != bytes)
    return error.refuse(FEEDLANE_E_CORRUPT, "catalogue", r.bytes, bytes,
                        "tensor {} of slot {} has {} bytes, but its shape takes {}", i, slot, r.bytes, bytes);
  if (!is_inside(r.offset, bytes, segments))
    return error.refuse(FEEDLANE_E_CORRUPT, "catalogue", r.offset, segments.plan().data_bytes,
                        "tensor {} of slot {} is outside the data segment: {} bytes at offset {}", i, slot, bytes,
                        r.offset);
  auto& name = described.names[i];
  std::copy_n(r.name, sizeof r.name, name.data());
  name.back() = '\0';
  feedlane_tensor& t = described.tensors[i];
  t = tensors::row_major(dtype, r.ndim, r.shape);
  t.name = name.data();
  t.data = base_of(segments) + r.offset;
  t.bytes = bytes;
  t.offset = r.offset;
  return FEEDLANE_OK;
}

}  // namespace

void write_entry(const feedlane_batch& batch, const shm::Segments& segments, shm::CatalogueEntry& entry) {
  shm::CatalogueHead& h = entry.head;
  h.epoch = batch.epoch;
  h.batch = batch.batch;
  h.worker = batch.worker;
  h.attempt = batch.attempt;
  h.rows = batch.count;
  h.skipped = batch.skipped_count;
  h.has_indices = batch.indices != nullptr ? 1 : 0;
  h.tensor_count = static_cast<std::uint32_t>(batch.tensor_count);
  h.metadata_bytes = batch.metadata_bytes;
  h.metadata_offset = batch.metadata_bytes == 0 ? 0 : offset_in_data(batch.metadata, segments);
  h.dispatched_ns = batch.dispatched_ns;
  h.begun_ns = batch.begun_ns;
  h.committed_ns = batch.committed_ns;
  h.swept_ns = batch.swept_ns;
  h.yielded_ns = batch.yielded_ns;
  for (std::uint64_t i = 0; i < batch.tensor_count; i++) {
    const feedlane_tensor& t = batch.tensors[i];
    tensors::write_record(t, t.offset, entry.tensors[i]);
  }
}

Status read_entry(const shm::CatalogueEntry& entry, std::uint32_t slot, const shm::Segments& segments,
                  Described& described, feedlane_batch& out, Error& error) {
  const auto h = shm::read_once<shm::CatalogueHead>(&entry.head);
  if (h.tensor_count > FEEDLANE_MAX_TENSORS || !is_inside(h.metadata_offset, h.metadata_bytes, segments))
    return error.refuse(FEEDLANE_E_CORRUPT, "catalogue", h.tensor_count, FEEDLANE_MAX_TENSORS,
                        "slot {} has an invalid description: {} tensors, and {} bytes of metadata at offset {}", slot,
                        h.tensor_count, h.metadata_bytes, h.metadata_offset);
  const std::uint64_t listed = segments.plan().geometry.list_bytes / sizeof(std::int64_t);
  if (h.has_indices != 0 && (h.rows > listed || h.skipped > listed - h.rows))
    return error.refuse(FEEDLANE_E_CORRUPT, "catalogue", h.rows, listed,
                        "slot {} has indices for {} rows and {} skipped samples, but its list has room for only {}",
                        slot, h.rows, h.skipped, listed);
  described.tensors.resize(h.tensor_count);
  described.names.resize(h.tensor_count);
  for (std::uint32_t i = 0; i < h.tensor_count; i++)
    if (const Status s = read_tensor(entry.tensors[i], slot, i, segments, described, error); s != FEEDLANE_OK) return s;
  std::byte* const base = base_of(segments);
  out = {};
  out.size = sizeof out;
  out.epoch = h.epoch;
  out.batch = h.batch;
  out.worker = h.worker;
  out.attempt = h.attempt;
  out.tensors = described.tensors.data();
  out.tensor_count = described.tensors.size();
  out.count = h.rows;
  out.skipped_count = h.skipped;
  if (h.has_indices != 0) {
    out.indices = segments.index_list(slot);
    out.skipped = h.skipped == 0 ? nullptr : out.indices + h.rows;
  }
  if (h.metadata_bytes != 0) {
    out.metadata = base + h.metadata_offset;
    out.metadata_bytes = h.metadata_bytes;
  }
  out.dispatched_ns = h.dispatched_ns;
  out.begun_ns = h.begun_ns;
  out.committed_ns = h.committed_ns;
  out.swept_ns = h.swept_ns;
  return FEEDLANE_OK;
}

}  // namespace feedlane::sharing
