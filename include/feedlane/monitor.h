/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file monitor.h
 * Observing loaders, in this process or in another one: monitors, counters of a loader and its workers, events.
 */
#ifndef FEEDLANE_MONITOR_H
#define FEEDLANE_MONITOR_H

#include "loader.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_monitor feedlane_monitor; /**< reads the counters of a loader */

/** Totals over the loader's life, and its current state. */
typedef struct feedlane_stats {
  size_t size;
  uint64_t batches;      /**< batches yielded */
  uint64_t samples;      /**< rows yielded */
  uint64_t bytes;        /**< tensor bytes yielded */
  uint64_t epochs;       /**< epochs begun */
  uint64_t wait_ns;      /**< time without a batch to yield: in next (polling or asleep), and after feedlane_loader_arm
                              returned 0; inline: time in which next makes the batch. Not the time in which no batch
                              is in flight because a live sampler has no index */
  uint64_t restarts;     /**< workers that replaced a dead one */
  uint64_t redispatched; /**< tasks sent out again */
  uint64_t quarantined;  /**< batches given up */
  uint64_t invalid_results;     /**< results, messages, rows and lanes refused by validation */
  uint64_t late_results;        /**< results of abandoned tasks */
  uint64_t slots;               /**< now: all slots */
  uint64_t slots_free;          /**< now: free slots */
  uint64_t slots_held;          /**< now: slots of batches that the trainer holds */
  uint64_t control_bytes;       /**< now: size of the control segment, which is fully reserved */
  uint64_t data_bytes;          /**< now: size of the data segment */
  uint64_t reserved_bytes;      /**< memory reserved at creation for both segments */
  uint64_t retried;             /**< samples (with `fetch`: batches) that were retried */
  uint64_t substituted;         /**< samples replaced by other samples */
  uint64_t skipped;             /**< samples left out */
  uint64_t hung;                /**< workers that exceeded config.task_timeout_ns */
  char rank_source[16];         /**< source of the sampler's rank, see feedlane_rank; empty: none, or another process */
  uint64_t huge_bytes;          /**< part of data_bytes that was in huge pages at creation. 0 if the system has none
                                     for shared memory (transparent_hugepage/shmem_enabled), or if the segment is
                                     below 8 MiB. If not 0, all of a slot may take memory */
  uint64_t start_wait_ns;       /**< part of wait_ns that was spent waiting for the first batch of each epoch */
  uint64_t restarts_signal;     /**< restarts of workers that were killed by a signal */
  uint64_t restarts_exit;       /**< of workers that exited, or whose exit status only their parent can read */
  uint64_t restarts_hung;       /**< of workers that exceeded a deadline */
  uint64_t restarts_invalid;    /**< of workers that sent invalid data */
  uint64_t restarts_unattached; /**< of workers that ended before they attached */
} feedlane_stats;

#define FEEDLANE_WORKER_NONE 0     /**< does not exist, or has ended */
#define FEEDLANE_WORKER_STARTING 1 /**< started or offered, but not attached yet */
#define FEEDLANE_WORKER_OPENING 2  /**< attached, and opening its data set */
#define FEEDLANE_WORKER_READY 3    /**< accepts tasks */
#define FEEDLANE_WORKER_STOPPING 4 /**< was asked to end */
#define FEEDLANE_WORKER_FAILED 5   /**< could not open its data set */

/** One worker. The worker itself writes the counters, and its replacements add to them. */
typedef struct feedlane_worker_stats {
  size_t size;
  int64_t pid;             /**< 0: unknown; the pid of an external worker is known once it has attached */
  int32_t state;           /**< FEEDLANE_WORKER_* */
  int32_t generation;      /**< number of earlier workers with this id */
  uint64_t tasks;          /**< tasks committed, failed or dropped */
  uint64_t samples;        /**< rows committed */
  uint64_t bytes;          /**< tensor bytes committed */
  uint64_t errors;         /**< tasks failed */
  uint64_t work_ns;        /**< time from receipt of a task to its commit or failure */
  uint64_t wait_ns;        /**< time asleep */
  uint64_t state_since_ns; /**< when it entered this state, CLOCK_MONOTONIC */
  uint64_t task_since_ns;  /**< when it got its current task; 0: it has none */
  int64_t epoch;           /**< epoch of the current task, or -1 */
  int64_t batch;           /**< batch of the current task, or -1 */
  int64_t row;             /**< row of this batch that is in progress, or -1 */
} feedlane_worker_stats;

/**
 * Opens a monitor of a loader of this process. It keeps the loader's memory: after the loader was destroyed, the
 * monitor returns the last values, and feedlane_pool_destroy returns E_STATE for the loader's pool. A monitor of a
 * consumer answers only feedlane_monitor_get_stats and _get_info; the rest belongs to the feeder.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_of(feedlane_loader *l, feedlane_monitor **out, feedlane_error *err);
/**
 * Opens a loader of process `pid`, which must run as the same user, for reading its counters. Reading takes no system
 * call and does not wake the other process. `nth` counts the loaders of the process from 0, in the order of their
 * descriptors. The monitor keeps the loader's memory alive: after the loader or its process has ended, the monitor
 * returns the last values. If the process is killed while it waits, its wait time keeps growing.
 *  - END: the process has no such loader.
 *  - E_PEER_DEAD: there is no such process.
 *  - E_OS: the process belongs to another user, or a system call failed.
 *  - E_ABI, E_CORRUPT: the library of the process lays out memory differently, or the memory is invalid.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_open(int64_t pid, int32_t nth, feedlane_monitor **out, feedlane_error *err);
/** The loader's counters. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_stats(const feedlane_monitor *m, feedlane_stats *out);
/** The counters of the worker with this id. END: there are fewer workers. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_worker_stats(const feedlane_monitor *m, int32_t worker,
                                                       feedlane_worker_stats *out);
/**
 * Frees the monitor. No other thread may be in a call on it. `*m` becomes NULL. NULL is allowed. If nothing else keeps
 * the memory of a loader of this process, the call frees it, so do not call it inside a callback of a device's driver.
 *
 * Thread safety: one thread at a time. Calls back: sampler, backend.
 */
FEEDLANE_API int32_t feedlane_monitor_destroy(feedlane_monitor **m);

#define FEEDLANE_EVENT_WARNING 1        /**< see what.text */
#define FEEDLANE_EVENT_WORKER_DIED 2    /**< what.worker died; what.batch: its batch (iterable: task->batch), or -1 */
#define FEEDLANE_EVENT_WORKER_STARTED 3 /**< a replacement of a dead worker was started */
#define FEEDLANE_EVENT_WORKER_WANTED 4  /**< external: a worker is missing, call feedlane_loader_open_worker */
#define FEEDLANE_EVENT_QUARANTINED 5    /**< what.batch (iterable: task->batch) was given up */
#define FEEDLANE_EVENT_INVALID 6        /**< what.worker sent invalid data */
/** A sample failed. Members of `what`: epoch, batch, sample, worker; `found` is the number of retries, `text` the
 *  failure, `code` the callback's result. Reported when the sample's batch is yielded. */
#define FEEDLANE_EVENT_SAMPLE_RETRIED 7
#define FEEDLANE_EVENT_SAMPLE_SUBSTITUTED 8 /**< what.needed is the index of the substitute */
#define FEEDLANE_EVENT_SAMPLE_SKIPPED 9     /**< see FEEDLANE_EVENT_SAMPLE_RETRIED */
#define FEEDLANE_EVENT_WORKER_HUNG \
  10 /**< what.worker exceeded config.task_timeout_ns with what.batch, what.sample; `text` has the duration and the
          state of the process. Also reported if the process still exists 1 s after SIGKILL, and for a worker that did
          not start in time */
#define FEEDLANE_EVENT_DEVICE_FAILED 11    /**< a stream failed while the release of a batch on it was pending */
#define FEEDLANE_EVENT_CONSUMER_LEFT 12    /**< a consumer has left or died; `text` names its place and process */
#define FEEDLANE_EVENT_CONSUMER_LAGS 13    /**< the feeder waits for a consumer; `text`: place, process, batches held */
#define FEEDLANE_EVENT_CONSUMER_EVICTED 14 /**< see FEEDLANE_LAG_EVICT; `text` has the reason */

/** Something that happened in a loader. */
typedef struct feedlane_event {
  size_t size;
  int32_t kind; /**< FEEDLANE_EVENT_* */
  int32_t reserved;
  uint64_t time_ns;    /**< CLOCK_MONOTONIC */
  uint64_t lost;       /**< earlier events that were overwritten: the queue keeps the newest 4096 */
  feedlane_error what; /**< worker, batch, sample and description; `code` is 0 if nothing failed */
} feedlane_event;

/** Takes the oldest event from the queue. END: the queue is empty. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_loader_event(feedlane_loader *l, feedlane_event *out);

#ifdef __cplusplus
}
#endif
#endif
