// SPDX-License-Identifier: Apache-2.0
// Workers: started, heard and lost.
#include "supervisor/crew.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "os/process.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::supervisor {

Status Crew::set_up(ChildMain child_main, const os::SystemFiles& files, Error& error) {
  launcher_ = make_launcher(settings_, std::move(child_main));
  members_ = std::vector<Member>(settings_.workers);
  oldest_.resize(settings_.workers);
  for (std::uint32_t w = 0; w < size(); w++) {
    members_[w].peer.init(w, segments_);
    (void)lanes_.add({segments_.result_lane(w), shm::loader_cell_bytes, segments_.plan().geometry.ring_capacity}, 0,
                     &segments_.trainer_row(w)->result_position);
  }
  if (const int cpus = os::usable_cpus(files); static_cast<std::uint32_t>(cpus) < settings_.workers) {
    Error warning;
    (void)warning.refuse(FEEDLANE_E_LIMIT, "config.workers", settings_.workers, cpus,
                         "{} workers, but this process may use {} processors", settings_.workers, cpus);
    events_.push(FEEDLANE_EVENT_WARNING, warning);
  }
  const Status s = os::open_pidfd(::getpid(), self_, error);
  return s == FEEDLANE_OK && launcher_->starts_early() ? start_missing(error) : s;
}

bool Crew::any_ending() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& m) { return m.peer.is_ending() && !m.is_undead(); });
}

bool Crew::any_there() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.is_there() && !m.is_undead(); });
}

// Another worker has attached and takes tasks, or will once its data set is open. One in whose place a worker was given up
// before that does not count, or two that never open would be replaced in turn for ever.
bool Crew::others_continue(std::uint32_t w) const {
  for (const Member& m : members_) {
    const bool may_open = m.peer.state() == State::ready || !m.was_late;
    if (&m != &members_[w] && m.peer.has_attached() && m.peer.is_live() && !m.is_stuck && may_open) return true;
  }
  return false;
}

// ---- starting ----

Status Crew::open_place(std::uint32_t w, os::Fd& theirs, Error& error) {
  Member& m = members_[w];
  m.reset_generation();
  m.start_deadline_ns = deadlines_.attach_deadline_ns(launcher_->has_start_deadline());
  const Status s = m.peer.open(segments_, lanes_.prepare(w), owner_.epoch(), settings_.lifeline, self_.get(),
                               waiter_.poller(), theirs, error);
  if (s == FEEDLANE_OK && std::exchange(m.died, false)) shm::add(segments_.counters()->restarts);
  return s;
}

Status Crew::start(std::uint32_t w, Error& error) {
  os::Fd theirs;
  Status s = open_place(w, theirs, error);
  if (s == FEEDLANE_OK) {
    s = launcher_->start(members_[w].peer, std::move(theirs), waiter_.poller(), error);
    if (s != FEEDLANE_OK) lanes_.close(w);  // whatever it was that ran
  }
  if (s != FEEDLANE_OK) error.worker = static_cast<std::int32_t>(w);
  return s;
}

Status Crew::start_missing(Error& error) {
  if (!launcher_->starts_workers()) return FEEDLANE_OK;
  for (std::uint32_t w = 0; w < size(); w++) {
    members_[w].was_late = false;
    if (members_[w].is_there()) continue;
    members_[w].start_failures = 0;
    if (const Status s = start(w, error); s != FEEDLANE_OK) return s;
  }
  return FEEDLANE_OK;
}

Status Crew::open_worker(std::int32_t& id, os::Fd& fd, Error& error) {
  if (members_.empty()) return refuse_host(settings_.start, error);
  if (const Status s = launcher_->open_for_host(error); s != FEEDLANE_OK) return s;
  const auto count = static_cast<std::int32_t>(size());
  if (id < -1 || id >= count)
    return error.refuse(FEEDLANE_E_ARGUMENT, "id", id, count - 1, "worker {} of {}", id, count);
  if (const Status s = take_news(error); s != FEEDLANE_OK) return s;  // of those that died
  for (std::int32_t w = id < 0 ? 0 : id; w < (id < 0 ? count : id + 1); w++) {
    const auto place = static_cast<std::uint32_t>(w);
    if (members_[place].is_there()) continue;
    if (const Status s = open_place(place, fd, error); s != FEEDLANE_OK) return s;
    id = w;
    return launcher_->start(members_[place].peer, os::Fd(), waiter_.poller(), error);
  }
  if (id < 0) return FEEDLANE_END;
  return error.refuse(FEEDLANE_E_STATE, "id", id, -1, "worker {} is there already", id);
}

void Crew::close_in_child() {
  for (Member& m : members_) m.peer.close_in_child();
  self_.reset();
}

// ---- hearing ----

void Crew::sweep() {
  for (ring::Lanes::Message m = lanes_.peek(); m.data != nullptr; m = lanes_.peek()) {
    owner_.on_result(m.lane, shm::read_once<shm::ResultMessage>(m.data));  // if memory is short for it, it stays
    lanes_.release(m.lane);
  }
}

void Crew::drain_lane(std::uint32_t w) {
  while (lanes_.is_open(w)) {
    const ring::Lanes::Message m = lanes_.peek_lane(w);
    if (m.data == nullptr) return;
    owner_.on_result(w, shm::read_once<shm::ResultMessage>(m.data));
    lanes_.release(w);
  }
}

void Crew::handle(const os::Poller::Event& event) {
  const Tag tag = Tag::unpack(event.tag);
  if (tag.worker >= size()) return;  // not the crew's
  const Peer& peer = members_[tag.worker].peer;
  if (peer.state() == State::none || peer.generation() != tag.generation) return;  // a predecessor's
  switch (tag.kind) {
    case Tag::doorbell: return;
    case Tag::socket: return hear(tag.worker);
    case Tag::process: return lose(tag.worker);
  }
}

Status Crew::take_news(Error& error) {
  // A worker has a doorbell, a process and a socket, over which it says three things before its end.
  const std::size_t rounds = 4 * (3 * members_.size() / ring::Waiter::max_events + 1);
  const auto handle_one = [this](const os::Poller::Event& event) { owner_.on_event(event); };
  if (const Status s = waiter_.poll(rounds, handle_one, error); s != FEEDLANE_OK) return s;
  audit();
  if (next_deadline().remaining_ns() == 0) check_deadlines();
  return FEEDLANE_OK;
}

Status Crew::take_overdue_news(Error& error) {
  return std::exchange(has_overdue_news_, false) ? take_news(error) : FEEDLANE_OK;
}

// Its lane is open as soon as it has attached: until then it has nothing to say there.
Peer::Heard Crew::listen(std::uint32_t w, Error& error) {
  Member& m = members_[w];
  const Peer::Heard heard = m.peer.listen(waiter_.poller(), error);
  if (heard == Peer::Heard::attached) {
    start_error_ = {};
    m.start_failures = 0;
    m.refusal = {};
    (void)lanes_.open(w);
    m.start_deadline_ns = deadlines_.open_deadline_ns();
  }
  return heard;
}

// One message. The poller tells of the next, so that a worker that floods its socket cannot hold the trainer up.
void Crew::hear(std::uint32_t w) {
  Member& m = members_[w];
  Peer& peer = m.peer;
  os::Poller& poller = waiter_.poller();
  Error error;
  const Peer::Heard heard = listen(w, error);
  switch (heard) {
    case Peer::Heard::nothing: return;
    case Peer::Heard::attached: return owner_.on_ready();
    case Peer::Heard::ready:
      m.was_late = false;
      if (peer.is_thread()) unstick(w);  // its data set took too long to open
      return owner_.on_ready();
    case Peer::Heard::cannot_open: return owner_.on_failure(error);
    case Peer::Heard::left:
      // It cannot write any more. A process of the host's may live on. A child is about to end, and how it does tells why.
      if (!peer.is_child()) return lose(w);
      if (peer.is_ending()) return peer.close_socket(poller);
      m.end_deadline = os::Deadline::after(settings_.stop_timeout_ns);
      return peer.let_leave(poller);
    case Peer::Heard::hung_up:
      if (!peer.has_process()) return lose(w);  // an offer that nobody took
      return peer.is_ending() ? peer.close_socket(poller) : peer.cut_off(poller);
    case Peer::Heard::lost:  // not the worker's fault, but what it said will not come again
    case Peer::Heard::nonsense: break;
  }
  const bool is_nonsense = heard == Peer::Heard::nonsense;
  if (is_nonsense) shm::add(segments_.counters()->invalid_results);
  error.worker = static_cast<std::int32_t>(w);
  events_.push(is_nonsense ? FEEDLANE_EVENT_INVALID : FEEDLANE_EVENT_WARNING, error);
  // A child is started again, and the error is returned if it never attaches. The host's process costs the offer.
  if (peer.is_child() && !peer.has_attached() && is_nonsense) m.refusal = error;
  if (!is_nonsense && !peer.has_attached() && launcher_->starts_workers()) {
    m.was_unheard = true;
    start_error_ = error;
  }
  if (!peer.has_process()) return lose(w);
  peer.cut_off(poller);
}

// ---- losing ----

// What a worker said before it died may not have been read yet: above all, why it could not open its data set.
void Crew::hear_last_words(std::uint32_t w) {
  for (Peer::Heard heard = Peer::Heard::attached; heard == Peer::Heard::attached || heard == Peer::Heard::ready;) {
    Error error;
    heard = members_[w].peer.has_socket() ? listen(w, error) : Peer::Heard::nothing;
    if (heard == Peer::Heard::cannot_open) owner_.on_failure(error);
  }
}

// The worker is seen to be gone: what it committed counts, the rest goes to others, and another worker takes its place.
void Crew::lose(std::uint32_t w) {
  Member& m = members_[w];
  Peer& peer = m.peer;
  hear_last_words(w);
  const bool is_expected = is_stopping_ || peer.is_ending();
  const bool has_left = peer.has_left() && !peer.is_child();  // a child is about to end, and how it does tells why
  const bool had_attached = peer.has_attached();
  if (!peer.has_left() && !peer.is_thread()) owner_.on_memory_in_doubt();
  const os::Ending ending = peer.reap();
  char how[64] = "ended";
  if (ending.known)
    (void)format_to(how, "{} {}", ending.signaled ? "was killed by signal" : "exited with status", ending.code);
  drain_lane(w);
  lanes_.close(w);
  const std::uint64_t refused = m.refused_task;
  const Gone gone{how,          peer.pid(),  refused != 0 ? refused : peer.tasks().in_hand(), !m.is_undead(),
                  refused != 0, is_stopping_};
  const std::int64_t in_hand = owner_.on_gone(w, gone);
  if (peer.was_cut_off() && refused != 0) (void)format_to(how, "was ended for saying what makes no sense");
  unstick(w);
  m.end_deadline = os::Deadline::never();
  peer.close(waiter_.poller());
  m.died = !is_expected && !has_left && !m.was_unheard;
  if (m.died) tell_of_death(w, gone, in_hand);
  else if (!is_expected && !launcher_->starts_workers()) tell_of_leaving(w, gone.pid);
  if (!is_expected && (owner_.is_work_left() || launcher_->starts_early())) replace(w, had_attached, gone);
  owner_.on_ready();
}

void Crew::tell_of_death(std::uint32_t w, const Gone& gone, std::int64_t batch) {
  const char* const why = members_[w].peer.why_not_attached();
  Error error;
  (void)error.fail(FEEDLANE_E_PEER_DEAD, "worker {}: process {} {}{}{}", w, gone.pid, gone.how,
                   *why == '\0' ? "" : " before it attached: ", first(280, why));
  error.worker = static_cast<std::int32_t>(w);
  error.epoch = batch < 0 ? -1 : owner_.epoch();
  error.batch = batch;
  events_.push(FEEDLANE_EVENT_WORKER_DIED, error);
  if (!launcher_->starts_workers()) events_.push(FEEDLANE_EVENT_WORKER_WANTED, error);
}

void Crew::tell_of_leaving(std::uint32_t w, pid_t pid) {
  Error error;
  (void)error.fail(FEEDLANE_OK, "worker {}: process {} has left", w, pid);
  error.worker = static_cast<std::int32_t>(w);
  events_.push(FEEDLANE_EVENT_WORKER_WANTED, error);
}

}  // namespace feedlane::supervisor
