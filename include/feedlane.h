/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file feedlane.h
 * The C interface of Feedlane, which feeds training loops through shared memory. C99, self-contained, Linux.
 *
 * This file contains the rules that apply to every function, the glossary and the version. It includes one header per
 * subject. C programs include it; other languages bind to it.
 *
 * Two layers
 *  - The runtime, for any program: statuses and errors (status.h), tensors (tensor.h), batches (batch.h) and their
 *    export (dlpack.h), arenas (arena.h), rings (ring.h), registered memory (pool.h).
 *  - The loader on top of it: samplers (sampler.h), data sets (dataset.h), workers (worker.h), loaders (loader.h),
 *    sharing (share.h), monitors (monitor.h, observe.h).
 *  - A binding to another language needs 17 functions: feedlane_abi_version, feedlane_status_name,
 *    feedlane_sampler_create and _destroy, feedlane_loader_create, _begin, _next and _destroy, feedlane_batch_release,
 *    feedlane_worker_fd, _attach, _get_info, _ready, _next and _destroy, feedlane_task_commit and _fail.
 *    examples/luajit is such a binding.
 *
 * Results
 *  - A function that can fail returns int32_t: 0 for success, > 0 for another normal outcome, < 0 for an error.
 *  - `err` is the last argument and may be NULL. It is written on every error, on FEEDLANE_INTERRUPTED and on
 *    FEEDLANE_SLOTS_HELD. Set its `size` with feedlane_init first.
 *  - Output parameters are written on 0 only, unless stated otherwise. A create function that fails sets `*out` to
 *    NULL.
 *  - A function's comment lists its specific outcomes, without the prefix FEEDLANE_. Every function may also return
 *    FEEDLANE_E_ARGUMENT for a bad argument, FEEDLANE_E_ABI for a bad struct size and FEEDLANE_E_MEMORY.
 *
 * Waits
 *  - `timeout_ns` is relative. 0 tries once, FEEDLANE_FOREVER sets no limit, a negative value is FEEDLANE_E_ARGUMENT.
 *  - A signal that arrives in a waiting thread ends the wait with FEEDLANE_INTERRUPTED and err->os_errno EINTR.
 *    Nothing is lost: call again. After feedlane_loader_interrupt, err->os_errno is 0.
 *  - Signals do not end the waits in feedlane_loader_begin, stop and destroy, which the stop timeouts limit, or in the
 *    attach functions. A wait polls for up to 100 us before it sleeps; a signal during polling does not end it.
 *
 * Threads
 *  - "Thread safety: any thread." Any thread may call at any time, as long as nobody frees the handle.
 *  - "Thread safety: one thread at a time." Calls on one handle must not overlap, but may come from different threads.
 *    A call that overlaps another one returns FEEDLANE_E_BUSY and has no effect. feedlane_rx_peek, feedlane_rx_release,
 *    feedlane_tx_reserve and feedlane_tx_commit detect a call in progress, but not one that starts at the same instant.
 *    feedlane_worker_get_info, feedlane_worker_check, feedlane_pool_destroy and calls on an inline task do not detect
 *    overlapping calls.
 *  - "Waits." The call may sleep. A language runtime with a global lock or a stop-the-world collector must let its
 *    other threads run during the call.
 *  - "Calls back: ..." The call runs callbacks of these tables in the calling thread. A backend's callbacks may run in
 *    every function that registers memory or uses a stream.
 *
 * Handles
 *  - A create function gives the caller a handle, and *_destroy frees it. A loader is reference-counted, and freed with
 *    its last reference: feedlane_loader_ref adds one, feedlane_loader_unref and feedlane_loader_destroy release one.
 *    No thread may begin a call on a handle that another thread may be freeing.
 *  - feedlane_*_close may be called from any thread. It ends every wait on the handle with FEEDLANE_E_STATE and does
 *    not wait itself. Later calls return FEEDLANE_E_STATE, except destroy, ref, unref, close and calls with a batch's
 *    token.
 *  - feedlane_*_destroy closes the handle, then waits for a call of another thread that allows one thread at a time.
 *    It returns FEEDLANE_E_BUSY inside a callback of a call on the same handle.
 *  - In a forked child, every call on a handle of the parent returns FEEDLANE_E_FORKED, except *_destroy,
 *    which only clears the pointer.
 *
 * Structs
 *  - A struct that begins with `size` is versioned. Zero in any other field means the default.
 *  - A struct shorter than this header's is accepted. A longer one is accepted if the part unknown to the library is
 *    zero; otherwise the call returns FEEDLANE_E_ABI.
 *  - The size of a configuration struct or a table of callbacks is a multiple of 8; any other size is FEEDLANE_E_ABI.
 *  - An output struct is written as far as its size allows.
 *
 * Memory and exceptions
 *  - Inputs are copied, except the `user_data` of a table of callbacks: the library keeps this pointer.
 *  - No C++ exception leaves the library. Callbacks must not throw or longjmp into it.
 *
 * Glossary
 *  - trainer: the process that consumes batches.
 *  - worker: a process or thread that makes batches.
 *  - loader: the trainer's object; it owns the memory, the order of batches and the workers.
 *  - data set: the user's code that makes samples. Map-style: a sample is requested by its index. Iterable: each worker
 *    iterates over its own shard of the data.
 *  - shard: the part of an iterable data set that one worker iterates over.
 *  - sampler: yields the indices of an epoch, in order.
 *  - epoch: one pass over the sampler or over all shards.
 *  - sample: one element of the data set. Row: the place of a sample in a batch.
 *  - field: type and shape of one part of a sample, as declared. Tensor: all rows of a field in one batch.
 *  - batch: the tensors that the trainer receives at once. It is held until its last reference is released.
 *  - token: identifies one batch or buffer given to the caller. It is never reused.
 *  - task: a request to a worker for one batch.
 *  - attempt: number of earlier requests for the same batch whose workers died or got stuck; 0 for the first request.
 *  - generation: number of earlier workers with this id; 0 for the first, +1 with each replacement, and with each epoch
 *    that starts the worker anew.
 *  - segment: shared memory created by the library. A loader has two: control, and data for tensors.
 *  - arena: the slots in the data segment. Slot: the memory of one batch.
 *  - ring: a queue in shared memory. Lane: the part of a ring that one sender writes. Cell: the memory of one message.
 *  - doorbell: wakes a process that sleeps on its rings.
 *  - inline: without workers; the data set runs in the trainer's thread.
 *  - pool: memory registered with a device, and buffers in it. Backend: functions that register memory with a device
 *    and use its streams.
 *  - stream: a queue of device operations, such as a CUDA stream.
 */
#ifndef FEEDLANE_H
#define FEEDLANE_H

/** @{ The version of this header, for `#if`; feedlane_version() returns the library's. */
#define FEEDLANE_VERSION_MAJOR 0
#define FEEDLANE_VERSION_MINOR 1
#define FEEDLANE_VERSION_PATCH 0
/** @} */
/** A number that grows with every release: 10000 * major + 100 * minor + patch. */
#define FEEDLANE_VERSION (FEEDLANE_VERSION_MAJOR * 10000 + FEEDLANE_VERSION_MINOR * 100 + FEEDLANE_VERSION_PATCH)
/** The ABI's major number, also the number in the library's soname. */
#define FEEDLANE_ABI 1

/* Each header uses only the ones above it. */
/* clang-format off */
/* The runtime. */
#include "feedlane/status.h"
#include "feedlane/tensor.h"
#include "feedlane/batch.h"
#include "feedlane/dlpack.h"
#include "feedlane/arena.h"
#include "feedlane/ring.h"
#include "feedlane/pool.h"
/* The loader. */
#include "feedlane/sampler.h"
#include "feedlane/dataset.h"
#include "feedlane/worker.h"
#include "feedlane/loader.h"
#include "feedlane/share.h"
#include "feedlane/monitor.h"
#include "feedlane/observe.h"
/* clang-format on */

#endif
