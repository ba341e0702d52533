// SPDX-License-Identifier: Apache-2.0
// A training loop: two worker processes make batches in shared memory, this program reads every byte of them and prints a
// checksum. worker.c is the other side.
// Usage: trainer [WORKER [ARGUMENT]...]; without WORKER: the program "worker" in the folder of this one.
#include <feedlane.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLES = 1000, FEATURES = 64, BATCH_SIZE = 32, EPOCHS = 3, SEED = 7 };

static void print_error(int32_t status, const feedlane_error *error) {
  fprintf(stderr, "trainer: %s: %s (%s: found %" PRId64 ", needed %" PRId64 "; worker %" PRId32 ")\n",
          feedlane_status_name(status), error->text, error->argument, error->found, error->needed, error->worker);
}

// FNV-1a, continued from `hash`.
static uint64_t fnv1a(uint64_t hash, const unsigned char *bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static int32_t create_loader(const char *const *worker, feedlane_loader **loader, feedlane_error *error) {
  feedlane_sampler_config order = {
      .size = sizeof order, .kind = FEEDLANE_SAMPLER_RANDOM, .length = SAMPLES, .seed = SEED};
  feedlane_sampler *sampler = NULL;
  int32_t status = feedlane_sampler_create(&order, &sampler, error);
  if (status < 0) return status;
  // A sample is 64 floats and an integer. A dtype is DLPack's: type code, bits, lanes.
  feedlane_field fields[] = {
      {.size = sizeof fields[0], .name = "x", .dtype = {2, 32, 1}, .ndim = 1, .shape = {FEATURES}},
      {.size = sizeof fields[0], .name = "label", .dtype = {0, 64, 1}}};
  // Members that are left out are zero, which means the default.
  feedlane_loader_config config = {.size = sizeof config,
                                   .sampler = sampler,
                                   .fields = fields,
                                   .field_count = 2,
                                   .batch_size = BATCH_SIZE,
                                   .seed = SEED,
                                   .workers = 2,
                                   .keep_workers = 1,
                                   .argv = worker};
  status = feedlane_loader_create(&config, loader, error);
  feedlane_sampler_destroy(&sampler);  // the loader has a copy
  return status;
}

// Adds the bytes of one epoch to `hash`.
static int32_t run_epoch(feedlane_loader *loader, int64_t epoch, uint64_t *hash, feedlane_error *error) {
  int32_t status = feedlane_loader_begin(loader, epoch, error);
  if (status < 0) return status;
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (;;) {
    status = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, error);
    if (status == FEEDLANE_END) return FEEDLANE_OK;
    if (status == FEEDLANE_INTERRUPTED) continue;  // a signal arrived; nothing is lost
    if (status != FEEDLANE_OK) return status;
    for (uint64_t t = 0; t < batch.tensor_count; t++)
      *hash = fnv1a(*hash, batch.tensors[t].data, batch.tensors[t].bytes);
    feedlane_batch_release(loader, batch.token);  // its memory goes back to the workers
  }
}

int main(int argc, char **argv) {
  // Default: "worker" in the folder of this program.
  const char *slash = strrchr(argv[0], '/');
  const int folder_length = slash == NULL ? 0 : (int)(slash + 1 - argv[0]);
  char path[4096];
  snprintf(path, sizeof path, "%.*sworker", folder_length, argv[0]);
  const char *const default_worker[] = {path, NULL};
  const char *const *worker = argc > 1 ? (const char *const *)(argv + 1) : default_worker;

  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_loader *loader = NULL;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  int32_t status = create_loader(worker, &loader, &error);
  for (int64_t epoch = 0; epoch < EPOCHS && status == FEEDLANE_OK; epoch++)
    status = run_epoch(loader, epoch, &hash, &error);
  feedlane_loader_destroy(&loader);
  if (status != FEEDLANE_OK) {
    print_error(status, &error);
    return 1;
  }
  printf("checksum: %016" PRIx64 "\n", hash);
  return 0;
}
