// SPDX-License-Identifier: Apache-2.0
// Sockets as they were before Linux 6.5 and 6.16, which know no pidfds of senders and refuse no descriptors, for this process
// and its children. To be included once a program: it stands in for the system's setsockopt, the library's too.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace feedlane::test {

inline int old_kernels = 0;
class OldKernel {
 public:
  explicit OldKernel(bool is_old = true) : is_old_(is_old) { old_kernels += is_old ? 1 : 0; }
  OldKernel(const OldKernel&) = delete;
  OldKernel& operator=(const OldKernel&) = delete;
  ~OldKernel() { old_kernels -= is_old_ ? 1 : 0; }

 private:
  const bool is_old_;
};

constexpr int so_passpidfd = 76;
constexpr int so_passrights = 83;

// Whether this kernel does what the others are spared.
inline bool can_refuse_descriptors() {
  int pair[2] = {-1, -1};
  const int off = 0;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const bool can = ::setsockopt(pair[0], SOL_SOCKET, so_passrights, &off, sizeof off) == 0;
  (void)::close(pair[0]);
  (void)::close(pair[1]);
  return can;
}
inline bool can_name_senders() {
  int pair[2] = {-1, -1};
  const int on = 1;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const bool can = ::setsockopt(pair[0], SOL_SOCKET, so_passpidfd, &on, sizeof on) == 0;
  (void)::close(pair[0]);
  (void)::close(pair[1]);
  return can;
}

}  // namespace feedlane::test

extern "C" int setsockopt(int fd, int level, int name, const void* value, socklen_t size) noexcept {
  namespace test = feedlane::test;
  if (test::old_kernels != 0 && level == SOL_SOCKET && (name == test::so_passpidfd || name == test::so_passrights)) {
    errno = ENOPROTOOPT;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, name, value, size));
}
