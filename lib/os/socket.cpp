// SPDX-License-Identifier: Apache-2.0
#include "os/socket.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

namespace feedlane::os {

Status create_socket_pair(Fd& mine, Fd& theirs, Error& error) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return error.os(errno, "socketpair");
  mine.reset(pair[0]);
  theirs.reset(pair[1]);
  const int on = 1;
  if (::setsockopt(mine.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return error.os(errno, "SO_PASSCRED");
  return FEEDLANE_OK;
}

Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, Error& error) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg doesn't write through it
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_passed_fds)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(bytes.size())) return FEEDLANE_OK;
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
    return error.fail(FEEDLANE_E_PEER_DEAD, "the other end of the socket is closed");
  return error.os(sent < 0 ? errno : EMSGSIZE, "sendmsg of %zu bytes", bytes.size());
}

namespace {

void take_control(msghdr& message, Received& out) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    const std::size_t bytes = header->cmsg_len - CMSG_LEN(0);
    if (header->cmsg_type == SCM_CREDENTIALS && bytes == sizeof(ucred)) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(header), sizeof who);
      out.pid = who.pid;
    } else if (header->cmsg_type == SCM_RIGHTS) {
      for (std::size_t i = 0; i < bytes / sizeof(int); i++) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
        Fd owned(fd);
        if (out.fd_count < max_passed_fds) out.fds[out.fd_count++] = std::move(owned);
      }
    }
  }
}

}  // namespace

Status receive_message(int socket, std::span<std::byte> buffer, Received& out, Error& error) {
  out = Received{};
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_passed_fds) + CMSG_SPACE(sizeof(ucred))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return FEEDLANE_AGAIN;
    if (errno == ECONNRESET) return FEEDLANE_END;
    return error.os(errno, "recvmsg");
  }
  take_control(message, out);
  // A message of no bytes and the end look alike on a SOCK_SEQPACKET socket; nobody here sends empty ones.
  if (got == 0) return FEEDLANE_END;
  out.bytes = static_cast<std::size_t>(got);
  out.truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return FEEDLANE_OK;
}

}  // namespace feedlane::os
