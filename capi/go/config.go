// SPDX-License-Identifier: Apache-2.0

// The configuration of a loader.

package feedlane

// #include "shim.h"
import "C"

import (
	"runtime"
	"runtime/cgo"
	"time"
)

// A Start is the kind of a loader's workers.
type Start int32

const (
	Processes  Start = C.FEEDLANE_START_SPAWN    // this program started again, or Config.Command
	Goroutines Start = C.FEEDLANE_START_THREAD   // goroutines of this process
	External   Start = C.FEEDLANE_START_EXTERNAL // processes that this program starts, see Loader.OpenWorker
	Host       Start = C.FEEDLANE_START_HOST     // as External, for processes that are started at once, such as forks
	Forked     Start = C.FEEDLANE_START_FORK     // forked copies of the trainer; Go cannot fork, so only a LoaderInfo of another language has it
)

// PrefetchAuto is a value of Config.Prefetch that adapts: it starts with two batches in flight per worker, and grows as
// long as that shortens the trainer's waits, within Config.ArenaBytes.
const PrefetchAuto = C.FEEDLANE_PREFETCH_AUTO

// Config configures a loader: its data, its workers, and how it handles failures. Zero is the default of every field.
type Config struct {
	// The data and its order.

	Dataset   Dataset  // required for inline loaders and goroutines; also without Sampler, for its length
	Sampler   *Sampler // nil: Random with Seed if Shuffle is set, otherwise Sequential. The definition is copied
	Shuffle   bool
	Fields    []Field // nil only with SlotBytes, if the data set shapes all tensors
	BatchSize int     // 0: 1; must be 0 with a BatchSampler
	Iterable  bool    // implied if Dataset is an Iterable. No sampler; each worker iterates its own shard
	Unbatched bool    // a task has one sample, and tensors have no batch dimension
	DropLast  bool    // drops an incomplete last batch
	World     int     // Iterable: number of ranks that share the data set; 0: 1. See DetectRank
	Rank      int     // Iterable: 0 .. World - 1

	OutOfOrder    bool  // batches are yielded as they arrive
	MaxBatches    int64 // batches in an epoch, after which it ends; 0: no limit
	Deterministic bool  // Iterable: a restarted shard yields the same samples, so a dead worker's replacement continues

	// Random numbers, and the position to resume from.

	Seed       uint64 // the base seed
	SystemSeed bool   // the system draws the base seed, and Seed is ignored
	State      []byte // from Loader.State: Begin of its epoch resumes after it

	// The workers.

	Workers      int // 0: inline: the data set runs in the goroutine that calls Next
	Start        Start
	Prefetch     int      // batches in flight per worker; 0: 2; or PrefetchAuto
	RoundRobin   bool     // batch i goes to worker i mod Workers; otherwise to the one with the fewest unfinished tasks
	KeepWorkers  bool     // worker processes outlive the epoch; goroutines always do
	NoLifeline   bool     // the trainer's death does not kill workers
	Command      []string // Processes: the worker program and its arguments; nil: this program with its arguments
	Env          []string // Processes: the environment, as "NAME=value"; nil: this process's environment
	WorkerConfig []byte   // passed to every worker as WorkerInfo.Config

	// Workers and samples that fail.

	StartTimeout     time.Duration // limit from start to attach; 0: 60 s
	StopTimeout      time.Duration // time from the request to stop to SIGTERM; 0: 5 s
	TermTimeout      time.Duration // time from SIGTERM to SIGKILL; 0: 1 s
	TaskTimeout      time.Duration // longest time in which a worker may neither finish nor start a task; 0: no limit
	MaxRestarts      int           // maximum number of dead workers replaced in the loader's life; 0: 1000; -1: none
	MaxKillsPerBatch int           // number of its workers' deaths after which a batch is ErrQuarantined; 0: 3
	Retries          int           // retries of a sample (with Batcher: a batch) whose error is Transient
	RetryBackoff     time.Duration // wait before the first retry, doubled before each further one; 0: 10 ms
	Substitute       bool          // the data set's Substituter names a sample to use in place of a failed one
	SkipBudget       int64         // samples that an epoch may leave out; -1: no limit

	// Memory.

	SlotBytes   uint64 // address space of a slot, for tensors that the data set shapes; 0: size of Fields plus 64 KiB
	ArenaBytes  uint64 // a limit for the reserved memory of all slots; 0: none
	WorkerCPUs  string // Processes: processors for workers: one list for all, "0-15", or one per worker, "0-7;8-15"
	MemoryNodes string // memory nodes for the batches' memory: one, "1", or several in turn, "0-1"
	Held        int    // batches that the trainer may hold at once without fewer batches in flight; 0: 1
	Pinned      *Pool  // registers the batches' memory with the pool's device; nil: no registration
	Staged      int    // with Pinned: see Loader.RunStager. Number of the pool's buffers, more than Held; 0: off

	// Consumers in other processes, see OpenConsumer and Serve. Such a loader has workers.

	Share     Share
	Consumers int    // ShareEvery: maximum number of consumers at a time; ShareDeal: exact number. 0: 1
	SharePath string // a Unix socket to create, where consumers of this user may join with JoinPath; "": none
	ShareTail bool   // ShareDeal: the first consumers get a last round of fewer than Consumers batches; otherwise it is left out

	// Observation.

	Name  string // shown by monitors, at most 63 bytes
	Trace uint64 // number of newest batches that Monitor.Trace keeps; 0: the value of $FEEDLANE_TRACE, or no trace
}

// isIterable reports whether workers iterate shards.
func (c *Config) isIterable() bool {
	_, ok := c.Dataset.(Iterable)
	return ok || c.Iterable
}

// sampler returns the sampler of the configuration.
func (c *Config) sampler() (*Sampler, error) {
	switch {
	case c.isIterable() && c.Shuffle:
		return nil, refuse(ErrArgument, "Config.Shuffle is not allowed for an iterable data set")
	case c.isIterable() && c.Sampler == nil:
		return &Sampler{}, nil // no sampler
	case c.Sampler != nil:
		return c.Sampler, nil
	case c.Dataset == nil:
		return nil, refuse(ErrArgument, "Config.Sampler and Config.Dataset are both nil")
	case c.Shuffle:
		return Random(RandomConfig{Length: c.Dataset.Len(), Seed: c.Seed})
	}
	return Sequential(c.Dataset.Len())
}

// fieldTable returns a table of fields in C memory.
func fieldTable(fields []Field, m *memory) (*C.feedlane_field, error) {
	first := (*C.feedlane_field)(m.allocate(uintptr(len(fields)), C.sizeof_feedlane_field))
	for i := range fields {
		if err := fields[i].fill(fieldAt(first, i), m); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// create creates the loader, and a handle for its data set if the library calls the data set's methods.
func (c *Config) create() (l *C.feedlane_loader, dataset cgo.Handle, err error) {
	var m memory
	defer m.free()
	sampler, err := c.sampler()
	if err != nil {
		return nil, 0, err
	}
	defer runtime.KeepAlive(sampler)
	to := (*C.feedlane_loader_config)(m.allocate(1, C.sizeof_feedlane_loader_config))
	to.size = C.sizeof_feedlane_loader_config
	to.sampler = sampler.c
	if to.fields, err = fieldTable(c.Fields, &m); err != nil {
		return nil, 0, err
	}
	if err := c.fill(to, &m); err != nil {
		return nil, 0, err
	}
	if c.Pinned != nil {
		if err := c.Pinned.enter(); err != nil {
			return nil, 0, err
		}
		defer c.Pinned.leave()
		to.pinned = c.Pinned.c
	}
	if c.Workers == 0 || c.isIterable() && c.Start == Goroutines {
		to.dataset, dataset = callbackTable(c.Dataset, &m)
	}
	out := newLoaderPointer(&m)
	err = check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_loader_create(to, out, err) })
	if err != nil && dataset != 0 {
		dataset.Delete()
		dataset = 0
	}
	return *out, dataset, err
}

// fill sets the members that are not pointers to other objects.
func (c *Config) fill(to *C.feedlane_loader_config, m *memory) error {
	switch {
	case c.Dataset == nil && (c.Workers == 0 || c.Start == Goroutines):
		return refuse(ErrArgument, "Config.Dataset is nil: an inline loader and worker goroutines need one")
	case c.Unbatched && c.BatchSize != 0:
		return refuse(ErrArgument, "Config.BatchSize is %d: must be 0 if Config.Unbatched is set", c.BatchSize)
	case c.Start == Forked:
		return refuse(ErrArgument, "Config.Start is Forked: a Go program cannot fork")
	case c.Command != nil && len(c.Command) == 0:
		return refuse(ErrArgument, "Config.Command is empty")
	}
	to.field_count = C.uint64_t(len(c.Fields))
	to.batch_size = C.int64_t(c.BatchSize)
	if c.Unbatched {
		to.batch_size = C.FEEDLANE_UNBATCHED
	}
	if to.iterable = flag(c.isIterable()); to.iterable != 0 && c.Dataset != nil {
		to.iterable_length = C.int64_t(c.Dataset.Len())
	}
	to.deterministic = flag(c.Deterministic)
	to.drop_last = flag(c.DropLast)
	to.out_of_order = flag(c.OutOfOrder)
	to.seed = C.uint64_t(c.Seed)
	to.has_seed = flag(!c.SystemSeed)
	to.state = m.bytes(c.State)
	to.state_bytes = C.uint64_t(len(c.State))
	to.workers = C.int32_t(c.Workers)
	to.start = C.int32_t(c.Start)
	to.prefetch_factor = C.int32_t(c.Prefetch)
	if c.RoundRobin {
		to.dispatch = C.FEEDLANE_DISPATCH_ROUND_ROBIN
	}
	to.keep_workers = flag(c.KeepWorkers)
	to.no_lifeline = flag(c.NoLifeline)
	to.argv = m.strings(c.Command)
	to.envp = m.strings(c.Env)
	to.worker_config = m.bytes(c.WorkerConfig)
	to.worker_config_bytes = C.uint64_t(len(c.WorkerConfig))
	to.start_timeout_ns = C.int64_t(c.StartTimeout)
	to.stop_timeout_ns = C.int64_t(c.StopTimeout)
	to.term_timeout_ns = C.int64_t(c.TermTimeout)
	to.task_timeout_ns = C.int64_t(c.TaskTimeout)
	to.max_restarts = C.int32_t(c.MaxRestarts)
	to.max_kills_per_batch = C.int32_t(c.MaxKillsPerBatch)
	to.retries = C.int32_t(c.Retries)
	to.retry_backoff_ns = C.int64_t(c.RetryBackoff)
	to.substitute = flag(c.Substitute)
	to.skip_budget = C.int64_t(c.SkipBudget)
	to.slot_bytes = C.uint64_t(c.SlotBytes)
	to.arena_bytes = C.uint64_t(c.ArenaBytes)
	to.held = C.int32_t(c.Held)
	to.staged = C.int32_t(c.Staged)
	if c.WorkerCPUs != "" {
		to.worker_cpus = m.string(c.WorkerCPUs)
	}
	if c.MemoryNodes != "" {
		to.memory_nodes = m.string(c.MemoryNodes)
	}
	if c.Name != "" {
		to.name = m.string(c.Name)
	}
	to.trace = C.uint64_t(c.Trace)
	to.world = C.int32_t(c.World)
	to.rank = C.int32_t(c.Rank)
	to.max_batches = C.int64_t(c.MaxBatches)
	to.share = C.int32_t(c.Share)
	to.consumers = C.int32_t(c.Consumers)
	if c.SharePath != "" {
		to.share_path = m.string(c.SharePath)
	}
	to.share_tail = flag(c.ShareTail)
	return nil
}
