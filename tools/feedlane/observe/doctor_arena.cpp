// SPDX-License-Identifier: Apache-2.0
// What `feedlane doctor` finds about an arena.
#include <fmt/core.h>

#include <algorithm>

#include "doctor.hpp"

namespace observe {
namespace {

// Fewer gets in the interval say nothing of the share that found their entry.
constexpr double least_gets = 20;

std::string bytes(std::uint64_t count) { return bytes_text(static_cast<double>(count)); }

void examine_waits(ArenaReport& r) {
  const feedlane_arena_stats& s = r.arena.after.stats;
  if (s.waiting == 0) return;
  // Also at the beginning of the interval: a wait that ends soon is none to report.
  if (r.arena.before.stats.waiting == 0) return;
  const auto& members = r.arena.after.members;
  const auto most =
      std::max_element(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.held < b.held; });
  std::string text = fmt::format("{} requests wait for memory or for a key; {} of {} are in use", s.waiting,
                                 bytes(s.used_bytes), bytes(s.bytes));
  if (most != members.end() && most->held != 0)
    text += fmt::format(", and process {} holds {} entries", most->pid, most->held);
  r.findings.push_back({"waiting", State::warning, -1, text,
                        "release batches earlier, or give the arena more memory; if memory is free, the missing keys "
                        "are put by nobody",
                        ""});
}

void examine_evictions(ArenaReport& r) {
  const ArenaRates rate = rates(r.arena, r.seconds);
  if (rate.evicted == 0 || rate.hit_share < 0 || rate.gets * r.seconds < least_gets || rate.hit_share > 0.5) return;
  r.findings.push_back(
      {"evictions", State::warning, -1,
       fmt::format("{:.0f} entries per second are evicted, and {:.0f} % of the gets find their entry", rate.evicted,
                   rate.hit_share * 100),
       fmt::format("give the arena more memory than {}: entries are evicted before they are used again",
                   bytes(r.arena.after.stats.bytes)),
       ""});
}

void examine_members(ArenaReport& r) {
  for (const feedlane_arena_member& m : r.arena.after.members)
    if (m.cut_off != 0)
      r.findings.push_back(
          {"cut-off", State::problem, -1,
           fmt::format("member {} (process {}) was cut off, because it sent an invalid request", m.number, m.pid),
           "restart that process; its memory was overwritten, or it uses another library", ""});
}

}  // namespace

void examine(ArenaReport& report) {
  examine_members(report);
  examine_waits(report);
  examine_evictions(report);
}

Json to_json(const ArenaReport& r) {
  Json all = to_json(r.arena, r.seconds);
  all["findings"] = Json::array();
  for (const Finding& f : r.findings) all["findings"].push_back(to_json(f));
  return all;
}

void print(const ArenaReport& r) {
  const feedlane_arena_stats& s = r.arena.after.stats;
  const ArenaRates rate = rates(r.arena, r.seconds);
  fmt::print("\narena {} of process {}: {}\n", r.arena.nth, r.arena.pid, r.arena.program);
  fmt::print("           {} of {} in {} entries; {} processes; {:.1f} gets per second{}, {:.1f} evictions per second\n",
             bytes(s.used_bytes), bytes(s.bytes), s.entries, s.members, rate.gets,
             rate.hit_share < 0 ? "" : fmt::format(", {:.0f} % found", rate.hit_share * 100), rate.evicted);
  for (const Finding& f : r.findings) print(f);
}

}  // namespace observe
