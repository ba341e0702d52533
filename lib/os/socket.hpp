// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

constexpr std::size_t max_passed_fds = 8;

// What came with one message. Descriptors beyond those expected are closed on receipt.
struct Received {
  std::size_t bytes = 0;
  bool truncated = false;
  Fd fds[max_passed_fds];
  std::size_t fd_count = 0;
  pid_t pid =
      0;  // the kernel's word for who sent it, 0 if not told (0 too for a sender in a pid namespace beside ours)
};

// A connected pair that keeps message boundaries and carries descriptors. `mine` reports senders' credentials and never
// blocks; `theirs` blocks as its holder likes.
Status create_socket_pair(Fd& mine, Fd& theirs, Error& error);

// One message with `fds`. E_PEER_DEAD when the other end is closed.
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, Error& error);

// One message, never waiting: 0, AGAIN when there is none, END when the other end is closed.
Status receive_message(int socket, std::span<std::byte> buffer, Received& out, Error& error);

}  // namespace feedlane::os
