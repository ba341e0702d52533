// SPDX-License-Identifier: Apache-2.0
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
  pid_t pid =
      0;       // the kernel's word for who sent it, 0 if not told (0 too for a sender in a pid namespace beside ours)
  Fd process;  // the same as a pidfd, where names_senders; none if it couldn't be had
  int process_errno = 0;  // why not
};

// A connected pair that keeps message boundaries and carries descriptors from `mine` to `theirs`. `mine` reports who sends
// (see names_senders) and never blocks; the kernel refuses descriptors on their way to it, with EPERM for the sender, where
// it can (Linux 6.16). `theirs` blocks as its holder likes.
//
// Why no descriptor may come: closing one can take as long as its sender likes. A socket that waits for its network (SO_LINGER),
// another socket in whose queue such a one lies, a file of a file system that the sender serves.
Status create_socket_pair(Fd& mine, Fd& theirs, Error& error);

// Whether messages that arrive here bring a pidfd of their sender from the kernel (Linux 6.5). Where they don't a peer has to
// send one of its own.
bool names_senders(int socket);

// A pidfd of the process that sent a message: the kernel's; else one opened here, if the only descriptor that came along is a
// pidfd of the same process, so that it isn't a later one of the same number. E_PEER_DEAD: it has ended and is gone. E_STATE:
// no pidfd of its came, or it is out of our sight. E_OS: it couldn't be had, which says nothing of the process.
Status open_sender(Received& received, Fd& process, Error& error);

// One message with `fds`. E_PEER_DEAD when the other end is closed.
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds, Error& error);

// One message, never waiting: 0, AGAIN when there is none, END when the other end is closed.
Status receive_message(int socket, std::span<std::byte> buffer, Received& out, Error& error);

// Whether a message lies there, and is exactly `expected`. It stays where it is.
bool is_next_message(int socket, std::span<const std::byte> expected);

// The process that made the pair that the socket is of, or that listened where it connected, as a pidfd; none if it can't be
// told. E_PEER_DEAD if that process has ended, though others may hold the other end.
Status open_peer(int socket, Fd& process, Error& error);
// Whether this very process made the pair that the socket is of, or listened where it connected.
bool is_own_process_there(int socket);

// From here on the other end can't send descriptors, where the kernel can refuse them (Linux 6.16). Those that are under way
// come yet.
void refuse_descriptors(int socket);

// Reads and forgets what the other end has sent, a bounded number of messages: descriptors that the kernel would have to
// close with the socket could make that wait.
void discard_messages(int socket);

// Ends a connection, or a place to connect, for all who hold it: closing it doesn't while a forked child has a copy.
void shut_down(int socket);
// The same with a listening socket, and with whoever has connected there and wasn't accepted.
void shut_down_listener(int listener);

// Waits for one message. E_PEER_DEAD when the other end is closed, or the process of the pidfd `peer`, if there is one,
// has ended; TIMEOUT. Signals don't end this wait: it belongs to calls that have taken the socket already, so that their
// caller couldn't call again.
Status await_message(int socket, std::span<std::byte> buffer, Deadline deadline, Received& out, Error& error,
                     int peer = -1);

// What fits a socket's address, with its terminator.
constexpr std::size_t longest_socket_path = 107;

// The file of a socket that was bound to a path.
struct SocketFile {
  std::string path;  // absolute
  dev_t device = 0;
  ino_t inode = 0;
};

// A listening socket at `path`, which this user alone can connect to; what it accepts is like `mine` of create_socket_pair,
// from the connecting on. A socket there that nobody listens at any more is
// replaced; one in use is E_STATE.
Status listen_at(const std::string& path, Fd& out, SocketFile& file, Error& error);
// Unless another file lies there by now. While the socket is open: its inode's number isn't anybody else's.
void unlink_socket(const SocketFile& file);
// One connection, which never blocks: E_STATE if it is of another user, AGAIN.
Status accept_same_user(int listener, Fd& out, Error& error);
// Connects to a listening socket at `path` of the same user. E_PEER_DEAD if nobody listens there; TIMEOUT if too many were
// waiting there. Signals don't end the wait, see await_message.
Status connect_to(const std::string& path, Deadline deadline, Fd& out, Error& error);

}  // namespace feedlane::os
