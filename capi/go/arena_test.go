// SPDX-License-Identifier: Apache-2.0

// Arenas: an owner in the test's process, members in goroutines or in processes of their own, which are this binary again.

package feedlane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"feedlane"
)

const (
	arenaPath = "FEEDLANE_GO_ARENA_PATH"
	arenaSent = 100 // entries of a stream
	patience  = time.Minute
)

var always = context.Background()

func newArena(t testing.TB, config feedlane.ArenaConfig) *feedlane.Arena {
	t.Helper()
	if config.Bytes == 0 {
		config.Bytes = 4 << 20
	}
	arena, err := feedlane.NewArena(config)
	must(t, err)
	t.Cleanup(func() { must(t, arena.Close()) })
	return arena
}

func socketPath(t testing.TB) string { return filepath.Join(t.TempDir(), "arena") }

// serving serves the members until the arena is closed.
func serving(arena *feedlane.Arena) *feedlane.Arena {
	go func() { _ = arena.Serve(always) }()
	return arena
}

func joinArena(t testing.TB, path string) *feedlane.Arena {
	t.Helper()
	member, err := feedlane.JoinArena(path, patience)
	must(t, err)
	t.Cleanup(func() { must(t, member.Close()) })
	return member
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(always, patience)
	t.Cleanup(cancel)
	return ctx
}

// numbersFrom are consecutive numbers, so that an incomplete entry is noticed.
func numbersFrom(first int64, count int) feedlane.Array {
	list := make([]int64, count)
	for i := range list {
		list[i] = first + int64(i)
	}
	return feedlane.ArrayOf("numbers", list)
}

// firstOf releases a batch of consecutive numbers and returns the first one.
func firstOf(batch *feedlane.Batch, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	defer batch.Release()
	list, err := feedlane.View[int64](batch.Field("numbers"))
	if err != nil {
		return 0, err
	}
	for i, number := range list {
		if number != list[0]+int64(i) {
			return 0, fmt.Errorf("number %d is %d, after %d", i, number, list[0])
		}
	}
	return list[0], nil
}

func first(t testing.TB, batch *feedlane.Batch, err error) int64 {
	t.Helper()
	number, err := firstOf(batch, err)
	must(t, err)
	return number
}

func statsOf(t testing.TB, arena *feedlane.Arena) feedlane.ArenaStats {
	t.Helper()
	stats, err := arena.Stats()
	must(t, err)
	return stats
}

// until waits for a state of the arena.
func until(t testing.TB, arena *feedlane.Arena, holds func(feedlane.ArenaStats) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(statsOf(t, arena)); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v after %v", statsOf(t, arena), patience)
		}
	}
}

// ---- members in processes of their own ----

// memberKinds are what a member does. It prints what the test wants to know.
var memberKinds = map[string]func(*feedlane.Arena) error{
	"share": func(a *feedlane.Arena) error {
		number, err := firstOf(a.Get(always, "owner's"))
		if err != nil {
			return err
		}
		return a.Put(always, "member's", numbersFrom(number+1, 1000))
	},
	"send": func(a *feedlane.Arena) error {
		for number := int64(0); number < arenaSent; number++ {
			if err := a.Put(always, "", numbersFrom(number, int(number)+1)); err != nil {
				return err
			}
		}
		return nil
	},
	"receive": func(a *feedlane.Arena) error {
		for {
			number, err := firstOf(a.Receive(always))
			if errors.Is(err, feedlane.ErrPeerDead) {
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Println(number)
		}
	},
	"make and die": func(a *feedlane.Arena) error {
		_, err := a.GetOrMake(always, "made", func() ([]feedlane.Array, error) {
			fmt.Println("making")
			select {}
		})
		return err
	},
}

func init() {
	programs["arena member"] = func() {
		a, err := feedlane.JoinArena(os.Getenv(arenaPath), patience)
		if os.Getenv(arenaPath) == "" {
			a, err = feedlane.JoinArenaSocket(os.NewFile(3, "socket"), patience)
		}
		if err == nil {
			err = memberKinds[os.Args[1]](a)
		}
		if err == nil {
			err = a.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// startMember starts a member that joins by path or, if that is "", by the socket.
func startMember(t testing.TB, kind, path string, socket *os.File) (*exec.Cmd, io.Reader) {
	t.Helper()
	command := exec.Command("/proc/self/exe", kind)
	command.Env = append(os.Environ(), "FEEDLANE_GO_PROGRAM=arena member", arenaPath+"="+path)
	command.Stderr = os.Stderr
	if socket != nil {
		command.ExtraFiles = []*os.File{socket}
	}
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })
	return command, out
}

// ---- tests ----

func checkElements[T feedlane.Element](t *testing.T, arena *feedlane.Arena, elements ...T) {
	t.Helper()
	key := fmt.Sprintf("%T", elements)
	must(t, arena.Put(always, key, feedlane.ArrayOf("x", elements, 2, int64(len(elements)/2)), feedlane.ArrayOf[T]("empty", nil)))
	batch, err := arena.TryGet(key)
	must(t, err)
	defer batch.Release()
	found, err := feedlane.View[T](batch.Field("x"))
	must(t, err)
	if !reflect.DeepEqual(found, elements) || !reflect.DeepEqual(batch.Field("x").Shape(), []int64{2, int64(len(elements) / 2)}) {
		t.Errorf("%v of shape %v, not %v", found, batch.Field("x").Shape(), elements)
	}
	if batch.Field("empty").Len() != 0 || !reflect.DeepEqual(batch.Field("empty").Shape(), []int64{0}) {
		t.Errorf("empty has shape %v", batch.Field("empty").Shape())
	}
}

// Every element type comes back as it was put, with its shape.
func TestArenaElements(t *testing.T) {
	arena := newArena(t, feedlane.ArenaConfig{})
	checkElements(t, arena, int8(-1), 2)
	checkElements(t, arena, int16(-3), 4)
	checkElements(t, arena, int32(-5), 6)
	checkElements(t, arena, int64(-7), 8, 9, 10)
	checkElements(t, arena, uint8(255), 2)
	checkElements(t, arena, uint16(65535), 4)
	checkElements(t, arena, uint32(1<<32-1), 6)
	checkElements(t, arena, uint64(1<<64-1), 8)
	checkElements(t, arena, float32(1.5), -2)
	checkElements(t, arena, 0.1, -0.25)
	checkElements(t, arena, complex64(1+2i), 3i)
	checkElements(t, arena, 1-2i, 4i)
	flags := feedlane.ArrayOf("flags", []uint8{1, 0, 1})
	flags.DType = feedlane.Bool
	must(t, arena.Put(always, "flags", flags))
	batch, err := arena.TryGet("flags")
	must(t, err)
	defer batch.Release()
	if found, err := feedlane.View[uint8](batch.Tensor(0)); err != nil || batch.Tensor(0).DType() != feedlane.Bool || found[0] != 1 {
		t.Fatal(found, err)
	}
}

// A reservation is filled in place. Nobody sees it before Publish, and Release gives it up.
func TestArenaReserve(t *testing.T) {
	arena := newArena(t, feedlane.ArenaConfig{})
	entry := feedlane.Entry{Key: "key", Metadata: []byte("about it"), Pinned: true,
		Fields: []feedlane.Field{feedlane.FieldOf[float32]("x", 2, 3), feedlane.FieldOf[int64]("label")}}
	batch, err := arena.Reserve(always, entry)
	must(t, err)
	must(t, feedlane.Copy(batch.Field("x"), []float32{1, 2, 3, 4, 5, 6}))
	must(t, feedlane.Copy(batch.Field("label"), []int64{7}))
	_, err = arena.TryGet("key")
	wants(t, err, feedlane.ErrTimeout)
	second, err := batch.Retain()
	must(t, err)
	wants(t, arena.Publish(always, batch), feedlane.ErrState)
	must(t, second.Release())
	must(t, arena.Publish(always, batch))
	wants(t, arena.Publish(always, batch), feedlane.ErrStale)
	_, err = feedlane.View[float32](batch.Field("x"))
	wants(t, err, feedlane.ErrStale)
	wants(t, batch.Release(), feedlane.ErrStale)
	got, err := arena.TryGet("key")
	must(t, err)
	wants(t, arena.Publish(always, got), feedlane.ErrStale)
	x, err := feedlane.View[float32](got.Field("x"))
	must(t, err)
	label, err := feedlane.View[int64](got.Field("label"))
	must(t, err)
	metadata, err := got.Metadata()
	must(t, err)
	if !reflect.DeepEqual(x, []float32{1, 2, 3, 4, 5, 6}) || label[0] != 7 || string(metadata) != "about it" {
		t.Fatal(x, label, metadata)
	}
	must(t, got.Release())
	must(t, arena.Drop(always, "key"))
	given, err := arena.Reserve(always, entry)
	must(t, err)
	must(t, given.Release())
	_, err = arena.TryGet("key")
	wants(t, err, feedlane.ErrTimeout)
	if stats := statsOf(t, arena); stats.Held != 0 || stats.UsedBytes != 0 {
		t.Fatalf("%+v", stats)
	}
}

// Members in other processes get what the owner has put, and what a member has put stays after its end.
func TestArenaMembers(t *testing.T) {
	path := socketPath(t)
	arena := serving(newArena(t, feedlane.ArenaConfig{Path: path}))
	must(t, arena.Put(always, "owner's", numbersFrom(5, 10)))
	for i := int64(0); i < 2; i++ {
		socket, err := arena.Offer()
		must(t, err)
		join := path
		if i == 1 {
			join = ""
		}
		command, _ := startMember(t, "share", join, socket)
		must(t, socket.Close())
		must(t, command.Wait())
		until(t, arena, func(s feedlane.ArenaStats) bool { return s.Members == 1 })
		batch, err := arena.Get(limited(t), "member's")
		if number := first(t, batch, err); number != 6+i {
			t.Fatal(number)
		}
		must(t, arena.Drop(always, "member's"))
		must(t, arena.Put(always, "owner's", numbersFrom(6, 10)))
	}
	event, err := arena.Event()
	must(t, err)
	if event.Kind != feedlane.EventConsumerLeft {
		t.Fatalf("%+v", event)
	}
}

// One goroutine makes a missing entry, and the others wait. After a failure the next one makes it.
func TestArenaSingleFlight(t *testing.T) {
	arena := newArena(t, feedlane.ArenaConfig{})
	var made sync.Map
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			number, err := firstOf(arena.GetOrMake(limited(t), "key", func() ([]feedlane.Array, error) {
				made.Store(i, true)
				return []feedlane.Array{numbersFrom(7, 100)}, nil
			}))
			if number != 7 || err != nil {
				t.Error(number, err)
			}
		}(i)
	}
	group.Wait()
	count := 0
	made.Range(func(any, any) bool { count++; return true })
	if count != 1 {
		t.Fatalf("made %d times", count)
	}
	broken := errors.New("broken")
	if _, err := arena.GetOrMake(always, "other", func() ([]feedlane.Array, error) { return nil, broken }); err != broken {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = arena.GetOrMake(always, "other", func() ([]feedlane.Array, error) { panic("no") })
	}()
	batch, err := arena.GetOrMake(limited(t), "other", func() ([]feedlane.Array, error) {
		return []feedlane.Array{numbersFrom(8, 1)}, nil
	})
	if number := first(t, batch, err); number != 8 {
		t.Fatal(number)
	}
}

// If the process that makes an entry is killed, another one makes it.
func TestArenaMakerKilled(t *testing.T) {
	path := socketPath(t)
	arena := serving(newArena(t, feedlane.ArenaConfig{Path: path}))
	command, out := startMember(t, "make and die", path, nil)
	line := make([]byte, len("making\n"))
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "making\n" {
		t.Fatal(string(line), err)
	}
	made := make(chan bool, 1)
	done := make(chan error, 1)
	go func() {
		_, err := firstOf(arena.GetOrMake(limited(t), "made", func() ([]feedlane.Array, error) {
			made <- true
			return []feedlane.Array{numbersFrom(1, 10)}, nil
		}))
		done <- err
	}()
	until(t, arena, func(s feedlane.ArenaStats) bool { return s.Waiting == 1 })
	select {
	case <-made:
		t.Fatal("two processes make the entry")
	default:
	}
	must(t, command.Process.Kill())
	must(t, <-done)
	<-made
	_ = command.Wait()
}

// Members send to the owner, and the owner to every member, in order.
func TestArenaStreams(t *testing.T) {
	path := socketPath(t)
	arena := newArena(t, feedlane.ArenaConfig{Path: path})
	sender, _ := startMember(t, "send", path, nil)
	for wanted := int64(0); wanted < arenaSent; wanted++ {
		batch, err := arena.Receive(limited(t))
		if number := first(t, batch, err); number != wanted {
			t.Fatalf("%d, not %d", number, wanted)
		}
	}
	serving(arena)
	must(t, sender.Wait())
	until(t, arena, func(s feedlane.ArenaStats) bool { return s.Members == 1 })
	var receivers []*exec.Cmd
	var outputs []io.Reader
	for i := 0; i < 2; i++ {
		receiver, out := startMember(t, "receive", path, nil)
		receivers, outputs = append(receivers, receiver), append(outputs, out)
	}
	until(t, arena, func(s feedlane.ArenaStats) bool { return s.Members == 3 })
	var wanted strings.Builder
	for number := int64(0); number < arenaSent; number++ {
		must(t, arena.Put(always, "", numbersFrom(number, 10)))
		fmt.Fprintln(&wanted, number)
	}
	until(t, arena, func(s feedlane.ArenaStats) bool { return s.Entries == 0 })
	must(t, arena.Close())
	for i, receiver := range receivers {
		said, err := io.ReadAll(outputs[i])
		must(t, err)
		must(t, receiver.Wait())
		if string(said) != wanted.String() {
			t.Errorf("receiver %d printed %q", i, said)
		}
	}
}
