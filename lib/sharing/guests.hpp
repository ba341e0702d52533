// SPDX-License-Identifier: Apache-2.0
// A feeder's listening socket, and its guests: connections that have not asked for a place yet.
//
// Used by the feeder's thread only.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/socket.hpp"
#include "sharing/greeting.hpp"

namespace feedlane::sharing {

class Guests {
 public:
  // The poller must outlive the guests. Its events have the tags of sharing/tags.hpp.
  explicit Guests(os::Poller& poller) : poller_(poller) {}

  Status listen(const std::string& path, Error& error);
  // Refuses new connections and shuts existing ones down, even if a forked child holds the descriptors.
  void shut_down();

  // Accepts a connection, which may have sent its request already. AGAIN: there is none, or it was refused. E_OS: there
  // are too few descriptors, so the connection waits until `listen_again`.
  Status accept(Error& error);
  // When to call `listen_again`; never: the socket is listening.
  [[nodiscard]] os::Deadline next_deadline() const {
    return listen_again_ns_ == 0 ? os::Deadline::never() : os::Deadline::at(listen_again_ns_);
  }
  [[nodiscard]] bool is_due(std::int64_t now_ns) const { return listen_again_ns_ != 0 && now_ns >= listen_again_ns_; }
  void listen_again();
  // Reads the request of guest `number`, and passes its socket to the caller. False: there is no request yet, or it is
  // invalid; drop the socket, if there is one.
  bool read(std::uint32_t number, Asking& asking, os::Fd& socket);

 private:
  // If there are more guests, the oldest one's connection is closed.
  static constexpr std::uint32_t most = 16;

  os::Poller& poller_;
  os::Fd listener_;
  os::SocketFile file_;
  std::int64_t listen_again_ns_ = 0;  // when to listen again after a lack of descriptors; 0: it listens
  std::array<os::Fd, most> all_;
  std::uint32_t next_ = 0;
};

}  // namespace feedlane::sharing
