/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool.h
 * Memory that is registered with a device (pinned), buffers of it, and the functions of a device that the library does
 * not know.
 */
#ifndef FEEDLANE_POOL_H
#define FEEDLANE_POOL_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_pool feedlane_pool; /**< memory registered with a device, and buffers of it */

/** @{ The functions of a feedlane_backend. */
typedef void (*feedlane_notify_fn)(void *cookie, int32_t status);
typedef int32_t (*feedlane_register_memory_fn)(void *user_data, void *address, uint64_t bytes, feedlane_error *err);
typedef int32_t (*feedlane_unregister_memory_fn)(void *user_data, void *address, uint64_t bytes, feedlane_error *err);
typedef int32_t (*feedlane_copy_fn)(void *user_data, void *device_memory, const void *host, uint64_t bytes,
                                    void *stream, feedlane_error *err);
typedef int32_t (*feedlane_when_passed_fn)(void *user_data, void *stream, feedlane_notify_fn notify, void *cookie,
                                           feedlane_error *err);
/** @} */

/**
 * How to register memory with a device and use its streams, for accelerators that the library does not know. Callbacks
 * return 0, or an error status with `err` filled in. They run on any thread, several at the same time, and must not
 * call the library except through `notify`.
 */
typedef struct feedlane_backend {
  size_t size;
  void *user_data; /**< first argument of all callbacks */
  /** Pins `bytes` from `address`, whole pages, so that devices can read them. Required. */
  feedlane_register_memory_fn register_memory;
  /** Reverses register_memory of the same range. Required. After the unexpected end of a worker, feedlane_loader_begin,
   *  _next and _poll call it and register_memory again for each slot. */
  feedlane_unregister_memory_fn unregister_memory;
  /** Enqueues a copy on `stream`. NULL: E_UNSUPPORTED. */
  feedlane_copy_fn copy;
  /** Arranges one call of notify(cookie, status) when `stream` has completed all work enqueued before: status 0, or
   *  E_DEVICE if the stream failed. The call may come from any thread, also before this function returns. After an
   *  error is returned it must not come. NULL: E_UNSUPPORTED. */
  feedlane_when_passed_fn when_passed;
} feedlane_backend;

/** Which device a pool registers memory with, and which buffers it has. */
typedef struct feedlane_pool_config {
  size_t size;
  /** "none" or NULL: memory is not pinned, the device is this memory. "mlock": the same, but pages stay resident,
   *  within RLIMIT_MEMLOCK. "cuda": by the driver's libcuda.so.1; not yet run on a GPU */
  const char *backend;
  const feedlane_backend *custom; /**< instead of `backend`; copied */
  int32_t device;                 /**< "cuda": ordinal of the device, whose primary context is used */
  uint32_t buffers;               /**< created and registered at once, up to 65,536; 0: none */
  uint64_t buffer_bytes;          /**< of each; rounded up to whole pages */
  uint64_t budget_bytes;          /**< limit for all memory registered at the same time; 0: no limit */
} feedlane_pool_config;

/** A buffer that the caller holds. */
typedef struct feedlane_buffer {
  size_t size;
  uint64_t token; /**< for feedlane_pool_release; never 0 */
  void *data;     /**< page-aligned, registered */
  uint64_t bytes; /**< config.buffer_bytes, rounded up */
} feedlane_buffer;

/** A pool's counters. */
typedef struct feedlane_pool_stats {
  size_t size;
  uint64_t buffers;          /**< all buffers */
  uint64_t in_use;           /**< now: held by callers */
  uint64_t pending;          /**< now: released on a stream that has not completed its work */
  uint64_t registered_bytes; /**< now: buffers, slots of loaders and the user's memory */
  uint64_t acquired;         /**< buffers handed out so far */
  uint64_t waited_ns;        /**< time asleep in feedlane_pool_acquire */
  uint64_t failures;         /**< streams that failed with a release on them pending */
} feedlane_pool_stats;

/**
 * Creates a pool and its buffers.
 *  - E_UNSUPPORTED: there is no driver, or no such backend.
 *  - E_DEVICE: the driver failed.
 *  - E_LIMIT: RLIMIT_MEMLOCK or the budget is too small.
 *  - E_MEMORY: there is too little memory.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_create(const feedlane_pool_config *config, feedlane_pool **out, feedlane_error *err);
/**
 * Waits for a buffer.
 *  - TIMEOUT: none was released in time.
 *  - INTERRUPTED: a signal ended the wait.
 *  - E_STATE: the pool has no buffers.
 *  - E_DEVICE: a stream failed with a release on it; reported once.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_pool_acquire(feedlane_pool *p, int64_t timeout_ns, feedlane_buffer *out,
                                           feedlane_error *err);
/** Releases a buffer. E_STALE: it was released before, possibly on a stream. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_pool_release(feedlane_pool *p, uint64_t token);
/**
 * Releases a buffer as soon as `stream` has completed all work enqueued so far, or has failed.
 *  - E_STALE: the buffer was released before.
 *  - E_DEVICE, E_UNSUPPORTED: the caller still holds the buffer.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_release_on(feedlane_pool *p, uint64_t token, void *stream, feedlane_error *err);
/**
 * Enqueues a copy of a buffer's first `bytes` to device memory. "cuda": `stream` is a CUstream or cudaStream_t.
 *  - E_STALE: the buffer was released before.
 *  - E_DEVICE, E_UNSUPPORTED: nothing was enqueued.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_to_device(feedlane_pool *p, uint64_t token, void *device_memory, uint64_t bytes,
                                             void *stream, feedlane_error *err);
/**
 * Registers memory of the user: the whole pages that contain it.
 *  - E_STATE: a part of these pages is registered.
 *  - E_LIMIT, E_DEVICE: the budget, or the backend, refuses.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_register(feedlane_pool *p, void *address, uint64_t bytes, feedlane_error *err);
/**
 * Unregisters what feedlane_pool_register registered at this address.
 *  - E_ARGUMENT: nothing was, or another thread is registering or unregistering it. Buffers and slots of loaders cannot
 *    be unregistered by the user.
 *  - An error of the backend: the memory stays registered.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_unregister(feedlane_pool *p, void *address, feedlane_error *err);
/** The pool's counters. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_pool_get_stats(const feedlane_pool *p, feedlane_pool_stats *out);
/**
 * Unregisters everything and frees the pool. `*p` becomes NULL on 0. NULL is allowed.
 *  - E_STATE: a buffer is held or a loader uses the pool, until the last release of its batches. Nothing happens.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_pool_destroy(feedlane_pool **p);

#ifdef __cplusplus
}
#endif
#endif
