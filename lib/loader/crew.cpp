// SPDX-License-Identifier: Apache-2.0
// Handles the messages of workers, and their ends.
#include "loader/crew.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "os/other_process.hpp"
#include "os/process.hpp"
#include "shm/shared_read.hpp"
#include "supervisor/cause.hpp"

namespace feedlane::loader {

using supervisor::Member;
using supervisor::Peer;
using supervisor::State;
using supervisor::Tag;

Status Crew::set_up(supervisor::ChildMain child_main, const os::SystemFiles& files, Error& error) {
  roster_.set_up(settings_.workers, segments_);
  oldest_.resize(settings_.workers);
  files_ = files;
  oom_kills_ = os::oom_kills(files_);
  if (const int cpus = os::usable_cpus(files); static_cast<std::uint32_t>(cpus) < settings_.workers) {
    Error warning;
    (void)warning.refuse(FEEDLANE_E_LIMIT, "config.workers", settings_.workers, cpus,
                         "config.workers is {}, but this process may use only {} processors", settings_.workers, cpus);
    events_.push(FEEDLANE_EVENT_WARNING, warning);
  }
  return starter_.set_up(std::move(child_main), error);
}

Status Crew::open_worker(std::int32_t& id, os::Fd& fd, Error& error) {
  Status s = size() == 0 ? supervisor::refuse_host(settings_.start, error) : starter_.launcher().open_for_host(error);
  if (s == FEEDLANE_OK) s = handle_events(error);  // frees the places of workers that died
  return s == FEEDLANE_OK ? starter_.open_place(id, fd, error) : s;
}

// ---- messages and events ----

void Crew::sweep() {
  for (std::uint32_t looks = size(); take_result(looks); looks = size()) continue;
}

void Crew::sweep_some() {
  std::uint32_t looks = std::min(some_lanes, size());
  while (take_result(looks)) continue;
}

bool Crew::take_result(std::uint32_t& looks) {
  const ring::Lanes::Message m = roster_.lanes().peek_within(looks);
  if (m.data == nullptr) return false;
  handle_result(m.lane, m.data);  // if this throws, the result stays
  roster_.lanes().release(m.lane);
  return true;
}

void Crew::handle_result(std::uint32_t w, const std::byte* message) {
  Member& m = roster_.at(w);
  if (m.peer.is_thread()) roster_.unstick(w);  // it answers again
  Error error;
  std::uint64_t blamed = 0;
  const Status s = collector_.collect(w, m.peer.tasks(), shm::read_once<shm::ResultMessage>(message), blamed, error);
  dispatcher_.on_answer(w);
  if (s == FEEDLANE_ABANDONED) return;
  if (s != FEEDLANE_OK) return disown(w, blamed, error);
  // Its Ready is waiting in the socket, and a trainer that never has to wait would not receive it.
  if (m.peer.state() != State::ready) is_overdue_ = true;
  if (settings_.has_task_timeout()) m.note_progress(os::now_ns());
}

void Crew::drain_lane(std::uint32_t w) {
  while (roster_.lanes().is_open(w)) {
    const ring::Lanes::Message m = roster_.lanes().peek_lane(w);
    if (m.data == nullptr) return;
    handle_result(w, m.data);
    roster_.lanes().release(w);
  }
}

void Crew::handle(const os::Poller::Event& event) {
  if (wakeups_.handle(event)) return;
  const Tag tag = Tag::unpack(event.tag);
  if (tag.worker >= size()) return;  // not the crew's
  const Peer& peer = roster_.at(tag.worker).peer;
  if (peer.state() == State::none || peer.generation() != tag.generation) return;  // an event of a predecessor
  switch (tag.kind) {
    case Tag::doorbell: return;
    case Tag::socket: return handle_message(tag.worker);
    case Tag::process: return handle_end(tag.worker);
  }
}

Status Crew::handle_events(Error& error) {
  // Each worker has a doorbell, a process and a socket, on which it sends three messages before its end.
  const std::size_t rounds = 4 * (3 * size() / ring::Waiter::max_events + 1);
  const auto handle_one = [this](const os::Poller::Event& event) { handle(event); };
  if (const Status s = waiter_.poll(rounds, handle_one, error); s != FEEDLANE_OK) return s;
  (void)audit();
  if (next_deadline().remaining_ns() == 0) check_deadlines();
  return FEEDLANE_OK;
}

Status Crew::handle_overdue_events(Error& error) {
  const bool has_message = std::exchange(is_overdue_, false);
  return dispatcher_.look() || has_message ? handle_events(error) : FEEDLANE_OK;
}

// Receives a message. Opens the worker's lane when it attaches; before that it has no results.
Peer::Message Crew::receive(std::uint32_t w, Error& error) {
  Member& m = roster_.at(w);
  const Peer::Message message = m.peer.receive(waiter_.poller(), error);
  if (message == Peer::Message::attached) {
    starter_.error() = {};
    m.verdict = {};
    (void)roster_.lanes().open(w);
    m.start_deadline_ns = deadlines_.open_deadline_ns();
  }
  if (message == Peer::Message::ready) m.start_failures = 0;
  return message;
}

// Handles one message. The poller reports the next one, so a worker that floods its socket can't block the trainer.
void Crew::handle_message(std::uint32_t w) {
  Member& m = roster_.at(w);
  Peer& peer = m.peer;
  os::Poller& poller = waiter_.poller();
  Error error;
  const Peer::Message message = receive(w, error);
  switch (message) {
    case Peer::Message::nothing: return;
    case Peer::Message::attached: return dispatcher_.on_ready();
    case Peer::Message::ready:
      m.was_late = false;
      if (peer.is_thread()) roster_.unstick(w);  // it was stuck because its data set took too long to open
      return dispatcher_.on_ready();
    case Peer::Message::cannot_open: return failure_.set(error);
    case Peer::Message::left:
      // The worker can't write any more. A process of the host may continue to run. A child is about to end, and the
      // way it ends shows why.
      if (!peer.is_child()) return handle_end(w);
      if (peer.is_ending()) return peer.close_socket(poller);
      m.end_deadline = os::Deadline::after(settings_.stop_timeout_ns);
      return peer.let_leave(poller);
    case Peer::Message::hung_up:
      if (!peer.has_process()) return handle_end(w);  // an offer that nothing took
      if (peer.is_ending()) return peer.close_socket(poller);
      m.has_hung_up = !os::is_exiting(peer.pid());  // an exit closes the socket before the pidfd reports it
      return peer.cut_off(poller);
    case Peer::Message::lost:  // not the worker's fault, but the message can't be received again
    case Peer::Message::nonsense: break;
  }
  const bool is_nonsense = message == Peer::Message::nonsense;
  if (is_nonsense) shm::add(segments_.counters()->invalid_results);
  m.is_invalid = m.is_invalid || is_nonsense;
  error.worker = static_cast<std::int32_t>(w);
  events_.push(is_nonsense ? FEEDLANE_EVENT_INVALID : FEEDLANE_EVENT_WARNING, error);
  // A child is started again; if it never attaches, the error is returned. For a worker of the host, the offer is lost.
  m.verdict = error;
  if (!is_nonsense && !peer.has_attached() && starter_.launcher().starts_workers()) {
    m.lost_message = true;
    starter_.error() = error;
  }
  if (!peer.has_process()) return handle_end(w);
  peer.cut_off(poller);
}

// ---- ends ----

// Messages that a worker sent before it died may be unread: above all the reason why it could not open its data set.
void Crew::read_last_messages(std::uint32_t w) {
  for (Peer::Message message = Peer::Message::attached;
       message == Peer::Message::attached || message == Peer::Message::ready;) {
    Error error;
    message = roster_.at(w).peer.has_socket() ? receive(w, error) : Peer::Message::nothing;
    if (message == Peer::Message::cannot_open) failure_.set(error);
  }
}

namespace {

Error death_of(std::uint32_t w, const Peer& peer, const Gone& gone, std::int64_t epoch, std::int64_t batch) {
  const char* const why = peer.why_not_attached();
  supervisor::Name who;
  supervisor::name_process(gone.pid, who);
  Error error;
  (void)error.fail(FEEDLANE_E_PEER_DEAD, "worker {}: {}{}{}{}", w, who, gone.how,
                   *why == '\0' ? "" : " before it attached: ", first(280, why));
  error.worker = static_cast<std::int32_t>(w);
  error.epoch = batch < 0 ? -1 : epoch;
  error.batch = batch;
  return error;
}

Error leaving_of(std::uint32_t w, pid_t pid) {
  Error error;
  (void)error.fail(FEEDLANE_OK, "worker {}: process {} has left", w, pid);
  error.worker = static_cast<std::int32_t>(w);
  return error;
}

}  // namespace

// Processes that the out-of-memory killer has killed since the loader was created; -1: unknown, as for processes of the
// host, which may be in another cgroup.
std::int64_t Crew::new_oom_kills() const {
  const std::int64_t now = oom_kills_ < 0 || !starter_.launcher().owns_processes() ? -1 : os::oom_kills(files_);
  return now < 0 ? -1 : now - oom_kills_;
}

// The worker has ended: its committed results count, its other tasks go to others, and another worker takes its place.
void Crew::handle_end(std::uint32_t w) {
  Member& m = roster_.at(w);
  Peer& peer = m.peer;
  read_last_messages(w);
  const bool is_expected = is_stopping_ || peer.is_ending();
  const std::int64_t oom_kills = is_expected ? -1 : new_oom_kills();
  const bool has_left = peer.has_left() && !peer.is_child();  // for a child, the way its process ended counts
  const bool had_attached = peer.has_attached();
  const bool was_ready = peer.state() == State::ready;
  const bool leaves_memory_in_doubt = !peer.has_left() && !peer.is_thread();
  const os::Ending ending = peer.reap();
  supervisor::Words how;
  supervisor::describe_end(m, ending, settings_, oom_kills, how);
  drain_lane(w);
  roster_.lanes().close(w);
  const std::uint64_t refused = m.refused_task;
  const std::uint64_t blamed = refused != 0 ? refused : peer.tasks().in_hand();
  // A worker that was refused when it attached may have begun a task before it was killed. That task is not to blame.
  const bool counts_kill = had_attached && !m.is_undead() && !m.lost_message;
  const Gone gone{how, peer.pid(), blamed, counts_kill, is_stopping_, leaves_memory_in_doubt};
  const std::int64_t in_hand = dispatcher_.on_gone(w, gone);
  roster_.unstick(w);
  m.end_deadline = os::Deadline::never();
  peer.close(waiter_.poller());
  m.died = !is_expected && !has_left && !m.lost_message;
  m.loss = m.is_late         ? Member::Loss::hung
           : m.is_invalid    ? Member::Loss::invalid
           : !had_attached   ? Member::Loss::unattached
           : ending.signaled ? Member::Loss::signal
                             : Member::Loss::exit;
  const Error end = m.died ? death_of(w, peer, gone, dispatcher_.epoch(), in_hand) : leaving_of(w, gone.pid);
  if (m.died) events_.push(FEEDLANE_EVENT_WORKER_DIED, end);
  if (!is_expected && (dispatcher_.is_work_left() || starter_.launcher().starts_early()))
    starter_.replace(w, was_ready, gone);
  if (!is_expected && !m.was_given_up && !starter_.launcher().starts_workers())
    events_.push(FEEDLANE_EVENT_WORKER_WANTED, end);
  dispatcher_.on_ready();
}

}  // namespace feedlane::loader
