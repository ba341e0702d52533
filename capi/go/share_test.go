// SPDX-License-Identifier: Apache-2.0

// A feeder, and consumers in processes of their own: this binary again.

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
	"testing"
	"time"

	"feedlane"
)

const (
	sharedBatches = 9 // of an epoch
	sharedEpochs  = 2
	stateAfter    = 2 // batches of the first epoch after which a consumer asks for the state
	sharePath     = "FEEDLANE_GO_SHARE_PATH"
)

func init() {
	programs["consumer"] = func() {
		if err := consume(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// consume joins by the path of the environment, or by descriptor 3. It prints a line for each epoch, of "number:hash" for
// each batch, and then the state.
func consume() error {
	var loader *feedlane.Loader
	var err error
	if path := os.Getenv(sharePath); path != "" {
		loader, err = feedlane.JoinPath(path, feedlane.AnyPlace, feedlane.ConsumerConfig{}, 0)
	} else {
		loader, err = feedlane.Join(os.NewFile(3, "socket"), feedlane.ConsumerConfig{}, 0)
	}
	if err != nil {
		return err
	}
	var state []byte
	first, err := loader.NextEpoch()
	if err != nil {
		return err
	}
	for epoch := first; epoch < sharedEpochs; epoch++ {
		words, at, err := consumeEpoch(loader, epoch)
		if err != nil {
			return err
		}
		if epoch == 0 {
			state = at
		}
		fmt.Println(strings.Join(words, " "))
	}
	if after, err := loader.NextEpoch(); err != nil || after != sharedEpochs {
		return fmt.Errorf("the next epoch is %d: %v", after, err)
	}
	fmt.Printf("%x\n", state)
	return loader.Close()
}

func consumeEpoch(loader *feedlane.Loader, epoch int64) (words []string, state []byte, err error) {
	if err := loader.Begin(epoch); err != nil {
		return nil, nil, err
	}
	for {
		batch, err := loader.Next(context.Background())
		if err == io.EOF {
			return words, state, nil
		}
		if err != nil {
			return nil, nil, err
		}
		if batch.Epoch() != epoch || batch.Missed() != 0 {
			return nil, nil, fmt.Errorf("epoch %d, missed %d", batch.Epoch(), batch.Missed())
		}
		hash, err := hashOf(0xcbf29ce484222325, batch)
		if err != nil {
			return nil, nil, err
		}
		words = append(words, fmt.Sprintf("%d:%x", batch.Number(), hash))
		if len(words) == stateAfter {
			if state, err = loader.State(batch); err != nil {
				return nil, nil, err
			}
		}
		if err := batch.Release(); err != nil {
			return nil, nil, err
		}
	}
}

func newFeeder(t *testing.T, share feedlane.Share, change func(*feedlane.Config)) *feedlane.Loader {
	return newLoader(t, func(c *feedlane.Config) {
		c.Share, c.Consumers, c.MaxBatches = share, 2, sharedBatches
		if change != nil {
			change(c)
		}
	})
}

// startConsumer starts a consumer, which joins by socket, or by path if that is nil.
func startConsumer(t *testing.T, socket *os.File, path string) (*exec.Cmd, *strings.Builder) {
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), "FEEDLANE_GO_PROGRAM=consumer", sharePath+"="+path)
	out := &strings.Builder{}
	command.Stdout, command.Stderr = out, os.Stderr
	if socket != nil {
		command.ExtraFiles = []*os.File{socket}
	}
	must(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })
	return command, out
}

// serveAll serves all epochs, until all consumers have left.
func serveAll(t *testing.T, loader *feedlane.Loader) {
	for epoch := int64(0); epoch < sharedEpochs; epoch++ {
		must(t, loader.Begin(epoch))
		must(t, loader.Serve(context.Background()))
	}
	await(t, loader)
}

// sharedWords returns what a consumer prints for an epoch that gets every step-th batch from first on, before end.
func sharedWords(t *testing.T, epoch int64, first, step, end int) string {
	list, err := hashes(newLoader(t, func(c *feedlane.Config) { c.MaxBatches = sharedBatches }), epoch)
	must(t, err)
	var words []string
	for i := first; i < end; i += step {
		words = append(words, fmt.Sprintf("%d:%x", i, list[i]))
	}
	return strings.Join(words, " ")
}

// checkShared feeds two consumers. Consumer i gets every step-th batch from i * (step - 1) on, before end.
func checkShared(t *testing.T, loader *feedlane.Loader, step, end int) {
	var commands []*exec.Cmd
	var outputs []*strings.Builder
	for i := 0; i < 2; i++ {
		id, socket, err := loader.OpenConsumer(feedlane.AnyPlace, feedlane.ConsumerConfig{})
		must(t, err)
		if id != i {
			t.Fatalf("place %d", id)
		}
		command, out := startConsumer(t, socket, "")
		must(t, socket.Close())
		commands, outputs = append(commands, command), append(outputs, out)
	}
	_, _, err := loader.OpenConsumer(feedlane.AnyPlace, feedlane.ConsumerConfig{})
	wants(t, err, feedlane.ErrLimit)
	serveAll(t, loader)
	var states []string
	for i, command := range commands {
		must(t, command.Wait())
		lines := strings.Split(strings.TrimSpace(outputs[i].String()), "\n")
		if len(lines) != sharedEpochs+1 {
			t.Fatalf("consumer %d printed %q", i, lines)
		}
		for epoch := int64(0); epoch < sharedEpochs; epoch++ {
			if wanted := sharedWords(t, epoch, i*(step-1), step, end); lines[epoch] != wanted {
				t.Errorf("consumer %d, epoch %d: %q, not %q", i, epoch, lines[epoch], wanted)
			}
		}
		states = append(states, lines[sharedEpochs])
	}
	if states[0] != states[1] {
		t.Error("the consumers' states differ")
	}
	checkResumed(t, states[0], stateAfter*step)
	left := 0
	for {
		event, err := loader.Event()
		if err == io.EOF {
			break
		}
		must(t, err)
		if event.Kind == feedlane.EventConsumerLeft {
			left++
		}
	}
	if left != 2 {
		t.Errorf("%d events of consumers that left", left)
	}
}

// checkResumed checks that a loader without consumers that begins with the state yields the batches from first on.
func checkResumed(t *testing.T, state string, first int) {
	var bytes []byte
	_, err := fmt.Sscanf(state, "%x", &bytes)
	must(t, err)
	loader := newLoader(t, func(c *feedlane.Config) { c.State, c.MaxBatches = bytes, sharedBatches })
	must(t, loader.Begin(0))
	for number := first; number < sharedBatches; number++ {
		batch := next(t, loader)
		if batch.Number() != int64(number) {
			t.Fatalf("batch %d, not %d", batch.Number(), number)
		}
		must(t, batch.Release())
	}
	if _, err := loader.Next(context.Background()); err != io.EOF {
		t.Fatal(err)
	}
}

func TestShareEvery(t *testing.T) {
	checkShared(t, newFeeder(t, feedlane.ShareEvery, nil), 1, sharedBatches)
}

func TestShareDeal(t *testing.T) {
	t.Run("whole rounds", func(t *testing.T) {
		checkShared(t, newFeeder(t, feedlane.ShareDeal, nil), 2, sharedBatches/2*2)
	})
	t.Run("with the tail", func(t *testing.T) {
		loader := newFeeder(t, feedlane.ShareDeal, func(c *feedlane.Config) { c.ShareTail = true })
		checkShared(t, loader, 2, sharedBatches)
	})
}

// await serves without an epoch: until all consumers have joined, or have left.
func await(t *testing.T, loader *feedlane.Loader) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must(t, loader.Serve(ctx))
}

func TestJoinPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "feeder")
	loader := newFeeder(t, feedlane.ShareEvery, func(c *feedlane.Config) { c.SharePath = path })
	first, firstOut := startConsumer(t, nil, path)
	second, secondOut := startConsumer(t, nil, path)
	await(t, loader)
	consumers, err := loader.Consumers()
	must(t, err)
	pids := map[int]bool{}
	for _, consumer := range consumers {
		pids[consumer.PID] = consumer.State == feedlane.ConsumerAttached
	}
	if !reflect.DeepEqual(pids, map[int]bool{first.Process.Pid: true, second.Process.Pid: true}) {
		t.Errorf("%+v", consumers)
	}
	serveAll(t, loader)
	must(t, first.Wait())
	must(t, second.Wait())
	if wanted := sharedWords(t, 0, 0, 1, sharedBatches); firstOut.String() != secondOut.String() ||
		!strings.HasPrefix(firstOut.String(), wanted+"\n") {
		t.Errorf("%q, %q", firstOut, secondOut)
	}
	must(t, loader.Close())
	_, err = feedlane.JoinPath(path, feedlane.AnyPlace, feedlane.ConsumerConfig{}, 0)
	wants(t, err, feedlane.ErrPeerDead)
}

// A consumer in this process: the end of its feeder is ErrPeerDead, and contexts end waits on both sides.
func TestFeederEnds(t *testing.T) {
	loader := newFeeder(t, feedlane.ShareEvery, func(c *feedlane.Config) { c.Consumers = 1 })
	_, socket, err := loader.OpenConsumer(feedlane.AnyPlace, feedlane.ConsumerConfig{Lag: feedlane.LagEvict})
	must(t, err)
	type joined struct {
		*feedlane.Loader
		error
	}
	pool, err := feedlane.NewPool(feedlane.PoolConfig{})
	must(t, err)
	t.Cleanup(func() { must(t, pool.Close()) })
	done := make(chan joined, 1)
	go func() {
		consumer, err := feedlane.Join(socket, feedlane.ConsumerConfig{Pinned: pool}, 0)
		done <- joined{consumer, err}
	}()
	await(t, loader)
	consumer := <-done
	must(t, consumer.error)
	t.Cleanup(func() { must(t, consumer.Close()) })
	if stats, err := pool.Stats(); err != nil || stats.Registered == 0 {
		t.Errorf("the slots are not registered: %v", err)
	}
	must(t, consumer.Begin(0))
	checkMonitorOfConsumer(t, monitorOf(t, consumer.Loader))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := consumer.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := loader.Serve(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, loader.Close())
	_, err = consumer.Next(context.Background())
	wants(t, err, feedlane.ErrPeerDead)
}

// checkMonitorOfConsumer checks that the monitor has the consumer's counters, and not the feeder's workers.
func checkMonitorOfConsumer(t *testing.T, monitor *feedlane.Monitor) {
	t.Helper()
	if stats, err := monitor.Stats(); err != nil || stats.Epochs != 1 {
		t.Errorf("%+v %v", stats, err)
	}
	if info, err := monitor.Info(); err != nil || info.Epoch != 0 || info.NextEpoch != 1 {
		t.Errorf("%+v %v", info, err)
	}
	if err := refusesFigures(t, monitor); !strings.Contains(err.Error(), "only its feeder has a trace") {
		t.Error(err)
	}
}

func TestPlaces(t *testing.T) {
	loader := newFeeder(t, feedlane.ShareDeal, nil)
	_, _, err := loader.OpenConsumer(1, feedlane.ConsumerConfig{Lag: feedlane.LagObserve})
	wants(t, err, feedlane.ErrArgument)
	id, socket, err := loader.OpenConsumer(1, feedlane.ConsumerConfig{Lag: feedlane.LagEvict, EvictAfter: time.Second})
	must(t, err)
	defer socket.Close()
	consumers, err := loader.Consumers()
	must(t, err)
	found := false
	for _, consumer := range consumers {
		found = found || consumer == feedlane.ConsumerStats{ID: 1, State: feedlane.ConsumerOffered, Lag: feedlane.LagEvict}
	}
	if id != 1 || !found {
		t.Errorf("place %d, %+v", id, consumers)
	}
	_, err = loader.NextEpoch()
	wants(t, err, feedlane.ErrState)
	_, _, err = newLoader(t, nil).OpenConsumer(feedlane.AnyPlace, feedlane.ConsumerConfig{})
	wants(t, err, feedlane.ErrState)
}
