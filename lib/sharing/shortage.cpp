// SPDX-License-Identifier: Apache-2.0
// Determines which consumers keep the feeder waiting.
#include "sharing/shortage.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace feedlane::sharing {
namespace {

// How long the feeder waits for consumers before it names them.
constexpr std::int64_t telling_ns = 1'000'000'000;

bool is_observer(const Link& link) { return link.is_receiving() && link.lag() == FEEDLANE_LAG_OBSERVE; }

}  // namespace

// ---- how long ----

void Shortage::note(std::int64_t now_ns) {
  is_noted_ = true;
  const bool is_new = since_ns_ == 0;
  if (is_new) {
    since_ns_ = now_ns;
    is_lag_told_ = false;
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
  if (!is_lag_told_ && now_ns - since_ns_ >= telling_ns) tell_lag();
}

// A consumer keeps the feeder waiting if its ring is full or it has batches to take. If no consumer has any to take and
// no place without a consumer has slots, the consumers that hold the most batches do.
bool Shortage::is_in_the_way(Link& link) const {
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

void Shortage::begin_wait(bool has_room) {
  if (!std::exchange(is_noted_, false) && has_room) end();
}

void Shortage::forgive(std::int64_t ns) {
  if (since_ns_ != 0) since_ns_ += ns;
  for (const std::unique_ptr<Link>& link : links_.all)
    if (link->stall.since_ns != 0) link->stall.since_ns += ns;
}

os::Deadline Shortage::next_deadline() const {
  os::Deadline first = os::Deadline::never();
  if (since_ns_ == 0) return first;
  if (!is_lag_told_) first = first.earlier(os::Deadline::at(since_ns_ + telling_ns));
  for (const std::unique_ptr<Link>& link : links_.all)
    if (link->is_receiving() && link->stall.since_ns != 0 && patience_with(*link) != FEEDLANE_FOREVER)
      first = first.earlier(os::Deadline::at(link->stall.since_ns + patience_with(*link)));
  return first;
}

// How long a consumer may keep the feeder waiting. If it has not joined, the start timeout applies, as to a worker that
// doesn't attach.
std::int64_t Shortage::patience_with(const Link& link) const {
  const loader::Config& config = loader_.config();
  if (link.state == Link::State::offered && config.has_start_timeout()) return config.start_timeout_ns;
  return link.lag() == FEEDLANE_LAG_EVICT ? link.evict_after_ns() : FEEDLANE_FOREVER;
}

void Shortage::tell_lag() {
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

// ---- what follows ----

std::optional<Shortage::Overdue> Shortage::find_overdue(std::int64_t now_ns) const {
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->is_receiving()) continue;
    if (link->is_broken()) return Overdue{link.get(), "was evicted, because it wrote invalid data"};
    if (link->stall.since_ns != 0 && now_ns - link->stall.since_ns >= patience_with(*link))
      return Overdue{link.get(), "was evicted, because it released no batch in time"};
  }
  return std::nullopt;
}

std::optional<std::uint64_t> Shortage::find_observed() const {
  std::vector<std::uint32_t> observers(loader_.memory().segments.plan().geometry.slots);
  for (const std::unique_ptr<Link>& link : links_.all)
    if (is_observer(*link)) link->for_each_waiting([&](const Parcel& p) { observers[p.slot]++; });
  std::optional<std::uint64_t> first;
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!is_observer(*link)) continue;
    link->for_each_waiting([&](const Parcel& p) {
      if (observers[p.slot] == stock_.holders(p.slot)) first = std::min(first.value_or(p.round), p.round);
    });
  }
  return first;
}

Status Shortage::look_for_holder(Error& error) {
  std::vector<std::pair<Link*, std::uint64_t>> holders;
  std::uint64_t most = 0, waiting = 0;
  for (const std::unique_ptr<Link>& link : links_.all) {
    if (!link->is_receiving()) continue;
    const Link::Outstanding its = link->outstanding();
    holders.emplace_back(link.get(), its.held);
    most = std::max(most, its.held);
    waiting += its.waiting;
  }
  if (waiting != 0 || links_.any_news()) return FEEDLANE_OK;
  if (const auto place = find_missing_consumer())
    return error.refuse(
        FEEDLANE_E_PEER_DEAD, "config.consumers", backlogs_[*place].size(), 0,
        "place {} has no consumer, and the batches queued for it occupy all slots: call feedlane_loader_open_consumer",
        *place);
  for (const auto& [link, held] : holders)
    if (most != 0 && held == most) link->tell_short();
  is_short_told_ = is_short_told_ || most != 0;
  return most != 0 ? FEEDLANE_OK : blame_holders(error);
}

// Share deal: a place without a consumer that has batches, and so slots.
std::optional<std::size_t> Shortage::find_missing_consumer() const {
  const auto has_slot = [](const Parcel& parcel) { return parcel.has_slot(); };
  for (std::size_t place = 0; place < backlogs_.size(); place++)
    if (std::any_of(backlogs_[place].begin(), backlogs_[place].end(), has_slot) && links_.at_place(place) == nullptr)
      return place;
  return std::nullopt;
}

// Failed batches, begins and ends hold no slot, so nothing else limits their number.
Status Shortage::check_backlogs(Error& error) const {
  constexpr std::size_t most = 1 << 14;
  for (std::size_t place = 0; place < backlogs_.size(); place++)
    if (backlogs_[place].size() > most)
      return error.refuse(
          FEEDLANE_E_PEER_DEAD, "config.consumers", backlogs_[place].size(), most,
          "place {} has no consumer, and {} messages are queued for it: call feedlane_loader_open_consumer", place,
          backlogs_[place].size());
  return FEEDLANE_OK;
}

// HUNG if only consumers that get no more batches hold slots.
Status Shortage::blame_holders(Error& error) const {
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
                      "no slot is free, because consumers that were evicted or have left hold {} batches: {}{}", held,
                      names, rest);
}

void Shortage::end_shorts() {
  if (!is_short_told_ || !loader_.memory().slots.any_free()) return;
  is_short_told_ = false;
  for (const std::unique_ptr<Link>& link : links_.all) link->end_short();
}

}  // namespace feedlane::sharing
