// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"feedlane"
)

const (
	samples  = 1000
	features = 64
	rows     = 32
	batches  = (samples + rows - 1) / rows
	seed     = 7
)

// programs are what a test starts as a process of its own: this binary again.
var programs = map[string]func(){}

func TestMain(m *testing.M) {
	switch os.Getenv("FEEDLANE_GO_DATASET") {
	case "counting":
		feedlane.WorkerMain(&counting{})
	case "forgetful":
		feedlane.WorkerMain(&forgetful{})
	}
	feedlane.WorkerMain(numbers{})
	if program := programs[os.Getenv("FEEDLANE_GO_PROGRAM")]; program != nil {
		program()
		return
	}
	os.Exit(m.Run())
}

// numbers are the samples of examples/c/worker.c. What else a worker does depends on Config.WorkerConfig.
type numbers struct{ mode string }

func (n numbers) Len() int64 { return samples }

func (n numbers) Open(info *feedlane.WorkerInfo) (feedlane.Dataset, error) {
	n.mode = string(info.Config)
	if n.mode == "unopenable" {
		return nil, errors.New("the file is missing")
	}
	if n.mode == "touched" {
		return touched{}, nil
	}
	return n, nil
}

func (n numbers) Get(row *feedlane.Row) error {
	switch {
	case n.mode == "fail" && row.Index == 40:
		return fmt.Errorf("sample %d is broken", row.Index)
	case n.mode == "fail" && row.Index == 80:
		panic("sample 80 panics")
	case n.mode == "slow":
		time.Sleep(2 * time.Millisecond)
	case n.mode == "stuck" && row.Index >= 2*rows:
		time.Sleep(time.Hour)
	case n.mode == "pause" && row.Index%rows == 0:
		time.Sleep(20 * time.Millisecond)
	case n.mode == "flaky" && row.Task().Attempt() == 0 && row.Index%100 == 7 && !tried[row.Index]:
		tried[row.Index] = true
		return feedlane.Transient(errors.New("a disk error"))
	}
	x, err := feedlane.View[float32](row.Tensor(0))
	if err != nil {
		return err
	}
	if n.mode == "scratch" {
		tensor := x
		if x, err = scratch(row.Task()); err != nil {
			return err
		}
		defer func() {
			copy(tensor, x)
			x[0] = -1 // for the next task, which must not see it
		}()
	}
	if n.mode == "rewritten" {
		for i := range x {
			x[i] = -1
		}
	}
	for i := range x {
		x[i] = float32((int(row.Index)+i+int(row.Seed%5))%17) / 16
	}
	return feedlane.Copy(row.Tensor(1), []int64{row.Index % 10})
}

var tried = map[int64]bool{} // of a worker process

// scratch returns memory for a sample, and checks what it must be like.
func scratch(task *feedlane.Task) ([]float32, error) {
	memory, err := feedlane.Scratch[float32](task, features)
	if err != nil {
		return nil, err
	}
	for _, value := range memory {
		if value != 0 {
			return nil, fmt.Errorf("scratch memory has %v", value)
		}
	}
	if none, err := feedlane.Scratch[int64](task, 0); len(none) != 0 || err != nil {
		return nil, fmt.Errorf("no elements: %v %v", none, err)
	}
	for _, count := range []int{-1, math.MaxInt / 2} {
		if _, err := feedlane.Scratch[int64](task, count); !errors.Is(err, feedlane.ErrArgument) {
			return nil, fmt.Errorf("%d elements: %v", count, err)
		}
	}
	if len(memory) != features {
		return nil, fmt.Errorf("%d elements", len(memory))
	}
	return memory, nil
}

func baseConfig() feedlane.Config {
	return feedlane.Config{
		Dataset: numbers{}, Seed: seed, BatchSize: rows, Workers: 2, KeepWorkers: true,
		Fields: []feedlane.Field{feedlane.FieldOf[float32]("x", features), feedlane.FieldOf[int64]("label")},
	}
}

// newLoader creates a loader that ends with the test.
func newLoader(t testing.TB, change func(*feedlane.Config)) *feedlane.Loader {
	t.Helper()
	config := baseConfig()
	if change != nil {
		change(&config)
	}
	loader, err := feedlane.NewLoader(config)
	must(t, err)
	t.Cleanup(func() { must(t, loader.Close()) })
	return loader
}

// modes are the ways to run the data set.
var modes = map[string]func(*feedlane.Config){
	"inline":     func(c *feedlane.Config) { c.Workers, c.KeepWorkers = 0, false },
	"processes":  func(*feedlane.Config) {},
	"goroutines": func(c *feedlane.Config) { c.Start = feedlane.Goroutines },
}

func inModes(t *testing.T, f func(t *testing.T, mode func(*feedlane.Config))) {
	for name, mode := range modes {
		mode := mode
		t.Run(name, func(t *testing.T) { f(t, mode) })
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wants fails the test unless err has the status.
func wants(t testing.TB, err error, status feedlane.Status) {
	t.Helper()
	if !errors.Is(err, status) {
		t.Fatalf("%v, not %v", err, status)
	}
}

// hashes returns FNV-1a of each batch of an epoch, which are released.
func hashes(loader *feedlane.Loader, epoch int64) (list []uint64, err error) {
	if err := loader.Begin(epoch); err != nil {
		return nil, err
	}
	for {
		batch, err := loader.Next(context.Background())
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		hash, err := hashOf(0xcbf29ce484222325, batch)
		if err != nil {
			return list, err
		}
		list = append(list, hash)
		if err := batch.Release(); err != nil {
			return list, err
		}
	}
}

func hashOf(hash uint64, batch *feedlane.Batch) (uint64, error) {
	for i := 0; i < batch.Tensors(); i++ {
		bytes, err := batch.Tensor(i).Bytes()
		if err != nil {
			return 0, err
		}
		for _, b := range bytes {
			hash = (hash ^ uint64(b)) * 0x100000001b3
		}
	}
	return hash, nil
}

// next is Next of a batch that must come.
func next(t testing.TB, loader *feedlane.Loader) *feedlane.Batch {
	t.Helper()
	batch, err := loader.Next(context.Background())
	must(t, err)
	return batch
}

// exists reports whether a process runs; a zombie does not.
func exists(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]
	return state != "Z" && state != "X"
}

func waitForEnd(t testing.TB, limit time.Duration, pids ...int) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for _, pid := range pids {
		for exists(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is there after %v", pid, limit)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// monitorOf opens a monitor that is closed with the test.
func monitorOf(t testing.TB, loader *feedlane.Loader) *feedlane.Monitor {
	t.Helper()
	monitor, err := loader.Monitor()
	must(t, err)
	t.Cleanup(func() { must(t, monitor.Close()) })
	return monitor
}

// refusesFigures checks that the monitor has no figures of workers and batches, and returns the error of Trace.
func refusesFigures(t testing.TB, monitor *feedlane.Monitor) error {
	t.Helper()
	_, err := monitor.Workers()
	wants(t, err, feedlane.ErrState)
	_, err = monitor.Timings(-1)
	wants(t, err, feedlane.ErrState)
	_, err = monitor.Diagnose()
	wants(t, err, feedlane.ErrState)
	_, err = monitor.Report()
	wants(t, err, feedlane.ErrState)
	_, err = monitor.Trace(1)
	wants(t, err, feedlane.ErrState)
	return err
}

func pidsOf(t testing.TB, loader *feedlane.Loader) (pids []int) {
	t.Helper()
	workers, err := monitorOf(t, loader).Workers()
	must(t, err)
	for _, worker := range workers {
		if worker.PID != 0 && worker.PID != os.Getpid() {
			pids = append(pids, worker.PID)
		}
	}
	return pids
}

// start starts one of the programs and returns it with the pids of its workers, which it prints.
func start(t testing.TB, program string) (*exec.Cmd, []int, *bufio.Reader) {
	t.Helper()
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), "FEEDLANE_GO_PROGRAM="+program)
	command.Stderr = &strings.Builder{}
	pipe, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	out := bufio.NewReader(pipe)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, command.Stderr)
	}
	var pids []int
	for _, word := range strings.Fields(line) {
		pid, err := strconv.Atoi(word)
		must(t, err)
		pids = append(pids, pid)
	}
	if len(pids) != 2 {
		t.Fatalf("the program prints %q", line)
	}
	return command, pids, out
}

// example returns a program of examples/c, or skips the test.
func example(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(os.Getenv("FEEDLANE_EXAMPLES"), name)
	if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
		t.Skip("FEEDLANE_EXAMPLES is not the folder of the built examples in C")
	}
	return path
}
