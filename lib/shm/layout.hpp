// SPDX-License-Identifier: Apache-2.0
// Every struct that lies in shared memory. PODs of fixed-width fields, asserted below, described in docs/layout.md (a
// test compares the two). Words that another process may write while we read are atomics; see docs/memory-ordering.md.
//
// control: written by the trainer alone; the kernel refuses every other writable mapping.
// data:    written by workers too; nothing in it is believed before it is checked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "feedlane.h"

namespace feedlane::shm {

// Words of different writers lie this far apart (two lines: processors prefetch in pairs). Part of the format.
constexpr std::size_t writer_distance = 128;
constexpr std::size_t cell_line = 64;
constexpr std::size_t payload_alignment = 4096;
constexpr std::size_t tensor_alignment = 256;
constexpr std::size_t name_bytes = 32;
constexpr std::size_t text_bytes = 384;
constexpr std::size_t detail_bytes = 64 * 1024;  // of a traceback, at most, and no more than a slot's payload

using Word64 = std::atomic<std::uint64_t>;
using Word32 = std::atomic<std::uint32_t>;
static_assert(Word64::is_always_lock_free && Word32::is_always_lock_free && sizeof(Word64) == 8 && sizeof(Word32) == 4);

constexpr std::uint64_t segment_magic = 0x454e414c44454546;  // "FEEDLANE"
constexpr std::uint16_t format_major = 3;
constexpr std::uint16_t format_minor = 0;
constexpr std::uint32_t byte_order_mark = 0x01020304;
enum class SegmentKind : std::uint32_t { control = 1, data = 2, ring_control = 3, ring_data = 4 };

// Offset 0 of control, and of both segments of a ring. Written before the segment is shared, never after. A loader's data
// has none: a worker that writes where it shouldn't could keep all others from attaching.
struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t kind;
  std::uint16_t major;
  std::uint16_t minor;
  std::uint32_t byte_order;
  std::uint32_t page_bytes;
  std::uint64_t layout_hash;
  std::uint64_t segment_bytes;
  std::uint64_t features;  // bits a reader must know; none defined
  std::uint64_t pair_id;   // a random number, of a ring the same in both segments
  std::uint64_t reserved[9];
};
static_assert(sizeof(SegmentHeader) == 128 && offsetof(SegmentHeader, layout_hash) == 24);

// Behind the header of control. What the sizes of both segments follow from (see shm/plan.hpp), and constants.
struct Geometry {
  std::uint32_t workers;
  std::uint32_t slots;
  std::uint32_t max_rows;  // rows of a batch at most: length of an index list
  std::uint32_t field_count;
  std::uint32_t ring_capacity;   // cells of each task ring and each result lane
  std::uint32_t flags;           // GeometryFlag
  std::uint64_t config_bytes;    // of the worker configuration
  std::uint64_t slot_bytes;      // payload of a slot: address space
  std::uint64_t reserved_bytes;  // of it, from its start: memory that is there from the beginning
  std::uint64_t list_bytes;      // of a slot's list: indices, or the saved state of an iterable data set
  std::uint64_t base_seed;
  std::uint64_t retry_backoff_ns;  // before the first retry of a sample; each further one waits twice as long
  std::uint32_t retries;           // of a sample whose error is transient
  std::uint32_t record_rows;       // records of samples that a slot has room for: max_rows, or 0 without policies
  std::uint64_t data_device;       // which file data is, as the kernel says of its descriptor (st_dev, st_ino)
  std::uint64_t data_inode;
};
static_assert(sizeof(Geometry) == 96 && offsetof(Geometry, config_bytes) == 24 && offsetof(Geometry, retries) == 72 &&
              offsetof(Geometry, data_inode) == 88);

// Of data, at its start: nobody's. What is meant for the eventfd of a doorbell but goes to data's descriptor lands here.
constexpr std::size_t data_margin = writer_distance;

enum GeometryFlag : std::uint32_t {
  geometry_unbatched = 1,    // a task is one sample, its tensors have no batch dimension
  geometry_iterable = 2,     // tasks carry no indices: each worker iterates its own shard
  geometry_drop_last = 4,    // iterable: an incomplete last batch of a shard is dropped
  geometry_skip = 8,         // samples that fail may be left out
  geometry_substitute = 16,  // samples that fail may be replaced by others
};

// control: what all workers watch.
struct TrainerBlock {
  alignas(writer_distance) Word32 sleeping;        // the trainer's doorbell flag
  alignas(writer_distance) Word64 abandon_before;  // tasks with a smaller id are dropped
  // How often memory beyond the reserved part of a slot was given back: what a worker had reserved there may be gone.
  Word64 given_back;
};
static_assert(sizeof(TrainerBlock) == 256 && offsetof(TrainerBlock, abandon_before) == 128 &&
              offsetof(TrainerBlock, given_back) == 136);

// control: numbers to look at, for the trainer's statistics and for monitors. The trainer's one thread writes all but the
// last, which any thread of the trainer that releases a batch does.
struct LoaderCounters {
  alignas(writer_distance) Word64 batches;  // yielded, and so on: see feedlane_stats
  Word64 samples;
  Word64 bytes;
  Word64 epochs;
  Word64 wait_ns;
  Word64 restarts;
  Word64 redispatched;
  Word64 quarantined;
  Word64 invalid_results;
  Word64 late_results;
  Word64 retried;
  Word64 substituted;
  Word64 skipped;
  Word64 hung;
  Word64 slots_taken;                          // now: for a task
  Word64 huge_bytes;                           // of data, in huge pages
  alignas(writer_distance) Word64 slots_held;  // now: in the trainer's hands; what is neither is free
};
static_assert(sizeof(LoaderCounters) == 256 && offsetof(LoaderCounters, slots_held) == 128);

// control: one a worker.
struct TrainerRow {
  alignas(writer_distance) Word64 result_position;  // of the consumer of this worker's result lane
  alignas(writer_distance) Word64 done_through;     // generations below this shall end: the done-event
  // Tasks of this worker's ring that were given to others: `revoked_from` <= id < `revoked_until`. It leaves their slots
  // alone and answers ABANDONED.
  Word64 revoked_from;
  Word64 revoked_until;
  alignas(writer_distance) Word64 pid;  // of the process, as far as it is known; 0: none
  Word32 state;                         // FEEDLANE_WORKER_*
  Word32 generation;
};
static_assert(sizeof(TrainerRow) == 384 && offsetof(TrainerRow, done_through) == 128 &&
              offsetof(TrainerRow, pid) == 256);

// control: a declared field of a sample; shape without the batch dimension.
struct FieldRecord {
  char name[name_bytes];
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int32_t ndim;
  std::int64_t shape[FEEDLANE_MAX_NDIM];
};
static_assert(sizeof(FieldRecord) == 104 && offsetof(FieldRecord, shape) == 40);

// data: one a worker, written by it alone.
struct WorkerRow {
  alignas(writer_distance) Word32 sleeping;       // the worker's doorbell flag
  alignas(writer_distance) Word64 task_position;  // of the consumer of its task ring
  Word64 started_task;                            // id of the task in hand, 0: none
  Word64 started_sample;                          // its row in hand
  Word64 started_ns;                              // since when (CLOCK_MONOTONIC)
  Word64 begun_through;                           // the largest id that it has begun: only grows, see TaskRing::revoke
  Word64 passed_over;                             // samples of a shard opened again that were delivered before
  alignas(writer_distance) Word64 tasks;          // counters, over all generations
  Word64 samples;
  Word64 bytes;
  Word64 errors;
  Word64 work_ns;
  Word64 wait_ns;
};
static_assert(sizeof(WorkerRow) == 384 && offsetof(WorkerRow, task_position) == 128 &&
              offsetof(WorkerRow, tasks) == 256);

// In a cell of a task ring (control).
struct TaskMessage {
  std::uint64_t id;
  std::int64_t epoch;
  std::int64_t batch;
  // Of its first row in the epoch's order, over all ranks: seeds come from it. Iterable, first task: samples of the shard
  // that have been delivered.
  std::int64_t first_position;
  std::uint32_t slot;
  std::uint32_t attempt;
  std::uint32_t rows;
  std::uint32_t stride;       // from a row's position to that of the next: the number of ranks
  std::uint32_t flags;        // TaskFlag
  std::uint32_t state_bytes;  // iterable, first task: of the state to go on from, in the slot's list
};
static_assert(sizeof(TaskMessage) == 56 && offsetof(TaskMessage, slot) == 32 && offsetof(TaskMessage, flags) == 48);

enum TaskFlag : std::uint32_t {
  task_first = 1,  // iterable: the shard starts over, or goes on from what was delivered
};

// In a cell of a result lane (data).
struct ResultMessage {
  std::uint64_t id;
  std::uint32_t slot;
  std::uint32_t attempt;
  std::int32_t
      status;  // OK, END (the shard is exhausted), ABANDONED or a negative status: then the slot's header says more
  std::uint32_t rows;  // made; of a failed task: samples that it took from its shard
};
static_assert(sizeof(ResultMessage) == 24 && offsetof(ResultMessage, status) == 16);

// data: a tensor in a slot that isn't as it was declared.
struct TensorRecord {
  char name[name_bytes];
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int32_t ndim;
  std::int64_t shape[FEEDLANE_MAX_NDIM];
  std::int64_t strides[FEEDLANE_MAX_NDIM];  // in elements
  std::uint64_t offset;                     // in the slot's payload
  std::uint64_t bytes;
  std::uint64_t reserved;
};
static_assert(sizeof(TensorRecord) == 192 && offsetof(TensorRecord, offset) == 168);

// data: the beginning of a slot's header.
struct SlotHead {
  std::uint64_t task_id;  // whose the rest is
  std::uint32_t tensor_count;
  std::int32_t transient;
  std::int64_t failed_position;   // the row that failed, -1: none
  std::uint64_t detail_bytes;     // a failed task's traceback, at the start of the slot's payload
  std::uint64_t shaped;           // bit t: tensor t isn't as declared; its record says how it is
  std::uint64_t metadata_offset;  // in the slot's payload, as all offsets here
  std::uint64_t metadata_bytes;
  std::uint64_t state_offset;  // iterable: what its data set saved after this batch
  std::uint64_t state_bytes;
  std::uint32_t record_count;
  std::uint32_t has_state;
  std::uint64_t reserved[6];
};
static_assert(sizeof(SlotHead) == 128 && offsetof(SlotHead, detail_bytes) == 24 &&
              offsetof(SlotHead, record_count) == 72);

// data: what became of a sample that failed; `record_rows` a slot.
struct SampleRecord {
  std::uint32_t position;  // its row as the task had it
  std::int32_t outcome;    // SampleOutcome
  std::int32_t code;       // what its callback returned last
  std::uint32_t retries;
  std::int64_t substitute;  // outcome substituted: the index that took its place
  std::uint32_t whole;      // 1: the batch was retried as a whole, `position` says nothing
  std::uint32_t reserved;
  char text[224];
};
static_assert(sizeof(SampleRecord) == 256 && offsetof(SampleRecord, text) == 32);

enum class SampleOutcome : std::int32_t { retried = 1, substituted = 2, skipped = 3 };

// One line of a failed task, terminated unless its worker is broken.
struct SlotText {
  char text[text_bytes];
};

// data: one a slot, written by the worker that has the slot's task.
struct SlotHeader {
  SlotHead head;
  SlotText text;
  TensorRecord tensors[FEEDLANE_MAX_TENSORS];
};
static_assert(sizeof(SlotHeader) == 12800 && offsetof(SlotHeader, text) == 128 && offsetof(SlotHeader, tensors) == 512);

// A number that changes when the layout of any struct here does. Both sides must have the same.
constexpr std::uint64_t layout_hash = [] {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::uint64_t word : {sizeof(SegmentHeader),
                                   sizeof(Geometry),
                                   sizeof(TrainerBlock),
                                   sizeof(LoaderCounters),
                                   sizeof(TrainerRow),
                                   sizeof(FieldRecord),
                                   sizeof(WorkerRow),
                                   sizeof(TaskMessage),
                                   sizeof(ResultMessage),
                                   sizeof(TensorRecord),
                                   sizeof(SlotHeader),
                                   offsetof(LoaderCounters, slots_taken),
                                   offsetof(LoaderCounters, huge_bytes),
                                   offsetof(TrainerRow, generation),
                                   offsetof(TrainerRow, revoked_until),
                                   sizeof(SampleRecord),
                                   offsetof(Geometry, record_rows),
                                   offsetof(Geometry, data_inode),
                                   offsetof(TrainerBlock, given_back),
                                   offsetof(SampleRecord, text),
                                   offsetof(WorkerRow, begun_through),
                                   offsetof(WorkerRow, wait_ns),
                                   offsetof(TaskMessage, state_bytes),
                                   offsetof(ResultMessage, rows),
                                   offsetof(TensorRecord, strides),
                                   offsetof(SlotHead, has_state),
                                   writer_distance,
                                   cell_line,
                                   payload_alignment,
                                   tensor_alignment,
                                   std::size_t{format_major}})
    hash = (hash ^ word) * 0x100000001b3;
  return hash;
}();

}  // namespace feedlane::shm
