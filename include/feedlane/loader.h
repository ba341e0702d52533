/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file loader.h
 * The trainer's side of a loader: configuration, epochs, the next batch, workers, and states to resume from.
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

/** A batch_size that means no batching: a task has one index, and tensors have no batch dimension. */
#define FEEDLANE_UNBATCHED (-1)

#define FEEDLANE_DISPATCH_LEAST_LOADED 0 /**< a batch goes to the worker with the fewest unfinished tasks */
#define FEEDLANE_DISPATCH_ROUND_ROBIN 1  /**< batch i goes to worker i mod workers */

#define FEEDLANE_SHARE_NONE 0  /**< not shared: feedlane_loader_next of this loader yields the batches */
#define FEEDLANE_SHARE_EVERY 1 /**< every consumer gets every batch */
#define FEEDLANE_SHARE_DEAL 2  /**< the k-th batch that is yielded or fails goes to consumer k mod config.consumers */

#define FEEDLANE_START_SPAWN 0    /**< the library starts `argv`, or this program again */
#define FEEDLANE_START_FORK 1     /**< the library forks this process; `dataset` runs in the children */
#define FEEDLANE_START_THREAD 2   /**< threads of this process call feedlane_worker_run or _attach */
#define FEEDLANE_START_EXTERNAL 3 /**< this program starts processes with descriptors of feedlane_loader_open_worker */
#define FEEDLANE_START_HOST 4     /**< as EXTERNAL, for processes that are started as soon as their descriptor is
                                       there, such as forks: they are sent tasks before they attach */

/** A prefetch_factor that adapts: it starts at 2 and grows as long as that shortens the time that `next` waits for a
 *  batch, up to 64, or 1024 for all workers together. Waits are not measured for a trainer that polls with timeout 0
 *  and never calls feedlane_loader_arm. Slots for the largest number of batches are reserved at creation, within
 *  config.arena_bytes, which must be set. Without `fields` each slot counts as config.slot_bytes there. Rings for these
 *  batches take further memory. feedlane_loader_info reports the current number. The number does not affect the order
 *  or the contents of batches. Not allowed with config.share. */
#define FEEDLANE_PREFETCH_AUTO (-1)

/** Configuration of a loader: its data, its workers, and how it handles failures. */
typedef struct feedlane_loader_config {
  size_t size;

  /* The data and its order. */
  const feedlane_sampler *sampler; /**< required, NULL if iterable; its definition is copied, not its position */
  const feedlane_dataset
      *dataset; /**< inline (workers 0) and fork: required; thread: for feedlane_worker_run; otherwise NULL */
  const feedlane_field *fields; /**< elements are fields[0].size bytes apart; NULL only with slot_bytes */
  uint64_t field_count;         /**< 1 .. FEEDLANE_MAX_TENSORS; 0 if the data set shapes all tensors */
  int64_t batch_size;           /**< 0 is the same as 1; FEEDLANE_UNBATCHED is allowed; 0 with a batch sampler */
  int64_t iterable_length;      /**< iterable: expected number of samples, more cause a warning; 0: unknown */
  int32_t drop_last;            /**< 1: an incomplete last batch is dropped */
  int32_t iterable;             /**< 1: no sampler; each worker iterates its own shard; dispatch is round-robin */
  int32_t deterministic;        /**< iterable, 1: a shard that is opened again yields the same samples, so that the
                                        replacement of a dead worker can skip the delivered ones. Otherwise the shard
                                        of a dead worker is lost for the epoch, unless the data set has `save` */
  int32_t out_of_order;         /**< 1: batches are yielded as they arrive */

  /* Random numbers, and the position to resume from. */
  uint64_t seed;        /**< the base seed; if seed and has_seed are 0, the system draws one */
  const void *state;    /**< from feedlane_loader_state; `begin` of its epoch resumes after this state; NULL: none */
  uint64_t state_bytes; /**< length of `state` */
  int32_t has_seed;     /**< 1: `seed` is used even if it is 0 */
  int32_t reserved;

  /* The workers. */
  int32_t workers;           /**< 0: the data set runs inline, in the thread that calls next */
  int32_t start;             /**< FEEDLANE_START_* */
  int32_t prefetch_factor;   /**< batches in flight per worker; 0: 2; or FEEDLANE_PREFETCH_AUTO */
  int32_t dispatch;          /**< FEEDLANE_DISPATCH_* */
  int32_t keep_workers;      /**< 1: workers outlive the epoch (external ones and threads always do) */
  int32_t no_lifeline;       /**< 1: the trainer's death does not kill workers. A worker finishes its current task, and
                                  its next feedlane_worker_next returns END; with short tasks it ends within 1 ms */
  const char *const *argv;   /**< spawn: NULL-terminated; argv[0] is looked up in PATH (if this program is
                                  privileged, AT_SECURE: in /bin and /usr/bin). PATH, the base of relative paths and
                                  the workers' working directory are the ones at the loader's creation. Each start
                                  executes the file that is then at the path. NULL: this program again, even if its
                                  file was removed or replaced */
  const char *const *envp;   /**< spawn: NULL-terminated "NAME=value"; NULL: this process's environment */
  const void *worker_config; /**< passed to every worker unchanged */
  uint64_t worker_config_bytes; /**< length of `worker_config` */

  /* Workers that fail. */
  int64_t start_timeout_ns; /**< limit from start to attach and, with task_timeout_ns, from attach to ready; 0: 60 s */
  int64_t stop_timeout_ns;  /**< time from the request to stop to SIGTERM; 0: 5 s */
  int64_t term_timeout_ns;  /**< time from SIGTERM to SIGKILL; 0: 1 s */
  /** The longest time in which a worker may neither finish nor start a task; 0: no limit. Checked in next and poll.
   *  Starting a task counts as progress, so a worker can extend its deadline at most once per task. A worker that
   *  exceeds the deadline is reported (FEEDLANE_EVENT_WORKER_HUNG), killed and replaced, and its tasks go to other
   *  workers. A thread cannot be killed: it keeps the slot of its current task until it returns, so extra slots are
   *  reserved for threads. Its shard is lost for the epoch, which is reported as E_HUNG. A process that still exists
   *  1 s after SIGKILL is treated like a thread, but without extra slots. */
  int64_t task_timeout_ns;
  int32_t max_restarts;        /**< most dead workers replaced in the loader's life; 0: 1000; -1: none */
  int32_t max_kills_per_batch; /**< number of its workers' deaths after which a batch is E_QUARANTINED; 0: 3 */

  /* Samples that fail. Policies apply in this order; each such sample leaves a record, see FEEDLANE_EVENT_SAMPLE_*. */
  int32_t retries;          /**< retries of a sample (with `fetch`: a batch) whose error is transient; 0: none */
  int32_t substitute;       /**< map-style, 1: dataset.substitute names a sample to use in place of the failed one */
  int64_t retry_backoff_ns; /**< wait before the first retry, doubled before each further one, up to 1 h; 0: 10 ms */
  int64_t skip_budget;      /**< samples that an epoch may leave out; one more is E_SAMPLE. 0: none; -1: no limit */

  /* Memory and devices. */
  /** Address space of a slot, for tensors that the data set shapes and for metadata. Only touched pages take memory,
   *  but see feedlane_stats.huge_bytes. 0: size of the fields plus 64 KiB; iterable: plus space for the state of a
   *  shard. */
  uint64_t slot_bytes;
  /** A limit for the reserved memory of all slots; 0: none. If it is too small for all slots, fewer batches are in
   *  flight. If it is too small even for one batch in flight and the held ones, err->needed of E_LIMIT is the
   *  minimum. */
  uint64_t arena_bytes;
  feedlane_pool *pinned; /**< registers the reserved part of every slot, once; NULL: no registration. Use a pool with
                              backend "none" for tests and on machines without a device */
  int32_t held;          /**< batches that the trainer may hold at once without fewer batches in flight; 0: 1 */
  /** With `pinned`, > 0: slots are not registered. Instead, the thread in feedlane_loader_run_stager (inline: next)
   *  copies batches ahead into up to this many buffers of the pool. Must be more than `held`. A batch larger than a
   *  buffer is E_SAMPLE. 0: off. */
  int32_t staged;

  /* Observation by monitors: observe.h. */
  const char *name; /**< shown by monitors, at most 63 bytes; NULL: none */
  uint64_t trace;   /**< number of newest batches that the trace keeps, at most 2^24, 128 bytes each in the control
                         segment; 0: the value of the environment variable FEEDLANE_TRACE, or no trace */

  /* Ranks, and epochs of a given length. */
  int32_t world;       /**< iterable: number of ranks that share the data set; 0: 1, whatever a launcher's environment
                            contains (feedlane_rank_detect reads it). Map-style: must be 0 (the sampler has ranks) */
  int32_t rank;        /**< iterable: 0 .. world - 1. Worker `id` iterates shard rank * workers + id of world * workers
                            shards. All ranks must have the same number of workers */
  int64_t max_batches; /**< batches in an epoch, failed ones included, after which `next` returns END; 0: no limit. An
                            epoch may end earlier. Iterable: further batches that workers have begun are dropped */

  /* Consumers in other processes: share.h. Such a loader has workers and no `pinned`: see
   * feedlane_consumer_config. */
  int32_t share;          /**< FEEDLANE_SHARE_* */
  int32_t consumers;      /**< share every: most consumers at a time; share deal: exact number. 0: 1; at most 1024 */
  const char *share_path; /**< a Unix socket to create, where consumers of this user may join; NULL: none. Not "" */
  int32_t share_tail;     /**< share deal, for a last round of fewer than `consumers` batches. 1: the first consumers
                               get them; 0: they are left out, so that all consumers get the same number */
  int32_t share_reserved; /**< 0 */

  /* Placement on machines with several memory nodes. Lists are in the kernel's format: "0-3,8". */
  const char *worker_cpus;  /**< spawn, fork: processors for workers: one list for all, "0-15", or one list per worker,
                                 separated by ';' and reused from the start if there are more workers than lists. NULL:
                                 the processors of this process. E_ARGUMENT: a processor does not exist. If a worker can
                                 use no processor of its list, its start fails with E_OS */
  const char *memory_nodes; /**< memory nodes for the slots' memory: one, or several in turn, page by page; NULL: the
                                 kernel decides, mostly the node of this thread. E_ARGUMENT: a node does not exist or is
                                 forbidden by the cpuset. E_MEMORY: a node has too little memory */
} feedlane_loader_config;

/**
 * Creates a loader: checks the configuration and reserves all memory. Workers start with the first
 * feedlane_loader_begin.
 *  - E_MEMORY, E_LIMIT, E_OS: a resource of the system is missing, or a limit of the configuration is too low.
 *  - E_LIMIT, argument "RLIMIT_NOFILE": the workers need `needed` descriptors (about five each), but only `found` are
 *    left.
 *  - E_STATE: this process is a worker.
 *  - E_CORRUPT, E_ABI: config.state is damaged, or was written by a later library.
 *  - With config.pinned: an error of its backend.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_create(const feedlane_loader_config *config, feedlane_loader **out,
                                            feedlane_error *err);
/**
 * Closes the loader, waits until calls of other threads have returned, stops the workers as feedlane_loader_stop does
 * and releases a reference. The wait has a limit, except for the time that callbacks take. The loader's memory remains
 * while batches are held, worker threads or monitors of it exist, or a thread is in feedlane_loader_run_stager. Until
 * the last batch is released, functions that take a batch's token accept a copy of the handle. `*l` becomes NULL, also
 * on E_HUNG. NULL is allowed.
 *  - E_BUSY: called in a callback of a call on this loader; `*l` is unchanged.
 *  - E_HUNG: a worker did not end, see feedlane_loader_stop.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set, sampler.
 */
FEEDLANE_API int32_t feedlane_loader_destroy(feedlane_loader **l);
/**
 * Ends the current wait, also one in begin or stop, with E_STATE; later calls return E_STATE. Asks workers to end after
 * their current task, but does not wait: feedlane_loader_destroy waits for them, feedlane_loader_unref kills the
 * remaining ones. Held batches stay valid. A thread in feedlane_loader_run_stager returns.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_close(feedlane_loader *l);
/** Adds a reference. E_STATE: the last reference was released. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_loader_ref(feedlane_loader *l);
/**
 * Releases a reference and never waits, so finalizers can call it. Releasing the last one closes the loader. Workers
 * that it started, and external ones without config.no_lifeline, are killed at once, even during a task; other workers
 * and threads are asked to end. Memory remains as after feedlane_loader_destroy. Killed children are reaped when the
 * next loader is created or freed, or when this process ends. Do not call it inside a callback of a device's driver.
 * NULL is allowed.
 *
 * Thread safety: any thread. Calls back: data set, sampler.
 */
FEEDLANE_API int32_t feedlane_loader_unref(feedlane_loader *l);
/**
 * Starts `epoch` (>= 0), and workers that are not running. An epoch in progress is abandoned first.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set, sampler, backend.
 */
FEEDLANE_API int32_t feedlane_loader_begin(feedlane_loader *l, int64_t epoch, feedlane_error *err);
/**
 * Waits for the next batch, in the sampler's order or, with out_of_order, in order of arrival. It does not yield a
 * batch whose samples were all left out. It also detects dead workers and replaces them.
 *  - END: the epoch is over. Workers that are not kept are asked to end; the call waits for them within the timeout.
 *  - TIMEOUT: no batch came in time.
 *  - INTERRUPTED: a signal or feedlane_loader_interrupt ended the wait.
 *  - SLOTS_HELD: the trainer holds every slot; release a batch.
 *
 * Errors of one batch; the next call continues with the next batch:
 *  - E_SAMPLE: a sample failed.
 *  - E_QUARANTINED: the batch killed its worker config.max_kills_per_batch times.
 *
 * Errors of the loader, returned by every call until feedlane_loader_begin:
 *  - E_INIT: a worker could not open its data set, or five workers in a row ended before they were ready, in one place.
 *  - E_RESTARTS: more than config.max_restarts workers died.
 *  - E_HUNG with argument config.start_timeout_ns: a worker did not attach, or did not open its data set, in time, and
 *    no other worker has attached.
 *  - E_CORRUPT, E_ABI: every program that was started failed to attach.
 *
 * Errors that are returned once, or as long as the cause lasts:
 *  - E_HUNG: a worker with a shard hangs and cannot be killed; returned once per epoch. Also if all workers hang and
 *    cannot be killed, or if such workers occupy all slots; returned until one of them continues or ends.
 *  - E_PEER_DEAD: no external worker is attached; returned until feedlane_loader_open_worker is called. Also if a
 *    shard was lost with its worker, see feedlane_loader_config.deterministic; returned once.
 *  - E_OS, E_MEMORY: call again when the cause is gone.
 *  - E_DEVICE: a slot could not be registered again after the death of a worker; call again when the cause is gone.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set, sampler, backend.
 */
FEEDLANE_API int32_t feedlane_loader_next(feedlane_loader *l, int64_t timeout_ns, feedlane_batch *out,
                                          feedlane_error *err);
/**
 * Does the work of feedlane_loader_next without yielding a batch and without waiting: reaps and restarts workers and
 * dispatches tasks. Call it while a device works.
 *  - 0: no batch is ready.
 *  - AGAIN: a batch is ready, or feedlane_loader_next has another outcome to return.
 *
 * Thread safety: one thread at a time. Calls back: sampler, backend.
 */
FEEDLANE_API int32_t feedlane_loader_poll(feedlane_loader *l, feedlane_error *err);
/**
 * Prepares to sleep in an event loop. `*fd` is the descriptor to poll for reading; `fd` may be NULL. The loader owns
 * the descriptor, and its number never changes. It is written on 0 and AGAIN.
 *  - 0: nothing is ready; sleep.
 *  - AGAIN: call feedlane_loader_next or _poll now (a feeder: feedlane_loader_serve or _poll).
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_arm(feedlane_loader *l, int32_t *fd);
/**
 * Ends the current or the next wait in feedlane_loader_next with INTERRUPTED.
 *
 * Thread safety: any thread. Async-signal-safe.
 */
FEEDLANE_API int32_t feedlane_loader_interrupt(feedlane_loader *l);
/**
 * Ends the epoch and all workers: asks them to stop, then sends SIGTERM, then SIGKILL, each after its timeout, and
 * waits until they have ended. feedlane_loader_begin starts them again.
 *  - E_HUNG: a worker still exists: a thread that has not left, or a process stuck in the kernel 10 s after SIGKILL. It
 *    keeps the slot of its current task until it has ended; call again then. feedlane_loader_begin starts an epoch
 *    despite such processes, but not while such threads exist.
 *
 * Thread safety: one thread at a time. Waits. Calls back: data set.
 */
FEEDLANE_API int32_t feedlane_loader_stop(feedlane_loader *l, feedlane_error *err);
/**
 * External mode: returns a connected socket for one worker process, which the caller passes on and closes. `*id` is the
 * id of the worker wanted, or -1 for any missing worker, and is overwritten with the worker's id. The call first checks
 * for deaths, so a host that calls it from time to time (one system call) can replace every dead worker.
 *  - END: no worker is missing. A worker that the loader has given up is not missing until feedlane_loader_begin:
 *    feedlane_loader_next returns E_RESTARTS or E_INIT, or an event of kind FEEDLANE_EVENT_WARNING has the reason.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_open_worker(feedlane_loader *l, int32_t *id, int32_t *fd, feedlane_error *err);

/**
 * With config.staged: the calling thread copies batches into registered buffers until the loader is closed. Without
 * such a thread, feedlane_loader_next waits for one for start_timeout_ns and then returns E_PEER_DEAD.
 *  - E_STATE: the loader is not staged or is inline, or another thread is in this call.
 *
 * Thread safety: any thread. Waits.
 */
FEEDLANE_API int32_t feedlane_loader_run_stager(feedlane_loader *l, feedlane_error *err);

/**
 * Writes the position in the epoch just after the batch of `token` was yielded, for a model checkpoint taken after that
 * batch. `token` 0: after the newest batch, even if it was released. A state takes a few hundred bytes, plus the bytes
 * written by `save` callbacks. A loader created with this state as config.state continues with exactly the remaining
 * batches. It may have any number of workers and, with a distributed sampler, of ranks. Iterable: rank, world and
 * workers must be the same.
 *  - E_LIMIT: `cap` is too small; `*bytes` is the full length. To get the length, pass buffer NULL and cap 0.
 *  - E_STALE: the batch was released.
 *  - E_STATE: the batch belongs to an earlier epoch.
 *  - E_UNSUPPORTED: the loader has a custom sampler without `save` and `load`.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_loader_state(feedlane_loader *l, uint64_t token, void *buffer, uint64_t cap,
                                           uint64_t *bytes, feedlane_error *err);

/** The contents of a state. */
typedef struct feedlane_state_info {
  size_t size;
  int64_t epoch;      /**< the epoch that feedlane_loader_begin continues */
  int64_t batch;      /**< all batches before this one were yielded; iterable: number of batches yielded */
  int64_t samples;    /**< indices in the yielded batches; iterable: samples yielded */
  uint64_t base_seed; /**< used by the resumed loader; config.seed need not be set */
  int32_t ended;      /**< 1: the epoch has returned END; begin the next one */
  int32_t iterable;   /**< 1: the data set is iterable */
} feedlane_state_info;

/**
 * Reads a state.
 *  - E_CORRUPT: the bytes are damaged, or are not a state.
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
