/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dataset.h
 * Data sets: the callbacks that make samples, the tasks and rows that they get, and functions that add to a batch.
 */
#ifndef FEEDLANE_DATASET_H
#define FEEDLANE_DATASET_H

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_worker feedlane_worker; /**< the worker's side of a loader, see worker.h */

/** One batch to make. Owned by the library. Valid until commit, fail or the next feedlane_worker_next. */
typedef struct feedlane_task {
  size_t size;
  uint64_t id;                    /**< unique within a loader, across epochs, attempts and crashes */
  int64_t epoch;                  /**< as given to feedlane_loader_begin */
  int64_t batch;                  /**< number of the batch in the epoch, from 0 */
  int32_t attempt;                /**< 0, +1 each time a worker with the batch dies or gets stuck */
  int32_t tensor_count;           /**< the number of fields, plus tensors added by feedlane_task_tensor */
  const int64_t *indices;         /**< `count` data set indices, read-only shared memory; NULL: iterable */
  uint64_t count;                 /**< rows wanted */
  const uint64_t *seeds;          /**< one per row, from base seed, epoch and position; independent of the worker */
  const feedlane_tensor *tensors; /**< declared fields to write, shape [count, ...], followed by added tensors */
  feedlane_worker *worker;        /**< NULL: inline (no workers) */
  int32_t first;                  /**< iterable, 1: the shard starts over, or resumes from `delivered` and `state` */
  int32_t reserved;
  uint64_t delivered;   /**< iterable, first = 1: number of samples already delivered, to leave out of the shard */
  const void *state;    /**< iterable, first = 1: position saved with the last delivered batch; NULL: none */
  uint64_t state_bytes; /**< length of `state` */
  uint64_t *rows; /**< `fetch`: set this to the number of rows made if it is less than `count`: at least 1, or 0 if
                             all samples are recorded as left out. Ignored in the pull form */
  void *library;  /**< internal */
} feedlane_task;

/** The place of one sample. */
typedef struct feedlane_row {
  size_t size;
  int64_t index;             /**< data set index; iterable: the sample's number in the shard, from 0 */
  uint64_t seed;             /**< seed of this sample, see feedlane_task.seeds */
  void *const *fields;       /**< fields[f]: this row of tensor f, bytes[f] long */
  const uint64_t *bytes;     /**< one number per field */
  const feedlane_task *task; /**< the batch of this row */
  uint64_t row;              /**< row in the batch; less than the sample's position if earlier ones were left out */
} feedlane_row;

/** A worker's identity and configuration. Pointers are valid until feedlane_worker_destroy. */
typedef struct feedlane_worker_info {
  size_t size;
  int32_t id;                   /**< 0 .. count - 1; -1: inline */
  int32_t count;                /**< number of workers */
  int32_t generation;           /**< number of earlier workers with this id */
  int32_t iterable;             /**< 1: tasks have no indices, and this worker iterates shard `shard` of `shards` */
  uint64_t seed;                /**< base seed + shard */
  const void *config;           /**< the loader's worker_config, read-only; NULL if it has none */
  uint64_t config_bytes;        /**< length of `config` */
  const feedlane_field *fields; /**< as the trainer declared them */
  uint64_t field_count;         /**< number of fields */
  int32_t retries;              /**< config.retries; for the pull form see feedlane_task_sample_failed */
  int32_t drop_last;            /**< config.drop_last; in the pull form the worker drops the batch itself */
  int64_t retry_backoff_ns;     /**< wait before the first retry; doubled before each further one */
  int64_t epoch;  /**< the newest epoch begun, 0 before the first. Kept workers outlive epochs, and `seed` is equal in
                       all epochs: combine both for random numbers that differ between epochs */
  int32_t rank;   /**< iterable: config.rank; map-style: 0, because the sampler has the ranks */
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
 * The callbacks of a data set. They are the same for every start mode. A map-style loader calls `fetch` if it is set,
 * otherwise `get`. An iterable one calls `next` if it is set, otherwise `fetch`. Callbacks return 0 or a negative
 * status with err->text filled in. err->detail and err->detail_len may hold a traceback; err->transient 1 means that a
 * retry may succeed. A map-style `fetch` may set err->sample to the index that failed, one of task->indices; the
 * trainer's error names this index. All callbacks of one worker run in one thread, one at a time.
 */
typedef struct feedlane_dataset {
  size_t size;
  void *user_data; /**< the library keeps this pointer */
  /** Called once per worker, before its first task (torch's worker_init_fn). `*self` is passed to the other callbacks.
   *  NULL: self = user_data. */
  feedlane_dataset_open_fn open;
  /** Map-style: writes one sample into its row. */
  feedlane_dataset_get_fn get;
  /** Writes all rows of all tensors of the task, or the first `*task->rows`. Iterable: returns END when the shard is
   *  exhausted. */
  feedlane_dataset_fetch_fn fetch;
  feedlane_dataset_close_fn close; /**< called once, if `open` succeeded */
  /** Iterable: writes the shard's next sample into its row, or returns END when the shard is exhausted. After an error
   *  it is called again. For a retry row->index is the same, and the callback must yield the same sample. If the sample
   *  was left out, row->index is the following one. */
  feedlane_dataset_next_fn next;
  /** Iterable: starts the shard over. Called before the first task of each epoch. NULL: `close` and `open` are called
   *  instead. */
  feedlane_dataset_restart_fn restart;
  /** Iterable: writes the position in the shard, up to `cap` bytes (`cap` is at least 64 KiB). Called after each batch.
   *  In the replacement of a dead worker and in a resumed run, `restart` is called, then `load` with this position.
   *  NULL: see config.deterministic. */
  feedlane_dataset_save_fn save;
  feedlane_dataset_load_fn load; /**< see `save` */
  /** Map-style, with config.substitute: sets `*other` to an index to use in place of `failed`. `tries` is the number of
   *  earlier substitutes for this sample, `seed` the row's seed. A result other than 0 means that there is no
   *  substitute. */
  feedlane_dataset_substitute_fn substitute;
} feedlane_dataset;

/**
 * The seed of the sample at `position`, counted from 0 over the order of the full epoch. Tasks and rows carry it. A
 * pure function. Let s(x) be the output function of SplitMix64 (Steele, Lea, Flood 2014): x ^= x >> 30, x *=
 * 0xbf58476d1ce4e5b9, x ^= x >> 27, x *= 0x94d049bb133111eb, x ^= x >> 31. With g = 0x9e3779b97f4a7c15 and modulo 2^64,
 * the seed is s(s(s(base_seed + g) + epoch * g) + (position + 1) * g).
 *
 * Thread safety: any thread.
 */
static inline uint64_t feedlane_row_seed(uint64_t base_seed, int64_t epoch, int64_t position) {
  const uint64_t g = 0x9e3779b97f4a7c15u;
  const uint64_t added[3] = {g, (uint64_t)epoch * g, ((uint64_t)position + 1) * g};
  uint64_t x = base_seed;
  int i;
  for (i = 0; i < 3; i++) {
    x += added[i];
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

/* Call the functions below for the current task only: in callbacks, inline ones included, or in the pull form. */

/**
 * Allocates a tensor whose shape differs from the declared one. The tensor replaces field `index`, or is added if
 * `index` is task->tensor_count (up to FEEDLANE_MAX_TENSORS). `full` is the FULL shape, batch dimension included, with
 * ndim up to 8; a dimension may be 0. For a declared field, a zero dtype means the declared one. The tensor lies in the
 * field's own place if it fits there, otherwise after the other tensors, in memory that this call reserves. It is
 * written to `out` (may be NULL) and to task->tensors.
 *  - E_LIMIT: the slot is too small; err->needed is the config.slot_bytes required.
 *  - E_MEMORY: there is too little memory.
 *  - E_STALE: the task was given up or is over.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_tensor(const feedlane_task *task, int32_t index, const feedlane_field *full,
                                          feedlane_tensor *out, feedlane_error *err);
#define FEEDLANE_STORE_METADATA 0 /**< for the trainer, as batch->metadata */
/** Iterable, pull form: the position in the shard after this batch, see feedlane_dataset.save. */
#define FEEDLANE_STORE_STATE 1
/**
 * Stores a copy of these bytes with the batch. `kind` is FEEDLANE_STORE_*. The last call of a kind replaces earlier
 * ones.
 *  - E_LIMIT: the slot is too small; for metadata err->needed is the config.slot_bytes required.
 *
 * Thread safety: one thread at a time.
 */
FEEDLANE_API int32_t feedlane_task_store(const feedlane_task *task, int32_t kind, const void *bytes, uint64_t count,
                                         feedlane_error *err);

#define FEEDLANE_SAMPLE_RETRIED 1     /**< the sample failed, then succeeded */
#define FEEDLANE_SAMPLE_SUBSTITUTED 2 /**< another sample took its place */
#define FEEDLANE_SAMPLE_SKIPPED 3     /**< it was left out; the next sample gets its row */

/** The position for feedlane_task_sample_failed if the failure belongs to no single sample. */
#define FEEDLANE_WHOLE_BATCH UINT64_MAX

/**
 * For `fetch` and the pull form, which make all samples of a task: the sample at `position` among the task's indices
 * (iterable: among the samples taken for this task) has failed. Applies the loader's policies, in this order: a retry,
 * a substitute, skipping the sample. The library records the outcome, also that of a sample which succeeds after this.
 * Samples fail in ascending order of position; each may fail several times.
 *
 * `failure`: code, text (223 bytes are kept) and transient, as a callback returns them; may be `err`. `substitute` is
 * called with `user_data`; NULL: there are no substitutes. If it returns INTERRUPTED, so does this function, and
 * nothing is decided. `*index` is set to the index to try next, `*wait_ns` to the time to wait before. A failed
 * FEEDLANE_WHOLE_BATCH can only be retried; its tensors, metadata and records are then dropped. `index` may be NULL.
 *  - AGAIN: try `*index` after `*wait_ns`.
 *  - 0: the sample is skipped; the next one gets its row.
 *  - E_SAMPLE: no policy helps: fail the task.
 *  - E_LIMIT: as E_SAMPLE, because there are too many records.
 *
 * Thread safety: one thread at a time. Calls back: data set.
 */
FEEDLANE_API int32_t feedlane_task_sample_failed(const feedlane_task *task, uint64_t position,
                                                 const feedlane_error *failure,
                                                 feedlane_dataset_substitute_fn substitute, void *user_data,
                                                 int64_t *index, int64_t *wait_ns, feedlane_error *err);

/** A task that is queued at this worker behind the current one, see feedlane_task_ahead. */
typedef struct feedlane_ahead {
  size_t size;
  uint64_t id;            /**< will be feedlane_task.id if this worker gets the task */
  int64_t epoch;          /**< as given to feedlane_loader_begin */
  int64_t batch;          /**< number of the batch in the epoch, from 0 */
  const int64_t *indices; /**< `count` data set indices, copied; valid until this worker's next feedlane_task_ahead */
  uint64_t count;         /**< rows wanted */
  const uint64_t *seeds;  /**< one for each row, as feedlane_task.seeds; valid as long as `indices` */
} feedlane_ahead;

/**
 * Fills in `out` for the first queued task whose id is above `after`, so that a data set can start reading early. Pass
 * 0 to get the first queued task, then the id of the previous result to get the next one. This also works across tasks,
 * because ids ascend in the order in which a worker gets its tasks. Does not wait and does not notify the trainer.
 *
 * The result is a hint. The trainer may take the task back, give it to another worker, or drop it with its epoch; then
 * this worker never gets it. A worker that has a task with a larger id in hand will not get this one any more. If the
 * worker gets the task, it has this epoch, batch, count and these indices and seeds, in this order. Up to
 * config.prefetch_factor - 1 tasks are queued behind the current one.
 *  - 0: `out` is filled in.
 *  - END: no such task is known now. Always returned inline and for iterable data sets, whose tasks have no indices.
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
