// SPDX-License-Identifier: Apache-2.0
// docs/layout.md: "SlotHeader" and what it consists of, "Payload".
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "bare.h"

static uint64_t up(uint64_t n, uint64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct slot open_slot(const struct worker *w, const struct TaskMessage *task) {
  struct slot s;
  memset(&s, 0, sizeof s);
  s.header = (struct SlotHeader *)(void *)(w->data + w->plan.slot_headers) + task->slot;
  s.payload_at = w->plan.payload + task->slot * w->plan.payload_stride;
  s.payload = w->data + s.payload_at;
  s.records = (struct SampleRecord *)(void *)(w->data + w->plan.records) + (size_t)task->slot * w->geometry.record_rows;
  s.head.task_id = task->id;
  s.head.tensor_count = w->geometry.field_count;
  s.head.failed_position = -1;
  s.used = w->declared_bytes;
  s.slot = task->slot;
  s.given_back = atomic_load_explicit(&w->trainer_block->given_back, memory_order_acquire);
  return s;
}

void close_slot(struct slot *s) { s->header->head = s->head; }

// Memory for the first `end` bytes of the payload, before they are touched; else false, with the reason in `text`. What was
// reserved in an earlier task is there as long as the trainer has given nothing back since. A signal that is pending may undo
// a fallocate.
static bool reserve(const struct worker *w, const struct slot *s, uint64_t end, char *text) {
  struct reservation *r = &w->reservations[s->slot];
  uint64_t there = up(w->geometry.reserved_bytes, PAYLOAD_ALIGNMENT);
  if (r->given_back == s->given_back && r->bytes > there) there = r->bytes;
  end = up(end, PAYLOAD_ALIGNMENT);
  if (end <= there) return true;
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  (void)sigprocmask(SIG_SETMASK, &all, &before);
  const int error = fallocate(w->data_fd, 0, (off_t)(s->payload_at + there), (off_t)(end - there)) == 0 ? 0 : errno;
  (void)sigprocmask(SIG_SETMASK, &before, NULL);
  if (error != 0) {
    (void)snprintf(text, TEXT_BYTES, "reserving %llu bytes: %s", (unsigned long long)end, strerror(error));
    return false;
  }
  *r = (struct reservation){end, s->given_back};
  report(w, report_reserved, -1, s->slot);
  return true;
}

uint64_t place(const struct worker *w, struct slot *s, uint64_t bytes, char *text) {
  const uint64_t at = up(s->used, TENSOR_ALIGNMENT);
  if (at > w->geometry.slot_bytes || bytes > w->geometry.slot_bytes - at) {
    (void)snprintf(text, TEXT_BYTES, "a slot has %llu bytes, needs %llu", (unsigned long long)w->geometry.slot_bytes,
                   (unsigned long long)(at + bytes));
    return UINT64_MAX;
  }
  if (!reserve(w, s, at + bytes, text)) return UINT64_MAX;
  s->used = at + bytes;
  return at;
}

void describe(struct slot *s, uint32_t index, const char *name, struct FieldRecord type, const int64_t *shape,
              int32_t ndim, uint64_t offset) {
  struct TensorRecord r;
  memset(&r, 0, sizeof r);
  (void)snprintf(r.name, sizeof r.name, "%s", name);
  r.code = type.code;
  r.bits = type.bits;
  r.lanes = type.lanes;
  r.ndim = ndim;
  r.offset = offset;
  int64_t stride = 1;
  uint64_t count = 1;
  for (int32_t d = ndim; d-- > 0;) {
    r.shape[d] = shape[d];
    r.strides[d] = stride;
    stride *= shape[d] > 0 ? shape[d] : 1;
    count *= (uint64_t)shape[d];
  }
  r.bytes = count * (type.bits / 8u) * type.lanes;
  s->header->tensors[index] = r;
  s->head.shaped |= (uint64_t)1 << index;
  if (index >= s->head.tensor_count) s->head.tensor_count = index + 1;
}

void note(struct slot *s, uint32_t position, int32_t outcome, uint32_t retries, int64_t substitute, const char *text) {
  struct SampleRecord r;
  memset(&r, 0, sizeof r);
  r.position = position;
  r.outcome = outcome;
  r.code = status_sample;
  r.retries = retries;
  r.substitute = substitute;
  (void)snprintf(r.text, sizeof r.text, "%s", text);
  s->records[s->head.record_count++] = r;
}

void fail(const struct worker *w, struct slot *s, int64_t position, bool transient, const char *text,
          uint64_t traceback_bytes) {
  const uint32_t records = s->head.record_count;
  const uint64_t id = s->head.task_id;
  memset(&s->head, 0, sizeof s->head);
  s->head.task_id = id;
  s->head.record_count = records;
  s->head.failed_position = position;
  s->head.transient = transient;
  uint64_t bytes = traceback_bytes < DETAIL_BYTES ? traceback_bytes : DETAIL_BYTES;
  if (bytes > w->geometry.slot_bytes) bytes = w->geometry.slot_bytes;
  char reason[TEXT_BYTES];
  if (!reserve(w, s, bytes, reason)) bytes = 0;
  for (uint64_t i = 0; i < bytes; i++) s->payload[i] = (unsigned char)('a' + i % 26);
  s->head.detail_bytes = bytes;
  struct SlotText line;
  memset(&line, 0, sizeof line);
  (void)snprintf(line.text, sizeof line.text, "%s", text);
  s->header->text = line;
}
