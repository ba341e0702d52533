// SPDX-License-Identifier: Apache-2.0
// A full fence that one process executes on behalf of others: membarrier(2), Linux 4.16. Every processor that runs a
// thread of a registered process executes a fence; a thread that isn't running executed one when it was descheduled.
// The call takes a microsecond or two, and saves a fence per message.
#pragma once

namespace feedlane::os {

// Registers this process: it can issue barriers, and barriers of other processes apply to it. A forked child must
// register again. The first call takes some milliseconds in a process with several threads. False if the system doesn't
// offer or allow barriers.
bool join_barriers() noexcept;

// Issues a barrier for every registered process of the machine, this one included. False if the system refuses it.
bool pass_barrier() noexcept;

}  // namespace feedlane::os
