// SPDX-License-Identifier: Apache-2.0
// Makes samples for trainer.c: through a callback, or, with any argument ("pull"), in a loop of its own.
#include <feedlane.h>
#include <stdio.h>

// The seed is the same whoever makes the sample: use it for augmentation.
static void make_sample(int64_t index, uint64_t seed, float *x, int64_t *label) {
  for (int i = 0; i < 64; i++) x[i] = (float)((index + i + (int64_t)(seed % 5)) % 17) / 16.0f;
  *label = index % 10;
}

static int32_t get(void *self, const feedlane_row *row, feedlane_error *e) {
  (void)self, (void)e;
  make_sample(row->index, row->seed, row->fields[0], row->fields[1]);
  return FEEDLANE_OK;
}

static int32_t pull(int32_t fd, feedlane_error *e) {
  feedlane_worker *w = NULL;
  const feedlane_task *t;
  int32_t s = feedlane_worker_attach(fd, FEEDLANE_FOREVER, &w, e);
  if (s == FEEDLANE_OK) s = feedlane_worker_ready(w, FEEDLANE_OK, NULL, e);
  while (s == FEEDLANE_OK || s == FEEDLANE_INTERRUPTED) {
    if ((s = feedlane_worker_next(w, FEEDLANE_FOREVER, &t, e)) != FEEDLANE_OK) continue;
    float *x = t->tensors[0].data;
    int64_t *label = t->tensors[1].data;
    for (uint64_t r = 0; r < t->count; r++) make_sample(t->indices[r], t->seeds[r], x + 64 * r, label + r);
    s = feedlane_task_commit(t, t->count, e);
  }
  feedlane_worker_detach(&w);
  return s;
}

int main(int argc, char **argv) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_dataset dataset = {.size = sizeof dataset, .get = get};
  int32_t fd = feedlane_worker_fd();
  if (fd < 0) return fprintf(stderr, "%s: to be started by a trainer\n", argv[0]), 2;
  int32_t s = argc > 1 ? pull(fd, &e) : feedlane_worker_run(fd, &dataset, &e);
  if (s < 0) fprintf(stderr, "worker: %s: %s\n", feedlane_status_name(s), e.text);
  return s < 0;
}
