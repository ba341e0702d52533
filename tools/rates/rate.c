// SPDX-License-Identifier: Apache-2.0
// Batches a second of one 4 KiB sample each, copied from memory that is there. See tools/bench/languages.py.
// Usage: rate BATCHES; a worker is this program, started again.
#include <feedlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ELEMENTS = 512, PREFETCH = 8 };

static int64_t ready[ELEMENTS];

static int32_t get(void *self, const feedlane_row *row, feedlane_error *error) {
  (void)self;
  (void)error;
  memcpy(row->fields[0], ready, sizeof ready);
  return FEEDLANE_OK;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int32_t run_epoch(feedlane_loader *loader, int64_t epoch, int64_t *batches, feedlane_error *error) {
  int32_t status = feedlane_loader_begin(loader, epoch, error);
  int64_t sum = 0;
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (*batches = 0; status >= 0; ++*batches) {
    do status = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, error);
    while (status == FEEDLANE_INTERRUPTED);
    if (status != FEEDLANE_OK) break;
    sum += *(const int64_t *)batch.tensors[0].data;
    feedlane_batch_release(loader, batch.token);
  }
  return status == FEEDLANE_END && sum == *batches ? FEEDLANE_OK : status;
}

int main(int argc, char **argv) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  ready[0] = 1;
  const feedlane_dataset dataset = {.size = sizeof dataset, .get = get};
  const int fd = feedlane_worker_fd();
  if (fd >= 0) return feedlane_worker_run(fd, NULL, &dataset, &error) < 0;
  if (argc != 2) return 2;
  feedlane_sampler *sampler = NULL;
  feedlane_loader *loader = NULL;
  const feedlane_field field = {.size = sizeof field, .name = "x", .dtype = {0, 64, 1}, .ndim = 1, .shape = {ELEMENTS}};
  const feedlane_sampler_config order = {
      .size = sizeof order, .kind = FEEDLANE_SAMPLER_SEQUENTIAL, .length = atoll(argv[1])};
  int32_t status = feedlane_sampler_create(&order, &sampler, &error);
  const feedlane_loader_config config = {.size = sizeof config,
                                         .sampler = sampler,
                                         .fields = &field,
                                         .field_count = 1,
                                         .workers = 1,
                                         .prefetch_factor = PREFETCH,
                                         .keep_workers = 1};
  if (status == FEEDLANE_OK) status = feedlane_loader_create(&config, &loader, &error);
  int64_t batches = 0;
  if (status == FEEDLANE_OK) status = run_epoch(loader, 0, &batches, &error);  // the worker starts
  const double began = now();
  if (status == FEEDLANE_OK) status = run_epoch(loader, 1, &batches, &error);
  if (status == FEEDLANE_OK) printf("%.0f\n", (double)batches / (now() - began));
  else fprintf(stderr, "rate: %s\n", error.text);
  feedlane_loader_destroy(&loader);
  feedlane_sampler_destroy(&sampler);
  return status != FEEDLANE_OK;
}
