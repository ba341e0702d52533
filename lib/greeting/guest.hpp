// SPDX-License-Identifier: Apache-2.0
// The guest's side of a greeting: workers, senders of rings, and consumers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/socket.hpp"

namespace feedlane::greeting {

// What a guest expects of its host. Every welcome begins with these two numbers.
struct Expected {
  std::uint64_t magic;
  std::uint64_t layout_hash;
  std::size_t fds;
  const char* host;  // what error texts call the host
};

// Receives the host's welcome, after sending `request` unless it is empty. A refusal becomes `error`. TIMEOUT.
// E_PEER_DEAD: the other end is closed, or the process of the pidfd `peer` (-1: none) has ended. E_ABI: another layout.
// E_CORRUPT.
Status receive_welcome(int socket, int peer, const Expected& expected, std::span<const std::byte> request,
                       os::Deadline deadline, std::span<std::byte> welcome, os::Received& received, Error& error);

// Sends the message that this process has attached, with a pidfd of this process if the host wants one.
Status send_attached(int socket, std::span<const std::byte> message, bool wants_pidfd, Error& error);
// Also waits for the host's answer, if the host is another process. `peer` is the host's pidfd. A refusal becomes
// `error`. After an error the host may still accept, so the caller tells it that it leaves.
Status attach(int socket, int peer, const Expected& expected, std::span<const std::byte> message, bool wants_pidfd,
              os::Deadline deadline, Error& error);

}  // namespace feedlane::greeting
