// SPDX-License-Identifier: Apache-2.0
// Every struct in a loader's shared memory: PODs of fixed-width fields, with assertions below and a description in
// docs/layout.md (a test compares the two). Words that another process may write during a read are atomics; see
// docs/memory-ordering.md.
//
// control: written by the trainer alone; the kernel refuses every other writable mapping.
// data:    written by workers too; nothing in it is used before it is checked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "feedlane/observe.h"
#include "feedlane/tensor.h"

namespace feedlane::shm {

// Distance between words of different writers: two cache lines, because processors prefetch pairs. Part of the format.
constexpr std::size_t writer_distance = 128;
constexpr std::size_t cell_line = 64;
constexpr std::size_t payload_alignment = 4096;
constexpr std::size_t tensor_alignment = 256;
constexpr std::size_t name_bytes = 32;
constexpr std::size_t text_bytes = 384;
constexpr std::size_t detail_bytes = 64 * 1024;  // maximum size of a traceback; also limited by a slot's payload

using Word64 = std::atomic<std::uint64_t>;
using Word32 = std::atomic<std::uint32_t>;
static_assert(Word64::is_always_lock_free && Word32::is_always_lock_free && sizeof(Word64) == 8 && sizeof(Word32) == 4);

constexpr std::uint64_t segment_magic = 0x454e414c44454546;  // "FEEDLANE"
constexpr std::uint16_t format_major = 6;
constexpr std::uint16_t format_minor = 0;
constexpr std::uint32_t byte_order_mark = 0x01020304;
enum class SegmentKind : std::uint32_t {
  control = 1,
  data = 2,
  ring_control = 3,
  ring_data = 4,
  share_catalogue = 5,  // see shm/share_layout.hpp
  share_delivery = 7,
  share_returns = 8,
  arena_control = 9,  // see shm/arena_layout.hpp
  arena_answers = 11,
  arena_member = 12
};

// At offset 0 of control, and of both segments of a ring. Written before the segment is shared, never afterwards. A
// loader's data segment has no header, because a worker could overwrite it and so keep all other workers from
// attaching.
struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t kind;
  std::uint16_t major;
  std::uint16_t minor;
  std::uint32_t byte_order;
  std::uint32_t page_bytes;
  std::uint64_t layout_hash;
  std::uint64_t segment_bytes;
  std::uint64_t features;  // bits that a reader must know; none is defined
  std::uint64_t pair_id;   // random; equal in both segments of a ring, and in a consumer's delivery and returns
  std::uint64_t reserved[9];
};
static_assert(sizeof(SegmentHeader) == 128 && offsetof(SegmentHeader, layout_hash) == 24);

// Follows the header of control: the numbers that determine the sizes of both segments (see shm/plan.hpp), and
// constants.
struct Geometry {
  std::uint32_t workers;
  std::uint32_t slots;
  std::uint32_t max_rows;  // maximum number of rows of a batch; length of an index list
  std::uint32_t field_count;
  std::uint32_t ring_capacity;   // cells of each task ring and each result lane
  std::uint32_t flags;           // GeometryFlag
  std::uint64_t config_bytes;    // size of the worker configuration
  std::uint64_t slot_bytes;      // size of a slot's payload: address space
  std::uint64_t reserved_bytes;  // how many of its first bytes are reserved at creation
  std::uint64_t list_bytes;      // size of a slot's list: indices, or the state of an iterable data set to resume from
  std::uint64_t base_seed;
  std::uint64_t retry_backoff_ns;  // wait before the first retry of a sample; doubles with each further retry
  std::uint32_t retries;           // maximum number of retries of a sample whose error is transient
  std::uint32_t record_rows;       // sample records per slot: max_rows, or 0 without policies
  std::uint64_t data_device;       // st_dev and st_ino of the data segment's descriptor
  std::uint64_t data_inode;
  std::uint32_t trace_records;  // cells of the trace, one more than the batches that it keeps; 0: no trace
  std::uint32_t world;          // number of ranks that share an iterable data set; map-style: 1
  std::uint32_t rank;
  std::uint32_t reserved;
};
static_assert(sizeof(Geometry) == 112 && offsetof(Geometry, config_bytes) == 24 && offsetof(Geometry, retries) == 72 &&
              offsetof(Geometry, data_inode) == 88 && offsetof(Geometry, trace_records) == 96 &&
              offsetof(Geometry, rank) == 104);

// Unused bytes at the start of data. A write for a doorbell's eventfd that goes to data's descriptor by mistake lands
// here.
constexpr std::size_t data_margin = writer_distance;

enum GeometryFlag : std::uint32_t {
  geometry_unbatched = 1,    // a task is one sample, and its tensors have no batch dimension
  geometry_iterable = 2,     // tasks carry no indices: each worker iterates its own shard
  geometry_drop_last = 4,    // iterable: an incomplete last batch of a shard is dropped
  geometry_skip = 8,         // samples that fail may be left out
  geometry_substitute = 16,  // samples that fail may be replaced by others
};

// control: words of the trainer that all workers read.
struct TrainerBlock {
  alignas(writer_distance) Word32 sleeping;        // the trainer's doorbell flag
  alignas(writer_distance) Word64 abandon_before;  // tasks with a smaller id are dropped
  // Incremented after memory beyond the reserved part of a slot was given back to the system. Memory that a worker had
  // reserved there may be gone.
  Word64 given_back;
  Word64 engaged;  // workers that tasks are sent to now; only decides whether a worker spins before it sleeps
  // Incremented after a worker that may have punched holes into data has ended. A consumer's registered pages may then
  // no longer be those of the slots.
  Word64 doubted;
};
static_assert(sizeof(TrainerBlock) == 256 && offsetof(TrainerBlock, abandon_before) == 128 &&
              offsetof(TrainerBlock, given_back) == 136 && offsetof(TrainerBlock, engaged) == 144 &&
              offsetof(TrainerBlock, doubted) == 152);

// control: counters for statistics and monitors. One thread of the loader at a time writes all words but the last. Any
// thread of the trainer that releases a batch writes the last word.
struct LoaderCounters {
  alignas(writer_distance) Word64 batches;  // batches yielded; see feedlane_stats for this word and the next ones
  Word64 samples;
  Word64 bytes;
  Word64 epochs;
  Word64 wait_ns;  // while `next` waits, the sum minus the start time of the wait, so negative: see loader/stamps.cpp
  Word64 restarts;
  Word64 redispatched;
  Word64 quarantined;
  Word64 invalid_results;
  Word64 late_results;
  Word64 retried;
  Word64 substituted;
  Word64 skipped;
  Word64 hung;
  Word64 slots_taken;                     // slots that tasks occupy now
  Word64 huge_bytes;                      // bytes of data in huge pages at creation
  alignas(writer_distance) Word64 epoch;  // as passed to begin, signed; -1: none has begun
  Word64 epoch_first;                     // the number of its first batch; not 0 if it was resumed
  Word64 epoch_done;                      // its batches that were yielded, failed, or left out as empty
  Word64 epoch_batches;                   // signed; -1: unknown
  Word64 in_epoch;                        // 1: the epoch has begun and not ended
  Word64 begun_ns;                        // when the epoch began
  Word64 yielded_ns;                      // when the newest batch was yielded
  Word64 waiting_since_ns;                // 0: `next` is not waiting
  Word64 start_wait_ns;                   // part of wait_ns: waits for the first batch of each epoch
  Word64 restarts_signal;                 // part of restarts, by reason: see feedlane_stats
  Word64 restarts_exit;
  Word64 restarts_hung;
  Word64 restarts_invalid;
  Word64 restarts_unattached;
  Word64 prefetch;                             // maximum number of batches in flight per worker
  alignas(writer_distance) Word64 slots_held;  // slots of batches that the trainer holds now
};
static_assert(sizeof(LoaderCounters) == 384 && offsetof(LoaderCounters, epoch) == 128 &&
              offsetof(LoaderCounters, prefetch) == 240 && offsetof(LoaderCounters, slots_held) == 256);

// control: facts about the loader, for monitors. Written at its creation.
struct LoaderFacts {
  std::uint64_t created_ns;
  std::uint64_t pid;
  std::uint32_t start;  // FEEDLANE_START_*
  std::uint32_t held;
  std::int64_t task_timeout_ns;  // 0: no limit
  char version[16];              // of the library
  char name[64];                 // config.name
};
static_assert(sizeof(LoaderFacts) == 112 && offsetof(LoaderFacts, name) == 48);

// control: how often each duration occurred. Buckets 0 to 7 count 0 to 7 ns. Above, each power of two has eight buckets
// of equal width: bucket 8 (e - 2) + i counts durations from 2^e (1 + i / 8) ns up to the next bucket. The last bucket
// also counts all longer durations.
constexpr std::size_t histogram_buckets = 351;
struct Histogram {
  Word64 sum_ns;
  Word64 buckets[histogram_buckets];
};
static_assert(sizeof(Histogram) == 2816);

// control: one per worker, at least one. How long the steps of the worker's batches took: see feedlane_timings.
struct TimingRow {
  Histogram exposed;
  Histogram start;
  Histogram queue;
  Histogram work;
  Histogram ready;
  Histogram hold;
};
static_assert(sizeof(TimingRow) == 16896);

// control: a batch and its stamps (CLOCK_MONOTONIC, ns; 0: has not happened). One per slot, and the records of the
// trace. One thread of the loader at a time writes all words but a slot's `released_ns`, which the thread that frees
// the slot writes. docs/layout.md describes how a record is written and read.
struct BatchRecord {
  Word64 task;  // 0: no batch, or the record is being written
  Word64 sequence;
  Word64 epoch;
  Word64 batch;
  Word64 maker;  // worker in the upper half, attempt in the lower
  Word64 end;    // status in the upper half, slot in the lower
  Word64 rows;
  Word64 bytes;
  Word64 dispatched_ns;
  Word64 begun_ns;
  Word64 committed_ns;
  Word64 swept_ns;
  Word64 yielded_ns;
  Word64 exposed_ns;
  Word64 released_ns;
  Word64 reserved;
};
static_assert(sizeof(BatchRecord) == 128 && offsetof(BatchRecord, released_ns) == 112);

// control: the beginning of the trace.
struct TraceHead {
  alignas(writer_distance) Word64 written;  // number of records so far; record s is in cell (s - 1) mod trace_records
};
static_assert(sizeof(TraceHead) == 128);

// control: errors and events of one kind and code whose texts differ only in numbers. `changes` is odd while the row is
// written.
constexpr std::size_t error_rows = 32;
constexpr std::size_t error_text_words = 24;
struct ErrorRow {
  Word64 changes;
  Word64 order;  // number in order of first occurrence, from 1; 0: the row is empty
  Word64 what;   // kind in the upper half, code in the lower
  Word64 worker;
  Word64 batch;
  Word64 sample;
  Word64 count;
  Word64 first_ns;
  Word64 last_ns;
  Word64 key;  // equal for errors that are counted together
  Word64 text[error_text_words];
};
static_assert(sizeof(ErrorRow) == 272 && offsetof(ErrorRow, text) == 80);

// control: one per worker.
struct TrainerRow {
  alignas(writer_distance) Word64 result_position;  // position of the consumer of this worker's result lane
  alignas(writer_distance) Word64 done_through;     // workers of lower generations must end
  // Ids of tasks in this worker's ring that were given to other workers: `revoked_from` <= id < `revoked_until`. The
  // worker leaves their slots alone and answers ABANDONED.
  Word64 revoked_from;
  Word64 revoked_until;
  alignas(writer_distance) Word64 pid;  // process id; 0: none, or unknown
  Word32 state;                         // FEEDLANE_WORKER_*
  Word32 generation;
  Word64 state_since_ns;
};
static_assert(sizeof(TrainerRow) == 384 && offsetof(TrainerRow, done_through) == 128 &&
              offsetof(TrainerRow, pid) == 256 && offsetof(TrainerRow, state_since_ns) == 272);

// control: a declared field of a sample. Its shape has no batch dimension.
struct FieldRecord {
  char name[name_bytes];
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int32_t ndim;
  std::int64_t shape[FEEDLANE_MAX_NDIM];
};
static_assert(sizeof(FieldRecord) == 104 && offsetof(FieldRecord, shape) == 40);

// data: one per worker, written by that worker alone.
struct WorkerRow {
  alignas(writer_distance) Word32 sleeping;       // the worker's doorbell flag
  alignas(writer_distance) Word64 task_position;  // position of the consumer of its task ring
  Word64 started_task;                            // id of the task in progress; 0: none
  Word64 started_sample;                          // row of that task in progress
  Word64 started_ns;                              // when that task was started (CLOCK_MONOTONIC)
  Word64 begun_through;                           // largest id that it has begun; only grows, see TaskRing::revoke
  Word64 passed_over;                             // samples of a reopened shard skipped as delivered before
  alignas(writer_distance) Word64 tasks;          // from here to wait_ns: counters over all generations
  Word64 samples;
  Word64 bytes;
  Word64 errors;
  Word64 work_ns;
  Word64 wait_ns;
  Word64 thread;  // gettid() of the worker's thread; 0: not reported
};
static_assert(sizeof(WorkerRow) == 384 && offsetof(WorkerRow, task_position) == 128 &&
              offsetof(WorkerRow, tasks) == 256 && offsetof(WorkerRow, thread) == 304);

// In a cell of a task ring, in control.
struct TaskMessage {
  std::uint64_t id;
  std::int64_t epoch;
  std::int64_t batch;
  // Map-style: position of the first row in the epoch's order over all ranks, from which seeds are derived. Iterable,
  // first task: number of the shard's samples that were delivered before.
  std::int64_t first_position;
  std::uint32_t slot;
  std::uint32_t attempt;
  std::uint32_t rows;
  std::uint32_t stride;       // distance between the positions of two consecutive rows: the number of ranks
  std::uint32_t flags;        // TaskFlag
  std::uint32_t state_bytes;  // iterable, first task: size of the state to resume from, in the slot's list
};
static_assert(sizeof(TaskMessage) == 56 && offsetof(TaskMessage, slot) == 32 && offsetof(TaskMessage, flags) == 48);

enum TaskFlag : std::uint32_t {
  task_first = 1,  // iterable: the shard starts from the beginning, or resumes after the samples that were delivered
};

// In a cell of a result lane, in data.
struct ResultMessage {
  std::uint64_t id;
  std::uint32_t slot;
  std::uint32_t attempt;
  std::int32_t status;  // OK, END (the shard is exhausted), ABANDONED, or an error: the slot's header has the details
  std::uint32_t rows;   // rows made; if the task failed: samples that it took from its shard
  std::uint64_t begun_ns;  // CLOCK_MONOTONIC; the trainer clamps both times to the interval between its own stamps
  std::uint64_t committed_ns;
};
static_assert(sizeof(ResultMessage) == 40 && offsetof(ResultMessage, status) == 16 &&
              offsetof(ResultMessage, committed_ns) == 32);

// data: describes a tensor of a slot that differs from its declaration.
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
  std::uint64_t task_id;  // the task to which the other fields belong
  std::uint32_t tensor_count;
  std::int32_t transient;
  std::int64_t failed_position;   // the row that failed; -1: none
  std::uint64_t detail_bytes;     // size of a failed task's traceback, at the start of the slot's payload
  std::uint64_t shaped;           // bit t: tensor t differs from its declaration; its record describes it
  std::uint64_t metadata_offset;  // in the slot's payload, like all offsets here
  std::uint64_t metadata_bytes;
  std::uint64_t state_offset;  // iterable: the state that the data set saved after this batch
  std::uint64_t state_bytes;
  std::uint32_t record_count;
  std::uint32_t has_state;
  std::uint64_t reserved[6];
};
static_assert(sizeof(SlotHead) == 128 && offsetof(SlotHead, detail_bytes) == 24 &&
              offsetof(SlotHead, record_count) == 72);

// data: how a failed sample was handled. A slot has room for `record_rows` records.
struct SampleRecord {
  std::uint32_t position;  // its row in the task
  std::int32_t outcome;    // SampleOutcome
  std::int32_t code;       // the last return value of its callback
  std::uint32_t retries;
  std::int64_t substitute;  // outcome substituted: index of the sample that replaced it
  std::uint32_t whole;      // 1: the complete batch was retried, and `position` has no meaning
  std::uint32_t reserved;
  char text[224];
};
static_assert(sizeof(SampleRecord) == 256 && offsetof(SampleRecord, text) == 32);

enum class SampleOutcome : std::int32_t { retried = 1, substituted = 2, skipped = 3 };

// One line about a failed task, terminated unless the worker is faulty.
struct SlotText {
  char text[text_bytes];
};

// data: one per slot, written by the worker that has the task of this slot.
struct SlotHeader {
  SlotHead head;
  SlotText text;
  TensorRecord tensors[FEEDLANE_MAX_TENSORS];
};
static_assert(sizeof(SlotHeader) == 12800 && offsetof(SlotHeader, text) == 128 && offsetof(SlotHeader, tensors) == 512);

// Changes whenever the layout of a struct above changes. Must be equal on both sides.
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
                                   sizeof(LoaderFacts),
                                   sizeof(TimingRow),
                                   sizeof(BatchRecord),
                                   sizeof(ErrorRow),
                                   error_rows,
                                   offsetof(LoaderCounters, slots_taken),
                                   offsetof(LoaderCounters, huge_bytes),
                                   offsetof(LoaderCounters, waiting_since_ns),
                                   offsetof(TrainerRow, generation),
                                   offsetof(TrainerRow, revoked_until),
                                   sizeof(SampleRecord),
                                   offsetof(Geometry, record_rows),
                                   offsetof(Geometry, trace_records),
                                   offsetof(Geometry, rank),
                                   offsetof(TrainerBlock, given_back),
                                   offsetof(TrainerBlock, engaged),
                                   offsetof(TrainerBlock, doubted),
                                   offsetof(SampleRecord, text),
                                   offsetof(WorkerRow, begun_through),
                                   offsetof(WorkerRow, wait_ns),
                                   offsetof(TaskMessage, state_bytes),
                                   offsetof(ResultMessage, committed_ns),
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
