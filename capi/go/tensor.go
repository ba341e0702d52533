// SPDX-License-Identifier: Apache-2.0

// Types, fields, and tensors as typed slices of shared memory.

package feedlane

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// A DType is an element's type in DLPack's numbers. Lanes 0 means 1.
type DType struct {
	Code  uint8
	Bits  uint8
	Lanes uint16
}

// The element types of DLPack that Go programs use.
var (
	Int8       = DType{0, 8, 1}
	Int16      = DType{0, 16, 1}
	Int32      = DType{0, 32, 1}
	Int64      = DType{0, 64, 1}
	Uint8      = DType{1, 8, 1}
	Uint16     = DType{1, 16, 1}
	Uint32     = DType{1, 32, 1}
	Uint64     = DType{1, 64, 1}
	Float16    = DType{2, 16, 1}
	Float32    = DType{2, 32, 1}
	Float64    = DType{2, 64, 1}
	BFloat16   = DType{4, 16, 1}
	Complex64  = DType{5, 64, 1}
	Complex128 = DType{5, 128, 1}
	Bool       = DType{6, 8, 1}
)

// String returns a name as in numpy, such as "float32".
func (d DType) String() string {
	kind := map[uint8]string{0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}[d.Code]
	switch {
	case kind == "":
		kind = fmt.Sprintf("code%d_", d.Code)
	case d.Code == 6 && d.Bits == 8 && d.Lanes <= 1:
		return kind
	}
	if d.Lanes > 1 {
		return fmt.Sprintf("%s%dx%d", kind, d.Bits, d.Lanes)
	}
	return fmt.Sprintf("%s%d", kind, d.Bits)
}

// An Element is a Go type for which every bit pattern is a valid value.
type Element interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64 | complex64 | complex128
}

// dtypeOf returns the dtype of T.
func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case float32:
		return Float32
	case float64:
		return Float64
	case complex64:
		return Complex64
	default:
		return Complex128
	}
}

// A Field declares one field of a sample. Shape is row-major and does not include the batch dimension.
type Field struct {
	Name  string // up to 31 bytes, unique within the sample
	DType DType
	Shape []int64 // at most 7 dimensions
}

// FieldOf declares a field of elements of type T.
func FieldOf[T Element](name string, shape ...int64) Field {
	return Field{Name: name, DType: dtypeOf[T](), Shape: shape}
}

func (f *Field) fill(to *C.feedlane_field, m *memory) error {
	if len(f.Shape) > C.FEEDLANE_MAX_NDIM {
		return refuse(ErrArgument, "field %q has %d dimensions, but at most %d are allowed", f.Name, len(f.Shape), C.FEEDLANE_MAX_NDIM)
	}
	to.size = C.sizeof_feedlane_field
	to.name = m.string(f.Name)
	to.dtype = C.feedlane_dtype{C.uint8_t(f.DType.Code), C.uint8_t(f.DType.Bits), C.uint16_t(f.DType.Lanes)}
	to.ndim = C.int32_t(len(f.Shape))
	for i, extent := range f.Shape {
		to.shape[i] = C.int64_t(extent)
	}
	return nil
}

// A lease is shared by a batch or task and its tensors.
type lease struct {
	over atomic.Bool // released, committed or failed
	held *held       // nil: a task
}

// A Tensor is all rows of a field in a batch, or one row of it in a sample, in place. It keeps its batch alive. The
// zero Tensor has no elements.
//
// Thread safety: any goroutine, as long as no other one releases the batch at the same time.
type Tensor struct {
	c     *C.feedlane_tensor
	data  unsafe.Pointer
	bytes uintptr
	isRow bool
	lease *lease
	why   string // for the zero Tensor: the tensor that does not exist
}

func (t Tensor) isValid() bool { return t.c != nil && !t.lease.over.Load() }

// Name returns the field's name, or "" after the batch was released.
func (t Tensor) Name() string {
	if !t.isValid() {
		return ""
	}
	return C.GoString(t.c.name)
}

// DType returns the type of an element.
func (t Tensor) DType() DType {
	if !t.isValid() {
		return DType{}
	}
	return DType{uint8(t.c.dtype.code), uint8(t.c.dtype.bits), uint16(t.c.dtype.lanes)}
}

// Shape returns the row-major dimensions. The first dimension of a tensor of all rows is the number of rows.
func (t Tensor) Shape() []int64 {
	if !t.isValid() {
		return nil
	}
	first := 0
	if t.isRow {
		first = 1
	}
	shape := make([]int64, 0, C.FEEDLANE_MAX_NDIM)
	for _, extent := range t.c.shape[first:t.c.ndim] {
		shape = append(shape, int64(extent))
	}
	return shape
}

// Len returns the size in bytes.
func (t Tensor) Len() int {
	if !t.isValid() {
		return 0
	}
	return int(t.bytes)
}

// Bytes returns the memory itself, whatever the element type is. See View.
func (t Tensor) Bytes() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	return slice[byte](t), nil
}

// View returns the memory of a tensor as a slice, without a copy. T is the Go type of the tensor's dtype. uint8 is also
// valid for bool, and uint16 for the two 16-bit floats.
//
// The slice is valid until the batch is released. After the release, its memory belongs to another batch, or is
// unmapped. Go's garbage collector cannot see that a slice uses a batch. So it never releases a batch that has handed
// out a slice; only Batch.Release and the loop of Loader.Batches do. Until then the slice stays readable, even after
// the loader's end.
//
// On a consumer (see Join) the memory is read-only: a write is a segmentation fault, which ends the program.
//
//   - ErrArgument: the tensor has another element type, or there is no such tensor.
//   - ErrStale: the batch was released, or the task is over.
func View[T Element](t Tensor) ([]T, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	d, c := dtypeOf[T](), t.c.dtype
	if (uint8(c.code) != d.Code || uint8(c.bits) != d.Bits) && !d.holds(c.code, c.bits) || c.lanes > 1 {
		return nil, refuse(ErrArgument, "the elements of tensor %q are %v, not %v", t.Name(), t.DType(), d)
	}
	return slice[T](t), nil
}

// holds reports whether View of type d is valid for another type, of which Go has no elements.
func (d DType) holds(code, bits C.uint8_t) bool {
	return d == Uint8 && code == 6 && bits == 8 || d == Uint16 && (code == 2 || code == 4) && bits == 16
}

func (t Tensor) check() error {
	switch {
	case t.c == nil:
		return refuse(ErrArgument, "there is no tensor %s", t.why)
	case t.lease.over.Load():
		return refuse(ErrStale, "the batch of this tensor was released")
	}
	return nil
}

func slice[T Element](t Tensor) []T {
	if h := t.lease.held; h != nil && !h.viewed.Load() {
		h.viewed.Store(true)
	}
	var zero T
	return unsafe.Slice((*T)(t.data), t.bytes/unsafe.Sizeof(zero))
}

// whole returns the tensor of all rows.
func whole(c *C.feedlane_tensor, l *lease) Tensor {
	return Tensor{c: c, data: c.data, bytes: uintptr(c.bytes), lease: l}
}

// find returns the tensor of this name.
func find(tensors *C.feedlane_tensor, count int, name string, l *lease) Tensor {
	list := unsafe.Slice(tensors, count)
	for i := range list {
		if equal(list[i].name, name) {
			return whole(&list[i], l)
		}
	}
	return Tensor{why: fmt.Sprintf("%q", name)}
}

// equal compares a terminated string without a copy of it.
func equal(c *C.char, s string) bool {
	at := unsafe.Pointer(c)
	for i := 0; i < len(s); i++ {
		if b := *(*byte)(unsafe.Add(at, i)); b == 0 || b != s[i] {
			return false
		}
	}
	return *(*byte)(unsafe.Add(at, len(s))) == 0
}
