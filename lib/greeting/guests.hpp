// SPDX-License-Identifier: Apache-2.0
// A host's listening socket, and its guests: connections that it has not admitted yet.
//
// A guest is admitted when it asks for it. If the host lacks descriptors for that, nothing is lost: connections stay in
// the backlog and requests in their sockets, nothing here wakes the host for pause_ns, and then it tries again.
//
// Used by the host's thread only.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/socket.hpp"

namespace feedlane::greeting {

class Guests {
 public:
  // For this long, a host that would otherwise end waits for the request of a new guest.
  static constexpr std::int64_t patience_ns = 100'000'000;
  // Shorter than patience_ns, so that a host that lacks descriptors finds out again before it ends.
  static constexpr std::int64_t pause_ns = 50'000'000;

  // Events of `poller`, which must outlive the guests, have tags for which `owns` is true. Requests have
  // `request_bytes`, and begin with `request_magic`.
  Guests(os::Poller& poller, std::uint64_t request_magic, std::size_t request_bytes)
      : poller_(poller), request_magic_(request_magic), request_bytes_(request_bytes) {}

  Status listen(const std::string& path, Error& error);
  // Refuses new connections and shuts existing ones down, even if a forked child holds the descriptors.
  void shut_down();

  [[nodiscard]] static bool owns(std::uint64_t tag) { return tag >= first_tag; }
  // Handles an event. OK: `guest` asks to be admitted, and `request` is its message. Then `take` it, or `pause`. AGAIN:
  // there is nothing to do. E_OS: too few descriptors, so the guests were paused.
  Status handle(std::uint64_t tag, std::span<std::byte> request, std::uint32_t& guest, Error& error);
  // Removes a guest, whose socket the caller gets.
  os::Fd take(std::uint32_t guest);
  void pause();
  // Whether a guest has connected within patience_ns and has not asked yet.
  [[nodiscard]] bool are_expected() const;

  // Whether an error says that this process or the system has no more descriptors.
  [[nodiscard]] static bool lacks_descriptors(const Error& error) {
    return error.os_errno == EMFILE || error.os_errno == ENFILE;
  }

 private:
  // If there are more, the oldest one's connection is closed.
  static constexpr std::uint32_t most = 64;
  static constexpr std::uint64_t listener_tag = UINT64_MAX;
  static constexpr std::uint64_t timer_tag = UINT64_MAX - 1;
  static constexpr std::uint64_t first_tag = timer_tag - most;  // of guest 0

  struct Guest {
    os::Fd socket;
    os::Deadline expected = os::Deadline::never();  // until then `are_expected`
  };

  Status accept(std::uint32_t& guest, Error& error);
  void resume();
  template <class F>
  void for_each(F&& f);

  os::Poller& poller_;
  std::uint64_t request_magic_;
  std::size_t request_bytes_;
  os::Fd listener_;
  os::SocketFile file_;
  os::Fd timer_;  // ends a pause
  std::array<Guest, most> all_;
  std::uint32_t next_ = 0;  // the place of the oldest
};

}  // namespace feedlane::greeting
