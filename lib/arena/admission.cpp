// SPDX-License-Identifier: Apache-2.0
// The owner's members: admission, the messages on their sockets, their end.
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "arena/owner.hpp"
#include "greeting/host.hpp"
#include "os/event.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"

namespace feedlane::arena {
namespace {

enum TagKind : std::uint64_t { tag_socket, tag_process, tag_bell };
std::uint64_t make_tag(TagKind kind, std::uint32_t number) { return std::uint64_t{number} << 2 | kind; }

}  // namespace

Owner::Owner(const shm::ArenaPlan& plan, std::int32_t when_full, const os::SystemFiles& files,
             monitor::EventQueue& events)
    : plan_(plan), when_full_(when_full), files_(files), events_(events) {
  peers_.reserve(plan.geometry.members);
}

Owner::~Owner() {
  if (::getpid() != owner_) return;
  guests_.shut_down();
  for (const std::unique_ptr<Peer>& peer : peers_) {
    os::discard_messages(peer->socket.get());
    os::shut_down(peer->socket.get());
  }
}

Status Owner::create(const shm::ArenaPlan& plan, std::int32_t when_full, const std::string& path,
                     const os::SystemFiles& files, monitor::EventQueue& events, std::unique_ptr<Owner>& out,
                     Error& error) {
  std::unique_ptr<Owner> o(new Owner(plan, when_full, files, events));
  Status s = os::check_memory({plan.control_bytes}, plan.control_bytes, files, error);
  if (s == FEEDLANE_OK)
    s = o->control_.create_control(shm::SegmentKind::arena_control, plan.control_bytes, files, error);
  if (s != FEEDLANE_OK) return s;
  *o->control_.control<shm::ArenaGeometry>(sizeof(shm::SegmentHeader)) = plan.geometry;
  o->store_ = std::make_unique<Store>(o->control_, o->plan_, when_full, o->peers_, files);
  s = o->waiter_.open(error);
  if (s == FEEDLANE_OK) s = os::open_pidfd(::getpid(), o->self_, error);
  if (s == FEEDLANE_OK && !path.empty()) s = o->guests_.listen(path, error);
  if (s != FEEDLANE_OK) return s;
  o->waiter_.use(&o->control_.control<shm::ArenaBlock>(plan.block)->sleeping, ring::FencedBy::publisher, 2);
  o->owner_ = ::getpid();
  o->has_events_ = true;
  out = std::move(o);
  return s;
}

// ---- admission ----

Status Owner::offer(bool is_asleep, os::Fd& theirs, Error& error) {
  has_events_ = true;  // members may have ended
  (void)serve(is_asleep);
  os::Fd mine, other;
  std::unique_ptr<Peer> peer;
  Status s = os::create_socket_pair(mine, other, error);
  if (s == FEEDLANE_OK) s = make_peer(peer, error);
  if (s == FEEDLANE_OK) s = admit(std::move(peer), std::move(mine), error);
  if (s == FEEDLANE_OK) theirs = std::move(other);
  return s;
}

// Creates everything that a member needs of the owner.
Status Owner::make_peer(std::unique_ptr<Peer>& peer, Error& error) {
  const std::uint32_t most = plan_.geometry.members;
  if (peers_.size() >= most)
    return error.refuse(FEEDLANE_E_LIMIT, "config.members", most - 1, most,
                        "every place is taken: raise config.members, which is {}", most - 1);
  Status s = os::check_memory({plan_.answers_bytes, plan_.member_bytes, plan_.payload_bytes},
                              plan_.answers_bytes + plan_.member_bytes, files_, error);
  peer = std::make_unique<Peer>(next_number_, plan_);
  if (s == FEEDLANE_OK) s = peer->create(files_, error);
  if (s == FEEDLANE_OK) s = store_->memory.open(peer->segment, error);
  if (s == FEEDLANE_E_LIMIT && store_->evict_segment()) s = store_->memory.open(peer->segment, error);
  return s;
}

// Allocates no memory.
Status Owner::admit(std::unique_ptr<Peer> peer, os::Fd socket, Error& error) {
  peer->socket = std::move(socket);
  const std::uint32_t number = peer->number();
  os::Poller& poller = waiter_.poller();
  Status s = poller.add(peer->socket.get(), make_tag(tag_socket, number), error);
  if (s == FEEDLANE_OK) s = poller.add_bell(peer->owner_event.get(), make_tag(tag_bell, number), error);
  if (s == FEEDLANE_OK) s = welcome(*peer, error);
  if (s != FEEDLANE_OK) {
    greeting::refuse(peer->socket.get(), error);
    poller.remove(peer->socket.get());
    poller.remove(peer->owner_event.get());
    store_->memory.orphan(peer->segment);
    return s;
  }
  next_number_++;
  peers_.push_back(std::move(peer));
  figures_are_old_ = true;
  waiter_.expect(static_cast<std::uint32_t>(peers_.size()));
  return s;
}

Status Owner::welcome(Peer& peer, Error& error) {
  ArenaWelcome message{};
  message.magic = welcome_magic;
  message.layout_hash = shm::arena_layout_hash;
  message.number = peer.number();
  message.wants_pidfd = os::names_senders(peer.socket.get()) ? 0 : 1;
  message.segment = peer.segment;
  message.segment_generation = store_->memory.generation(peer.segment);
  int fds[welcome_fds];
  fds[welcome_control] = control_.control_fd();
  fds[welcome_answers] = peer.pair().control_fd();
  fds[welcome_member] = peer.pair().data_fd();
  fds[welcome_payload] = store_->memory.writable(peer.segment);
  fds[welcome_member_event] = peer.member_event.get();
  fds[welcome_owner_event] = peer.owner_event.get();
  fds[welcome_owner] = self_.get();
  const Status s = greeting::send(peer.socket.get(), message, fds, error);
  peer.pair().close_control_fd();  // observers find the other one
  return s;
}

// ---- events ----

void Owner::handle_events() {
  const auto handler = [this](const os::Poller::Event& event) { handle(event); };
  Error ignored;
  (void)waiter_.poll(2 + 3 * peers_.size() / ring::Waiter::max_events, handler, ignored);
}

void Owner::handle(const os::Poller::Event& event) {
  if (greeting::Guests::owns(event.tag)) return handle_guest(event.tag);
  figures_are_old_ = true;
  Peer* const peer = find(static_cast<std::uint32_t>(event.tag >> 2));
  if (peer == nullptr || peer->is_over) return;
  const auto kind = static_cast<TagKind>(event.tag & 3);
  if (kind == tag_process) end(*peer, "has ended");
  else if (kind == tag_socket) read_message(*peer);
}

void Owner::handle_guest(std::uint64_t tag) {
  greeting::Word asking{};
  std::uint32_t guest = 0;
  Error error;
  Status s = guests_.handle(tag, greeting::bytes_of(asking), guest, error);
  has_events_ = true;  // there may be more connections
  if (s == FEEDLANE_AGAIN) return;
  std::unique_ptr<Peer> peer;
  if (s == FEEDLANE_OK) {
    try {
      // The poller may tell of this connection before it tells of the end of a member, whose place it needs.
      for (const std::unique_ptr<Peer>& member : peers_) {
        if (!member->is_over && member->state == Peer::State::offered) read_message(*member);
        if (!member->is_over && member->process && os::has_ended(member->process.get())) end(*member, "has ended");
      }
      (void)bury_ended();
      s = make_peer(peer, error);
    } catch (const std::bad_alloc&) {
      s = error.fail(FEEDLANE_E_MEMORY, "the owner is out of memory");
    }
    if (greeting::Guests::lacks_descriptors(error)) guests_.pause();
  }
  if (greeting::Guests::lacks_descriptors(error)) return events_.push(FEEDLANE_EVENT_WARNING, error);
  os::Fd socket = guests_.take(guest);
  if (s != FEEDLANE_OK) return greeting::refuse(socket.get(), error);
  (void)admit(std::move(peer), std::move(socket), error);
}

void Owner::read_message(Peer& peer) {
  union {
    greeting::Word word;
    SegmentRequest segment;
  } message{};
  os::Received received;
  Error error;
  const Status s = os::receive_message(peer.socket.get(), greeting::bytes_of(message), received, error);
  if (s == FEEDLANE_AGAIN) return;
  has_events_ = true;
  const std::uint64_t magic = s == FEEDLANE_OK && !received.truncated ? message.word.magic : 0;
  if (peer.state == Peer::State::offered) {
    if (s < 0) greeting::refuse(peer.socket.get(), error);
    if (magic != attached_magic) return end(peer, "never joined");
    const Status accepted = greeting::accept(peer.socket.get(), received, waiter_.poller(),
                                             make_tag(tag_process, peer.number()), peer.process, error);
    if (accepted != FEEDLANE_OK) return end(peer, "could not be monitored");
    peer.state = Peer::State::attached;
    peer.pid = received.pid;
  } else if (magic == segment_request_magic && received.bytes == sizeof(SegmentRequest)) {
    answer_segment(peer, message.segment);
  } else if (magic == leaving_magic) {
    if (peer.state == Peer::State::attached) peer.state = Peer::State::leaving;
    needs_clean_up_ = true;
  } else if (magic == left_magic || !peer.process) {  // nothing else reports the end of a member in this process
    end(peer, "has left");
  } else {
    // A closed socket or an invalid message doesn't prove that the process has ended: its pidfd does.
    waiter_.poller().remove(peer.socket.get());
    os::discard_messages(peer.socket.get());
    peer.socket.reset();
  }
}

void Owner::answer_segment(const Peer& peer, const SegmentRequest& request) const {
  SegmentReply reply{};
  reply.magic = segment_reply_magic;
  reply.segment = request.segment;
  reply.generation = request.generation;
  const os::Fd* const fd = store_->memory.readable(request.segment, request.generation);
  if (fd == nullptr) reply.status = FEEDLANE_E_STALE;
  const int number = fd == nullptr ? -1 : fd->get();
  Error ignored;
  (void)greeting::send(peer.socket.get(), reply, std::span(&number, fd == nullptr ? 0u : 1u), ignored);
}

// ---- ends ----

// The member's requests are ignored from now on. What it holds stays, because its process may still use it. May be
// called anywhere: `clean_up` does what touches other members.
void Owner::cut_off(Peer& peer, const char* why) {
  if (peer.state == Peer::State::cut_off) return;
  peer.state = Peer::State::cut_off;
  peer.is_blocked = false;
  peer.tell_cut_off();
  report(FEEDLANE_EVENT_CONSUMER_EVICTED, peer, why);
  needs_clean_up_ = true;
}

// Gives the rights of members that were cut off or are leaving to others, and drops their deliveries.
void Owner::clean_up() {
  while (std::exchange(needs_clean_up_, false))
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (peer->state != Peer::State::cut_off && peer->state != Peer::State::leaving) continue;
      forget(*peer);
      peer->drop_deliveries([this](std::uint32_t entry) { store_->end_delivery(entry); });
    }
}

void Owner::forget(const Peer& peer) {
  wants_.end([&](const Wants::Waiter& w) { return w.member == peer.number(); },
             [&](const Wants::Waiter& next) { tell(next, shm::ArenaAnswerKind::make); });
  waits_.forget(peer.number());
}

// The member's process has ended, or it has left. Its leases and deliveries are void, and requests that it had sent are
// still handled: see bury_ended.
void Owner::end(Peer& peer, const char* how) {
  peer.is_over = true;
  waiter_.poller().remove(peer.socket.get());
  waiter_.poller().remove(peer.process.get());
  waiter_.poller().remove(peer.owner_event.get());
  (void)peer.collect([this](std::uint32_t entry) { store_->end_delivery(entry); });
  peer.drop_deliveries([this](std::uint32_t entry) { store_->end_delivery(entry); });
  if (peer.state != Peer::State::offered && peer.number() != 0) report(FEEDLANE_EVENT_CONSUMER_LEFT, peer, how);
}

bool Owner::bury_ended() {
  bool has_come = false;
  for (std::size_t i = 0; i < peers_.size();) {
    Peer& peer = *peers_[i];
    if (peer.is_over) (void)serve_requests(peer);
    if (!peer.is_over || peer.has_request()) {
      i++;
      continue;
    }
    forget(peer);
    for (const std::uint32_t grant : peer.grants) store_->memory.give_back(grant);
    store_->memory.orphan(peer.segment);
    ended_hits_ += peer.row().hits.load(std::memory_order_relaxed);
    ended_misses_ += peer.row().misses.load(std::memory_order_relaxed);
    os::discard_messages(peer.socket.get());
    os::shut_down(peer.socket.get());
    peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
    has_come = true;
  }
  if (has_come) waiter_.expect(static_cast<std::uint32_t>(peers_.size()));
  return has_come;
}

void Owner::report(std::int32_t kind, const Peer& peer, const char* what) {
  Error text;
  (void)text.fail(kind == FEEDLANE_EVENT_CONSUMER_EVICTED ? FEEDLANE_E_CORRUPT : FEEDLANE_OK,
                  "member {} (process {}) {}", peer.number(), peer.pid, what);
  events_.push(kind, text);
}

Peer* Owner::find(std::uint32_t number) const {
  const auto it = std::find_if(peers_.begin(), peers_.end(),
                               [=](const std::unique_ptr<Peer>& peer) { return peer->number() == number; });
  return it == peers_.end() ? nullptr : it->get();
}

}  // namespace feedlane::arena
