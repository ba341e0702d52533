// SPDX-License-Identifier: Apache-2.0
#include "ring/receiver.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>

#include "os/event.hpp"
#include "os/process.hpp"
#include "ring/hello.hpp"

namespace feedlane::ring {
namespace {

constexpr std::uint64_t listener_tag = UINT64_MAX;
constexpr std::uint64_t close_tag = UINT64_MAX - 1;
enum Kind : std::uint64_t { kind_doorbell, kind_process, kind_socket };

// The generation tells late events of a lane's former sender apart.
std::uint64_t make_tag(std::uint32_t generation, std::uint32_t lane, Kind kind) {
  return std::uint64_t{generation} << 32 | std::uint64_t{lane} << 2 | kind;
}

template <class Message>
Status send(const os::Fd& socket, const Message& message, std::span<const int> fds, Error& error) {
  return os::send_message(socket.get(), std::as_bytes(std::span(&message, 1)), fds, error);
}

// Tells a sender why it isn't let in.
void refuse(const os::Fd& socket, const Error& why) {
  Error nobody_to_tell;
  (void)send(socket, RingRefused{ring_refused_magic, why.os_errno, 0}, {}, nobody_to_tell);
}

}  // namespace

Status Receiver::create(const shm::RingPlan& plan, const std::string& path, const os::SystemFiles& files,
                        Error& error) {
  plan_ = plan;
  Status s = segments_.create(shm::SegmentKind::ring_control, plan.control_bytes, plan.data_bytes, {plan.data_bytes},
                              files, error);
  if (s == FEEDLANE_OK) s = os::open_pidfd(::getpid(), self_, error);
  if (s == FEEDLANE_OK) s = poller_.open(error);
  if (s == FEEDLANE_OK) s = os::create_event(close_event_, error);
  if (s == FEEDLANE_OK) s = poller_.add(close_event_.get(), close_tag, error);
  if (s != FEEDLANE_OK) return s;
  *segments_.control<shm::RingGeometry>(sizeof(shm::SegmentHeader)) = plan.geometry;
  senders_ = std::vector<Sender>(plan.geometry.lanes);
  for (std::uint32_t lane = 0; lane < plan.geometry.lanes; lane++) {
    const Cells cells{segments_.data<std::byte>(plan.cells + lane * plan.lane_bytes), plan.geometry.cell_bytes,
                      plan.geometry.capacity};
    (void)lanes_.add(cells, 0, &segments_.control<shm::ReceiverRow>(plan.receiver_rows)[lane].position);
    senders_[lane].sleeping = &segments_.data<shm::SenderRow>(plan.sender_rows)[lane].sleeping;
  }
  sleeper_ = Sleeper(&segments_.control<shm::ReceiverBlock>(plan.receiver_block)->sleeping,
                     os::join_barriers() ? FencedBy::sleeper : FencedBy::publisher);
  owner_ = ::getpid();
  if (path.empty()) return FEEDLANE_OK;
  s = os::listen_at(path, listener_, file_, error);
  if (s != FEEDLANE_OK) return s;
  return poller_.add(listener_.get(), listener_tag, error);
}

// Senders are told, and those at the door, though a forked child may have all of our descriptors.
Receiver::~Receiver() {
  if (owner_ != ::getpid()) return;
  if (listener_) os::unlink_socket(file_);
  os::shut_down_listener(listener_.get());
  for (const Sender& sender : senders_) os::shut_down(sender.socket.get());
}

// ---- senders ----

bool Receiver::find_free(std::uint32_t& lane) {
  for (lane = 0; lane < senders_.size(); lane++) {
    close_if_empty(lane);
    if (senders_[lane].state == Sender::State::free) return true;
  }
  return false;
}

// A free lane's, for the sender to come. Both or none.
Status Receiver::make_events(std::uint32_t lane, Error& error) {
  Sender& sender = senders_[lane];
  Status s = os::create_event(sender.sender_event, error);
  if (s == FEEDLANE_OK) s = os::create_event(sender.receiver_event, error);
  if (s != FEEDLANE_OK) sender.sender_event.reset();
  return s;
}

// Everything that a sender needs lies in the socket when this returns. The lane's events have been made.
Status Receiver::let_in(std::uint32_t lane, os::Fd socket, Error& error) {
  Sender& sender = senders_[lane];
  const RingWelcome welcome{ring_welcome_magic, shm::layout_hash, lane, abilities_of(sleeper_), lanes_.prepare(lane)};
  (void)lanes_.open(lane);
  int fds[ring_welcome_fds];
  fds[ring_welcome_control] = segments_.control_fd();
  fds[ring_welcome_data] = segments_.data_fd();
  fds[ring_welcome_sender_event] = sender.sender_event.get();
  fds[ring_welcome_receiver_event] = sender.receiver_event.get();
  fds[ring_welcome_receiver] = self_.get();
  sender.socket = std::move(socket);
  sender.state = Sender::State::offered;
  sender.fenced_by = FencedBy::publisher;  // until it says otherwise
  Status s = poller_.add(sender.socket.get(), make_tag(sender.generation, lane, kind_socket), error);
  if (s == FEEDLANE_OK)
    s = poller_.add_bell(sender.receiver_event.get(), make_tag(sender.generation, lane, kind_doorbell), error);
  if (s == FEEDLANE_OK) s = send(sender.socket, welcome, fds, error);
  if (s != FEEDLANE_OK) {
    refuse(sender.socket, error);
    lose(lane);
  }
  return s;
}

Status Receiver::offer(os::Fd& theirs, Error& error) {
  sleeper_.cancel();  // whatever rang is taken here: who armed before must do it again
  if (const Status s = take_news(error); s != FEEDLANE_OK) return s;  // of the dead first: their lanes are free
  std::uint32_t lane = 0;
  if (!find_free(lane))
    return error.refuse(FEEDLANE_E_LIMIT, "config.lanes", static_cast<std::int64_t>(senders_.size()),
                        static_cast<std::int64_t>(senders_.size()) + 1, "all %zu lanes have a sender", senders_.size());
  os::Fd mine;
  os::Fd other;
  Status s = os::create_socket_pair(mine, other, error);
  if (s == FEEDLANE_OK) s = make_events(lane, error);
  if (s == FEEDLANE_OK) s = let_in(lane, std::move(mine), error);
  if (s != FEEDLANE_OK) return s;
  theirs = std::move(other);
  note_arrival();  // if its process never attaches, that is an end too
  return s;
}

Status Receiver::accept_one(Error& error) {
  std::uint32_t lane = 0;
  const bool is_free = find_free(lane);
  // Before it is accepted: one that can't be given all it needs stands at the door until it can.
  if (is_free)
    if (const Status s = make_events(lane, error); s != FEEDLANE_OK) return s;
  Error nobody_to_tell;
  os::Fd socket;
  const Status s = os::accept_same_user(listener_.get(), socket, nobody_to_tell);
  if (s == FEEDLANE_OK && is_free) {
    (void)let_in(lane, std::move(socket), nobody_to_tell);
    return FEEDLANE_OK;
  }
  if (is_free) {
    senders_[lane].sender_event.reset();
    senders_[lane].receiver_event.reset();
  }
  if (s == FEEDLANE_OK) (void)send(socket, RingWord{ring_full_magic}, {}, nobody_to_tell);
  if (s != FEEDLANE_E_OS || (nobody_to_tell.os_errno != EMFILE && nobody_to_tell.os_errno != ENFILE))
    return FEEDLANE_OK;
  error = nobody_to_tell;  // it still stands at the door, and the poller would tell of it for ever
  return s;
}

// That the sender's end will be seen, or its lane would never be free again.
Status Receiver::watch(std::uint32_t lane, os::Received& received, Error& error) {
  if (received.fd_count == 0 && received.pid == ::getpid()) return FEEDLANE_OK;  // it ends with us
  pid_t named = 0;
  if (const Status s = os::pid_of_pidfd(received.fds[0].get(), named, error); s != FEEDLANE_OK) return s;
  // The kernel says who sent it; the pidfd must be that process.
  if (received.fd_count != 1 || named == 0 || named != received.pid)
    return error.fail(FEEDLANE_E_STATE, "no pidfd of the sender's process");
  os::Fd& process = senders_[lane].process;
  process = std::move(received.fds[0]);
  return poller_.add(process.get(), make_tag(senders_[lane].generation, lane, kind_process), error);
}

void Receiver::hear(std::uint32_t lane) {
  Sender& sender = senders_[lane];
  RingAttached word{};
  os::Received received;
  Error why;
  Status s = os::receive_message(sender.socket.get(), std::as_writable_bytes(std::span(&word, 1)), received, why);
  if (s == FEEDLANE_AGAIN) return;
  const bool whole = s == FEEDLANE_OK && !received.truncated;
  if (sender.state == Sender::State::offered) {
    if (s == FEEDLANE_OK && !(whole && received.bytes == sizeof word && word.magic == ring_attached_magic))
      return lose(lane);
    if (s == FEEDLANE_OK) s = watch(lane, received, why);
    if (s == FEEDLANE_OK && sender.process) s = send(sender.socket, RingWord{ring_accepted_magic}, {}, why);
    if (s != FEEDLANE_OK) {
      refuse(sender.socket, why);
      return lose(lane);
    }
    os::refuse_descriptors(sender.socket.get());
    sender.state = Sender::State::attached;
    if ((word.abilities & ring_passes_barriers) != 0) sender.fenced_by = sleeper_.fenced_by();
    note_arrival();  // who only connects to the path is nobody
    return;
  }
  if (whole && received.bytes == sizeof(RingWord) && word.magic == ring_leaving_magic) return lose(lane);
  // The end of the socket is no proof, and nonsense no excuse: the lane is free when the process is seen to have ended.
  poller_.remove(sender.socket.get());
  os::discard_messages(sender.socket.get());
  sender.socket.reset();
}

// The sender has left or is observed dead: what it committed stays to be taken, then the lane is free.
void Receiver::lose(std::uint32_t lane) {
  Sender& sender = senders_[lane];
  poller_.remove(sender.socket.get());
  poller_.remove(sender.receiver_event.get());
  poller_.remove(sender.process.get());
  os::discard_messages(sender.socket.get());
  os::shut_down(sender.socket.get());
  sender.socket.reset();
  sender.process.reset();
  sender.sender_event.reset();
  sender.receiver_event.reset();
  sender.generation++;
  sender.state = Sender::State::left;
  close_if_empty(lane);
}

// ---- messages ----

// Asked again whenever it matters: who has left may still have the memory, and take a message back.
void Receiver::close_if_empty(std::uint32_t lane) {
  if (senders_[lane].state != Sender::State::left || lanes_.peek_lane(lane).data != nullptr) return;
  lanes_.close(lane);
  if (lane == peeked_lane_) peeked_ = 0;  // a sender that takes committed messages back has them given up
  senders_[lane].state = Sender::State::free;
}

void Receiver::note_arrival() {
  anybody_came_ = true;
  end_told_ = false;
}

bool Receiver::has_ended() {
  if (!anybody_came_) return false;
  for (std::uint32_t lane = 0; lane < senders_.size(); lane++) {
    close_if_empty(lane);
    if (senders_[lane].state != Sender::State::free) return false;
  }
  return true;
}

Status Receiver::peek(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error) {
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  for (bool is_last = false;; is_last = deadline.remaining_ns() == 0) {  // though a sender may ring for ever
    if (try_peek(want, got)) return FEEDLANE_OK;
    if (has_ended()) {  // unless somebody stands at the door
      if (const Status s = take_news(error); s != FEEDLANE_OK) return s;
      if (has_ended()) {
        end_told_ = true;
        return FEEDLANE_END;
      }
      continue;
    }
    if (closed_.load(std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;  // see `close`
    if (is_last) return FEEDLANE_TIMEOUT;
    if (spin_.until(deadline, [&] { return try_peek(want, got); })) return FEEDLANE_OK;
    const Status s = wait(deadline, error);
    if (s == FEEDLANE_TIMEOUT && try_peek(want, got)) return FEEDLANE_OK;  // nobody may have rung: see Sleeper::is_sure
    if (s != FEEDLANE_OK) return s;
  }
}

Status Receiver::release(std::uint32_t lane, std::uint32_t count, Error& error) {
  if (try_release(lane, count)) return FEEDLANE_OK;
  if (lane != peeked_lane_ || count > peeked_)
    return error.refuse(FEEDLANE_E_ARGUMENT, lane != peeked_lane_ ? "lane" : "count",
                        lane != peeked_lane_ ? lane : count, lane != peeked_lane_ ? peeked_lane_ : peeked_,
                        "%u messages of lane %u, the last peek was %u of lane %u", count, lane, peeked_, peeked_lane_);
  peeked_ -= count;  // of a sender that has left
  lanes_.release(lane, count);
  close_if_empty(lane);
  return FEEDLANE_OK;
}

// ---- waiting ----

Status Receiver::handle(const os::Poller::Event& event, Error& error) {
  if (event.tag == listener_tag) return accept_one(error);
  if (event.tag == close_tag) return FEEDLANE_OK;
  const auto lane = static_cast<std::uint32_t>(event.tag) >> 2;
  Sender& sender = senders_[lane];
  const bool there = sender.state == Sender::State::offered || sender.state == Sender::State::attached;
  if (!there || sender.generation != event.tag >> 32) return FEEDLANE_OK;  // its predecessor's
  switch (static_cast<Kind>(event.tag & 3)) {
    case kind_doorbell: break;
    case kind_process: lose(lane); break;
    case kind_socket: hear(lane); break;
  }
  return FEEDLANE_OK;
}

void Receiver::close() {
  // Relaxed: the event is what wakes, the flag only says why.
  closed_.store(true, std::memory_order_relaxed);
  os::signal_event(close_event_.get());
}

Status Receiver::wait(os::Deadline deadline, Error& error) {
  if (deadline.remaining_ns() != 0) {  // else it only asks for news, and nobody need ring
    sleeper_.prepare();
    if (lanes_.any()) {
      sleeper_.cancel();
      return FEEDLANE_OK;
    }
  }
  std::array<os::Poller::Event, 64> events{};
  std::size_t count = 0;
  Status s = poller_.wait(sleeper_.limit(deadline), events, count, error);
  if (s == FEEDLANE_TIMEOUT && deadline.remaining_ns() != 0) s = FEEDLANE_OK;  // to look again
  sleeper_.cancel();
  for (std::size_t i = 0; i < count; i++)
    if (const Status handled = handle(events[i], error); handled != FEEDLANE_OK) s = handled;
  return s;
}

Status Receiver::arm(Error& error) {
  sleeper_.cancel();
  if (const Status s = take_news(error); s != FEEDLANE_OK) return s;
  sleeper_.prepare();
  // An end that peek has told of is no reason to stay awake: somebody may come yet. What is in the poller already wakes nobody
  // who waits for edges.
  const bool is_quiet = !lanes_.any() && (end_told_ || !has_ended()) && !poller_.has_news();
  if (is_quiet && sleeper_.is_sure()) return FEEDLANE_OK;
  sleeper_.cancel();
  return is_quiet ? error.fail(FEEDLANE_E_OS, "membarrier, which worked before, is refused") : FEEDLANE_AGAIN;
}

// What has happened, without waiting. Bounded: a sender that never stops ringing has an event in every round.
Status Receiver::take_news(Error& error) {
  std::array<os::Poller::Event, 64> events{};
  std::size_t count = 0;
  // A sender has a doorbell, a process and a socket, over which it says two things before its end.
  const std::size_t rounds = 3 * (3 * senders_.size() / events.size() + 1);
  for (std::size_t round = 0; round < rounds; round++) {
    const Status s = poller_.wait(os::Deadline::at(0), events, count, error);
    if (s == FEEDLANE_TIMEOUT) break;
    if (s < 0) return s;
    Status handled = FEEDLANE_OK;
    for (std::size_t i = 0; i < count; i++)
      if (const Status one = handle(events[i], error); one != FEEDLANE_OK) handled = one;
    if (handled != FEEDLANE_OK) return handled;
  }
  return FEEDLANE_OK;
}

}  // namespace feedlane::ring
