// SPDX-License-Identifier: Apache-2.0
// Asks the owner for memory, ahead of need where possible.
#include "arena/grants.hpp"

#include <algorithm>

#include "arena/extents.hpp"

namespace feedlane::arena {
namespace {

constexpr std::uint64_t align_unit(std::uint64_t bytes) { return (bytes + Extents::unit - 1) & ~(Extents::unit - 1); }

// Memory to ask for with an entry of this size: enough for several small entries.
std::uint64_t with_more(std::uint64_t bytes) {
  constexpr std::uint64_t chunk = 256 * 1024;
  return bytes >= chunk ? bytes : std::min(align_unit(64 * bytes), chunk);
}

// Whether the grant lies in a segment of this size, and in whole units.
bool is_sound(const shm::ArenaAnswer& answer, std::uint64_t segment_bytes) {
  return answer.bytes <= segment_bytes && answer.offset <= segment_bytes - answer.bytes &&
         (answer.offset | answer.bytes) % Extents::unit == 0;
}

}  // namespace

Status Grants::take(Line::Lock& lock, std::uint64_t bytes, os::Deadline deadline, std::uint64_t& offset, Error& error) {
  take_late_answers();
  const Status s = try_take(bytes, offset) ? FEEDLANE_OK : await(lock, bytes, deadline, offset, error);
  if (s == FEEDLANE_OK) ask_ahead(bytes);
  return s;
}

void Grants::take_late_answers() {
  for (shm::ArenaAnswer answer{}; line_.take_late(answer);) {
    if (answer.ticket == ahead_ticket_) ahead_ticket_ = 0;
    if (answer.kind == static_cast<std::uint32_t>(shm::ArenaAnswerKind::memory)) add(answer);
  }
}

bool Grants::try_take(std::uint64_t bytes, std::uint64_t& offset) {
  for (auto it = all_.begin(); it != all_.end(); ++it) {
    if (it->bytes < bytes) continue;
    offset = it->offset;
    it->offset += bytes;
    it->bytes -= bytes;
    if (it->bytes == 0) all_.erase(it);
    return true;
  }
  return false;
}

void Grants::add(const shm::ArenaAnswer& answer) {
  if (answer.bytes == 0 || !is_sound(answer, plan_.payload_bytes)) return;
  if (all_.size() == all_.capacity()) return give_back(answer.offset, answer.bytes);
  all_.push_back({answer.offset, answer.bytes});
}

void Grants::give_back(std::uint64_t offset, std::uint64_t bytes) {
  shm::ArenaRequest request{};
  request.kind = static_cast<std::uint32_t>(shm::ArenaRequestKind::give_back);
  request.offset = offset;
  request.bytes = bytes;
  line_.send_later(request);
}

// So that a later put of this size need not wait.
void Grants::ask_ahead(std::uint64_t bytes) {
  if (ahead_ticket_ != 0) return;
  if (std::any_of(all_.begin(), all_.end(), [=](const Grant& g) { return g.bytes >= bytes; })) return;
  shm::ArenaRequest request{};
  request.kind = static_cast<std::uint32_t>(shm::ArenaRequestKind::want_memory);
  request.flags = shm::arena_ahead;
  request.bytes = bytes;
  request.more = with_more(bytes);
  request.ticket = line_.next_ticket();
  if (line_.try_send(request)) ahead_ticket_ = request.ticket;
}

Status Grants::await(Line::Lock& lock, std::uint64_t bytes, os::Deadline deadline, std::uint64_t& offset,
                     Error& error) {
  if (ahead_ticket_ != 0) {  // it may be on its way
    const auto has_come = [&] {
      take_late_answers();
      return ahead_ticket_ == 0 ? FEEDLANE_OK : Line::not_yet;
    };
    if (const Status s = line_.wait_for(lock, Need::answer, deadline, has_come, error); s != FEEDLANE_OK) return s;
  } else {
    line_.pump();
    take_late_answers();
  }
  if (try_take(bytes, offset)) return FEEDLANE_OK;
  for (const Grant& grant : all_) give_back(grant.offset, grant.bytes);  // too small
  all_.clear();
  shm::ArenaRequest request{};
  request.kind = static_cast<std::uint32_t>(shm::ArenaRequestKind::want_memory);
  request.bytes = bytes;
  request.more = with_more(bytes);
  shm::ArenaAnswer answer{};
  const Status s = line_.ask(lock, request, shm::ArenaRequestKind::cancel_memory, deadline, answer, error);
  if (s != FEEDLANE_OK) return s;
  if (answer.kind == static_cast<std::uint32_t>(shm::ArenaAnswerKind::no_memory)) {
    if (answer.status >= 0) answer.status = FEEDLANE_E_CORRUPT;
    return error.refuse(answer.status, "put", answer.offset, bytes,
                        "the entry needs {} bytes, and {} of the arena's {} have no entry: release or drop entries, or "
                        "raise config.bytes",
                        bytes, answer.offset, plan_.geometry.bytes);
  }
  if (answer.bytes < bytes || !is_sound(answer, plan_.payload_bytes))
    return error.refuse(FEEDLANE_E_CORRUPT, "answer.bytes", answer.bytes, bytes,
                        "the owner granted {} bytes at offset {} for an entry of {}", answer.bytes, answer.offset,
                        bytes);
  offset = answer.offset;
  answer.offset += bytes;
  answer.bytes -= bytes;
  add(answer);
  return s;
}

}  // namespace feedlane::arena
