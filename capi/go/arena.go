// SPDX-License-Identifier: Apache-2.0

// Arenas: owners, members and their ends.

package feedlane

// #include "shim.h"
import "C"

import (
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A Full is what a put does if an arena has no free memory.
type Full int32

const (
	FullEvict Full = C.FEEDLANE_FULL_EVICT // evicts entries with a key, least recently used first; if there are none, waits
	FullWait  Full = C.FEEDLANE_FULL_WAIT  // waits until memory is released
	FullFail  Full = C.FEEDLANE_FULL_FAIL  // returns ErrLimit
)

// ArenaConfig configures an arena. Zero is the default of every field except Bytes.
type ArenaConfig struct {
	Bytes    uint64 // memory for entries, 64 KiB to 1 TiB; an entry may take a third of it
	Members  uint32 // processes besides the owner at the same time, up to 255; 0: 16
	Entries  uint32 // entries at the same time, up to 2^20; 0: one per 64 KiB, at least 1024
	Leases   uint32 // batches that one process may hold, up to 65,536; 0: 1024
	WhenFull Full
	Path     string // a Unix socket to create, where processes of this user may join with JoinArena; "": none
}

// An Arena is memory for entries, which are named tensors, that several processes share. One process is the owner, the
// others are members. An entry with a key is stored, and every process can get it. An entry without a key is sent: a
// member's to the owner, the owner's to every member.
//
// A batch that an arena returns has its tensors in read-only memory: a write to a slice of View is a segmentation fault.
// It stays as it is until Batch.Release, even after the arena's end. Batch.Number is the number of the entry in the
// arena, and Batch.Worker the member that made it, 0 for the owner.
//
// The owner serves its members in each of its calls that wait. If it does other things, it needs a goroutine in Serve.
// A call that waits occupies a thread. If its context ends, it returns the context's error, and nothing has changed.
//
// Thread safety: any goroutine may call any method. After Close every method returns ErrState.
type Arena struct {
	c         *C.feedlane_loader
	calls     guard
	once      sync.Once
	ended     chan struct{} // closed when c was destroyed
	cancelled cancelled
}

// NewArena creates an arena and becomes its owner. The arena ends with Close, or with this process.
//   - ErrArgument: the configuration is invalid; Error.Argument names the setting.
//   - ErrState: another process listens at Path.
//   - ErrMemory, ErrLimit, ErrOS: a resource of the system is missing.
func NewArena(config ArenaConfig) (*Arena, error) {
	return newArena(func(out **C.feedlane_loader, err *C.feedlane_error, m *memory) C.int32_t {
		to := (*C.feedlane_arena_config)(m.allocate(1, C.sizeof_feedlane_arena_config))
		to.size = C.sizeof_feedlane_arena_config
		to.bytes = C.uint64_t(config.Bytes)
		to.members = C.uint32_t(config.Members)
		to.entries = C.uint32_t(config.Entries)
		to.leases = C.uint32_t(config.Leases)
		to.when_full = C.int32_t(config.WhenFull)
		if config.Path != "" {
			to.path = m.string(config.Path)
		}
		return C.feedlane_arena_create(to, out, err)
	})
}

// JoinArena becomes a member of the arena whose owner has this path. timeout 0: 60 s.
//   - ErrPeerDead: no owner listens at this path.
//   - ErrTimeout: the owner did not answer in time.
//   - ErrLimit: all places are taken.
//   - ErrState: the owner belongs to another user.
//   - ErrCorrupt, ErrABI: the owner's library is of another version, or its message is invalid.
func JoinArena(path string, timeout time.Duration) (*Arena, error) {
	return newArena(func(out **C.feedlane_loader, err *C.feedlane_error, m *memory) C.int32_t {
		return C.feedlane_arena_join(-1, m.string(path), joinNanoseconds(timeout), out, err)
	})
}

// JoinArenaSocket becomes a member through a socket of the owner's Offer. It closes the socket in every case. Otherwise
// it is like JoinArena.
func JoinArenaSocket(socket *os.File, timeout time.Duration) (*Arena, error) {
	defer socket.Close()
	fd := C.feedlane_go_duplicate(C.int(socket.Fd()))
	return newArena(func(out **C.feedlane_loader, err *C.feedlane_error, _ *memory) C.int32_t {
		return C.feedlane_arena_join(C.int32_t(fd), nil, joinNanoseconds(timeout), out, err)
	})
}

func newArena(open func(**C.feedlane_loader, *C.feedlane_error, *memory) C.int32_t) (*Arena, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	var m memory
	defer m.free()
	out := newLoaderPointer(&m)
	if err := check(func(err *C.feedlane_error) C.int32_t { return open(out, err, &m) }); err != nil {
		return nil, err
	}
	a := &Arena{c: *out, ended: make(chan struct{})}
	runtime.SetFinalizer(a, (*Arena).drain)
	return a, nil
}

// drain destroys the arena when no call uses it. It never waits.
func (a *Arena) drain() {
	a.once.Do(func() {
		C.feedlane_go_loader_destroy(a.c)
		close(a.ended)
	})
}

func (a *Arena) enter() error {
	if !a.calls.enter() {
		a.leave()
		return refuse(ErrState, "the arena is closed")
	}
	return nil
}

func (a *Arena) leave() {
	if a.calls.leave() {
		a.drain()
	}
}

// Close leaves the arena; the owner's Close ends it. Calls in progress return ErrState. Batches that are held stay valid.
// Closing an arena again has no effect. The garbage collector closes a forgotten arena.
func (a *Arena) Close() error {
	if !a.calls.close() {
		return nil
	}
	C.feedlane_loader_close(a.c)
	a.leave()
	<-a.ended
	return nil
}

// Offer returns a socket for one member, which may be a process of any user. The caller passes it to that process and
// closes it. The process calls JoinArenaSocket with it.
//   - ErrLimit: all places are taken.
//   - ErrState: this process is not the owner.
func (a *Arena) Offer() (*os.File, error) {
	if err := a.enter(); err != nil {
		return nil, err
	}
	defer a.leave()
	var fd C.int32_t
	if err := check(func(err *C.feedlane_error) C.int32_t { return C.feedlane_arena_offer(a.c, &fd, err) }); err != nil {
		return nil, err
	}
	syscall.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "feedlane arena"), nil
}

// Arm prepares to sleep in an event loop. fd is the descriptor to poll for reading, which the arena owns. If ready is
// true, do not sleep. After the sleep call TryReceive until it returns ErrTimeout, then Arm again.
//   - ErrBusy: another goroutine waits in a call of this arena.
func (a *Arena) Arm() (fd int, ready bool, err error) {
	if err := a.enter(); err != nil {
		return -1, false, err
	}
	defer a.leave()
	var c C.int32_t
	switch status := C.feedlane_arena_arm(a.c, &c); status {
	case C.FEEDLANE_OK, C.FEEDLANE_AGAIN:
		return int(c), status == C.FEEDLANE_AGAIN, nil
	default:
		return -1, false, Status(status)
	}
}

// ArenaStats describe an arena. Unless noted otherwise, only the owner has a field; elsewhere it is 0.
type ArenaStats struct {
	Owner     int    // its pid, as any process sees it; 0: unknown
	Bytes     uint64 // ArenaConfig.Bytes, in any process
	UsedBytes uint64 // memory that entries take
	FreeBytes uint64 // memory without an entry
	Entries   uint64 // entries now, including sent ones
	Members   uint64 // processes now, including the owner
	Leased    uint64 // entries that any process holds
	Waiting   uint64 // requests that wait for memory or for a key
	Published uint64 // entries ever published
	Evicted   uint64 // entries ever evicted
	Hits      uint64 // gets that found their entry: of all current processes at the owner, of this process elsewhere
	Misses    uint64 // gets that did not, counted in the same way
	Held      uint64 // batches and reservations that this process holds, in any process
}

// Stats returns the state of the arena, and of this process in it.
func (a *Arena) Stats() (ArenaStats, error) {
	if err := a.enter(); err != nil {
		return ArenaStats{}, err
	}
	defer a.leave()
	c := C.feedlane_arena_stats{size: C.sizeof_feedlane_arena_stats}
	if status := C.feedlane_arena_get_stats(a.c, &c); status != C.FEEDLANE_OK {
		return ArenaStats{}, Status(status)
	}
	return newArenaStats(&c), nil
}

func newArenaStats(c *C.feedlane_arena_stats) ArenaStats {
	return ArenaStats{int(c.owner), uint64(c.bytes), uint64(c.used_bytes), uint64(c.free_bytes), uint64(c.entries),
		uint64(c.members), uint64(c.leased), uint64(c.waiting), uint64(c.published), uint64(c.evicted), uint64(c.hits),
		uint64(c.misses), uint64(c.held)}
}

// Event returns the owner's oldest event that was not read yet: EventConsumerLeft for a member that has ended, has left
// or was cut off. io.EOF: there is none.
func (a *Arena) Event() (Event, error) {
	if err := a.enter(); err != nil {
		return Event{}, err
	}
	defer a.leave()
	return nextEvent(a.c)
}

// An ArenaMember is a process of an arena, its owner included.
type ArenaMember struct {
	PID      int    // as the owner sees it; 0: it has not joined yet
	Number   int    // Batch.Worker of the entries that it has put; 0: the owner
	IsCutOff bool   // the owner has cut it off, because it sent an invalid request
	Held     uint64 // entries that it holds
	Waiting  uint64 // its requests that wait for memory or for a key
	Granted  uint64 // bytes of memory that it has for its next puts
	Hits     uint64 // gets that found their entry
	Misses   uint64 // gets that did not
}

// An ArenaInfo is an arena of any process, as its owner saw it when it last served.
type ArenaInfo struct {
	ArenaStats               // as in the owner, but Held is 0
	Members    []ArenaMember // in the order in which they joined
}

// ReadArena reads arena number nth, from 0, of a process of this user, which is its owner, without its help.
//   - io.EOF: the process has no such arena.
//   - ErrPeerDead, ErrOS: see OpenMonitor.
func ReadArena(pid, nth int) (ArenaInfo, error) {
	c := C.feedlane_arena_stats{size: C.sizeof_feedlane_arena_stats}
	members := make([]C.feedlane_arena_member, C.FEEDLANE_MAX_ARENA_PROCESSES)
	for i := range members {
		members[i].size = C.sizeof_feedlane_arena_member
	}
	var count C.uint64_t
	err := check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_monitor_arena(C.int64_t(pid), C.int32_t(nth), &c, &members[0], C.uint64_t(len(members)), &count, err)
	})
	if err != nil {
		return ArenaInfo{}, err
	}
	info := ArenaInfo{ArenaStats: newArenaStats(&c)}
	for _, m := range members[:count] {
		info.Members = append(info.Members, ArenaMember{int(m.pid), int(m.number), m.cut_off != 0, uint64(m.held),
			uint64(m.waiting), uint64(m.granted_bytes), uint64(m.hits), uint64(m.misses)})
	}
	return info, nil
}
