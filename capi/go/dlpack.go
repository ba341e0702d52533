// SPDX-License-Identifier: Apache-2.0

// Exports tensors of batches to other libraries, in place, with DLPack.

package feedlane

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// DLPackFlags are options of Batch.DLPack, combined by |.
type DLPackFlags int32

const (
	// DLPackPinned reports the device type of the pool's backend, such as kDLCUDAHost, instead of kDLCPU.
	DLPackPinned DLPackFlags = C.FEEDLANE_DLPACK_PINNED
	// DLPackLegacy exports the form used before DLPack 1.0, a DLManagedTensor.
	DLPackLegacy DLPackFlags = C.FEEDLANE_DLPACK_LEGACY
)

// DLPack exports tensor i, in place, for a library that is called by cgo. It returns a pointer to a
// DLManagedTensorVersioned, which holds a reference to the batch until its deleter is called. The library that takes the
// tensor calls the deleter. If no library takes it, call DeleteDLPack. The batch may be released before, the loader may
// be closed, and the deleter may run on any thread.
//   - ErrArgument: there is no such tensor, or no such flag.
//   - ErrStale: the batch was released.
//   - ErrState: DLPackPinned, but the memory is not registered with a device that DLPack has a type for.
func (b *Batch) DLPack(i int, flags DLPackFlags) (unsafe.Pointer, error) {
	if b.over.Load() {
		return nil, refuse(ErrStale, "batch %d of epoch %d was released", b.Number(), b.Epoch())
	}
	var m memory
	defer m.free()
	out := (*unsafe.Pointer)(m.allocate(1, unsafe.Sizeof(unsafe.Pointer(nil))))
	err := check(func(err *C.feedlane_error) C.int32_t {
		return C.feedlane_batch_dlpack(b.held.loader, b.c.token, C.int32_t(i), C.int32_t(flags), out, err)
	})
	runtime.KeepAlive(b)
	return *out, err
}

// DeleteDLPack calls the deleter of a tensor that Batch.DLPack returned with these flags, once.
func DeleteDLPack(tensor unsafe.Pointer, flags DLPackFlags) {
	C.feedlane_go_dlpack_delete(tensor, flag(flags&DLPackLegacy != 0))
}
