// SPDX-License-Identifier: Apache-2.0
// The sending end of a standalone ring: attaching, reserving and committing messages.
#include "channel/sender.hpp"

#include "greeting/guest.hpp"
#include "greeting/ring.hpp"
#include "os/event.hpp"
#include "os/socket.hpp"

namespace feedlane::channel {
namespace {

enum Tag : std::uint64_t { tag_own_event, tag_receiver, tag_socket };

constexpr greeting::Expected expected{ring_welcome_magic, shm::layout_hash, ring_welcome_fds, "receiver"};

}  // namespace

Status Sender::receive_welcome(int socket, os::Deadline deadline, Error& error) {
  RingWelcome welcome{};
  os::Received received;
  os::Fd peer;  // a pidfd, because a forked child may hold the socket's other end after the receiver's death
  Status s = os::open_peer(socket, peer, error);
  if (s != FEEDLANE_OK) return s;
  // An offer's socket already has the welcome. A connection by path must ask for it.
  const greeting::Word asking{ring_asking_magic};
  Error none;
  const bool is_offered = os::wait_readable(socket, os::Deadline::at(0), none) == FEEDLANE_OK;
  s = greeting::receive_welcome(socket, peer.get(), expected,
                                is_offered ? std::span<const std::byte>() : greeting::bytes_of(asking), deadline,
                                greeting::bytes_of(welcome), received, error);
  if (s != FEEDLANE_OK) return s;
  peer.reset();
  os::refuse_descriptors(socket);  // no more are expected
  own_event_ = std::move(received.fds[ring_welcome_sender_event]);
  receiver_event_ = std::move(received.fds[ring_welcome_receiver_event]);
  receiver_ = std::move(received.fds[ring_welcome_receiver]);
  if (s = os::check_bell(receiver_event_.get(), error); s != FEEDLANE_OK) return s;
  s = segments_.attach(shm::SegmentKind::ring_control, received.fds[ring_welcome_control].get(),
                       received.fds[ring_welcome_data].get(), shm::Access::read_write, error);
  if (s != FEEDLANE_OK) return s;
  const auto geometry = *segments_.control<shm::RingGeometry>(sizeof(shm::SegmentHeader));
  if (shm::make_ring_plan(geometry.message_bytes, geometry.capacity, geometry.lanes, plan_, error) != FEEDLANE_OK)
    return error.code = FEEDLANE_E_CORRUPT;
  if (s = segments_.check_sizes(plan_.control_bytes, plan_.data_bytes, error); s != FEEDLANE_OK) return s;
  if (welcome.lane >= geometry.lanes)
    return error.refuse(FEEDLANE_E_CORRUPT, "welcome.lane", welcome.lane, geometry.lanes,
                        "the receiver's welcome message names lane {}, but the ring has {} lanes", welcome.lane,
                        geometry.lanes);
  lane_ = welcome.lane;
  wants_pidfd_ = (welcome.abilities & ring_names_senders) == 0;
  const ring::Cells cells{segments_.data<std::byte>(plan_.cells), plan_.geometry.cell_bytes, plan_.geometry.capacity};
  producer_ =
      ring::Producer(cells, welcome.start, &segments_.control<shm::ReceiverRow>(plan_.receiver_rows)[lane_].position);
  waiter_.use(&segments_.data<shm::SenderRow>(plan_.sender_row)->sleeping,
              os::join_barriers() ? ring::FencedBy::sleeper : ring::FencedBy::publisher, 2);
  const bool receiver_passes_too = (welcome.abilities & ring_passes_barriers) != 0;
  bell_ = ring::Doorbell(&segments_.control<shm::ReceiverBlock>(plan_.receiver_block)->sleeping, receiver_event_.get(),
                         receiver_passes_too ? waiter_.fenced_by() : ring::FencedBy::publisher);
  return FEEDLANE_OK;
}

Status Sender::attach(os::Fd socket, os::Deadline deadline, std::unique_ptr<Sender>& out, Error& error) {
  std::unique_ptr<Sender> t(new Sender);
  Status s = t->receive_welcome(socket.get(), deadline, error);
  if (s == FEEDLANE_OK) s = t->waiter_.open(error);
  if (s == FEEDLANE_OK) s = t->waiter_.poller().add_bell(t->own_event_.get(), tag_own_event, error);
  if (s == FEEDLANE_OK) s = t->waiter_.poller().add(t->receiver_.get(), tag_receiver, error);
  if (s == FEEDLANE_OK) s = t->waiter_.poller().add(socket.get(), tag_socket, error);
  if (s != FEEDLANE_OK) return s;
  t->socket_ = std::move(socket);
  const RingAttached attached{ring_attached_magic, abilities_of(t->waiter_.fenced_by()), 0};
  s = greeting::attach(t->socket_.get(), t->receiver_.get(), expected, greeting::bytes_of(attached), t->wants_pidfd_,
                       deadline, error);
  if (s == FEEDLANE_OK) out = std::move(t);
  return s;
}

Sender::~Sender() {
  if (!socket_) return;  // never attached
  segments_.unmap();
  greeting::say(socket_.get(), ring_leaving_magic);
}

Status Sender::reserve(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error) {
  return reserve_until(os::Deadline::after(timeout_ns), want, got, error);
}

Status Sender::reserve_until(os::Deadline deadline, std::uint32_t want, feedlane_span& got, Error& error) {
  for (bool is_last = false;; is_last = deadline.remaining_ns() == 0) {  // ends even if the receiver rings without end
    if (try_reserve(want, got)) return FEEDLANE_OK;
    if (producer_.broken())
      return error.fail(FEEDLANE_E_CORRUPT, "the receiver wrote an invalid position into lane {}", lane_);
    if (receiver_gone_) return error.fail(FEEDLANE_E_PEER_DEAD, "the ring is full and its receiver is gone");
    if (closed_.load(std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;  // see `close`
    if (is_last) return FEEDLANE_TIMEOUT;
    if (waiter_.spin(deadline, [&] { return try_reserve(want, got); })) return FEEDLANE_OK;
    const Status s = wait(deadline, error);
    if (s == FEEDLANE_TIMEOUT && try_reserve(want, got)) return FEEDLANE_OK;  // see Sleeper::is_sure
    if (s != FEEDLANE_OK) return s;
  }
}

Status Sender::commit(std::uint32_t count, Error& error) {
  if (count > reserved_)
    return error.refuse(FEEDLANE_E_ARGUMENT, "count", count, reserved_,
                        "cannot commit {} messages: only {} are reserved", count, reserved_);
  if (!try_commit(count)) reserved_ = 0;  // count is 0
  return FEEDLANE_OK;
}

Status Sender::send(const std::byte* messages, std::uint32_t count, std::int64_t timeout_ns, std::uint32_t& sent,
                    Error& error) {
  os::Deadline deadline = os::Deadline::never();
  for (sent = 0; sent < count;) {
    feedlane_span part;
    if (!try_reserve(count - sent, part)) {
      if (deadline.is_never()) deadline = os::Deadline::after(timeout_ns);  // only calls that wait read the clock
      if (const Status s = reserve_until(deadline, count - sent, part, error); s != FEEDLANE_OK) return s;
    }
    publish(messages + std::size_t{sent} * message_bytes(), part.count, CopyAny{});
    sent += part.count;
  }
  return FEEDLANE_OK;
}

void Sender::close() {
  // Relaxed: the eventfd wakes the sleeper; the flag only says why. The eventfd is rung even if the sleeping flag is
  // clear, because the poller remembers the ring.
  closed_.store(true, std::memory_order_relaxed);
  os::ring_event(own_event_.get());
}

Status Sender::wait(os::Deadline deadline, Error& error) {
  // The receiver sends nothing more over the socket, so all events but our own eventfd's report its end.
  const auto handle = [this](const os::Poller::Event& event) {
    if (event.tag != tag_own_event) receiver_gone_ = true;
  };
  return waiter_.sleep_until(
      deadline, [this] { return producer_.reserve(1) != 0; }, handle, error);
}

}  // namespace feedlane::channel
