// SPDX-License-Identifier: Apache-2.0

// Samplers: the order of the indices of an epoch.

package feedlane

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// A Sampler yields the indices of an epoch, in order. Loaders copy its definition; the garbage collector frees it.
//
// Thread safety: one goroutine at a time.
type Sampler struct{ c *C.feedlane_sampler }

// A Shuffle is a method of shuffling.
type Shuffle int32

const (
	ShuffleTorch       Shuffle = C.FEEDLANE_SHUFFLE_TORCH        // as torch on CPU with a generator seeded with seed + epoch
	ShuffleFeistel     Shuffle = C.FEEDLANE_SHUFFLE_FEISTEL      // computed index by index, for up to 2^62 indices
	ShuffleTorchLoader Shuffle = C.FEEDLANE_SHUFFLE_TORCH_LOADER // as torch's DataLoader(shuffle=True) after manual_seed
)

// arrays are the arrays of a sampler's configuration. The library copies them.
type arrays struct {
	indices, lengths, from []int64
	weights                []float64
}

// newSampler creates a sampler. The library checks the configuration.
func newSampler(config C.feedlane_sampler_config, data arrays) (*Sampler, error) {
	var m memory
	defer m.free()
	out := (**C.feedlane_sampler)(m.allocate(1, unsafe.Sizeof((*C.feedlane_sampler)(nil))))
	err := check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_go_sampler_create(config, (*C.int64_t)(first(data.indices)), (*C.int64_t)(first(data.lengths)),
			(*C.double)(first(data.weights)), (*C.int64_t)(first(data.from)), out, err)
	})
	if err != nil {
		return nil, err
	}
	s := &Sampler{*out}
	runtime.SetFinalizer(s, func(s *Sampler) { C.feedlane_go_sampler_destroy(s.c) })
	return s, nil
}

// first returns a pointer to the first element, or nil if there is none.
func first[T any](list []T) unsafe.Pointer {
	if len(list) == 0 {
		return nil
	}
	return unsafe.Pointer(&list[0])
}

// Sequential yields 0, 1, ... length - 1.
func Sequential(length int64) (*Sampler, error) {
	return newSampler(C.feedlane_sampler_config{kind: C.FEEDLANE_SAMPLER_SEQUENTIAL, length: C.int64_t(length)}, arrays{})
}

// RandomConfig is the configuration of Random.
type RandomConfig struct {
	Length      int64  // size of the data set, > 0; with ShuffleFeistel up to 2^62
	Seed        uint64 // epoch e is shuffled with Seed + e
	NumSamples  int64  // indices in an epoch; 0: Length
	Replacement bool   // draws every index from the full range, with repetitions
	Shuffle     Shuffle
}

// Random yields a permutation of [0, Length), or draws with replacement; the order differs in each epoch. By default
// the indices are exactly those of torch's RandomSampler on CPU.
func Random(config RandomConfig) (*Sampler, error) {
	return newSampler(C.feedlane_sampler_config{
		kind: C.FEEDLANE_SAMPLER_RANDOM, length: C.int64_t(config.Length), seed: C.uint64_t(config.Seed),
		num_samples: C.int64_t(config.NumSamples), replacement: flag(config.Replacement),
		shuffle: C.int32_t(config.Shuffle),
	}, arrays{})
}

// Subset yields the given indices. Each epoch shuffles them as torch's SubsetRandomSampler does with a generator seeded
// with seed + epoch.
func Subset(indices []int64, seed uint64) (*Sampler, error) { return subset(indices, false, seed) }

// InOrder yields the given indices in the given order.
func InOrder(indices []int64) (*Sampler, error) { return subset(indices, true, 0) }

func subset(indices []int64, inOrder bool, seed uint64) (*Sampler, error) {
	return newSampler(C.feedlane_sampler_config{
		kind: C.FEEDLANE_SAMPLER_SUBSET, count: C.uint64_t(len(indices)), no_shuffle: flag(inOrder),
		seed: C.uint64_t(seed),
	}, arrays{indices: indices})
}

// WeightedConfig is the configuration of Weighted.
type WeightedConfig struct {
	NumSamples         int64  // indices in an epoch; 0: the number of weights
	Seed               uint64 // epoch e is drawn with Seed + e
	WithoutReplacement bool   // yields each index at most once
}

// Weighted yields indices of weights, with probabilities in proportion to the weights. Weights are finite and not
// negative, and at least one is positive.
func Weighted(weights []float64, config WeightedConfig) (*Sampler, error) {
	return newSampler(C.feedlane_sampler_config{
		kind: C.FEEDLANE_SAMPLER_WEIGHTED, count: C.uint64_t(len(weights)), num_samples: C.int64_t(config.NumSamples),
		seed: C.uint64_t(config.Seed), without_replacement: flag(config.WithoutReplacement),
	}, arrays{weights: weights})
}

// BatchSampler yields batches of batchSize indices of a copy of inner. Config.BatchSize must be 0 then.
func BatchSampler(inner *Sampler, batchSize int, dropLast bool) (*Sampler, error) {
	if inner == nil {
		return nil, refuse(ErrArgument, "inner is nil")
	}
	defer runtime.KeepAlive(inner)
	return newSampler(C.feedlane_sampler_config{
		kind: C.FEEDLANE_SAMPLER_BATCH, inner: inner.c, batch_size: C.int64_t(batchSize), drop_last: flag(dropLast),
	}, arrays{})
}

// DistributedConfig is the configuration of Distributed.
type DistributedConfig struct {
	Length    int64  // size of the data set
	World     int    // number of ranks; 0: DetectRank finds World and Rank
	Rank      int    // 0 .. World - 1
	Seed      uint64 // epoch e is shuffled with Seed + e; must be equal in all ranks
	NoShuffle bool   // the data set's own order
	DropLast  bool   // cuts the list, otherwise repeats its start, so that all ranks get the same number of indices
	Shuffle   Shuffle
}

// Distributed yields every World-th index, starting with the Rank-th, of an order that all ranks share. The order is
// exactly that of torch's DistributedSampler after set_epoch.
func Distributed(config DistributedConfig) (*Sampler, error) {
	return newSampler(C.feedlane_sampler_config{
		kind: C.FEEDLANE_SAMPLER_DISTRIBUTED, length: C.int64_t(config.Length), world: C.int32_t(config.World),
		rank: C.int32_t(config.Rank), seed: C.uint64_t(config.Seed), no_shuffle: flag(config.NoShuffle),
		drop_last: flag(config.DropLast), shuffle: C.int32_t(config.Shuffle),
	}, arrays{})
}

// TokensConfig is the configuration of Tokens.
type TokensConfig struct {
	MaxTokens int64  // maximum number of tokens in a batch
	MaxRows   int    // maximum number of samples in a batch
	Seed      uint64 // epoch e is shuffled with Seed + e; must be equal in all ranks
	Window    int64  // number of shuffled samples that are sorted by length together; 0: 8192; 1: no sorting
	Padded    bool   // tokens are counted as rows * the longest length, otherwise as the sum of the lengths
	NoShuffle bool   // windows follow the data set's own order, and batches are not shuffled
	DropLast  bool   // omits batches, otherwise splits batches, so that all ranks get the same number of batches
	DropLong  bool   // omits samples with more than MaxTokens tokens, otherwise refuses them
	World     int    // number of ranks; 0: DetectRank finds World and Rank
	Rank      int    // 0 .. World - 1
}

// Tokens yields batches of samples whose lengths together stay within a budget of tokens. lengths has the number of
// tokens of each sample. Config.BatchSize must be 0 then.
func Tokens(lengths []int64, config TokensConfig) (*Sampler, error) {
	return newSampler(C.feedlane_sampler_config{
		kind: C.FEEDLANE_SAMPLER_TOKENS, count: C.uint64_t(len(lengths)), max_tokens: C.int64_t(config.MaxTokens),
		max_rows: C.int64_t(config.MaxRows), seed: C.uint64_t(config.Seed), window: C.int64_t(config.Window),
		padded: flag(config.Padded), no_shuffle: flag(config.NoShuffle), drop_last: flag(config.DropLast),
		drop_long: flag(config.DropLong), world: C.int32_t(config.World), rank: C.int32_t(config.Rank),
	}, arrays{lengths: lengths})
}

// MixtureConfig is the configuration of Mixture.
type MixtureConfig struct {
	NumSamples int64   // indices in an epoch over all ranks; 0: the number of samples in all sources
	Seed       uint64  // must be equal in all ranks
	Window     int64   // number of samples of the stream that are shuffled together; 0: 1024; 1: no shuffling
	From       []int64 // sample of the stream at which each stage begins: 0 first, then ascending; nil: one stage
	NoShuffle  bool    // each source's samples come in their own order
	DropLast   bool    // cuts the epoch, otherwise repeats its start, so that all ranks get the same number of indices
	World      int     // number of ranks; 0: DetectRank finds World and Rank
	Rank       int     // 0 .. World - 1
}

// Mixture mixes sources in proportion to weights. Source i has lengths[i] indices, which follow those of source i - 1.
// weights has one row of len(lengths) numbers per stage.
func Mixture(lengths []int64, weights []float64, config MixtureConfig) (*Sampler, error) {
	stages := len(config.From)
	if stages == 0 {
		stages = 1
	}
	if len(lengths) == 0 || len(weights) != len(lengths)*stages {
		return nil, refuse(ErrArgument, "%d weights for %d stages of %d sources: each stage must have one weight per source", len(weights), stages, len(lengths))
	}
	return newSampler(C.feedlane_sampler_config{
		kind: C.FEEDLANE_SAMPLER_MIXTURE, count: C.uint64_t(len(lengths)), stages: C.uint64_t(len(config.From)),
		num_samples: C.int64_t(config.NumSamples), seed: C.uint64_t(config.Seed), window: C.int64_t(config.Window),
		no_shuffle: flag(config.NoShuffle), drop_last: flag(config.DropLast), world: C.int32_t(config.World),
		rank: C.int32_t(config.Rank),
	}, arrays{lengths: lengths, weights: weights, from: config.From})
}

// A Rank is the rank of this process in a training run.
type Rank struct {
	Rank    int    // 0 .. World - 1
	World   int    // at least 1
	Source  string // "torchrun", "slurm" and so on; "none": rank 0 of 1
	Warning string // names another source that disagrees; empty if there is none
}

// DetectRank finds the rank of this process in the environment variables of torchrun, Open MPI, MVAPICH, PMI, Flux or
// Slurm.
func DetectRank() (Rank, error) {
	var m memory
	defer m.free()
	c := (*C.feedlane_rank)(m.allocate(1, C.sizeof_feedlane_rank))
	c.size = C.sizeof_feedlane_rank
	if err := check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_rank_detect(c, err) }); err != nil {
		return Rank{}, err
	}
	return Rank{int(c.rank), int(c.world), C.GoString(&c.source[0]), C.GoString(&c.warning[0])}, nil
}

// Restart starts an epoch (>= 0) from its beginning. Loaders restart their own copies.
func (s *Sampler) Restart(epoch int64) error {
	defer runtime.KeepAlive(s)
	return check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_sampler_restart(s.c, C.int64_t(epoch), err) })
}

// Next writes up to len(to) indices and returns their number; 0 at the end of the epoch. A batch sampler writes one
// batch. 0 also if a LiveOrder has too few indices now; the sampler keeps them.
func (s *Sampler) Next(to []int64) (int, error) {
	defer runtime.KeepAlive(s)
	if len(to) == 0 {
		return 0, refuse(ErrArgument, "the slice has no room for an index")
	}
	var got C.uint64_t
	err := check(func(err *C.feedlane_error) C.int32_t {
		status := C.feedlane_sampler_next(s.c, (*C.int64_t)(unsafe.Pointer(&to[0])), C.uint64_t(len(to)), &got, err)
		if status == C.FEEDLANE_END || status == C.FEEDLANE_AGAIN {
			return C.FEEDLANE_OK
		}
		return status
	})
	return int(got), err
}

// Len returns the number of indices in an epoch, or batches of a batch sampler; -1: unknown.
func (s *Sampler) Len() int64 {
	defer runtime.KeepAlive(s)
	var length C.int64_t
	if C.feedlane_sampler_length(s.c, &length) != C.FEEDLANE_OK {
		return -1
	}
	return int64(length)
}
