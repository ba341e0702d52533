/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file batch.h
 * Batches that the trainer holds: their contents, references to them, and streams that read them.
 *
 * The functions take the handle of the batch's loader. A held batch keeps it valid for them, also after
 * feedlane_loader_destroy.
 */
#ifndef FEEDLANE_BATCH_H
#define FEEDLANE_BATCH_H

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_loader feedlane_loader; /**< the trainer's side, see loader.h */

/** A batch that the trainer holds, in the caller's own struct. Pointers are valid until the last release of `token`.
 *  The struct may be copied; a release too many returns E_STALE. */
typedef struct feedlane_batch {
  size_t size;
  uint64_t token;                 /**< for feedlane_batch_retain and _release; never 0 */
  int64_t epoch;                  /**< as given to feedlane_loader_begin */
  int64_t batch;                  /**< its number in the epoch, from 0 */
  int32_t worker;                 /**< -1: made inline */
  int32_t attempt;                /**< which attempt made it, from 0 */
  const feedlane_tensor *tensors; /**< one a field, in the order of declaration; then those that the data set added */
  uint64_t tensor_count;          /**< how many */
  const int64_t *indices;         /**< data set indices of its rows, `count` of them; NULL: iterable */
  uint64_t count;                 /**< rows */
  const int64_t *skipped;         /**< indices that were left out; NULL: iterable */
  uint64_t skipped_count;         /**< samples that were left out */
  const void *metadata;           /**< what the data set attached by feedlane_task_metadata, or NULL */
  uint64_t metadata_bytes;        /**< its length */
  uint64_t dispatched_ns;         /**< sent to its worker. This and the following: CLOCK_MONOTONIC, see observe.h */
  uint64_t begun_ns;              /**< the worker began it */
  uint64_t committed_ns;          /**< the worker committed it */
  uint64_t swept_ns;              /**< the trainer read its result */
  uint64_t yielded_ns;            /**< next yielded it */
  uint64_t exposed_ns;            /**< for how long next waited for it; 0: it was there */
  uint64_t missed;                /**< batches just before it that the feeder took back: FEEDLANE_LAG_OBSERVE */
} feedlane_batch;

/** The largest number of streams that feedlane_batch_record_stream accepts for a batch. */
#define FEEDLANE_MAX_RECORDED_STREAMS 4

/**
 * Adds a reference to a batch.
 *  - E_STALE: the batch was released.
 *  - E_LIMIT: it has 65,535 references.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_batch_retain(feedlane_loader *l, uint64_t token);
/**
 * Releases a reference to a batch. With the last one its slot becomes free.
 *  - E_STALE: the batch was released before.
 *
 * Thread safety: any thread. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_batch_release(feedlane_loader *l, uint64_t token);

/**
 * Enqueues a copy of tensor number `tensor` to device memory of `bytes` bytes.
 *  - E_STATE: the loader has no config.pinned.
 *  - E_STALE: the batch was released.
 *  - E_DEVICE, E_UNSUPPORTED: nothing was enqueued.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_batch_to_device(feedlane_loader *l, uint64_t token, int32_t tensor, void *device_memory,
                                              uint64_t bytes, void *stream, feedlane_error *err);
/**
 * Releases a reference, and keeps the slot until `stream` has completed all work enqueued so far, or has failed
 * (FEEDLANE_EVENT_DEVICE_FAILED). feedlane_loader_next waits for such slots. After an error the caller still has the
 * reference.
 *  - E_STATE: the loader has no config.pinned.
 *  - E_STALE: the batch was released.
 *  - E_DEVICE, E_UNSUPPORTED: the stream could not be asked.
 *
 * Thread safety: any thread. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_batch_release_on(feedlane_loader *l, uint64_t token, void *stream, feedlane_error *err);
/**
 * Records that `stream` uses the batch, as torch's record_stream does. However the last reference is released, the slot
 * is kept until `stream` has completed the work enqueued by then, has failed, or is refused by the backend
 * (FEEDLANE_EVENT_DEVICE_FAILED). Meant for exported tensors, whose deleters know nothing of enqueued copies. Do not
 * release the last reference inside a callback of the device's driver: the driver is called then. Recording the same
 * stream twice has no further effect.
 *  - E_LIMIT: FEEDLANE_MAX_RECORDED_STREAMS other streams are recorded.
 *  - E_STATE: the loader has no config.pinned.
 *  - E_STALE: the batch was released.
 *  - E_UNSUPPORTED: the backend has no `when_passed`.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_batch_record_stream(feedlane_loader *l, uint64_t token, void *stream,
                                                  feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
