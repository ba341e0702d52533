// SPDX-License-Identifier: Apache-2.0
// Finds the rings of this user's processes, and which processes hold the same one.
#include "rings.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace observe {
namespace {

std::int32_t read_ring(std::int64_t pid, int nth, feedlane_ring_info& out, feedlane::Error& error) {
  feedlane_init(&out, sizeof out);
  feedlane_error said{};
  feedlane_init(&said, sizeof said);
  const std::int32_t status = feedlane_monitor_ring(pid, nth, &out, &said);
  if (status < 0) error = feedlane::Error(said);
  return status;
}

struct Held {
  Ring ring;
  std::optional<FileId> file;
};

void add_rings_of(std::int64_t pid, bool is_chosen, std::vector<Held>& all, std::vector<Unreadable>& unreadable) {
  const Survey seen = survey(pid, is_chosen);
  const bool is_told =
      std::any_of(unreadable.begin(), unreadable.end(), [&](const Unreadable& u) { return u.pid == pid; });
  if (seen.refusal.code() != 0 && !is_told) unreadable.push_back({pid, program_of(pid), seen.refusal});
  if (seen.refusal.code() != 0 || (seen.is_known && seen.rings.empty())) return;
  for (std::size_t nth = 0; !seen.is_known || nth <= seen.rings.size(); nth++) {
    Ring ring{pid, static_cast<int>(nth), {}, {}, {}};
    feedlane::Error error;
    const std::int32_t status = read_ring(pid, ring.nth, ring.before, error);
    if (is_unreadable(error) && !(is_told && is_shortage(error))) unreadable.push_back({pid, program_of(pid), error});
    if (status == FEEDLANE_E_ABI || status == FEEDLANE_E_CORRUPT) continue;  // says nothing of the next one
    if (status != FEEDLANE_OK) return;
    ring.program = program_of(pid);
    ring.after = ring.before;
    all.push_back({std::move(ring), nth < seen.rings.size() ? std::optional(seen.rings[nth]) : std::nullopt});
  }
}

}  // namespace

std::vector<Ring> find_rings(std::int64_t pid, std::vector<Unreadable>& unreadable) {
  std::vector<Held> all;
  if (pid != 0) add_rings_of(pid, true, all, unreadable);
  else
    for (const Process& process : processes()) add_rings_of(process.pid, false, all, unreadable);
  std::vector<Holder> holders;
  for (const Held& held : all) holders.push_back({held.ring.pid, held.file});
  const std::vector<bool> are_inherited = inherited(holders);
  std::vector<Ring> kept;
  for (std::size_t i = 0; i < all.size(); i++)
    if (!are_inherited[i]) kept.push_back(std::move(all[i].ring));
  return kept;
}

void read_again(Ring& ring) {
  feedlane_ring_info now{};
  feedlane::Error ignored;
  if (read_ring(ring.pid, ring.nth, now, ignored) != FEEDLANE_OK) return;
  const feedlane_ring_info& then = ring.before;
  // Another one, created meanwhile, may have its number.
  const bool is_same = now.message_bytes == then.message_bytes && now.capacity == then.capacity &&
                       now.lanes == then.lanes && now.received >= then.received;
  if (is_same) ring.after = now;
}

}  // namespace observe
