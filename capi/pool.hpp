// SPDX-License-Identifier: Apache-2.0
// Pool handles, for the files of the C interface that use them.
#pragma once

#include <memory>

#include "handle.hpp"
#include "pinned/pool.hpp"

struct feedlane_pool : feedlane::capi::Handle {
  std::unique_ptr<feedlane::pinned::Pool> pool;
};
