// SPDX-License-Identifier: Apache-2.0
// Arenas of other processes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.hpp"
#include "feedlane/observe.h"

namespace feedlane::monitor {

// Reads arena `nth` of its owner, process `pid`. END: there is none. Statuses and figures: see feedlane_monitor_arena.
Status read_arena(std::int64_t pid, std::int32_t nth, feedlane_arena_stats& out,
                  std::vector<feedlane_arena_member>& members, Error& error);

}  // namespace feedlane::monitor
