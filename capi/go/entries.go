// SPDX-License-Identifier: Apache-2.0

// Entries of an arena: putting, getting, sending and receiving.

package feedlane

// #include "shim.h"
import "C"

import (
	"context"
	"unsafe"
)

// An Array is a tensor to put: a field with its complete shape, and its elements.
type Array struct {
	Field
	Data []byte // the elements, row-major
}

// ArrayOf returns an array of these elements, without a copy. Without a shape it has one dimension.
func ArrayOf[T Element](name string, elements []T, shape ...int64) Array {
	if len(shape) == 0 {
		shape = []int64{int64(len(elements))}
	}
	array := Array{Field: FieldOf[T](name, shape...)}
	if len(elements) != 0 {
		array.Data = unsafe.Slice((*byte)(unsafe.Pointer(&elements[0])), len(elements)*int(unsafe.Sizeof(elements[0])))
	}
	return array
}

// An Entry describes an entry to reserve.
type Entry struct {
	Key      string  // 1 to 64 bytes; "": the entry is sent, not stored
	Fields   []Field // the tensors, with their complete shapes
	Metadata []byte  // for Batch.Metadata; copied
	Pinned   bool    // never evicted, only dropped
}

// Put stores a copy of the arrays under a key of 1 to 64 bytes, and replaces an earlier entry. If the key is "", it sends
// them. This process finds the entry at once, others soon.
//   - ErrArgument: an array or the key is invalid.
//   - ErrLimit: the entry exceeds a third of the arena, or there is no memory and ArenaConfig.WhenFull is FullFail. Found
//     and Needed are the bytes available and the bytes of the entry.
//   - ErrSlotsHeld: this process holds ArenaConfig.Leases batches and reservations.
//   - ErrPeerDead: the owner has ended.
//   - ErrCorrupt: the owner has cut off this member.
func (a *Arena) Put(ctx context.Context, key string, arrays ...Array) error {
	entry := Entry{Key: key}
	for i := range arrays {
		entry.Fields = append(entry.Fields, arrays[i].Field)
	}
	batch, err := a.Reserve(ctx, entry)
	if err != nil {
		return err
	}
	defer batch.Release() // an error if it was published
	for i := range arrays {
		bytes, err := batch.Tensor(i).Bytes()
		if err != nil {
			return err
		}
		if len(bytes) != len(arrays[i].Data) {
			return refuse(ErrArgument, "array %q has %d bytes, but its shape and element type need %d", arrays[i].Name,
				len(arrays[i].Data), len(bytes))
		}
		copy(bytes, arrays[i].Data)
	}
	return a.Publish(ctx, batch)
}

// Reserve reserves memory for an entry. The caller fills the tensors of the batch in place and passes it to Publish, or
// gives the memory back by Batch.Release. Other processes see nothing of it before. Errors: see Put.
func (a *Arena) Reserve(ctx context.Context, entry Entry) (*Batch, error) {
	var m memory
	defer m.free()
	put := (*C.feedlane_put)(m.allocate(1, C.sizeof_feedlane_put))
	put.size = C.sizeof_feedlane_put
	put.key = m.bytes([]byte(entry.Key))
	put.key_bytes = C.uint64_t(len(entry.Key))
	fields, err := fieldTable(entry.Fields, &m)
	if err != nil {
		return nil, err
	}
	put.fields = fields
	put.field_count = C.uint64_t(len(entry.Fields))
	put.metadata = m.bytes(entry.Metadata)
	put.metadata_bytes = C.uint64_t(len(entry.Metadata))
	put.pinned = flag(entry.Pinned)
	return a.batch(ctx, func(timeout C.int64_t, out *outcome) C.int32_t {
		return C.feedlane_arena_reserve(a.c, put, timeout, &out.batch, &out.err)
	})
}

// Publish publishes the entry of a reservation, complete or not at all, and releases the batch. Do not use slices of it
// afterwards: other processes read this memory. After an error the reservation stays.
//   - ErrStale: the batch is not a reservation, or was published or released.
//   - ErrState: the batch was retained, and the other references were not released.
//   - ErrPeerDead, ErrCorrupt: see Put.
func (a *Arena) Publish(ctx context.Context, batch *Batch) error {
	if batch.over.Load() {
		return refuse(ErrStale, "the reservation was published or released before")
	}
	_, err := a.wait(ctx, func(timeout C.int64_t, out *outcome) C.int32_t {
		return C.feedlane_arena_publish(a.c, batch.c.token, timeout, &out.err)
	})
	if err == nil {
		batch.forget()
	}
	return err
}

// Get returns the entry with this key, without a copy. If there is none, it waits for it. The caller releases the batch.
//   - ErrSlotsHeld: this process holds ArenaConfig.Leases batches and reservations.
//   - ErrPeerDead: there is no entry, and the owner has ended. Entries that are there are still found.
//   - ErrCorrupt: the entry's maker has overwritten the description of its tensors; the text names the maker.
func (a *Arena) Get(ctx context.Context, key string) (*Batch, error) {
	return a.batch(ctx, a.getter(key, 0))
}

// TryGet is like Get, but does not wait.
//   - ErrTimeout: there is no entry.
func (a *Arena) TryGet(key string) (*Batch, error) {
	get := a.getter(key, 0)
	return a.batch(context.Background(), func(_ C.int64_t, out *outcome) C.int32_t { return get(0, out) })
}

// GetOrMake is like Get, but if there is no entry, one process at a time calls f and puts the arrays. The others wait. If
// that process ends, or f fails or panics, the next one makes the entry. Errors: see Get and Put, and the errors of f.
func (a *Arena) GetOrMake(ctx context.Context, key string, f func() ([]Array, error)) (*Batch, error) {
	for {
		out, err := a.wait(ctx, a.getter(key, C.FEEDLANE_GET_MAKE))
		if err != nil {
			return nil, err
		}
		if out.status == C.FEEDLANE_OK {
			return newBatch(a.c, &out.batch), nil
		}
		if err := a.make(ctx, key, f); err != nil {
			return nil, err
		}
	}
}

// make makes a missing entry, or gives the right to make it back.
func (a *Arena) make(ctx context.Context, key string, f func() ([]Array, error)) error {
	made := false
	defer func() {
		if !made {
			_ = a.Drop(context.Background(), key)
		}
	}()
	arrays, err := f()
	if err == nil {
		err = a.Put(ctx, key, arrays...)
	}
	made = err == nil
	return err
}

func (a *Arena) getter(key string, flags C.int32_t) func(C.int64_t, *outcome) C.int32_t {
	text := append([]byte(key), 0) // never empty
	return func(timeout C.int64_t, out *outcome) C.int32_t {
		return C.feedlane_arena_get(a.c, unsafe.Pointer(&text[0]), C.uint64_t(len(key)), flags, timeout, &out.batch, &out.err)
	}
}

// Receive waits for the next entry without a key that was sent to this process. Entries of one sender come in the order
// in which they were published. The caller releases the batch. The owner serves its members while it waits.
//   - ErrPeerDead: everything was received, and the owner has ended.
//   - ErrSlotsHeld: see Get.
func (a *Arena) Receive(ctx context.Context) (*Batch, error) {
	return a.batch(ctx, func(timeout C.int64_t, out *outcome) C.int32_t {
		return C.feedlane_arena_receive(a.c, timeout, &out.batch, &out.err)
	})
}

// TryReceive is like Receive, but does not wait. The owner serves its members once.
//   - ErrTimeout: there is nothing to receive.
func (a *Arena) TryReceive() (*Batch, error) {
	return a.batch(context.Background(), func(_ C.int64_t, out *outcome) C.int32_t {
		return C.feedlane_arena_receive(a.c, 0, &out.batch, &out.err)
	})
}

// Serve is the owner's loop, for a goroutine that serves the members until the context ends or the arena is closed. It
// never returns nil.
func (a *Arena) Serve(ctx context.Context) error {
	_, err := a.wait(ctx, func(timeout C.int64_t, out *outcome) C.int32_t {
		return C.feedlane_arena_receive(a.c, timeout, nil, &out.err)
	})
	return err
}

// Drop drops the entry with this key, if there is one: later gets do not find it, batches that are held stay.
func (a *Arena) Drop(ctx context.Context, key string) error {
	text := append([]byte(key), 0)
	_, err := a.wait(ctx, func(timeout C.int64_t, out *outcome) C.int32_t {
		return C.feedlane_arena_drop(a.c, unsafe.Pointer(&text[0]), C.uint64_t(len(key)), timeout, &out.err)
	})
	return err
}

// batch waits for a call that yields a batch.
func (a *Arena) batch(ctx context.Context, call func(C.int64_t, *outcome) C.int32_t) (*Batch, error) {
	out, err := a.wait(ctx, call)
	if err != nil {
		return nil, err
	}
	return newBatch(a.c, &out.batch), nil
}
