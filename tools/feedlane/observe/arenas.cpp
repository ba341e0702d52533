// SPDX-License-Identifier: Apache-2.0
// Finds the arenas of this user's processes.
#include "arenas.hpp"

#include <algorithm>
#include <utility>

namespace observe {
namespace {

void add_arenas_of(std::int64_t pid, bool is_chosen, std::vector<Arena>& all, std::vector<Unreadable>& unreadable) {
  const Survey seen = survey(pid, is_chosen);
  if (seen.refusal.code() != 0 || (seen.is_known && seen.arenas.empty())) return;  // find_rings has said why
  for (std::size_t nth = 0; !seen.is_known || nth <= seen.arenas.size(); nth++) {
    feedlane::Error error;
    const auto info = feedlane::arena_info(pid, static_cast<int>(nth), error);
    const bool is_told =
        std::any_of(unreadable.begin(), unreadable.end(), [&](const Unreadable& u) { return u.pid == pid; });
    if (is_unreadable(error) && !is_told) unreadable.push_back({pid, program_of(pid), error});
    if (error.code() == FEEDLANE_E_ABI || error.code() == FEEDLANE_E_CORRUPT) continue;  // says nothing of the next one
    if (!info) return;
    all.push_back({pid, static_cast<int>(nth), program_of(pid),
                   nth < seen.arenas.size() ? std::optional(seen.arenas[nth]) : std::nullopt, *info, *info});
  }
}

double each_second(std::uint64_t before, std::uint64_t after, double seconds) {
  return after < before ? 0 : static_cast<double>(after - before) / seconds;
}

}  // namespace

std::vector<Arena> find_arenas(std::int64_t pid, std::vector<Unreadable>& unreadable) {
  std::vector<Arena> all;
  if (pid != 0) add_arenas_of(pid, true, all, unreadable);
  else
    for (const Process& process : processes()) add_arenas_of(process.pid, false, all, unreadable);
  std::vector<Holder> holders;
  for (const Arena& arena : all) holders.push_back({arena.pid, arena.file});
  const std::vector<bool> are_inherited = inherited(holders);
  std::vector<Arena> kept;
  for (std::size_t i = 0; i < all.size(); i++)
    if (!are_inherited[i]) kept.push_back(std::move(all[i]));
  return kept;
}

bool read_again(Arena& arena) {
  feedlane::Error ignored;
  auto now = feedlane::arena_info(arena.pid, arena.nth, ignored);
  // Another one, created meanwhile, may have its number.
  const bool is_same =
      now && now->stats.bytes == arena.before.stats.bytes && now->stats.published >= arena.before.stats.published;
  if (is_same) arena.after = std::move(*now);
  return is_same;
}

void ArenaWatch::find() {
  const std::uint64_t now = now_ns();
  if (measured_ns_ == 0) measured_ns_ = now;
  if (now < next_search_ns_) return;
  next_search_ns_ = now + 1'000'000'000;
  std::vector<Unreadable> ignored;  // of the processes, Watch has said them
  std::vector<Arena> found = find_arenas(pid_, ignored);
  for (Arena& arena : found)
    for (Arena& known : all_)
      if (known.pid == arena.pid && known.nth == arena.nth && known.file == arena.file)
        arena.after = std::move(known.after);
  all_ = std::move(found);
}

void ArenaWatch::measure() {
  const std::uint64_t now = now_ns();
  seconds_ = static_cast<double>(now - std::exchange(measured_ns_, now)) * 1e-9;
  std::erase_if(all_, [](Arena& arena) {
    arena.before = arena.after;
    return !read_again(arena);
  });
}

ArenaRates rates(const Arena& arena, double seconds) {
  const feedlane_arena_stats& before = arena.before.stats;
  const feedlane_arena_stats& after = arena.after.stats;
  const double hits = each_second(before.hits, after.hits, seconds);
  ArenaRates found;
  found.gets = hits + each_second(before.misses, after.misses, seconds);
  if (found.gets > 0) found.hit_share = hits / found.gets;
  found.published = each_second(before.published, after.published, seconds);
  found.evicted = each_second(before.evicted, after.evicted, seconds);
  return found;
}

Json to_json(const Arena& arena, double seconds) {
  const feedlane_arena_stats& s = arena.after.stats;
  const ArenaRates rate = rates(arena, seconds);
  Json members = Json::array();
  for (const feedlane_arena_member& m : arena.after.members)
    members.push_back({{"member", m.number},
                       {"pid", m.pid},
                       {"cut_off", m.cut_off != 0},
                       {"held", m.held},
                       {"waiting", m.waiting},
                       {"granted_bytes", m.granted_bytes},
                       {"hits", m.hits},
                       {"misses", m.misses}});
  return {{"pid", arena.pid},
          {"arena", arena.nth},
          {"program", arena.program},
          {"bytes", s.bytes},
          {"used_bytes", s.used_bytes},
          {"entries", s.entries},
          {"leased", s.leased},
          {"waiting", s.waiting},
          {"published", s.published},
          {"evicted", s.evicted},
          {"hits", s.hits},
          {"misses", s.misses},
          {"gets_per_s", rounded(rate.gets)},
          {"hit_share", rate.hit_share < 0 ? Json(nullptr) : Json(rounded(rate.hit_share))},
          {"published_per_s", rounded(rate.published)},
          {"evicted_per_s", rounded(rate.evicted)},
          {"members", members}};
}

}  // namespace observe
