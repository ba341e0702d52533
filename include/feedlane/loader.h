/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file loader.h
 * The trainer's side: what to load and by which workers, the epochs, the next batch, and states to resume from.
 */
#ifndef FEEDLANE_LOADER_H
#define FEEDLANE_LOADER_H

#include "batch.h"
#include "dataset.h"
#include "pool.h"
#include "sampler.h"
#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A batch_size: no batching. A task has one index, and tensors have no batch dimension. */
#define FEEDLANE_UNBATCHED (-1)

#define FEEDLANE_DISPATCH_LEAST_LOADED 0 /**< to the worker with the fewest unfinished tasks */
#define FEEDLANE_DISPATCH_ROUND_ROBIN 1  /**< batch i to worker i mod workers */

#define FEEDLANE_SHARE_NONE 0  /**< the loader's batches are yielded by its own next */
#define FEEDLANE_SHARE_EVERY 1 /**< every consumer gets every batch */
#define FEEDLANE_SHARE_DEAL 2  /**< the k-th batch that is yielded or fails goes to consumer k mod config.consumers */

#define FEEDLANE_START_SPAWN 0    /**< the library starts `argv`, or this program again */
#define FEEDLANE_START_FORK 1     /**< the library forks this process; `dataset` runs in the children */
#define FEEDLANE_START_THREAD 2   /**< the host's threads call feedlane_loader_run_local or _local_worker */
#define FEEDLANE_START_EXTERNAL 3 /**< the host starts processes with feedlane_loader_open_worker's descriptor */

/** A prefetch_factor: begins with 2, and grows while that shortens the time for which `next` waits for a batch, up to 64, or
 *  1024 for all workers together. A trainer that polls with timeout 0 and without feedlane_loader_arm is not seen to wait.
 *  Slots for all of them are reserved at once, within config.arena_bytes, which must be set; without `fields` a slot counts
 *  as config.slot_bytes there. Rings for them come on top. feedlane_loader_info tells the number of the moment. Order and contents of batches do not depend on it. Not for a loader with config.share. */
#define FEEDLANE_PREFETCH_AUTO (-1)

/** What to load, by which workers, and what to do about failures. */
typedef struct feedlane_loader_config {
  size_t size;

  /* The data and its order. */
  const feedlane_sampler *sampler; /**< required, NULL if iterable; its definition is copied, not its position */
  const feedlane_dataset *dataset; /**< inline (workers 0) and fork: required; thread: for run_local; otherwise NULL */
  const feedlane_field *fields;    /**< elements are fields[0].size bytes apart; NULL only with slot_bytes */
  uint64_t field_count;            /**< 1 .. FEEDLANE_MAX_TENSORS; 0 if the data set shapes all tensors */
  int64_t batch_size;              /**< 0: 1; FEEDLANE_UNBATCHED; must be 0 with a batch sampler */
  int64_t iterable_length;         /**< iterable: expected number of samples, more are a warning; 0: unknown */
  int32_t drop_last;               /**< 1: no incomplete last batch */
  int32_t iterable;                /**< 1: no sampler, each worker iterates its own shard, dispatch is round-robin */
  int32_t deterministic;           /**< iterable, 1: a shard opened again yields the same samples, so that the
                                        replacement of a dead worker can skip the delivered ones. Otherwise such a shard
                                        is lost for the epoch, unless the data set has `save` */
  int32_t out_of_order;            /**< 1: batches are yielded as they arrive */

  /* Random numbers, and the position to resume from. */
  uint64_t seed;        /**< the base seed; if 0 and has_seed is 0, it is drawn from the system */
  const void *state;    /**< from feedlane_loader_state: `begin` of its epoch continues after it; NULL: none */
  uint64_t state_bytes; /**< its length */
  int32_t has_seed;     /**< 1: `seed` counts even if it is 0 */
  int32_t reserved;

  /* The workers. */
  int32_t workers;              /**< 0: the data set runs inline, in the thread that calls next */
  int32_t start;                /**< FEEDLANE_START_* */
  int32_t prefetch_factor;      /**< batches in flight per worker; 0: 2; or FEEDLANE_PREFETCH_AUTO */
  int32_t dispatch;             /**< FEEDLANE_DISPATCH_* */
  int32_t keep_workers;         /**< 1: workers outlive the epoch (external ones and threads always do) */
  int32_t no_lifeline;          /**< 1: the trainer's death does not kill workers. Each ends with its next
                                     feedlane_worker_next after its current task; one with short tasks within 1 ms */
  const char *const *argv;      /**< spawn: NULL-terminated; argv[0] is looked up in PATH (in a privileged, AT_SECURE
                                     program in /bin:/usr/bin). PATH and relative paths are those of the loader's
                                     creation, and workers run in the working directory of that time. Each start
                                     executes the file that is at the path then. NULL: this program again, even if
                                     its file was removed or replaced */
  const char *const *envp;      /**< spawn: NULL-terminated "NAME=value"; NULL: this process's environment */
  const void *worker_config;    /**< passed to every worker unchanged */
  uint64_t worker_config_bytes; /**< its length */

  /* Workers that fail. */
  int64_t start_timeout_ns; /**< from start to attach, and with task_timeout_ns from attach to ready; 0: 60 s */
  int64_t stop_timeout_ns;  /**< from the request to stop to SIGTERM; 0: 5 s */
  int64_t term_timeout_ns;  /**< from SIGTERM to SIGKILL; 0: 1 s */
  /** The longest time for which a worker may neither finish a task nor start one; 0: no limit. Checked in next and
   *  poll. Starting a task counts as progress, so a worker can extend its deadline at most once per task. A worker that
   *  exceeds it is reported (FEEDLANE_EVENT_WORKER_HUNG), killed and replaced, and its tasks go to others. A thread
   *  cannot be killed: it keeps the slot of its current task until it returns (there are slots for that), and its shard
   *  is lost for the epoch, reported as E_HUNG. A process that still exists 1 s after SIGKILL is treated like a thread,
   *  without slots for that. */
  int64_t task_timeout_ns;
  int32_t max_restarts;        /**< spawn, fork: dead workers replaced over the loader's life; 0: 1000; -1: none */
  int32_t max_kills_per_batch; /**< deaths of its workers after which a batch is E_QUARANTINED; 0: 3 */

  /* Samples that fail; each one that did leaves a record, see FEEDLANE_EVENT_SAMPLE_*. Applied in this order. */
  int32_t retries;          /**< retries of a sample (with `fetch`: a batch) whose error is transient; 0: none */
  int32_t substitute;       /**< 1: dataset.substitute names another sample in its place; map-style */
  int64_t retry_backoff_ns; /**< before the first retry, doubled before each further one, up to 1 h; 0: 10 ms */
  int64_t skip_budget; /**< samples of an epoch that may be left out, one more is E_SAMPLE; 0: none; -1: no limit */

  /* Memory and devices. */
  /** Address space of a slot, for tensors that the data set shapes, and metadata. Only touched pages take memory, but
   *  see feedlane_stats.huge_bytes. 0: the fields and 64 KiB; iterable: also what a shard may save. */
  uint64_t slot_bytes;
  /** A limit for the reserved memory of all slots; 0: none. If it does not suffice for all, fewer batches are in
   *  flight; if it does not suffice for one, E_LIMIT says how much one takes. */
  uint64_t arena_bytes;
  feedlane_pool *pinned; /**< registers the reserved part of every slot, once; NULL: no. Use a pool with backend "none"
                              for tests and on machines without a device */
  int32_t held;          /**< batches that the trainer holds at the same time, without fewer in flight; 0: 1 */
  /** With `pinned`: slots are not registered. The thread in feedlane_loader_run_stager (inline: next) copies batches
   *  into up to this many buffers of the pool ahead; it must be more than `held`. A batch larger than a buffer is
   *  E_SAMPLE. 0: off. */
  int32_t staged;

  /* What others see of the loader: observe.h. */
  const char *name; /**< shown by monitors, at most 63 bytes; NULL: none */
  uint64_t
      trace; /**< the newest batches that the trace keeps, 128 bytes each in control, at most 2^24; 0: as many as the
                         environment's FEEDLANE_TRACE says, or no trace */

  /* Ranks, and epochs of a given length. */
  int32_t world; /**< iterable: number of ranks that share the data set; 0: 1, whatever the launcher's environment says.
                      feedlane_rank_detect reads that. Map-style: 0, the sampler has the ranks */
  int32_t rank;  /**< iterable: 0 .. world - 1; worker `id` of `workers` iterates shard rank * workers + id of
                      world * workers. All ranks must have as many workers */
  int64_t max_batches; /**< batches of an epoch, failed ones included, after which `next` returns END; 0: no limit. An
                            epoch may end before. Iterable: batches that workers have begun beyond it are dropped */

  /* Consumers in other processes: share.h. Such a loader has workers and no `pinned`. */
  int32_t share;          /**< FEEDLANE_SHARE_* */
  int32_t consumers;      /**< share every: at the same time, at most; share deal: exactly. 0: 1; at most 1024 */
  const char *share_path; /**< a Unix socket to make, by which consumers of this user may join; NULL: none. Not "" */
  int32_t share_tail;     /**< share deal, 1: the last batches go to the first consumers when they are fewer than
                               `consumers`; 0: they are left out, so that all get equally many */
  int32_t share_reserved; /**< 0 */

  /* Placement on machines with several memory nodes. Lists are in the kernel's format: "0-3,8". */
  const char *worker_cpus;  /**< spawn, fork: the processors that workers run on: "0-15", or a list for each worker,
                                 separated by ';', begun anew when there are more workers; NULL: where this process runs.
                                 Processors that do not exist are E_ARGUMENT. A worker that may use none of its
                                 processors is E_OS when it is started */
  const char *memory_nodes; /**< memory nodes that the slots' memory comes from: one, or several in turn, page by page;
                                 NULL: as the kernel decides, mostly the node of this thread. Nodes that do not exist, or
                                 that the cpuset forbids, are E_ARGUMENT; too little memory on one is E_MEMORY */
} feedlane_loader_config;

/**
 * Creates a loader: checks the configuration and reserves all memory. Workers start with the first
 * feedlane_loader_begin.
 *  - E_MEMORY, E_LIMIT, E_OS: a resource of the system is missing, or a limit of the configuration is too low.
 *  - E_LIMIT, argument "RLIMIT_NOFILE": the workers need `needed` descriptors (about five each), `found` are left.
 *  - E_STATE: this process is a worker.
 *  - E_CORRUPT, E_ABI: config.state is damaged, or of a later library.
 *  - With config.pinned: an error of its backend.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_create(const feedlane_loader_config *config, feedlane_loader **out,
                                            feedlane_error *err);
/**
 * Closes the loader, waits until calls of other threads have returned, stops the workers as feedlane_loader_stop does
 * and releases a reference. The wait is bounded, except for the time that callbacks take. While batches are held or
 * threads work for the loader its memory stays, and the functions of a batch's token accept a copy of the handle until
 * the last release. `*l` becomes NULL, also on E_HUNG. NULL is allowed.
 *  - E_BUSY: called in a callback of a call on this loader; `*l` is unchanged.
 *  - E_HUNG: a worker did not end, see feedlane_loader_stop.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set, sampler.
 */
FEEDLANE_API int32_t feedlane_loader_destroy(feedlane_loader **l);
/**
 * Ends the current wait, also one in begin or stop, with E_STATE, and refuses later calls with E_STATE. Workers are
 * asked to end after their current task, without a wait: feedlane_loader_destroy waits for them, feedlane_loader_unref
 * kills those that remain. Held batches stay valid. A thread in feedlane_loader_run_stager returns.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_close(feedlane_loader *l);
/** Adds a reference. E_STATE: the last one was released. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_loader_ref(feedlane_loader *l);
/**
 * Releases a reference and never waits: for finalizers. The last one closes the loader. Workers that it started, or
 * that are tied to its life, are killed at once, even during a task; others and threads are asked to end. Memory stays
 * as after feedlane_loader_destroy. Killed children are reaped when the next loader is created or freed, or with this
 * process. Do not call it inside a callback of a device's driver. NULL is allowed.
 *
 * Thread safety: any thread. Calls back: data set, sampler.
 */
FEEDLANE_API int32_t feedlane_loader_unref(feedlane_loader *l);
/**
 * Starts `epoch` (>= 0), and the workers if none run. An epoch in progress is abandoned first.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set, sampler, backend.
 */
FEEDLANE_API int32_t feedlane_loader_begin(feedlane_loader *l, int64_t epoch, feedlane_error *err);
/**
 * Waits for the next batch, in the sampler's order, or in that of arrival with out_of_order. It does not yield a batch
 * whose samples were all left out. It also finds dead workers and replaces them.
 *  - END: the epoch is over. Workers that are not kept are asked to end; the call waits for them within the timeout.
 *  - TIMEOUT: no batch came in time.
 *  - INTERRUPTED: a signal or feedlane_loader_interrupt ended the wait.
 *  - SLOTS_HELD: the trainer holds every slot; release a batch.
 *
 * Errors of one batch; the following call continues with the following batch:
 *  - E_SAMPLE: a sample failed.
 *  - E_QUARANTINED: the batch killed its worker config.max_kills_per_batch times.
 *
 * Errors of the loader, returned again until feedlane_loader_begin:
 *  - E_INIT: a worker could not open its data set.
 *  - E_RESTARTS: more than config.max_restarts workers died.
 *  - E_HUNG with argument config.start_timeout_ns: a worker did not attach, or did not open its data set, in time, and
 *    no other worker has attached.
 *  - E_CORRUPT, E_ABI: no program that was started could attach.
 *
 * Errors that are returned while the cause lasts, or once:
 *  - E_HUNG: a worker that hangs and cannot be killed has a shard; returned once an epoch. Or all workers hang so, or
 *    they have all slots; returned until one of them continues or ends.
 *  - E_PEER_DEAD: no external worker is attached; returned until feedlane_loader_open_worker. Or a shard was lost with
 *    its worker, see feedlane_loader_config.deterministic; returned once.
 *  - E_OS, E_MEMORY: call again when the cause is gone.
 *  - E_DEVICE: a slot could not be registered again after the death of a worker; call again when the cause is gone.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set, sampler, backend.
 */
FEEDLANE_API int32_t feedlane_loader_next(feedlane_loader *l, int64_t timeout_ns, feedlane_batch *out,
                                          feedlane_error *err);
/**
 * Does the work of feedlane_loader_next without yielding a batch and without waiting: reaps, restarts, dispatches. Call
 * it while a device works.
 *  - 0: no batch is ready.
 *  - AGAIN: one is, or feedlane_loader_next has another outcome to return.
 *
 * Thread safety: one thread at a time. Calls back: sampler, backend.
 */
FEEDLANE_API int32_t feedlane_loader_poll(feedlane_loader *l, feedlane_error *err);
/**
 * A descriptor that an event loop polls for reading after feedlane_loader_arm has returned 0. The loader owns it.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_wait_fd(const feedlane_loader *l, int32_t *fd);
/**
 * Prepares to sleep on the descriptor of feedlane_loader_wait_fd.
 *  - 0: nothing is ready; sleep.
 *  - AGAIN: call feedlane_loader_next or _poll now (a feeder: feedlane_loader_serve or _poll).
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_arm(feedlane_loader *l);
/**
 * Ends the current or the following wait in feedlane_loader_next with INTERRUPTED.
 *
 * Thread safety: any thread. Async-signal-safe.
 */
FEEDLANE_API int32_t feedlane_loader_interrupt(feedlane_loader *l);
/**
 * Ends the epoch and all workers at once: asks them to stop, then sends SIGTERM, then SIGKILL, each after its timeout,
 * and waits for their ends. feedlane_loader_begin starts them again.
 *  - E_HUNG: a worker still exists: a thread that has not left, or a process stuck in the kernel 10 s after SIGKILL. It
 *    keeps the slot of its current task until it is gone; call again then. feedlane_loader_begin works without such
 *    processes, but not without such threads.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set.
 */
FEEDLANE_API int32_t feedlane_loader_stop(feedlane_loader *l, feedlane_error *err);
/**
 * Batches in an epoch, at most config.max_batches; -1: the sampler or the iterable data set does not know.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_length(const feedlane_loader *l, int64_t *batches);
/**
 * External mode: returns a connected socket for one worker process, which the caller passes on and closes. `*id` is the
 * worker wanted, or -1 for any that is missing, and is overwritten with its id. The call looks for deaths first; a host
 * that calls it now and then (one system call) keeps its workers complete. max_restarts does not bound it.
 *  - END: no worker is missing.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_open_worker(feedlane_loader *l, int32_t *id, int32_t *fd, feedlane_error *err);

/**
 * Thread mode, pull form: makes the calling thread a worker. Detach it when feedlane_worker_next returns END. The
 * loader's memory stays until then.
 *  - END: no worker is missing.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_local_worker(feedlane_loader *l, feedlane_worker **out, feedlane_error *err);
/**
 * Thread mode, callback form: the calling thread runs config.dataset until the trainer needs no more tasks.
 *  - END: no worker is missing.
 *
 * Thread safety: any thread. Waits. Calls back: data set.
 */
FEEDLANE_API int32_t feedlane_loader_run_local(feedlane_loader *l, feedlane_error *err);
/**
 * With config.staged: the calling thread copies batches into registered buffers until the loader is closed. While there
 * is no such thread, feedlane_loader_next waits for one for start_timeout_ns and then returns E_PEER_DEAD.
 *  - E_STATE: the loader is not staged or is inline, or another thread is in this call.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_loader_run_stager(feedlane_loader *l, feedlane_error *err);

/**
 * Writes the position in the epoch just after the batch of `token` was yielded: what a checkpoint of the model after
 * that batch must contain. `token` 0: after the newest batch, released or not. A state takes a few hundred bytes, plus
 * what save callbacks wrote. A loader created with it as config.state continues with exactly the remaining batches,
 * with any number of workers and, with a distributed sampler, of ranks. Iterable: with the same rank, world and workers.
 *  - E_LIMIT: `cap` is too small. `*bytes` is the whole length; ask for it with buffer NULL and cap 0.
 *  - E_STALE: the batch was released.
 *  - E_STATE: the batch belongs to an earlier epoch.
 *  - E_UNSUPPORTED: a custom sampler without save and load.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_state(feedlane_loader *l, uint64_t token, void *buffer, uint64_t cap,
                                           uint64_t *bytes, feedlane_error *err);

/** The contents of a state. */
typedef struct feedlane_state_info {
  size_t size;
  int64_t epoch;      /**< the epoch that feedlane_loader_begin continues */
  int64_t batch;      /**< all batches before this one were yielded; iterable: their number */
  int64_t samples;    /**< indices of those batches; iterable: samples yielded */
  uint64_t base_seed; /**< the loader uses it; config.seed need not be set */
  int32_t ended;      /**< 1: the epoch has returned END: begin the next one */
  int32_t iterable;   /**< 1: of an iterable data set */
} feedlane_state_info;

/**
 * Reads a state.
 *  - E_CORRUPT: the bytes are damaged, or not a state.
 *  - E_ABI: a later library wrote it.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_state_read(const void *state, uint64_t bytes, feedlane_state_info *out,
                                         feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
