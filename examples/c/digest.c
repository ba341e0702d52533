// SPDX-License-Identifier: Apache-2.0
// Ten epochs of digits, made by two forked workers, in one number: see examples/README.md.
// Usage: digest FOLDER_OF_THE_DIGITS
#include <feedlane.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DIGITS = 1797, PIXELS = 64, BATCH = 64, EPOCHS = 10 };

static unsigned char images[DIGITS * PIXELS], labels[DIGITS];

static int complain(int32_t status, const feedlane_error *e) {
  return fprintf(stderr, "digest: %s: %s\n", feedlane_status_name(status), e->text), 1;
}

/* What is behind the header of an IDX file. */
static int read_file(const char *folder, const char *name, long header, unsigned char *to, size_t bytes) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  int good = file != NULL && fseek(file, header, SEEK_SET) == 0 && fread(to, 1, bytes, file) == bytes;
  if (file != NULL) fclose(file);
  if (!good) fprintf(stderr, "digest: %s can't be read\n", path);
  return good;
}

static int32_t get(void *self, const feedlane_row *row, feedlane_error *e) {
  (void)self, (void)e;
  const int64_t label = labels[row->index];
  memcpy(row->fields[0], images + row->index * PIXELS, PIXELS);
  memcpy(row->fields[1], &label, sizeof label);
  return FEEDLANE_OK;
}

static int print_digest(feedlane_loader *loader, feedlane_error *e) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
    int32_t s = feedlane_loader_begin(loader, epoch, e);
    if (s < 0) return complain(s, e);
    feedlane_batch b;
    feedlane_init(&b, sizeof b);
    while ((s = feedlane_loader_next(loader, FEEDLANE_FOREVER, &b, e)) != FEEDLANE_END) {
      if (s == FEEDLANE_INTERRUPTED) continue;
      if (s != FEEDLANE_OK) return complain(s, e);
      for (uint64_t t = 0; t < b.tensor_count; t++) {
        const unsigned char *bytes = b.tensors[t].data;
        for (uint64_t i = 0; i < b.tensors[t].bytes; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
      }
      feedlane_batch_release(loader, b.token);
    }
  }
  return printf("digest: %016" PRIx64 "\n", hash) < 0;
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: digest FOLDER_OF_THE_DIGITS\n"), 2;
  if (!read_file(argv[1], "optdigits-images-idx3-ubyte", 16, images, sizeof images) ||
      !read_file(argv[1], "optdigits-labels-idx1-ubyte", 8, labels, sizeof labels))
    return 1;
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_random_config order = {.size = sizeof order, .length = DIGITS, .seed = 1};
  feedlane_sampler *sampler = NULL;
  int32_t s = feedlane_sampler_random(&order, &sampler, &e);
  if (s < 0) return complain(s, &e);
  feedlane_dataset dataset = {.size = sizeof dataset, .get = get};
  feedlane_field fields[] = {
      {.size = sizeof fields[0], .name = "image", .dtype = {1, 8, 1}, .ndim = 2, .shape = {8, 8}},
      {.size = sizeof fields[0], .name = "label", .dtype = {0, 64, 1}}};
  feedlane_loader_config c = {.size = sizeof c,
                              .sampler = sampler,
                              .dataset = &dataset,
                              .fields = fields,
                              .field_count = 2,
                              .batch_size = BATCH,
                              .workers = 2,
                              .start = FEEDLANE_START_FORK,
                              .keep_workers = 1};
  feedlane_loader *loader = NULL;
  s = feedlane_loader_create(&c, &loader, &e);
  feedlane_sampler_destroy(&sampler);
  int failed = s < 0 ? complain(s, &e) : print_digest(loader, &e);
  feedlane_loader_destroy(&loader);
  return failed;
}
