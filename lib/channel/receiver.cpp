// SPDX-License-Identifier: Apache-2.0
// The receiving end of a standalone ring: creation, messages, waiting. Its senders are in admission.cpp.
#include "channel/receiver.hpp"

#include <unistd.h>

#include "os/event.hpp"
#include "os/process.hpp"

namespace feedlane::channel {
namespace {

constexpr std::uint64_t close_tag = UINT64_MAX >> 1;

}  // namespace

Status Receiver::create(const shm::RingPlan& plan, const std::string& path, const os::SystemFiles& files,
                        Error& error) {
  plan_ = plan;
  files_ = files;
  std::vector<std::uint64_t> segments(plan.geometry.lanes, plan.data_bytes);
  segments.push_back(plan.control_bytes);
  Status s = os::check_memory(segments, plan.all_bytes(), files, error);
  if (s == FEEDLANE_OK) s = segments_.create_control(shm::SegmentKind::ring_control, plan.control_bytes, files, error);
  if (s == FEEDLANE_OK) s = os::open_pidfd(::getpid(), self_, error);
  if (s == FEEDLANE_OK) s = waiter_.open(error);
  if (s == FEEDLANE_OK) s = os::create_event(close_event_, error);
  if (s == FEEDLANE_OK) s = waiter_.poller().add(close_event_.get(), close_tag, error);
  if (s != FEEDLANE_OK) return s;
  *segments_.control<shm::RingGeometry>(sizeof(shm::SegmentHeader)) = plan.geometry;
  senders_ = std::vector<Sender>(plan.geometry.lanes);
  const ring::Cells none{nullptr, plan.geometry.cell_bytes, plan.geometry.capacity};
  for (std::uint32_t lane = 0; lane < plan.geometry.lanes; lane++)
    (void)lanes_.add(none, 0, &segments_.control<shm::ReceiverRow>(plan.receiver_rows)[lane].position);
  waiter_.use(&segments_.control<shm::ReceiverBlock>(plan.receiver_block)->sleeping,
              os::join_barriers() ? ring::FencedBy::sleeper : ring::FencedBy::publisher, 2);
  owner_ = ::getpid();
  return path.empty() ? FEEDLANE_OK : guests_.listen(path, error);
}

// Shuts the sockets down, so that senders and guests notice the end even if a forked child has our descriptors.
Receiver::~Receiver() {
  if (owner_ != ::getpid()) return;
  guests_.shut_down();
  for (const Sender& sender : senders_) os::shut_down(sender.socket.get());
}

// ---- messages ----

void Receiver::record_arrival() {
  has_arrivals_ = true;
  end_returned_ = false;
}

bool Receiver::has_ended() {
  if (!has_arrivals_) return false;
  for (std::uint32_t lane = 0; lane < senders_.size(); lane++) {
    free_if_empty(lane);
    if (senders_[lane].state != Sender::State::free) return false;
  }
  return true;
}

// Waits until `try_it()` has found messages.
template <class Try>
Status Receiver::find(std::int64_t timeout_ns, Try&& try_it, Error& error) {
  if (try_it()) return FEEDLANE_OK;
  const os::Deadline deadline = os::Deadline::after(timeout_ns);
  finds_++;  // no message is left: peeked ones were released, or removed by a faulty sender
  peeked_ = 0;
  os::Deadline last_guest = os::Deadline::never();  // END is returned at this time, even if guests keep connecting
  for (bool is_last = false;; is_last = deadline.remaining_ns() == 0) {  // ends even if a sender rings without end
    if (try_it()) return FEEDLANE_OK;
    if (closed_.load(std::memory_order_relaxed)) return FEEDLANE_INTERRUPTED;  // see `close`
    if (has_ended()) {                                                         // unless a request for a lane is pending
      if (const Status s = handle_events(error); s != FEEDLANE_OK) return s;
      if (!has_ended()) continue;
      if (last_guest.is_never()) last_guest = deadline.earlier(os::Deadline::after(greeting::Guests::patience_ns));
      if (!guests_.are_expected() || last_guest.remaining_ns() == 0) {
        end_returned_ = true;
        return FEEDLANE_END;
      }
      if (const Status s = wait(last_guest, error); s < 0 || s == FEEDLANE_INTERRUPTED) return s;
      continue;
    }
    if (is_last) return FEEDLANE_TIMEOUT;
    if (waiter_.spin(deadline, try_it)) return FEEDLANE_OK;
    const Status s = wait(deadline, error);
    if (s == FEEDLANE_TIMEOUT && try_it()) return FEEDLANE_OK;  // see Sleeper::is_sure
    if (s != FEEDLANE_OK) return s;
  }
}

Status Receiver::peek(std::uint32_t want, std::int64_t timeout_ns, feedlane_span& got, Error& error) {
  return find(
      timeout_ns, [&] { return try_peek(want, got); }, error);
}

Status Receiver::receive(std::byte* messages, std::uint32_t want, std::int64_t timeout_ns, std::uint32_t& got,
                         std::uint32_t& lane, Error& error) {
  // The copy function is chosen here, not in each poll, because the time after a message's arrival adds to its latency.
  if (plan_.geometry.message_bytes <= line_bytes)
    return find(
        timeout_ns, [&] { return take(messages, want, got, lane, CopyLine{}); }, error);
  return find(
      timeout_ns, [&] { return take(messages, want, got, lane, CopyAny{}); }, error);
}

Status Receiver::release(std::uint32_t lane, std::uint32_t count, Error& error) {
  if (try_release(lane, count)) return FEEDLANE_OK;
  if (lane != peeked_lane_ || count > peeked_)
    return error.refuse(FEEDLANE_E_ARGUMENT, lane != peeked_lane_ ? "lane" : "count",
                        lane != peeked_lane_ ? lane : count, lane != peeked_lane_ ? peeked_lane_ : peeked_,
                        "cannot release {} messages of lane {}: the last peek returned {} messages of lane {}", count,
                        lane, peeked_, peeked_lane_);
  peeked_ -= count;  // the sender has left
  lanes_.release(lane, count);
  free_if_empty(lane);
  return FEEDLANE_OK;
}

// ---- waiting ----

Status Receiver::handle(const os::Poller::Event& event, Error& error) {
  if (greeting::Guests::owns(event.tag)) return handle_guest(event.tag, error);
  if (event.tag == close_tag) return FEEDLANE_OK;
  const auto lane = static_cast<std::uint32_t>(event.tag) >> 2;
  const auto generation = static_cast<std::uint32_t>(event.tag >> 32);
  const auto kind = static_cast<Kind>(event.tag & 3);
  const Sender& sender = senders_[lane];
  const bool there = sender.state == Sender::State::offered || sender.state == Sender::State::attached;
  if (!there || sender.generation != generation) return FEEDLANE_OK;  // an event of its predecessor
  if (kind == kind_process) end_sender(lane);
  else if (kind == kind_socket) read_message(lane);
  return FEEDLANE_OK;
}

void Receiver::close() {
  // Relaxed: the eventfd wakes the sleeper; the flag only says why.
  closed_.store(true, std::memory_order_relaxed);
  os::signal_event(close_event_.get());
}

Status Receiver::wait(os::Deadline deadline, Error& error) {
  return waiter_.sleep_until(
      deadline, [this] { return lanes_.any(); }, [&](const os::Poller::Event& event) { return handle(event, error); },
      error);
}

Status Receiver::arm(Error& error) {
  waiter_.cancel();
  if (const Status s = handle_events(error); s != FEEDLANE_OK) return s;
  // Once peek has returned END, END no longer keeps the caller awake, so it can sleep until another sender comes.
  return waiter_.arm([this] { return lanes_.any() || (!end_returned_ && has_ended()); }, error);
}

// Handles pending events without waiting.
Status Receiver::handle_events(Error& error) {
  // A sender has a doorbell, a pidfd and a socket, and sends two messages over the socket before it ends.
  const std::size_t rounds = 3 * (3 * senders_.size() / ring::Waiter::max_events + 1);
  return waiter_.poll(
      rounds, [&](const os::Poller::Event& event) { return handle(event, error); }, error);
}

}  // namespace feedlane::channel
