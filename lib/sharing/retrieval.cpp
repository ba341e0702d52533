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

bool Audience::has_work() const { return has_events_ || (wants_returns_ && links_.any_news()); }

// A return wakes the feeder only if there is something to do with it: the loader lacks a slot, a ring is full, or no epoch is in
// progress, when consumers that leave are waited for. Otherwise it is collected when something else has woken the feeder.
void Audience::prepare_wait(bool needs_slots) {
  const bool has_room = links_.has_room();
  if (!std::exchange(shortage_.is_found, false) && has_room) end_shortage();  // it waits for something else
  const bool wants = needs_slots || !epoch.is_in_progress || !has_room;
  if (std::exchange(wants_returns_, wants) == wants) return;
  // Relaxed: the fence of Sleeper::prepare, which follows, orders it before the look at the returns. Pairs with
  // Consumer::tell_return.
  catalogue_.control<shm::FeederBlock>(plan_.feeder)->wants_returns.store(wants ? 1 : 0, std::memory_order_relaxed);
}

void Audience::work() {
  for (const std::unique_ptr<Link>& link : links_.all)
    if (link->has_news()) collect(*link);
  handle_events();
  if (shortage_.is_short_told && loader_.memory().slots.any_free()) end_shorts();
}

void Audience::handle_events() {
  const std::int64_t now = os::QuickClock::now_ns();
  if (listen_again_ns_ != 0 && now >= listen_again_ns_) listen_again();
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
  reserve_at(link.place(), link.out());  // for what was returned unread
  link.collect([&](const Parcel& parcel, bool is_unread) {
    if (is_unread && deals()) deliver_again(link, parcel);
    else stock_.put_back(parcel.slot);
  });
}

// Share deal: a consumer that was stopped between taking a batch and looking whether it was revoked has not had it. Its place
// gets the batch in a round of its own, since later ones may be out. The state after it is that of the newest whole round.
void Audience::deliver_again(const Link& link, Parcel parcel) {
  if (!epoch.is_in_progress || parcel.epoch != epoch.number) {
    stock_.put_back(parcel.slot);
    return tell(FEEDLANE_EVENT_WARNING, link,
                "returned a batch unread after the end of its epoch: no consumer has read it");
  }
  parcel.round = ++round_;
  deliver_to(static_cast<std::size_t>(link.place()), parcel);
}

// Consumers that were told so may wait for more again.
void Audience::end_shorts() {
  shortage_.is_short_told = false;
  for (const std::unique_ptr<Link>& link : links_.all) link->end_short();
}

// ---- consumers that end ----

// What was not taken: share deal keeps it for the consumer that comes to this place next. Needs memory for it: see reserve_at.
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

// The link of a consumer that has not joined is gone afterwards.
void Audience::evict(Link& link, const char* why) {
  reserve_at(link.place(), link.out());
  const bool has_joined = link.state == Link::State::attached;
  take_back(link);
  link.state = Link::State::evicted;
  link.stall.since_ns = 0;
  link.tell_evicted();
  tell(FEEDLANE_EVENT_CONSUMER_EVICTED, link, why);
  if (has_joined) return;
  Error refusal;
  (void)refusal.refuse(FEEDLANE_E_HUNG, "config.start_timeout_ns", 0, 1,
                       "the feeder has closed place {}: nobody has joined there in time", link.place());
  refuse(link.socket, refusal);
  end_link(link.number(), nullptr);
}

// Its process has ended, or it has returned all that it had. `how`: nullptr if that was told before.
void Audience::end_link(std::uint32_t number, const char* how) {
  const auto it = std::find_if(links_.all.begin(), links_.all.end(),
                               [&](const std::unique_ptr<Link>& link) { return link->number() == number; });
  if (it == links_.all.end()) return;
  reserve_at((*it)->place(), (*it)->out());  // what follows can't fail
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
  if (how != nullptr && link->state != Link::State::leaving) tell(FEEDLANE_EVENT_CONSUMER_LEFT, *link, how);
}

// ---- consumers that lag ----

os::Deadline Audience::next_deadline() const {
  os::Deadline first = listen_again_ns_ == 0 ? os::Deadline::never() : os::Deadline::at(listen_again_ns_);
  if (shortage_.since_ns == 0) return first;
  if (!shortage_.is_lag_told) first = first.earlier(os::Deadline::at(shortage_.since_ns + telling_ns));
  for (const std::unique_ptr<Link>& link : links_.all)
    if (link->is_receiving() && link->stall.since_ns != 0 && patience_with(*link, loader_.config()) != FEEDLANE_FOREVER)
      first = first.earlier(os::Deadline::at(link->stall.since_ns + patience_with(*link, loader_.config())));
  return first;
}

void Audience::note_stall(std::int64_t now_ns) {
  shortage_.is_found = true;
  const bool is_new = shortage_.since_ns == 0;
  if (is_new) {
    shortage_.since_ns = now_ns;
    shortage_.is_lag_told = false;
  }
  for (const std::unique_ptr<Link>& link : links_.all) {
    const std::uint64_t progress = link->progress();
    if (!is_in_the_way(*link)) {
      link->stall.since_ns = 0;
    } else if (is_new || link->stall.since_ns == 0 || progress != link->stall.progress) {
      link->stall.since_ns = now_ns;
    }
    link->stall.progress = progress;
  }
  if (!shortage_.is_lag_told && now_ns - shortage_.since_ns >= telling_ns) tell_lag();
}

void Audience::tell_lag() {
  shortage_.is_lag_told = true;
  for (const std::unique_ptr<Link>& link : links_.all) {
    const Link::Outstanding its = link->outstanding();
    Error text;
    (void)text.refuse(FEEDLANE_OK, "consumer", its.all(), 0,
                      "the feeder waits: consumer {} (process {}) holds {} batches and has not taken {} more",
                      link->place(), link->pid, its.held, its.waiting);
    if (text.found != 0) loader_.events().push(FEEDLANE_EVENT_CONSUMER_LAGS, text);
  }
}

// Whether the feeder waits for this consumer: its ring is full, it has batches to take, or all that is taken is held, and nobody
// holds more than it.
bool Audience::is_in_the_way(Link& link) const {
  if (!link.is_receiving()) return false;
  if (!link.has_room()) return true;
  const Link::Outstanding its = link.outstanding();
  if (its.waiting != 0) return true;
  for (const std::unique_ptr<Link>& other : links_.all) {
    const Link::Outstanding theirs = other->is_receiving() ? other->outstanding() : Link::Outstanding{};
    if (theirs.waiting != 0 || theirs.held > its.held) return false;
  }
  return its.held != 0 && !find_missing_consumer();
}

// Share deal: the place that has no consumer, and slots with its batches.
std::optional<std::size_t> Audience::find_missing_consumer() const {
  const auto has_slot = [](const Parcel& parcel) { return parcel.has_slot(); };
  for (std::size_t place = 0; place < backlogs_.size(); place++)
    if (std::any_of(backlogs_[place].begin(), backlogs_[place].end(), has_slot) && links_.at_place(place) == nullptr)
      return place;
  return std::nullopt;
}

// The feeder's host was away for this long: nobody kept the feeder waiting meanwhile.
void Audience::forgive(std::int64_t ns) {
  if (shortage_.since_ns != 0) shortage_.since_ns += ns;
  for (const std::unique_ptr<Link>& link : links_.all)
    if (link->stall.since_ns != 0) link->stall.since_ns += ns;
}

// Evicts a consumer whose words are invalid, or one that has kept the feeder waiting for too long. One at a time: with what it had
// the others may no longer be in the way.
void Audience::evict_overdue(std::int64_t now_ns) {
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->is_receiving()) continue;
    if (link->is_broken()) return evict(*link, "was evicted: its words are invalid");
    if (link->stall.since_ns != 0 && now_ns - link->stall.since_ns >= patience_with(*link, loader_.config()))
      return evict(*link, "was evicted: it has returned nothing for as long as it may");
  }
}

// Takes back from observers as little as frees a slot: one that nobody else holds. False: there is none. An observer may have taken
// it meanwhile.
bool Audience::take_from_observers() {
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
  if (first == UINT64_MAX) return false;
  for_each_observer([&](Link& link) {
    link.revoke(first, [&](const Parcel& p) {
      if (p.has_slot()) stock_.put_back(p.slot);
    });
  });
  return true;
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
  for (const std::unique_ptr<Link>& link : links_.all)
    collect(*link);  // whether or not it says that there is something
  note_stall(now);
  evict_overdue(now);
  while (!loader_.memory().slots.any_free() && take_from_observers()) continue;
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
  if (waiting != 0 || has_events_ || links_.any_news()) return FEEDLANE_OK;
  if (const auto place = find_missing_consumer())
    return error.refuse(FEEDLANE_E_PEER_DEAD, "config.consumers", backlogs_[*place].size(), 0,
                        "place {} has no consumer, and its batches keep the next ones from being made: "
                        "feedlane_loader_open_consumer",
                        *place);
  for (const auto& [link, held] : holders)
    if (most != 0 && held == most) link->tell_short();
  shortage_.is_short_told = shortage_.is_short_told || most != 0;
  return most != 0 ? FEEDLANE_OK : blame_holders(error);
}

// Only consumers that get no batches any more hold some.
Status Audience::blame_holders(Error& error) const {
  char names[256] = "";
  std::uint64_t held = 0, others = 0;
  for (const std::unique_ptr<Link>& link : links_.all) {
    const std::uint64_t its = link->is_receiving() ? 0 : link->outstanding().held;
    if (its == 0) continue;
    held += its;
    char longer[sizeof names];
    const auto length =
        format_to(longer, "{}{}consumer {} (process {})", names, held == its ? "" : ", ", link->place(), link->pid);
    if (length + 1 < sizeof longer && others == 0) std::copy(std::begin(longer), std::end(longer), names);
    else others++;
  }
  if (held == 0) return FEEDLANE_OK;
  char rest[32] = "";
  if (others != 0) (void)format_to(rest, " and {} more", others);
  return error.refuse(FEEDLANE_E_HUNG, "consumer", held, 0,
                      "no slot is free: consumers that were evicted or have left hold {} batches: {}{}", held, names,
                      rest);
}

// Whether there is anybody to deliver to.
Status Audience::check_consumers(Error& error) const {
  if (links_.any_receiving()) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_PEER_DEAD, "consumers", 0, 1, "no consumer is there: feedlane_loader_open_consumer");
}

}  // namespace feedlane::sharing
