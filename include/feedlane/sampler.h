/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sampler.h
 * Samplers: objects that yield the indices of an epoch, in order. A loader copies the definition of its sampler.
 */
#ifndef FEEDLANE_SAMPLER_H
#define FEEDLANE_SAMPLER_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct feedlane_sampler feedlane_sampler; /**< yields indices, epoch by epoch */

/** @{ How a sampler shuffles. */
/** Exactly as torch on CPU, its generator seeded with seed + epoch; 8 bytes an index. */
#define FEEDLANE_SHUFFLE_TORCH 0
/** A permutation computed index by index with seed + epoch, for up to 2^62 indices; no memory. */
#define FEEDLANE_SHUFFLE_FEISTEL 1
/** Exactly as torch's DataLoader(shuffle=True) after torch.manual_seed(seed), epoch after epoch, if nothing else draws
 *  from torch's default generator. */
#define FEEDLANE_SHUFFLE_TORCH_LOADER 2
/** @} */

/** A sampler of feedlane_sampler_random. */
typedef struct feedlane_random_config {
  size_t size;
  int64_t length;      /**< size of the data set, > 0; with FEEDLANE_SHUFFLE_FEISTEL up to 2^62 */
  uint64_t seed;       /**< epoch e is shuffled with seed + e; torch uses the low 32 bits of that */
  int64_t num_samples; /**< indices in an epoch; 0: length. Beyond length: whole permutations, then a part of another */
  int32_t replacement; /**< 1: draws each index from all of them, with repetitions (torch.randint) */
  int32_t shuffle;     /**< FEEDLANE_SHUFFLE_* */
} feedlane_random_config;

/** A sampler of feedlane_sampler_weighted. */
typedef struct feedlane_weighted_config {
  size_t size;
  int64_t num_samples;         /**< indices in an epoch; 0: the number of weights */
  uint64_t seed;               /**< epoch e is drawn with seed + e */
  int32_t without_replacement; /**< 1: each index at most once; draws by the weights of the remaining ones */
  int32_t reserved;            /**< 0 */
} feedlane_weighted_config;

/** A sampler of feedlane_sampler_distributed. */
typedef struct feedlane_distributed_config {
  size_t size;
  int64_t length;     /**< size of the data set, 0 .. 2^62 */
  int32_t world;      /**< number of ranks; 0: both numbers come from feedlane_rank_detect, which may fail */
  int32_t rank;       /**< 0 .. world - 1 */
  uint64_t seed;      /**< epoch e is shuffled with seed + e; the same in every rank */
  int32_t no_shuffle; /**< 1: the data set's own order */
  int32_t drop_last;  /**< so that all ranks get the same number of indices, 1: cuts the list, 0: repeats its start */
  int32_t shuffle;    /**< FEEDLANE_SHUFFLE_TORCH or _FEISTEL */
  int32_t detect_off; /**< 1: with world 0, rank 0 of 1 whatever the environment says */
} feedlane_distributed_config;

/** A sampler of feedlane_sampler_tokens. */
typedef struct feedlane_tokens_config {
  size_t size;
  int64_t max_tokens; /**< tokens in a batch, at most; 1 .. 2^31 - 1 */
  int64_t max_rows;   /**< samples in a batch, at most; 1 .. 2^30. A loader has room for so many rows */
  uint64_t seed;      /**< epoch e is shuffled with seed + e; the same in every rank */
  int64_t window;     /**< shuffled samples that are sorted by length together; 0: 8192; 1: none are sorted */
  int32_t padded;     /**< how tokens are counted. 0: the sum of the lengths; 1: rows * the longest length */
  int32_t no_shuffle; /**< 1: windows are taken from the data set's own order, and batches are not shuffled */
  int32_t drop_last;  /**< so that all ranks get the same number of batches, 1: omits batches, 0: splits batches */
  int32_t drop_long;  /**< 1: omits samples with more than max_tokens; 0: refuses them */
  int32_t world; /**< number of ranks, up to 2^20; 0: both numbers come from feedlane_rank_detect, which may fail */
  int32_t rank;  /**< 0 .. world - 1 */
  int32_t detect_off; /**< 1: with world 0, rank 0 of 1 whatever the environment says */
  int32_t reserved;   /**< 0 */
} feedlane_tokens_config;

/** A sampler of feedlane_sampler_mixture. */
typedef struct feedlane_mixture_config {
  size_t size;
  int64_t
      num_samples; /**< indices in an epoch, of all ranks together, up to 2^62; 0: samples of all sources together */
  uint64_t seed;   /**< the same in every rank */
  int64_t window;  /**< samples of the stream that are shuffled together; 0: 1024; 1: none */
  const int64_t
      *from;       /**< `stages` samples of the stream, from 0 on and ascending: where each stage begins. NULL: one */
  uint64_t stages; /**< rows of `weights`; 0: one, and `from` is NULL. stages * count is at most 2^24 */
  int32_t no_shuffle; /**< 1: each source's samples in their own order */
  int32_t drop_last;  /**< so that all ranks get the same number of indices, 1: cuts the epoch, 0: repeats its start */
  int32_t world;      /**< number of ranks; 0: both numbers come from feedlane_rank_detect, which may fail */
  int32_t rank;       /**< 0 .. world - 1 */
  int32_t detect_off; /**< 1: with world 0, rank 0 of 1 whatever the environment says */
  int32_t reserved;   /**< 0 */
} feedlane_mixture_config;

/** The rank of this process. */
typedef struct feedlane_rank {
  size_t size;
  int32_t rank;      /**< 0 .. world - 1 */
  int32_t world;     /**< at least 1 */
  char source[16];   /**< "feedlane", "torchrun", "openmpi", "mvapich", "pmi", "flux", "slurm"; "none": 0 of 1 */
  char warning[384]; /**< names another source that disagrees, in one line; empty if there is none */
} feedlane_rank;

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
 * A sampler of the user. Copies of it (a loader's, a batch sampler's) share the one `user_data`; use one copy at a
 * time. The callbacks run in the thread that calls feedlane_sampler_restart, _next, _save or _load, or
 * feedlane_loader_begin, _next or _poll. They return 0 or a negative status with err->text (and err->detail, see
 * feedlane_dataset) filled in; the call returns that status. feedlane_loader_next returns it after all earlier batches
 * were yielded. The following call then repeats the failed callback; indices received before are not lost.
 */
typedef struct feedlane_sampler_callbacks {
  size_t size;
  void *user_data; /**< kept until drop */
  /** Starts an epoch; `seed` is the loader's base seed, 0 without a loader. NULL: nothing to do. */
  feedlane_sampler_restart_fn restart;
  /** Writes 1 .. cap indices and their number. Fewer than cap are not the end; END, with none written, is. Required. */
  feedlane_sampler_next_fn next;
  /** Writes the current position, `*bytes` long. If that is more than cap, it returns E_LIMIT with the number of bytes
   *  needed and is called again. NULL: no state. */
  feedlane_sampler_save_fn save;
  /** After restart: continues from a saved position. NULL: no state. */
  feedlane_sampler_load_fn load;
  feedlane_sampler_drop_fn drop; /**< once, with the last copy; not if the sampler could not be created */
  int64_t length;                /**< indices in an epoch, or batches of a batch sampler; 0: unknown */
  int64_t batch_rows;            /**< > 0: a batch sampler. Each `next` is one batch of at most this size; up to 2^30 */
} feedlane_sampler_callbacks;

/** Yields 0, 1, ... length - 1; `length` >= 0. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_sampler_sequential(int64_t length, feedlane_sampler **out, feedlane_error *err);
/**
 * Yields a permutation of [0, length), or draws with replacement, different in each epoch. By default the indices are
 * those of torch's RandomSampler on CPU with a generator seeded with `seed + epoch`.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_random(const feedlane_random_config *config, feedlane_sampler **out,
                                             feedlane_error *err);
/**
 * Yields the `count` (>= 0) numbers at `indices`, shuffled in each epoch as torch's SubsetRandomSampler with a
 * generator seeded with `seed + epoch`. With `in_order` 1 they are yielded as given. Takes 16 bytes an index.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_subset(const int64_t *indices, uint64_t count, int32_t in_order, uint64_t seed,
                                             feedlane_sampler **out, feedlane_error *err);
/**
 * Yields indices from 0 to count - 1 with probabilities in proportion to their weights. Weights are finite and not
 * negative, and at least one is positive. An index of weight zero is never yielded. With replacement it uses alias
 * tables: 16 bytes a weight, constant time an index. Without replacement it uses exponential keys: 8 bytes a weight and
 * 8 an index.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_weighted(const double *weights, uint64_t count,
                                               const feedlane_weighted_config *config, feedlane_sampler **out,
                                               feedlane_error *err);
/**
 * Yields batches of `batch_size` (1 .. 2^30) indices of a copy of `inner`, which must not be a batch sampler. The last
 * batch may be smaller; `drop_last` 1 omits it. Each feedlane_sampler_next yields one batch.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_batch(const feedlane_sampler *inner, int64_t batch_size, int32_t drop_last,
                                            feedlane_sampler **out, feedlane_error *err);
/**
 * Yields every world-th index, from the rank-th on, of an order that all ranks share: exactly torch's
 * DistributedSampler after set_epoch, or a feistel shuffle without memory. A saved state may be loaded in a world of
 * another size, see feedlane_sampler_load.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_distributed(const feedlane_distributed_config *config, feedlane_sampler **out,
                                                  feedlane_error *err);
/**
 * Yields batches of samples whose lengths together stay within a budget of tokens. `lengths` has the number of tokens
 * (>= 0) of each of `count` (< 2^31) samples, and is copied. In each epoch the samples are shuffled, sorted by length
 * within windows, cut into batches of at most max_tokens and max_rows, and the batches are shuffled. The batches that
 * the ranks get in one step are of similar length and are shuffled together. Each feedlane_sampler_next yields one
 * batch of max_rows indices at most.
 *
 * Every rank gets the same number of batches. It may differ from epoch to epoch, unless the window covers all samples:
 * feedlane_sampler_length is that of the epoch which feedlane_sampler_restart has started. Every sample is in one batch
 * of one rank, with two exceptions. With drop_last up to world - 1 batches are omitted. Without it the batches with
 * the most rows are split; if there are fewer samples than batches needed, batches are repeated.
 *
 * A saved state may be loaded in a world of another size, see feedlane_sampler_load: the batches that are left are
 * split, or with drop_last omitted, for the new ranks. The indices are exactly those that would have followed. Row
 * seeds are too if each rank of a world of the same size loads the state that it has saved.
 *
 * Takes 4 bytes a sample, and for each of epoch 0 and the present epoch 4 bytes a sample and 8 a batch.
 *  - E_ARGUMENT: a length is negative, or more than max_tokens without drop_long; err->text names its index.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_tokens(const int64_t *lengths, uint64_t count,
                                             const feedlane_tokens_config *config, feedlane_sampler **out,
                                             feedlane_error *err);
/**
 * Mixes `count` (1 .. 65536) sources in proportion to weights, which may change in the course of training. The data set is
 * the sources one behind the other: source i has the lengths[i] (>= 0) indices that follow those of source i - 1.
 *
 * The mixture is one endless stream of samples, and epoch e is its samples from e * num_samples on. Each source goes on
 * where the last pick of it was, across epochs; when all its samples were picked it begins again, in another order.
 * After any number of samples each source has been picked as often as its weights say, to within log2(count) + 1 samples
 * for each stage. Which sources come is then shuffled within windows, so that each rank and batch gets its part of all.
 * At the border of two stages a window has samples of both. Of the stream, each rank yields every world-th index.
 *
 * `weights` has a row of `count` numbers for each stage: finite, not negative, in proportion to each other, at least one
 * positive; 0 for a source without samples. A stage lasts until the next one begins. A weight that changes steadily is
 * given as many short stages.
 *
 * The position is one number: a saved state continues exactly, and may be loaded in a world of another size, see
 * feedlane_sampler_load. Takes 24 bytes for each weight, and time in proportion to log2(count) for each index. `lengths`,
 * `weights` and `from` are copied.
 *  - E_ARGUMENT: err->text names the source and the stage.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_mixture(const int64_t *lengths, uint64_t count, const double *weights,
                                              const feedlane_mixture_config *config, feedlane_sampler **out,
                                              feedlane_error *err);
/**
 * Yields the indices of the user's callbacks as they are. On failure `drop` is not called.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_sampler_custom(const feedlane_sampler_callbacks *callbacks, feedlane_sampler **out,
                                             feedlane_error *err);
/**
 * Finds the rank of this process by the first pair of environment variables that exists:
 *  -# FEEDLANE_RANK and FEEDLANE_WORLD_SIZE
 *  -# RANK and WORLD_SIZE (torchrun)
 *  -# OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE
 *  -# MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE, or both with MVP_
 *  -# PMI_RANK and PMI_SIZE
 *  -# FLUX_TASK_RANK and FLUX_JOB_SIZE
 *  -# SLURM_PROCID and SLURM_NTASKS, only in a task of a step (SLURM_STEP_ID), not in an interactive shell
 *
 * Without any, this is rank 0 of 1. `warning` names another pair that disagrees, unless a launcher has started torchrun
 * once a node. The function reads the environment: no other thread may change it meanwhile.
 *  - E_ARGUMENT, with the variable's name: half of the pair is missing or is not a number in its range; or there is
 *    only the rank that PALS (PALS_RANKID) or PMIx (PMIX_RANK) sets.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_rank_detect(feedlane_rank *out, feedlane_error *err);
/**
 * The base seed that torch's DataLoader(shuffle=True) draws for `epoch` (0 .. 2^24) after
 * torch.manual_seed(manual_seed). Trainers that migrate from torch use it: torch seeds worker w with base_seed + w.
 * Takes four draws an epoch. Pure.
 *
 * Thread safety: any thread.
 */
FEEDLANE_API int32_t feedlane_torch_base_seed(uint64_t manual_seed, int64_t epoch, uint64_t *base_seed,
                                              feedlane_error *err);
/**
 * Starts `epoch` (>= 0) from its beginning.
 *  - E_MEMORY: there is too little memory for the epoch's order.
 *  - E_LIMIT: FEEDLANE_SHUFFLE_TORCH_LOADER beyond epoch 2^24; a mixture beyond its sample 2^62.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_restart(feedlane_sampler *s, int64_t epoch, feedlane_error *err);
/**
 * Writes up to `cap` indices and their number to `got`, fewer than cap only at the end. A batch sampler writes one
 * batch. A new sampler is at the start of epoch 0.
 *  - END: no index is left; `*got` is 0.
 *  - E_ARGUMENT: `cap` is less than the largest batch of a batch sampler.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_next(feedlane_sampler *s, int64_t *indices, uint64_t cap, uint64_t *got,
                                           feedlane_error *err);
/** Indices in an epoch, or batches of a batch sampler; -1: unknown. Thread safety: any thread. */
FEEDLANE_API int32_t feedlane_sampler_length(const feedlane_sampler *s, int64_t *length);
/**
 * Writes the position of the sampler in its epoch, and its definition: a few hundred bytes.
 *  - E_LIMIT: `cap` is too small. `*bytes` is the number needed; `state` may be NULL then.
 *  - E_UNSUPPORTED: a custom sampler without `save`.
 *
 * Thread safety: one thread at a time. Calls back: sampler.
 */
FEEDLANE_API int32_t feedlane_sampler_save(feedlane_sampler *s, void *state, uint64_t cap, uint64_t *bytes,
                                           feedlane_error *err);
/**
 * Continues after a saved position. Call it after feedlane_sampler_restart of the state's epoch, and restart the
 * sampler again after a failure. A distributed sampler or a mixture also accepts the state of a world of another size whose ranks
 * all saved after the same number of indices. The list that was padded for the world that began the epoch stays the
 * same, and the rest of it is divided among the new ranks. One rank may then get one index more than another, and
 * feedlane_sampler_length is what was yielded before plus what this rank still gets. The next restart returns to this
 * world's own list.
 *  - E_ARGUMENT: the state has another definition or epoch; err->found and err->needed say which.
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
