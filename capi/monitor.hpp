// SPDX-License-Identifier: Apache-2.0
// Monitor handles, for the files of the C interface that use them.
#pragma once

#include <memory>

#include "handle.hpp"
#include "loader.hpp"
#include "monitor/monitor.hpp"

struct feedlane_monitor : feedlane::capi::Handle {
  static const char* noun() { return "monitor"; }

  std::unique_ptr<feedlane::monitor::Monitor> remote;  // for a loader of another process
  feedlane_loader* local = nullptr;                    // or for a loader of this process, with one count of its life

  ~feedlane_monitor() {
    if (local != nullptr) local->let_go();
  }
  void wake() {}
};

namespace feedlane::capi {

// The memory that `m` reads. E_STATE for a consumer, which has no such memory.
inline Status find_segments(const feedlane_monitor* m, const shm::Segments*& out, Error& error) {
  if (m->local != nullptr)
    if (const Status s = check_loader(m->local, error); s != FEEDLANE_OK) return s;
  out = m->local != nullptr ? &m->local->loader->memory().segments : &m->remote->segments();
  return FEEDLANE_OK;
}

// `read(segments, value)` fills a struct of type T, which is copied to the caller's struct.
template <class T, class F>
int32_t get(const feedlane_monitor* m, T* out, F&& read) {
  return call_any(m, "m", nullptr, [&](Error& error) {
    Status s = check_output(out, "out", error);
    const shm::Segments* segments = nullptr;
    T value{};
    if (s == FEEDLANE_OK) s = find_segments(m, segments, error);
    if (s == FEEDLANE_OK) s = read(*segments, value);
    if (s == FEEDLANE_OK) write_versioned(out, value);
    return s;
  });
}

}  // namespace feedlane::capi
