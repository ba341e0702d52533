// SPDX-License-Identifier: Apache-2.0
// The worker program of program_test.py. A sample has one field, its index.
// Usage: program_worker rows | flaky | stuck | killed | shard
#include <feedlane.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SHARD_SAMPLES = 6, BAD_INDEX = 5 };

static const char *mode;
static const feedlane_worker_info *worker;
static int64_t position;
static int failures;

static int32_t open_worker(void *user_data, const feedlane_worker_info *info, void **self, feedlane_error *error) {
  (void)user_data;
  (void)error;
  *self = NULL;
  worker = info;
  return FEEDLANE_OK;
}

// Fails at BAD_INDEX, in the way that the mode names.
static int32_t get(void *self, const feedlane_row *row, feedlane_error *error) {
  (void)self;
  if (row->index == BAD_INDEX && strcmp(mode, "flaky") == 0 && failures++ == 0) {
    error->transient = 1;
    snprintf(error->text, sizeof error->text, "the store is busy");
    return FEEDLANE_E_SAMPLE;
  }
  if (row->index == BAD_INDEX && worker->generation == 0) {
    if (strcmp(mode, "killed") == 0) raise(SIGKILL);
    while (strcmp(mode, "stuck") == 0) pause();
  }
  memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

// All rows at once, with the number of the batch and worker_config as metadata.
static int32_t fetch(void *self, const feedlane_task *task, feedlane_error *error) {
  (void)self;
  char text[256];
  const int length = snprintf(text, sizeof text, "batch %d, config %.*s", (int)task->batch, (int)worker->config_bytes,
                              worker->config_bytes == 0 ? "" : (const char *)worker->config);
  memcpy(task->tensors[0].data, task->indices, task->count * sizeof *task->indices);
  return feedlane_task_store(task, FEEDLANE_STORE_METADATA, text, (uint64_t)length, error);
}

static int32_t restart(void *self, int64_t epoch, feedlane_error *error) {
  (void)self;
  (void)epoch;
  (void)error;
  position = 0;
  return FEEDLANE_OK;
}

// Samples 0, 1, ... of all shards together, dealt to the shards.
static int32_t next(void *self, const feedlane_row *row, feedlane_error *error) {
  (void)self;
  (void)error;
  const int64_t sample = position++ * worker->shards + worker->shard;
  if (sample >= SHARD_SAMPLES) return FEEDLANE_END;
  memcpy(row->fields[0], &sample, sizeof sample);
  return FEEDLANE_OK;
}

int main(int argc, char **argv) {
  const int32_t fd = feedlane_worker_fd();
  if (argc != 2 || fd < 0) return 2;
  mode = argv[1];
  feedlane_dataset dataset = {.size = sizeof dataset, .open = open_worker, .get = get};
  if (strcmp(mode, "rows") == 0) dataset.fetch = fetch;
  if (strcmp(mode, "shard") == 0) {
    dataset.next = next;
    dataset.restart = restart;
  }
  return feedlane_worker_run(fd, NULL, &dataset, NULL) < 0;
}
