// SPDX-License-Identifier: Apache-2.0
// The feeder's listening socket: connections until they ask for a place.
#include "sharing/guests.hpp"

#include <cerrno>
#include <span>
#include <utility>

#include "sharing/tags.hpp"

namespace feedlane::sharing {
namespace {

// How long a connection waits in the listen backlog if there are too few descriptors for it.
constexpr std::int64_t listen_again_after_ns = 100'000'000;

}  // namespace

Status Guests::listen(const std::string& path, Error& error) {
  const Status s = os::listen_at(path, listener_, file_, error);
  return s == FEEDLANE_OK ? poller_.add(listener_.get(), EventTag::listener, error) : s;
}

void Guests::shut_down() {
  if (listener_) os::unlink_socket(file_);
  os::shut_down_listener(listener_.get());
  for (const os::Fd& guest : all_) os::shut_down(guest.get());
}

Status Guests::accept(Error& error) {
  os::Fd socket;
  if (os::accept_same_user(listener_.get(), socket, error) != FEEDLANE_OK) {
    if (error.os_errno != EMFILE && error.os_errno != ENFILE && error.os_errno != ENOMEM) return FEEDLANE_AGAIN;
    // The connection stays in the backlog and the listener readable, so the listener is removed and added again later.
    poller_.remove(listener_.get());
    listen_again_ns_ = os::now_ns() + listen_again_after_ns;
    return error.code;
  }
  const std::uint32_t number = std::exchange(next_, (next_ + 1) % most);
  os::Fd& guest = all_[number];
  if (guest) {
    Error why;
    (void)why.refuse(FEEDLANE_E_LIMIT, "path", most + 1, most,
                     "more than {} connections to the feeder have not said what they want: join again", most);
    poller_.remove(guest.get());
    refuse(guest, why);
    os::discard_messages(guest.get());
  }
  guest = std::move(socket);
  Error ignored;
  if (poller_.add(guest.get(), EventTag::make(EventTag::guest, number), ignored) == FEEDLANE_OK) return FEEDLANE_OK;
  guest.reset();
  return FEEDLANE_AGAIN;
}

void Guests::listen_again() {
  Error ignored;
  const bool listens = poller_.add(listener_.get(), EventTag::listener, ignored) == FEEDLANE_OK;
  listen_again_ns_ = listens ? 0 : os::now_ns() + listen_again_after_ns;
}

bool Guests::read(std::uint32_t number, Asking& asking, os::Fd& socket) {
  os::Fd& guest = all_[number];
  os::Received received;
  Error ignored;
  const Status s = os::receive_message(guest.get(), std::as_writable_bytes(std::span(&asking, 1)), received, ignored);
  if (s == FEEDLANE_AGAIN) return false;
  poller_.remove(guest.get());
  socket = std::move(guest);
  return s == FEEDLANE_OK && received.bytes == sizeof asking && asking.magic == asking_magic;
}

}  // namespace feedlane::sharing
