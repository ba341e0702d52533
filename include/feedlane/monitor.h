/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file monitor.h
 * Observing loaders: counters of a loader and its workers, the same seen from another process, and events.
 */
#ifndef FEEDLANE_MONITOR_H
#define FEEDLANE_MONITOR_H

#include "loader.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_monitor feedlane_monitor; /**< reads the counters of another process's loader */

/** Totals over the loader's life, and its present state. */
typedef struct feedlane_stats {
  size_t size;
  uint64_t batches; /**< yielded */
  uint64_t samples; /**< rows yielded */
  uint64_t bytes;   /**< tensor bytes yielded */
  uint64_t epochs;  /**< begun */
  uint64_t
      wait_ns; /**< time in next without a batch to yield, polling or asleep, and since feedlane_loader_arm returned 0; inline: making it */
  uint64_t restarts;        /**< workers that replaced one that died */
  uint64_t redispatched;    /**< tasks sent out again */
  uint64_t quarantined;     /**< batches given up */
  uint64_t invalid_results; /**< results refused by validation */
  uint64_t late_results;    /**< results of abandoned tasks */
  uint64_t slots;           /**< now: all slots */
  uint64_t slots_free;      /**< now: free slots */
  uint64_t slots_held;      /**< now: slots of batches that the trainer holds */
  uint64_t control_bytes;   /**< now: size of the control segment, all of it reserved */
  uint64_t data_bytes;      /**< now: size of the data segment */
  uint64_t reserved_bytes;  /**< memory reserved for both from the start */
  uint64_t retried;         /**< samples (or batches, by `fetch`) that were retried */
  uint64_t substituted;     /**< samples that others replaced */
  uint64_t skipped;         /**< samples left out */
  uint64_t hung;            /**< workers that exceeded config.task_timeout_ns */
  char rank_source[16];     /**< of a distributed sampler, see feedlane_rank; empty: another sampler */
  uint64_t huge_bytes;    /**< of data_bytes, in huge pages from the start. 0 where the system gives shared memory none
                                 (transparent_hugepage/shmem_enabled), and for segments below 8 MiB. If not 0, the whole
                                 of a slot may take memory */
  uint64_t start_wait_ns; /**< of wait_ns, that for the first batch of each epoch */
  uint64_t restarts_signal;     /**< of restarts, in place of a worker that was killed by a signal */
  uint64_t restarts_exit;       /**< that exited, or ended in a way that its parent alone knows */
  uint64_t restarts_hung;       /**< that exceeded a deadline */
  uint64_t restarts_invalid;    /**< that sent something invalid */
  uint64_t restarts_unattached; /**< that ended before it attached */
} feedlane_stats;

#define FEEDLANE_WORKER_NONE 0     /**< does not exist, or has ended */
#define FEEDLANE_WORKER_STARTING 1 /**< started or offered, not attached */
#define FEEDLANE_WORKER_OPENING 2  /**< attached, opens its data set */
#define FEEDLANE_WORKER_READY 3    /**< accepts tasks */
#define FEEDLANE_WORKER_STOPPING 4 /**< was asked to end */
#define FEEDLANE_WORKER_FAILED 5   /**< could not open its data set */

/** One worker. The worker itself writes the counters; replacements add to them. */
typedef struct feedlane_worker_stats {
  size_t size;
  int64_t pid;             /**< 0: unknown; an external worker's is known once it has attached */
  int32_t state;           /**< FEEDLANE_WORKER_* */
  int32_t generation;      /**< 0, +1 for each replacement */
  uint64_t tasks;          /**< committed, failed or dropped */
  uint64_t samples;        /**< rows committed */
  uint64_t bytes;          /**< tensor bytes committed */
  uint64_t errors;         /**< tasks failed */
  uint64_t work_ns;        /**< from receipt of a task to its commit or failure */
  uint64_t wait_ns;        /**< asleep */
  uint64_t state_since_ns; /**< since when it has been in this state, CLOCK_MONOTONIC */
  uint64_t task_since_ns;  /**< since when it has its present task in hand; 0: it has none */
  int64_t epoch;           /**< of the task in hand, or -1 */
  int64_t batch;           /**< of the task in hand, or -1 */
  int64_t row;             /**< its row in progress, or -1 */
} feedlane_worker_stats;

/** The loader's counters. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_loader_get_stats(const feedlane_loader *l, feedlane_stats *out);
/** The counters of the worker with this id. END: there are fewer workers. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_loader_get_worker_stats(const feedlane_loader *l, int32_t worker,
                                                      feedlane_worker_stats *out);

/**
 * Opens a loader of process `pid`, which must run as the same user, for reading its counters. Reading takes no system
 * call and does not wake the other process. `nth` counts its loaders from 0, in the order of their descriptors. The
 * loader's memory is not freed before the monitor is closed too; after the end of the loader or of its process the last
 * numbers remain. A process that was killed while it waited seems to wait on.
 *  - END: the process has no such loader.
 *  - E_PEER_DEAD: there is no such process.
 *  - E_OS: the process belongs to another user, or a system call failed.
 *  - E_ABI, E_CORRUPT: its library lays out memory differently, or the memory is invalid.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_open(int64_t pid, int32_t nth, feedlane_monitor **out, feedlane_error *err);
/** What feedlane_loader_get_stats returns in that process. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_stats(const feedlane_monitor *m, feedlane_stats *out);
/**
 * What feedlane_loader_get_worker_stats returns in that process. END: there are fewer workers.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_get_worker_stats(const feedlane_monitor *m, int32_t worker,
                                                       feedlane_worker_stats *out);
/**
 * Closes the monitor, so that later calls return E_STATE, and releases a reference. `*m` becomes NULL. NULL is allowed.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_monitor_close(feedlane_monitor **m);
/** Adds a reference. E_STATE: the last one was released. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_ref(feedlane_monitor *m);
/** Releases a reference; the last one unmaps the loader. NULL is allowed. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_unref(feedlane_monitor *m);

#define FEEDLANE_EVENT_WARNING 1        /**< see what.text */
#define FEEDLANE_EVENT_WORKER_DIED 2    /**< what.worker; what.batch it worked on (iterable: task->batch), or -1 */
#define FEEDLANE_EVENT_WORKER_STARTED 3 /**< a replacement of a dead worker */
#define FEEDLANE_EVENT_WORKER_WANTED 4  /**< external: feedlane_loader_open_worker would return one */
#define FEEDLANE_EVENT_QUARANTINED 5    /**< what.batch (iterable: task->batch) was given up */
#define FEEDLANE_EVENT_INVALID 6        /**< what.worker sent something invalid */
/** A sample that failed: what.epoch, batch, sample, worker, `found` retries, the failure in `text`, and in `code` what
 *  the callback returned. Reported when its batch is yielded. */
#define FEEDLANE_EVENT_SAMPLE_RETRIED 7
#define FEEDLANE_EVENT_SAMPLE_SUBSTITUTED 8 /**< what.needed is the index of the substitute */
#define FEEDLANE_EVENT_SAMPLE_SKIPPED 9     /**< see FEEDLANE_EVENT_SAMPLE_RETRIED */
#define FEEDLANE_EVENT_WORKER_HUNG \
  10                                    /**< what.worker, batch and sample; for how long and the process's state in
                                                 `text`. Reported again if the process exists 1 s after SIGKILL, and
                                                 for a worker that did not start in time */
#define FEEDLANE_EVENT_DEVICE_FAILED 11 /**< a stream failed with the release of a batch on it */
#define FEEDLANE_EVENT_CONSUMER_LEFT 12 /**< a consumer has left or ended: its place and process in `text` */
#define FEEDLANE_EVENT_CONSUMER_LAGS 13 /**< the feeder waits for a consumer: place, process, what it holds in `text` */
#define FEEDLANE_EVENT_CONSUMER_EVICTED 14 /**< see FEEDLANE_LAG_EVICT; why in `text` */

/** Something that happened in a loader. */
typedef struct feedlane_event {
  size_t size;
  int32_t kind; /**< FEEDLANE_EVENT_* */
  int32_t reserved;
  uint64_t time_ns;    /**< CLOCK_MONOTONIC */
  uint64_t lost;       /**< earlier events that were overwritten: the queue keeps the newest 4096 */
  feedlane_error what; /**< who, where, and the description; `code` is 0 where nothing failed */
} feedlane_event;

/** The oldest event that was not read yet. END: none. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_loader_event(feedlane_loader *l, feedlane_event *out);

#ifdef __cplusplus
}
#endif
#endif
