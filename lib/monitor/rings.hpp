// SPDX-License-Identifier: Apache-2.0
// Reads standalone rings whose receivers are in another process.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "feedlane/observe.h"

namespace feedlane::monitor {

// END: the process has at most `nth` rings.
Status read_ring(std::int64_t pid, std::int32_t nth, feedlane_ring_info& out, Error& error);

}  // namespace feedlane::monitor
