/* SPDX-License-Identifier: Apache-2.0 */
/* What the Go package adds to feedlane.h: memory of C's for calls that return errors and batches, and conversions that
 * cgo has no syntax for. */
#ifndef FEEDLANE_GO_SHIM_H
#define FEEDLANE_GO_SHIM_H

#include <errno.h>
#include <fcntl.h>
#include <feedlane.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FEEDLANE_GO_DETAIL_BYTES = 16384 };

/** The outputs of one call. In C memory, because Go memory passed to C must not point to other Go memory. */
typedef struct feedlane_go_call {
  feedlane_batch batch;
  const feedlane_task *task; /**< of feedlane_worker_next */
  int32_t committed;         /**< status of feedlane_task_commit */
  feedlane_error err;        /**< err.detail is `detail` */
  char detail[FEEDLANE_GO_DETAIL_BYTES];
} feedlane_go_call;

static inline feedlane_go_call *feedlane_go_call_new(void) {
  feedlane_go_call *call = malloc(sizeof *call);
  if (call == NULL) abort();
  feedlane_init(&call->batch, sizeof call->batch);
  call->task = NULL;
  feedlane_init(&call->err, sizeof call->err);
  call->err.detail = call->detail;
  call->err.detail_cap = sizeof call->detail;
  return call;
}

/** Commits the current task and waits for the next one: one call instead of two, which take Go 40 ns each. The result is
 *  that of feedlane_worker_next, and has no meaning unless call->committed is 0. */
static inline int32_t feedlane_go_worker_commit(feedlane_worker *w, uint64_t rows, int64_t timeout_ns,
                                                feedlane_go_call *call) {
  call->committed = feedlane_task_commit(call->task, rows, &call->err);
  if (call->committed != FEEDLANE_OK) return call->committed;
  return feedlane_worker_next(w, timeout_ns, &call->task, &call->err);
}

/** Copies of a handle, because destroy functions clear the pointer. */
static inline int32_t feedlane_go_loader_destroy(feedlane_loader *l) { return feedlane_loader_destroy(&l); }
static inline int32_t feedlane_go_sampler_destroy(feedlane_sampler *s) { return feedlane_sampler_destroy(&s); }
static inline int32_t feedlane_go_worker_destroy(feedlane_worker *w) { return feedlane_worker_destroy(&w); }
static inline int32_t feedlane_go_monitor_destroy(feedlane_monitor *m) { return feedlane_monitor_destroy(&m); }

/** Creates a sampler with arrays of Go, which only C can put into a struct. `config` has no arrays. */
static inline int32_t feedlane_go_sampler_create(feedlane_sampler_config config, const int64_t *indices,
                                                 const int64_t *lengths, const double *weights, const int64_t *from,
                                                 feedlane_sampler **out, feedlane_error *err) {
  config.size = sizeof config;
  config.indices = indices;
  config.lengths = lengths;
  config.weights = weights;
  config.from = from;
  return feedlane_sampler_create(&config, out, err);
}

static inline int32_t feedlane_go_rx_destroy(feedlane_rx *rx) { return feedlane_rx_destroy(&rx); }
static inline int32_t feedlane_go_tx_destroy(feedlane_tx *tx) { return feedlane_tx_destroy(&tx); }
static inline int32_t feedlane_go_pool_destroy(feedlane_pool *p) { return feedlane_pool_destroy(&p); }

/** Functions that take streams and device memory as numbers: Go must not have a pointer to them. */
static inline int32_t feedlane_go_pool_release(feedlane_pool *p, uint64_t token, uintptr_t stream, feedlane_error *err) {
  return feedlane_pool_release(p, token, (void *)stream, err);
}
static inline int32_t feedlane_go_pool_copy(feedlane_pool *p, uintptr_t device, const void *host, uint64_t bytes,
                                            uintptr_t stream, feedlane_error *err) {
  return feedlane_pool_copy(p, (void *)device, host, bytes, (void *)stream, err);
}
static inline int32_t feedlane_go_batch_release_on(feedlane_loader *l, uint64_t token, uintptr_t stream,
                                                   feedlane_error *err) {
  return feedlane_batch_release_on(l, token, (void *)stream, err);
}
static inline int32_t feedlane_go_batch_record_stream(feedlane_loader *l, uint64_t token, uintptr_t stream,
                                                      feedlane_error *err) {
  return feedlane_batch_record_stream(l, token, (void *)stream, err);
}

/** Calls the deleter of a DLManagedTensor, if `legacy`, or of a DLManagedTensorVersioned. DLPack fixes its offset. */
static inline void feedlane_go_dlpack_delete(void *tensor, int32_t legacy) {
  void (*deleter)(void *) = NULL;
  memcpy(&deleter, (const char *)tensor + (legacy ? 56 : 16), sizeof deleter);
  if (deleter != NULL) deleter(tensor);
}

/** A duplicate for Go's poller, or -1 and errno. */
static inline int feedlane_go_duplicate(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0) (void)fcntl(copy, F_SETFL, fcntl(copy, F_GETFL) | O_NONBLOCK);
  return copy;
}

/** The table of a data set in Go, see callbacks.go. `handle` is a cgo.Handle. */
void feedlane_go_dataset(uintptr_t handle, int32_t by_batches, int32_t iterable, int32_t saves,
                         feedlane_dataset *table);
/** feedlane_task_sample_failed with the substitutes of a data set in Go. `handle` is a cgo.Handle of an `opened`. */
int32_t feedlane_go_sample_failed(const feedlane_task *task, uint64_t position, const char *text, uint64_t text_bytes,
                                  int32_t transient, uintptr_t handle, int64_t *index, int64_t *wait_ns);
/** The table of a sampler in Go, see custom.go. */
void feedlane_go_order(uintptr_t handle, int32_t saves, feedlane_sampler_callbacks *table);

/** Fills in a callback's error. Texts are cut to what fits. */
static inline void feedlane_go_report(feedlane_error *err, const char *text, uint64_t text_bytes, const char *detail,
                                      uint64_t detail_bytes, int32_t transient, int64_t sample) {
  if (err == NULL) return;
  if (text_bytes >= sizeof err->text) text_bytes = sizeof err->text - 1;
  memcpy(err->text, text, text_bytes);
  err->text[text_bytes] = 0;
  err->transient = transient;
  if (sample >= 0) err->sample = sample;
  if (err->detail == NULL) return;
  err->detail_len = detail_bytes;
  memcpy(err->detail, detail, detail_bytes < err->detail_cap ? detail_bytes : err->detail_cap);
}

#endif
