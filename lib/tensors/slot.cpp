// SPDX-License-Identifier: Apache-2.0
// Writes a slot's header (worker), and reads and checks it (trainer).
#include "tensors/slot.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "shm/shared_read.hpp"

namespace feedlane::tensors {

std::uint64_t detail_room(const Slot& slot) { return std::min<std::uint64_t>(slot.payload_bytes, shm::detail_bytes); }

Slot Slot::of(const shm::Segments& segments, std::uint32_t slot) {
  const shm::Plan& plan = segments.plan();
  Slot s;
  s.header = segments.slot_header(slot);
  s.payload = segments.payload(slot);
  s.payload_offset = plan.payload_of(slot);
  s.payload_bytes = plan.geometry.slot_bytes;
  s.records = segments.records(slot);
  s.record_room = plan.geometry.record_rows;
  s.number = slot;
  s.data_fd = segments.data_fd();
  s.state_room = plan.geometry.list_bytes;
  return s;
}

void write_batch(const Slot& slot, std::uint64_t task_id, const std::vector<feedlane_tensor>& tensors,
                 const Extras& extras) {
  shm::SlotHeader& header = *slot.header;
  header.head = {};
  header.head.task_id = task_id;
  header.head.tensor_count = static_cast<std::uint32_t>(tensors.size());
  header.head.failed_position = -1;
  header.head.shaped = extras.shaped;
  header.head.metadata_offset = extras.metadata.offset;
  header.head.metadata_bytes = extras.metadata.bytes;
  header.head.has_state = extras.has_state ? 1 : 0;
  header.head.state_offset = extras.state.offset;
  header.head.state_bytes = extras.state.bytes;
  header.head.record_count = extras.records;
  for (std::uint64_t left = extras.shaped; left != 0; left &= left - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(left));
    const feedlane_tensor& t = tensors[i];
    write_record(t, t.offset - slot.payload_offset, header.tensors[i]);
  }
}

void write_failure(const Slot& slot, std::uint64_t task_id, std::int64_t position, bool transient,
                   std::string_view text, std::string_view detail, std::uint32_t records) {
  shm::SlotHeader& header = *slot.header;
  header.head = {};
  header.head.task_id = task_id;
  header.head.transient = transient ? 1 : 0;
  header.head.failed_position = position;
  header.head.record_count = records;
  header.head.detail_bytes = std::min<std::uint64_t>(detail.size(), detail_room(slot));
  if (!detail.empty()) std::memcpy(slot.payload, detail.data(), header.head.detail_bytes);
  const std::size_t length = std::min(text.size(), sizeof header.text.text - 1);
  if (length != 0) std::memcpy(header.text.text, text.data(), length);
  header.text.text[length] = '\0';
}

namespace {

// `rule` states how the two numbers must be related: "WHAT is 5 in the slot, must be RULE 4".
Status corrupt(Error& error, const char* what, std::uint64_t found, const char* rule, std::uint64_t needed) {
  return error.refuse(FEEDLANE_E_CORRUPT, what, found, needed, "{} is {} in the slot, must be {} {}", what, found, rule,
                      needed);
}

Status read_head(const Slot& slot, std::uint64_t task_id, shm::SlotHead& head, Error& error) {
  head = shm::read_once<shm::SlotHead>(&slot.header->head);
  return head.task_id == task_id ? FEEDLANE_OK
                                 : corrupt(error, "slot.task_id", head.task_id, "the task's id,", task_id);
}

Status check_extent(const Slot& slot, const char* what, const Extent& extent, Error& error) {
  if (extent.bytes <= slot.payload_bytes && extent.offset <= slot.payload_bytes - extent.bytes) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_CORRUPT, what, extent.offset, slot.payload_bytes,
                      "{} is {} in the slot, and the {} bytes from there extend past the slot's end at {}", what,
                      extent.offset, extent.bytes, slot.payload_bytes);
}

// Reads a tensor whose shape the worker chose. Checks its type and shape, and that it lies in the slot.
Status read_shaped(const Slot& slot, const shm::TensorRecord& r, feedlane_tensor& out, Error& error) {
  feedlane_dtype dtype{r.code, r.bits, r.lanes};
  std::uint64_t bytes = 0;
  if (const Flaw f = check_shape(dtype, r.ndim, FEEDLANE_MAX_NDIM, r.shape, bytes); f.member != nullptr)
    return error.refuse(FEEDLANE_E_CORRUPT, f.member, f.found, f.needed, "tensor.{} is {} in the slot: {}", f.member,
                        f.found, f.rule);
  if (r.bytes != bytes) return corrupt(error, "tensor.bytes", r.bytes, "the size of its shape,", bytes);
  if (const Status s = check_extent(slot, "tensor.offset", {r.offset, r.bytes}, error); s != FEEDLANE_OK) return s;
  if (r.offset % shm::tensor_alignment != 0)
    return corrupt(error, "tensor.offset", r.offset, "a multiple of", shm::tensor_alignment);
  out = row_major(dtype, r.ndim, r.shape);
  out.bytes = bytes;
  out.offset = slot.payload_offset + r.offset;
  out.data = slot.payload + r.offset;
  return FEEDLANE_OK;
}

// Reads the tensors. Reuses the result of an earlier batch of this slot if all tensors of both batches match the
// declarations and both batches have the same number of rows.
Status read_tensors(const Slot& slot, const shm::SlotHead& head, const Fields& fields, std::int64_t rows, Made& out,
                    Error& error) {
  const auto declared = fields.all();
  if (head.tensor_count < declared.size())
    return corrupt(error, "slot.tensor_count", head.tensor_count, "at least", declared.size());
  if (head.tensor_count > FEEDLANE_MAX_TENSORS)
    return corrupt(error, "slot.tensor_count", head.tensor_count, "at most", FEEDLANE_MAX_TENSORS);
  // Bit t must be set for each undeclared tensor t. No other bit may be set after the bits of the declared tensors.
  constexpr unsigned bits = 64;
  const auto behind = [](std::size_t t) { return t < bits ? ~std::uint64_t{0} << t : 0; };
  const std::uint64_t undeclared = behind(declared.size()) & ~behind(head.tensor_count);
  if ((head.shaped & behind(declared.size())) != undeclared)
    return corrupt(error, "slot.shaped", head.shaped & behind(declared.size()), "the bits of the undeclared tensors,",
                   undeclared);
  const bool as_declared = head.shaped == 0 && head.tensor_count == declared.size();
  if (as_declared && out.rows_as_declared == rows) return FEEDLANE_OK;
  out.rows_as_declared = -1;
  out.tensors.resize(head.tensor_count);  // allocates only if no earlier batch had as many
  out.names.resize(head.tensor_count - declared.size());
  for (std::size_t i = 0; i < head.tensor_count; i++) {
    feedlane_tensor& t = out.tensors[i];
    const bool is_declared = i < declared.size();
    if (is_declared && (head.shaped >> i & 1) == 0) {
      t = tensor_of(declared[i], rows, slot.payload, slot.payload_offset);
      continue;
    }
    const auto r = shm::read_once<shm::TensorRecord>(&slot.header->tensors[i]);
    if (const Status s = read_shaped(slot, r, t, error); s != FEEDLANE_OK) return s;
    if (is_declared) {
      t.name = declared[i].name.c_str();
      continue;
    }
    auto& name = out.names[i - declared.size()];
    std::memcpy(name.data(), r.name, sizeof r.name);
    name.back() = '\0';
    t.name = name.data();
  }
  if (as_declared) out.rows_as_declared = rows;
  return FEEDLANE_OK;
}

// Reads the records: at most one per sample, in order of position. The last record may be for the complete batch.
Status read_records(const Slot& slot, std::uint32_t count, std::uint64_t limit, std::vector<shm::SampleRecord>& out,
                    Error& error) {
  if (count > slot.record_room) return corrupt(error, "slot.record_count", count, "at most", slot.record_room);
  out.resize(count);
  for (std::uint32_t i = 0; i < count; i++) {
    out[i] = shm::read_once<shm::SampleRecord>(slot.records + i);
    out[i].text[sizeof out[i].text - 1] = '\0';
    const bool is_last_retry =
        i + 1 == count && out[i].outcome == static_cast<std::int32_t>(shm::SampleOutcome::retried);
    if (out[i].whole > (is_last_retry ? 1 : 0))
      return corrupt(error, "record.whole", out[i].whole, "at most", is_last_retry ? 1 : 0);
    const bool follows = i == 0 || out[i].whole != 0 || out[i].position > out[i - 1].position;
    if (out[i].position >= limit || !follows)
      return corrupt(error, "record.position", out[i].position, "above the previous record's position and below",
                     limit);
    if (out[i].outcome < static_cast<std::int32_t>(shm::SampleOutcome::retried) ||
        out[i].outcome > static_cast<std::int32_t>(shm::SampleOutcome::skipped))
      return corrupt(error, "record.outcome", static_cast<std::uint64_t>(out[i].outcome), "1 to", 3);
  }
  return FEEDLANE_OK;
}

}  // namespace

Status read_batch(const Slot& slot, std::uint64_t task_id, const Fields& fields, std::int64_t rows,
                  std::uint64_t position_limit, Made& out, Error& error) {
  shm::SlotHead head;
  if (const Status s = read_head(slot, task_id, head, error); s != FEEDLANE_OK) return s;
  if (const Status s = read_tensors(slot, head, fields, rows, out, error); s != FEEDLANE_OK) return s;
  const Extent metadata{head.metadata_offset, head.metadata_bytes};
  const Extent state{head.state_offset, head.state_bytes};
  Status s = check_extent(slot, "slot.metadata_offset", metadata, error);
  if (s == FEEDLANE_OK) s = check_extent(slot, "slot.state_offset", state, error);
  // The state must fit into a slot's list, which carries it to a worker when the shard is reopened.
  if (s == FEEDLANE_OK && state.bytes > slot.state_room)
    s = corrupt(error, "slot.state_bytes", state.bytes, "at most", slot.state_room);
  if (s == FEEDLANE_OK) s = read_records(slot, head.record_count, position_limit, out.records, error);
  if (s != FEEDLANE_OK) return s;
  out.metadata = {slot.payload + metadata.offset, metadata.bytes};
  out.has_state = head.has_state != 0;
  out.state = {slot.payload + state.offset, state.bytes};
  return FEEDLANE_OK;
}

Status read_failure(const Slot& slot, std::uint64_t task_id, std::uint64_t position_limit, std::int64_t& position,
                    Error& out, std::vector<shm::SampleRecord>& records, Error& error) {
  shm::SlotHead head;
  if (const Status s = read_head(slot, task_id, head, error); s != FEEDLANE_OK) return s;
  if (head.detail_bytes > detail_room(slot))
    return corrupt(error, "slot.detail_bytes", head.detail_bytes, "at most", detail_room(slot));
  if (head.failed_position < -1 || head.failed_position >= static_cast<std::int64_t>(position_limit))
    return corrupt(error, "slot.failed_position", static_cast<std::uint64_t>(head.failed_position),
                   "at least -1 and below", position_limit);
  if (const Status s = read_records(slot, head.record_count, position_limit, records, error); s != FEEDLANE_OK)
    return s;
  const auto text = shm::read_once<shm::SlotText>(&slot.header->text);
  const std::size_t length = strnlen(text.text, sizeof text.text - 1);
  std::memcpy(out.text, text.text, length);
  out.text[length] = '\0';
  out.detail.resize(head.detail_bytes);
  const auto* from = reinterpret_cast<const char*>(slot.payload);
  for (char& c : out.detail)
    c = __atomic_load_n(from++, __ATOMIC_RELAXED);  // a faulty worker may still be writing here
  out.transient = head.transient != 0;
  position = head.failed_position;
  return FEEDLANE_OK;
}

}  // namespace feedlane::tensors
