// SPDX-License-Identifier: Apache-2.0
// Reading a host's welcome and its answer.
#include "greeting/guest.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "greeting/messages.hpp"
#include "os/process.hpp"

namespace feedlane::greeting {
namespace {

// Whether the message is a refusal, which becomes `error`.
bool is_refusal(std::span<const std::byte> message, std::size_t bytes, Error& error) {
  Refused refused;
  if (bytes != sizeof refused || message.size() < sizeof refused) return false;
  std::memcpy(&refused, message.data(), sizeof refused);
  if (refused.magic != refused_magic) return false;
  (void)read_refused(refused, error);
  return true;
}

}  // namespace

Status receive_welcome(int socket, int peer, const Expected& expected, std::span<const std::byte> request,
                       os::Deadline deadline, std::span<std::byte> welcome, os::Received& received, Error& error) {
  Status s = FEEDLANE_OK;
  if (!request.empty()) s = os::send_message(socket, request, {}, error);
  std::array<std::byte, sizeof(Refused)> message{};
  if (s == FEEDLANE_OK) s = os::await_message(socket, message, deadline, received, error, peer);
  if (s != FEEDLANE_OK) return s;
  if (is_refusal(message, received.bytes, error)) return error.code;
  std::uint64_t start[2];
  std::memcpy(start, message.data(), sizeof start);
  if (received.bytes != welcome.size() || received.truncated || start[0] != expected.magic)
    return error.refuse(
        FEEDLANE_E_CORRUPT, "fd", received.bytes, welcome.size(),
        "the first message on the socket ({} bytes) is not the welcome message ({} bytes) of a Feedlane {}",
        received.bytes, welcome.size(), expected.host);
  if (start[1] != expected.layout_hash)
    return error.refuse(FEEDLANE_E_ABI, "layout_hash", start[1], expected.layout_hash,
                        "the {} uses a Feedlane version with a different shared-memory layout", expected.host);
  if (received.fd_count != expected.fds)
    return error.refuse(FEEDLANE_E_CORRUPT, "fd", received.fd_count, expected.fds,
                        "the {}'s welcome message has {} file descriptors instead of {}", expected.host,
                        received.fd_count, expected.fds);
  std::copy_n(message.data(), welcome.size(), welcome.data());
  return s;
}

Status send_attached(int socket, std::span<const std::byte> message, bool wants_pidfd, Error& error) {
  os::Fd self;
  if (wants_pidfd)
    if (const Status s = os::open_pidfd(::getpid(), self, error); s != FEEDLANE_OK) return s;
  const int fd = self.get();
  return os::send_message(socket, message, std::span(&fd, self ? 1u : 0u), error);
}

Status attach(int socket, int peer, const Expected& expected, std::span<const std::byte> message, bool wants_pidfd,
              os::Deadline deadline, Error& error) {
  const bool is_own = os::is_own_process_there(socket);
  Status s = send_attached(socket, message, wants_pidfd && !is_own, error);
  const bool is_closed = s == FEEDLANE_E_PEER_DEAD;  // the host may have sent the reason
  if (!is_closed && (s != FEEDLANE_OK || is_own)) return s;
  std::array<std::byte, sizeof(Refused)> answer{};
  os::Received received;
  Error why;
  s = os::await_message(socket, answer, deadline, received, why, peer);
  if (s != FEEDLANE_OK) {
    if (is_closed) return error.code;
    error = std::move(why);
    return s;
  }
  if (is_refusal(answer, received.bytes, error)) return error.code;
  Word word;
  std::memcpy(&word, answer.data(), sizeof word);
  if (received.bytes == sizeof word && word.magic == accepted_magic) return s;
  return error.refuse(FEEDLANE_E_CORRUPT, "fd", received.bytes, sizeof word,
                      "the second message on the socket ({} bytes) is not the answer ({} bytes) of a Feedlane {}",
                      received.bytes, sizeof word, expected.host);
}

}  // namespace feedlane::greeting
