// SPDX-License-Identifier: Apache-2.0
// Unix sockets between processes: messages with descriptors, identity of the peer, sockets bound to a path.
#include "os/socket.hpp"

#include "os/poller.hpp"
#include "os/process.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>

#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76  // Linux 6.5
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16
#endif
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

namespace feedlane::os {

namespace {

// Makes messages that arrive at this socket name their sender and carry no descriptors, as far as the kernel supports
// it.
Status prepare_to_listen(int socket, Error& error) {
  const int on = 1;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return error.os(errno, "SO_PASSCRED");
  (void)::setsockopt(socket, SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on);
  refuse_descriptors(socket);
  return FEEDLANE_OK;
}

}  // namespace

bool names_senders(int socket) {
  int on = 0;
  socklen_t size = sizeof on;
  return ::getsockopt(socket, SOL_SOCKET, SO_PASSPIDFD, &on, &size) == 0 && on != 0;
}

Status create_socket_pair(Fd& mine, Fd& theirs, Error& error) {
  int pair[2];
  const detail::StdioHeld held;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return error.os(errno, "socketpair");
  mine.reset(pair[0]);
  theirs.reset(pair[1]);
  if (!mine || !theirs) return error.os(errno, "socketpair");
  return prepare_to_listen(mine.get(), error);
}

Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, Error& error) {
  if (fds.size() > max_passed_fds) return error.os(EINVAL, "sendmsg of {} descriptors", fds.size());
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
  return error.os(sent < 0 ? errno : EMSGSIZE, "sendmsg of {} bytes", bytes.size());
}

namespace {

// Prevents a close from blocking: closing the last descriptor of a socket with SO_LINGER may wait for its network.
void forget_linger(int fd) {
  const linger off{};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof off);  // ENOTSOCK is fine
}

// False: this process has no free number for one of the descriptors.
bool take_control(msghdr& message, Received& out) {
  bool has_all = true;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    const std::size_t bytes = header->cmsg_len - CMSG_LEN(0);
    if (header->cmsg_type == SCM_CREDENTIALS && bytes == sizeof(ucred)) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(header), sizeof who);
      out.pid = who.pid;
    } else if (header->cmsg_type == SCM_PIDFD && bytes == sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
      if (fd >= 0) out.process.reset(fd);
      if (!out.process) out.process_errno = fd < 0 ? -fd : EMFILE;
    } else if (header->cmsg_type == SCM_RIGHTS) {
      for (std::size_t i = 0; i < bytes / sizeof(int); i++) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
        forget_linger(fd);  // first, because Fd closes a descriptor whose number is 0, 1 or 2
        Fd owned(fd);
        has_all = has_all && owned;
        if (out.fd_count < max_passed_fds) out.fds[out.fd_count++] = std::move(owned);
        else out.truncated = true;
      }
    }
  }
  return has_all;
}

}  // namespace

Status receive_message(int socket, std::span<std::byte> buffer, Received& out, Error& error) {
  out = Received{};
  iovec part{buffer.data(), buffer.size()};
  // Has room for all descriptors that a message can carry. The kernel would close the others, without forget_linger.
  alignas(cmsghdr) char
      control[CMSG_SPACE(sizeof(int) * kernel_passed_fds) + CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return FEEDLANE_AGAIN;
    if (errno == ECONNRESET) return FEEDLANE_END;
    return error.os(errno, "recvmsg");
  }
  const bool has_all = take_control(message, out);
  // On a SOCK_SEQPACKET socket an empty message looks like the end. No message of this library is empty.
  if (got == 0) return FEEDLANE_END;
  // The buffer is large enough, so descriptors are missing only if this process can't open more. The message is useless
  // without them.
  if (!has_all || ((message.msg_flags & MSG_CTRUNC) != 0 && out.fd_count < max_passed_fds)) {
    out = Received{};
    return error.os(EMFILE, "receiving the file descriptors of a message");
  }
  out.bytes = static_cast<std::size_t>(got);
  out.truncated = out.truncated || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return FEEDLANE_OK;
}

Status peek_message(int socket, std::span<std::byte> out, std::size_t& bytes) {
  ssize_t got = 0;
  do got = ::recv(socket, out.data(), out.size(), MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
  while (got < 0 && errno == EINTR);
  bytes = got > 0 ? static_cast<std::size_t>(got) : 0;
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? FEEDLANE_AGAIN : FEEDLANE_OK;
}

namespace {

// The pid of the peer; 0 if it is not in this PID namespace.
pid_t peer_of(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 ? who.pid : 0;
}

}  // namespace

Status open_peer(int socket, Fd& process, Error& error) {
  int fd = -1;
  socklen_t size = sizeof fd;
  Status s = FEEDLANE_OK;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
    process.reset(fd);
    if (!process) s = error.os(errno, "opening a pidfd of the process at the other end of the socket");
  } else if (const pid_t pid = peer_of(socket); pid > 0) {
    s = open_pidfd(pid, process, error);  // the pid may have been reused by now
  } else {
    process.reset();
  }
  const bool is_dead = s == FEEDLANE_OK ? process && has_ended(process.get()) : error.os_errno == ESRCH;
  return is_dead ? error.fail(FEEDLANE_E_PEER_DEAD, "the process at the other end of the socket has ended") : s;
}

bool is_own_process_there(int socket) { return peer_of(socket) == ::getpid(); }

Status open_sender(Received& received, Fd& process, Error& error) {
  constexpr const char* gone = "the process that sent the message has ended";
  if (received.process) {
    process = std::move(received.process);
    return FEEDLANE_OK;
  }
  // Linux 6.5 to 6.15 give no pidfd for a reaped process, but ESRCH or EINVAL.
  if (received.process_errno == ESRCH || received.process_errno == EINVAL)
    return error.fail(FEEDLANE_E_PEER_DEAD, gone);
  if (received.process_errno != 0)
    return error.os(received.process_errno, "receiving a pidfd of the process that sent a message");
  if (received.fd_count != 1 || received.pid <= 0)
    return error.fail(FEEDLANE_E_STATE, "the sender sent no pidfd of its process, or is in another PID namespace");
  Fd own;
  Status s = open_pidfd(received.pid, own, error);
  if (s != FEEDLANE_OK) return error.os_errno == ESRCH ? error.fail(FEEDLANE_E_PEER_DEAD, gone) : s;
  bool is_same = false;
  s = is_same_process(received.fds[0].get(), own.get(), is_same, error);
  if (s != FEEDLANE_OK) return s;
  if (!is_same)
    return has_ended(own.get())
               ? error.fail(FEEDLANE_E_PEER_DEAD, gone)
               : error.fail(FEEDLANE_E_STATE, "the sender sent a descriptor that is not a pidfd of its process");
  process = std::move(own);
  return FEEDLANE_OK;
}

void refuse_descriptors(int socket) {
  const int off = 0;
  (void)::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off);
}

void discard_messages(int socket) {
  constexpr int most = 1024;  // more messages than a socket's buffer holds; later ones are not read
  std::byte nowhere[8];
  Received received;
  Error ignored;
  for (int i = 0; i < most && receive_message(socket, nowhere, received, ignored) == FEEDLANE_OK; i++) {
  }
}

void shut_down(int socket) { (void)::shutdown(socket, SHUT_RDWR); }

void shut_down_listener(int listener) {
  if (listener < 0) return;
  shut_down(listener);  // no further connection is possible
  while (true) {
    const Fd waiting(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!waiting && errno != EINTR && errno != ECONNABORTED) return;
  }
}

Status await_message(int socket, std::span<std::byte> buffer, Deadline deadline, Received& out, Error& error,
                     int peer) {
  for (bool is_dead = false;; is_dead = peer >= 0 && has_ended(peer)) {
    Status s = receive_message(socket, buffer, out, error);
    if (s == FEEDLANE_END) return error.fail(FEEDLANE_E_PEER_DEAD, "the other end of the socket is closed");
    if (s != FEEDLANE_AGAIN) return s;
    if (is_dead) return error.fail(FEEDLANE_E_PEER_DEAD, "the process at the other end of the socket has ended");
    s = wait_readable(socket, deadline, error, peer);
    if (s != FEEDLANE_OK && s != FEEDLANE_INTERRUPTED) return s;
  }
}

// ---- by path ----

namespace {

Status make_address(const std::string& path, sockaddr_un& address, Error& error) {
  address = {};
  address.sun_family = AF_UNIX;
  static_assert(longest_socket_path == sizeof address.sun_path - 1);
  if (path.empty() || path.size() > longest_socket_path)
    return error.refuse(
        FEEDLANE_E_ARGUMENT, "path", path.size(), static_cast<std::int64_t>(sizeof address.sun_path) - 1,
        "path has {} bytes: a socket's path must have 1 to {}", path.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return FEEDLANE_OK;
}

void sleep_briefly(Deadline deadline) {
  const timespec time{0, static_cast<long>(std::min<std::int64_t>(deadline.remaining_ns(), 1'000'000))};
  (void)::nanosleep(&time, nullptr);
}

Status open_socket(Fd& out, Error& error) {
  out.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return out ? FEEDLANE_OK : error.os(errno, "socket");
}

// Whether this user namespace shows `uid` for every user that it doesn't map. Then equal numbers prove nothing.
bool is_any_user(uid_t uid) {
  constexpr uid_t overflow = 65534;
  if (uid != overflow) return false;
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t inside = 0, outside = 0, count = 0;
  return !(map >> inside >> outside >> count && count == UINT32_MAX);
}

// Whether the other end of a connection is a process of this user.
Status check_same_user(int socket, Error& error) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return error.os(errno, "SO_PEERCRED");
  // A process of the same user may be signalled, whatever uid the namespace shows for it.
  if (who.uid == ::geteuid() && is_any_user(who.uid) && (who.pid <= 0 || ::kill(who.pid, 0) != 0))
    return error.refuse(FEEDLANE_E_STATE, "path", who.uid, ::geteuid(),
                        "the process at the other end belongs to a user that is unknown in this user namespace");
  if (who.uid == ::geteuid()) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_STATE, "path", who.uid, ::geteuid(),
                      "the process at the other end belongs to user {}, but this process to user {}", who.uid,
                      ::geteuid());
}

// Locks a directory from the check for a stale socket to listen(2). Otherwise a second receiver, or a process that
// connects, might take a socket that is bound but not listening yet for stale. If the lock can't be taken within a
// second, or by `deadline`, the caller continues without it, because any process may hold a directory's lock.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& path, Deadline deadline = Deadline::never()) {
    const std::size_t name = path.rfind('/') + 1;  // 0: none
    directory_.reset(::open(name == 0 ? "." : path.substr(0, name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const Deadline end = Deadline::after(1'000'000'000).earlier(deadline);
    while (directory_ && ::flock(directory_.get(), LOCK_EX | LOCK_NB) != 0 &&
           (errno == EINTR || (errno == EWOULDBLOCK && end.remaining_ns() != 0)))
      sleep_briefly(end);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() {
    if (directory_) (void)::flock(directory_.get(), LOCK_UN);  // a forked child may have a copy of the descriptor
  }

 private:
  Fd directory_;
};

// The kind and the owner of the file at a path, for the text of an error; "" if there is none.
std::string describe_file(const std::string& path) {
  struct stat file {};
  if (::lstat(path.c_str(), &file) != 0) return "";
  const char* const kind = S_ISSOCK(file.st_mode)  ? "a socket"
                           : S_ISREG(file.st_mode) ? "a regular file"
                           : S_ISDIR(file.st_mode) ? "a directory"
                           : S_ISLNK(file.st_mode) ? "a symbolic link"
                                                   : "a special file";
  const bool is_own = file.st_uid == ::geteuid();
  char text[120];
  (void)format_to(text, "{} of {} {}", kind, is_own ? "this user, uid" : "another user, uid", file.st_uid);
  return text;
}

std::string absolute(const std::string& path) {
  char folder[PATH_MAX];
  if (path[0] == '/' || ::getcwd(folder, sizeof folder) == nullptr) return path;
  return std::string(folder) + '/' + path;
}

}  // namespace

namespace {

// Whether the process that listens at the other end of this socket has ended. Then a child of that process, which may
// be about to exec, still has the descriptor open.
bool is_orphaned(int socket) {
  const pid_t listener = peer_of(socket);
  if (listener <= 0) return false;  // in another PID namespace
  Fd process;
  Error error;
  if (open_pidfd(listener, process, error) != FEEDLANE_OK) return error.os_errno == ESRCH;
  return has_ended(process.get());
}

// Restores the owner's permissions, which a umask may have removed. Doesn't follow a link that has replaced the socket.
bool allow_owner(const std::string& path, mode_t mode) {
  constexpr mode_t wanted = S_IRUSR | S_IWUSR;
  return (mode & wanted) == wanted || ::fchmodat(AT_FDCWD, path.c_str(), wanted, AT_SYMLINK_NOFOLLOW) == 0;
}

}  // namespace

Status listen_at(const std::string& path, Fd& out, SocketFile& file, Error& error) {
  sockaddr_un address;
  if (const Status s = make_address(path, address, error); s != FEEDLANE_OK) return s;
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  file.path = absolute(path);
  const DirectoryLock lock(path);
  Fd probe;
  if (const Status s = open_socket(probe, error); s != FEEDLANE_OK) return s;
  // The socket of a killed process refuses connections. A socket that accepts a connection, or whose backlog is full,
  // is in use.
  const bool is_connected = ::connect(probe.get(), generic, sizeof address) == 0;
  const int refusal = is_connected ? ECONNREFUSED : errno;
  if (is_connected ? !is_orphaned(probe.get()) : refusal == EAGAIN)
    return error.fail(FEEDLANE_E_STATE, "another process already listens at {}", first(200, path));
  struct stat status {};
  if (refusal == ECONNREFUSED && ::lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode) &&
      status.st_uid == ::geteuid())
    (void)::unlink(path.c_str());
  Fd socket;
  if (const Status s = open_socket(socket, error); s != FEEDLANE_OK) return s;
  // Accepted sockets inherit these options. If they were set after accept, they would not apply to earlier messages.
  if (const Status s = prepare_to_listen(socket.get(), error); s != FEEDLANE_OK) return s;
  // bind(2) gives the path the socket's mode minus the umask, so other users can never connect.
  if (::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0) return error.os(errno, "fchmod of a socket");
  if (::bind(socket.get(), generic, sizeof address) != 0) {
    const int reason = errno;
    const std::string found = reason == EADDRINUSE ? describe_file(path) : "";
    if (found.empty()) return error.os(reason, "bind to {}", first(200, path));
    return error.os(reason, "there is {} at {}: remove it, or choose another path", found, first(200, path));
  }
  // Uses the largest backlog that the system allows, because all senders of a ring may connect at once.
  if (::lstat(path.c_str(), &status) != 0 || !allow_owner(path, status.st_mode) ||
      ::listen(socket.get(), INT_MAX) != 0) {
    const int reason = errno;
    (void)::unlink(path.c_str());
    return error.os(reason, "listen at {}", first(200, path));
  }
  file.device = status.st_dev;
  file.inode = status.st_ino;
  out = std::move(socket);
  return FEEDLANE_OK;
}

void unlink_socket(const SocketFile& file) {
  struct stat status {};
  if (::lstat(file.path.c_str(), &status) == 0 && status.st_dev == file.device && status.st_ino == file.inode)
    (void)::unlink(file.path.c_str());
}

Status accept_same_user(int listener, Fd& out, Error& error) {
  const detail::StdioHeld held;
  Fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket)
    return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? FEEDLANE_AGAIN : error.os(errno, "accept4");
  if (const Status s = check_same_user(socket.get(), error); s != FEEDLANE_OK) return s;
  out = std::move(socket);
  return FEEDLANE_OK;
}

Status connect_to(const std::string& path, Deadline deadline, Fd& out, Error& error) {
  sockaddr_un address;
  if (const Status s = make_address(path, address, error); s != FEEDLANE_OK) return s;
  Fd socket;
  if (const Status s = open_socket(socket, error); s != FEEDLANE_OK) return s;
  bool may_be_bound_just_now = true;
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int reason = errno;
    if (reason == EAGAIN) {  // the backlog is full, and no event reports when it has room
      if (deadline.remaining_ns() == 0) return FEEDLANE_TIMEOUT;
      sleep_briefly(deadline);
      continue;
    }
    if (reason == ECONNREFUSED && std::exchange(may_be_bound_just_now, false)) {
      const DirectoryLock lock(path, deadline);  // waits until the socket listens
      continue;
    }
    const std::string found = describe_file(path);
    (void)error.os(reason, "connecting to {}{}{}", first(200, path), found.empty() ? "" : ", which is ", found);
    if (reason == ENOENT || reason == ECONNREFUSED) error.code = FEEDLANE_E_PEER_DEAD;
    return error.code;
  }
  if (const Status s = check_same_user(socket.get(), error); s != FEEDLANE_OK) return s;
  out = std::move(socket);
  return FEEDLANE_OK;
}

}  // namespace feedlane::os
