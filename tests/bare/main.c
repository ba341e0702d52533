// SPDX-License-Identifier: Apache-2.0
// A data set, and the loop that makes batches of it. A sample is a function of its index alone: field "index" is the index,
// "seed" the row's seed, byte k of any other field (index + k) mod 256.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bare.h"

// ---- seeds: docs/layout.md, "Seeds" ----

#define GAMMA 0x9e3779b97f4a7c15u

static uint64_t scatter(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static uint64_t seed_of(uint64_t base, int64_t epoch, uint64_t n) {
  return scatter(scatter(scatter(base + GAMMA) + (uint64_t)epoch * GAMMA) + (n + 1) * GAMMA);
}

// ---- a batch in the making ----

struct shard {
  uint64_t taken;  // samples, in this epoch
  uint64_t at;     // the next one's number
  bool is_exhausted;
};

struct batch {
  struct worker *w;
  const struct TaskMessage *task;
  struct slot slot;
  struct shard *shard;
  uint32_t rows;      // made
  uint32_t position;  // samples dealt with
};

enum outcome { made, failed, unwanted, ended };

static bool every(int64_t n, int64_t index) { return n > 0 && index % n == n - 1; }

static void write_row(const struct batch *b, int64_t index, uint64_t seed) {
  for (uint32_t f = 0; f < b->w->geometry.field_count; f++) {
    const struct field *field = &b->w->fields[f];
    unsigned char *row = b->slot.payload + field->at + b->rows * field->row_bytes;
    if (strcmp(field->record->name, "index") == 0) memcpy(row, &index, sizeof index);
    else if (strcmp(field->record->name, "seed") == 0) memcpy(row, &seed, sizeof seed);
    else
      for (uint64_t k = 0; k < field->row_bytes; k++) row[k] = (unsigned char)((uint64_t)index + k);
  }
}

static void wait_at_gate(const struct orders *o) {
  struct pollfd entry = {(int)o->gate, POLLIN, 0};
  (void)poll(&entry, 1, -1);
}

// docs/layout.md, "Policies". `key` is what the orders count by: the index, or the number in the shard.
static enum outcome make_sample(struct batch *b, int64_t index, int64_t key, uint64_t seed) {
  const struct Geometry *g = &b->w->geometry;
  const struct orders *o = &b->w->orders;
  uint32_t retries = 0;
  if (every(o->slow_every, key)) sleep_ns(o->slow_us * 1000);
  if (every(o->retry_every, key) && g->retries > 0) {
    sleep_ns((int64_t)g->retry_backoff_ns);
    retries = 1;
  }
  if (every(o->retry_every, key) && retries == 0) {
    fail(b->w, &b->slot, b->position, true, "not at the first try", (uint64_t)o->traceback_bytes);
    return failed;
  }
  if (!every(o->fail_every, key)) {
    write_row(b, index, seed);
    if (retries != 0) note(&b->slot, b->position, outcome_retried, retries, 0, "not at the first try");
    b->rows++;
  } else if ((g->flags & flag_substitute) != 0) {
    write_row(b, index + 1, seed);
    note(&b->slot, b->position, outcome_substituted, retries, index + 1, "the next one instead");
    b->rows++;
  } else if ((g->flags & flag_skip) != 0) {
    note(&b->slot, b->position, outcome_skipped, retries, 0, "left out");
  } else {
    char text[64];
    (void)snprintf(text, sizeof text, "sample %lld can't be made", (long long)index);
    fail(b->w, &b->slot, b->position, false, text, (uint64_t)o->traceback_bytes);
    return failed;
  }
  b->position++;
  return made;
}

// Between two samples.
static enum outcome look_up(const struct batch *b) {
  atomic_store_explicit(&b->w->row->started_sample, b->position, memory_order_relaxed);
  if (is_done(b->w)) return ended;
  return is_abandoned(b->w, b->task) ? unwanted : made;
}

static enum outcome make_map(struct batch *b) {
  const struct worker *w = b->w;
  const int64_t *indices = (const void *)(w->control + w->plan.index_lists + b->task->slot * w->plan.list_stride);
  for (uint32_t i = 0; i < b->task->rows; i++) {
    const uint64_t n = (uint64_t)b->task->first_position + (uint64_t)i * b->task->stride;
    enum outcome o = make_sample(b, indices[i], indices[i], seed_of(w->geometry.base_seed, b->task->epoch, n));
    if (o == made && i + 1 < b->task->rows) o = look_up(b);
    if (o != made) return o;
  }
  return made;
}

// ---- shards: docs/layout.md, "Shards" ----

static enum outcome start_shard(const struct batch *b) {
  struct worker *w = b->w;
  struct shard *shard = b->shard;
  *shard = (struct shard){.taken = (uint64_t)b->task->first_position};
  if (b->task->state_bytes == ORDERS_STATE_BYTES) {
    memcpy(&shard->at, w->control + w->plan.index_lists + b->task->slot * w->plan.list_stride, ORDERS_STATE_BYTES);
    return made;
  }
  for (; shard->at < shard->taken; shard->at++) {
    if (w->orders.pass_us > 0) sleep_ns(w->orders.pass_us * 1000);
    add(&w->row->passed_over, 1);
    const enum outcome o = look_up(b);
    if (o != made) return o;
  }
  if (shard->taken != 0) report(w, report_passed_over, (int64_t)shard->taken, b->task->slot);
  return made;
}

// Samples of shard w of n are w, w + n, w + 2n ...
static enum outcome make_of_shard(struct batch *b) {
  const struct worker *w = b->w;
  struct shard *shard = b->shard;
  const uint64_t number = (uint64_t)w->geometry.rank * w->geometry.workers + w->welcome.worker;
  const uint64_t shards = (uint64_t)w->geometry.world * w->geometry.workers;
  while (b->rows < b->task->rows && shard->at < (uint64_t)w->orders.shard_samples &&
         (w->geometry.record_rows == 0 || b->slot.head.record_count < w->geometry.record_rows)) {
    const int64_t index = (int64_t)(shard->at * shards + number);
    const uint64_t seed = seed_of(w->geometry.base_seed + number, b->task->epoch, shard->taken + b->position);
    enum outcome o = make_sample(b, index, (int64_t)shard->at, seed);
    shard->at++;
    if (o == made) o = look_up(b);
    if (o != made) return o;
  }
  if (b->rows == b->task->rows) return made;
  shard->is_exhausted = shard->at == (uint64_t)w->orders.shard_samples;
  if (shard->is_exhausted && (w->geometry.flags & flag_drop_last) != 0) b->rows = 0;
  return made;
}

static void save_shard(struct batch *b) {
  char text[TEXT_BYTES];
  const uint64_t at = place(b->w, &b->slot, ORDERS_STATE_BYTES, text);
  if (at == UINT64_MAX) return;
  memcpy(b->slot.payload + at, &b->shard->at, ORDERS_STATE_BYTES);
  b->slot.head.has_state = 1;
  b->slot.head.state_offset = at;
  b->slot.head.state_bytes = ORDERS_STATE_BYTES;
}

// ---- what lies beside the declared tensors ----

// The last declared field gets rows of another width, behind it comes a tensor "batch", and a line of metadata.
static enum outcome shape(struct batch *b) {
  const struct worker *w = b->w;
  const uint32_t last = w->geometry.field_count - 1;
  const struct field *f = &w->fields[last];
  const uint64_t width = w->orders.shaped == 1 ? f->row_bytes / 2 : (uint64_t)w->orders.wide_bytes;
  char text[TEXT_BYTES] = "";
  uint64_t at = w->orders.shaped == 1 ? f->at : place(w, &b->slot, width * b->rows, text);
  const uint64_t extra = at == UINT64_MAX ? at : place(w, &b->slot, 4 * (uint64_t)b->rows, text);
  char line[64];
  const int length = snprintf(line, sizeof line, "batch %lld", (long long)b->task->batch);
  const uint64_t metadata = extra == UINT64_MAX ? extra : place(w, &b->slot, (uint64_t)length, text);
  if (metadata == UINT64_MAX) {
    fail(w, &b->slot, -1, false, text, 0);
    return failed;
  }
  for (uint32_t row = 0; row < b->rows; row++) {
    int64_t index;
    memcpy(&index, b->slot.payload + w->fields[0].at + row * w->fields[0].row_bytes, sizeof index);
    for (uint64_t k = 0; k < width; k++) b->slot.payload[at + row * width + k] = (unsigned char)((uint64_t)index + k);
    const int32_t number = (int32_t)b->task->batch;
    memcpy(b->slot.payload + extra + 4 * row, &number, sizeof number);
  }
  memcpy(b->slot.payload + metadata, line, (size_t)length);
  b->slot.head.metadata_offset = metadata;
  b->slot.head.metadata_bytes = (uint64_t)length;
  describe(&b->slot, last, f->record->name, *f->record, (int64_t[]){b->rows, (int64_t)width}, 2, at);
  const struct FieldRecord i32 = {.code = 0, .bits = 32, .lanes = 1};
  describe(&b->slot, last + 1, "batch", i32, (int64_t[]){b->rows}, 1, extra);
  return made;
}

// ---- a task ----

static void count(struct worker *w, int32_t status, const struct batch *b) {
  add(&w->row->tasks, 1);
  add(&w->row->samples, status == status_ok ? b->rows : 0);
  add(&w->row->errors, status < 0);
  add(&w->row->work_ns, (uint64_t)(now_ns() - w->begun_ns));
}

static enum outcome make(struct batch *b) {
  const struct orders *o = &b->w->orders;
  if (o->gate > 0 && o->leave_after == 0 && b->task->batch == o->gate_batch) wait_at_gate(o);
  if ((b->w->geometry.flags & flag_iterable) == 0) return make_map(b);
  if ((b->task->flags & task_first) != 0) {
    const enum outcome started = start_shard(b);
    if (started != made) return started;
  }
  return b->shard->is_exhausted ? made : make_of_shard(b);
}

// False: the worker was asked to end, and leaves the task without an answer.
static bool run_task(struct worker *w, const struct TaskMessage *task, struct shard *shard) {
  const bool is_iterable = (w->geometry.flags & flag_iterable) != 0;
  struct batch b = {.w = w, .task = task, .shard = shard};
  b.slot = open_slot(w, task);
  report(w, report_began, task->batch, task->slot);
  step(w, 9);
  enum outcome o = make(&b);
  if (o == made && b.rows != 0 && w->orders.shaped != 0) o = shape(&b);
  if (o == ended) return false;
  int32_t status = o == failed ? status_sample : o == unwanted ? status_abandoned : status_ok;
  uint32_t rows = b.rows;
  if (o == failed) rows = is_iterable ? b.position + 1 : 0;
  if (o == made && is_iterable && rows == 0 && b.slot.head.record_count == 0) status = status_end;
  if (o == unwanted) rows = 0;
  if (status == status_ok && is_iterable && w->orders.saves != 0) save_shard(&b);
  shard->taken += o == failed ? rows : b.position;
  if (w->orders.breach == breach_shaped_bit) b.slot.head.shaped |= UINT64_C(1) << b.slot.head.tensor_count;
  if (status == status_ok || status == status_sample) close_slot(&b.slot);
  count(w, status, &b);
  answer(w, task, status, rows);
  return true;
}

int main(int argc, char **argv) {
  static struct worker w;
  const char *fd = getenv("FEEDLANE_WORKER_FD");
  if (fd == NULL) return 1;
  const bool stays = argc > 1 && strcmp(argv[1], "impostor-stays") == 0;
  w.is_impostor = stays || (argc > 1 && strcmp(argv[1], "impostor") == 0);
  if (attach(&w, atoi(fd)) != 0) {
    give_up(&w);
    if (stays) (void)pause();
    return 1;
  }
  report(&w, report_attached, -1, 0);
  const int64_t breach = w.orders.breach;
  if (breach != breach_never_ready && say_ready(&w, breach == breach_ready_positive, "") != 0) return 0;
  if (breach == breach_ready_twice && say_ready(&w, 0, "") != 0) return 0;
  struct shard shard = {0, 0, false};
  struct TaskMessage task;
  while (w.orders.leave_after == 0 || w.answered < w.orders.leave_after)
    if (!take(&w, &task) || !run_task(&w, &task, &shard)) return 0;
  leave(&w);
  wait_at_gate(&w.orders);
  return 0;
}
