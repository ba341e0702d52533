// SPDX-License-Identifier: Apache-2.0
// Admission of senders by a ring's receiver: offers, connections, acceptance or refusal, and the end of a sender.
#include <utility>

#include "channel/receiver.hpp"
#include "greeting/host.hpp"
#include "greeting/ring.hpp"
#include "os/event.hpp"
#include "os/process.hpp"

namespace feedlane::channel {

Status Receiver::find_free(std::uint32_t& lane, Error& error) {
  for (lane = 0; lane < senders_.size(); lane++) {
    free_if_empty(lane);
    if (senders_[lane].state == Sender::State::free) return FEEDLANE_OK;
  }
  return error.refuse(FEEDLANE_E_LIMIT, "config.lanes", lane, std::int64_t{lane} + 1,
                      "every lane is in use: raise config.lanes, which is {}", lane);
}

// ---- resources of a sender ----

// Creates the eventfds and the memory for a free lane's next sender: all or none.
Status Receiver::make_room(std::uint32_t lane, Error& error) {
  Sender& sender = senders_[lane];
  Status s = os::check_memory({plan_.data_bytes}, plan_.data_bytes, files_, error);
  if (s == FEEDLANE_OK) s = os::create_event(sender.sender_event, error);
  if (s == FEEDLANE_OK) s = os::create_event(sender.receiver_event, error);
  if (s == FEEDLANE_OK) s = segments_.create_data(plan_.data_bytes, files_, sender.memory, error);
  if (s == FEEDLANE_OK) return s;
  sender.memory.discard();
  sender.sender_event.reset();
  sender.receiver_event.reset();
  return s;
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
  if (s == FEEDLANE_OK) s = greeting::send(sender.socket.get(), welcome, fds, error);
  sender.memory.close_fd();
  if (s != FEEDLANE_OK) {
    greeting::refuse(sender.socket.get(), error);
    end_sender(lane);
  }
  return s;
}

// ---- offers and connections ----

Status Receiver::offer(os::Fd& theirs, Error& error) {
  waiter_.cancel();  // this call handles events, so a caller that has armed must arm again
  if (const Status s = handle_events(error); s != FEEDLANE_OK) return s;  // may free lanes of dead senders
  std::uint32_t lane = 0;
  os::Fd mine;
  os::Fd other;
  Status s = find_free(lane, error);
  if (s == FEEDLANE_OK) s = os::create_socket_pair(mine, other, error);
  if (s == FEEDLANE_OK) s = make_room(lane, error);
  if (s == FEEDLANE_OK) s = admit(lane, std::move(mine), error);
  if (s != FEEDLANE_OK) return s;
  theirs = std::move(other);
  record_arrival();  // END must come even if the process never attaches
  return s;
}

// A guest gets a lane only when it asks for one. Without a request it takes no lane, and delays END by
// greeting::Guests::patience_ns at most.
Status Receiver::handle_guest(std::uint64_t tag, Error& error) {
  greeting::Word asking{};
  std::uint32_t guest = 0;
  const Status s = guests_.handle(tag, greeting::bytes_of(asking), guest, error);
  if (s != FEEDLANE_OK) return s == FEEDLANE_AGAIN ? FEEDLANE_OK : s;
  std::uint32_t lane = 0;
  Error why;
  end_gone();
  if (find_free(lane, why) == FEEDLANE_OK) (void)make_room(lane, why);
  if (greeting::Guests::lacks_descriptors(why)) {
    guests_.pause();
    error = why;
    return error.code;
  }
  os::Fd socket = guests_.take(guest);
  if (why.code == FEEDLANE_OK) (void)admit(lane, std::move(socket), why);
  else greeting::refuse(socket.get(), why);
  return FEEDLANE_OK;
}

// The poller may tell of a new sender's connection before it tells of the end of another, whose lane it needs.
void Receiver::end_gone() {
  for (std::uint32_t lane = 0; lane < senders_.size(); lane++) {
    const Sender& sender = senders_[lane];
    if (sender.state == Sender::State::offered) read_message(lane);
    if (sender.state == Sender::State::attached && sender.process && os::has_ended(sender.process.get()))
      end_sender(lane);
  }
}

// ---- messages and ends of senders ----

void Receiver::read_message(std::uint32_t lane) {
  Sender& sender = senders_[lane];
  RingAttached word{};
  os::Received received;
  Error why;
  Status s = os::receive_message(sender.socket.get(), greeting::bytes_of(word), received, why);
  if (s == FEEDLANE_AGAIN) return;
  const bool whole = s == FEEDLANE_OK && !received.truncated;
  if (sender.state == Sender::State::offered) {
    if (s < 0) greeting::refuse(sender.socket.get(), why);
    if (!whole || received.bytes != sizeof word || word.magic != ring_attached_magic) return end_sender(lane);
    const std::uint64_t tag = make_tag(sender.generation, lane, kind_process);
    s = greeting::accept(sender.socket.get(), received, waiter_.poller(), tag, sender.process, why);
    if (s != FEEDLANE_OK) return end_sender(lane);
    sender.state = Sender::State::attached;
    (void)lanes_.open(lane);
    if ((word.abilities & ring_passes_barriers) != 0) sender.fenced_by = waiter_.fenced_by();
    record_arrival();
    return;
  }
  if (whole && received.bytes == sizeof(greeting::Word) && word.magic == ring_leaving_magic) return end_sender(lane);
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
