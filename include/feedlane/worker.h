/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file worker.h
 * The worker's side of a loader: the pull form, in which the worker requests tasks, and the callback form.
 */
#ifndef FEEDLANE_WORKER_H
#define FEEDLANE_WORKER_H

#include "batch.h"
#include "dataset.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Returns the descriptor named by $FEEDLANE_WORKER_FD if a trainer started this process, otherwise -1. Clears the
 * variable, makes the descriptor close-on-exec and marks the process as a worker, which cannot create a loader with
 * workers. Call it early in main, before other threads use the environment. A setuid, setgid or otherwise privileged
 * program (AT_SECURE) gets -1, because it must not become a worker of the user who starts it.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_worker_fd(void);
/**
 * Becomes a worker: of the trainer at the other end of `fd`, or, if fd is -1 (thread mode), of this process's loader
 * `l`. `l` is NULL if `fd` is given. Calls on the worker may come from any thread, one at a time.
 *
 * The library takes ownership of `fd` in every case and makes it close-on-exec. If `fd` is 0, 1 or 2, the library moves
 * it to a higher number and closes `fd`, so that nothing is printed into it. From then on the kernel kills this process
 * when the trainer dies (but see feedlane_loader_config.no_lifeline). It does not kill programs that this process has
 * started; these must request PR_SET_PDEATHSIG themselves. The memory of loader `l` is kept until its worker is
 * destroyed.
 *  - END, with `l`: no worker is missing. The call does not wait.
 *  - TIMEOUT: the trainer did not answer in time.
 *  - E_PEER_DEAD: there is no trainer.
 *  - E_ABI, E_CORRUPT: the trainer's library lays out memory differently, or its message is invalid.
 *  - E_ARGUMENT: also if `fd` leads to a loader of this process: its worker threads must pass `l` instead.
 *  - E_OS: a system call failed.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_worker_attach(int32_t fd, feedlane_loader *l, int64_t timeout_ns, feedlane_worker **out,
                                            feedlane_error *err);
/** The worker's identity and configuration. Thread safety: one thread at a time. */
FEEDLANE_API int32_t feedlane_worker_get_info(const feedlane_worker *w, feedlane_worker_info *info);
/**
 * Reports that the data set is open (`status` 0) or could not be opened (`status` negative); `text` (may be NULL) is
 * the reason. Call it once, before the first feedlane_worker_next. The trainer's first feedlane_loader_next returns a
 * failure as E_INIT.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_worker_ready(feedlane_worker *w, int32_t status, const char *text, feedlane_error *err);
/**
 * Waits for a task.
 *  - END: the trainer no longer needs this worker, or has ended.
 *  - TIMEOUT: no task came in time.
 *  - INTERRUPTED: a signal ended the wait.
 *  - E_STATE: the previous task was neither committed nor failed.
 *
 * Thread safety: one thread at a time. Waits.
 */
FEEDLANE_API int32_t feedlane_worker_next(feedlane_worker *w, int64_t timeout_ns, const feedlane_task **task,
                                          feedlane_error *err);
/**
 * Checks between samples whether to continue. Costs two loads. Does not detect the trainer's death. Also call it for
 * each sample that is left out at the start of a shard because it was already delivered; the call counts as progress.
 *  - 0: continue.
 *  - ABANDONED: the trainer will drop the task; fail or commit it now.
 *  - END: the trainer no longer needs this worker.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_worker_check(const feedlane_worker *w);
/**
 * Prepares to sleep in an event loop. `*fd` is the descriptor to poll for reading; `fd` may be NULL. The worker owns
 * the descriptor, and its number never changes. It is written on 0 and AGAIN.
 *  - 0: there is no task; sleep.
 *  - AGAIN: call feedlane_worker_next now.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_worker_arm(feedlane_worker *w, int32_t *fd);
/**
 * Allocates memory that lives until the current task is committed or failed. `align` is a power of two; 0 means 16.
 * Returns NULL if there is too little memory or no current task.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API void *feedlane_worker_scratch(feedlane_worker *w, uint64_t bytes, uint64_t align);
/** For feedlane_task_commit. Iterable: the shard has no more samples in this epoch. */
#define FEEDLANE_EXHAUSTED UINT64_MAX
/**
 * Delivers the batch. `rows` (1 .. task->count) rows of every tensor must have been written; declared tensors are cut
 * to this number. If samples were left out, `rows` is at most task->count minus their number; 0 if all were left out.
 * With `rows` FEEDLANE_EXHAUSTED no batch is delivered.
 *  - 0: the task is over.
 *  - E_STALE: the trainer has given up the task, and the task is over.
 *  - E_ARGUMENT: the task is still current.
 *  - E_STATE: the task belongs to a callback and ends when the callback returns. Also FEEDLANE_EXHAUSTED if the loader
 *    is map-style.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_commit(const feedlane_task *task, uint64_t rows, feedlane_error *err);
/**
 * Reports that the batch cannot be made. `position` is the row that failed, -1 for none. `text` and `traceback` (each
 * may be NULL) are sent to the trainer, truncated if too long; feedlane_loader_next returns them with E_SAMPLE.
 * Iterable: the shard's samples up to and including `position` count as consumed and are not made again; with -1 none
 * of this task's samples are consumed.
 *  - E_STATE: the task belongs to a callback and ends when the callback returns.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_fail(const feedlane_task *task, int64_t position, int32_t transient,
                                        const char *text, const char *traceback, feedlane_error *err);
/**
 * The callback form: attaches as feedlane_worker_attach does, opens the data set, processes tasks until the trainer no
 * longer needs this worker, closes the data set and leaves. Behaves as a loop of the functions above. With `l`,
 * `dataset` NULL means its config.dataset.
 *  - END, with `l`: no worker is missing.
 *  - E_STATE: the loader has no config.dataset, and `dataset` is NULL.
 *
 * Thread safety: any thread. Waits. Calls back: data set.
 */
FEEDLANE_API int32_t feedlane_worker_run(int32_t fd, feedlane_loader *l, const feedlane_dataset *dataset,
                                         feedlane_error *err);
/**
 * Leaves: closes the worker, waits until any call in another thread has returned, and then frees the worker. `*w`
 * becomes NULL. NULL is allowed.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_worker_destroy(feedlane_worker **w);
/**
 * Ends the current wait with E_STATE; later calls return E_STATE. The current task goes to another worker after this
 * one has left.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_worker_close(feedlane_worker *w);

#ifdef __cplusplus
}
#endif
#endif
