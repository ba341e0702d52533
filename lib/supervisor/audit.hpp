// SPDX-License-Identifier: Apache-2.0
// Compares a worker's row and lane with what the trainer knows. The worker can write both. A worker whose entries
// cannot be true is ended at once, because its results may be lost already, and the trainer would wait for them until a
// deadline, or for ever without one.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "ring/lanes.hpp"
#include "supervisor/member.hpp"

namespace feedlane::supervisor {

// Checks worker `w`, which has attached. `marks` must be read before its lane, so that results which the marks count as
// answered are in the lane. If Ready was not received, they must also be read before its socket, because a worker sends
// Ready before its first mark. `oldest`: the first task that it has not answered, UINT64_MAX: none. E_CORRUPT: an entry
// cannot be true.
Status check_marks(std::uint32_t w, const Member& m, const TaskRing::Marks& marks, const ring::Lanes& lanes,
                   std::uint64_t oldest, Error& error);

}  // namespace feedlane::supervisor
