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

// A Start says what the workers of a loader are.
type Start int32

const (
	Processes  Start = C.FEEDLANE_START_SPAWN    // this program started again, or Config.Command
	Goroutines Start = C.FEEDLANE_START_THREAD   // goroutines of this process
	External   Start = C.FEEDLANE_START_EXTERNAL // processes that the program starts, see Loader.OpenWorker
	Forked     Start = C.FEEDLANE_START_FORK     // forked copies of the trainer: only in a LoaderInfo of another language's, as Go cannot fork
)

// PrefetchAuto as Config.Prefetch begins with two batches in flight per worker, and takes more while that shortens the trainer's
// waits, within Config.ArenaBytes.
const PrefetchAuto = C.FEEDLANE_PREFETCH_AUTO

// Config says what to load, by which workers, and what to do about failures. Zero is the default of every field.
type Config struct {
	// The data and its order.

	Dataset   Dataset  // required for inline loaders and goroutines, and without Sampler: for its length
	Sampler   *Sampler // nil: Random with Seed if Shuffle is set, otherwise Sequential. It is copied
	Shuffle   bool
	Fields    []Field // nil only with SlotBytes, if the data set shapes all tensors
	BatchSize int     // 0: 1; must be 0 with a BatchSampler
	Iterable  bool    // implied if Dataset is an Iterable: no sampler, each worker iterates over its own shard
	Unbatched bool    // a task has one sample, and tensors have no batch dimension
	DropLast  bool    // no incomplete last batch
	World     int     // Iterable: number of ranks that share the data set; 0: 1. See DetectRank
	Rank      int     // Iterable: 0 .. World - 1

	OutOfOrder    bool  // batches are yielded as they arrive
	MaxBatches    int64 // batches of an epoch, after which it ends; 0: no limit
	Deterministic bool  // Iterable: a shard restarted yields the same samples, so that the replacement of a dead worker continues

	// Random numbers, and the position to resume from.

	Seed       uint64 // the base seed
	SystemSeed bool   // it is drawn from the system
	State      []byte // of Loader.State: Begin of its epoch continues after it

	// The workers.

	Workers      int // 0: inline, the data set runs in the goroutine that calls Next
	Start        Start
	Prefetch     int      // batches in flight per worker; 0: 2; or PrefetchAuto
	RoundRobin   bool     // batch i to worker i mod Workers, otherwise to the worker with the fewest unfinished ones
	KeepWorkers  bool     // processes outlive the epoch; goroutines always do
	NoLifeline   bool     // the trainer's death does not kill workers
	Command      []string // Processes: the worker program and its arguments; nil: this program with its arguments
	Env          []string // Processes: "NAME=value"; nil: this process's environment
	WorkerConfig []byte   // WorkerInfo.Config of every worker

	// Workers and samples that fail.

	StartTimeout     time.Duration // from start to attach; 0: 60 s
	StopTimeout      time.Duration // from the request to stop to SIGTERM; 0: 5 s
	TermTimeout      time.Duration // from SIGTERM to SIGKILL; 0: 1 s
	TaskTimeout      time.Duration // longest time without a task finished or started; 0: no limit
	MaxRestarts      int           // dead workers replaced; 0: 1000; -1: none
	MaxKillsPerBatch int           // deaths after which a batch is ErrQuarantined; 0: 3
	Retries          int           // of a sample (with Batcher: a batch) whose error is Transient
	RetryBackoff     time.Duration // before the first retry, doubled before each further one; 0: 10 ms
	Substitute       bool          // the data set's Substituter names another sample
	SkipBudget       int64         // samples of an epoch that may be left out; -1: no limit

	// Memory.

	SlotBytes   uint64 // address space of a batch, for tensors that the data set shapes; 0: the fields and 64 KiB
	ArenaBytes  uint64 // a limit for the memory that Fields reserve; 0: none
	WorkerCPUs  string // processors that workers run on: "0-15", or a list for each worker: "0-7;8-15"; with Spawn
	MemoryNodes string // that the batches' memory comes from: "1", or in turn: "0-1"
	Held        int    // batches that the trainer holds at the same time, without fewer in flight; 0: 1

	// Consumers in other processes, see OpenConsumer and Serve. Such a loader has workers.

	Share     Share
	Consumers int    // ShareEvery: at the same time, at most; ShareDeal: exactly. 0: 1
	SharePath string // a Unix socket to make, by which consumers of this user may join, see JoinPath; "": none
	ShareTail bool   // ShareDeal: the last batches go to the first consumers when they are fewer than Consumers; otherwise they are left out

	// What can be seen of the run.

	Name  string // shown by monitors, at most 63 bytes
	Trace uint64 // the newest batches that Loader.Trace keeps; 0: as many as the environment's FEEDLANE_TRACE says, or no trace
}

// isIterable reports whether the workers iterate over shards.
func (c *Config) isIterable() bool {
	_, ok := c.Dataset.(Iterable)
	return ok || c.Iterable
}

// sampler returns the sampler of the configuration.
func (c *Config) sampler() (*Sampler, error) {
	switch {
	case c.isIterable() && c.Shuffle:
		return nil, refuse(ErrArgument, "Config.Shuffle is set, and the data set is iterable")
	case c.isIterable() && c.Sampler == nil:
		return &Sampler{}, nil // none
	case c.Sampler != nil:
		return c.Sampler, nil
	case c.Dataset == nil:
		return nil, refuse(ErrArgument, "Config needs a Sampler, or a Dataset for its length")
	case c.Shuffle:
		return Random(RandomConfig{Length: c.Dataset.Len(), Seed: c.Seed})
	}
	return Sequential(c.Dataset.Len())
}

// fields returns the table of fields in C memory.
func (c *Config) fields(m *memory) (*C.feedlane_field, error) {
	first := (*C.feedlane_field)(m.allocate(uintptr(len(c.Fields)), C.sizeof_feedlane_field))
	for i := range c.Fields {
		if err := c.Fields[i].fill(fieldAt(first, i), m); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// create makes the loader, and the handle of its data set if the library calls that.
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
	if to.fields, err = c.fields(&m); err != nil {
		return nil, 0, err
	}
	if err := c.fill(to, &m); err != nil {
		return nil, 0, err
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

// fill sets what is not a pointer to another object.
func (c *Config) fill(to *C.feedlane_loader_config, m *memory) error {
	switch {
	case c.Dataset == nil && (c.Workers == 0 || c.Start == Goroutines):
		return refuse(ErrArgument, "Config.Dataset is nil: an inline loader and goroutines need one")
	case c.Unbatched && c.BatchSize != 0:
		return refuse(ErrArgument, "Config.Unbatched is set, and BatchSize is %d", c.BatchSize)
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
