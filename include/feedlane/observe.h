/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file observe.h
 * Why a run is as fast as it is: how long each step of a batch took, a trace of batches, distinct errors, and what bounds
 * the run. Each figure can be read from the loader itself and, by a monitor, from another process. See docs/observing.md.
 *
 * All times are CLOCK_MONOTONIC in nanoseconds. Waiting is the time in feedlane_loader_next without a batch, and that after
 * feedlane_loader_arm has returned 0 until the next call. For a host that polls with timeout 0 and sleeps elsewhere only
 * `ready` says that a batch was missing.
 *
 * Stamps that a worker writes are limited to the time between the stamps of
 * the trainer around them, so the stamps of a batch never decrease.
 */
#ifndef FEEDLANE_OBSERVE_H
#define FEEDLANE_OBSERVE_H

#include "loader.h"
#include "monitor.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a loader is, and where its epoch is. */
typedef struct feedlane_loader_info {
  size_t size;
  int64_t pid;               /**< of the trainer, as it sees itself: in its own PID namespace */
  uint64_t created_ns;       /**< when the loader was created */
  int32_t start;             /**< FEEDLANE_START_* */
  int32_t workers;           /**< 0: inline */
  int32_t prefetch_factor;   /**< batches in flight per worker, at the moment */
  int32_t held;              /**< config.held */
  int64_t batch_size;        /**< rows of a batch at most */
  int64_t task_timeout_ns;   /**< 0: none */
  int32_t iterable;          /**< 1: an iterable data set */
  int32_t in_epoch;          /**< 1: begin was called, and next has not returned END since */
  int64_t epoch;             /**< the newest epoch; -1: none has begun */
  int64_t batch;             /**< the number of the batch after the newest one yielded */
  int64_t batches;           /**< batches in the epoch; -1: unknown */
  uint64_t begun_ns;         /**< when the epoch began; 0: none has */
  uint64_t yielded_ns;       /**< when the newest batch was yielded; 0: none was */
  uint64_t waiting_since_ns; /**< since when next has waited for the next batch; 0: it does not wait now */
  uint64_t trace;            /**< records that the trace keeps; 0: off */
  char name[64];             /**< config.name, or empty */
  char version[16];          /**< of the trainer's library */
} feedlane_loader_info;

/** Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_loader_get_info(const feedlane_loader *l, feedlane_loader_info *out);
/** What feedlane_loader_get_info returns in that process. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_info(const feedlane_monitor *m, feedlane_loader_info *out);

/** Buckets of a histogram: 0 counts durations of 0 ns, b durations of 2^(b-1) to 2^b - 1 ns, the last one all longer
 * durations. */
#define FEEDLANE_HISTOGRAM_BUCKETS 47

/** How often which duration occurred. */
typedef struct feedlane_histogram {
  uint64_t count;                               /**< the sum of all buckets */
  uint64_t sum_ns;                              /**< of all durations */
  uint64_t buckets[FEEDLANE_HISTOGRAM_BUCKETS]; /**< see FEEDLANE_HISTOGRAM_BUCKETS */
} feedlane_histogram;

/**
 * How long one half, 90 % and 99 % of the durations lasted at most, ns; 0: there are none. The loader counts in eight
 * buckets for each power of two, so each is at most an eighth from the exact value.
 */
typedef struct feedlane_percentiles {
  uint64_t p50_ns; /**< the median */
  uint64_t p90_ns; /**< 90 % lasted no longer */
  uint64_t p99_ns; /**< 99 % lasted no longer */
} feedlane_percentiles;

/** How long the steps of batches took, over the loader's life. Failed batches count, except in `hold`. */
typedef struct feedlane_timings {
  size_t size;
  feedlane_histogram exposed; /**< for how long next waited for the batch, and the trainer since
                                   feedlane_loader_arm returned 0; 0: it was there. Without the first batches of
                                   epochs. Data readiness is buckets[0] / count */
  feedlane_histogram start;   /**< the same for the first batch of each epoch: workers start, the pipeline fills */
  feedlane_histogram queue;   /**< from its dispatch to a worker until the worker began it */
  feedlane_histogram work;    /**< from there until the worker committed it */
  feedlane_histogram ready;   /**< from there until next yielded it */
  feedlane_histogram
      hold; /**< from there until its slot was free. Counted when the slot is used again, or the epoch ends */
  feedlane_percentiles exposed_percentiles; /**< of `exposed` */
  feedlane_percentiles start_percentiles;   /**< of `start` */
  feedlane_percentiles queue_percentiles;   /**< of `queue` */
  feedlane_percentiles work_percentiles;    /**< of `work` */
  feedlane_percentiles ready_percentiles;   /**< of `ready` */
  feedlane_percentiles hold_percentiles;    /**< of `hold` */
} feedlane_timings;

/**
 * The timings of batches that one worker made, or, with worker -1, of all batches. END: there are fewer workers.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_get_timings(const feedlane_loader *l, int32_t worker, feedlane_timings *out);
/** What feedlane_loader_get_timings returns in that process. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_timings(const feedlane_monitor *m, int32_t worker, feedlane_timings *out);

/** One batch and its stamps. A stamp of 0 has not happened yet. An array's elements are records[0].size bytes apart. */
typedef struct feedlane_batch_record {
  size_t size;
  uint64_t sequence;      /**< in the trace: its number, from 1; 0: a batch that is in a slot */
  uint64_t task;          /**< unique in the loader, also among attempts; 0: nothing to tell now */
  int64_t epoch;          /**< as given to feedlane_loader_begin */
  int64_t batch;          /**< its number in the epoch */
  int32_t worker;         /**< -1: made inline */
  int32_t attempt;        /**< from 0 */
  int32_t slot;           /**< where it is, or was */
  int32_t status;         /**< 0, or the error that next returned for it */
  uint64_t rows;          /**< yielded */
  uint64_t bytes;         /**< of its tensors */
  uint64_t dispatched_ns; /**< sent to its worker; the newest attempt */
  uint64_t begun_ns;      /**< the worker began it */
  uint64_t committed_ns;  /**< the worker committed it, or its failure */
  uint64_t swept_ns;      /**< the trainer read its result */
  uint64_t yielded_ns;    /**< next yielded it */
  uint64_t released_ns;   /**< its slot became free */
  uint64_t exposed_ns;    /**< for how long next waited for it */
} feedlane_batch_record;

/**
 * The batch in a slot, or the last one that was there: `released_ns` is not 0 then. `task` is 0 if the slot was not used
 * yet, or is being used anew. END: there are fewer slots.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_get_slot(const feedlane_loader *l, uint64_t slot, feedlane_batch_record *out);
/** What feedlane_loader_get_slot returns in that process. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_slot(const feedlane_monitor *m, uint64_t slot, feedlane_batch_record *out);

/**
 * Copies records of the trace, oldest first: those with a sequence of at least `from`, at most `cap` of them. A record is
 * written when the batch's slot is used again, when its epoch ends, or, for a batch that is held then, with the next begin
 * or stop. Before that the batch is seen by feedlane_loader_get_slot. `*count` is how many were copied. The trace keeps the
 * newest config.trace records: older ones are lost, and the first record's sequence then is larger than `from`.
 *  - END: there is none, or `cap` is 0.
 *  - E_STATE: config.trace is 0.
 *  - E_ABI: records[0].size is not that of a struct of this header.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_get_trace(const feedlane_loader *l, uint64_t from, feedlane_batch_record *records,
                                               uint64_t cap, uint64_t *count);
/** What feedlane_loader_get_trace returns in that process. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_trace(const feedlane_monitor *m, uint64_t from,
                                                feedlane_batch_record *records, uint64_t cap, uint64_t *count);

/** Errors and events of one kind whose texts differ in numbers only. */
typedef struct feedlane_error_record {
  size_t size;
  int32_t kind;   /**< FEEDLANE_EVENT_*; 0: an error that next returned */
  int32_t code;   /**< FEEDLANE_E_*, or what the data set's callback returned; 0: nothing failed */
  int32_t worker; /**< of the newest one, or -1 */
  int32_t reserved;
  int64_t batch;     /**< of the newest one, or -1 */
  int64_t sample;    /**< of the newest one, or -1 */
  uint64_t count;    /**< how often */
  uint64_t first_ns; /**< when it occurred first */
  uint64_t last_ns;  /**< when it occurred last */
  char text[192];    /**< the beginning of the newest one's text */
} feedlane_error_record;

/**
 * The distinct error with this index, in the order of first occurrence. END: there are fewer. The loader keeps 32; a
 * further one takes the place of the one that has not occurred for the longest time.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_get_error(const feedlane_loader *l, int32_t index, feedlane_error_record *out);
/** What feedlane_loader_get_error returns in that process. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_monitor_get_error(const feedlane_monitor *m, int32_t index, feedlane_error_record *out);

#define FEEDLANE_BOUND_NOTHING 0  /**< no epoch is in progress, or too little has happened to tell */
#define FEEDLANE_BOUND_TRAINER 1  /**< the trainer: batches were there when it wanted them */
#define FEEDLANE_BOUND_DATA 2     /**< the data set: workers were busy, and the trainer waited */
#define FEEDLANE_BOUND_WORKER 3   /**< one worker, which is slow, stopped or stuck: see `worker` */
#define FEEDLANE_BOUND_SLOTS 4    /**< memory: the trainer holds the slots that workers would need */
#define FEEDLANE_BOUND_STARTING 5 /**< workers start, or open their data sets */
#define FEEDLANE_BOUND_PROCESSORS 6 /**< processors: processes could run and did not, or workers idled while it waited */

/** What bounded a run for some time, and why. */
typedef struct feedlane_diagnosis {
  size_t size;
  int32_t bound;        /**< FEEDLANE_BOUND_* */
  int32_t worker;       /**< FEEDLANE_BOUND_WORKER: which one; else -1 */
  uint64_t interval_ns; /**< how long the time was */
  uint64_t batches;     /**< yielded in it; and so on */
  uint64_t samples;     /**< rows yielded in it */
  uint64_t bytes;       /**< of tensors yielded in it */
  uint64_t exposed_ns;  /**< for how long next waited, the present wait included */
  uint64_t start_ns;    /**< of that, for the first batch of an epoch */
  uint64_t busy_ns;     /**< for how long workers had a task in hand, in all */
  uint64_t ready;       /**< batches that were there when next was called; first batches of epochs do not count */
  uint64_t asked;       /**< batches that `ready` is a part of */
  char text[512];       /**< what bounds the run, one or two sentences */
  char advice[512];     /**< what to change, or empty */
} feedlane_diagnosis;

/**
 * What bounded the present epoch since it began, or the newest one. It reads from /proc how long workers that were started in
 * this epoch waited for a processor (feedlane_monitor_diagnose: all workers and the trainer) and, for FEEDLANE_BOUND_WORKER,
 * the worker's state.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_diagnose(const feedlane_loader *l, feedlane_diagnosis *out);
/**
 * What bounded the loader in that process since the last call with this monitor; the first call: since it was opened. The
 * calls of all threads count.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_diagnose(feedlane_monitor *m, feedlane_diagnosis *out);

/**
 * A short text for people about the present epoch, or the newest one: rates, exposed wait, each worker, what bounded it,
 * what to change, and the errors that occurred. `*bytes` is its length without the terminating zero, which is written if
 * there is room. Its form may change; feedlane_loader_diagnose is for programs.
 *  - E_LIMIT: `cap` is too small; ask for the length with buffer NULL and cap 0.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_loader_report(const feedlane_loader *l, char *buffer, uint64_t cap, uint64_t *bytes,
                                            feedlane_error *err);

/** A standalone ring, see ring.h. */
typedef struct feedlane_ring_info {
  size_t size;
  int64_t pid;            /**< the process that was asked: the receiver, or one that inherited its descriptors */
  uint64_t message_bytes; /**< largest message */
  uint64_t capacity;      /**< messages in a lane */
  uint64_t lanes;         /**< senders at most */
  uint64_t received;      /**< messages that the receiver has released, in all lanes */
  uint64_t control_bytes; /**< size of the control segment */
} feedlane_ring_info;

/**
 * Reads one ring of process `pid`, which must run as the same user. `nth` counts its rings from 0.
 *  - END: the process has no such ring.
 *  - E_PEER_DEAD, E_OS, E_ABI, E_CORRUPT: see feedlane_monitor_open.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_monitor_ring(int64_t pid, int32_t nth, feedlane_ring_info *out, feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
