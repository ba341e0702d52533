// SPDX-License-Identifier: Apache-2.0
// The loader inside an event loop of the program's own: epoll, which watches standard input too. No thread, no periodic
// timeout: the loop waits for one descriptor of the loader, and arms the loader before each wait.
// Usage: event_loop [BATCHES [SECONDS]]; takes the batches, then sits idle for the seconds or until standard input ends, and
// prints the processor time that this took.
#include <feedlane.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

// A sample is its own index.
static int32_t get(void *self, const feedlane_row *row, feedlane_error *error) {
  (void)self;
  (void)error;
  memcpy(row->fields[0], &row->index, sizeof row->index);
  return FEEDLANE_OK;
}

static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static int32_t create_loader(int64_t samples, feedlane_loader **loader, feedlane_error *error) {
  feedlane_sampler_config sequential = {
      .size = sizeof sequential, .kind = FEEDLANE_SAMPLER_SEQUENTIAL, .length = samples};
  feedlane_sampler *order = NULL;
  int32_t status = feedlane_sampler_create(&sequential, &order, error);
  if (status < 0) return status;
  feedlane_field field = {.size = sizeof field, .name = "index", .dtype = {0, 64, 1}};
  // Without argv the library starts this very program as a worker.
  feedlane_loader_config config = {
      .size = sizeof config, .sampler = order, .fields = &field, .field_count = 1, .workers = 2, .keep_workers = 1};
  status = feedlane_loader_create(&config, loader, error);
  feedlane_sampler_destroy(&order);  // the loader has a copy
  return status;
}

// Takes the batches that are there, without waiting. Returns what feedlane_loader_next returns when it has no batch.
static int32_t take_batches(feedlane_loader *loader, int64_t *taken, feedlane_error *error) {
  feedlane_batch batch;
  feedlane_init(&batch, sizeof batch);
  for (;;) {
    const int32_t status = feedlane_loader_next(loader, 0, &batch, error);
    if (status != FEEDLANE_OK) return status;
    if (memcmp(batch.tensors[0].data, taken, sizeof *taken) != 0) {
      fprintf(stderr, "a batch is not the next\n");
      exit(1);
    }
    (*taken)++;
    feedlane_batch_release(loader, batch.token);
  }
}

static void watch(int loop, int fd) {
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event);
}

// Waits for a descriptor to be readable and returns it; -1 after a timeout or a signal. A timeout of -1 is none.
static int wait_for_event(int loop, int timeout_ms) {
  struct epoll_event event;
  return epoll_wait(loop, &event, 1, timeout_ms) == 1 ? event.data.fd : -1;
}

// Runs the event loop until so many batches are taken.
static int32_t run(feedlane_loader *loader, int loop, int loader_fd, int64_t batches, feedlane_error *error) {
  int64_t taken = 0;
  while (taken < batches) {
    const int32_t status = take_batches(loader, &taken, error);
    if (status < 0) return status;
    if (status == FEEDLANE_END) continue;                               // all batches are taken
    if (feedlane_loader_arm(loader, NULL) == FEEDLANE_AGAIN) continue;  // a batch came meanwhile
    if (wait_for_event(loop, -1) == loader_fd) feedlane_loader_poll(loader, error);
  }
  printf("batches %" PRId64 "\n", taken);
  fflush(stdout);
  return FEEDLANE_OK;
}

// Sits idle for the seconds, or until standard input is readable, and prints the processor time used.
static void idle(feedlane_loader *loader, int loop, int loader_fd, int seconds, feedlane_error *error) {
  const double before = cpu_seconds();
  feedlane_loader_arm(loader, NULL);
  while (seconds > 0 && wait_for_event(loop, seconds * 1000) == loader_fd) feedlane_loader_poll(loader, error);
  printf("idle %d s, cpu %.6f s\n", seconds, cpu_seconds() - before);
  fflush(stdout);
}

int main(int argc, char **argv) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  const int32_t worker_fd = feedlane_worker_fd();
  if (worker_fd >= 0) {  // the library started this program as a worker
    feedlane_dataset dataset = {.size = sizeof dataset, .get = get};
    return feedlane_worker_run(worker_fd, NULL, &dataset, NULL) < 0;
  }
  const int64_t batches = argc > 1 ? atoll(argv[1]) : 1000;
  const int idle_seconds = argc > 2 ? atoi(argv[2]) : 0;

  feedlane_loader *loader = NULL;
  int32_t status = create_loader(batches, &loader, &error);
  if (status == FEEDLANE_OK) status = feedlane_loader_begin(loader, 0, &error);
  if (status == FEEDLANE_OK) {
    int32_t loader_fd = -1;
    feedlane_loader_arm(loader, &loader_fd);  // here for the number of the descriptor
    const int loop = epoll_create1(EPOLL_CLOEXEC);
    watch(loop, loader_fd);
    watch(loop, STDIN_FILENO);
    status = run(loader, loop, loader_fd, batches, &error);
    if (status == FEEDLANE_OK) idle(loader, loop, loader_fd, idle_seconds, &error);
    close(loop);
  }
  if (status != FEEDLANE_OK) {
    fprintf(stderr, "event_loop: %s: %s\n", feedlane_status_name(status), error.text);
    feedlane_loader_destroy(&loader);
    return 1;
  }
  while (getchar() != EOF) continue;  // the workers stay for observers until standard input ends
  return feedlane_loader_destroy(&loader) < 0;
}
