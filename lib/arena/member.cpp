// SPDX-License-Identifier: Apache-2.0
// Gets and receives entries: leases, and what a process holds.
#include "arena/member.hpp"

#include <bit>
#include <utility>

#include "os/quick_clock.hpp"
#include "ring/fence.hpp"
#include "shm/shared_read.hpp"

namespace feedlane::arena {

// ---- numbers of leases and reservations ----

bool Member::claim(std::uint32_t& number) {
  if (!claims_->take(number)) return false;
  // Release: pairs with the acquire in Peer::for_each_lease. Several threads may raise it.
  std::uint64_t in_use = row_->leases_in_use.load(std::memory_order_relaxed);
  while (in_use <= number && !row_->leases_in_use.compare_exchange_weak(in_use, number + 1, std::memory_order_release,
                                                                        std::memory_order_relaxed)) {
  }
  return true;
}

void Member::end_lease(std::uint32_t number) {
  // Release: this process's reads happen before the memory is used again. Pairs with Peer::for_each_lease.
  lease_words_[number].store(0, std::memory_order_release);
  ring::doorbell_fence();  // pairs with the one in Sleeper::prepare
  // Relaxed: either an owner that stored 1 before it looks at the leases sees this one, or the 1 is seen here.
  if (index_.block().wants_memory.load(std::memory_order_relaxed) != 0) line_.ring();
}

// Thread safety: any thread.
void Member::on_freed(std::uint32_t number) {
  Held& held = held_[number];
  if (held.is_put) {
    const Lock lock = line_.lock();
    if (held.bytes != 0) grants_.give_back(held.offset, std::exchange(held.bytes, 0));
    held.is_put = false;
  } else {
    views_->let_go(std::exchange(held.view, Views::none));
    end_lease(number);
  }
  unclaim(number);
}

Status Member::refuse_held(Error& error) const {
  return error.refuse(FEEDLANE_SLOTS_HELD, "config.leases", plan_.geometry.leases, plan_.geometry.leases + 1,
                      "this process holds {} batches and puts: release one, or raise config.leases",
                      plan_.geometry.leases);
}

// ---- getting ----

Status Member::lease(EntryId id, feedlane_batch& out, Error& error, Lock* lock) {
  std::uint32_t number = 0;
  if (!claim(number)) return refuse_held(error);
  // Relaxed: the fence orders it before the load of the state. Pairs with Index::retire: at least one side sees the
  // other's store.
  lease_words_[number].store(id.word(), std::memory_order_relaxed);
  ring::doorbell_fence();
  Status s = FEEDLANE_AGAIN;
  if (id.number < index_.entry_count() && index_.is_live(id)) {
    try {
      s = describe(number, id, out, error, lock);
    } catch (...) {
      end_lease(number);
      unclaim(number);
      throw;
    }
  }
  if (s == FEEDLANE_OK) return s;
  end_lease(number);
  unclaim(number);
  return s;
}

// Fills in what this process holds under `number`. The entry is leased.
Status Member::describe(std::uint32_t number, EntryId id, feedlane_batch& out, Error& error, Lock* lock) {
  const EntryFacts facts = index_.facts(id.number);
  if (facts.bytes > plan_.payload_bytes || facts.offset > plan_.payload_bytes - facts.bytes ||
      facts.offset % Extents::unit != 0)
    return error.refuse(FEEDLANE_E_CORRUPT, "entry.offset", facts.offset, plan_.payload_bytes,
                        "the owner's index names {} bytes at offset {} of a segment of {} bytes", facts.bytes,
                        facts.offset, plan_.payload_bytes);
  Held& held = held_[number];
  std::uint32_t view = Views::none;
  while ((view = views_->keep(facts.segment, facts.segment_generation)) == Views::none) {
    Lock own;
    if (lock == nullptr) own = line_.lock();
    if ((view = views_->keep(facts.segment, facts.segment_generation)) != Views::none) break;
    if (const Status s = open_segment(facts.segment, facts.segment_generation, error); s != FEEDLANE_OK) return s;
  }
  Status s = FEEDLANE_OK;
  try {
    s = read_contents({views_->base(view) + facts.offset, facts.bytes}, facts.offset, held.described, error);
  } catch (...) {
    views_->let_go(view);
    throw;
  }
  if (s != FEEDLANE_OK) {
    views_->let_go(view);
    const Error why = error;
    return error.refuse(s, "entry", why.found, why.needed, "member {} has spoiled its entry: {}", facts.maker,
                        first(sizeof why.text, why.text));
  }
  use_words_[id.number].store(static_cast<std::uint64_t>(os::QuickClock::now_ns()), std::memory_order_relaxed);
  held.view = view;
  held.is_put = false;
  out = {};
  out.size = sizeof out;
  out.batch = static_cast<std::int64_t>(facts.sequence);
  out.worker = static_cast<std::int32_t>(facts.maker);
  out.tensors = held.described.tensors.data();
  out.tensor_count = held.described.tensors.size();
  out.metadata = held.described.metadata;
  out.metadata_bytes = held.described.metadata_bytes;
  out.committed_ns = facts.published_ns;
  out.token = slots_.lend(number);
  return s;
}

// OK; AGAIN: there is no entry; ABANDONED: only the owner can tell; errors.
Status Member::try_get(const Key& key, std::uint64_t hash, feedlane_batch& out, Error& error, Lock* lock) {
  for (int looks = 0; looks < 1000; looks++) {
    EntryId id;
    const IndexView::Found found = index_.find(key, hash, id);
    if (found == IndexView::Found::no) return FEEDLANE_AGAIN;
    if (found == IndexView::Found::unsure) return FEEDLANE_ABANDONED;
    const Status s = lease(id, out, error, lock);
    if (s != FEEDLANE_AGAIN) {
      if (s == FEEDLANE_OK) row_->hits.fetch_add(1, std::memory_order_relaxed);  // only a statistic
      return s;
    }
  }
  return FEEDLANE_ABANDONED;
}

Status Member::get(const Key& key, bool would_make, os::Deadline deadline, feedlane_batch& out, Error& error) {
  const std::uint64_t hash = key.hash();
  if (!line_.is_settled()) [[unlikely]]
    if (const Status s = await_own_changes(error); s != FEEDLANE_OK) return s;
  const Status s = try_get(key, hash, out, error, nullptr);
  if (s != FEEDLANE_AGAIN && s != FEEDLANE_ABANDONED) return s;
  row_->misses.fetch_add(1, std::memory_order_relaxed);  // only a statistic
  if (s == FEEDLANE_AGAIN && !would_make && deadline.remaining_ns() == 0 && !line_.is_of_owner())
    return FEEDLANE_TIMEOUT;
  return await_key(key, hash, would_make, deadline, out, error);
}

// A process finds what it has put itself, and not what it has replaced or dropped. If the owner has ended, entries that
// are there are still found.
Status Member::await_own_changes(Error& error) {
  constexpr std::int64_t patience_ns = 5'000'000'000;
  Lock lock = line_.lock();
  const Status s = line_.wait_for(
      lock, Need::settlement, os::Deadline::after(patience_ns),
      [this] { return line_.is_settled() ? FEEDLANE_OK : Line::not_yet; }, error);
  return s == FEEDLANE_TIMEOUT || s == FEEDLANE_E_PEER_DEAD ? FEEDLANE_OK : s;
}

Status Member::await_key(const Key& key, std::uint64_t hash, bool would_make, os::Deadline deadline,
                         feedlane_batch& out, Error& error) {
  Lock lock = line_.lock();
  for (;;) {
    shm::ArenaRequest request{};
    request.kind = static_cast<std::uint32_t>(shm::ArenaRequestKind::want_key);
    request.flags = would_make ? std::uint32_t{shm::arena_make} : 0;
    request.key_bytes = key.bytes;
    std::memcpy(request.key, key.words.data(), sizeof request.key);
    shm::ArenaAnswer answer{};
    Status s = line_.ask(lock, request, shm::ArenaRequestKind::cancel_key, deadline, answer, error);
    if (s == FEEDLANE_OK && answer.kind == static_cast<std::uint32_t>(shm::ArenaAnswerKind::make))
      return FEEDLANE_ABSENT;
    if (s != FEEDLANE_OK) return s;
    s = try_get(key, hash, out, error, &lock);
    if (s != FEEDLANE_AGAIN && s != FEEDLANE_ABANDONED) return s;
    if (deadline.remaining_ns() == 0) return FEEDLANE_TIMEOUT;  // it was evicted or dropped already
  }
}

// ---- streams ----

Status Member::receive(os::Deadline deadline, feedlane_batch& out, Error& error) {
  Lock lock = line_.lock();
  return line_.wait_for(
      lock, Need::delivery, deadline,
      [&]() -> Status {
        while (line_.deliveries().peek(1) != 0) {
          const auto delivery = shm::read_once<shm::ArenaDelivery>(line_.deliveries().message(0));
          const Status s = lease(EntryId::of(delivery.entry), out, error, &lock);
          if (s == FEEDLANE_SLOTS_HELD) return s;  // the delivery stays
          // The lease was stored before the position. Pairs with Peer::collect.
          line_.deliveries().release(1);
          if (line_.owner() == nullptr) line_.ring();
          if (s != FEEDLANE_AGAIN) return s;
        }
        return Line::not_yet;
      },
      error);
}

Status Member::serve(os::Deadline deadline, Error& error) {
  Lock lock = line_.lock();
  return line_.wait_for(
      lock, Need::service, deadline, [] { return Line::not_yet; }, error);
}

Status Member::poll(Error& error) {
  const Lock lock = line_.lock();
  line_.pump();
  if (line_.deliveries().peek(1) != 0) return FEEDLANE_AGAIN;
  const Status s = line_.obstacle(error);
  return s == Line::not_yet ? FEEDLANE_OK : s;
}

Status Member::arm(Error& error) {
  const Lock lock = line_.lock();
  return line_.arm(error);
}

void Member::fill_in(feedlane_arena_stats& stats) {
  const Lock lock = line_.lock();
  stats.bytes = plan_.geometry.bytes;
  stats.hits = row_->hits.load(std::memory_order_relaxed);
  stats.misses = row_->misses.load(std::memory_order_relaxed);
  stats.held = slots_.held();
  if (line_.owner() == nullptr) return;
  line_.pump();
  line_.owner()->fill_in(stats);
}

}  // namespace feedlane::arena
