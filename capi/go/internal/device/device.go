// SPDX-License-Identifier: Apache-2.0

// Package device has a device whose streams are threads, for tests: the library tests/pinned/libthread-device.so.
package device

/*
#cgo pkg-config: feedlane
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <feedlane.h>
#include <stdint.h>
#include <stdlib.h>

static void *call(void *f, void *argument) { return ((void *(*)(void *))f)(argument); }
static uint64_t count(void *f, void *argument) { return ((uint64_t(*)(void *))f)(argument); }
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// A Device has memory of this process and one stream.
type Device struct{ library, device, stream unsafe.Pointer }

// Open loads the library at path.
func Open(path string) (*Device, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	d := &Device{library: C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)}
	if d.library == nil {
		return nil, fmt.Errorf("cannot load %s: %s", path, C.GoString(C.dlerror()))
	}
	d.device = d.call("device_create", nil)
	d.stream = d.call("device_stream", d.device)
	return d, nil
}

func (d *Device) function(name string) unsafe.Pointer {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	f := C.dlsym(d.library, c)
	if f == nil {
		panic("the library has no " + name)
	}
	return f
}

func (d *Device) call(name string, argument unsafe.Pointer) unsafe.Pointer {
	return C.call(d.function(name), argument)
}

// Backend returns the device's feedlane_backend.
func (d *Device) Backend() unsafe.Pointer { return d.call("device_backend", d.device) }

// Registrations returns the number of registered ranges.
func (d *Device) Registrations() int {
	return int(C.count(d.function("device_registrations"), d.device))
}

// Stream returns the stream as a number.
func (d *Device) Stream() uintptr { return uintptr(d.stream) }

// Hold stops the stream.
func (d *Device) Hold() { d.call("stream_hold", d.stream) }

// Continue continues the stream, and waits until it has completed its work.
func (d *Device) Continue() { d.call("stream_go_on", d.stream) }

// Close frees the device.
func (d *Device) Close() { d.call("device_destroy", d.device) }
