// SPDX-License-Identifier: Apache-2.0
// Waiting, messages to and from the owner, and its descriptors.
#include "arena/line.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "greeting/guest.hpp"
#include "os/event.hpp"
#include "os/memfd.hpp"
#include "os/quick_clock.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::arena {
namespace {

enum Tag : std::uint64_t { tag_own_event, tag_owner, tag_socket, tag_wake = UINT64_MAX >> 1 };
constexpr greeting::Expected expected{welcome_magic, shm::arena_layout_hash, welcome_fds, "owner of an arena"};
// How long the owner may take to send another member's segment.
constexpr std::int64_t answer_timeout_ns = 5'000'000'000;
// Threads that may wait for an answer at the same time. The owner's ring has room for an answer to each.
constexpr std::uint32_t most_outstanding = shm::arena_ring_capacity / 2;
// How often the owner's pidfd is looked at by calls that never sleep.
constexpr std::int64_t polling_ns = 1'000'000;

}  // namespace

// ---- joining ----

Status Line::take(os::Received& received, const shm::SegmentPair& pair, const shm::SegmentPair& control,
                  const shm::ArenaPlan& plan, Error& error) {
  fds_.own_event = std::move(received.fds[welcome_member_event]);
  fds_.owner_event = std::move(received.fds[welcome_owner_event]);
  fds_.owner = std::move(received.fds[welcome_owner]);
  if (const Status s = os::check_bell(fds_.owner_event.get(), error); s != FEEDLANE_OK) return s;
  auto& row = *pair.data<shm::ArenaMemberRow>(plan.row);
  words_ = pair.control<shm::ArenaAnswers>(plan.answers);
  sleeping_ = &row.sleeping;
  constexpr std::uint32_t capacity = shm::arena_ring_capacity;
  requests_ = ring::Producer({pair.data<std::byte>(plan.request_cells), shm::arena_request_cell, capacity}, 0,
                             &words_->request_position);
  answers_ = ring::Consumer({pair.control<std::byte>(plan.answer_cells), shm::arena_answer_cell, capacity}, 0,
                            &row.answer_position);
  deliveries_ = ring::Consumer({pair.control<std::byte>(plan.delivery_cells), shm::arena_delivery_cell, capacity}, 0,
                               &row.delivery_position);
  bell_ = ring::Doorbell(&control.control<shm::ArenaBlock>(plan.block)->sleeping, fds_.owner_event.get());
  late_.reserve(capacity);
  unsent_.reserve(plan.geometry.leases + capacity);
  return FEEDLANE_OK;
}

Status Line::open(os::Fd socket, bool wants_pidfd, os::Deadline deadline, Error& error) {
  Status s = os::create_event(fds_.wake_event, error);
  if (s == FEEDLANE_OK && owner_ == nullptr) {
    s = waiter_.open(error);
    if (s == FEEDLANE_OK) s = waiter_.poller().add_bell(fds_.own_event.get(), tag_own_event, error);
    if (s == FEEDLANE_OK) s = waiter_.poller().add(fds_.owner.get(), tag_owner, error);
    if (s == FEEDLANE_OK) s = waiter_.poller().add(socket.get(), tag_socket, error);
    waiter_.use(sleeping_, ring::FencedBy::publisher, 2);
  }
  if (s == FEEDLANE_OK) s = waiter().poller().add(fds_.wake_event.get(), tag_wake, error);
  if (s != FEEDLANE_OK) return s;
  socket_ = std::move(socket);
  s = greeting::attach(socket_.get(), fds_.owner.get(), expected, greeting::bytes_of(greeting::Word{attached_magic}),
                       wants_pidfd, deadline, error);
  if (s == FEEDLANE_OK && owner_ != nullptr) owner_->expect_events();
  return s;
}

// Nothing more is sent to this process, and its rights are passed on. Batches that it holds stay.
void Line::leave(std::unique_ptr<Owner>& owner) noexcept {
  if (!socket_) return;
  Lock lock = this->lock();
  changed_.wait(lock, [this] { return !is_asleep(); });  // `close` has woken it
  if (owner_ == nullptr) return greeting::say(socket_.get(), leaving_magic);
  owner_ = nullptr;
  is_owner_gone_ = true;
  owner.reset();
}

Line::~Line() {
  if (socket_) greeting::say(socket_.get(), left_magic);  // all memory is unmapped
}

// ---- segments of other members ----

Status Line::get_segment(std::uint32_t segment, std::uint32_t generation, os::Fd& fd, Error& error) {
  if (is_owner_gone_) return error.fail(FEEDLANE_E_PEER_DEAD, "the owner has ended before it could share this memory");
  const os::Deadline deadline = os::Deadline::after(answer_timeout_ns);
  Status s = greeting::send(socket_.get(), SegmentRequest{segment_request_magic, segment, generation}, {}, error);
  SegmentReply reply{};
  os::Received received;
  do {
    if (s == FEEDLANE_OK)
      s = os::await_message(socket_.get(), greeting::bytes_of(reply), deadline, received, error, fds_.owner.get());
    if (s == FEEDLANE_TIMEOUT)
      return error.fail(FEEDLANE_E_HUNG,
                        "the owner has not answered for {} s: it must wait in a call on the arena, such as "
                        "feedlane_arena_receive",
                        answer_timeout_ns / 1'000'000'000);
    if (s != FEEDLANE_OK) return s;
    if (received.bytes != sizeof reply || reply.magic != segment_reply_magic)
      return error.refuse(FEEDLANE_E_CORRUPT, "reply", received.bytes, sizeof reply,
                          "the owner's answer has {} bytes instead of {}", received.bytes, sizeof reply);
  } while (reply.segment != segment || reply.generation != generation);  // skips a late reply
  if (reply.status == FEEDLANE_E_STALE) return FEEDLANE_AGAIN;
  if (reply.status != FEEDLANE_OK || received.fd_count != 1)
    return error.refuse(FEEDLANE_E_CORRUPT, "reply", reply.status, 0, "the owner did not send the segment: status {}",
                        reply.status);
  fd = std::move(received.fds[0]);
  return s;
}

// ---- waiting ----

Line::Lock Line::lock() {
  // Relaxed: only a hint for the thread that spins.
  lock_.wanted.fetch_add(1, std::memory_order_relaxed);
  Lock lock(lock_.mutex);
  lock_.wanted.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

Line::Waiting::Waiting(Line& line, Need need) : line_(line), need_(need), leads_(!line.is_asleep()) {
  line.needs_[static_cast<std::size_t>(need)]++;
  if (leads_) line.leader_ = need;
}

Line::Waiting::~Waiting() {
  line_.needs_[static_cast<std::size_t>(need_)]--;
  if (!leads_) return;
  line_.leader_.reset();
  line_.changed_.notify_all();  // one of the others becomes the leader
}

Status Line::sleep(Lock& lock, Need need, os::Deadline deadline, Error& error) {
  const bool is_follower = is_asleep();
  // Spins under the lock, so only while no other thread wants it.
  const auto is_wanted = [this] { return lock_.wanted.load(std::memory_order_relaxed) != 0; };
  if (!is_follower && waiter().spin(deadline, [&] { return is_wanted() || has_news(need); }) && !is_wanted())
    return FEEDLANE_OK;
  const Waiting waiting(*this, need);
  if (is_follower) {
    if (deadline.is_never()) changed_.wait(lock);
    else changed_.wait_for(lock, std::chrono::nanoseconds(deadline.remaining_ns()));
    return FEEDLANE_OK;
  }
  std::array<os::Poller::Event, ring::Waiter::max_events> events;
  std::size_t count = 0;
  const Status s = waiter().sleep([&] { return has_news(need); },
                                  [&] {
                                    const os::Deadline first =
                                        owner_ == nullptr ? deadline : deadline.earlier(owner_->waits().next_look());
                                    lock.unlock();
                                    return first;
                                  },
                                  [&](const os::Poller::Event& event) { events[count++] = event; }, error);
  if (!lock.owns_lock()) lock.lock();
  for (std::size_t i = 0; i < count; i++) handle(events[i]);
  return s;
}

// Whether the leader, which waits for `own`, has something to do. Called before it sleeps. What another thread waits for
// may have come since that thread looked, so this also wakes the other threads.
bool Line::has_news(Need own) {
  if (closed_.load(std::memory_order_relaxed) || interrupted_.load(std::memory_order_relaxed)) return true;
  // Relaxed: the fence of Sleeper::prepare precedes it, and one follows its store in Peer::tell_cut_off.
  if (words_->is_cut_off.load(std::memory_order_relaxed) != 0) return true;
  if (owner_ != nullptr && owner_->sweep()) return true;
  if (answers_.peek(1) != 0) return true;
  const bool has_delivery = needs(Need::delivery) && deliveries_.peek(1) != 0;
  const bool has_cell = needs(Need::cell) && requests_.reserve(1) != 0;
  const bool has_settled = needs(Need::settlement) && is_settled();
  if ((own == Need::delivery && has_delivery) || (own == Need::cell && has_cell) ||
      (own == Need::settlement && has_settled))
    return true;
  if (has_delivery || has_cell || has_settled) changed_.notify_all();
  return false;
}

// The reason why a wait ends without success. not_yet: there is none.
Status Line::obstacle(Error& error) {
  if (closed_.load(std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;
  if (interrupted_.load(std::memory_order_relaxed) && interrupted_.exchange(false, std::memory_order_relaxed))
    return error.fail(FEEDLANE_INTERRUPTED, "interrupted by feedlane_loader_interrupt");
  if (is_owner_gone_) return error.fail(FEEDLANE_E_PEER_DEAD, "the owner of the arena has ended");
  if (requests_.broken())
    return error.fail(FEEDLANE_E_CORRUPT, "the owner wrote an impossible position into this member's ring");
  if (words_->is_cut_off.load(std::memory_order_relaxed) != 0)
    return error.refuse(FEEDLANE_E_CORRUPT, "member", 1, 0,
                        "the owner has cut this member off, because it wrote an invalid request");
  return not_yet;
}

void Line::pump() {
  bool has_come = false;
  if (!is_asleep()) waiter().cancel();
  if (owner_ != nullptr) {
    has_come = owner_->serve(is_asleep());
  } else if (const std::int64_t now = os::QuickClock::now_ns(); !is_asleep() && now - polled_ns_ >= polling_ns) {
    polled_ns_ = now;
    Error ignored;
    (void)waiter_.poll(
        1, [this](const os::Poller::Event& event) { handle(event); }, ignored);
  }
  flush();
  for (; answers_.peek(1) != 0; answers_.release(1), has_come = true)
    take_answer(shm::read_once<shm::ArenaAnswer>(answers_.message(0)));
  // The leader sleeps until a time that this thread's requests may have changed.
  if (owner_ != nullptr && is_asleep() && !owner_->waits().next_look().is_never())
    os::signal_event(fds_.wake_event.get());
  if (!has_come) return;
  changed_.notify_all();
  // What came may be for the leader. Nothing rings for it: this thread has served the members in its place.
  if (leader_.value_or(Need::service) != Need::service && owner_ != nullptr) os::signal_event(fds_.wake_event.get());
}

void Line::handle(const os::Poller::Event& event) {
  if (event.tag == tag_wake) return os::drain_event(fds_.wake_event.get());
  if (owner_ != nullptr) return owner_->handle(event);
  // Replies on the socket are read by the thread that waits for them, under the lock.
  const bool has_ended = event.tag == tag_owner || (event.tag == tag_socket && event.hung_up);
  if (!has_ended) return;
  is_owner_gone_ = true;
  waiter_.poller().remove(fds_.owner.get());
  waiter_.poller().remove(socket_.get());
}

Status Line::arm(Error& error) {
  if (is_asleep()) return error.fail(FEEDLANE_E_BUSY, "another thread waits in a call on this arena");
  pump();
  if (interrupted_.load(std::memory_order_relaxed) || closed_.load(std::memory_order_relaxed)) return FEEDLANE_AGAIN;
  if (owner_ != nullptr) owner_->waits().stop_waiting_for_own();
  return waiter().arm([this] { return has_news(Need::answer) || deliveries_.peek(1) != 0; }, error);
}

void Line::interrupt() {
  interrupted_.store(true, std::memory_order_relaxed);  // the descriptor wakes, the flag says why
  os::signal_event(fds_.wake_event.get());
}

void Line::close() {
  closed_.store(true, std::memory_order_relaxed);  // see interrupt. The leader tells the others
  os::signal_event(fds_.wake_event.get());
}

// ---- messages ----

void Line::take_answer(const shm::ArenaAnswer& answer) {
  for (Pending* p = pending_; p != nullptr; p = p->next) {
    if (p->ticket != answer.ticket) continue;
    p->answer = answer;
    p->is_answered = true;
    return;
  }
  if (late_.size() < late_.capacity()) late_.push_back(answer);
}

bool Line::try_send(const shm::ArenaRequest& request) {
  if (requests_.reserve(1) == 0 || requests_.broken()) return false;
  std::memcpy(requests_.message(0), &request, sizeof request);
  requests_.commit(1);
  if (owner_ == nullptr) (void)bell_.ring();
  return true;
}

// Sends what the ring had no room for. Its order among other requests does not matter, except for a `cancel`, which
// follows its request.
void Line::flush() {
  std::size_t sent = 0;
  while (sent < unsent_.size() && try_send(unsent_[sent])) sent++;
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(sent));
}

void Line::send_later(const shm::ArenaRequest& request) {
  flush();
  if (unsent_.empty() && try_send(request)) return;
  unsent_.push_back(request);  // has capacity for all that may come
}

Status Line::send(Lock& lock, const shm::ArenaRequest& request, os::Deadline deadline, Error& error) {
  if (const Status s = obstacle(error); s != not_yet) return s;
  return wait_for(
      lock, Need::cell, deadline, [&] { return unsent_.empty() && try_send(request) ? FEEDLANE_OK : not_yet; }, error);
}

Status Line::ask(Lock& lock, shm::ArenaRequest& request, shm::ArenaRequestKind cancel, os::Deadline deadline,
                 shm::ArenaAnswer& answer, Error& error) {
  Status s = wait_for(
      lock, Need::answer, deadline, [&] { return outstanding_ < most_outstanding ? FEEDLANE_OK : not_yet; }, error);
  if (s != FEEDLANE_OK) return s;
  Pending pending;
  request.ticket = pending.ticket = ++last_ticket_;
  pending.next = std::exchange(pending_, &pending);
  outstanding_++;
  const auto leave = [&] {
    Pending** link = &pending_;
    while (*link != &pending) link = &(*link)->next;
    *link = pending.next;
    outstanding_--;
    changed_.notify_all();
  };
  s = send(lock, request, deadline, error);
  const bool is_sent = s == FEEDLANE_OK;
  if (is_sent)
    s = wait_for(
        lock, Need::answer, deadline, [&] { return pending.is_answered ? FEEDLANE_OK : not_yet; }, error);
  leave();
  answer = pending.answer;
  if (is_sent && s != FEEDLANE_OK) {
    shm::ArenaRequest end{};
    end.kind = static_cast<std::uint32_t>(cancel);
    end.ticket = pending.ticket;
    send_later(end);
  }
  return s;
}

bool Line::take_late(shm::ArenaAnswer& answer) {
  if (late_.empty()) return false;
  answer = late_.back();
  late_.pop_back();
  return true;
}

}  // namespace feedlane::arena
