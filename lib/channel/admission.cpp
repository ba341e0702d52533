// SPDX-License-Identifier: Apache-2.0
// Whom a ring's receiver lets in, by what it learns of their ends, and what becomes of their lanes.
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>

#include "channel/greeting.hpp"
#include "channel/receiver.hpp"
#include "os/event.hpp"
#include "os/process.hpp"

namespace feedlane::channel {
namespace {

template <class Message>
Status send(const os::Fd& socket, const Message& message, std::span<const int> fds, Error& error) {
  return os::send_message(socket.get(), std::as_bytes(std::span(&message, 1)), fds, error);
}

// Tells a sender why it isn't let in.
void refuse(const os::Fd& socket, const Error& why) {
  const bool is_unseen = why.code == FEEDLANE_E_STATE || why.code == FEEDLANE_E_PEER_DEAD;
  const int reason = why.os_errno != 0 || is_unseen ? why.os_errno : ENOMEM;
  Error nobody_to_tell;
  (void)send(socket, RingRefused{ring_refused_magic, reason, 0}, {}, nobody_to_tell);
}

bool lacks_descriptors(const Error& error) { return error.os_errno == EMFILE || error.os_errno == ENFILE; }

}  // namespace

bool Receiver::find_free(std::uint32_t& lane) {
  for (lane = 0; lane < senders_.size(); lane++) {
    close_if_empty(lane);
    if (senders_[lane].state == Sender::State::free) return true;
  }
  return false;
}

// ---- what a sender is given ----

// A free lane's, for the sender to come. Both or none.
Status Receiver::make_events(std::uint32_t lane, Error& error) {
  Sender& sender = senders_[lane];
  if (sender.sender_event) return FEEDLANE_OK;
  Status s = os::create_event(sender.sender_event, error);
  if (s == FEEDLANE_OK) s = os::create_event(sender.receiver_event, error);
  if (s != FEEDLANE_OK) sender.sender_event.reset();
  return s;
}

// Events and memory: all or none.
Status Receiver::make_room(std::uint32_t lane, Error& error) {
  Status s = os::check_memory({plan_.data_bytes}, plan_.data_bytes, files_, error);
  if (s == FEEDLANE_OK) s = make_events(lane, error);
  if (s == FEEDLANE_OK) s = segments_.create_data(plan_.data_bytes, files_, senders_[lane].memory, error);
  if (s != FEEDLANE_OK) give_up_room(lane);
  return s;
}

void Receiver::give_up_room(std::uint32_t lane) {
  senders_[lane].memory.discard();
  senders_[lane].sender_event.reset();
  senders_[lane].receiver_event.reset();
}

// Everything that a sender needs lies in the socket when this returns. There is room for it.
Status Receiver::let_in(std::uint32_t lane, os::Fd socket, Error& error) {
  Sender& sender = senders_[lane];
  sender.sleeping = &sender.memory.at<shm::SenderRow>(plan_.sender_row)->sleeping;
  const std::uint64_t start = lanes_.renew(
      lane, {sender.memory.at<std::byte>(plan_.cells), plan_.geometry.cell_bytes, plan_.geometry.capacity});
  const std::uint32_t naming = os::names_senders(socket.get()) ? ring_names_senders : 0;
  const RingWelcome welcome{ring_welcome_magic, shm::layout_hash, lane, abilities_of(waiter_.fenced_by()) | naming,
                            start};
  int fds[ring_welcome_fds];
  fds[ring_welcome_control] = segments_.control_fd();
  fds[ring_welcome_data] = sender.memory.fd();
  fds[ring_welcome_sender_event] = sender.sender_event.get();
  fds[ring_welcome_receiver_event] = sender.receiver_event.get();
  fds[ring_welcome_receiver] = self_.get();
  sender.socket = std::move(socket);
  sender.state = Sender::State::offered;
  sender.fenced_by = ring::FencedBy::publisher;  // until it says otherwise
  Status s = waiter_.poller().add(sender.socket.get(), make_tag(sender.generation, lane, kind_socket), error);
  if (s == FEEDLANE_OK)
    s = waiter_.poller().add_bell(sender.receiver_event.get(), make_tag(sender.generation, lane, kind_doorbell), error);
  if (s == FEEDLANE_OK) s = send(sender.socket, welcome, fds, error);
  sender.memory.close_fd();
  if (s != FEEDLANE_OK) {
    refuse(sender.socket, error);
    lose(lane);
  }
  return s;
}

// ---- how senders come ----

Status Receiver::offer(os::Fd& theirs, Error& error) {
  waiter_.cancel();  // whatever rang is taken here: who armed before must do it again
  if (const Status s = take_news(error); s != FEEDLANE_OK) return s;  // of the dead first: their lanes are free
  std::uint32_t lane = 0;
  if (!find_free(lane))
    return error.refuse(FEEDLANE_E_LIMIT, "config.lanes", senders_.size(),
                        static_cast<std::int64_t>(senders_.size()) + 1, "all {} lanes have a sender", senders_.size());
  os::Fd mine;
  os::Fd other;
  Status s = os::create_socket_pair(mine, other, error);
  if (s == FEEDLANE_OK) s = make_room(lane, error);
  if (s == FEEDLANE_OK) s = let_in(lane, std::move(mine), error);
  if (s != FEEDLANE_OK) return s;
  theirs = std::move(other);
  note_arrival();  // if its process never attaches, that is an end too
  return s;
}

Status Receiver::accept_one(Error& error) {
  std::uint32_t lane = 0;
  const bool is_free = find_free(lane);
  // Before it is accepted: one that can't be given what it needs stays in the backlog until it can.
  if (is_free)
    if (const Status s = make_events(lane, error); s != FEEDLANE_OK) return s;
  Error nobody_to_tell;
  os::Fd socket;
  Status s = os::accept_same_user(listener_.get(), socket, nobody_to_tell);
  if (s == FEEDLANE_OK) {
    const std::uint32_t place = std::exchange(next_guest_, (next_guest_ + 1) % max_guests);
    Guest& guest = guests_[place];
    dismiss(place);
    guest.socket = std::move(socket);
    guest.generation++;
    guest.expected = os::Deadline::after(guest_patience_ns);
    s = waiter_.poller().add(guest.socket.get(), make_tag(guest.generation, place, kind_guest), nobody_to_tell);
    if (s == FEEDLANE_OK) return hear_guest(place, error);
    guest.socket.reset();
  }
  if (is_free) give_up_room(lane);
  if (!lacks_descriptors(nobody_to_tell)) return FEEDLANE_OK;
  error = nobody_to_tell;  // it is still in the backlog, and the poller would tell of it for ever
  return s;
}

// It has waited for longer than all others, and not asked.
void Receiver::dismiss(std::uint32_t place) {
  os::Fd& socket = guests_[place].socket;
  if (!socket) return;
  Error nobody_to_tell;
  waiter_.poller().remove(socket.get());
  (void)send(socket, RingWord{ring_full_magic}, {}, nobody_to_tell);
  os::discard_messages(socket.get());
  socket.reset();
}

bool Receiver::expects_guests() const {
  for (const Guest& guest : guests_)
    if (guest.socket && guest.expected.remaining_ns() != 0) return true;
  return false;
}

// A lane is for who asks for it: a bare connection is none, and keeps no END from being said.
Status Receiver::hear_guest(std::uint32_t place, Error& error) {
  std::uint32_t lane = 0;
  const bool is_free = find_free(lane);
  Error why;
  if (os::wait_readable(guests_[place].socket.get(), os::Deadline::at(0), why) != FEEDLANE_OK) {
    if (is_free) give_up_room(lane);
    return FEEDLANE_OK;
  }
  const RingWord asking{ring_asking_magic};
  const bool asks = os::is_next_message(guests_[place].socket.get(), std::as_bytes(std::span(&asking, 1)));
  const Status room = asks && is_free ? make_room(lane, why) : Status{FEEDLANE_OK};
  if (room != FEEDLANE_OK && lacks_descriptors(why)) {  // its word stays where it is, so that it is heard again
    error = why;
    return room;
  }
  waiter_.poller().remove(guests_[place].socket.get());
  os::Fd socket = std::move(guests_[place].socket);
  Error nobody_to_tell;
  os::discard_messages(socket.get());
  if (asks && is_free && room == FEEDLANE_OK) {
    (void)let_in(lane, std::move(socket), nobody_to_tell);
    return FEEDLANE_OK;
  }
  if (asks && is_free) refuse(socket, why);
  else if (asks) (void)send(socket, RingWord{ring_full_magic}, {}, nobody_to_tell);
  if (is_free) give_up_room(lane);
  return FEEDLANE_OK;
}

// ---- what they say, and their ends ----

// That the sender's end will be seen, or its lane would never be free again.
Status Receiver::watch(std::uint32_t lane, os::Received& received, Error& error) {
  if (received.pid == ::getpid()) return FEEDLANE_OK;  // it ends with us
  os::Fd& process = senders_[lane].process;
  if (const Status s = os::open_sender(received, process, error); s != FEEDLANE_OK) return s;
  return waiter_.poller().add(process.get(), make_tag(senders_[lane].generation, lane, kind_process), error);
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
    sender.state = Sender::State::attached;
    (void)lanes_.open(lane);
    if ((word.abilities & ring_passes_barriers) != 0) sender.fenced_by = waiter_.fenced_by();
    note_arrival();
    return;
  }
  if (whole && received.bytes == sizeof(RingWord) && word.magic == ring_leaving_magic) return lose(lane);
  if (s == FEEDLANE_END && !sender.process)
    return lose(lane);  // of this very process: nothing more would tell of its end
  // The end of the socket is no proof, and nonsense no excuse: the lane is free when the process is seen to have ended.
  waiter_.poller().remove(sender.socket.get());
  os::discard_messages(sender.socket.get());
  sender.socket.reset();
}

// The sender has left or is observed dead: what it committed stays to be taken, then the lane is free.
void Receiver::lose(std::uint32_t lane) {
  Sender& sender = senders_[lane];
  waiter_.poller().remove(sender.socket.get());
  waiter_.poller().remove(sender.receiver_event.get());
  waiter_.poller().remove(sender.process.get());
  os::discard_messages(sender.socket.get());
  os::shut_down(sender.socket.get());
  sender.socket.reset();
  sender.process.reset();
  sender.sender_event.reset();
  sender.receiver_event.reset();
  sender.generation++;
  sender.state = Sender::State::left;
  sender.end = lanes_.position(lane) + plan_.geometry.capacity;
  close_if_empty(lane);
}

// Asked again whenever it matters: others may still have the memory, take messages back or put new ones there. Not while the
// caller looks at messages there.
void Receiver::close_if_empty(std::uint32_t lane) {
  Sender& sender = senders_[lane];
  if (sender.state != Sender::State::left) return;
  const std::uint64_t position = lanes_.position(lane);
  const bool is_over = !lanes_.is_open(lane) || lanes_.peek_lane(lane).data == nullptr ||
                       static_cast<std::int64_t>(position - sender.end) >= 0;
  const bool is_shown = sender.shown.finds == finds_ && sender.shown.end != position;
  if (!is_over || is_shown) return;
  lanes_.close(lane);
  sender.shown = {};
  sender.memory.discard();
  sender.state = Sender::State::free;
}

}  // namespace feedlane::channel
