// SPDX-License-Identifier: Apache-2.0
#include "arena/slot.hpp"

#include <algorithm>
#include <cstring>

#include "shm/words.hpp"

namespace feedlane::arena {

namespace {

std::uint64_t detail_room(const Slot& slot) { return std::min<std::uint64_t>(slot.payload_bytes, shm::detail_bytes); }

}  // namespace

void write_batch(const Slot& slot, std::uint64_t task_id, const std::vector<feedlane_tensor>& tensors) {
  shm::SlotHeader& header = *slot.header;
  header.head = {};
  header.head.task_id = task_id;
  header.head.tensor_count = static_cast<std::uint32_t>(tensors.size());
  header.head.failed_position = -1;
  for (std::size_t i = 0; i < tensors.size(); i++) {
    const feedlane_tensor& t = tensors[i];
    shm::TensorRecord& r = header.tensors[i];
    copy_text(r.name, sizeof r.name, t.name);
    r.code = t.dtype.code;
    r.bits = t.dtype.bits;
    r.lanes = t.dtype.lanes;
    r.ndim = t.ndim;
    std::memcpy(r.shape, t.shape, sizeof r.shape);
    std::memcpy(r.strides, t.strides, sizeof r.strides);
    r.offset = t.offset - slot.payload_offset;
    r.bytes = t.bytes;
  }
}

void write_failure(const Slot& slot, std::uint64_t task_id, std::int64_t position, bool transient,
                   std::string_view text, std::string_view detail) {
  shm::SlotHeader& header = *slot.header;
  header.head = {};
  header.head.task_id = task_id;
  header.head.transient = transient ? 1 : 0;
  header.head.failed_position = position;
  header.head.detail_bytes = std::min<std::uint64_t>(detail.size(), detail_room(slot));
  if (!detail.empty()) std::memcpy(slot.payload, detail.data(), header.head.detail_bytes);
  const std::size_t length = std::min(text.size(), sizeof header.text.text - 1);
  if (length != 0) std::memcpy(header.text.text, text.data(), length);
  header.text.text[length] = '\0';
}

namespace {

Status corrupt(Error& error, const char* what, std::uint64_t found, std::uint64_t needed) {
  return error.refuse(FEEDLANE_E_CORRUPT, what, static_cast<std::int64_t>(found), static_cast<std::int64_t>(needed),
                      "%s is %lld in the slot, should be %lld", what, static_cast<long long>(found),
                      static_cast<long long>(needed));
}

Status read_head(const Slot& slot, std::uint64_t task_id, shm::SlotHead& head, Error& error) {
  head = shm::read_once<shm::SlotHead>(&slot.header->head);
  return head.task_id == task_id ? FEEDLANE_OK : corrupt(error, "slot.task_id", head.task_id, task_id);
}

}  // namespace

Status read_batch(const Slot& slot, std::uint64_t task_id, const Fields& fields, std::int64_t rows,
                  std::vector<feedlane_tensor>& out, Error& error) {
  shm::SlotHead head;
  if (const Status s = read_head(slot, task_id, head, error); s != FEEDLANE_OK) return s;
  const auto declared = fields.all();
  if (head.tensor_count != declared.size())
    return corrupt(error, "slot.tensor_count", head.tensor_count, declared.size());
  out.resize(declared.size());  // within its capacity after the first batch
  for (std::size_t i = 0; i < declared.size(); i++) {
    const feedlane_tensor t = tensor_of(declared[i], rows, slot.payload, slot.payload_offset);
    const auto r = shm::read_once<shm::TensorRecord>(&slot.header->tensors[i]);
    if (r.code != t.dtype.code || r.bits != t.dtype.bits || r.lanes != t.dtype.lanes)
      return corrupt(error, "tensor.dtype", r.code, t.dtype.code);
    if (r.ndim != t.ndim)
      return corrupt(error, "tensor.ndim", static_cast<std::uint64_t>(r.ndim), static_cast<std::uint64_t>(t.ndim));
    if (std::memcmp(r.shape, t.shape, sizeof r.shape) != 0)
      return corrupt(error, "tensor.shape", static_cast<std::uint64_t>(r.shape[0]),
                     static_cast<std::uint64_t>(t.shape[0]));
    if (std::memcmp(r.strides, t.strides, sizeof r.strides) != 0)
      return corrupt(error, "tensor.strides", static_cast<std::uint64_t>(r.strides[0]),
                     static_cast<std::uint64_t>(t.strides[0]));
    if (r.offset != declared[i].offset) return corrupt(error, "tensor.offset", r.offset, declared[i].offset);
    if (r.bytes != t.bytes) return corrupt(error, "tensor.bytes", r.bytes, t.bytes);
    out[i] = t;
  }
  return FEEDLANE_OK;
}

Status read_failure(const Slot& slot, std::uint64_t task_id, std::int64_t rows, std::int64_t& position, Error& out,
                    Error& error) {
  shm::SlotHead head;
  if (const Status s = read_head(slot, task_id, head, error); s != FEEDLANE_OK) return s;
  if (head.detail_bytes > detail_room(slot))
    return corrupt(error, "slot.detail_bytes", head.detail_bytes, detail_room(slot));
  if (head.failed_position < -1 || head.failed_position >= rows)
    return corrupt(error, "slot.failed_position", static_cast<std::uint64_t>(head.failed_position),
                   static_cast<std::uint64_t>(rows));
  const auto text = shm::read_once<shm::SlotText>(&slot.header->text);
  const std::size_t length = strnlen(text.text, sizeof text.text - 1);
  std::memcpy(out.text, text.text, length);
  out.text[length] = '\0';
  out.detail.resize(head.detail_bytes);
  for (std::size_t i = 0; i < out.detail.size(); i++)  // bytes that a broken worker may still be writing
    out.detail[i] = __atomic_load_n(reinterpret_cast<const char*>(slot.payload) + i, __ATOMIC_RELAXED);
  out.transient = head.transient != 0;
  position = head.failed_position;
  return FEEDLANE_OK;
}

}  // namespace feedlane::arena
