/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of callbacks that call exported Go functions: only C can take their addresses. */
#include "shim.h"

#include "_cgo_export.h"

static uintptr_t handle_of(const void *p) { return (uintptr_t)p; }

static int32_t open_dataset(void *user_data, const feedlane_worker_info *info, void **self, feedlane_error *err) {
  uintptr_t own = 0;
  const int32_t status = feedlaneGoOpen(handle_of(user_data), (feedlane_worker_info *)info, &own, err);
  *self = (void *)own;
  return status;
}

static int32_t get(void *self, const feedlane_row *row, feedlane_error *err) {
  return feedlaneGoGet(handle_of(self), (feedlane_row *)row, err);
}

static int32_t fetch(void *self, const feedlane_task *task, feedlane_error *err) {
  return feedlaneGoFetch(handle_of(self), (feedlane_task *)task, err);
}

static int32_t substitute(void *self, int64_t failed, uint64_t seed, uint32_t tries, int64_t *other,
                          feedlane_error *err) {
  (void)err;
  return feedlaneGoSubstitute(handle_of(self), failed, seed, tries, other);
}

static int32_t next(void *self, const feedlane_row *row, feedlane_error *err) {
  return feedlaneGoNext(handle_of(self), (feedlane_row *)row, err);
}

static int32_t restart(void *self, int64_t epoch, feedlane_error *err) {
  return feedlaneGoRestart(handle_of(self), epoch, err);
}

static int32_t save(void *self, void *buffer, uint64_t cap, uint64_t *bytes, feedlane_error *err) {
  return feedlaneGoSave(handle_of(self), buffer, cap, bytes, err);
}

static int32_t load(void *self, const void *buffer, uint64_t bytes, feedlane_error *err) {
  return feedlaneGoLoad(handle_of(self), (void *)buffer, bytes, err);
}

static void close_dataset(void *self) { feedlaneGoClose(handle_of(self)); }

int32_t feedlane_go_sample_failed(const feedlane_task *task, uint64_t position, const char *text, uint64_t text_bytes,
                                  int32_t transient, uintptr_t handle, int64_t *index, int64_t *wait_ns) {
  feedlane_error failure;
  feedlane_init(&failure, sizeof failure);
  failure.code = FEEDLANE_E_SAMPLE;
  feedlane_go_report(&failure, text, text_bytes, NULL, 0, transient, -1);
  return feedlane_task_sample_failed(task, position, &failure, substitute, (void *)handle, index, wait_ns, NULL);
}

void feedlane_go_dataset(uintptr_t handle, int32_t by_batches, int32_t iterable, int32_t saves,
                         feedlane_dataset *table) {
  feedlane_init(table, sizeof *table);
  table->user_data = (void *)handle;
  table->open = open_dataset;
  table->close = close_dataset;
  if (iterable) {
    table->next = next;
    table->restart = restart;
  } else {
    if (by_batches) table->fetch = fetch;
    else table->get = get;
    table->substitute = substitute;
  }
  if (saves) {
    table->save = save;
    table->load = load;
  }
}

static int32_t order_restart(void *user_data, int64_t epoch, uint64_t seed, feedlane_error *err) {
  return feedlaneGoOrderRestart(handle_of(user_data), epoch, seed, err);
}

static int32_t order_next(void *user_data, int64_t *indices, uint64_t cap, uint64_t *got, feedlane_error *err) {
  return feedlaneGoOrderNext(handle_of(user_data), indices, cap, got, err);
}

static int32_t order_save(void *user_data, void *buffer, uint64_t cap, uint64_t *bytes, feedlane_error *err) {
  return feedlaneGoOrderSave(handle_of(user_data), buffer, cap, bytes, err);
}

static int32_t order_load(void *user_data, const void *buffer, uint64_t bytes, feedlane_error *err) {
  return feedlaneGoOrderLoad(handle_of(user_data), (void *)buffer, bytes, err);
}

static void order_drop(void *user_data) { feedlaneGoOrderDrop(handle_of(user_data)); }

void feedlane_go_order(uintptr_t handle, int32_t saves, feedlane_sampler_callbacks *table) {
  feedlane_init(table, sizeof *table);
  table->user_data = (void *)handle;
  table->restart = order_restart;
  table->next = order_next;
  table->drop = order_drop;
  if (saves) {
    table->save = order_save;
    table->load = order_load;
  }
}
