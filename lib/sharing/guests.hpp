// SPDX-License-Identifier: Apache-2.0
// Where a feeder listens, and the connections that have not asked for a place yet.
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
  // The poller must outlive this. Its events have the tags of sharing/tags.hpp.
  explicit Guests(os::Poller& poller) : poller_(poller) {}

  Status listen(const std::string& path, Error& error);
  // Nobody can connect any more, and those that have learn of it, even if a forked child has the descriptors.
  void shut_down();

  // Takes a connection, which may have asked already. AGAIN: there is none any more, or it was refused. E_OS: there are too few
  // descriptors for it, so it waits until `listen_again`.
  Status accept(Error& error);
  // When to call `listen_again`; never: it listens.
  [[nodiscard]] os::Deadline next_deadline() const {
    return listen_again_ns_ == 0 ? os::Deadline::never() : os::Deadline::at(listen_again_ns_);
  }
  [[nodiscard]] bool is_due(std::int64_t now_ns) const { return listen_again_ns_ != 0 && now_ns >= listen_again_ns_; }
  void listen_again();
  // What guest `number` asks for, and its socket, which is the caller's from here on. False: it has not asked yet, or the
  // connection makes no sense: drop the socket, if there is one.
  bool read(std::uint32_t number, Asking& asking, os::Fd& socket);

 private:
  // Beyond these the oldest guest's connection is closed.
  static constexpr std::uint32_t most = 16;

  os::Poller& poller_;
  os::Fd listener_;
  os::SocketFile file_;
  std::int64_t listen_again_ns_ = 0;  // there were too few descriptors; 0: it listens
  std::array<os::Fd, most> all_;
  std::uint32_t next_ = 0;
};

}  // namespace feedlane::sharing
