// SPDX-License-Identifier: Apache-2.0
// A worker that makes samples for trainer.c, in either of two forms: by default the library calls get() for each sample;
// with any argument ("pull") the program takes tasks in a loop of its own.
#include <feedlane.h>
#include <stdio.h>

enum { FEATURES = 64 };

// Makes one sample. The seed depends on epoch and sample, not on the worker: use it for augmentation.
static void make_sample(int64_t index, uint64_t seed, float *x, int64_t *label) {
  const int64_t shift = (int64_t)(seed % 5);
  for (int i = 0; i < FEATURES; i++) x[i] = (float)((index + i + shift) % 17) / 16.0f;
  *label = index % 10;
}

// The callback form: writes one sample into its row of the batch.
static int32_t get(void *self, const feedlane_row *row, feedlane_error *error) {
  (void)self;
  (void)error;
  make_sample(row->index, row->seed, row->fields[0], row->fields[1]);
  return FEEDLANE_OK;
}

// The pull form, one task: writes every row of its batch.
static int32_t make_batch(const feedlane_task *task, feedlane_error *error) {
  float *x = task->tensors[0].data;
  int64_t *label = task->tensors[1].data;
  for (uint64_t row = 0; row < task->count; row++)
    make_sample(task->indices[row], task->seeds[row], x + row * FEATURES, label + row);
  return feedlane_task_commit(task, task->count, error);
}

// The pull form: takes tasks until the trainer wants no more.
static int32_t pull(int32_t fd, feedlane_error *error) {
  feedlane_worker *worker = NULL;
  int32_t status = feedlane_worker_attach(fd, NULL, FEEDLANE_FOREVER, &worker, error);
  if (status == FEEDLANE_OK) status = feedlane_worker_ready(worker, FEEDLANE_OK, NULL, error);
  while (status == FEEDLANE_OK || status == FEEDLANE_INTERRUPTED) {
    const feedlane_task *task;
    status = feedlane_worker_next(worker, FEEDLANE_FOREVER, &task, error);
    if (status == FEEDLANE_OK) status = make_batch(task, error);
  }
  feedlane_worker_destroy(&worker);
  return status;
}

int main(int argc, char **argv) {
  const int32_t fd = feedlane_worker_fd();
  if (fd < 0) {
    fprintf(stderr, "%s: to be started by a trainer\n", argv[0]);
    return 2;
  }
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_dataset dataset = {.size = sizeof dataset, .get = get};
  const int32_t status = argc > 1 ? pull(fd, &error) : feedlane_worker_run(fd, NULL, &dataset, &error);
  if (status < 0) {
    fprintf(stderr, "worker: %s: %s\n", feedlane_status_name(status), error.text);
    return 1;
  }
  return 0;
}
