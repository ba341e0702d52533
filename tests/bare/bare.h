// SPDX-License-Identifier: Apache-2.0
// A worker of a Feedlane loader that uses nothing of Feedlane: C11, the C library and docs/layout.md.
//
//   attach.c   the hello; the segments, checked; where everything lies
//   tasks.c    tasks, results, the doorbell, sleeping
//   slot.c     what a slot's header says; memory in the slot
//   main.c     a data set: the loop that makes batches
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format.h"
#include "orders.h"

// Where everything lies, by the arithmetic of docs/layout.md.
struct plan {
  // control
  uint64_t trainer_block, counters, trainer_rows, fields, config, task_rings, index_lists;
  uint64_t facts, timings, errors, slot_records, trace_head, trace, control_bytes;
  // data
  uint64_t margin, worker_rows, result_lanes, slot_headers, records, payload, data_bytes;
  // of one ring, of one slot's list and payload
  uint64_t ring_bytes, list_stride, payload_stride;
};

struct field {
  const struct FieldRecord *record;
  uint64_t row_bytes;
  uint64_t at;  // in a slot's payload
};

// What this worker has reserved of a slot's payload, and TrainerBlock.given_back as of that task.
struct reservation {
  uint64_t bytes;
  uint64_t given_back;
};

struct worker {
  bool is_impostor;  // it takes a segment of its own for data
  int socket, data_fd, own_event, trainer_event, lifeline, trainer, epoll;
  const unsigned char *control;
  uint64_t control_bytes;
  unsigned char *data;
  struct Welcome welcome;
  struct Geometry geometry;
  struct plan plan;
  struct field fields[FEEDLANE_MAX_TENSORS];
  uint64_t declared_bytes;  // of a slot's payload

  const struct TrainerBlock *trainer_block;
  const struct TrainerRow *trainer_row;
  struct WorkerRow *row;
  struct reservation *reservations;  // of each slot
  const unsigned char *task_ring;
  unsigned char *result_lane;
  uint64_t p, r;  // positions in the task ring and in the result lane

  bool trainer_gone;
  int64_t looked_ns;  // for the trainer, if not tied
  int64_t begun_ns;   // the task in hand

  struct orders orders;
  int64_t answered;  // tasks
};

// ---- attach.c ----

// 0, or -1 after a line on stderr.
int attach(struct worker *w, int socket);
int say_ready(struct worker *w, int32_t status, const char *text);
// In place of what follows `attach`: says why it can't, unties, unmaps and closes the socket. The process may live on.
void give_up(struct worker *w);
// Unties, unmaps and says so: the process may live on.
void leave(struct worker *w);
int complain(const char *what, uint64_t found, uint64_t needed);
const char *complaint(void);  // the last one

// ---- tasks.c ----

// Sleeps until there is a task to make; false: the worker ends.
bool take(struct worker *w, struct TaskMessage *task);
bool is_done(struct worker *w);
bool is_abandoned(const struct worker *w, const struct TaskMessage *task);
void answer(struct worker *w, const struct TaskMessage *task, int32_t status, uint32_t rows);
void report(const struct worker *w, int64_t what, int64_t batch, uint32_t slot);
// Where a test has this process killed or stopped: before step `n` of "A task, from its cell to the bell".
void step(const struct worker *w, int n);
int64_t now_ns(void);
void sleep_ns(int64_t ns);
void add(_Atomic uint64_t *counter, uint64_t amount);

// ---- slot.c ----

// What there is to say of a task; writes itself into the slot's header.
struct slot {
  struct SlotHeader *header;
  unsigned char *payload;
  struct SampleRecord *records;
  uint32_t slot;
  uint64_t payload_at;  // in the segment
  struct SlotHead head;
  uint64_t used;  // of the payload
  uint64_t given_back;
};
struct slot open_slot(const struct worker *w, const struct TaskMessage *task);
// Room in the payload behind what is used; UINT64_MAX: too little, with the reason in `text`.
uint64_t place(const struct worker *w, struct slot *s, uint64_t bytes, char *text);
// A row-major tensor that isn't as declared, at an offset that `place` gave or a field's own.
void describe(struct slot *s, uint32_t index, const char *name, struct FieldRecord type, const int64_t *shape,
              int32_t ndim, uint64_t offset);
void note(struct slot *s, uint32_t position, int32_t outcome, uint32_t retries, int64_t substitute, const char *text);
void fail(const struct worker *w, struct slot *s, int64_t position, bool transient, const char *text,
          uint64_t traceback_bytes);
void close_slot(struct slot *s);
