// SPDX-License-Identifier: Apache-2.0
// Reads ten epochs of digits, made by two forked workers, and prints one number for all their bytes: see examples/README.md.
// Usage: digest FOLDER_OF_THE_DIGITS
#include <feedlane.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS = 1797, PIXELS = 64, BATCH_SIZE = 64, EPOCHS = 10, SEED = 1 };

// The data set: read once, before the library forks the workers.
static unsigned char images[DIGITS * PIXELS];
static unsigned char labels[DIGITS];

// Reads what follows the header of an IDX file. Returns 1, or 0 after printing an error.
static int read_file(const char *folder, const char *name, long header_bytes, unsigned char *to, size_t bytes) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  const int good = file != NULL && fseek(file, header_bytes, SEEK_SET) == 0 && fread(to, 1, bytes, file) == bytes;
  if (file != NULL) fclose(file);
  if (!good) fprintf(stderr, "digest: %s can't be read\n", path);
  return good;
}

// Writes one sample into its row of the batch. Runs in a worker.
static int32_t get(void *self, const feedlane_row *row, feedlane_error *error) {
  (void)self;
  (void)error;
  const int64_t label = labels[row->index];
  memcpy(row->fields[0], images + row->index * PIXELS, PIXELS);
  memcpy(row->fields[1], &label, sizeof label);
  return FEEDLANE_OK;
}

// FNV-1a, continued from `hash`.
static uint64_t fnv1a(uint64_t hash, const unsigned char *bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static int32_t create_loader(feedlane_loader **loader, feedlane_error *error) {
  feedlane_sampler_config order = {
      .size = sizeof order, .kind = FEEDLANE_SAMPLER_RANDOM, .length = DIGITS, .seed = SEED};
  feedlane_sampler *sampler = NULL;
  int32_t status = feedlane_sampler_create(&order, &sampler, error);
  if (status < 0) return status;
  feedlane_dataset dataset = {.size = sizeof dataset, .get = get};
  feedlane_field fields[] = {
      {.size = sizeof fields[0], .name = "image", .dtype = {1, 8, 1}, .ndim = 2, .shape = {8, 8}},
      {.size = sizeof fields[0], .name = "label", .dtype = {0, 64, 1}}};
  feedlane_loader_config config = {.size = sizeof config,
                                   .sampler = sampler,
                                   .dataset = &dataset,
                                   .fields = fields,
                                   .field_count = 2,
                                   .batch_size = BATCH_SIZE,
                                   .workers = 2,
                                   .start = FEEDLANE_START_FORK,
                                   .keep_workers = 1};
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
    feedlane_batch_release(loader, batch.token);
  }
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: digest FOLDER_OF_THE_DIGITS\n");
    return 2;
  }
  if (!read_file(argv[1], "optdigits-images-idx3-ubyte", 16, images, sizeof images)) return 1;
  if (!read_file(argv[1], "optdigits-labels-idx1-ubyte", 8, labels, sizeof labels)) return 1;

  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_loader *loader = NULL;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  int32_t status = create_loader(&loader, &error);
  for (int64_t epoch = 0; epoch < EPOCHS && status == FEEDLANE_OK; epoch++)
    status = run_epoch(loader, epoch, &hash, &error);
  feedlane_loader_destroy(&loader);
  if (status != FEEDLANE_OK) {
    fprintf(stderr, "digest: %s: %s\n", feedlane_status_name(status), error.text);
    return 1;
  }
  printf("digest: %016" PRIx64 "\n", hash);
  return 0;
}
