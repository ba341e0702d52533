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
constexpr std::size_t kernel_passed_fds = 253;  // SCM_MAX_FD: what one message can carry

// What came with one message. Descriptors beyond those expected are closed on receipt.
struct Received {
  std::size_t bytes = 0;
  bool truncated = false;
  Fd fds[max_passed_fds];
  std::size_t fd_count = 0;
  pid_t pid = 0;          // of the sender, by the kernel; 0: unknown, or in another PID namespace
  Fd process;             // pidfd of the sender, if names_senders; none if the kernel gave none
  int process_errno = 0;  // why not
};

// A connected pair that keeps message boundaries and carries descriptors from `mine` to `theirs`. `mine` reports senders (see
// names_senders) and never blocks. The kernel refuses descriptors sent to it, with EPERM for the sender, if it can (Linux
// 6.16). Whether `theirs` blocks is its holder's choice.
//
// Descriptors are refused because closing one can block for as long as its sender likes: a socket with SO_LINGER, a socket
// with such a one in its queue, a file of a file system that the sender serves.
Status create_socket_pair(Fd& mine, Fd& theirs, Error& error);

// Whether messages that arrive here carry a pidfd of their sender, by the kernel (Linux 6.5). If not, a peer must send one.
bool names_senders(int socket);

// A pidfd of the process that sent a message: the kernel's; else one opened here by pid, if the message's only descriptor is a
// pidfd of the same process, so that the pid can't have been reused. E_PEER_DEAD: the process has ended. E_STATE: the message
// had no such pidfd, or the process is in another PID namespace. E_OS: the pidfd can't be opened; the process may be alive.
Status open_sender(Received& received, Fd& process, Error& error);

// Sends one message with `fds`. E_PEER_DEAD: the other end is closed.
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, Error& error);

// Receives one message without blocking. OK; AGAIN: there is none; END: the other end is closed.
Status receive_message(int socket, std::span<std::byte> buffer, Received& out, Error& error);

// Whether there is a message that equals `expected`. It is not removed.
bool is_next_message(int socket, std::span<const std::byte> expected);

// A pidfd of the process that created this socket's pair, or that listened where this socket has connected; none if unknown.
// E_PEER_DEAD if that process has ended, even if others hold the other end.
Status open_peer(int socket, Fd& process, Error& error);
// Whether that process is this one.
bool is_own_process_there(int socket);

// Another descriptor of the same socket.
Status duplicate(int socket, Fd& out, Error& error);

// From here on the other end can't send descriptors, if the kernel can refuse them (Linux 6.16). Those already sent arrive.
void refuse_descriptors(int socket);

// Reads and drops what the other end has sent, a bounded number of messages. Otherwise closing the socket could block on the
// descriptors in its queue.
void discard_messages(int socket);

// Shuts a connection down for all holders of the socket; closing it has no such effect while a forked child has a copy.
void shut_down(int socket);
// The same for a listening socket and for the connections in its backlog.
void shut_down_listener(int listener);

// Waits for one message. E_PEER_DEAD: the other end is closed, or the process of the pidfd `peer` (-1: none) has ended;
// TIMEOUT. Signals don't end this wait: its callers own the socket already, so their user couldn't repeat the call.
Status await_message(int socket, std::span<std::byte> buffer, Deadline deadline, Received& out, Error& error,
                     int peer = -1);

// Longest path that fits a socket's address with its terminator.
constexpr std::size_t longest_socket_path = 107;

// The file of a socket that was bound to a path.
struct SocketFile {
  std::string path;  // absolute
  dev_t device = 0;
  ino_t inode = 0;
};

// A listening socket at `path`, to which only this user can connect. Accepted sockets have the properties of `mine` of
// create_socket_pair, from the connection on. A stale socket at `path` is replaced; E_STATE if one is in use.
Status listen_at(const std::string& path, Fd& out, SocketFile& file, Error& error);
// Removes the file, unless another one has its path by now. Only while the socket is open: that keeps its inode number from
// being reused.
void unlink_socket(const SocketFile& file);
// Accepts one connection; the new socket never blocks. E_STATE: it is of another user; AGAIN.
Status accept_same_user(int listener, Fd& out, Error& error);
// Connects to a listening socket at `path` of the same user. E_PEER_DEAD: no process listens there; TIMEOUT: the backlog
// stayed full. Signals don't end the wait, see await_message.
Status connect_to(const std::string& path, Deadline deadline, Fd& out, Error& error);

}  // namespace feedlane::os
