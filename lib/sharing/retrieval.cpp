// SPDX-License-Identifier: Apache-2.0
// What comes back from the consumers: returned batches, and those of consumers that have ended, lag, or were evicted.
#include <algorithm>
#include <utility>
#include <vector>

#include "os/clock.hpp"
#include "os/quick_clock.hpp"
#include "sharing/audience.hpp"

namespace feedlane::sharing {
namespace {

// How long the feeder waits for consumers before it names them.
constexpr std::int64_t telling_ns = 1'000'000'000;
// How often sockets are looked at while the feeder never sleeps.
constexpr std::int64_t polling_ns = 1'000'000;

// How long a consumer may keep the feeder waiting. One that was offered and has not come is like a worker that doesn't attach.
std::int64_t patience_with(const Link& link, const loader::Config& config) {
  if (link.state == Link::State::offered && config.has_start_timeout()) return config.start_timeout_ns;
  return link.lag() == FEEDLANE_LAG_EVICT ? link.evict_after_ns() : FEEDLANE_FOREVER;
}

}  // namespace

bool Audience::has_work() const { return has_events_ || links_.any_news(); }

void Audience::work() {
  for (const std::unique_ptr<Link>& link : links_.all)
    if (link->has_news()) collect(*link);
  const std::int64_t now = os::QuickClock::now_ns();
  if (!has_events_ && now - polled_ns_ < polling_ns) return;
  has_events_ = false;
  polled_ns_ = now;
  std::array<os::Poller::Event, 64> events;
  std::size_t count = 0;
  Error ignored;
  if (poller_.wait(os::Deadline::at(0), events, count, ignored) != FEEDLANE_OK) return;
  for (std::size_t i = 0; i < count; i++) handle(events[i]);
}

void Audience::collect(Link& link) {
  link.collect([&](const Parcel& parcel, bool is_unread) {
    if (is_unread && deals()) deliver_again(link, parcel);
    else stock_.put_back(parcel.slot);
  });
}

// Share deal: a consumer that was stopped between taking a batch and looking whether it was revoked has not had it. Its place
// gets the batch in a round of its own, since later ones may be out.
void Audience::deliver_again(const Link& link, Parcel parcel) {
  if (!epoch.is_in_progress || parcel.epoch != epoch.number) {
    stock_.put_back(parcel.slot);
    return tell(FEEDLANE_EVENT_WARNING, link, "returned a batch unread after the end of its epoch: no consumer has read it");
  }
  parcel.round = ++round_;
  stock_.record(round_);
  deliver_to(static_cast<std::size_t>(link.place()), std::move(parcel));
}

void Audience::forget_old_states() {
  std::uint64_t oldest = round_;
  for (const std::unique_ptr<Link>& link : links_.all) oldest = std::min(oldest, link->oldest());
  for (const std::deque<Parcel>& backlog : backlogs_)
    if (!backlog.empty()) oldest = std::min(oldest, backlog.front().round - 1);
  stock_.forget_before(oldest, 2 * std::size_t{plan_.geometry.capacity});
}

// ---- consumers that end ----

// What was not taken: share deal keeps it for the consumer that comes to this place next.
void Audience::take_back(Link& link) {
  const bool is_kept = deals() && link.lag() != FEEDLANE_LAG_OBSERVE;
  link.revoke([&](const Parcel& parcel) {
    if (is_kept) backlogs_[static_cast<std::size_t>(link.place())].push_back(parcel);
    else if (parcel.has_slot()) stock_.put_back(parcel.slot);
  });
}

void Audience::tell(std::int32_t kind, const Link& link, const char* what) {
  Error text;
  (void)text.fail(kind == FEEDLANE_EVENT_CONSUMER_EVICTED ? FEEDLANE_E_HUNG : FEEDLANE_OK,
                  "consumer {} (process {}) {}", link.place(), link.pid, what);
  loader_.events().push(kind, text);
}

void Audience::evict(Link& link, const char* why) {
  take_back(link);
  link.state = Link::State::evicted;
  link.tell_evicted();
  tell(FEEDLANE_EVENT_CONSUMER_EVICTED, link, why);
}

// Its process has ended, or it has returned all that it had.
void Audience::end_link(std::uint32_t number, const char* how) {
  const auto it = std::find_if(links_.all.begin(), links_.all.end(),
                               [&](const std::unique_ptr<Link>& link) { return link->number() == number; });
  if (it == links_.all.end()) return;
  const std::unique_ptr<Link> link = std::move(*it);
  links_.all.erase(it);
  poller_.remove(link->socket.get());
  poller_.remove(link->process.get());
  poller_.remove(link->feeder_event.get());
  collect(*link);
  if (link->is_receiving()) take_back(*link);
  link->drop([this](std::uint32_t slot) { stock_.put_back(slot); });
  os::discard_messages(link->socket.get());
  os::shut_down(link->socket.get());
  if (link->state != Link::State::leaving) tell(FEEDLANE_EVENT_CONSUMER_LEFT, *link, how);
}

// ---- consumers that lag ----

os::Deadline Audience::next_deadline() const {
  if (short_since_ns_ == 0) return os::Deadline::never();
  os::Deadline first = is_lag_told_ ? os::Deadline::never() : os::Deadline::at(short_since_ns_ + telling_ns);
  for (const std::unique_ptr<Link>& link : links_.all)
    if (link->is_receiving() && link->stalled_since_ns != 0 &&
        patience_with(*link, loader_.config()) != FEEDLANE_FOREVER)
      first = first.earlier(os::Deadline::at(link->stalled_since_ns + patience_with(*link, loader_.config())));
  return first;
}

void Audience::note_stall(std::int64_t now_ns) {
  const bool is_new = short_since_ns_ == 0;
  if (is_new) {
    short_since_ns_ = now_ns;
    is_lag_told_ = false;
  }
  for (const std::unique_ptr<Link>& link : links_.all) {
    const std::uint64_t progress = link->progress();
    if (!is_new && link->stalled_since_ns != 0 && progress == link->seen_progress) continue;
    link->stalled_since_ns = now_ns;
    link->seen_progress = progress;
  }
  if (is_lag_told_ || now_ns - short_since_ns_ < telling_ns) return;
  is_lag_told_ = true;
  for (const std::unique_ptr<Link>& link : links_.all) {
    const Link::Outstanding its = link->outstanding();
    Error text;
    (void)text.refuse(FEEDLANE_OK, "consumer", its.all(), 0,
                      "the feeder waits: consumer {} (process {}) holds {} batches and has not taken {} more",
                      link->place(), link->pid, its.held, its.waiting);
    if (text.found != 0) loader_.events().push(FEEDLANE_EVENT_CONSUMER_LAGS, text);
  }
}

// Ends the places of consumers that have kept the feeder waiting for too long, or whose words are invalid.
void Audience::evict_overdue(std::int64_t now_ns) {
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->is_receiving()) continue;
    const bool is_in_the_way = !link->has_room() || link->outstanding().all() != 0;
    if (link->is_broken()) evict(*link, "was evicted: its words are invalid");
    else if (is_in_the_way && now_ns - link->stalled_since_ns >= patience_with(*link, loader_.config()))
      evict(*link, "was evicted: it has returned nothing for as long as it may");
  }
}

// Takes back from observers as little as frees a slot: one that nobody else holds.
void Audience::take_from_observers() {
  std::vector<std::uint32_t> observed(plan_.geometry.slots);
  const auto for_each_observer = [this](auto&& f) {
    for (const std::unique_ptr<Link>& link : links_.all)
      if (link->is_receiving() && link->lag() == FEEDLANE_LAG_OBSERVE) f(*link);
  };
  for_each_observer([&](Link& link) { link.for_each_waiting([&](const Parcel& p) { observed[p.slot]++; }); });
  std::uint64_t first = UINT64_MAX;
  for_each_observer([&](Link& link) {
    link.for_each_waiting([&](const Parcel& p) {
      if (observed[p.slot] == stock_.holders(p.slot)) first = std::min(first, p.round);
    });
  });
  if (first == UINT64_MAX) return;
  for_each_observer([&](Link& link) {
    link.revoke(first, [&](const Parcel& p) {
      if (p.has_slot()) stock_.put_back(p.slot);
    });
  });
}

bool Audience::make_ring_room() {
  const std::int64_t now = os::now_ns();
  note_stall(now);
  evict_overdue(now);
  return links_.has_room();
}

// Consumers hold every slot. What can be taken back is; otherwise somebody has to return one.
Status Audience::make_room(Error& error) {
  const std::int64_t now = os::now_ns();
  note_stall(now);
  evict_overdue(now);
  take_from_observers();
  if (loader_.memory().slots.any_free()) return FEEDLANE_OK;
  return look_for_holder(error);
}

// Whether a consumer that has slots may return one. Those that have taken all there is are told to.
Status Audience::look_for_holder(Error& error) {
  std::vector<std::pair<Link*, std::uint64_t>> holders;
  std::uint64_t most = 0, waiting = 0;
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->is_receiving()) continue;
    const Link::Outstanding its = link->outstanding();
    holders.emplace_back(link.get(), its.held);
    most = std::max(most, its.held);
    waiting += its.waiting;
  }
  if (waiting != 0 || has_work()) return FEEDLANE_OK;
  for (std::size_t place = 0; place < backlogs_.size(); place++)
    if (!backlogs_[place].empty() && links_.at_place(place) == nullptr)
      return error.refuse(FEEDLANE_E_PEER_DEAD, "config.consumers", backlogs_[place].size(), 0,
                          "place {} has no consumer, and its batches keep the next ones from being made: "
                          "feedlane_loader_open_consumer",
                          place);
  for (const auto& [link, held] : holders)
    if (most != 0 && held == most) link->tell_short();
  if (most != 0) return FEEDLANE_OK;
  for (const std::unique_ptr<Link>& link : links_.all)
    if (!link->is_receiving() && link->outstanding().held != 0)
      return error.refuse(
          FEEDLANE_E_HUNG, "consumer", link->outstanding().held, 0,
          "consumer {} (process {}) was evicted or has left, and still holds {} batches: no slot is free",
          link->place(), link->pid, link->outstanding().held);
  return FEEDLANE_OK;
}

// Whether there is anybody to deliver to.
Status Audience::check_consumers(Error& error) const {
  if (links_.any_receiving()) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_PEER_DEAD, "consumers", 0, 1, "no consumer is there: feedlane_loader_open_consumer");
}

}  // namespace feedlane::sharing
