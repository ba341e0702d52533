// SPDX-License-Identifier: Apache-2.0

// C memory for configurations, which must not point to Go memory.

package feedlane

// #include "shim.h"
import "C"

import "unsafe"

// A memory owns allocations until free is called.
type memory []unsafe.Pointer

func (m *memory) free() {
	for _, p := range *m {
		C.free(p)
	}
	*m = nil
}

// allocate returns zeroed memory, or nil for no bytes.
func (m *memory) allocate(count, size uintptr) unsafe.Pointer {
	if count == 0 || size == 0 {
		return nil
	}
	p := C.calloc(C.size_t(count), C.size_t(size)) // cgo's calloc never returns nil
	*m = append(*m, p)
	return p
}

func (m *memory) string(s string) *C.char {
	p := m.allocate(uintptr(len(s))+1, 1)
	copy(unsafe.Slice((*byte)(p), len(s)), s)
	return (*C.char)(p)
}

func (m *memory) bytes(b []byte) unsafe.Pointer {
	p := m.allocate(uintptr(len(b)), 1)
	if p != nil {
		copy(unsafe.Slice((*byte)(p), len(b)), b)
	}
	return p
}

// strings returns a table that ends in NULL, or NULL for a nil slice.
func (m *memory) strings(list []string) **C.char {
	if list == nil {
		return nil
	}
	p := (**C.char)(m.allocate(uintptr(len(list))+1, unsafe.Sizeof((*C.char)(nil))))
	table := unsafe.Slice(p, len(list)+1)
	for i, s := range list {
		table[i] = m.string(s)
	}
	return p
}

// flag converts a bool to an int32_t.
func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}
