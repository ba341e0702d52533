/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dataset.h
 * Data sets: the callbacks that make samples, the tasks and rows that they get, and what they may add to a batch.
 */
#ifndef FEEDLANE_DATASET_H
#define FEEDLANE_DATASET_H

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_worker feedlane_worker; /**< the worker's side of a loader, see worker.h */

/** One batch to make. Owned by the library; valid until commit, fail or the next feedlane_worker_next. */
typedef struct feedlane_task {
  size_t size;
  uint64_t id;                    /**< unique within a loader, over epochs, attempts and crashes */
  int64_t epoch;                  /**< as the trainer numbered it */
  int64_t batch;                  /**< its number in the epoch, from 0 */
  int32_t attempt;                /**< 0, +1 each time the batch is sent out again */
  int32_t tensor_count;           /**< the number of fields, plus tensors added by feedlane_task_tensor */
  const int64_t *indices;         /**< `count` data set indices, read-only shared memory; NULL: iterable */
  uint64_t count;                 /**< rows wanted */
  const uint64_t *seeds;          /**< one a row, from base seed, epoch and position; independent of the worker */
  const feedlane_tensor *tensors; /**< the declared fields, shape [count, ...], to be written; then those added */
  feedlane_worker *worker;        /**< NULL: inline (no workers) */
  int32_t first;                  /**< iterable: 1: the shard starts over, or continues from `delivered` and `state` */
  int32_t reserved;
  uint64_t delivered;   /**< iterable, first: samples of the shard to leave out; they were delivered before */
  const void *state;    /**< iterable, first: what was saved with the last batch that counts; NULL: none */
  uint64_t state_bytes; /**< its length */
  void *library;        /**< internal */
} feedlane_task;

/** The place of one sample. */
typedef struct feedlane_row {
  size_t size;
  int64_t index;             /**< data set index; iterable: the sample's number in the shard, from 0 */
  uint64_t seed;             /**< of this sample, see feedlane_task.seeds */
  void *const *fields;       /**< fields[f]: this row of tensor f, bytes[f] long */
  const uint64_t *bytes;     /**< one number a field */
  const feedlane_task *task; /**< the batch of this row */
  uint64_t row;              /**< row in the batch; smaller than the sample's position after samples were left out */
} feedlane_row;

/** A worker's identity and configuration. Pointers are valid until detach. */
typedef struct feedlane_worker_info {
  size_t size;
  int32_t id;                   /**< 0 .. count - 1; -1: inline */
  int32_t count;                /**< number of workers */
  int32_t generation;           /**< 0, +1 for each replacement */
  int32_t iterable;             /**< 1: tasks carry no indices, this worker iterates shard `shard` of `shards` */
  uint64_t seed;                /**< base seed + shard */
  const void *config;           /**< the loader's worker_config, read-only; NULL if it has none */
  uint64_t config_bytes;        /**< its length */
  const feedlane_field *fields; /**< as the trainer declared them */
  uint64_t field_count;         /**< how many */
  int32_t retries;              /**< config.retries: a worker in the pull form retries by itself */
  int32_t reserved;
  int64_t retry_backoff_ns; /**< before the first retry, doubled before each further one */
  int64_t epoch;  /**< the epoch begun last, 0 before the first. Combine it with `seed`, which is the same in all
                                 epochs, for random numbers that differ between epochs. Kept workers outlive epochs */
  int32_t rank;   /**< iterable: config.rank; map-style: 0, the sampler has the ranks */
  int32_t world;  /**< iterable: config.world, at least 1; map-style: 1 */
  int64_t shard;  /**< rank * count + id; inline: rank */
  int64_t shards; /**< world * count; inline: world */
} feedlane_worker_info;

/** @{ The functions of a feedlane_dataset. */
typedef int32_t (*feedlane_dataset_open_fn)(void *user_data, const feedlane_worker_info *info, void **self,
                                            feedlane_error *err);
typedef int32_t (*feedlane_dataset_get_fn)(void *self, const feedlane_row *row, feedlane_error *err);
typedef int32_t (*feedlane_dataset_fetch_fn)(void *self, const feedlane_task *task, feedlane_error *err);
typedef void (*feedlane_dataset_close_fn)(void *self);
typedef int32_t (*feedlane_dataset_next_fn)(void *self, const feedlane_row *row, feedlane_error *err);
typedef int32_t (*feedlane_dataset_restart_fn)(void *self, int64_t epoch, feedlane_error *err);
typedef int32_t (*feedlane_dataset_save_fn)(void *self, void *buffer, uint64_t cap, uint64_t *bytes,
                                            feedlane_error *err);
typedef int32_t (*feedlane_dataset_load_fn)(void *self, const void *buffer, uint64_t bytes, feedlane_error *err);
typedef int32_t (*feedlane_dataset_substitute_fn)(void *self, int64_t failed, uint64_t seed, uint32_t tries,
                                                  int64_t *other, feedlane_error *err);
/** @} */

/**
 * The callbacks of a data set, the same for every start mode. A map-style loader calls `fetch` if there is one,
 * otherwise `get`; an iterable one calls `next` if there is one, otherwise `fetch`. Callbacks return 0 or a negative
 * status with err->text filled in; err->detail and err->detail_len may hold a traceback, and err->transient 1 says that
 * a retry may succeed. A map-style `fetch` may set err->sample to the index that failed, one of task->indices: the
 * trainer's error names it. All callbacks of one worker run in one thread, one at a time.
 */
typedef struct feedlane_dataset {
  size_t size;
  void *user_data; /**< kept */
  /** Called once a worker, before its first task (torch's worker_init_fn). `*self` is passed to the other callbacks.
   *  NULL: self = user_data. */
  feedlane_dataset_open_fn open;
  /** Map-style: writes one sample into its row. */
  feedlane_dataset_get_fn get;
  /** Writes all rows of all tensors of the task, or fewer as set by feedlane_task_rows. Iterable: returns END when the
   *  shard is exhausted. */
  feedlane_dataset_fetch_fn fetch;
  feedlane_dataset_close_fn close; /**< once, if open succeeded */
  /** Iterable: writes the shard's next sample into its row, or returns END when the shard is exhausted. After an error
   *  it is called again: with the same row->index for a retry, which must yield the same sample, or with the following
   *  index if the sample was left out. */
  feedlane_dataset_next_fn next;
  /** Iterable: starts over; called before the first task of each epoch. NULL: close and open are called. */
  feedlane_dataset_restart_fn restart;
  /** Iterable, after each batch: writes the position in the shard, up to `cap` bytes (at least 64 KiB). The replacement
   *  of a dead worker and a resumed run call `restart`, then `load` with it. NULL: see config.deterministic. */
  feedlane_dataset_save_fn save;
  feedlane_dataset_load_fn load; /**< see `save` */
  /** Map-style, with config.substitute: sets another index to use in place of `failed`. `tries` counts earlier
   *  substitutes of this sample, from 0. `seed` is the row's. A result other than 0: there is none. */
  feedlane_dataset_substitute_fn substitute;
} feedlane_dataset;

/**
 * The seed of the sample at `position`, counted from 0 over the whole epoch's order. Tasks and rows carry it. Pure.
 * With s(x) the output function of SplitMix64 (Steele, Lea, Flood 2014: x ^= x >> 30, x *= 0xbf58476d1ce4e5b9, x ^= x
 * >> 27, x *= 0x94d049bb133111eb, x ^= x >> 31) and g = 0x9e3779b97f4a7c15, all modulo 2^64, it is s(s(s(base_seed + g)
 * + epoch * g) + (position + 1) * g).
 *
 * Thread safety: any thread.
 */
FEEDLANE_API uint64_t feedlane_row_seed(uint64_t base_seed, int64_t epoch, int64_t position);

/* The functions below are for the current task: in callbacks, inline ones included, and in the pull form. */

/**
 * Allocates a tensor of another shape than declared. It replaces field `index`, or is added at index ==
 * task->tensor_count (up to FEEDLANE_MAX_TENSORS). `full` is the WHOLE shape, batch dimension included, with ndim up to
 * 8; a dimension may be 0. Its dtype may be zero for a declared field. The tensor lies in the field's own place if it
 * fits there, otherwise after the others, in memory that is reserved by this call. It is written to `out` (may be NULL)
 * and to task->tensors.
 *  - E_LIMIT: err->needed is the config.slot_bytes that it takes.
 *  - E_MEMORY: there is too little memory.
 *  - E_STALE: the task was given up or is over.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_tensor(const feedlane_task *task, int32_t index, const feedlane_field *full,
                                          feedlane_tensor *out, feedlane_error *err);
/**
 * Attaches bytes to the batch, which the trainer finds in batch->metadata. They are copied; the last call counts.
 *  - E_LIMIT: err->needed is the config.slot_bytes that they take.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_metadata(const feedlane_task *task, const void *bytes, uint64_t count,
                                            feedlane_error *err);
/**
 * Iterable, pull form: saves the position in the shard after this batch, see feedlane_dataset.save. The bytes are
 * copied.
 *  - E_LIMIT: there is no space for so many bytes.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_state(const feedlane_task *task, const void *bytes, uint64_t count,
                                         feedlane_error *err);
/**
 * For `fetch`: sets the number of rows made, 1 .. task->count; 0 if all samples are recorded as left out.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_rows(const feedlane_task *task, uint64_t rows, feedlane_error *err);

#define FEEDLANE_SAMPLE_RETRIED 1     /**< it failed and then succeeded */
#define FEEDLANE_SAMPLE_SUBSTITUTED 2 /**< another sample took its place */
#define FEEDLANE_SAMPLE_SKIPPED 3     /**< it was left out; its row is the next sample's */

/**
 * For `fetch` and the pull form, which handle failing samples themselves: records the outcome of the sample at
 * `position` among the task's indices (iterable: among the samples taken for this task). Records come in ascending
 * order, one a sample. `outcome` is FEEDLANE_SAMPLE_*. `code` and `text` (may be NULL; 223 bytes are kept) describe the
 * last failure; `other` is the index of the substitute.
 *  - E_LIMIT: the loader's policies do not allow the outcome, or there are too many records.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_record(const feedlane_task *task, uint64_t position, int32_t outcome, int32_t code,
                                          uint32_t retries, int64_t other, const char *text, feedlane_error *err);

/** A task that was sent to this worker and waits behind the one in hand, see feedlane_task_ahead. */
typedef struct feedlane_ahead {
  size_t size;
  uint64_t id;            /**< feedlane_task.id, if the task comes */
  int64_t epoch;          /**< as the trainer numbered it */
  int64_t batch;          /**< its number in the epoch, from 0 */
  const int64_t *indices; /**< `count` data set indices: the worker's own copy, valid until its next call of this */
  uint64_t count;         /**< rows wanted */
} feedlane_ahead;

/**
 * Fills in `out` for the first task behind the one in hand whose id is above `after`, so that a data set can begin to
 * read before it is asked. Pass 0 for the first one and the id of the last one for the next one, also in later tasks:
 * ids ascend in the order in which a worker gets its tasks. Does not wait; the trainer is not told.
 *
 * This is a hint. The trainer may take the task back, give it to another worker, or drop it with its epoch; then this
 * worker never gets it. It will not get it once it has a task with a larger id in hand. If the task comes, it has this
 * epoch, batch, count and these indices, in this order. There are up to config.prefetch_factor - 1 tasks behind the one
 * in hand.
 *  - 0: `out` is filled in.
 *  - END: no such task is known now. Always so for iterable data sets, whose tasks have no indices, and inline.
 *  - E_STALE: `task` was given up or is over.
 *  - E_MEMORY: there is too little memory for the copy.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_ahead(const feedlane_task *task, uint64_t after, feedlane_ahead *out,
                                         feedlane_error *err);

#ifdef __cplusplus
}
#endif
#endif
