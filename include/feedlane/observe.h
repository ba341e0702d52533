/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file observe.h
 * The speed of a run: how long each step of a batch took, a trace of batches, distinct errors, and the bottleneck. All
 * is read by a monitor, of a loader in this process or in another one. See docs/observing.md.
 *
 * All times are CLOCK_MONOTONIC in nanoseconds. Waiting is the time in feedlane_loader_next without a batch, and the
 * time from a feedlane_loader_arm that returned 0 until the next call. For a host that polls with timeout 0 and sleeps
 * elsewhere no wait is measured, but feedlane_diagnosis.ready still shows that batches were missing.
 *
 * Stamps that a worker writes are limited to the interval between the trainer's stamps before and after them, so the
 * stamps of a batch never decrease.
 */
#ifndef FEEDLANE_OBSERVE_H
#define FEEDLANE_OBSERVE_H

#include "arena.h"
#include "loader.h"
#include "monitor.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Facts about a loader, and its position in the epoch. Of a consumer: only `pid`, which is the consumer's, `iterable`,
 *  `batch_size`, `epoch`, `batches` and `next_epoch`. */
typedef struct feedlane_loader_info {
  size_t size;
  int64_t pid;               /**< of the trainer, in the trainer's PID namespace */
  uint64_t created_ns;       /**< when the loader was created */
  int32_t start;             /**< FEEDLANE_START_* */
  int32_t workers;           /**< 0: inline */
  int32_t prefetch_factor;   /**< current number of batches in flight per worker */
  int32_t held;              /**< config.held */
  int64_t batch_size;        /**< most rows in a batch */
  int64_t task_timeout_ns;   /**< 0: none */
  int32_t iterable;          /**< 1: an iterable data set */
  int32_t in_epoch;          /**< 1: since the last begin, next has not returned END, and stop was not called */
  int64_t epoch;             /**< the newest epoch; -1: none has begun */
  int64_t batch;             /**< number of the batch after the newest one yielded */
  int64_t batches;           /**< batches in the epoch, at most config.max_batches; -1: unknown, or another process's
                                    loader that has begun no epoch */
  uint64_t begun_ns;         /**< when the epoch began; 0: none has begun */
  uint64_t yielded_ns;       /**< when the newest batch was yielded; 0: none was yielded */
  uint64_t waiting_since_ns; /**< when the current wait for a batch began; 0: not waiting now */
  uint64_t trace;            /**< records that the trace keeps; 0: off */
  char name[64];             /**< config.name, or empty */
  char version[16];          /**< version of the trainer's library */
  /** Consumer of a shared loader: the smallest epoch that feedlane_loader_begin accepts. At first this is the feeder's
   *  epoch at the time of the join, afterwards one more than the last epoch begun here. Otherwise -1. */
  int64_t next_epoch;
} feedlane_loader_info;

/** Facts about this loader, and its position in the epoch. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_info(const feedlane_monitor *m, feedlane_loader_info *out);

/** Number of buckets of a histogram. Bucket 0 counts durations of 0 ns, bucket b durations of 2^(b-1) to 2^b - 1 ns,
 *  the last bucket all longer durations. */
#define FEEDLANE_HISTOGRAM_BUCKETS 47

/** A histogram of durations. */
typedef struct feedlane_histogram {
  uint64_t count;                               /**< the sum of all buckets */
  uint64_t sum_ns;                              /**< sum of all durations */
  uint64_t buckets[FEEDLANE_HISTOGRAM_BUCKETS]; /**< see FEEDLANE_HISTOGRAM_BUCKETS */
} feedlane_histogram;

/**
 * Percentiles of durations in ns: the shortest duration that at least 50, 90 or 99 % of all durations do not exceed;
 * 0: there are no durations. The loader counts in eight buckets per power of two, so each percentile differs from the
 * exact value by at most an eighth.
 */
typedef struct feedlane_percentiles {
  uint64_t p50_ns; /**< the median */
  uint64_t p90_ns; /**< 90 % lasted no longer */
  uint64_t p99_ns; /**< 99 % lasted no longer */
} feedlane_percentiles;

/** Durations of the steps of batches, over the loader's life. Failed batches count, except in `hold`. */
typedef struct feedlane_timings {
  size_t size;
  feedlane_histogram exposed; /**< wait for the batch: in next, and after feedlane_loader_arm returned 0; 0: the batch
                                   was ready. Without the first batch of each epoch. Data readiness is
                                   buckets[0] / count */
  feedlane_histogram start;   /**< as `exposed`, for the first batch of each epoch: workers start, the pipeline fills */
  feedlane_histogram queue;   /**< from the batch's dispatch to a worker until the worker began it */
  feedlane_histogram work;    /**< from then until the worker committed the batch */
  feedlane_histogram ready;   /**< from then until next yielded the batch */
  feedlane_histogram hold;    /**< from then until the slot was free; counted when it is reused or the epoch ends */
  feedlane_percentiles exposed_percentiles; /**< of `exposed` */
  feedlane_percentiles start_percentiles;   /**< of `start` */
  feedlane_percentiles queue_percentiles;   /**< of `queue` */
  feedlane_percentiles work_percentiles;    /**< of `work` */
  feedlane_percentiles ready_percentiles;   /**< of `ready` */
  feedlane_percentiles hold_percentiles;    /**< of `hold` */
} feedlane_timings;

/**
 * The timings of the batches that one worker made or, with `worker` -1, of all batches. END: there are fewer workers.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_get_timings(const feedlane_monitor *m, int32_t worker, feedlane_timings *out);

/** One batch and its stamps. A stamp of 0 means that the step has not happened yet. An array's elements are
 *  records[0].size bytes apart. */
typedef struct feedlane_batch_record {
  size_t size;
  uint64_t sequence;      /**< number of the record in the trace, from 1; 0: read from a slot */
  uint64_t task;          /**< unique in the loader, also among attempts; 0: no data now */
  int64_t epoch;          /**< as given to feedlane_loader_begin */
  int64_t batch;          /**< number of the batch in the epoch */
  int32_t worker;         /**< -1: made inline */
  int32_t attempt;        /**< attempt at the batch, from 0 */
  int32_t slot;           /**< slot where the batch is or was */
  int32_t status;         /**< 0, or the error that next returned for the batch */
  uint64_t rows;          /**< rows yielded */
  uint64_t bytes;         /**< size of its tensors */
  uint64_t dispatched_ns; /**< when it was sent to its worker, newest attempt */
  uint64_t begun_ns;      /**< when the worker began it */
  uint64_t committed_ns;  /**< when the worker committed it or its failure */
  uint64_t swept_ns;      /**< when the trainer read the result */
  uint64_t yielded_ns;    /**< when next yielded it */
  uint64_t released_ns;   /**< when its slot became free */
  uint64_t exposed_ns;    /**< how long next waited for it */
} feedlane_batch_record;

/** For feedlane_monitor_get_trace: the batches in the slots. */
#define FEEDLANE_SLOTS UINT64_MAX
/**
 * Copies records of the trace whose sequence is at least `from`, oldest first, at most `cap` records. `*count` is the
 * number of copied records. A record is written when the batch's slot is reused, when the epoch ends or, for a batch
 * that is still held then, at a later begin or stop. Until then FEEDLANE_SLOTS shows the batch. The trace
 * keeps the newest config.trace records. If older ones are lost, the sequence of the first record is larger than
 * `from`.
 *
 * With `from` FEEDLANE_SLOTS: one record for each slot, by number, at most `cap`, with or without a trace. A record is
 * the batch in the slot or, if `released_ns` is not 0, the last batch that was there. `task` is 0 if the slot has not
 * been used yet or is being reused.
 *  - END: there is no such record, or `cap` is 0.
 *  - E_STATE: config.trace is 0, and `from` is not FEEDLANE_SLOTS.
 *  - E_ABI: records[0].size is not the size of a struct of this header.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_get_trace(const feedlane_monitor *m, uint64_t from,
                                                feedlane_batch_record *records, uint64_t cap, uint64_t *count);

/** Errors or events of one kind whose texts differ only in numbers. */
typedef struct feedlane_error_record {
  size_t size;
  int32_t kind;   /**< FEEDLANE_EVENT_*; 0: an error that next returned */
  int32_t code;   /**< FEEDLANE_E_*, or the result of the data set's callback; 0: nothing failed */
  int32_t worker; /**< worker of the newest occurrence, or -1 */
  int32_t reserved;
  int64_t batch;     /**< batch of the newest occurrence, or -1 */
  int64_t sample;    /**< sample of the newest occurrence, or -1 */
  uint64_t count;    /**< number of occurrences */
  uint64_t first_ns; /**< time of the first occurrence */
  uint64_t last_ns;  /**< time of the newest occurrence */
  char text[192];    /**< the beginning of the newest occurrence's text */
} feedlane_error_record;

/**
 * The distinct error with this index, in the order of first occurrence. END: there are fewer. The loader keeps 32;
 * another one replaces the error that has not occurred for the longest time.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_get_error(const feedlane_monitor *m, int32_t index, feedlane_error_record *out);

#define FEEDLANE_BOUND_NOTHING 0    /**< unknown: no epoch is in progress, or too little has happened */
#define FEEDLANE_BOUND_TRAINER 1    /**< the trainer: batches were ready when it requested them */
#define FEEDLANE_BOUND_DATA 2       /**< the data set: workers were busy, and the trainer waited */
#define FEEDLANE_BOUND_WORKER 3     /**< one worker, which is slow, stopped or stuck: see `worker` */
#define FEEDLANE_BOUND_SLOTS 4      /**< memory: the trainer holds the slots that workers would need */
#define FEEDLANE_BOUND_STARTING 5   /**< start: workers are starting or opening their data sets */
#define FEEDLANE_BOUND_PROCESSORS 6 /**< processors: ready processes did not run, or workers idled during waits */

/** The bottleneck of a run in an interval, with figures. */
typedef struct feedlane_diagnosis {
  size_t size;
  int32_t bound;        /**< FEEDLANE_BOUND_* */
  int32_t worker;       /**< FEEDLANE_BOUND_WORKER: the worker's id; otherwise -1 */
  uint64_t interval_ns; /**< length of the interval */
  uint64_t batches;     /**< batches yielded; this and the following: in the interval */
  uint64_t samples;     /**< rows yielded */
  uint64_t bytes;       /**< tensor bytes yielded */
  uint64_t exposed_ns;  /**< time that next waited, including the current wait */
  uint64_t start_ns;    /**< part of exposed_ns that was spent waiting for the first batch of an epoch */
  uint64_t busy_ns;     /**< time with a task in hand, summed over all workers */
  uint64_t ready;       /**< batches that were ready when next was called, without the first batch of each epoch */
  uint64_t asked;       /**< all batches requested, without the first batch of each epoch */
  char text[512];       /**< the bottleneck in one or two sentences */
  char advice[512];     /**< suggested change, or empty */
} feedlane_diagnosis;

/**
 * Finds the bottleneck of an interval: for a loader of this process (feedlane_monitor_of), of the current epoch so far
 * or of the newest epoch; for another process's loader, of the time since the previous call on this monitor by any
 * thread, or since its opening. Reads from /proc how long workers waited for a processor (this process: only workers
 * that started after feedlane_loader_begin had returned; another process: also the trainer) and, for
 * FEEDLANE_BOUND_WORKER, the worker's state.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_diagnose(feedlane_monitor *m, feedlane_diagnosis *out);

/**
 * Writes a short report for people about the interval of feedlane_monitor_diagnose: rates, exposed wait, each worker,
 * the bottleneck, advice, and the errors that occurred. `*bytes` is its length without the terminating zero, which is
 * written if there is room. The format may change; programs use feedlane_monitor_diagnose.
 *  - E_LIMIT: `cap` is too small. To get the length, pass buffer NULL and cap 0.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_report(feedlane_monitor *m, char *buffer, uint64_t cap, uint64_t *bytes,
                                             feedlane_error *err);

/** A standalone ring, see ring.h. */
typedef struct feedlane_ring_info {
  size_t size;
  int64_t pid;            /**< as passed: the receiver, or a process that inherited its descriptors */
  uint64_t message_bytes; /**< size of a message */
  uint64_t capacity;      /**< messages in a lane */
  uint64_t lanes;         /**< most senders at the same time */
  uint64_t received;      /**< messages that the receiver has released, in all lanes */
  uint64_t control_bytes; /**< size of the control segment */
} feedlane_ring_info;

/**
 * Reads one ring of process `pid`, which must run as the same user. `nth` counts the rings of the process from 0.
 *  - END: the process has no such ring.
 *  - E_PEER_DEAD, E_OS, E_ABI, E_CORRUPT: see feedlane_monitor_open.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_ring(int64_t pid, int32_t nth, feedlane_ring_info *out, feedlane_error *err);

/** The most processes in an arena: the owner and 255 members. */
#define FEEDLANE_MAX_ARENA_PROCESSES 256
/** A member of an arena, its owner's process included. An array's elements are members[0].size bytes apart. */
typedef struct feedlane_arena_member {
  size_t size;
  int64_t pid;            /**< as the owner sees it; 0: it has not joined yet */
  uint32_t number;        /**< `worker` of the batches that it has put; 0: the owner's process */
  int32_t cut_off;        /**< 1: the owner has cut it off, because it sent an invalid request */
  uint64_t held;          /**< entries that it holds */
  uint64_t waiting;       /**< its requests that wait for memory or for a key */
  uint64_t granted_bytes; /**< memory that it has for its next puts */
  uint64_t hits;          /**< gets that found their entry */
  uint64_t misses;        /**< gets that did not */
} feedlane_arena_member;

/**
 * Reads one arena of process `pid`, its owner, which must run as the same user. `nth` counts the arenas of the process
 * from 0. `out` is as the owner saw it when it last served; `held` in it is 0. Copies at most `cap` members, in
 * the order in which they joined; `*count` is how many there are. Wakes nobody.
 *  - END: the process has no such arena.
 *  - E_PEER_DEAD, E_OS, E_ABI, E_CORRUPT: see feedlane_monitor_open. E_ABI also: members[0].size is not the size of a
 *    struct of this header.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_arena(int64_t pid, int32_t nth, feedlane_arena_stats *out,
                                            feedlane_arena_member *members, uint64_t cap, uint64_t *count,
                                            feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
