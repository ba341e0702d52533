// SPDX-License-Identifier: Apache-2.0
// A listening socket: connections until they ask to be admitted.
#include "greeting/guests.hpp"

#include <cstring>
#include <utility>

#include "greeting/host.hpp"
#include "os/event.hpp"

namespace feedlane::greeting {

Status Guests::listen(const std::string& path, Error& error) {
  Status s = os::create_timer(timer_, error);
  if (s == FEEDLANE_OK) s = poller_.add(timer_.get(), timer_tag, error);
  if (s == FEEDLANE_OK) s = os::listen_at(path, listener_, file_, error);
  return s == FEEDLANE_OK ? poller_.add(listener_.get(), listener_tag, error) : s;
}

void Guests::shut_down() {
  if (listener_) os::unlink_socket(file_);
  os::shut_down_listener(listener_.get());
  for (const Guest& guest : all_) os::shut_down(guest.socket.get());
}

Status Guests::handle(std::uint64_t tag, std::span<std::byte> request, std::uint32_t& guest, Error& error) {
  if (tag == timer_tag) {
    resume();
    return FEEDLANE_AGAIN;
  }
  guest = static_cast<std::uint32_t>(tag - first_tag);
  if (tag == listener_tag)
    if (const Status s = accept(guest, error); s != FEEDLANE_OK) return s;
  const int socket = all_[guest].socket.get();
  std::size_t bytes = 0;
  // AGAIN: no request yet, or the event is of a guest that has left.
  if (socket < 0 || os::peek_message(socket, request, bytes) == FEEDLANE_AGAIN) return FEEDLANE_AGAIN;
  if (bytes == request_bytes_ && std::memcmp(request.data(), &request_magic_, sizeof request_magic_) == 0)
    return FEEDLANE_OK;
  (void)take(guest);  // it has closed its end, or has sent something else
  return FEEDLANE_AGAIN;
}

// The new guest takes the place of the oldest one.
Status Guests::accept(std::uint32_t& guest, Error& error) {
  os::Fd socket;
  if (os::accept_same_user(listener_.get(), socket, error) != FEEDLANE_OK) {
    if (!lacks_descriptors(error) && error.os_errno != ENOMEM) return FEEDLANE_AGAIN;
    pause();
    return error.code;
  }
  guest = std::exchange(next_, (next_ + 1) % most);
  if (all_[guest].socket) {
    Error why;
    (void)why.refuse(FEEDLANE_E_LIMIT, "path", most + 1, most,
                     "disconnected, because more than {} connections had sent no request: connect again", most);
    refuse(take(guest).get(), why);
  }
  Error ignored;
  if (poller_.add(socket.get(), first_tag + guest, ignored) != FEEDLANE_OK) return FEEDLANE_AGAIN;
  all_[guest] = {std::move(socket), os::Deadline::after(patience_ns)};
  return FEEDLANE_OK;
}

os::Fd Guests::take(std::uint32_t guest) {
  os::Fd socket = std::move(all_[guest].socket);
  poller_.remove(socket.get());
  os::discard_messages(socket.get());
  return socket;
}

bool Guests::are_expected() const {
  for (const Guest& guest : all_)
    if (guest.socket && guest.expected.remaining_ns() != 0) return true;
  return false;
}

template <class F>
void Guests::for_each(F&& f) {
  f(listener_.get(), listener_tag);
  for (std::uint32_t i = 0; i < most; i++)
    if (all_[i].socket) f(all_[i].socket.get(), first_tag + i);
}

// The listener and the requests stay readable, so they would wake the host again at once.
void Guests::pause() {
  for_each([this](int fd, std::uint64_t) { poller_.remove(fd); });
  Error ignored;
  (void)os::set_timer(timer_.get(), os::Deadline::after(pause_ns), ignored);
}

void Guests::resume() {
  Error ignored;
  (void)os::set_timer(timer_.get(), os::Deadline::never(), ignored);
  bool is_complete = true;
  for_each(
      [&](int fd, std::uint64_t tag) { is_complete = poller_.add(fd, tag, ignored) == FEEDLANE_OK && is_complete; });
  if (!is_complete) pause();
}

}  // namespace feedlane::greeting
