// SPDX-License-Identifier: Apache-2.0

// Arenas: full ones, cancelled and closed calls, invalid input, event loops.

package feedlane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"feedlane"
)

const quarter = 30_000 // numbers: a little less than a quarter of 1 MiB

// A full arena evicts, waits or fails, as the configuration says.
func TestArenaFull(t *testing.T) {
	evicting := newArena(t, feedlane.ArenaConfig{Bytes: 1 << 20})
	for i := int64(0); i < 6; i++ {
		must(t, evicting.Put(always, fmt.Sprint(i), numbersFrom(i, quarter)))
	}
	_, err := evicting.TryGet("0")
	wants(t, err, feedlane.ErrTimeout)
	batch, err := evicting.TryGet("5")
	if number := first(t, batch, err); number != 5 || statsOf(t, evicting).Evicted == 0 {
		t.Fatal(number)
	}
	failing := newArena(t, feedlane.ArenaConfig{Bytes: 1 << 20, WhenFull: feedlane.FullFail})
	for i := int64(0); err == nil; i++ {
		err = failing.Put(always, fmt.Sprint(i), numbersFrom(i, quarter))
	}
	var e *feedlane.Error
	if !errors.As(err, &e) || e.Status != feedlane.ErrLimit || e.Found >= e.Needed || e.Needed < quarter*8 {
		t.Fatalf("%+v", e)
	}
	waiting := newArena(t, feedlane.ArenaConfig{Bytes: 1 << 20, WhenFull: feedlane.FullWait})
	for i := int64(0); i < 4; i++ {
		must(t, waiting.Put(always, fmt.Sprint(i), numbersFrom(i, quarter)))
	}
	ctx, cancel := context.WithCancel(always)
	done := make(chan error, 1)
	go func() { done <- waiting.Put(ctx, "cancelled", numbersFrom(0, quarter)) }()
	until(t, waiting, func(s feedlane.ArenaStats) bool { return s.Waiting == 1 })
	cancel()
	if err := <-done; err != context.Canceled {
		t.Fatal(err)
	}
	go func() { done <- waiting.Put(limited(t), "late", numbersFrom(9, quarter)) }()
	until(t, waiting, func(s feedlane.ArenaStats) bool { return s.Waiting == 1 })
	must(t, waiting.Drop(always, "0"))
	must(t, <-done)
	batch, err = waiting.TryGet("late")
	if number := first(t, batch, err); number != 9 {
		t.Fatal(number)
	}
}

// A context ends its own call, and no other one, whatever the calls wait for.
func TestArenaCancel(t *testing.T) {
	path := socketPath(t)
	owner := serving(newArena(t, feedlane.ArenaConfig{Path: path}))
	for name, arena := range map[string]*feedlane.Arena{"owner": owner, "member": joinArena(t, path)} {
		arena := arena
		t.Run(name, func(t *testing.T) {
			const calls = 12
			var cancels []context.CancelFunc
			var done []chan error
			for i := 0; i < calls; i++ {
				ctx, cancel := context.WithCancel(limited(t))
				result := make(chan error, 1)
				go func(i int) {
					var err error
					if i%2 == 0 {
						_, err = firstOf(arena.Get(ctx, fmt.Sprint(name, i)))
					} else {
						_, err = firstOf(arena.Receive(ctx))
					}
					result <- err
				}(i)
				cancels, done = append(cancels, cancel), append(done, result)
			}
			until(t, owner, func(s feedlane.ArenaStats) bool { return s.Waiting == calls/2 })
			for _, cancel := range cancels[:calls-2] { // at the same time, because the library counts some of them as one
				cancel()
			}
			for i, result := range done[:calls-2] {
				if err := <-result; err != context.Canceled {
					t.Fatal(i, err)
				}
			}
			for _, result := range done[calls-2:] {
				select {
				case err := <-result:
					t.Fatal("not cancelled:", err)
				default:
				}
			}
			must(t, owner.Put(always, fmt.Sprint(name, calls-2), numbersFrom(1, 10)))
			must(t, <-done[calls-2])
			cancels[calls-1]()
			if err := <-done[calls-1]; err != context.Canceled {
				t.Fatal(err)
			}
			ctx, cancel := context.WithDeadline(always, time.Now().Add(-time.Second))
			defer cancel()
			if _, err := arena.Get(ctx, "none"); err != context.DeadlineExceeded {
				t.Fatal(err)
			}
		})
	}
}

// Close ends calls in progress. Batches stay.
func TestArenaClose(t *testing.T) {
	path := socketPath(t)
	arena := newArena(t, feedlane.ArenaConfig{Path: path})
	must(t, arena.Put(always, "key", numbersFrom(3, 1000)))
	held, err := arena.TryGet("key")
	must(t, err)
	done := make(chan error, 3)
	go func() { done <- arena.Serve(always) }()
	go func() { _, err := arena.Get(limited(t), "none"); done <- err }()
	go func() { _, err := arena.Receive(always); done <- err }()
	until(t, arena, func(s feedlane.ArenaStats) bool { return s.Waiting == 1 })
	member := joinArena(t, path)
	must(t, arena.Close())
	for i := 0; i < cap(done); i++ {
		wants(t, <-done, feedlane.ErrState)
	}
	must(t, arena.Close())
	if number := first(t, held, nil); number != 3 {
		t.Fatal(number)
	}
	for name, call := range arenaCalls(arena) {
		if err := call(always); !errors.Is(err, feedlane.ErrState) {
			t.Error(name, err)
		}
	}
	_, err = member.Receive(always)
	wants(t, err, feedlane.ErrPeerDead)
	_, err = feedlane.JoinArena(path, patience)
	wants(t, err, feedlane.ErrPeerDead)
}

// arenaCalls are all methods that return an error.
func arenaCalls(arena *feedlane.Arena) map[string]func(context.Context) error {
	array := numbersFrom(0, 1)
	return map[string]func(context.Context) error{
		"Put":     func(ctx context.Context) error { return arena.Put(ctx, "key", array) },
		"Reserve": func(ctx context.Context) error { _, err := arena.Reserve(ctx, feedlane.Entry{}); return err },
		"Get":     func(ctx context.Context) error { _, err := arena.Get(ctx, "key"); return err },
		"TryGet":  func(context.Context) error { _, err := arena.TryGet("key"); return err },
		"GetOrMake": func(ctx context.Context) error {
			_, err := arena.GetOrMake(ctx, "key", func() ([]feedlane.Array, error) { return nil, nil })
			return err
		},
		"Receive":    func(ctx context.Context) error { _, err := arena.Receive(ctx); return err },
		"TryReceive": func(context.Context) error { _, err := arena.TryReceive(); return err },
		"Serve":      arena.Serve,
		"Drop":       func(ctx context.Context) error { return arena.Drop(ctx, "key") },
		"Offer":      func(context.Context) error { _, err := arena.Offer(); return err },
		"Arm":        func(context.Context) error { _, _, err := arena.Arm(); return err },
		"Stats":      func(context.Context) error { _, err := arena.Stats(); return err },
		"Event":      func(context.Context) error { _, err := arena.Event(); return err },
	}
}

// Invalid arguments are refused by name.
func TestArenaBadInput(t *testing.T) {
	arena := newArena(t, feedlane.ArenaConfig{})
	long := strings.Repeat("k", 65)
	for name, c := range map[string]struct {
		call   func() error
		status feedlane.Status
		text   string
	}{
		"no bytes": {func() error { _, err := feedlane.NewArena(feedlane.ArenaConfig{}); return err }, feedlane.ErrArgument, "bytes"},
		"members": {func() error {
			_, err := feedlane.NewArena(feedlane.ArenaConfig{Bytes: 1 << 20, Members: 256})
			return err
		}, feedlane.ErrArgument, "config.members is 256"},
		"when full": {func() error {
			_, err := feedlane.NewArena(feedlane.ArenaConfig{Bytes: 1 << 20, WhenFull: 9})
			return err
		}, feedlane.ErrArgument, "config.when_full is 9"},
		"long key":    {func() error { return arena.Put(always, long) }, feedlane.ErrArgument, "65"},
		"empty key":   {func() error { _, err := arena.TryGet(""); return err }, feedlane.ErrArgument, "key_bytes is 0"},
		"drop no key": {func() error { return arena.Drop(always, "") }, feedlane.ErrArgument, "key_bytes is 0"},
		"too short": {func() error {
			return arena.Put(always, "key", feedlane.ArrayOf("x", []int32{1, 2}, 3))
		}, feedlane.ErrArgument, `array "x" has 8 bytes, but its shape and element type need 12`},
		"negative": {func() error {
			return arena.Put(always, "key", feedlane.ArrayOf("x", []int32{1}, -1))
		}, feedlane.ErrArgument, "-1"},
		"no name": {func() error { return arena.Put(always, "key", feedlane.ArrayOf("", []int32{1})) }, feedlane.ErrArgument, "name"},
		"dimensions": {func() error {
			return arena.Put(always, "key", feedlane.ArrayOf("x", []int32{1}, 1, 1, 1, 1, 1, 1, 1, 1, 1))
		}, feedlane.ErrArgument, "9 dimensions"},
		"pinned without a key": {func() error {
			_, err := arena.Reserve(always, feedlane.Entry{Pinned: true})
			return err
		}, feedlane.ErrArgument, "pinned"},
		"too large": {func() error { return arena.Put(always, "key", numbersFrom(0, 1<<18)) }, feedlane.ErrLimit, "a third"},
	} {
		if err := c.call(); !errors.Is(err, c.status) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if stats := statsOf(t, arena); stats.Held != 0 || stats.Entries != 0 {
		t.Errorf("%+v", stats)
	}
}

// The garbage collector releases forgotten batches, unless a slice was taken of them, and closes forgotten arenas.
func TestArenaForgotten(t *testing.T) {
	path := socketPath(t)
	arena, err := feedlane.NewArena(feedlane.ArenaConfig{Bytes: 1 << 20, Leases: 2, Path: path})
	must(t, err)
	must(t, arena.Put(always, "key", numbersFrom(0, 10)))
	for i := 0; i < 10; i++ {
		_, err := arena.TryGet("key")
		must(t, err)
	}
	for i := 0; i < 2; i++ {
		batch, err := arena.TryGet("key")
		must(t, err)
		_, err = batch.Tensor(0).Bytes()
		must(t, err)
	}
	_, err = arena.TryGet("key")
	wants(t, err, feedlane.ErrSlotsHeld)
	runtime.KeepAlive(arena)
	arena = nil
	for deadline := time.Now().Add(patience); ; runtime.GC() {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the path is still there")
		}
	}
}

// The descriptor of Arm becomes readable when there is something to receive.
func TestArenaArm(t *testing.T) {
	path := socketPath(t)
	arena := newArena(t, feedlane.ArenaConfig{Path: path})
	fd, ready, err := arena.Arm()
	must(t, err)
	poll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	must(t, err)
	defer syscall.Close(poll)
	must(t, syscall.EpollCtl(poll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN}))
	command, _ := startMember(t, "send", path, nil)
	for wanted := int64(0); wanted < arenaSent; {
		if !ready {
			events := make([]syscall.EpollEvent, 1)
			if _, err := syscall.EpollWait(poll, events, int(patience.Milliseconds())); err != nil && err != syscall.EINTR {
				t.Fatal(err)
			}
		}
		for {
			batch, err := arena.TryReceive()
			if err == feedlane.ErrTimeout {
				break
			}
			if number := first(t, batch, err); number != wanted {
				t.Fatalf("%d, not %d", number, wanted)
			}
			wanted++
		}
		_, ready, err = arena.Arm()
		must(t, err)
	}
	serving(arena)
	must(t, command.Wait())
}

// Any process sees an arena and its members.
func TestReadArena(t *testing.T) {
	path := socketPath(t)
	owner := serving(newArena(t, feedlane.ArenaConfig{Bytes: 3 << 20, Path: path}))
	member := joinArena(t, path)
	must(t, member.Put(always, "x", numbersFrom(1, 10)))
	batch, err := member.Get(always, "x")
	must(t, err)
	defer batch.Release()
	until(t, owner, func(s feedlane.ArenaStats) bool { return s.Published == 1 && s.Leased == 1 })
	for nth := 0; ; nth++ { // other tests' arenas may be there
		info, err := feedlane.ReadArena(os.Getpid(), nth)
		must(t, err)
		if info.Bytes != 3<<20 {
			continue
		}
		if info.Owner != os.Getpid() || info.Entries != 1 || info.Published != 1 || info.Held != 0 || len(info.Members) != 2 {
			t.Fatalf("%+v", info)
		}
		if m := info.Members[0]; m.PID != os.Getpid() || m.Number != 0 || m.IsCutOff {
			t.Errorf("%+v", m)
		}
		if m := info.Members[1]; m.PID != os.Getpid() || m.Number != batch.Worker() || m.Held != 1 || m.Hits != 1 || m.IsCutOff {
			t.Errorf("%+v", m)
		}
		break
	}
	_, err = feedlane.ReadArena(os.Getpid(), 1000)
	if err != io.EOF {
		t.Error(err)
	}
	_, err = feedlane.ReadArena(1<<30, 0)
	wants(t, err, feedlane.ErrPeerDead)
}
