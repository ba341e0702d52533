// SPDX-License-Identifier: Apache-2.0
// What all greetings have in common. A greeting is the exchange of messages over a socket by which one process, the
// guest, attaches to memory of another, the host. Each message is one datagram that begins with its magic number:
//
//   guest -> host: a request, if the guest has connected to a path
//   host -> guest: the welcome, with descriptors; or Refused
//   guest -> host: that it has attached, with a pidfd of its process if the host wants one
//   host -> guest: accepted, or Refused
//
// The messages of each greeting are in greeting/worker.hpp (trainer and worker), greeting/ring.hpp (receiver and
// sender) and greeting/share.hpp (feeder and consumer). A trainer starts or is offered its workers, so it has neither
// requests nor answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "os/socket.hpp"
#include "shm/layout.hpp"

namespace feedlane::greeting {

constexpr std::uint64_t accepted_magic = 0x4445545045434341;  // "ACCEPTED"
constexpr std::uint64_t refused_magic = 0x3144455355464552;   // "REFUSED1"

struct Word {  // accepted, and messages without contents
  std::uint64_t magic;
};
static_assert(sizeof(Word) == 8);

struct Refused {
  std::uint64_t magic;
  std::int32_t status;
  std::int32_t os_errno;
  std::int64_t found;
  std::int64_t needed;
  char argument[64];
  char text[shm::text_bytes];
};
static_assert(sizeof(Refused) == 480);

template <class Message>
std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}
template <class Message>
std::span<std::byte> bytes_of(Message& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}
template <class Message>
Status send(int socket, const Message& message, std::span<const int> fds, Error& error) {
  return os::send_message(socket, bytes_of(message), fds, error);
}
// Sends a message without contents. The other end may be gone.
inline void say(int socket, std::uint64_t magic) {
  Error ignored;
  (void)send(socket, Word{magic}, {}, ignored);
}

// Copy an error into a message, and back. E_CORRUPT: the message contains no error.
void write_refused(const Error& error, Refused& out);
Status read_refused(const Refused& refused, Error& error);

}  // namespace feedlane::greeting
