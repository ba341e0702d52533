// SPDX-License-Identifier: Apache-2.0

// Rings: misuse, cancelled and closed calls, forgotten ends.

package feedlane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"feedlane"
)

// Errors name the cause.
func TestRingMisuse(t *testing.T) {
	for argument, config := range map[string]feedlane.RingConfig{
		"config.message_bytes": {Capacity: 64},
		"config.capacity":      {MessageBytes: 8, Capacity: 65},
		"config.lanes":         {MessageBytes: 8, Capacity: 64, Lanes: 1 << 20},
		"config.path":          {MessageBytes: 8, Capacity: 64, Path: strings.Repeat("x", 200)},
	} {
		_, err := feedlane.NewReceiver(config)
		var e *feedlane.Error
		if !errors.As(err, &e) || e.Status != feedlane.ErrArgument || e.Argument != argument {
			t.Errorf("%s: %v", argument, err)
		}
	}
	_, err := feedlane.NewSenderPath(socketPath(t), patience)
	wants(t, err, feedlane.ErrPeerDead)
	_, err = feedlane.NewSenderPath("", patience)
	wants(t, err, feedlane.ErrArgument)
	receiver := newRing(t, func(c *feedlane.RingConfig) { c.Lanes = 1 })
	sender := attach(t, receiver)
	_, err = receiver.Offer()
	wants(t, err, feedlane.ErrLimit)
	_, _, err = receiver.Receive(always, make([]byte, messageBytes-1))
	wants(t, err, feedlane.ErrArgument)
	_, err = receiver.TryPeek(1)
	wants(t, err, feedlane.ErrTimeout)
	for _, want := range []int{-1, 0, 1 << 40} {
		_, err = receiver.Peek(always, want)
		wants(t, err, feedlane.ErrArgument)
		_, err = sender.Reserve(always, want)
		wants(t, err, feedlane.ErrArgument)
	}
	_, err = sender.Send(always, make([]byte, messageBytes+1))
	wants(t, err, feedlane.ErrArgument)
	if sent, err := sender.Send(always, nil); sent != 0 || err != nil || sender.MessageBytes() != messageBytes {
		t.Fatal(sent, err)
	}
	checkSpans(t, receiver, sender)
	must(t, receiver.Close())
	must(t, receiver.Close())
	_, err = receiver.Peek(always, 1)
	wants(t, err, feedlane.ErrState)
	_, err = receiver.Offer()
	wants(t, err, feedlane.ErrState)
	must(t, sender.Close())
	must(t, sender.Close())
	_, err = sender.Send(always, make([]byte, messageBytes))
	wants(t, err, feedlane.ErrState)
}

// checkSpans checks what a span refuses, also after it is over.
func checkSpans(t *testing.T, receiver *feedlane.Receiver, sender *feedlane.Sender) {
	t.Helper()
	first, err := sender.TryReserve(1)
	must(t, err)
	space, err := sender.TryReserve(2)
	must(t, err)
	wants(t, sender.Commit(first, 1), feedlane.ErrStale)
	wants(t, sender.Commit(space, 3), feedlane.ErrArgument)
	wants(t, sender.Commit(space, -1), feedlane.ErrArgument)
	wants(t, receiver.Release(space, 1), feedlane.ErrStale)
	_, err = first.Message(0)
	wants(t, err, feedlane.ErrStale)
	for _, i := range []int{-1, 2} {
		_, err = space.Message(i)
		wants(t, err, feedlane.ErrArgument)
	}
	must(t, sender.Commit(space, 2))
	wants(t, sender.Commit(space, 2), feedlane.ErrStale)
	span, err := receiver.TryPeek(2)
	must(t, err)
	wants(t, receiver.Release(span, 3), feedlane.ErrArgument)
	must(t, receiver.Release(span, 2))
	wants(t, receiver.Release(span, 2), feedlane.ErrStale)
	wants(t, receiver.Release(nil, 0), feedlane.ErrStale)
	_, err = span.Message(0)
	wants(t, err, feedlane.ErrStale)
	last, err := sender.TryReserve(1)
	must(t, err)
	must(t, sender.Close())
	_, err = last.Message(0)
	wants(t, err, feedlane.ErrStale)
}

// waits are calls of a ring that wait: for messages, and for space in a full lane.
func waits(t testing.TB, receiver *feedlane.Receiver, sender *feedlane.Sender) map[string]func(context.Context) error {
	t.Helper()
	sent, err := sender.Send(always, make([]byte, 64*messageBytes))
	must(t, err)
	if _, err := sender.TryReserve(1); sent != 64 || !errors.Is(err, feedlane.ErrTimeout) {
		t.Fatal(sent, err)
	}
	return map[string]func(context.Context) error{
		"peek": func(ctx context.Context) error {
			_, err := receiver.Peek(ctx, 1)
			return err
		},
		"receive": func(ctx context.Context) error {
			_, _, err := receiver.Receive(ctx, make([]byte, messageBytes))
			return err
		},
		"send": func(ctx context.Context) error {
			_, err := sender.Send(ctx, make([]byte, messageBytes))
			return err
		},
		"reserve": func(ctx context.Context) error {
			_, err := sender.Reserve(ctx, 1)
			return err
		},
	}
}

// A context ends a call that waits; a second goroutine gets ErrBusy; Close of another goroutine ends the call.
func TestRingWaits(t *testing.T) {
	for _, name := range []string{"peek", "receive", "send", "reserve"} {
		name := name
		t.Run(name, func(t *testing.T) {
			receiver, other := newRing(t, nil), newRing(t, nil) // nothing comes to the first one
			_ = attach(t, receiver)
			sender := attach(t, other)
			call := waits(t, receiver, sender)[name]
			ended := make(chan error, 1)
			wait := func(ctx context.Context) {
				err := call(ctx)
				for errors.Is(err, feedlane.ErrBusy) { // untilBusy was in
					err = call(ctx)
				}
				ended <- err
			}
			ctx, cancel := context.WithCancel(always)
			go wait(ctx)
			untilBusy(t, name, receiver, sender)
			cancel()
			if err := <-ended; err != context.Canceled {
				t.Fatal(err)
			}
			go wait(always)
			untilBusy(t, name, receiver, sender)
			if name == "peek" || name == "receive" {
				must(t, receiver.Close())
			} else {
				must(t, sender.Close())
			}
			wants(t, <-ended, feedlane.ErrState)
			if count, _, err := other.Receive(always, make([]byte, 64*messageBytes)); count != 64 || err != nil {
				t.Fatal("messages are lost: ", count, err)
			}
		})
	}
}

// untilBusy returns once another goroutine is in a call of this end.
func untilBusy(t testing.TB, name string, receiver *feedlane.Receiver, sender *feedlane.Sender) {
	t.Helper()
	for {
		var err error
		if name == "peek" || name == "receive" {
			_, err = receiver.TryPeek(1)
		} else {
			_, err = sender.TryReserve(1)
		}
		if errors.Is(err, feedlane.ErrBusy) {
			return
		}
		wants(t, err, feedlane.ErrTimeout)
		runtime.Gosched()
	}
}

// An end that is garbage collected is closed, and the peer learns of it.
func TestRingForgotten(t *testing.T) {
	receiver := newRing(t, nil)
	func() {
		socket, err := receiver.Offer()
		must(t, err)
		go func() {
			sender, err := feedlane.NewSender(socket, patience)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := sender.TryReserve(1); err != nil { // a span does not keep it
				t.Error(err)
			}
		}()
	}()
	var err error
	for err == nil || errors.Is(err, feedlane.ErrTimeout) {
		runtime.GC()
		_, err = receiver.TryPeek(1)
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	sender := func() *feedlane.Sender {
		receiver, err := feedlane.NewReceiver(feedlane.RingConfig{MessageBytes: messageBytes, Capacity: 64})
		must(t, err)
		return attach(t, receiver)
	}()
	for err = nil; err == nil || errors.Is(err, feedlane.ErrTimeout); _, err = sender.TryReserve(64) {
		runtime.GC()
		if err == nil {
			_, _ = sender.Send(limited(t), make([]byte, 64*messageBytes))
		}
	}
	wants(t, err, feedlane.ErrPeerDead)
}

// Send reports what was sent, also if its context ends before the rest had space.
func TestRingSentInPart(t *testing.T) {
	receiver := newRing(t, nil)
	sender := attach(t, receiver)
	ctx, cancel := context.WithCancel(always)
	ended := make(chan error, 1)
	go func() {
		sent, err := sender.Send(ctx, make([]byte, 65*messageBytes))
		if sent != 64 {
			err = fmt.Errorf("%d messages were sent: %v", sent, err)
		}
		ended <- err
	}()
	for count := 0; count < 64; { // the lane is full
		span, err := receiver.Peek(always, 64)
		must(t, err)
		count = span.Len()
	}
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Fatal(err)
	}
}
