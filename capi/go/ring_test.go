// SPDX-License-Identifier: Apache-2.0

// Rings: the receiver is in the test's process, senders are there or in child processes that run this binary.

package feedlane_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"feedlane"
)

const (
	ringSender   = "FEEDLANE_GO_RING_SENDER"
	ringPath     = "FEEDLANE_GO_RING_PATH"
	ringMessages = 10_000
	messageBytes = 24 // the sender's number, the message's number, and their sum
)

func init() { programs["ring"] = sendRing }

// sendRing is a sender's process: at the path, or at descriptor 3. An even one fills messages in place, an odd one copies.
func sendRing() {
	number, err := uint64(os.Getenv(ringSender)[0]-'0'), error(nil)
	var sender *feedlane.Sender
	if path := os.Getenv(ringPath); path != "" {
		sender, err = feedlane.NewSenderPath(path, patience)
	} else {
		sender, err = feedlane.NewSender(os.NewFile(3, "ring"), patience)
	}
	for sent := 0; err == nil && sent < ringMessages; {
		var count int
		if number%2 == 0 {
			count, err = fillRing(sender, number, sent)
		} else {
			count, err = copyRing(sender, number, sent)
		}
		sent += count
	}
	if err == nil {
		err = sender.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fillRing(sender *feedlane.Sender, number uint64, sent int) (int, error) {
	span, err := sender.Reserve(always, 7)
	if err != nil {
		return 0, err
	}
	count := span.Len()
	if count > ringMessages-sent {
		count = ringMessages - sent
	}
	for i := 0; i < count; i++ {
		message, err := span.Message(i)
		if err != nil {
			return 0, err
		}
		write(message, number, uint64(sent+i))
	}
	return count, sender.Commit(span, count)
}

func copyRing(sender *feedlane.Sender, number uint64, sent int) (int, error) {
	count := 100 // more than the lane has
	if count > ringMessages-sent {
		count = ringMessages - sent
	}
	messages := make([]byte, count*messageBytes)
	for i := 0; i < count; i++ {
		write(messages[i*messageBytes:], number, uint64(sent+i))
	}
	sent, err := sender.Send(always, messages)
	if err == nil && sent != count {
		err = fmt.Errorf("%d of %d messages were sent without an error", sent, count)
	}
	return sent, err
}

func write(message []byte, number, index uint64) {
	binary.LittleEndian.PutUint64(message, number)
	binary.LittleEndian.PutUint64(message[8:], index)
	binary.LittleEndian.PutUint64(message[16:], number+index)
}

// read returns the sender and the number of a message, which must be complete.
func read(t testing.TB, message []byte) (number, index uint64) {
	t.Helper()
	number, index = binary.LittleEndian.Uint64(message), binary.LittleEndian.Uint64(message[8:])
	if sum := binary.LittleEndian.Uint64(message[16:]); len(message) < messageBytes || sum != number+index {
		t.Fatalf("message %d of sender %d is incomplete", index, number)
	}
	return number, index
}

func newRing(t testing.TB, change func(*feedlane.RingConfig)) *feedlane.Receiver {
	t.Helper()
	config := feedlane.RingConfig{MessageBytes: messageBytes, Capacity: 64, Lanes: 3}
	if change != nil {
		change(&config)
	}
	receiver, err := feedlane.NewReceiver(config)
	must(t, err)
	t.Cleanup(func() { must(t, receiver.Close()) })
	return receiver
}

// attach returns a sender of this process. The receiver admits it in a call that finds nothing.
func attach(t testing.TB, receiver *feedlane.Receiver) *feedlane.Sender {
	t.Helper()
	socket, err := receiver.Offer()
	must(t, err)
	made := make(chan *feedlane.Sender)
	go func() {
		sender, err := feedlane.NewSender(socket, patience)
		if err != nil {
			t.Error(err)
		}
		made <- sender
	}()
	for {
		select {
		case sender := <-made:
			t.Cleanup(func() { must(t, sender.Close()) })
			return sender
		default:
			if _, err := receiver.TryPeek(1); !errors.Is(err, feedlane.ErrTimeout) {
				t.Fatal(err)
			}
		}
	}
}

// startSender starts a process that sends: at the path, or through the socket.
func startSender(t testing.TB, number int, path string, socket *os.File) *exec.Cmd {
	t.Helper()
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), "FEEDLANE_GO_PROGRAM=ring", fmt.Sprint(ringSender, "=", number), ringPath+"="+path)
	command.Stderr = &strings.Builder{}
	if socket != nil {
		command.ExtraFiles = []*os.File{socket}
		defer socket.Close()
	}
	must(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })
	return command
}

// takers are the ways to receive. Each returns messages, which lie one after another.
var takers = map[string]func(context.Context, *feedlane.Receiver, []byte) (int, error){
	"in place": func(ctx context.Context, receiver *feedlane.Receiver, buffer []byte) (int, error) {
		span, err := receiver.Peek(ctx, 5)
		if err != nil {
			return 0, err
		}
		for i := 0; i < span.Len(); i++ {
			message, err := span.Message(i)
			if err != nil {
				return 0, err
			}
			copy(buffer[i*messageBytes:], message)
		}
		return span.Len(), receiver.Release(span, span.Len())
	},
	"by copies": func(ctx context.Context, receiver *feedlane.Receiver, buffer []byte) (int, error) {
		count, _, err := receiver.Receive(ctx, buffer)
		return count, err
	},
}

// All messages of several processes arrive, each sender's in order; then the end is reported.
func TestRing(t *testing.T) {
	for name, take := range takers {
		take := take
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			receiver := newRing(t, func(c *feedlane.RingConfig) { c.Path = path })
			socket, err := receiver.Offer()
			must(t, err)
			senders := []*exec.Cmd{startSender(t, 0, "", socket), startSender(t, 1, path, nil), startSender(t, 2, path, nil)}
			var received [3]uint64
			ctx, buffer := limited(t), make([]byte, 5*messageBytes)
			for {
				count, err := take(ctx, receiver, buffer)
				if err == io.EOF {
					if received[0]+received[1]+received[2] == 3*ringMessages {
						break
					}
					continue // a sender has ended before another one has attached
				}
				must(t, err)
				for i := 0; i < count; i++ {
					number, index := read(t, buffer[i*messageBytes:])
					if index != received[number] {
						t.Fatalf("message %d of sender %d after %d others", index, number, received[number])
					}
					received[number]++
				}
			}
			for _, sender := range senders {
				if err := sender.Wait(); err != nil {
					t.Fatal(err, sender.Stderr)
				}
			}
		})
	}
}

// The end is not reported while a process that has connected may still attach: for 100 ms.
func TestRingEndWaitsForSenders(t *testing.T) {
	path := socketPath(t)
	receiver := newRing(t, func(c *feedlane.RingConfig) { c.Path = path })
	must(t, attach(t, receiver).Close())
	connection, err := net.Dial("unixpacket", path)
	must(t, err)
	defer connection.Close()
	began := time.Now()
	if _, err := receiver.Peek(limited(t), 1); err != io.EOF || time.Since(began) < 90*time.Millisecond {
		t.Fatal(err, " after ", time.Since(began))
	}
}

// A sender that is killed leaves complete messages only, and the end is reported.
func TestRingSenderKilled(t *testing.T) {
	receiver := newRing(t, nil)
	socket, err := receiver.Offer()
	must(t, err)
	sender := startSender(t, 0, "", socket)
	for index := uint64(0); ; index++ {
		if index == ringMessages/2 {
			must(t, sender.Process.Kill())
			_ = sender.Wait()
		}
		span, err := receiver.Peek(limited(t), 1)
		if err == io.EOF {
			if index <= ringMessages/2 || index >= ringMessages {
				t.Fatalf("the end after %d messages", index)
			}
			return
		}
		must(t, err)
		message, err := span.Message(0)
		must(t, err)
		if _, found := read(t, message); found != index {
			t.Fatalf("message %d, not %d", found, index)
		}
		must(t, receiver.Release(span, 1))
	}
}

// A span is the ring's memory: what the sender still writes after its commit shows in the receiver's slice.
func TestRingZeroCopy(t *testing.T) {
	receiver := newRing(t, nil)
	sender := attach(t, receiver)
	space, err := sender.TryReserve(2)
	must(t, err)
	written, err := space.Message(1)
	must(t, err)
	written[0] = 1
	must(t, sender.Commit(space, 2))
	span, err := receiver.Peek(always, 2)
	must(t, err)
	found, err := span.Message(1)
	must(t, err)
	written[0] = 2
	if span.Len() != 2 || span.Lane() != 0 || len(found) != messageBytes || cap(found) != messageBytes || found[0] != 2 {
		t.Fatal(span.Len(), span.Lane(), found)
	}
	must(t, receiver.Release(span, 1))
	rest, err := receiver.TryPeek(2)
	must(t, err)
	if rest.Len() != 1 {
		t.Fatal("messages that were not released come again: ", rest.Len())
	}
}
