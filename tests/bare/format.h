// SPDX-License-Identifier: Apache-2.0
// The format of a loader's shared memory and of its hello, as docs/layout.md has it, typed in from there. No header of the
// library is included; format_test.py compares this file with the tables of the page.
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

// ---- Constants: names as on the page, in capitals ----

#define SEGMENT_MAGIC 0x454e414c44454546u
#define FORMAT_MAJOR 6u
#define BYTE_ORDER_MARK 0x01020304u
#define LAYOUT_HASH 0x2a776cdf6547448bu
#define WRITER_DISTANCE 128
#define CELL_LINE 64u
#define PAYLOAD_ALIGNMENT 4096u
#define TENSOR_ALIGNMENT 256u
#define LOADER_CELL_BYTES 64u
#define NAME_BYTES 32
#define TEXT_BYTES 384
#define DETAIL_BYTES 65536u
#define ERROR_ROWS 32u
#define FEEDLANE_MAX_NDIM 8
#define FEEDLANE_MAX_TENSORS 64
#define MAX_WORKERS 4096u
#define MAX_SLOTS 1048576u
#define MAX_ROWS 1073741824u
#define MAX_CONFIG_BYTES 1073741824u
#define MAX_SLOT_BYTES 1099511627776u
#define MAX_TRACE_RECORDS 16777217u
#define MAX_WORLD 2147483647u
#define MAX_SEGMENT_BYTES 70368744177664u
#define WELCOME_MAGIC 0x33454d4f434c4557u
#define ATTACHED_MAGIC 0x3144454843415441u
#define READY_MAGIC 0x3130305944414552u
#define LEAVING_MAGIC 0x31474e495641454cu

enum { kind_control = 1 };
enum { flag_unbatched = 1, flag_iterable = 2, flag_drop_last = 4, flag_skip = 8, flag_substitute = 16 };  // Geometry
enum { task_first = 1 };                                                                                  // TaskMessage
enum { outcome_retried = 1, outcome_substituted = 2, outcome_skipped = 3 };                            // SampleRecord
enum { status_ok = 0, status_end = 1, status_abandoned = 6, status_sample = -12, status_init = -13 };  // ResultMessage

// ---- Both segments ----

struct SegmentHeader {
  uint64_t magic;
  uint32_t kind;
  uint16_t major;
  uint16_t minor;
  uint32_t byte_order;
  uint32_t page_bytes;
  uint64_t layout_hash;
  uint64_t segment_bytes;
  uint64_t features;
  uint64_t pair_id;
  uint64_t reserved[9];
};

// ---- Control ----

struct Geometry {
  uint32_t workers;
  uint32_t slots;
  uint32_t max_rows;
  uint32_t field_count;
  uint32_t ring_capacity;
  uint32_t flags;
  uint64_t config_bytes;
  uint64_t slot_bytes;
  uint64_t reserved_bytes;
  uint64_t list_bytes;
  uint64_t base_seed;
  uint64_t retry_backoff_ns;
  uint32_t retries;
  uint32_t record_rows;
  uint64_t data_device;
  uint64_t data_inode;
  uint32_t trace_records;
  uint32_t world;
  uint32_t rank;
  uint32_t reserved;
};

struct TrainerBlock {
  alignas(WRITER_DISTANCE) _Atomic uint32_t sleeping;
  alignas(WRITER_DISTANCE) _Atomic uint64_t abandon_before;
  _Atomic uint64_t given_back;
  _Atomic uint64_t engaged;
  _Atomic uint64_t doubted;
};

struct TrainerRow {
  alignas(WRITER_DISTANCE) _Atomic uint64_t result_position;
  alignas(WRITER_DISTANCE) _Atomic uint64_t done_through;
  _Atomic uint64_t revoked_from;
  _Atomic uint64_t revoked_until;
  alignas(WRITER_DISTANCE) _Atomic uint64_t pid;
  _Atomic uint32_t state;
  _Atomic uint32_t generation;
  _Atomic uint64_t state_since_ns;
};

struct FieldRecord {
  char name[NAME_BYTES];
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int32_t ndim;
  int64_t shape[FEEDLANE_MAX_NDIM];
};

struct TaskMessage {
  uint64_t id;
  int64_t epoch;
  int64_t batch;
  int64_t first_position;
  uint32_t slot;
  uint32_t attempt;
  uint32_t rows;
  uint32_t stride;
  uint32_t flags;
  uint32_t state_bytes;
};

// ---- Data ----

struct WorkerRow {
  alignas(WRITER_DISTANCE) _Atomic uint32_t sleeping;
  alignas(WRITER_DISTANCE) _Atomic uint64_t task_position;
  _Atomic uint64_t started_task;
  _Atomic uint64_t started_sample;
  _Atomic uint64_t started_ns;
  _Atomic uint64_t begun_through;
  _Atomic uint64_t passed_over;
  alignas(WRITER_DISTANCE) _Atomic uint64_t tasks;
  _Atomic uint64_t samples;
  _Atomic uint64_t bytes;
  _Atomic uint64_t errors;
  _Atomic uint64_t work_ns;
  _Atomic uint64_t wait_ns;
  _Atomic uint64_t thread;
};

struct ResultMessage {
  uint64_t id;
  uint32_t slot;
  uint32_t attempt;
  int32_t status;
  uint32_t rows;
  uint64_t begun_ns;
  uint64_t committed_ns;
};

struct SlotHead {
  uint64_t task_id;
  uint32_t tensor_count;
  int32_t transient;
  int64_t failed_position;
  uint64_t detail_bytes;
  uint64_t shaped;
  uint64_t metadata_offset;
  uint64_t metadata_bytes;
  uint64_t state_offset;
  uint64_t state_bytes;
  uint32_t record_count;
  uint32_t has_state;
  uint64_t reserved[6];
};

struct SlotText {
  char text[TEXT_BYTES];
};

struct TensorRecord {
  char name[NAME_BYTES];
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int32_t ndim;
  int64_t shape[FEEDLANE_MAX_NDIM];
  int64_t strides[FEEDLANE_MAX_NDIM];
  uint64_t offset;
  uint64_t bytes;
  uint64_t reserved;
};

struct SlotHeader {
  struct SlotHead head;
  struct SlotText text;
  struct TensorRecord tensors[FEEDLANE_MAX_TENSORS];
};

struct SampleRecord {
  uint32_t position;
  int32_t outcome;
  int32_t code;
  uint32_t retries;
  int64_t substitute;
  uint32_t whole;
  uint32_t reserved;
  char text[224];
};

// ---- Hello ----

struct Welcome {
  uint64_t magic;
  uint64_t layout_hash;
  uint32_t worker;
  uint32_t generation;
  uint64_t task_start;
  uint64_t result_start;
  uint32_t tied;
  uint32_t wants_pidfd;
  int64_t epoch;
};

enum {
  welcome_control,
  welcome_data,
  welcome_worker_event,
  welcome_trainer_event,
  welcome_lifeline,
  welcome_trainer,
  WELCOME_FDS
};

struct Attached {
  uint64_t magic;
  uint64_t layout_hash;
};

struct Ready {
  uint64_t magic;
  int32_t status;
  int32_t reserved;
  char text[TEXT_BYTES];
};

struct Leaving {
  uint64_t magic;
};

// ---- Sizes, as the headings of the page have them ----

_Static_assert(sizeof(struct SegmentHeader) == 128, "SegmentHeader");
_Static_assert(sizeof(struct Geometry) == 112, "Geometry");
_Static_assert(sizeof(struct TrainerBlock) == 256, "TrainerBlock");
_Static_assert(sizeof(struct TrainerRow) == 384, "TrainerRow");
_Static_assert(sizeof(struct FieldRecord) == 104, "FieldRecord");
_Static_assert(sizeof(struct TaskMessage) == 56, "TaskMessage");
_Static_assert(sizeof(struct WorkerRow) == 384, "WorkerRow");
_Static_assert(sizeof(struct ResultMessage) == 40, "ResultMessage");
_Static_assert(sizeof(struct SlotHead) == 128, "SlotHead");
_Static_assert(sizeof(struct SlotText) == 384, "SlotText");
_Static_assert(sizeof(struct TensorRecord) == 192, "TensorRecord");
_Static_assert(sizeof(struct SlotHeader) == 12800, "SlotHeader");
_Static_assert(sizeof(struct SampleRecord) == 256, "SampleRecord");
_Static_assert(sizeof(struct Welcome) == 56, "Welcome");
_Static_assert(sizeof(struct Attached) == 16, "Attached");
_Static_assert(sizeof(struct Ready) == 400, "Ready");
_Static_assert(sizeof(struct Leaving) == 8, "Leaving");
