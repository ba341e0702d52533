/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file batch.h
 * Batches that the trainer holds: their contents, references to them, and streams that read them.
 *
 * The functions take the handle of the batch's loader. A held batch keeps this handle valid for them, even after
 * feedlane_loader_destroy.
 */
#ifndef FEEDLANE_BATCH_H
#define FEEDLANE_BATCH_H

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What yields batches: a loader (loader.h), a consumer of one (share.h), or an arena (arena.h). */
typedef struct feedlane_loader feedlane_loader;

/** A batch that the trainer holds, in the caller's struct. Pointers are valid until the last release of `token`. The
 *  struct may be copied. Releasing the batch more often than it was yielded and retained returns E_STALE. */
typedef struct feedlane_batch {
  size_t size;
  uint64_t token;                 /**< for feedlane_batch_retain and _release; never 0 */
  int64_t epoch;                  /**< as given to feedlane_loader_begin */
  int64_t batch;                  /**< number of the batch in the epoch, from 0 */
  int32_t worker;                 /**< worker that made it; -1: made inline */
  int32_t attempt;                /**< attempt that made it, from 0 */
  const feedlane_tensor *tensors; /**< one per field, in declaration order, then tensors that the data set added */
  uint64_t tensor_count;          /**< number of tensors */
  const int64_t *indices;         /**< `count` data set indices, one per row; NULL: iterable */
  uint64_t count;                 /**< number of rows */
  const int64_t *skipped;         /**< `skipped_count` data set indices that were left out; NULL: none, or iterable */
  uint64_t skipped_count;         /**< number of samples that were left out */
  const void *metadata;           /**< bytes that the data set attached with feedlane_task_store, or NULL */
  uint64_t metadata_bytes;        /**< length of `metadata` */
  uint64_t dispatched_ns;         /**< when it was sent out. This and the next four: CLOCK_MONOTONIC, see observe.h */
  uint64_t begun_ns;              /**< when the worker began it */
  uint64_t committed_ns;          /**< when the worker committed it */
  uint64_t swept_ns;              /**< when the trainer read the result */
  uint64_t yielded_ns;            /**< when feedlane_loader_next yielded it */
  uint64_t exposed_ns;            /**< how long feedlane_loader_next waited for it; 0: it was ready */
  uint64_t missed;                /**< batches just before it that the consumer missed (FEEDLANE_LAG_OBSERVE) */
} feedlane_batch;

/** The largest number of streams that feedlane_batch_record_stream accepts for a batch. */
#define FEEDLANE_MAX_RECORDED_STREAMS 4

/**
 * Adds a reference to a batch.
 *  - E_STALE: the batch was released.
 *  - E_LIMIT: the batch has 65,535 references.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_batch_retain(feedlane_loader *l, uint64_t token);
/**
 * Releases a reference to a batch. When the last one is released, the slot becomes free.
 *  - E_STALE: the batch was already released.
 *
 * Thread safety: any thread. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_batch_release(feedlane_loader *l, uint64_t token);

/**
 * Releases a reference, but keeps the slot until `stream` has completed all work enqueued so far, or has failed
 * (FEEDLANE_EVENT_DEVICE_FAILED). feedlane_loader_next waits for such slots. After an error the caller still has the
 * reference.
 *  - E_STATE: the loader has no config.pinned.
 *  - E_STALE: the batch was released.
 *  - E_DEVICE, E_UNSUPPORTED: the backend's `when_passed` failed, or does not exist.
 *
 * Thread safety: any thread. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_batch_release_on(feedlane_loader *l, uint64_t token, void *stream, feedlane_error *err);
/**
 * Records that `stream` uses the batch, as torch's record_stream does. After the last reference is released, by any
 * function, the slot is kept until `stream` has completed all work enqueued before that release, has failed, or is
 * refused by the backend (FEEDLANE_EVENT_DEVICE_FAILED). Intended for exported tensors, because enqueued copies may
 * still read them when their deleters run. Do not release the last reference inside a callback of the device's driver,
 * because the release calls the driver. Recording the same stream twice has no further effect.
 *  - E_LIMIT: FEEDLANE_MAX_RECORDED_STREAMS other streams are already recorded for the batch.
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
