// SPDX-License-Identifier: Apache-2.0
// The host's side of a greeting: receivers of rings, and feeders. See also greeting/guests.hpp.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/socket.hpp"

namespace feedlane::greeting {

// Sends a guest the reason why it is not admitted. It may be gone.
void refuse(int socket, const Error& why);

// Called for a guest's message that it has attached. Makes `poller` report the end of the guest's process with `tag`,
// and sends the guest the answer: accepted, or the reason of the returned error. `process` becomes the pidfd.
//
// A guest in this process needs no observation and gets no answer, because its own thread might have to send it:
// `process` stays empty.
Status accept(int socket, os::Received& attached, os::Poller& poller, std::uint64_t tag, os::Fd& process, Error& error);

}  // namespace feedlane::greeting
