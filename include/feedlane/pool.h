/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool.h
 * Memory that is registered with a device (pinned), buffers in it, and user-defined backends for other devices.
 */
#ifndef FEEDLANE_POOL_H
#define FEEDLANE_POOL_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_pool feedlane_pool; /**< memory registered with a device, and buffers in it */

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
 * A user-defined backend: registers memory with a device and uses its streams, for accelerators that the library does
 * not support. Callbacks return 0, or an error status with `err` filled in. They run on any thread, also concurrently,
 * and must not call the library except through `notify`.
 */
typedef struct feedlane_backend {
  size_t size;
  void *user_data; /**< the first argument of all callbacks */
  /** Pins `bytes` bytes from `address` so that devices can read them. Both are multiples of the page size. Required. */
  feedlane_register_memory_fn register_memory;
  /** Reverses register_memory of the same range. Required. After a worker has ended unexpectedly,
   *  feedlane_loader_begin, _next and _poll call it for each slot and then call register_memory again. */
  feedlane_unregister_memory_fn unregister_memory;
  /** Enqueues a copy on `stream`. NULL: E_UNSUPPORTED. */
  feedlane_copy_fn copy;
  /** Arranges one call of notify(cookie, status) for when `stream` has completed all work enqueued before. `status` is
   *  0, or E_DEVICE if the stream failed. `notify` may be called from any thread, even before this function returns. It
   *  must not be called if this function returns an error. NULL: E_UNSUPPORTED. */
  feedlane_when_passed_fn when_passed;
  /** Like register_memory, for memory that this process can only read: the slots of a consumer. NULL: E_UNSUPPORTED. */
  feedlane_register_memory_fn register_read_only;
} feedlane_backend;

/** The device with which a pool registers memory, and the pool's buffers. */
typedef struct feedlane_pool_config {
  size_t size;
  /** "none" or NULL: memory is not pinned, and device memory is memory of this process. "mlock": as "none", but pages
   *  stay resident, within RLIMIT_MEMLOCK. "cuda": uses the driver's libcuda.so.1 and the primary context of `device`,
   *  and a stream is a CUstream or cudaStream_t. Memory that this process can only read needs a device that supports
   *  CU_MEMHOSTREGISTER_READ_ONLY */
  const char *backend;
  const feedlane_backend *custom; /**< instead of `backend`; copied */
  int32_t device;                 /**< ordinal of the device, for a backend with devices */
  uint32_t buffers;               /**< number of buffers, up to 65,536, created and registered at once; 0: none */
  uint64_t buffer_bytes;          /**< size of each buffer; rounded up to whole pages */
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
  uint64_t buffers;          /**< number of all buffers */
  uint64_t in_use;           /**< buffers that callers hold now */
  uint64_t pending;          /**< buffers that were released on a stream which has not completed its work yet */
  uint64_t registered_bytes; /**< memory registered now: buffers, slots of loaders and the user's memory */
  uint64_t acquired;         /**< buffers acquired so far */
  uint64_t waited_ns;        /**< time asleep in feedlane_pool_acquire */
  uint64_t failures;         /**< pending releases whose stream failed */
} feedlane_pool_stats;

/**
 * Creates a pool and its buffers.
 *  - E_UNSUPPORTED: there is no driver, or no backend of this name.
 *  - E_DEVICE: the driver failed.
 *  - E_LIMIT: RLIMIT_MEMLOCK or the budget is too small.
 *  - E_MEMORY: there is too little memory.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_create(const feedlane_pool_config *config, feedlane_pool **out, feedlane_error *err);
/**
 * Waits for a buffer.
 *  - TIMEOUT: no buffer was released in time.
 *  - INTERRUPTED: a signal ended the wait.
 *  - E_STATE: the pool has no buffers.
 *  - E_DEVICE: a stream failed while a release on it was pending; reported once.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_pool_acquire(feedlane_pool *p, int64_t timeout_ns, feedlane_buffer *out,
                                           feedlane_error *err);
/** No stream: the buffer is free at once. NULL is a stream, such as CUDA's default one. */
#ifdef __cplusplus
#define FEEDLANE_NO_STREAM (reinterpret_cast<void *>(-1))
#else
#define FEEDLANE_NO_STREAM ((void *)-1)
#endif
/**
 * Releases a buffer: with FEEDLANE_NO_STREAM at once, otherwise as soon as `stream` has completed all work enqueued so
 * far, or has failed.
 *  - E_STALE: the buffer was already released, possibly on a stream.
 *  - E_DEVICE, E_UNSUPPORTED: the caller still holds the buffer.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_release(feedlane_pool *p, uint64_t token, void *stream, feedlane_error *err);
/**
 * Enqueues a copy of `bytes` bytes at `host` to device memory: of a buffer, of a batch's tensor, or of other memory of
 * this process. It must stay valid until the copy is complete. A driver may copy memory that is not registered, such as
 * tensors beyond a slot's reserved part, before this call returns.
 *  - E_DEVICE, E_UNSUPPORTED: nothing was enqueued, unless `host` spans two parts of a registration: then the copy of the
 *    first part may have been.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_copy(feedlane_pool *p, void *device_memory, const void *host, uint64_t bytes,
                                        void *stream, feedlane_error *err);
/**
 * Registers the user's memory: all pages that contain a part of it. From 512 GiB on, the backend gets parts of at most
 * 256 GiB, because CUDA's driver can't register so much at once. CUDA refuses a copy from two parts;
 * feedlane_pool_copy divides it.
 *  - E_STATE: a part of these pages is already registered.
 *  - E_LIMIT, E_DEVICE: refused by the budget or by the backend.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_register(feedlane_pool *p, void *address, uint64_t bytes, feedlane_error *err);
/**
 * Unregisters the memory that feedlane_pool_register registered at this address.
 *  - E_ARGUMENT: no memory was registered there by that function, or another thread is registering or unregistering it.
 *    The user cannot unregister buffers and slots of loaders.
 *  - An error of the backend: the memory stays registered, or its first parts, if the last ones are unregistered already.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_pool_unregister(feedlane_pool *p, void *address, feedlane_error *err);
/** The pool's counters. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_pool_get_stats(const feedlane_pool *p, feedlane_pool_stats *out);
/**
 * Unregisters all memory and frees the pool. `*p` becomes NULL on 0. NULL is allowed. Waits while a stream's callback
 * ends the use of a batch; such callbacks do not block.
 *  - E_STATE: a buffer is in use, or a loader uses the pool; the loader does so until its last batch is released and
 *    its last monitor is destroyed. The call has no effect.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_pool_destroy(feedlane_pool **p);

#ifdef __cplusplus
}
#endif
#endif
