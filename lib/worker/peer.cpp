// SPDX-License-Identifier: Apache-2.0
#include "worker/peer.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "os/event.hpp"
#include "os/socket.hpp"
#include "ring/fence.hpp"

namespace feedlane::worker {

void Peer::init(std::uint32_t id, const shm::Segments& segments) {
  id_ = id;
  trainer_row_ = segments.trainer_row(id);
  row_ = segments.worker_row(id);
  // The ledger counts what is free, so that no word of the worker's is needed for it.
  capacity_ = segments.plan().geometry.ring_capacity;
  revoked_.reserve(capacity_);
  tasks_ = ring::Producer({segments.task_ring(id), shm::loader_cell_bytes, capacity_}, 0, nullptr);
}

Status Peer::open(const shm::Segments& segments, std::uint64_t result_start, std::int64_t epoch, bool tied,
                  int trainer_pidfd, std::int64_t start_deadline_ns, os::Poller& poller, os::Fd& theirs, Error& error) {
  if (ever_opened_) trainer_row_->generation.store(generation() + 1, std::memory_order_relaxed);
  ever_opened_ = true;
  why_not_attached_[0] = '\0';
  attached_ = spawned_ = cut_off_ = local_ = said_ready_ = said_leaving_ = was_hurried_ = false;
  unfinished = 0;
  was_unheard = false;
  refused_task = 0;
  seen_task = 0;
  seen_passed_over = 0;
  excused = 0;
  killed_ns_ = 0;
  last_sent_ = 0;
  is_fenced = was_given_up = false;
  revoked_.clear();
  set_revoked(0, 0);
  start_deadline_ns_ = start_deadline_ns;
  start_again_ns = 0;
  refusal = {};
  os::Fd lifeline_read;
  Status s = os::create_socket_pair(socket_, theirs, error);
  if (s == FEEDLANE_OK) s = os::create_event(worker_event_, error);
  if (s == FEEDLANE_OK) s = os::create_event(trainer_event_, error);
  if (s == FEEDLANE_OK) s = lifeline_.open(lifeline_read, error);
  if (s == FEEDLANE_OK) s = poller.add(socket_.get(), Tag{id_, generation(), Tag::socket}.pack(), error);
  if (s == FEEDLANE_OK) s = poller.add_bell(trainer_event_.get(), Tag{id_, generation(), Tag::doorbell}.pack(), error);
  if (s == FEEDLANE_OK) {
    const Welcome welcome{welcome_magic,
                          shm::layout_hash,
                          id_,
                          generation(),
                          tasks_.position(),
                          result_start,
                          tied,
                          !os::names_senders(socket_.get()),
                          epoch};
    int fds[welcome_fds];
    fds[welcome_control] = segments.control_fd();
    fds[welcome_data] = segments.data_fd();
    fds[welcome_worker_event] = worker_event_.get();
    fds[welcome_trainer_event] = trainer_event_.get();
    fds[welcome_lifeline] = lifeline_read.get();
    fds[welcome_trainer] = trainer_pidfd;
    s = os::send_message(socket_.get(), std::as_bytes(std::span(&welcome, 1)), fds, error);
  }
  if (s != FEEDLANE_OK) {
    close(poller);
    return s;
  }
  if (tied) untied_ = std::move(lifeline_read);
  // What a predecessor left. Nobody else has the row now; relaxed: the socket carries it over.
  row_->sleeping.store(0, std::memory_order_relaxed);
  row_->started_task.store(0, std::memory_order_relaxed);
  row_->begun_through.store(0, std::memory_order_relaxed);
  row_->passed_over.store(0, std::memory_order_relaxed);
  bell_ = ring::Doorbell(&row_->sleeping, worker_event_.get());
  set_state(State::starting);
  return FEEDLANE_OK;
}

Status Peer::spawn(os::SpawnRequest request, os::Fd theirs, os::Poller& poller, Error& error) {
  request.environment.push_back(std::string(fd_variable) + "=" + std::to_string(theirs.get()));
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

Status Peer::fork(os::Poller& poller, bool& is_child, Error& error) {
  pid_t pid = 0;
  const Status s = os::fork_process(pid, process_, error, untied_.get());
  is_child = s == FEEDLANE_OK && pid == 0;
  if (is_child) return s;
  if (s != FEEDLANE_OK) {
    close(poller);
    return s;
  }
  set_pid(pid);
  return watch(poller, error);
}

// A child of ours, tied before it ran. One whose end would not be seen mustn't live on.
Status Peer::watch(os::Poller& poller, Error& error) {
  spawned_ = true;
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
  if (!spawned_ || !process_) return {};
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

Peer::Heard Peer::listen(os::Poller& poller, Error& error) {
  union {
    std::uint64_t magic;
    Attached attached;
    Ready ready;
    Leaving leaving;
  } message{};
  os::Received received;
  const Status s = os::receive_message(socket_.get(), std::as_writable_bytes(std::span(&message, 1)), received, error);
  if (s == FEEDLANE_AGAIN) return Heard::nothing;
  if (s < 0) return Heard::lost;
  // Also when it has said so before, and there was too little memory to go by it.
  if (s != FEEDLANE_OK) return said_leaving_ ? Heard::left : Heard::hung_up;
  if (!received.truncated && message.magic == attached_magic && received.bytes == sizeof message.attached &&
      !attached_) {
    if (message.attached.layout_hash != shm::layout_hash) {
      (void)error.refuse(FEEDLANE_E_ABI, "layout_hash", static_cast<std::int64_t>(message.attached.layout_hash),
                         static_cast<std::int64_t>(shm::layout_hash),
                         "worker %u (pid %d) has attached with a library of another layout", id_,
                         static_cast<int>(received.pid));
      return Heard::nonsense;
    }
    if (received.fd_count <= 1) return hear_attached(received, poller, error);
  }
  if (!received.truncated && message.magic == ready_magic && received.bytes == sizeof message.ready && !said_ready_) {
    if (attached_) return hear_ready(message.ready, error);
    if (message.ready.status < 0) {  // it can't attach, and ends
      said_ready_ = true;
      std::memcpy(why_not_attached_, message.ready.text, sizeof why_not_attached_ - 1);  // the last byte stays zero
      return Heard::nothing;
    }
  }
  if (message.magic == leaving_magic && received.bytes == sizeof message.leaving) {  // also before it has attached
    said_leaving_ = true;
    return Heard::left;
  }
  (void)error.refuse(FEEDLANE_E_CORRUPT, "message", static_cast<std::int64_t>(received.bytes), sizeof message.ready,
                     "worker %u (pid %d) sent %zu bytes that are no message", id_, static_cast<int>(pid()),
                     received.bytes);
  return Heard::nonsense;
}

Peer::Heard Peer::hear_attached(os::Received& received, os::Poller& poller, Error& error) {
  const pid_t sender = received.pid;
  if (spawned_) {
    if (sender != pid()) {
      (void)error.refuse(
          FEEDLANE_E_INIT, "config.argv", sender, pid(),
          "worker %u was started as process %d but process %d attached: the program must exec the worker", id_,
          static_cast<int>(pid()), static_cast<int>(sender));
      return Heard::nonsense;
    }
  } else if (local_) {
    set_pid(::getpid());
  } else {
    const Status s = os::open_sender(received, process_, error);
    if (s == FEEDLANE_E_PEER_DEAD) return Heard::hung_up;  // and its parent knows
    if (s == FEEDLANE_E_OS) return Heard::lost;
    if (s != FEEDLANE_OK || sender <= 0) {  // whom it can't see the trainer couldn't kill either
      process_.reset();
      (void)error.refuse(FEEDLANE_E_CORRUPT, "pidfd", sender, 1,
                         "worker %u is process %d (0: in a PID namespace beside this one) but sent no pidfd of it", id_,
                         static_cast<int>(sender));
      return Heard::nonsense;
    }
    set_pid(sender);
    if (poller.add(process_.get(), Tag{id_, generation(), Tag::process}.pack(), error) != FEEDLANE_OK) {
      process_.reset();  // its end would not be seen
      return Heard::lost;
    }
  }
  attached_ = true;
  start_failures = 0;
  refusal = {};
  if (state() == State::starting) set_state(State::opening);
  return Heard::attached;
}

Peer::Heard Peer::hear_ready(const Ready& ready, Error& error) {
  said_ready_ = true;
  if (is_ending()) return Heard::nothing;  // it was asked to end meanwhile
  if (ready.status == FEEDLANE_OK) {
    set_state(State::ready);
    return Heard::ready;
  }
  const auto length = static_cast<int>(strnlen(ready.text, sizeof ready.text));
  (void)error.fail(FEEDLANE_E_INIT, "worker %u could not open its data set: %.*s", id_, std::min(length, 320),
                   ready.text);
  error.worker = static_cast<std::int32_t>(id_);
  set_state(State::failed);
  return Heard::cannot_open;
}

void Peer::send(const shm::TaskMessage& message) {
  (void)tasks_.reserve(1);
  std::memcpy(tasks_.message(0), &message, sizeof message);
  tasks_.commit(1);
  last_sent_ = message.id;
  unfinished++;
}

void Peer::set_revoked(std::uint64_t from, std::uint64_t until) {
  revoked_from_ = from;
  revoked_until_ = until;
  // Nothing, then the end, then the beginning: in between no task is covered. Release: pairs with the acquire load in
  // Worker::is_revoked.
  trainer_row_->revoked_from.store(UINT64_MAX, std::memory_order_release);
  trainer_row_->revoked_until.store(until, std::memory_order_release);
  trainer_row_->revoked_from.store(from, std::memory_order_release);
}

// The worker says which task it begins, then looks whether that was revoked; we revoke, then look which ones it has begun.
// With a fence on either side at least one of us sees the other. `ids` are all that it hasn't begun, as far as was known.
std::size_t Peer::revoke(const std::vector<std::uint64_t>& ids, std::uint64_t oldest) {
  const std::uint64_t until = ids.back() + 1;
  // A task of the last range that it was left may still be declined: the range may only grow till then.
  if (revoked_.empty() && oldest >= revoked_until_) {
    set_revoked(ids.front(), until);
  } else {  // ids only grow, and what was covered stays so
    revoked_until_ = until;
    trainer_row_->revoked_until.store(until, std::memory_order_release);  // see set_revoked
    if (ids.front() < revoked_from_) {  // one that was left before, as it was about to be begun
      revoked_from_ = ids.front();
      trainer_row_->revoked_from.store(revoked_from_, std::memory_order_release);
    }
  }
  ring::doorbell_fence();
  const std::uint64_t begun = begun_through();
  std::size_t kept = 0;
  while (kept < ids.size() && ids[kept] <= begun) kept++;
  revoked_.insert(revoked_.end(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end());
  unfinished -= static_cast<std::uint32_t>(ids.size() - kept);
  return kept;
}

bool Peer::forget_revoked(std::uint64_t id) {
  const auto found = std::find(revoked_.begin(), revoked_.end(), id);
  if (found == revoked_.end()) return false;
  revoked_.erase(found);
  return true;
}

void Peer::ring_done() {
  // Release: pairs with the acquire load in Worker::is_done.
  trainer_row_->done_through.store(std::uint64_t{generation()} + 1, std::memory_order_release);
  ring_doorbell();
}

void Peer::ask_to_end() {
  set_state(State::stopping);
  ring_done();
}

void Peer::kill(int signal) {
  if (!process_) return;
  if (signal == SIGKILL && killed_ns_ == 0) killed_ns_ = os::now_ns();
  // A worker that we started leads a group of its own; children that it started go with it.
  if (spawned_) os::send_signal_to_group(process_.get(), pid(), signal);
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
  cut_off_ = true;
  if (local_) return ring_done();  // a thread can't be killed: its word that it leaves is still wanted
  kill(SIGKILL);
  lifeline_.cut();
  close_socket(poller);
}

void Peer::let_leave(os::Deadline until, os::Poller& poller) {
  cut_off_ = true;
  end_deadline_ = until;
  close_socket(poller);
}

void Peer::hurry(std::int64_t grace_ns) {
  const bool is_last = std::exchange(was_hurried_, true);
  end_deadline_ = is_last ? os::Deadline::never() : os::Deadline::after(grace_ns);
  kill(is_last ? SIGKILL : SIGTERM);
}

void Peer::close(os::Poller& poller) {
  // The worker may still have duplicates, which would keep a closed descriptor in the set.
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
  end_deadline_ = os::Deadline::never();
  killed_ns_ = 0;
  is_fenced = false;
  unfinished = 0;
  revoked_.clear();
  set_state(State::none);
}

}  // namespace feedlane::worker
