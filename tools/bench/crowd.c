// SPDX-License-Identifier: Apache-2.0
// A trainer with many workers whose batches take them long: what tools/bench/crowd.py counts the instructions of.
//
//   crowd WORKERS BATCHES
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <feedlane.h>

// What a batch takes its worker. Together the workers make one each 40 us, which is faster than the trainer takes them under
// an emulator.
static struct timespec work;

static int32_t open_dataset(void *context, const feedlane_worker_info *info, void **state, feedlane_error *error) {
  (void)context;
  (void)state;
  (void)error;
  if (info->config_bytes != sizeof work) return FEEDLANE_E_ARGUMENT;
  memcpy(&work, info->config, sizeof work);
  return FEEDLANE_OK;
}

static int32_t fetch(void *state, const feedlane_task *task, feedlane_error *error) {
  (void)state;
  (void)error;
  (void)nanosleep(&work, NULL);
  memset(task->tensors[0].data, 1, 64);
  return FEEDLANE_OK;
}

static feedlane_error error;

static void check(const char *call, int32_t status) {
  if (status >= 0) return;
  fprintf(stderr, "crowd: %s: %s\n", call, error.text);
  exit(1);
}

static int64_t take_all(feedlane_loader *loader) {
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  int64_t count = 0;
  for (;; count++) {
    const int32_t status = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &error);
    if (status == FEEDLANE_END) return count;
    check("feedlane_loader_next", status);
    (void)feedlane_batch_release(loader, batch.token);
  }
}

// What is counted, by their names. counted_start: the first epoch's, which starts the workers.
__attribute__((noinline)) void counted_start(feedlane_loader *loader) {
  check("feedlane_loader_begin", feedlane_loader_begin(loader, 0, &error));
}
__attribute__((noinline)) void counted_begin(feedlane_loader *loader) {
  check("feedlane_loader_begin", feedlane_loader_begin(loader, 1, &error));
}
__attribute__((noinline)) int64_t counted_batches(feedlane_loader *loader) { return take_all(loader); }

static int64_t number(const char *text) {
  char *end = NULL;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value <= 0) {
    fprintf(stderr, "crowd: %s is not a positive number\n", text);
    exit(2);
  }
  return value;
}

int main(int argc, char **argv) {
  feedlane_init(&error, sizeof error);
  feedlane_dataset dataset;
  feedlane_init(&dataset, sizeof dataset);
  dataset.open = open_dataset;
  dataset.fetch = fetch;
  const int fd = feedlane_worker_fd();
  if (fd >= 0) return feedlane_worker_run(fd, NULL, &dataset, &error) < 0;
  if (argc < 3) {
    fprintf(stderr, "usage: crowd WORKERS BATCHES\n");
    return 2;
  }

  feedlane_sampler_config order;
  feedlane_init(&order, sizeof order);
  order.kind = FEEDLANE_SAMPLER_SEQUENTIAL;
  order.length = number(argv[2]);
  feedlane_sampler *sampler = NULL;
  check("feedlane_sampler_create", feedlane_sampler_create(&order, &sampler, &error));
  feedlane_field field;
  feedlane_init(&field, sizeof field);
  field.name = "bytes";
  field.dtype = (feedlane_dtype){1, 8, 1};
  field.ndim = 1;
  field.shape[0] = 64;
  feedlane_loader_config config;
  feedlane_init(&config, sizeof config);
  config.sampler = sampler;
  config.fields = &field;
  config.field_count = 1;
  config.batch_size = FEEDLANE_UNBATCHED;
  config.workers = (int32_t)number(argv[1]);
  config.start = FEEDLANE_START_SPAWN;
  config.keep_workers = 1;
  work.tv_nsec = config.workers * 40000L;
  config.worker_config = &work;
  config.worker_config_bytes = sizeof work;
  feedlane_loader *loader = NULL;
  check("feedlane_loader_create", feedlane_loader_create(&config, &loader, &error));
  (void)feedlane_sampler_destroy(&sampler);

  counted_start(loader);
  (void)take_all(loader);  // every worker has started
  counted_begin(loader);
  printf("%lld\n", (long long)counted_batches(loader));
  return feedlane_loader_destroy(&loader) < 0;
}
