// SPDX-License-Identifier: Apache-2.0
// Opens a worker's channel, starts its process, receives its messages, and ends it.
#include "supervisor/peer.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "os/event.hpp"
#include "os/socket.hpp"

namespace feedlane::supervisor {

void Peer::init(std::uint32_t id, const shm::Segments& segments) {
  id_ = id;
  trainer_row_ = segments.trainer_row(id);
  tasks_.init(id, segments);
}

Status Peer::open(const shm::Segments& segments, std::uint64_t result_start, std::int64_t epoch, bool tied,
                  int trainer_pidfd, os::Poller& poller, os::Fd& theirs, Error& error) {
  if (std::exchange(was_opened_, true)) trainer_row_->generation.store(generation() + 1, std::memory_order_relaxed);
  why_not_attached_[0] = '\0';
  kind_ = Kind::offered;
  said_ = {};
  ending_ = Ending::none;
  killed_ns_ = 0;
  os::Fd lifeline_read;
  Status s = os::create_socket_pair(socket_, theirs, error);
  if (s == FEEDLANE_OK) s = os::create_event(worker_event_, error);
  if (s == FEEDLANE_OK) s = os::create_event(trainer_event_, error);
  if (s == FEEDLANE_OK) s = lifeline_.open(lifeline_read, error);
  if (s == FEEDLANE_OK) s = poller.add(socket_.get(), Tag{id_, generation(), Tag::socket}.pack(), error);
  if (s == FEEDLANE_OK) s = poller.add_bell(trainer_event_.get(), Tag{id_, generation(), Tag::doorbell}.pack(), error);
  if (s == FEEDLANE_OK) {
    tasks_.reset(worker_event_.get());
    s = send_welcome(segments, result_start, epoch, tied, trainer_pidfd, lifeline_read.get(), error);
  }
  if (s != FEEDLANE_OK) {
    close(poller);
    return s;
  }
  if (tied) untied_ = std::move(lifeline_read);
  set_state(State::starting);
  return FEEDLANE_OK;
}

Status Peer::send_welcome(const shm::Segments& segments, std::uint64_t result_start, std::int64_t epoch, bool tied,
                          int trainer_pidfd, int lifeline, Error& error) {
  const worker::Welcome welcome{worker::welcome_magic,
                                shm::layout_hash,
                                id_,
                                generation(),
                                tasks_.position(),
                                result_start,
                                tied,
                                !os::names_senders(socket_.get()),
                                epoch};
  int fds[worker::welcome_fds];
  fds[worker::welcome_control] = segments.control_fd();
  fds[worker::welcome_data] = segments.data_fd();
  fds[worker::welcome_worker_event] = worker_event_.get();
  fds[worker::welcome_trainer_event] = trainer_event_.get();
  fds[worker::welcome_lifeline] = lifeline;
  fds[worker::welcome_trainer] = trainer_pidfd;
  return greeting::send(socket_.get(), welcome, fds, error);
}

Status Peer::spawn(os::SpawnRequest request, os::Fd theirs, os::Poller& poller, Error& error) {
  request.environment.push_back(std::string(worker::fd_variable) + "=" + std::to_string(theirs.get()));
  request.inherited_fd = theirs.get();
  request.lifeline = untied_.get();
  pid_t pid = 0;
  const Status s = os::spawn(request, pid, process_, error);
  if (s != FEEDLANE_OK) {
    close(poller);
    return s;
  }
  set_pid(pid);
  return watch(poller, error);
}

Status Peer::fork(const os::NumberSet* cpus, os::Poller& poller, bool& is_child, Error& error) {
  pid_t pid = 0;
  const Status s = os::fork_process(pid, process_, error, untied_.get(), cpus);
  is_child = s == FEEDLANE_OK && pid == 0;
  if (is_child) return s;
  if (s != FEEDLANE_OK) {
    close(poller);
    return s;
  }
  set_pid(pid);
  return watch(poller, error);
}

// Watches a child, which was tied to the lifeline before it ran. If its end can't be observed, the child is killed.
Status Peer::watch(os::Poller& poller, Error& error) {
  kind_ = Kind::child;
  untied_.reset();
  const Status s = poller.add(process_.get(), Tag{id_, generation(), Tag::process}.pack(), error);
  if (s == FEEDLANE_OK) return s;
  os::send_signal(process_.get(), SIGKILL);
  os::wait_for_end(process_.get());
  (void)reap();
  close(poller);
  return s;
}

os::Ending Peer::reap() {
  if (!process_) return {};
  if (!is_child()) return os::look_at_zombie(process_.get());
  os::send_signal_to_group(process_.get(), pid(), SIGKILL);
  const os::Ending ending = os::reap(process_.get());
  is_kept_ = ending.is_kept;
  return ending;
}

void Peer::close_in_child() {
  untied_.reset();
  socket_.reset();
  process_.reset();
  worker_event_.reset();
  trainer_event_.reset();
}

Peer::Message Peer::receive(os::Poller& poller, Error& error) {
  union {
    std::uint64_t magic;
    worker::Attached attached;
    worker::Ready ready;
    worker::Leaving leaving;
  } message{};
  os::Received received;
  const Status s = os::receive_message(socket_.get(), greeting::bytes_of(message), received, error);
  if (s == FEEDLANE_AGAIN) return Message::nothing;
  if (s < 0) return Message::lost;
  // `left` also if Leaving was received before, but memory was too short to act on it.
  if (s != FEEDLANE_OK) return said_.leaving ? Message::left : Message::hung_up;
  if (!received.truncated && message.magic == worker::attached_magic && received.bytes == sizeof message.attached &&
      !said_.attached) {
    if (message.attached.layout_hash != shm::layout_hash) {
      (void)error.refuse(FEEDLANE_E_ABI, "layout_hash", message.attached.layout_hash, shm::layout_hash,
                         "worker {} (pid {}) uses a Feedlane version with a different shared-memory layout", id_,
                         received.pid);
      return Message::nonsense;
    }
    if (received.fd_count <= 1) return read_attached(received, poller, error);
  }
  if (!received.truncated && message.magic == worker::ready_magic && received.bytes == sizeof message.ready) {
    if (said_.ready) {
      (void)error.refuse(FEEDLANE_E_CORRUPT, "message", message.ready.status, 0, "worker {} (pid {}) sent Ready twice",
                         id_, pid());
      return Message::nonsense;
    }
    if (said_.attached) return read_ready(message.ready, error);
    if (message.ready.status < 0) {  // it can't attach, and ends
      said_.ready = true;
      std::memcpy(why_not_attached_, message.ready.text, sizeof why_not_attached_ - 1);  // the last byte stays zero
      return Message::nothing;
    }
  }
  if (message.magic == worker::leaving_magic &&
      received.bytes == sizeof message.leaving) {  // allowed before Attached too
    said_.leaving = true;
    return Message::left;
  }
  (void)error.refuse(FEEDLANE_E_CORRUPT, "message", received.bytes, sizeof message.ready,
                     "worker {} (pid {}) sent an invalid message of {} bytes", id_, pid(), received.bytes);
  return Message::nonsense;
}

Peer::Message Peer::read_attached(os::Received& received, os::Poller& poller, Error& error) {
  const pid_t sender = received.pid;
  if (is_child()) {
    if (sender != pid()) {
      (void)error.refuse(
          FEEDLANE_E_INIT, "config.argv", sender, pid(),
          "worker {} was started as process {} but process {} attached: the program must exec the worker", id_, pid(),
          sender);
      return Message::nonsense;
    }
  } else if (is_thread()) {
    set_pid(::getpid());
  } else {
    const Status s = os::open_sender(received, process_, error);
    if (s == FEEDLANE_E_PEER_DEAD) return Message::hung_up;  // its parent reports its end
    if (s == FEEDLANE_E_OS) return Message::lost;
    if (s != FEEDLANE_OK || sender <= 0) {  // the trainer couldn't kill a process that it can't see
      process_.reset();
      (void)error.refuse(FEEDLANE_E_CORRUPT, "pidfd", sender, 1,
                         "worker {} is process {} (0: in an unrelated PID namespace), but sent no pidfd of it", id_,
                         sender);
      return Message::nonsense;
    }
    if (sender == ::getpid()) {
      process_.reset();
      (void)error.refuse(FEEDLANE_E_INIT, "pid", sender, 0,
                         "worker {} is a thread of this process: worker threads need FEEDLANE_START_THREAD", id_);
      return Message::nonsense;
    }
    set_pid(sender);
    if (poller.add(process_.get(), Tag{id_, generation(), Tag::process}.pack(), error) != FEEDLANE_OK) {
      process_.reset();  // its end could not be observed
      return Message::lost;
    }
  }
  said_.attached = true;
  if (state() == State::starting) set_state(State::opening);
  return Message::attached;
}

Peer::Message Peer::read_ready(const worker::Ready& ready, Error& error) {
  said_.ready = true;
  if (is_ending()) return Message::nothing;  // it was asked to end before
  if (ready.status == FEEDLANE_OK) {
    set_state(State::ready);
    return Message::ready;
  }
  if (ready.status > 0) {
    (void)error.refuse(FEEDLANE_E_CORRUPT, "ready.status", ready.status, 0,
                       "worker {} (pid {}) sent Ready with status {}: must be 0 or negative", id_, pid(), ready.status);
    return Message::nonsense;
  }
  (void)error.fail(FEEDLANE_E_INIT, "worker {} could not open its data set: {}", id_, first(320, ready.text));
  error.worker = static_cast<std::int32_t>(id_);
  set_state(State::failed);
  return Message::cannot_open;
}

void Peer::ask_to_end() {
  set_state(State::stopping);
  tasks_.ring_done(generation());
}

void Peer::kill(int signal) {
  if (!process_) return;
  if (signal == SIGKILL && killed_ns_ == 0) killed_ns_ = os::now_ns();
  // A child leads a process group, so the children that it started are signaled too.
  if (is_child()) os::send_signal_to_group(process_.get(), pid(), signal);
  os::send_signal(process_.get(), signal);
}

void Peer::abandon() {
  if (!process_) return;
  kill(SIGKILL);
  os::abandon_child(std::move(process_));
}

void Peer::close_socket(os::Poller& poller) {
  poller.remove(socket_.get());
  os::discard_messages(socket_.get());
  socket_.reset();
}

void Peer::cut_off(os::Poller& poller) {
  ending_ = Ending::cut_off;
  if (is_thread()) return tasks_.ring_done(generation());  // a thread can't be killed, and its Leaving must be received
  kill(SIGKILL);
  lifeline_.cut();
  close_socket(poller);
}

void Peer::let_leave(os::Poller& poller) {
  ending_ = Ending::leaving;
  close_socket(poller);
}

bool Peer::escalate() {
  const bool is_first = ending_ == Ending::leaving;
  ending_ = is_first ? Ending::terminated : Ending::cut_off;
  kill(is_first ? SIGTERM : SIGKILL);
  return is_first;
}

void Peer::close(os::Poller& poller) {
  // Removes them first, because duplicates in the worker would keep closed descriptors in the epoll set.
  close_socket(poller);
  poller.remove(trainer_event_.get());
  poller.remove(process_.get());
  if (std::exchange(is_kept_, false)) os::abandon_child(std::move(process_));
  process_.reset();
  worker_event_.reset();
  trainer_event_.reset();
  lifeline_.cut();
  untied_.reset();
  set_pid(0);
  killed_ns_ = 0;
  tasks_.forget();
  set_state(State::none);
}

}  // namespace feedlane::supervisor
