// SPDX-License-Identifier: Apache-2.0
// A fence that one process passes for others as well: membarrier(2), Linux 4.16. Each processor that runs a thread of a
// process that has joined orders what came before in its program and what comes after, as by a fence of its own; threads
// that don't run have passed one when they were taken off. A microsecond or two, against a fence for every message.
#pragma once

namespace feedlane::os {

// This process can pass barriers, and barriers that others pass work for it from here on. Again after a fork. Takes some
// milliseconds the first time in a process with several threads. False where the system doesn't offer or allow it.
bool join_barriers() noexcept;

// A barrier for every process of the machine that has joined, this one included. False if the system refuses it after all.
bool pass_barrier() noexcept;

}  // namespace feedlane::os
