// SPDX-License-Identifier: Apache-2.0
// Acceptance and refusal of guests.
#include "greeting/host.hpp"

#include <unistd.h>

#include "greeting/messages.hpp"

namespace feedlane::greeting {

void write_refused(const Error& error, Refused& out) {
  out.magic = refused_magic;
  out.status = error.code;
  out.os_errno = error.os_errno;
  out.found = error.found;
  out.needed = error.needed;
  copy_text(out.argument, sizeof out.argument, error.argument);
  copy_text(out.text, sizeof out.text, error.text);
}

Status read_refused(const Refused& refused, Error& error) {
  if (refused.status >= 0)
    return error.refuse(FEEDLANE_E_CORRUPT, "refused.status", refused.status, -1,
                        "the refusal message has status {}, which is not an error", refused.status);
  const std::string argument(first(sizeof refused.argument, refused.argument));
  (void)error.refuse(refused.status, argument.c_str(), refused.found, refused.needed, "{}",
                     first(sizeof refused.text, refused.text));
  error.os_errno = refused.os_errno;
  return error.code;
}

void refuse(int socket, const Error& why) {
  Refused refused{};
  write_refused(why, refused);
  Error ignored;
  (void)send(socket, refused, {}, ignored);
}

Status accept(int socket, os::Received& attached, os::Poller& poller, std::uint64_t tag, os::Fd& process,
              Error& error) {
  if (attached.pid == ::getpid()) return FEEDLANE_OK;
  Status s = os::open_sender(attached, process, error);
  if (s == FEEDLANE_OK) s = poller.add(process.get(), tag, error);
  if (s == FEEDLANE_OK) s = send(socket, Word{accepted_magic}, {}, error);
  if (s != FEEDLANE_OK) refuse(socket, error);
  return s;
}

}  // namespace feedlane::greeting
