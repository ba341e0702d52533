/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of callbacks that call exported Go functions: only C can take their addresses. */
#include "shim.h"

#include "_cgo_export.h"

static uintptr_t handle_of(const void *p) { return (uintptr_t)p; }

static int32_t open_dataset(void *user_data, const feedlane_worker_info *info, void **self, feedlane_error *err) {
  *self = user_data;
  return feedlaneGoOpen(handle_of(user_data), (feedlane_worker_info *)info, err);
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

static void close_dataset(void *self) { feedlaneGoClose(handle_of(self)); }

void feedlane_go_dataset(uintptr_t handle, int32_t by_batches, feedlane_dataset *table) {
  feedlane_init(table, sizeof *table);
  table->user_data = (void *)handle;
  table->open = open_dataset;
  if (by_batches) table->fetch = fetch;
  else table->get = get;
  table->substitute = substitute;
  table->close = close_dataset;
}
