// SPDX-License-Identifier: Apache-2.0
// A program outside of the tree: feeds itself, without workers, and adds up what it gets. Prints the sum.
#include <feedlane.h>
#include <inttypes.h>
#include <stdio.h>

// Sample i is i, four times.
static int32_t get(void *self, const feedlane_row *row, feedlane_error *err) {
  int64_t *x = row->fields[0];
  (void)self, (void)err;
  for (int i = 0; i < 4; i++) x[i] = row->index;
  return FEEDLANE_OK;
}

static int32_t add_up(feedlane_loader *loader, int64_t *sum, feedlane_error *err) {
  feedlane_batch batch;
  int32_t s = feedlane_loader_begin(loader, 0, err);
  if (s != FEEDLANE_OK) return s;
  feedlane_init(&batch, sizeof batch);
  while ((s = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, err)) == FEEDLANE_OK) {
    const int64_t *x = batch.tensors[0].data;
    for (uint64_t i = 0; i < batch.tensors[0].bytes / sizeof *x; i++) *sum += x[i];
    feedlane_batch_release(loader, batch.token);
  }
  return s;
}

int main(void) {
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  if (feedlane_abi_version() != FEEDLANE_ABI) return fprintf(stderr, "another ABI than the header's\n"), 1;

  feedlane_sampler_config sequential = {.size = sizeof sequential, .kind = FEEDLANE_SAMPLER_SEQUENTIAL, .length = 1000};
  feedlane_sampler *order = NULL;
  int32_t s = feedlane_sampler_create(&sequential, &order, &err);
  feedlane_dataset dataset = {.size = sizeof dataset, .get = get};
  feedlane_field field = {.size = sizeof field, .name = "x", .dtype = {0, 64, 1}, .ndim = 1, .shape = {4}};
  feedlane_loader_config config = {.size = sizeof config,
                                   .sampler = order,
                                   .dataset = &dataset,
                                   .fields = &field,
                                   .field_count = 1,
                                   .batch_size = 32};
  feedlane_loader *loader = NULL;
  if (s == FEEDLANE_OK) s = feedlane_loader_create(&config, &loader, &err);
  feedlane_sampler_destroy(&order);
  int64_t sum = 0;
  if (s == FEEDLANE_OK) s = add_up(loader, &sum, &err);
  feedlane_loader_destroy(&loader);
  if (s != FEEDLANE_END) return fprintf(stderr, "%s: %s\n", feedlane_status_name(s), err.text), 1;
  return printf("feedlane %s, sum: %" PRId64 "\n", feedlane_version(), sum) < 0;
}
