// SPDX-License-Identifier: Apache-2.0
// A device whose streams are threads, for programs that load it.
#include "device.hpp"

using feedlane::test::ThreadDevice;

extern "C" {

ThreadDevice* device_create() { return new ThreadDevice; }
void device_destroy(ThreadDevice* device) { delete device; }
const feedlane_backend* device_backend(ThreadDevice* device) { return device->config().custom; }
std::uint64_t device_registrations(ThreadDevice* device) { return device->registered().size(); }
ThreadDevice::Stream* device_stream(ThreadDevice* device) { return &device->only_stream(); }
void stream_hold(ThreadDevice::Stream* stream) { stream->hold(); }
void stream_go_on(ThreadDevice::Stream* stream) {
  stream->go_on();
  stream->wait();
}
// What a trainer's framework does: it knows addresses only.
void stream_copy(ThreadDevice::Stream* stream, void* to, const void* from, std::uint64_t bytes) {
  stream->enqueue([=](bool) { std::memcpy(to, from, bytes); });
}
}
