// SPDX-License-Identifier: Apache-2.0
// Takes back batches that consumers return, and batches of consumers that have ended or were evicted.
#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "greeting/host.hpp"
#include "os/clock.hpp"
#include "os/quick_clock.hpp"
#include "sharing/audience.hpp"
#include "sharing/tags.hpp"

namespace feedlane::sharing {
namespace {

// How often sockets are checked while the feeder never sleeps.
constexpr std::int64_t polling_ns = 1'000'000;

}  // namespace

bool Audience::has_work() const { return has_events_ || (wants_returns_ && links_.any_news()); }

// A return wakes the feeder only if it is needed: the loader lacks a slot, a ring is full, or no epoch is in progress,
// so that the feeder may be waiting for consumers to leave. Other returns are collected when something else has woken
// the feeder.
void Audience::prepare_wait(bool needs_slots) {
  const bool has_room = links_.has_room();
  shortage_.begin_wait(has_room);
  const bool wants = needs_slots || !epoch.is_in_progress || !has_room;
  if (std::exchange(wants_returns_, wants) == wants) return;
  // Relaxed: the fence of Sleeper::prepare, which follows, orders it before the load of the returns. Pairs with
  // Consumer::tell_return.
  catalogue_.control<shm::FeederBlock>(plan_.feeder)->wants_returns.store(wants ? 1 : 0, std::memory_order_relaxed);
}

void Audience::handle_pending() {
  has_events_ = true;
  bool has_come = true;
  try {
    has_come = work();
  } catch (const std::bad_alloc&) {
    host_bell.ring();
    throw;
  }
  if (has_come) host_bell.ring();
}

bool Audience::work() {
  next_listed_ = 0;
  bool has_come = false;
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->has_news()) continue;
    collect(*link);
    has_come = true;
  }
  if (handle_events()) has_come = true;
  shortage_.end_shorts();
  return has_come;
}

bool Audience::handle_events() {
  const std::int64_t now = os::QuickClock::now_ns();
  if (!has_events_ && now - polled_ns_ < polling_ns) return false;
  has_events_ = false;
  polled_ns_ = now;
  std::array<os::Poller::Event, 64> events;
  std::size_t count = 0;
  Error ignored;
  if (poller_.wait(os::Deadline::at(0), events, count, ignored) != FEEDLANE_OK) return false;
  bool has_come = false;
  for (std::size_t i = 0; i < count; i++) {
    if (events[i].tag == EventTag::host_bell) continue;
    handle(events[i]);
    has_come = true;
  }
  return has_come;
}

void Audience::collect(Link& link) {
  reserve_at(link.place(), link.out());  // for batches that were returned unread
  link.collect([&](const Parcel& parcel, bool is_unread) {
    if (is_unread && deals()) deliver_again(link, parcel);
    else stock_.put_back(parcel.slot);
  });
}

// Share deal: a consumer that was interrupted between taking a batch and checking whether it was revoked returns it
// unread. Its place gets the batch again in a separate round, because later rounds may have been delivered. The state
// after it is that of the newest full round.
void Audience::deliver_again(const Link& link, Parcel parcel) {
  if (!epoch.is_in_progress || parcel.epoch != epoch.number) {
    stock_.put_back(parcel.slot);
    return tell(FEEDLANE_EVENT_WARNING, link,
                "returned an unread batch after the end of its epoch, so no consumer has read this batch");
  }
  parcel.round = ++round_;
  deliver_to(static_cast<std::size_t>(link.place()), parcel);
  links_.ring();
}

// ---- consumers that end ----

// Takes back messages that the consumer has not taken. Share deal keeps them for the next consumer of this place, which
// needs memory: see reserve_at.
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

// Deletes the link if the consumer has not joined.
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
                       "the feeder has closed place {}, because no consumer joined within config.start_timeout_ns",
                       link.place());
  greeting::refuse(link.socket.get(), refusal);
  end_link(link.number(), nullptr);
}

// Deletes the link of a consumer that has ended, or has returned all its batches. `how`: nullptr if its end was
// reported before.
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

// Revokes batches from observers, only as many as are needed to free a slot. False: there is none to revoke.
bool Audience::take_from_observers() {
  const std::optional<std::uint64_t> round = shortage_.find_observed();
  if (!round) return false;
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->is_receiving() || link->lag() != FEEDLANE_LAG_OBSERVE) continue;
    link->revoke(*round, [&](const Parcel& p) {
      if (p.has_slot()) stock_.put_back(p.slot);
    });
  }
  return true;
}

void Audience::note_shortage() {
  const std::int64_t now = os::now_ns();
  shortage_.note(now);
  if (const auto overdue = shortage_.find_overdue(now)) evict(*overdue->link, overdue->why);
}

// Consumers hold every slot. Takes back what it can; otherwise looks for a consumer that can return a batch.
Status Audience::make_room(Error& error) {
  for (const std::unique_ptr<Link>& link : links_.all) collect(*link);  // whatever has_news returns
  note_shortage();
  while (!loader_.memory().slots.any_free() && take_from_observers()) continue;
  if (loader_.memory().slots.any_free()) return FEEDLANE_OK;
  return has_events_ ? FEEDLANE_OK : shortage_.look_for_holder(error);
}

}  // namespace feedlane::sharing
