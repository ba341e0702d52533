// SPDX-License-Identifier: Apache-2.0
// Pool handles, for the files of the C interface that use them.
#pragma once

#include <memory>

#include "handle.hpp"
#include "pinned/pool.hpp"

struct feedlane_pool : feedlane::capi::Handle {
  static const char* noun() { return "pool"; }

  std::unique_ptr<feedlane::pinned::Pool> pool;
};

namespace feedlane::capi {

// A stream to enqueue on. FEEDLANE_NO_STREAM is none.
inline Status check_stream(const void* stream, Error& error) {
  if (stream != FEEDLANE_NO_STREAM) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "stream", -1, 0, "stream must not be FEEDLANE_NO_STREAM");
}

}  // namespace feedlane::capi
