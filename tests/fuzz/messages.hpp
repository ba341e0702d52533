// SPDX-License-Identifier: Apache-2.0
// Messages with descriptors, as the ends of a socket may send them: whole, changed, cut, with other descriptors.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "input.hpp"
#include "os/event.hpp"
#include "os/memfd.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"

namespace feedlane::fuzz {

// Descriptors to pass: those that are wanted, but for what the input puts in their place.
class Descriptors {
 public:
  void want(int fd) { fds_.push_back(fd); }
  std::span<const int> changed(Input& in) {
    if (in.pick(4) != 3) return fds_;
    Error error;
    for (std::uint32_t i = in.pick(3); i > 0; i--) {
      const int others[] = {fds_.empty() ? 0 : fds_[in.pick(static_cast<std::uint32_t>(fds_.size()))],
                            make(error, [](os::Fd& fd, Error& e) { return os::create_event(fd, e); }),
                            make(error, [](os::Fd& fd, Error& e) { return os::create_memfd("x", 4096, fd, e); }),
                            make(error, [](os::Fd& fd, Error& e) { return os::open_pidfd(::getpid(), fd, e); }),
                            make(error, [](os::Fd& fd, Error&) {
                              fd.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
                              return fd ? FEEDLANE_OK : FEEDLANE_E_OS;
                            })};
      const int other = others[in.pick(5)];
      const std::size_t at = in.pick(os::max_passed_fds);
      if (at < fds_.size()) fds_[at] = other;
      else if (fds_.size() < os::max_passed_fds) fds_.push_back(other);
    }
    if (in.pick(4) == 3) fds_.resize(in.pick(static_cast<std::uint32_t>(fds_.size()) + 1));
    return fds_;
  }

 private:
  template <class Make>
  int make(Error& error, Make&& f) {
    os::Fd fd;
    PROMISE(f(fd, error) == FEEDLANE_OK);
    owned_.push_back(std::move(fd));
    return owned_.back().get();
  }
  std::vector<int> fds_;
  std::vector<os::Fd> owned_;
};

// One message, whole, changed, cut or longer.
template <class T>
void send(Input& in, int socket, T message, Descriptors& fds) {
  Error error;
  edit(in, &message, sizeof message);
  std::array<std::byte, sizeof message + 64> bytes{};
  std::memcpy(bytes.data(), &message, sizeof message);
  const std::size_t length = in.pick(8) == 7 ? 1 + in.u16() % (sizeof bytes - 1) : sizeof message;
  const auto passed = fds.changed(in);
  (void)os::send_message(socket, std::span(bytes).first(length), passed, error);
}

inline void make_pair(os::Fd& mine, os::Fd& theirs) {
  Error error;
  PROMISE(os::create_socket_pair(mine, theirs, error) == FEEDLANE_OK);
}

inline os::Fd make_event() {
  os::Fd event;
  Error error;
  PROMISE(os::create_event(event, error) == FEEDLANE_OK);
  return event;
}

}  // namespace feedlane::fuzz
