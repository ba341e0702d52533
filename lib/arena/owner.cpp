// SPDX-License-Identifier: Apache-2.0
// Requests of members: publishing, memory, keys. Retiring and evicting entries.
#include "arena/owner.hpp"

#include <algorithm>

#include "os/clock.hpp"
#include "os/quick_clock.hpp"

namespace feedlane::arena {
namespace {

// How often descriptors are looked at while the owner never sleeps.
constexpr std::int64_t polling_ns = 1'000'000;
// Requests of one member that may be unanswered. A member that follows the rules has no more than its ring has cells.
constexpr std::size_t most_outstanding = shm::arena_ring_capacity;

bool is_sound(const shm::ArenaRequest& r, const shm::ArenaPlan& plan) {
  return r.bytes != 0 && r.bytes <= plan.payload_bytes && r.offset <= plan.payload_bytes - r.bytes &&
         r.bytes % Extents::unit == 0 && r.offset % Extents::unit == 0;
}

// Afterwards one push_back can't fail.
void reserve_one(std::vector<std::uint32_t>& list) {
  if (list.size() == list.capacity()) list.reserve(2 * list.size() + 1);
}

Key key_of(const shm::ArenaRequest& r) { return Key(r.key, std::min<std::uint64_t>(r.key_bytes, sizeof r.key)); }

}  // namespace

// ---- serving ----

bool Owner::serve(bool is_asleep) {
  bool has_come = false;
  const std::int64_t now = os::QuickClock::now_ns();
  if (!is_asleep && (has_events_ || now - polled_ns_ >= polling_ns)) {
    polled_ns_ = now;
    // More than once, because a message may have another behind it; not for ever, because a member may send many.
    for (int round = 0; round < 4 && (round == 0 || has_events_); round++) {
      has_events_ = false;
      handle_events();
    }
    (void)store_->reclaim();
  }
  // By number, because a request may end a peer.
  for (std::size_t i = 0; i < peers_.size(); i++) {
    Peer& peer = *peers_[i];
    if (peer.has_request()) has_come = serve_requests(peer) || has_come;
    if (peer.has_taken() || peer.has_unsent()) collect_deliveries(peer);
  }
  clean_up();
  if (bury_ended()) has_come = true;
  if (!waits_.empty() && serve_waiting()) has_come = true;
  if (has_come || figures_are_old_) write_figures(false);
  return has_come;
}

bool Owner::sweep() {
  if (figures_are_old_) write_figures(true);
  if (has_events_) return true;
  bool is_blocked = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (!peer->is_blocked && peer->has_request()) return true;
    is_blocked = is_blocked || peer->is_blocked;
  }
  for (const std::unique_ptr<Peer>& peer : peers_)
    if (peer->has_taken() && (peer->has_unsent() || is_blocked || !waits_.empty())) return true;
  return (is_blocked && store_->has_room_for_entry()) || (!waits_.empty() && serve_waiting());
}

bool Owner::serve_requests(Peer& peer) {
  bool has_come = false;
  for (std::uint32_t left = shm::arena_ring_capacity; left > 0 && peer.has_request(); left--) {
    const Result result = process(peer, peer.request());
    peer.is_blocked = result == Result::blocked;
    if (result == Result::blocked) break;
    peer.end_request();
    has_come = true;
    if (result == Result::invalid) cut_off(peer, "has sent an invalid request");
  }
  if (has_come) peer.ring();
  set_short(!waits_.empty() || std::any_of(peers_.begin(), peers_.end(), [](const auto& p) { return p->is_blocked; }));
  return has_come;
}

Owner::Result Owner::process(Peer& peer, const shm::ArenaRequest& request) {
  switch (static_cast<shm::ArenaRequestKind>(request.kind)) {
    case shm::ArenaRequestKind::publish: return publish(peer, request);
    case shm::ArenaRequestKind::give_back: return give_back(peer, request);
    case shm::ArenaRequestKind::want_memory: return want_memory(peer, request);
    case shm::ArenaRequestKind::want_key: return want_key(peer, request);
    case shm::ArenaRequestKind::drop_key: return drop_key(peer, request);
    case shm::ArenaRequestKind::cancel_memory: waits_.cancel(peer.number(), request.ticket); return Result::done;
    case shm::ArenaRequestKind::cancel_key:
      wants_.end([&](const Wants::Waiter& w) { return w.member == peer.number() && w.ticket == request.ticket; },
                 [&](const Wants::Waiter& next) { tell(next, shm::ArenaAnswerKind::make); });
      return Result::done;
  }
  return Result::invalid;
}

// ---- entries ----

Owner::Result Owner::publish(Peer& peer, const shm::ArenaRequest& request) {
  if (!is_sound(request, plan_) || request.key_bytes > shm::arena_key_bytes ||
      request.bytes > plan_.largest_entry() + Extents::page)
    return Result::invalid;
  if (!store_->has_room_for_entry()) return Result::blocked;
  bool is_short = false;
  const std::uint32_t extent = cut_grant(peer, request.offset, request.bytes, is_short);
  if (extent == Memory::none) return is_short ? Result::blocked : Result::invalid;
  const Key key = key_of(request);
  const std::uint32_t entry = store_->add(peer, extent, key, (request.flags & shm::arena_pinned) != 0);
  if (key.bytes == 0) send_to_all(peer, entry);
  else
    wants_.fulfil(key, peer.number(), [&](const Wants::Waiter& waiter) { tell(waiter, shm::ArenaAnswerKind::ready); });
  return Result::done;
}

// A member's entry goes to the owner's process, and an entry of that to all members.
void Owner::send_to_all(Peer& maker, std::uint32_t entry) {
  const std::uint64_t word = store_->index().id(entry).word();
  const bool is_own = maker.number() == 0;
  store_->expect_delivery(entry);  // until all are counted
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if ((peer->number() == 0) == is_own || !peer->is_receiving()) continue;
    store_->expect_delivery(entry);
    peer->deliver(entry, word);
  }
  store_->end_delivery(entry);
}

void Owner::collect_deliveries(Peer& peer) {
  if (!peer.collect([this](std::uint32_t entry) { store_->end_delivery(entry); }))
    return cut_off(peer, "has written an impossible position");
  peer.send_more();
}

Owner::Result Owner::drop_key(Peer& peer, const shm::ArenaRequest& request) {
  if (request.key_bytes == 0 || request.key_bytes > shm::arena_key_bytes) return Result::invalid;
  const Key key = key_of(request);
  if (wants_.give_up(key, peer.number(), [&](const Wants::Waiter& next) { tell(next, shm::ArenaAnswerKind::make); }))
    return Result::done;
  if (const std::uint32_t entry = store_->index().find(key); entry != Index::none) store_->remove(entry);
  return Result::done;
}

Owner::Result Owner::want_key(Peer& peer, const shm::ArenaRequest& request) {
  if (request.key_bytes == 0 || request.key_bytes > shm::arena_key_bytes) return Result::invalid;
  const Key key = key_of(request);
  const Wants::Waiter waiter{peer.number(), request.ticket, (request.flags & shm::arena_make) != 0};
  if (store_->index().find(key) != Index::none) tell(waiter, shm::ArenaAnswerKind::ready);
  else if (wants_.wanted_by(peer.number()) >= most_outstanding) return Result::invalid;
  else if (wants_.add(key, waiter)) tell(waiter, shm::ArenaAnswerKind::make);
  return Result::done;
}

void Owner::tell(const Wants::Waiter& waiter, shm::ArenaAnswerKind kind) {
  Peer* const peer = find(waiter.member);
  if (peer == nullptr || !peer->is_receiving()) return;
  shm::ArenaAnswer answer{};
  answer.kind = static_cast<std::uint32_t>(kind);
  answer.ticket = waiter.ticket;
  if (!peer->answer(answer)) cut_off(*peer, "has more unread answers than its ring has cells");
}

// ---- memory ----

std::uint32_t Owner::cut_grant(Peer& peer, std::uint64_t offset, std::uint64_t bytes, bool& is_short) {
  const auto it = std::find_if(peer.grants.begin(), peer.grants.end(), [&](std::uint32_t grant) {
    const Extents::Extent& e = store_->memory.at(grant);
    return offset >= e.offset && bytes <= e.bytes && offset - e.offset <= e.bytes - bytes;
  });
  if (it == peer.grants.end()) return Memory::none;
  const std::uint32_t grant = *it;
  const std::uint64_t end = store_->memory.at(grant).offset + store_->memory.at(grant).bytes;
  const bool has_front = store_->memory.at(grant).offset != offset;
  const bool has_rest = offset + bytes != end;
  if (has_front && has_rest) {
    if (peer.grants.size() >= Memory::most_parts(plan_.geometry)) return Memory::none;
    reserve_one(peer.grants);
  }
  const std::uint32_t part = store_->memory.cut(grant, offset, bytes);
  if (is_short = part == Memory::none; is_short) return part;
  if (!has_front) peer.grants.erase(it);
  if (has_rest) peer.grants.push_back(store_->memory.at(part).after);
  return part;
}

Owner::Result Owner::give_back(Peer& peer, const shm::ArenaRequest& request) {
  if (!is_sound(request, plan_)) return Result::invalid;
  bool is_short = false;
  const std::uint32_t extent = cut_grant(peer, request.offset, request.bytes, is_short);
  if (extent == Memory::none) return is_short ? Result::blocked : Result::invalid;
  store_->memory.give_back(extent);
  return Result::done;
}

Owner::Result Owner::want_memory(Peer& peer, const shm::ArenaRequest& request) {
  const std::uint64_t most = plan_.largest_entry() + Extents::page;
  if (request.bytes == 0 || request.bytes % Extents::unit != 0 || request.more % Extents::unit != 0 ||
      peer.grants.size() >= Memory::most_parts(plan_.geometry))
    return Result::invalid;
  reserve_one(peer.grants);
  const bool is_ahead = (request.flags & shm::arena_ahead) != 0;
  std::uint32_t extent = Memory::none;
  Status s = FEEDLANE_E_LIMIT;
  // Members have at most an eighth of the arena for their next puts.
  const std::uint64_t most_granted = plan_.geometry.bytes / 8;
  const std::uint64_t room = (most_granted - std::min(most_granted, store_->granted_bytes())) & ~(Extents::unit - 1);
  if (request.bytes <= most && waits_.empty()) {
    const bool moves = MemoryWaits::may_move(*store_, peer, request.bytes);
    const bool may_wait = is_ahead || when_full_ != FEEDLANE_FULL_FAIL;
    const std::uint64_t more = std::min({request.more, room, most & ~(Extents::unit - 1)});
    if (more > request.bytes) s = store_->find_memory(peer, more, moves, extent);
    if (s != FEEDLANE_OK && (request.bytes <= room || !is_ahead))
      s = store_->find_memory(peer, request.bytes, moves || !may_wait, extent);
  }
  if (s == FEEDLANE_OK) {
    grant(peer, request.ticket, extent);
  } else if (is_ahead || request.bytes > most || when_full_ == FEEDLANE_FULL_FAIL || s != FEEDLANE_E_LIMIT) {
    refuse_memory(peer, request.ticket, request.bytes, s);
  } else {
    if (waits_.count(peer.number()) >= most_outstanding) return Result::invalid;
    waits_.add(peer.number(), request.ticket, request.bytes);
  }
  return Result::done;
}

void Owner::grant(Peer& peer, std::uint64_t ticket, std::uint32_t extent) {
  peer.grants.push_back(extent);
  shm::ArenaAnswer answer{};
  answer.kind = static_cast<std::uint32_t>(shm::ArenaAnswerKind::memory);
  answer.ticket = ticket;
  answer.offset = store_->memory.at(extent).offset;
  answer.bytes = store_->memory.at(extent).bytes;
  if (!peer.answer(answer)) cut_off(peer, "has more unread answers than its ring has cells");
}

void Owner::refuse_memory(Peer& peer, std::uint64_t ticket, std::uint64_t bytes, Status status) {
  shm::ArenaAnswer answer{};
  answer.kind = static_cast<std::uint32_t>(shm::ArenaAnswerKind::no_memory);
  answer.status = status;
  answer.ticket = ticket;
  answer.offset = plan_.geometry.bytes - std::min(plan_.geometry.bytes, store_->memory.used_bytes());
  answer.bytes = bytes;
  if (!peer.answer(answer)) cut_off(peer, "has more unread answers than its ring has cells");
}

bool Owner::serve_waiting() {
  const bool has_served = waits_.serve(
      *store_,
      [this](std::uint32_t member) -> Peer* {
        Peer* const peer = find(member);
        if (peer == nullptr || !peer->is_receiving()) return nullptr;
        reserve_one(peer->grants);
        return peer;
      },
      [this](Peer& peer, const MemoryWaits::Wait& wait, Status status, std::uint32_t extent) {
        if (status == FEEDLANE_OK) grant(peer, wait.ticket, extent);
        else refuse_memory(peer, wait.ticket, wait.bytes, status);
      });
  if (has_served) set_short(!waits_.empty());
  return has_served;
}

// Members that end a lease ring from now on, or no longer. Each sleep is preceded by a sweep, which looks at the leases
// after the fence of Sleeper::prepare.
void Owner::set_short(bool is_short) {
  shm::Word32& word = control_.control<shm::ArenaBlock>(plan_.block)->wants_memory;
  const std::uint32_t value = is_short ? 1 : 0;
  // Relaxed: the fence of Sleeper::prepare follows. Pairs with Member::end_lease.
  if (word.load(std::memory_order_relaxed) != value) word.store(value, std::memory_order_relaxed);
}

}  // namespace feedlane::arena
