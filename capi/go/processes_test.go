// SPDX-License-Identifier: Apache-2.0

package feedlane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"feedlane"
)

// A worker killed during an epoch: the same batches, in the same order.
func TestWorkerKilled(t *testing.T) {
	undisturbed, err := hashes(newLoader(t, nil), 0)
	must(t, err)
	// Slow enough that the deaths are seen before the epoch ends.
	loader := newLoader(t, func(c *feedlane.Config) { c.WorkerConfig = []byte("pause") })
	must(t, loader.Begin(0))
	var list []uint64
	for {
		batch, err := loader.Next(context.Background())
		if err == io.EOF {
			break
		}
		must(t, err)
		hash, err := hashOf(0xcbf29ce484222325, batch)
		must(t, err)
		if list = append(list, hash); len(list)%8 == 4 {
			must(t, syscall.Kill(pidsOf(t, loader)[0], syscall.SIGKILL))
		}
		must(t, batch.Release())
	}
	if !reflect.DeepEqual(list, undisturbed) {
		t.Fatal("the batches differ")
	}
	if stats, err := monitorOf(t, loader).Stats(); err != nil || stats.Restarts == 0 || stats.Batches != batches {
		t.Fatalf("%+v %v", stats, err)
	}
	found := false
	for {
		event, err := loader.Event()
		if err == io.EOF {
			break
		}
		must(t, err)
		found = found || event.Kind == feedlane.EventWorkerDied
	}
	if !found {
		t.Fatal("no event tells of the death")
	}
}

// begun is a loader of a program that has yielded a batch, and printed the pids of its workers.
func begun(mode string) *feedlane.Loader {
	config := baseConfig()
	config.WorkerConfig = []byte(mode)
	loader, err := feedlane.NewLoader(config)
	if err == nil {
		err = loader.Begin(0)
	}
	for i := 0; err == nil && i < 2; i++ {
		var batch *feedlane.Batch
		if batch, err = loader.Next(context.Background()); err == nil {
			err = batch.Release()
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	monitor, _ := loader.Monitor()
	defer monitor.Close()
	workers, _ := monitor.Workers()
	fmt.Println(workers[0].PID, workers[1].PID)
	return loader
}

func init() {
	programs["idle"] = func() { begun(""); time.Sleep(time.Hour) }
	programs["busy"] = func() { begun("stuck"); time.Sleep(time.Hour) }
	programs["loop"] = func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		loader := begun("slow")
		defer loader.Close()
		for epoch := int64(1); ; epoch++ {
			for err := loader.Begin(epoch); err == nil; {
				var batch *feedlane.Batch
				if batch, err = loader.Next(ctx); err == nil {
					err = batch.Release()
				}
				if errors.Is(err, context.Canceled) {
					fmt.Println("canceled")
					return
				}
			}
		}
	}
	programs["return"] = func() { begun("slow") }
	programs["closed"] = func() { begun("slow").Close() }
	programs["panic"] = func() { begun("slow"); panic("uncaught") }
	programs["exit"] = func() { begun("slow"); os.Exit(3) }
	programs["_exit"] = func() { begun("stuck"); syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 4, 0, 0) }
	programs["environment"] = func() {
		fmt.Println(os.Getenv("FEEDLANE_WORKER_FD"))
	}
}

// The trainer killed: no worker is left a second later.
func TestTrainerKilled(t *testing.T) {
	for _, mode := range []string{"idle", "busy"} {
		t.Run(mode, func(t *testing.T) {
			trainer, pids, _ := start(t, mode)
			must(t, trainer.Process.Kill())
			waitForEnd(t, time.Second, append(pids, trainer.Process.Pid)...)
		})
	}
}

// Ctrl-C ends the context of signal.NotifyContext, or the program, and leaves no process.
func TestInterrupt(t *testing.T) {
	for _, mode := range []string{"loop", "idle"} {
		t.Run(mode, func(t *testing.T) {
			trainer, pids, out := start(t, mode)
			must(t, trainer.Process.Signal(os.Interrupt))
			rest, err := io.ReadAll(out)
			must(t, err)
			err = trainer.Wait()
			if mode == "loop" && (err != nil || string(rest) != "canceled\n") {
				t.Fatalf("%v, printed %q", err, rest)
			}
			waitForEnd(t, 5*time.Second, pids...)
		})
	}
}

// Return, panic, os.Exit and _exit: no process is left, and with them no memory.
func TestExits(t *testing.T) {
	for mode, code := range map[string]int{"return": 0, "closed": 0, "panic": 2, "exit": 3, "_exit": 4} {
		t.Run(mode, func(t *testing.T) {
			trainer, pids, _ := start(t, mode)
			err := trainer.Wait()
			var exit *exec.ExitError
			if code != 0 && (!errors.As(err, &exit) || exit.ExitCode() != code) || code == 0 && err != nil {
				t.Fatalf("%v: %s", err, trainer.Stderr)
			}
			waitForEnd(t, 2*time.Second, pids...)
		})
	}
}

// A finalizer returns at once while a worker is busy, and the worker ends.
func TestFinalizer(t *testing.T) {
	config := baseConfig()
	config.WorkerConfig = []byte("stuck")
	loader, err := feedlane.NewLoader(config)
	must(t, err)
	must(t, loader.Begin(0))
	must(t, next(t, loader).Release())
	must(t, next(t, loader).Release())
	pids := pidsOf(t, loader)
	runtime.KeepAlive(loader)
	loader = nil
	begin := time.Now()
	for i := 0; i < 100 && (exists(pids[0]) || exists(pids[1])); i++ {
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
	}
	waitForEnd(t, time.Second, pids...)
	// The finalizers' goroutine is free.
	done := make(chan struct{})
	runtime.SetFinalizer(new([64]byte), func(*[64]byte) { close(done) })
	for i := 0; i < 100; i++ {
		runtime.GC()
		select {
		case <-done:
			if since := time.Since(begin); since > 3*time.Second {
				t.Fatal(since)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("the finalizers' goroutine is blocked")
}

// Processes that a worker's program starts do not take themselves for workers.
func TestEnvironment(t *testing.T) {
	if err := os.Setenv("FEEDLANE_GO_PROGRAM", "environment"); err != nil {
		t.Fatal(err)
	}
	defer os.Unsetenv("FEEDLANE_GO_PROGRAM")
	out, err := exec.Command("/proc/self/exe").Output()
	if err != nil || strings.TrimSpace(string(out)) != "" {
		t.Fatal(string(out), err)
	}
}

// External workers: processes of the program's own, by the socket of OpenWorker.
func TestExternal(t *testing.T) {
	loader := newLoader(t, func(c *feedlane.Config) { c.Start, c.Workers = feedlane.External, 1 })
	must(t, loader.Begin(0))
	id, socket, err := loader.OpenWorker(-1)
	must(t, err)
	worker := exec.Command("/proc/self/exe")
	worker.Env = append(os.Environ(), "FEEDLANE_GO_PROGRAM=serve")
	worker.ExtraFiles = []*os.File{socket}
	must(t, worker.Start())
	socket.Close()
	if _, _, err := loader.OpenWorker(-1); id != 0 || err != io.EOF {
		t.Fatal(id, err)
	}
	list, err := hashes(loader, 0)
	must(t, err)
	wanted, err := hashes(newLoader(t, nil), 0)
	must(t, err)
	if !reflect.DeepEqual(list, wanted) {
		t.Fatal("the batches differ")
	}
	must(t, loader.Close())
	must(t, worker.Wait())
}

func init() {
	programs["serve"] = func() {
		if err := feedlane.ServeWorker(os.NewFile(3, "socket"), numbers{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
