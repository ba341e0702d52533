// SPDX-License-Identifier: Apache-2.0
// Admission of senders by a ring's receiver: offers, connections, acceptance or refusal, and the end of a sender.
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

// Sends a sender the reason for its refusal.
void refuse(const os::Fd& socket, const Error& why) {
  const bool is_unseen = why.code == FEEDLANE_E_STATE || why.code == FEEDLANE_E_PEER_DEAD;
  const int reason = why.os_errno != 0 || is_unseen ? why.os_errno : ENOMEM;
  Error ignored;
  (void)send(socket, RingRefused{ring_refused_magic, reason, 0}, {}, ignored);
}

bool lacks_descriptors(const Error& error) { return error.os_errno == EMFILE || error.os_errno == ENFILE; }

}  // namespace

bool Receiver::find_free(std::uint32_t& lane) {
  for (lane = 0; lane < senders_.size(); lane++) {
    free_if_empty(lane);
    if (senders_[lane].state == Sender::State::free) return true;
  }
  return false;
}

// ---- resources of a sender ----

// Creates the eventfds for a free lane's next sender: both or none.
Status Receiver::make_events(std::uint32_t lane, Error& error) {
  Sender& sender = senders_[lane];
  if (sender.sender_event) return FEEDLANE_OK;
  Status s = os::create_event(sender.sender_event, error);
  if (s == FEEDLANE_OK) s = os::create_event(sender.receiver_event, error);
  if (s != FEEDLANE_OK) sender.sender_event.reset();
  return s;
}

// Creates the eventfds and the memory for a free lane's next sender: all or none.
Status Receiver::make_room(std::uint32_t lane, Error& error) {
  Status s = os::check_memory({plan_.data_bytes}, plan_.data_bytes, files_, error);
  if (s == FEEDLANE_OK) s = make_events(lane, error);
  if (s == FEEDLANE_OK) s = segments_.create_data(plan_.data_bytes, files_, senders_[lane].memory, error);
  if (s != FEEDLANE_OK) release_room(lane);
  return s;
}

void Receiver::release_room(std::uint32_t lane) {
  senders_[lane].memory.discard();
  senders_[lane].sender_event.reset();
  senders_[lane].receiver_event.reset();
}

// Sends the welcome and every descriptor that the sender needs, before it returns. make_room must have succeeded for
// the lane.
Status Receiver::admit(std::uint32_t lane, os::Fd socket, Error& error) {
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
  sender.fenced_by = ring::FencedBy::publisher;  // until RingAttached says otherwise
  Status s = waiter_.poller().add(sender.socket.get(), make_tag(sender.generation, lane, kind_socket), error);
  if (s == FEEDLANE_OK)
    s = waiter_.poller().add_bell(sender.receiver_event.get(), make_tag(sender.generation, lane, kind_doorbell), error);
  if (s == FEEDLANE_OK) s = send(sender.socket, welcome, fds, error);
  sender.memory.close_fd();
  if (s != FEEDLANE_OK) {
    refuse(sender.socket, error);
    end_sender(lane);
  }
  return s;
}

// ---- offers and connections ----

Status Receiver::offer(os::Fd& theirs, Error& error) {
  waiter_.cancel();  // this call handles events, so a caller that has armed must arm again
  if (const Status s = handle_events(error); s != FEEDLANE_OK) return s;  // may free lanes of dead senders
  std::uint32_t lane = 0;
  if (!find_free(lane))
    return error.refuse(FEEDLANE_E_LIMIT, "config.lanes", senders_.size(),
                        static_cast<std::int64_t>(senders_.size()) + 1, "all {} lanes have a sender", senders_.size());
  os::Fd mine;
  os::Fd other;
  Status s = os::create_socket_pair(mine, other, error);
  if (s == FEEDLANE_OK) s = make_room(lane, error);
  if (s == FEEDLANE_OK) s = admit(lane, std::move(mine), error);
  if (s != FEEDLANE_OK) return s;
  theirs = std::move(other);
  record_arrival();  // END must come even if the process never attaches
  return s;
}

Status Receiver::accept_one(Error& error) {
  std::uint32_t lane = 0;
  const bool is_free = find_free(lane);
  // Before accept(2), so that a connection stays in the listen backlog if there are no descriptors for its eventfds.
  if (is_free)
    if (const Status s = make_events(lane, error); s != FEEDLANE_OK) return s;
  Error why;
  os::Fd socket;
  Status s = os::accept_same_user(listener_.get(), socket, why);
  if (s == FEEDLANE_OK) {
    const std::uint32_t place = std::exchange(next_guest_, (next_guest_ + 1) % max_guests);
    Guest& guest = guests_[place];
    dismiss(place);
    guest.socket = std::move(socket);
    guest.generation++;
    guest.expected = os::Deadline::after(guest_patience_ns);
    s = waiter_.poller().add(guest.socket.get(), make_tag(guest.generation, place, kind_guest), why);
    if (s == FEEDLANE_OK) return read_request(place, error);
    guest.socket.reset();
  }
  if (is_free) release_room(lane);
  if (!lacks_descriptors(why)) return FEEDLANE_OK;
  error = why;  // the connection stays in the backlog, so the poller would report it without end
  return s;
}

// Disconnects the guest in this place, if there is one. Called for the place of the oldest guest.
void Receiver::dismiss(std::uint32_t place) {
  os::Fd& socket = guests_[place].socket;
  if (!socket) return;
  Error ignored;
  waiter_.poller().remove(socket.get());
  (void)send(socket, RingWord{ring_full_magic}, {}, ignored);
  os::discard_messages(socket.get());
  socket.reset();
}

bool Receiver::expects_guests() const {
  for (const Guest& guest : guests_)
    if (guest.socket && guest.expected.remaining_ns() != 0) return true;
  return false;
}

// A guest gets a lane only when it asks for one. Without a request it takes no lane, and delays END by
// guest_patience_ns at most.
Status Receiver::read_request(std::uint32_t place, Error& error) {
  std::uint32_t lane = 0;
  const bool is_free = find_free(lane);
  Error why;
  if (os::wait_readable(guests_[place].socket.get(), os::Deadline::at(0), why) != FEEDLANE_OK) {
    if (is_free) release_room(lane);
    return FEEDLANE_OK;
  }
  const RingWord asking{ring_asking_magic};
  const bool asks = os::is_next_message(guests_[place].socket.get(), std::as_bytes(std::span(&asking, 1)));
  const Status room = asks && is_free ? make_room(lane, why) : Status{FEEDLANE_OK};
  if (room != FEEDLANE_OK && lacks_descriptors(why)) {  // the request stays in the socket and is read again
    error = why;
    return room;
  }
  waiter_.poller().remove(guests_[place].socket.get());
  os::Fd socket = std::move(guests_[place].socket);
  Error ignored;
  os::discard_messages(socket.get());
  if (asks && is_free && room == FEEDLANE_OK) {
    (void)admit(lane, std::move(socket), ignored);
    return FEEDLANE_OK;
  }
  if (asks && is_free) refuse(socket, why);
  else if (asks) (void)send(socket, RingWord{ring_full_magic}, {}, ignored);
  if (is_free) release_room(lane);
  return FEEDLANE_OK;
}

// ---- messages and ends of senders ----

// Makes sure that the end of the sender's process will be reported; otherwise its lane would never become free.
Status Receiver::watch(std::uint32_t lane, os::Received& received, Error& error) {
  if (received.pid == ::getpid()) return FEEDLANE_OK;  // the sender is in this process
  os::Fd& process = senders_[lane].process;
  if (const Status s = os::open_sender(received, process, error); s != FEEDLANE_OK) return s;
  return waiter_.poller().add(process.get(), make_tag(senders_[lane].generation, lane, kind_process), error);
}

void Receiver::read_message(std::uint32_t lane) {
  Sender& sender = senders_[lane];
  RingAttached word{};
  os::Received received;
  Error why;
  Status s = os::receive_message(sender.socket.get(), std::as_writable_bytes(std::span(&word, 1)), received, why);
  if (s == FEEDLANE_AGAIN) return;
  const bool whole = s == FEEDLANE_OK && !received.truncated;
  if (sender.state == Sender::State::offered) {
    if (s == FEEDLANE_OK && !(whole && received.bytes == sizeof word && word.magic == ring_attached_magic))
      return end_sender(lane);
    if (s == FEEDLANE_OK) s = watch(lane, received, why);
    if (s == FEEDLANE_OK && sender.process) s = send(sender.socket, RingWord{ring_accepted_magic}, {}, why);
    if (s != FEEDLANE_OK) {
      refuse(sender.socket, why);
      return end_sender(lane);
    }
    sender.state = Sender::State::attached;
    (void)lanes_.open(lane);
    if ((word.abilities & ring_passes_barriers) != 0) sender.fenced_by = waiter_.fenced_by();
    record_arrival();
    return;
  }
  if (whole && received.bytes == sizeof(RingWord) && word.magic == ring_leaving_magic) return end_sender(lane);
  if (s == FEEDLANE_END && !sender.process)
    return end_sender(lane);  // a sender in this process: nothing else reports its end
  // A closed socket or an invalid message does not prove that the process has ended. Its pidfd will report the end.
  waiter_.poller().remove(sender.socket.get());
  os::discard_messages(sender.socket.get());
  sender.socket.reset();
}

// The sender has left or died. Its committed messages can still be taken. After that the lane is free.
void Receiver::end_sender(std::uint32_t lane) {
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
  free_if_empty(lane);
}

// Frees a lane that its sender has left and that has no more messages. Called wherever the state matters, because other
// processes may still have the memory mapped and may add or remove messages. Does nothing while the receiver's user
// holds messages of the lane.
void Receiver::free_if_empty(std::uint32_t lane) {
  Sender& sender = senders_[lane];
  if (sender.state != Sender::State::left) return;
  const std::uint64_t position = lanes_.position(lane);
  const bool is_over = !lanes_.is_open(lane) || lanes_.peek_lane(lane).data == nullptr ||
                       static_cast<std::int64_t>(position - sender.end) >= 0;
  const bool is_peeked = sender.peeked.finds == finds_ && sender.peeked.end != position;
  if (!is_over || is_peeked) return;
  lanes_.close(lane, true);
  sender.peeked = {};
  sender.memory.discard();
  sender.state = Sender::State::free;
}

}  // namespace feedlane::channel
