// SPDX-License-Identifier: Apache-2.0
// Describes how a worker ended. Every message about a worker's end contains this text, after "worker 1: process 2".
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "os/process.hpp"
#include "supervisor/member.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::supervisor {

// Buffer for the text. An error has 384 bytes of text.
using Words = char[240];

// Writes "process 12 ", or "" if the pid is 0: an external worker that did not attach.
using Name = char[32];
void name_process(pid_t pid, Name& out);

// `oom_kills`: number of processes of this memory cgroup that the out-of-memory killer has killed since the loader was
// created, -1: unknown.
void describe_end(const Member& m, const os::Ending& ending, const Settings& settings, std::int64_t oom_kills,
                  Words& out);

}  // namespace feedlane::supervisor
