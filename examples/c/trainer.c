// SPDX-License-Identifier: Apache-2.0
// A training loop's skeleton: two worker processes make batches in shared memory, this one looks at every byte of them.
// Usage: trainer [WORKER [ARGUMENT]...]; without WORKER: the program "worker" next to this one.
#include <feedlane.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int complain(int32_t status, const feedlane_error *e) {
  return fprintf(stderr, "trainer: %s: %s (%s: found %" PRId64 ", needed %" PRId64 "; worker %" PRId32 ")\n",
                 feedlane_status_name(status), e->text, e->argument, e->found, e->needed, e->worker),
         1;
}

static uint64_t fnv1a(uint64_t hash, const unsigned char *bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static int train(feedlane_loader *loader, feedlane_error *e) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (int64_t epoch = 0; epoch < 3; epoch++) {
    int32_t s = feedlane_loader_begin(loader, epoch, e);
    if (s < 0) return complain(s, e);
    feedlane_batch b;
    feedlane_init(&b, sizeof b);
    while ((s = feedlane_loader_next(loader, FEEDLANE_FOREVER, &b, e)) != FEEDLANE_END) {
      if (s == FEEDLANE_INTERRUPTED) continue;  // a signal; nothing is lost
      if (s != FEEDLANE_OK) return complain(s, e);
      for (uint64_t t = 0; t < b.tensor_count; t++) hash = fnv1a(hash, b.tensors[t].data, b.tensors[t].bytes);
      feedlane_batch_release(loader, b.token);  // its memory goes back to the workers
    }
  }
  return printf("checksum: %016" PRIx64 "\n", hash) < 0;
}

int main(int argc, char **argv) {
  char beside[4096];  // this program's own folder, then the worker's name
  const char *slash = strrchr(argv[0], '/');
  snprintf(beside, sizeof beside, "%.*sworker", slash ? (int)(slash + 1 - argv[0]) : 0, argv[0]);
  const char *standard[] = {beside, NULL};
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_random_config order = {.size = sizeof order, .length = 1000, .seed = 7};
  feedlane_sampler *sampler = NULL;
  int32_t s = feedlane_sampler_random(&order, &sampler, &e);
  if (s < 0) return complain(s, &e);
  // A sample: 64 floats and an integer. Zero, or left out, means the default everywhere.
  feedlane_field fields[] = {{.size = sizeof fields[0], .name = "x", .dtype = {2, 32, 1}, .ndim = 1, .shape = {64}},
                             {.size = sizeof fields[0], .name = "label", .dtype = {0, 64, 1}}};
  feedlane_loader_config c = {.size = sizeof c,
                              .sampler = sampler,
                              .fields = fields,
                              .field_count = 2,
                              .batch_size = 32,
                              .seed = 7,
                              .workers = 2,
                              .keep_workers = 1,
                              .argv = argc > 1 ? (const char *const *)(argv + 1) : standard};
  feedlane_loader *loader = NULL;
  s = feedlane_loader_create(&c, &loader, &e);
  feedlane_sampler_destroy(&sampler);  // the loader has a copy
  int failed = s < 0 ? complain(s, &e) : train(loader, &e);
  feedlane_loader_destroy(&loader);
  return failed;
}
