// SPDX-License-Identifier: Apache-2.0
// Writes and reads batch records.
#include "monitor/records.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/versioned.hpp"

namespace feedlane::monitor {
namespace {

std::uint64_t read(const shm::Word64& word) { return word.load(std::memory_order_relaxed); }
std::int32_t high(std::uint64_t word) { return static_cast<std::int32_t>(word >> 32); }
std::int32_t low(std::uint64_t word) { return static_cast<std::int32_t>(word); }

// Reads all words but `task`, which slots and the trace use differently.
void read_words(const shm::BatchRecord& in, feedlane_batch_record& out) {
  out.sequence = read(in.sequence);
  out.epoch = static_cast<std::int64_t>(read(in.epoch));
  out.batch = static_cast<std::int64_t>(read(in.batch));
  out.worker = high(read(in.maker));
  out.attempt = low(read(in.maker));
  out.status = high(read(in.end));
  out.slot = low(read(in.end));
  out.rows = read(in.rows);
  out.bytes = read(in.bytes);
  out.dispatched_ns = read(in.dispatched_ns);
  out.begun_ns = read(in.begun_ns);
  out.committed_ns = read(in.committed_ns);
  out.swept_ns = read(in.swept_ns);
  out.yielded_ns = read(in.yielded_ns);
  out.exposed_ns = read(in.exposed_ns);
  out.released_ns = read(in.released_ns);
}

feedlane_batch_record fresh() {
  feedlane_batch_record record{};
  record.size = sizeof record;
  return record;
}

}  // namespace

// ---- writing the trace ----

void TraceWriter::use(const shm::Segments& segments) {
  capacity_ = segments.plan().geometry.trace_records;
  if (capacity_ == 0) return;
  head_ = segments.trace_head();
  cells_ = segments.trace();
}

void TraceWriter::append(const shm::BatchRecord& from, std::uint64_t released_ns) {
  if (capacity_ == 0) return;
  const std::uint64_t written = read(head_->written);
  shm::BatchRecord& to = cells_[written % capacity_];
  // Release fence: pairs with the acquire fence in read_trace. A reader that sees a word of this record also sees the
  // `written` that counts the previous record. So it drops the record that this one overwrites.
  std::atomic_thread_fence(std::memory_order_release);
  const auto copy = [](shm::Word64& word, std::uint64_t value) { word.store(value, std::memory_order_relaxed); };
  copy(to.task, read(from.task));
  copy(to.sequence, written + 1);
  copy(to.epoch, read(from.epoch));
  copy(to.batch, read(from.batch));
  copy(to.maker, read(from.maker));
  copy(to.end, read(from.end));
  copy(to.rows, read(from.rows));
  copy(to.bytes, read(from.bytes));
  copy(to.dispatched_ns, read(from.dispatched_ns));
  copy(to.begun_ns, read(from.begun_ns));
  copy(to.committed_ns, read(from.committed_ns));
  copy(to.swept_ns, read(from.swept_ns));
  copy(to.yielded_ns, read(from.yielded_ns));
  copy(to.exposed_ns, read(from.exposed_ns));
  copy(to.released_ns, released_ns);
  head_->written.store(written + 1, std::memory_order_release);  // pairs with the acquire in read_trace
}

// ---- reading ----

Status read_slot(const shm::Segments& segments, std::uint64_t slot, feedlane_batch_record& out) {
  if (slot >= segments.plan().geometry.slots) return FEEDLANE_END;
  const shm::BatchRecord& record = *segments.slot_record(static_cast<std::uint32_t>(slot));
  out = fresh();
  // Acquire: pairs with the release store of `task` in loader::Stamps::on_send. If the record is rewritten during the
  // read, the fence there and the fence here ensure that the second load finds another task, or 0.
  const std::uint64_t task = record.task.load(std::memory_order_acquire);
  if (task == 0) return FEEDLANE_OK;
  read_words(record, out);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (read(record.task) == task) out.task = task;
  else out = fresh();
  return FEEDLANE_OK;
}

namespace {

// Record number `i` of the caller's array.
feedlane_batch_record* record_at(feedlane_batch_record* out, std::size_t stride, std::uint64_t i) {
  return reinterpret_cast<feedlane_batch_record*>(reinterpret_cast<std::byte*>(out) + i * stride);
}

void write_record(feedlane_batch_record* out, std::size_t stride, std::uint64_t i,
                  const feedlane_batch_record& record) {
  feedlane_batch_record* const to = record_at(out, stride, i);
  to->size = stride;
  write_versioned(to, record);
}

}  // namespace

Status read_slots(const shm::Segments& segments, feedlane_batch_record* out, std::uint64_t cap, std::uint64_t& count) {
  const std::size_t stride = cap == 0 ? 0 : out->size;
  feedlane_batch_record record;
  for (count = 0; count < cap && read_slot(segments, count, record) == FEEDLANE_OK; count++)
    write_record(out, stride, count, record);
  return count == 0 ? FEEDLANE_END : FEEDLANE_OK;
}

namespace {

// One pass over the trace. Records that were overwritten during the read are dropped from the front.
struct Look {
  std::uint64_t count = 0;
  bool is_overtaken = false;  // all records that were read were overwritten during the read
};

Look look_at_trace(const shm::Segments& segments, std::uint64_t from, feedlane_batch_record* out, std::uint64_t cap) {
  const std::uint64_t capacity = segments.plan().geometry.trace_records;
  const shm::TraceHead& head = *segments.trace_head();
  const shm::BatchRecord* const cells = segments.trace();
  const std::size_t stride = cap == 0 ? sizeof *out : out->size;
  // The writer may be writing the record after `written`, in the cell of the record `capacity` before it.
  const auto oldest_valid = [&](std::uint64_t written) { return written >= capacity ? written - capacity + 2 : 1; };
  // No loader writes this many records, so the trace is invalid.
  constexpr std::uint64_t most = std::uint64_t{1} << 62;
  // Acquire: pairs with the release store in TraceWriter::append, so these records are complete.
  const std::uint64_t written = head.written.load(std::memory_order_acquire);
  const std::uint64_t first = std::max(from, oldest_valid(written));
  Look look;
  if (written > most) return look;
  for (std::uint64_t s = first; s <= written && look.count < cap; s++, look.count++) {
    feedlane_batch_record record = fresh();
    read_words(cells[(s - 1) % capacity], record);
    record.task = read(cells[(s - 1) % capacity].task);
    record.sequence = s;
    write_record(out, stride, look.count, record);
  }
  // Acquire fence: pairs with the release fence in TraceWriter::append.
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t valid = oldest_valid(read(head.written));
  const std::uint64_t lost = std::min(look.count, valid > first ? valid - first : 0);
  look.is_overtaken = lost != 0 && lost == look.count;
  if (lost != 0)
    for (std::uint64_t i = lost; i < look.count; i++)
      std::memcpy(record_at(out, stride, i - lost), record_at(out, stride, i), stride);
  look.count -= lost;
  return look;
}

}  // namespace

Status read_trace(const shm::Segments& segments, std::uint64_t from, feedlane_batch_record* out, std::uint64_t cap,
                  std::uint64_t& count) {
  constexpr int tries = 8;
  count = 0;
  if (segments.plan().geometry.trace_records == 0) return FEEDLANE_E_STATE;
  Look look;
  for (int i = 0; i < tries; i++) {
    look = look_at_trace(segments, from, out, cap);
    if (!look.is_overtaken) break;
  }
  count = look.count;
  return count == 0 ? FEEDLANE_END : FEEDLANE_OK;
}

}  // namespace feedlane::monitor
