// SPDX-License-Identifier: Apache-2.0
// Unix sockets between processes: messages with descriptors, identity of the peer, sockets bound to a path.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"

namespace feedlane::os {

constexpr std::size_t max_passed_fds = 8;
constexpr std::size_t kernel_passed_fds = 253;  // SCM_MAX_FD: the most that one message can carry

// A received message's size, sender and descriptors. More than max_passed_fds descriptors are not kept but closed.
struct Received {
  std::size_t bytes = 0;  // of the message, also of what did not fit the buffer
  bool truncated = false;
  Fd fds[max_passed_fds];
  std::size_t fd_count = 0;
  pid_t pid = 0;          // the sender's pid, from the kernel; 0: unknown, or in another PID namespace
  Fd process;             // the sender's pidfd, if names_senders and the kernel provided one
  int process_errno = 0;  // the reason if the kernel could not
};

// A connected pair that keeps message boundaries and carries descriptors from `mine` to `theirs`. `mine` reports
// senders (see names_senders) and never blocks. Since Linux 6.16, the kernel refuses descriptors sent to `mine`: the
// sender gets EPERM. The holder of `theirs` decides whether `theirs` blocks.
//
// Descriptors are refused because closing one can block for as long as its sender likes: a socket with SO_LINGER, a
// socket that has such a socket in its queue, or a file of a file system that the sender serves.
Status create_socket_pair(Fd& mine, Fd& theirs, Error& error);

// Whether the kernel adds a pidfd of the sender to messages that arrive at this socket (Linux 6.5). If not, a peer must
// send one.
bool names_senders(int socket);

// Returns a pidfd of the process that sent a message: the kernel's or, without one, a pidfd opened by pid. The latter
// counts only if the message's only descriptor is a pidfd of that process, so the pid can't have been reused.
// E_PEER_DEAD: the process has ended. E_STATE: the message had no such pidfd, or the process is in another PID
// namespace. E_OS: the pidfd can't be opened; the process may be alive.
Status open_sender(Received& received, Fd& process, Error& error);

// Sends one message with `fds`. E_PEER_DEAD: the other end is closed.
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, Error& error);

// Receives one message without blocking. OK; AGAIN: no message has arrived; END: the other end is closed.
Status receive_message(int socket, std::span<std::byte> buffer, Received& out, Error& error);

// Copies the beginning of the next message to `out`, without removing it; `bytes` is the message's size, 0 if the other
// end is closed. OK; AGAIN: no message has arrived.
Status peek_message(int socket, std::span<std::byte> out, std::size_t& bytes);

// Opens a pidfd of the process that created this socket's pair, or that listened where this socket has connected.
// `process` is invalid if that is unknown. E_PEER_DEAD if that process has ended, even if other processes hold the
// other end.
Status open_peer(int socket, Fd& process, Error& error);
// Whether that process is this process.
bool is_own_process_there(int socket);

// After this, the other end can't send descriptors, if the kernel can refuse them (Linux 6.16). Descriptors that were
// already sent still arrive.
void refuse_descriptors(int socket);

// Reads and drops a bounded number of messages from the other end. Otherwise closing the socket could block on the
// descriptors in its queue.
void discard_messages(int socket);

// Shuts a connection down for all holders of the socket. Closing it would not, while a forked child has a copy.
void shut_down(int socket);
// Shuts down a listening socket and the connections in its backlog.
void shut_down_listener(int listener);

// Waits for one message. TIMEOUT. E_PEER_DEAD: the other end is closed, or the process of the pidfd `peer` (-1: none)
// has ended. Signals don't end this wait: its callers already own the socket, so their users couldn't repeat the call.
Status await_message(int socket, std::span<std::byte> buffer, Deadline deadline, Received& out, Error& error,
                     int peer = -1);

// Length of the longest path that fits into a socket's address with its terminator.
constexpr std::size_t longest_socket_path = 107;

// The file of a socket that is bound to a path.
struct SocketFile {
  std::string path;  // absolute
  dev_t device = 0;
  ino_t inode = 0;
};

// Opens a listening socket at `path`, to which only this user can connect. Accepted sockets have the properties of
// `mine` in create_socket_pair, from the connect on. Replaces a stale socket at `path`. E_STATE: the socket there is in
// use.
Status listen_at(const std::string& path, Fd& out, SocketFile& file, Error& error);
// Removes the file, unless another file now has its path. Call it only while the socket is open, because the inode
// number can't be reused before that.
void unlink_socket(const SocketFile& file);
// Accepts one connection. The new socket never blocks. E_STATE: the peer belongs to another user. AGAIN: there is no
// connection.
Status accept_same_user(int listener, Fd& out, Error& error);
// Connects to a listening socket of the same user at `path`. E_PEER_DEAD: no process listens there. TIMEOUT: the
// backlog stayed full. Signals don't end the wait; see await_message.
Status connect_to(const std::string& path, Deadline deadline, Fd& out, Error& error);

}  // namespace feedlane::os
