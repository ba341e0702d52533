// SPDX-License-Identifier: Apache-2.0
// Compares what a worker says in its row and lane with what the trainer knows. All of it is the worker's to write, so a worker
// whose words cannot be true is ended at once: what it has made may be lost already, and would be waited for until a deadline,
// or for ever without one.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "ring/lanes.hpp"
#include "supervisor/member.hpp"

namespace feedlane::supervisor {

// Of worker `w`, which has attached. `marks` were read before its lane: results that they call answered are there; and before
// its socket, if Ready has not come: it is sent before the first mark. `oldest`:
// the first task that it has not answered, UINT64_MAX: none. E_CORRUPT says what cannot be true.
Status check_marks(std::uint32_t w, const Member& m, const TaskRing::Marks& marks, const ring::Lanes& lanes,
                   std::uint64_t oldest, Error& error);

}  // namespace feedlane::supervisor
