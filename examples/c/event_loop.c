// SPDX-License-Identifier: Apache-2.0
// The loader inside somebody else's event loop: plain epoll, which also watches standard input. No thread, no periodic
// timeout: arm before sleeping, poll the one descriptor.
// Usage: event_loop BATCHES SECONDS; it takes the batches, then sits idle for the seconds or until stdin ends, and says what
// it used.
#include <feedlane.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

static int32_t get(void *self, const feedlane_row *row, feedlane_error *e) {
  (void)self, (void)e;
  memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

static double cpu_seconds(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static int die(int32_t s, const feedlane_error *e) {
  return fprintf(stderr, "event_loop: %s: %s\n", feedlane_status_name(s), e->text), 1;
}

int main(int argc, char **argv) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_dataset dataset;
  feedlane_init(&dataset, sizeof dataset);
  dataset.get = get;
  int32_t worker = feedlane_worker_fd();
  if (worker >= 0) return feedlane_worker_run(worker, &dataset, NULL) < 0;  // a trainer started this very program

  int64_t batches = argc > 1 ? atoll(argv[1]) : 1000, next = 0;
  int idle_s = argc > 2 ? atoi(argv[2]) : 0;
  feedlane_sampler *order = NULL;
  feedlane_field field = {.size = sizeof field, .name = "index", .dtype = {0, 64, 1}};
  int32_t s = feedlane_sampler_sequential(batches, &order, &e);
  feedlane_loader_config c = {
      .size = sizeof c, .sampler = order, .fields = &field, .field_count = 1, .workers = 2, .keep_workers = 1};
  feedlane_loader *loader = NULL;
  if (s == 0) s = feedlane_loader_create(&c, &loader, &e);
  feedlane_sampler_destroy(&order);
  if (s == 0) s = feedlane_loader_begin(loader, 0, &e);
  if (s < 0) return die(s, &e);

  int32_t fd = -1;
  feedlane_loader_wait_fd(loader, &fd);
  int loop = epoll_create1(EPOLL_CLOEXEC);
  epoll_ctl(loop, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
  epoll_ctl(loop, EPOLL_CTL_ADD, STDIN_FILENO, &(struct epoll_event){.events = EPOLLIN, .data.fd = STDIN_FILENO});
  feedlane_batch b;
  feedlane_init(&b, sizeof b);
  while (next < batches) {
    // Everything that is there, without waiting; then arm, and sleep only if it says so.
    while ((s = feedlane_loader_next(loader, 0, &b, &e)) == FEEDLANE_OK) {
      if (memcmp(b.tensors[0].data, &next, sizeof next) != 0) return fputs("a batch is not the next\n", stderr), 1;
      next++;
      feedlane_batch_release(loader, b.token);
    }
    if (s < 0) return die(s, &e);
    if (s == FEEDLANE_END || feedlane_loader_arm(loader) == FEEDLANE_AGAIN) continue;
    struct epoll_event event;
    if (epoll_wait(loop, &event, 1, -1) == 1 && event.data.fd == fd) feedlane_loader_poll(loader, &e);
  }
  double before = cpu_seconds();
  printf("batches %" PRId64 "\n", next), fflush(stdout);
  feedlane_loader_arm(loader);
  struct epoll_event event;
  while (idle_s > 0 && epoll_wait(loop, &event, 1, idle_s * 1000) == 1 && event.data.fd == fd)
    feedlane_loader_poll(loader, &e);
  printf("idle %d s, cpu %.6f s\n", idle_s, cpu_seconds() - before);
  fflush(stdout);
  while (getchar() != EOF) continue;  // whoever watches may look at the workers until then
  close(loop);
  return feedlane_loader_destroy(&loader) < 0;
}
