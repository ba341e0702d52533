// SPDX-License-Identifier: Apache-2.0
// Descriptors whose last close takes half a minute.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "process.hpp"

namespace feedlane::test {

// Data on the way that nobody reads, and SO_LINGER: who closes it last waits for half a minute.
inline std::vector<int> lingering_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return {};
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  const int server = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  (void)::close(listener);
  const linger half_a_minute{1, 30};
  (void)::setsockopt(client, SOL_SOCKET, SO_LINGER, &half_a_minute, sizeof half_a_minute);
  const std::vector<char> bytes(1 << 20);
  while (::send(client, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  return {client, server};
}

// One by itself, or one in the queue of a socket, which then is what there is to send.
class Lingering {
 public:
  explicit Lingering(bool is_nested) : pair_(lingering_pair()) {
    if (pair_.size() != 2) pair_ = {-1, -1};
    if (!is_nested || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, hull_) != 0) return;
    (void)send_descriptors(hull_[0], "in", {pair_[0]});
  }
  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;
  // The other end first: it has data that nobody has read, so that the connection is reset and nothing waits.
  ~Lingering() {
    for (const int fd : {pair_[1], pair_[0], hull_[0], hull_[1]})
      if (fd >= 0) (void)::close(fd);
  }
  [[nodiscard]] int fd() const { return hull_[1] >= 0 ? hull_[1] : pair_[0]; }

 private:
  std::vector<int> pair_;
  int hull_[2] = {-1, -1};
};

}  // namespace feedlane::test
