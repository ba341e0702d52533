/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sampler.h
 * Samplers: objects that yield the indices of an epoch, in order. A loader copies its sampler's definition.
 */
#ifndef FEEDLANE_SAMPLER_H
#define FEEDLANE_SAMPLER_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_sampler feedlane_sampler; /**< yields indices, epoch by epoch */

/** @{ The kind of a sampler, for feedlane_sampler_config.kind. Each comment names the members that the kind reads. */
/** Yields 0, 1, ... length - 1. Reads `length`, >= 0. */
#define FEEDLANE_SAMPLER_SEQUENTIAL 0
/**
 * Yields a permutation of [0, length), or draws with replacement; the order differs in each epoch. By default the
 * indices are those of torch's RandomSampler on CPU with a generator seeded with the low 32 bits of `seed + epoch`.
 * With `num_samples` above `length` it yields full permutations, then part of another.
 *
 * Reads `length` (> 0; with FEEDLANE_SHUFFLE_FEISTEL up to 2^62), `seed`, `num_samples`, `replacement` and `shuffle`.
 */
#define FEEDLANE_SAMPLER_RANDOM 1
/**
 * Yields the `count` numbers at `indices`. Each epoch shuffles them as torch's SubsetRandomSampler does with a
 * generator seeded with `seed + epoch`. With `no_shuffle` they are yielded in the given order. Takes 16 bytes per
 * index.
 *
 * Reads `indices`, `count`, `seed` and `no_shuffle`.
 */
#define FEEDLANE_SAMPLER_SUBSET 2
/**
 * Yields indices from 0 to count - 1 with probabilities in proportion to their weights. Weights are finite and not
 * negative, and at least one is positive. An index of weight zero is never yielded. With replacement the sampler uses
 * alias tables: 16 bytes per weight, constant time per index. Without replacement it uses exponential keys: 8 bytes per
 * weight and 8 bytes per index; `num_samples`, also its default, is then at most the number of positive weights.
 *
 * Reads `weights`, `count`, `seed` (epoch e is drawn with seed + e), `num_samples` and `without_replacement`.
 */
#define FEEDLANE_SAMPLER_WEIGHTED 3
/**
 * Yields batches of `batch_size` (1 .. 2^30) indices of a copy of `inner`, which must not be a batch sampler. The last
 * batch may be smaller; `drop_last` 1 omits a smaller one. Each feedlane_sampler_next yields one batch.
 *
 * Reads `inner`, `batch_size` and `drop_last`.
 */
#define FEEDLANE_SAMPLER_BATCH 4
/**
 * Yields every world-th index, starting with the rank-th, of an order that all ranks share. The order is exactly that
 * of torch's DistributedSampler after set_epoch, or a Feistel shuffle, which takes no memory. With `drop_last` the list
 * is cut, otherwise its start is repeated, so that all ranks get the same number of indices. A saved state may be
 * loaded in a world of another size, see feedlane_sampler_load.
 *
 * Reads `length` (0 .. 2^62), `seed`, `world`, `rank`, `detect_off`, `no_shuffle` (the data set's own order),
 * `drop_last` and `shuffle` (FEEDLANE_SHUFFLE_TORCH or _FEISTEL; with `no_shuffle` only _TORCH). Epoch e is shuffled
 * with seed + e.
 */
#define FEEDLANE_SAMPLER_DISTRIBUTED 5
/**
 * Yields batches of samples whose lengths together stay within a budget of tokens. `lengths` has the number of tokens
 * (>= 0) of each of `count` (< 2^31) samples. In each epoch the samples are shuffled, sorted by length within windows
 * and cut into batches of at most max_tokens and max_rows. Then the batches are shuffled. The batches that the ranks
 * get in one step are of similar length and stay together in this shuffle. Each feedlane_sampler_next yields one batch
 * of at most max_rows indices.
 *
 * Every rank gets the same number of batches. This number may differ between epochs, unless the window covers all
 * samples. feedlane_sampler_length returns it for the epoch that feedlane_sampler_restart has started. With drop_last,
 * up to world - 1 batches are omitted. Without drop_last, the batches with the most rows are split; if there are fewer
 * samples than batches needed, batches are repeated. Apart from such batches and samples omitted by drop_long, every
 * sample is in exactly one batch of one rank.
 *
 * A saved state may be loaded in a world of another size, see feedlane_sampler_load: the remaining batches are split
 * for the new ranks or, with drop_last, omitted. The indices are exactly the ones that would have followed. Row seeds
 * also continue exactly if the world has the same size and each rank loads the state that it saved.
 *
 * Takes 4 bytes per sample. Epoch 0 and the current epoch each take another 4 bytes per sample and 8 bytes per batch.
 * E_ARGUMENT: a length is negative, or more than max_tokens without drop_long; err->text names its index.
 *
 * Reads `lengths`, `count`, `max_tokens`, `max_rows`, `window` (0: 8192), `padded`, `drop_long`, `seed`, `no_shuffle`
 * (windows follow the data set's own order, and batches are not shuffled), `drop_last`, `world` (up to 2^20), `rank`
 * and `detect_off`.
 */
#define FEEDLANE_SAMPLER_TOKENS 6
/**
 * Mixes `count` (1 .. 65536) sources in proportion to weights, which may change during training. The data set is the
 * concatenation of the sources: source i has lengths[i] (>= 0) indices, which follow those of source i - 1.
 *
 * The mixture is one endless stream of samples; epoch e begins at sample e * num_samples. Each source continues after
 * its last picked sample, across epochs. When all its samples have been picked, it starts again in another order. After
 * any number of samples, each source has been picked in proportion to its weights, to within log2(count) + 1 samples
 * per stage. The order of the sources is then shuffled within windows, so that each rank and each batch gets its share
 * of every source. A window at the boundary of two stages has samples of both. Each rank yields every world-th index of
 * the stream.
 *
 * `weights` has one row of `count` numbers per stage. They are finite and not negative, and at least one is positive;
 * only their ratios matter. The weight of a source without samples is 0. A stage lasts until the next one begins. To
 * change a weight gradually, pass many short stages.
 *
 * The position is one number, so a saved state continues exactly. It may be loaded in a world of another size, see
 * feedlane_sampler_load. Takes 24 bytes per weight, and time in proportion to log2(count) per index. E_ARGUMENT:
 * err->text names the source and the stage.
 *
 * Reads `lengths`, `count`, `weights`, `from`, `stages`, `num_samples` (over all ranks, up to 2^62; 0: the number of
 * samples in all sources), `seed`, `window` (0: 1024), `no_shuffle` (each source's samples come in their own order),
 * `drop_last` (1 cuts the epoch, 0 repeats its start), `world`, `rank` and `detect_off`.
 */
#define FEEDLANE_SAMPLER_MIXTURE 7
/** Yields the indices of the user's callbacks unchanged. Reads `callbacks`. */
#define FEEDLANE_SAMPLER_CUSTOM 8
/** @} */

/** @{ How a sampler shuffles. */
/** Exactly as torch on CPU, with its generator seeded with seed + epoch. Takes 8 bytes per index. */
#define FEEDLANE_SHUFFLE_TORCH 0
/** A permutation that is computed index by index from seed + epoch, for up to 2^62 indices. Takes no memory. */
#define FEEDLANE_SHUFFLE_FEISTEL 1
/** Exactly as torch's DataLoader(shuffle=True) after torch.manual_seed(seed), epoch after epoch, provided that nothing
 *  else draws from torch's default generator. */
#define FEEDLANE_SHUFFLE_TORCH_LOADER 2
/** @} */

/** @{ The functions of feedlane_sampler_callbacks. */
typedef int32_t (*feedlane_sampler_restart_fn)(void *user_data, int64_t epoch, uint64_t seed, feedlane_error *err);
typedef int32_t (*feedlane_sampler_next_fn)(void *user_data, int64_t *indices, uint64_t cap, uint64_t *got,
                                            feedlane_error *err);
typedef int32_t (*feedlane_sampler_save_fn)(void *user_data, void *buffer, uint64_t cap, uint64_t *bytes,
                                            feedlane_error *err);
typedef int32_t (*feedlane_sampler_load_fn)(void *user_data, const void *buffer, uint64_t bytes, feedlane_error *err);
typedef void (*feedlane_sampler_drop_fn)(void *user_data);
/** @} */

/**
 * A user-defined sampler. Copies of it (a loader's, a batch sampler's) share one `user_data`; use only one copy at a
 * time. The callbacks run in the thread that calls feedlane_sampler_restart, _next, _save or _load, or
 * feedlane_loader_begin, _next or _poll (a feeder: feedlane_loader_serve or _poll). They return 0 or a negative status
 * with err->text (and err->detail, see feedlane_dataset) filled in; the call returns that status. feedlane_loader_next
 * first yields all earlier batches, then returns the status. The next call repeats the failed callback; indices
 * received before are not lost.
 *
 * A live sampler (`wake_fd` > 0) may have no index now: its `next` returns AGAIN. The loader does everything else, and
 * calls `next` again when `wake_fd` is readable, and in each call of feedlane_loader_next, _poll or _serve. To lose no
 * index, a producer adds the index and then makes `wake_fd` readable; `next` first reads what made `wake_fd` readable,
 * then looks for indices. A descriptor that stays readable keeps the loader's thread busy.
 *
 * Indices that don't fill a batch are kept until further ones fill it or the epoch ends. A sampler that limits how long
 * a batch waits sets `batch_rows` and yields a smaller batch when it wants to, for example when a timerfd expires.
 */
typedef struct feedlane_sampler_callbacks {
  size_t size;
  void *user_data; /**< kept until `drop` */
  /** Starts an epoch. `seed` is the loader's base seed; 0 without a loader. NULL: no restart is needed. */
  feedlane_sampler_restart_fn restart;
  /** Writes 1 .. cap indices and their number. Fewer than `cap` indices do not mean the end. Returns END at the end of
   *  the epoch, and AGAIN if there is none now (only with `wake_fd`); both write no index. Must not wait. Required. */
  feedlane_sampler_next_fn next;
  /** Writes the current position and its length, `*bytes`. If the length is more than `cap`, returns E_LIMIT with the
   *  number of bytes needed in `*bytes` and is called again. NULL: no state. */
  feedlane_sampler_save_fn save;
  /** Called after `restart`: continues from a saved position. NULL: no state. */
  feedlane_sampler_load_fn load;
  feedlane_sampler_drop_fn drop; /**< called once, when the last copy is freed; not if the sampler was not created */
  int64_t length;                /**< indices in an epoch, or batches of a batch sampler; 0: unknown */
  int64_t batch_rows;            /**< > 0: batch sampler. Each `next` yields a batch of at most this size; up to 2^30 */
  /** > 0: live sampler; a descriptor that epoll can watch (eventfd, timerfd, epoll, pipe, socket, inotify). The caller
   *  owns it and keeps it open until `drop`. The loader only watches it. 0: `next` always has indices, or the end. */
  int32_t wake_fd;
  int32_t reserved; /**< 0 */
} feedlane_sampler_callbacks;

/** What a sampler yields. Each kind reads the members that its comment names, and ignores the others. Arrays and
 *  `inner` are copied. */
typedef struct feedlane_sampler_config {
  size_t size;
  int32_t kind;                /**< FEEDLANE_SAMPLER_* */
  int32_t shuffle;             /**< FEEDLANE_SHUFFLE_* */
  int64_t length;              /**< size of the data set */
  uint64_t seed;               /**< equal in all ranks; see the kind */
  int64_t num_samples;         /**< indices in an epoch; 0: as many as the data set, or `weights`, has */
  int32_t replacement;         /**< random, 1: draws each index from the full range, with repetitions (torch.randint) */
  int32_t without_replacement; /**< weighted, 1: yields each index at most once; draws by the weights of those left */
  int32_t no_shuffle;          /**< 1: does not shuffle */
  int32_t drop_last;           /**< 1: omits an incomplete rest; 0: yields or pads it */
  int32_t world;               /**< number of ranks; 0: feedlane_rank_detect, which may fail, finds world and rank */
  int32_t rank;                /**< 0 .. world - 1 */
  int32_t detect_off;          /**< 1: world 0 means rank 0 of 1; the environment is ignored */
  int32_t padded;              /**< how tokens are counted. 0: sum of the lengths; 1: rows * the longest length */
  int32_t drop_long;           /**< samples with more than max_tokens tokens. 1: omitted, 0: refused with E_ARGUMENT */
  int32_t reserved;            /**< 0 */
  int64_t batch_size;          /**< most indices in a batch of FEEDLANE_SAMPLER_BATCH */
  int64_t max_tokens;          /**< most tokens in a batch; 1 .. 2^31 - 1 */
  int64_t max_rows;            /**< most samples in a batch; 1 .. 2^30. Slots of a loader have room for this many */
  int64_t window;              /**< number of samples that are sorted by length, or shuffled, together; 0: the kind's
                                    default; 1: no sorting, or no shuffling */
  const int64_t *indices;      /**< `count` indices */
  const int64_t *lengths;      /**< `count` lengths of samples (tokens) or of sources (mixture) */
  const double *weights;       /**< `count` weights; mixture: a row of `count` weights per stage */
  uint64_t count;              /**< length of `indices`, `lengths` or `weights` */
  const int64_t *from;         /**< sample of the stream at which each of `stages` stages begins: from[0] is 0, the
                                    others ascend. NULL: one stage */
  uint64_t stages;             /**< rows of `weights`; 0: one, and `from` is NULL. stages * count is at most 2^24 */
  const feedlane_sampler *inner;               /**< the sampler whose indices are grouped */
  const feedlane_sampler_callbacks *callbacks; /**< the user's functions */
} feedlane_sampler_config;

/**
 * Creates a sampler of `config->kind`. If this call fails, `drop` of a custom sampler is not called.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_create(const feedlane_sampler_config *config, feedlane_sampler **out,
                                             feedlane_error *err);
/** The rank of this process. */
typedef struct feedlane_rank {
  size_t size;
  int32_t rank;      /**< 0 .. world - 1 */
  int32_t world;     /**< at least 1 */
  char source[16];   /**< "feedlane", "torchrun", "openmpi", "mvapich", "pmi", "flux" or "slurm"; "none": rank 0 of 1 */
  char warning[384]; /**< one line that names another source which disagrees; empty if none does */
} feedlane_rank;

/**
 * Finds the rank of this process from the first of these pairs of environment variables that is set:
 *  -# FEEDLANE_RANK and FEEDLANE_WORLD_SIZE
 *  -# RANK and WORLD_SIZE (torchrun)
 *  -# OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE
 *  -# MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE, or both with MVP_
 *  -# PMI_RANK and PMI_SIZE
 *  -# FLUX_TASK_RANK and FLUX_JOB_SIZE
 *  -# SLURM_PROCID and SLURM_NTASKS, only in a task of a step (SLURM_STEP_ID), not in an interactive shell
 *
 * If no pair is set, this is rank 0 of 1. `warning` names another pair that disagrees, unless a launcher has started
 * torchrun once per node. The function reads the environment: no other thread may change it during the call.
 *  - E_ARGUMENT, with the variable's name: one variable of the pair is missing or is not a number in its range. Also if
 *    only a rank from PALS (PALS_RANKID) or PMIx (PMIX_RANK) is set.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_rank_detect(feedlane_rank *out, feedlane_error *err);
/**
 * Starts `epoch` (>= 0) from its beginning.
 *  - E_MEMORY: there is too little memory for the epoch's order.
 *  - E_LIMIT: FEEDLANE_SHUFFLE_TORCH_LOADER beyond epoch 2^24, or a mixture beyond sample 2^62 of its stream.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_restart(feedlane_sampler *s, int64_t epoch, feedlane_error *err);
/**
 * Writes up to `cap` indices, and their number to `*got`: fewer than `cap` only at the end of the epoch. A batch
 * sampler writes one batch. A new sampler is at the start of epoch 0.
 *  - END: no index is left; `*got` is 0.
 *  - AGAIN: a live sampler does not have `cap` indices, or a batch, now; `*got` is 0. It keeps the indices that it has.
 *  - E_ARGUMENT: `cap` is less than the largest batch of a batch sampler.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_next(feedlane_sampler *s, int64_t *indices, uint64_t cap, uint64_t *got,
                                           feedlane_error *err);
/** Indices in an epoch, or batches of a batch sampler; -1: unknown. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_sampler_length(const feedlane_sampler *s, int64_t *length);
/**
 * Writes the sampler's position in its epoch, and its definition: a few hundred bytes.
 *  - E_LIMIT: `cap` is too small; `*bytes` is the number of bytes needed. `state` may be NULL with cap 0.
 *  - E_UNSUPPORTED: a custom sampler without `save`.
 *  - E_STATE: a custom sampler keeps indices, because its `next` failed or returned AGAIN.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_save(feedlane_sampler *s, void *state, uint64_t cap, uint64_t *bytes,
                                           feedlane_error *err);
/**
 * Continues after a saved position. Call it after feedlane_sampler_restart of the state's epoch. If it fails, restart
 * the sampler again. A distributed sampler or a mixture also accepts a state from a world of another size whose ranks
 * all saved after the same number of indices. The list stays padded for the world that began the epoch, and the rest of
 * it is divided among the new ranks. One rank may then get one index more than another. feedlane_sampler_length is then
 * the number of indices that a rank had yielded before, plus the number left for this rank. The next restart uses the
 * list of the new world.
 *  - E_ARGUMENT: the state has another definition or epoch; err->found and err->needed are the values that differ.
 *  - E_CORRUPT: the state is damaged or truncated.
 *  - E_UNSUPPORTED: a custom sampler without `load`.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_load(feedlane_sampler *s, const void *state, uint64_t bytes, feedlane_error *err);
/**
 * Frees the sampler. `*s` becomes NULL. NULL is allowed.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_destroy(feedlane_sampler **s);

#ifdef __cplusplus
}
#endif
#endif
