// SPDX-License-Identifier: Apache-2.0
// docs/layout.md: "A task, from its cell to the bell", "Sleeping", "A bell".
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "bare.h"

int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void sleep_ns(int64_t ns) {
  const struct timespec time = {ns / 1000000000, ns % 1000000000};
  (void)nanosleep(&time, NULL);
}

void add(_Atomic uint64_t *counter, uint64_t amount) {
  const uint64_t before = atomic_load_explicit(counter, memory_order_relaxed);
  atomic_store_explicit(counter, before + amount, memory_order_relaxed);
}

void report(const struct worker *w, int64_t what, int64_t batch, uint32_t slot) {
  const struct report report = {what, getpid(), batch, w->welcome.worker, slot};
  if (w->orders.reports > 0) (void)!write((int)w->orders.reports, &report, sizeof report);
}

void step(const struct worker *w, int n) {
  const struct orders *o = &w->orders;
  if (n != o->at_step || w->answered != o->at_task || w->welcome.generation != 0) return;
  if (o->scribbles != 0) memset(w->data, 0xa5, 128);
  (void)raise((int)o->signal);
}

static uint64_t load(const _Atomic uint64_t *word, memory_order order) { return atomic_load_explicit(word, order); }

// ---- the end ----

static void look_for_trainer(struct worker *w) {
  const int64_t now = now_ns();
  if (w->welcome.tied != 0 || now - w->looked_ns < 1000000) return;
  w->looked_ns = now;
  struct pollfd entry = {w->trainer, POLLIN, 0};
  if (poll(&entry, 1, 0) == 1) w->trainer_gone = true;
}

bool is_done(struct worker *w) {
  return w->trainer_gone || load(&w->trainer_row->done_through, memory_order_acquire) > w->welcome.generation;
}

bool is_abandoned(const struct worker *w, const struct TaskMessage *task) {
  return task->id < load(&w->trainer_block->abandon_before, memory_order_relaxed);
}

// ---- cells ----

static const unsigned char *task_cell(const struct worker *w) {
  return w->task_ring + (w->p & (w->geometry.ring_capacity - 1)) * LOADER_CELL_BYTES;
}

static bool has_task(const struct worker *w) {
  return load((const void *)task_cell(w), memory_order_acquire) == w->p + 1;
}

// ---- sleeping ----

static void sleep_until_rung(struct worker *w) {
  atomic_store_explicit(&w->row->sleeping, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  if (!has_task(w) && !is_done(w)) {
    const int64_t before = now_ns();
    struct epoll_event events[4];
    const int count = epoll_wait(w->epoll, events, 4, -1);
    for (int i = 0; i < count; i++)
      if (events[i].data.fd != w->own_event) w->trainer_gone = true;
    add(&w->row->wait_ns, (uint64_t)(now_ns() - before));
  }
  atomic_store_explicit(&w->row->sleeping, 0, memory_order_relaxed);
}

// ---- a task ----

// The end of the range first: the beginning that is read behind it is of the same range, or of none that covers the task.
static bool is_revoked(const struct worker *w, uint64_t id) {
  const uint64_t until = load(&w->trainer_row->revoked_until, memory_order_acquire);
  if (w->orders.range_us > 0 && w->welcome.worker == 0) sleep_ns(w->orders.range_us * 1000);
  const uint64_t from = load(&w->trainer_row->revoked_from, memory_order_acquire);
  return from <= id && id < until;
}

static bool is_sound(const struct worker *w, const struct TaskMessage *task) {
  const struct Geometry *g = &w->geometry;
  return task->slot < g->slots && task->rows >= 1 && task->rows <= g->max_rows && task->state_bytes <= g->list_bytes;
}

bool take(struct worker *w, struct TaskMessage *task) {
  for (;;) {
    step(w, 1);
    look_for_trainer(w);
    if (is_done(w)) return false;
    step(w, 2);
    if (!has_task(w)) {
      sleep_until_rung(w);
      continue;
    }
    step(w, 3);
    memcpy(task, task_cell(w) + sizeof(uint64_t), sizeof *task);
    if (!is_sound(w, task)) return (void)complain("task.slot", task->slot, w->geometry.slots), false;
    step(w, 4);
    w->begun_ns = now_ns();
    atomic_store_explicit(&w->row->started_sample, 0, memory_order_relaxed);
    atomic_store_explicit(&w->row->started_ns, (uint64_t)w->begun_ns, memory_order_relaxed);
    atomic_store_explicit(&w->row->started_task, task->id, memory_order_relaxed);
    atomic_store_explicit(&w->row->begun_through, task->id, memory_order_release);
    step(w, 5);
    w->p++;
    atomic_store_explicit(&w->row->task_position, w->p, memory_order_release);
    step(w, 6);
    atomic_thread_fence(memory_order_seq_cst);
    step(w, 7);
    const bool is_another_s = is_revoked(w, task->id);
    step(w, 8);
    if (!is_another_s && !is_abandoned(w, task)) return true;
    if (is_another_s) report(w, report_declined, task->batch, task->slot);
    else add(&w->row->tasks, 1);
    answer(w, task, status_abandoned, 0);
  }
}

static void ring_trainer(const struct worker *w) {
  atomic_thread_fence(memory_order_seq_cst);
  if (atomic_load_explicit(&w->trainer_block->sleeping, memory_order_relaxed) == 0) return;
  const uint64_t nothing = 0;
  while (write(w->trainer_event, &nothing, sizeof nothing) < 0 && errno == EINTR) {
  }
}

void answer(struct worker *w, const struct TaskMessage *task, int32_t status, uint32_t rows) {
  step(w, 10);
  if (w->r - load(&w->trainer_row->result_position, memory_order_acquire) >= w->geometry.ring_capacity) {
    (void)complain("the result lane is full", w->r, w->geometry.ring_capacity);
    _exit(1);
  }
  const struct ResultMessage result = {
      task->id, task->slot, task->attempt, status, rows, (uint64_t)w->begun_ns, (uint64_t)now_ns()};
  unsigned char *cell = w->result_lane + (w->r & (w->geometry.ring_capacity - 1)) * LOADER_CELL_BYTES;
  memcpy(cell + sizeof(uint64_t), &result, sizeof result);
  w->r++;
  atomic_store_explicit((_Atomic uint64_t *)(void *)cell, w->r, memory_order_release);
  step(w, 11);
  atomic_store_explicit(&w->row->started_task, 0, memory_order_release);
  step(w, 12);
  ring_trainer(w);
  w->answered++;
}
