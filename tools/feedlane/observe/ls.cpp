// SPDX-License-Identifier: Apache-2.0
// `feedlane ls`: loaders, rings and arenas of this user, with rates over a short time.
#include <fmt/core.h>
#include <time.h>

#include <memory>
#include <utility>

#include "arenas.hpp"
#include "commands.hpp"
#include "rings.hpp"
#include "sample.hpp"
#include "terminal.hpp"

namespace observe {
namespace {

struct Listing {
  std::vector<Found> loaders;
  std::vector<Sample> before;
  std::vector<Sample> after;
  std::vector<Ring> rings;
  std::vector<Arena> arenas;
  std::vector<Unreadable> unreadable;
  double seconds = 0;  // between the two
};

void sleep_s(double seconds) {
  const auto ns = static_cast<std::int64_t>(seconds * 1e9);
  const timespec wanted{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  (void)::nanosleep(&wanted, nullptr);
}

struct Options {
  std::int64_t pid = 0;
  double seconds = 0.2;
  bool json = false;
};

Listing look(const Options& options) {
  Listing list;
  Search search = find_loaders_quietly(options.pid);
  list.loaders = std::move(search.loaders);
  list.unreadable = std::move(search.unreadable);
  list.rings = find_rings(options.pid, list.unreadable);
  list.arenas = find_arenas(options.pid, list.unreadable);
  const std::uint64_t began = now_ns();
  for (const Found& f : list.loaders) list.before.push_back(take_sample(f.monitor));
  if (!list.loaders.empty() || !list.rings.empty() || !list.arenas.empty()) sleep_s(options.seconds);
  for (const Found& f : list.loaders) list.after.push_back(take_sample(f.monitor));
  for (Ring& ring : list.rings) read_again(ring);
  for (Arena& arena : list.arenas) (void)read_again(arena);
  list.seconds = static_cast<double>(now_ns() - began) * 1e-9;
  return list;
}

double messages_per_s(const Listing& list, const Ring& ring) {
  return static_cast<double>(ring.after.received - ring.before.received) / list.seconds;
}

Json loader_json(const Listing& list, std::size_t i) {
  const Found& found = list.loaders[i];
  const Sample& now = list.after[i];
  const Rates rate = rates(list.before[i], now);
  return {{"pid", found.pid},
          {"loader", found.nth},
          {"name", now.info.name},
          {"program", found.program},
          {"version", now.info.version},
          {"start", now.info.workers == 0 ? "inline" : start_name(now.info.start)},
          {"workers", now.info.workers},
          {"workers_ready", now.ready_workers()},
          {"prefetch_factor", now.info.prefetch_factor},
          {"batch_size", now.info.batch_size},
          {"iterable", now.info.iterable != 0},
          {"age_ns", now.age_ns()},
          {"in_epoch", now.info.in_epoch != 0},
          {"epoch", or_null(now.info.epoch)},
          {"batch", now.info.batch},
          {"batches", or_null(now.info.batches)},
          {"batches_per_s", rounded(rate.batches)},
          {"samples_per_s", rounded(rate.samples)},
          {"bytes_per_s", rounded(rate.bytes)},
          {"total_batches", now.stats.batches},
          {"total_samples", now.stats.samples},
          {"total_bytes", now.stats.bytes},
          {"total_restarts", now.stats.restarts},
          {"slots", now.stats.slots},
          {"slots_free", now.stats.slots_free},
          {"slots_held", now.stats.slots_held},
          {"control_bytes", now.stats.control_bytes},
          {"data_bytes", now.stats.data_bytes},
          {"reserved_bytes", now.stats.reserved_bytes}};
}

Json ring_json(const Listing& list, const Ring& ring) {
  return {{"pid", ring.pid},
          {"ring", ring.nth},
          {"program", ring.program},
          {"message_bytes", ring.after.message_bytes},
          {"capacity", ring.after.capacity},
          {"lanes", ring.after.lanes},
          {"received", ring.after.received},
          {"messages_per_s", rounded(messages_per_s(list, ring))},
          {"control_bytes", ring.after.control_bytes}};
}

void print_json(const Listing& list) {
  Json all = {
      {"loaders", Json::array()}, {"rings", Json::array()}, {"arenas", Json::array()}, {"unreadable", Json::array()}};
  for (std::size_t i = 0; i < list.loaders.size(); i++) all["loaders"].push_back(loader_json(list, i));
  for (const Ring& ring : list.rings) all["rings"].push_back(ring_json(list, ring));
  for (const Arena& arena : list.arenas) all["arenas"].push_back(to_json(arena, list.seconds));
  for (const Unreadable& u : list.unreadable)
    all["unreadable"].push_back(
        {{"pid", u.pid}, {"program", u.program}, {"code", u.error.name()}, {"text", std::string(u.error.text())}});
  fmt::print("{}\n", json_text(all));
}

void print_loaders(const Listing& list) {
  std::vector<std::vector<std::string>> rows{{"pid", "loader", "name", "start", "workers", "epoch", "batch", "batch/s",
                                              "sample/s", "MB/s", "age", "memory", "program"}};
  for (std::size_t i = 0; i < list.loaders.size(); i++) {
    const Found& found = list.loaders[i];
    const Sample& now = list.after[i];
    const Rates rate = rates(list.before[i], now);
    const bool is_inline = now.info.workers == 0;
    const std::string name = printable(now.info.name);
    rows.push_back({std::to_string(found.pid), std::to_string(found.nth), name.empty() ? "-" : name,
                    is_inline ? "inline" : start_name(now.info.start),
                    is_inline ? "-" : fmt::format("{}/{}", now.ready_workers(), now.info.workers),
                    now.info.epoch < 0 ? "-" : std::to_string(now.info.epoch), progress(now.info),
                    fmt::format("{:.1f}", rate.batches), fmt::format("{:.0f}", rate.samples),
                    fmt::format("{:.1f}", rate.bytes * 1e-6), duration(static_cast<double>(now.age_ns()) * 1e-9),
                    bytes_text(static_cast<double>(now.stats.reserved_bytes)), found.program});
  }
  if (rows.size() > 1) fmt::print("{}", table(rows, {2, 3, 12}));
}

void print_rings(const Listing& list) {
  std::vector<std::vector<std::string>> rows{
      {"pid", "ring", "message bytes", "capacity", "lanes", "received", "message/s", "program"}};
  for (const Ring& ring : list.rings)
    rows.push_back({std::to_string(ring.pid), std::to_string(ring.nth), std::to_string(ring.after.message_bytes),
                    std::to_string(ring.after.capacity), std::to_string(ring.after.lanes),
                    std::to_string(ring.after.received), fmt::format("{:.1f}", messages_per_s(list, ring)),
                    ring.program});
  if (rows.size() > 1) fmt::print("{}{}", list.loaders.empty() ? "" : "\n", table(rows, {7}));
}

std::string share_text(double share) { return share < 0 ? "-" : fmt::format("{:.1f}", share * 100); }

// Each arena with its members.
void print_arenas(const Listing& list) {
  bool is_first = list.loaders.empty() && list.rings.empty();
  for (const Arena& arena : list.arenas) {
    const feedlane_arena_stats& s = arena.after.stats;
    const ArenaRates rate = rates(arena, list.seconds);
    std::vector<std::vector<std::string>> rows{{"pid", "arena", "used", "of", "entries", "held", "waiting", "get/s",
                                                "hit %", "put/s", "evicted/s", "program"}};
    rows.push_back({std::to_string(arena.pid), std::to_string(arena.nth), bytes_text(static_cast<double>(s.used_bytes)),
                    bytes_text(static_cast<double>(s.bytes)), std::to_string(s.entries), std::to_string(s.leased),
                    std::to_string(s.waiting), fmt::format("{:.1f}", rate.gets), share_text(rate.hit_share),
                    fmt::format("{:.1f}", rate.published), fmt::format("{:.1f}", rate.evicted), arena.program});
    fmt::print("{}{}", std::exchange(is_first, false) ? "" : "\n", table(rows, {11}));
    std::vector<std::vector<std::string>> members{
        {"", "member", "pid", "held", "waiting", "granted", "hit %", "state"}};
    for (const feedlane_arena_member& m : arena.after.members) {
      const double gets = static_cast<double>(m.hits + m.misses);
      members.push_back({"", std::to_string(m.number), std::to_string(m.pid), std::to_string(m.held),
                         std::to_string(m.waiting), bytes_text(static_cast<double>(m.granted_bytes)),
                         share_text(gets == 0 ? -1 : static_cast<double>(m.hits) / gets),
                         m.cut_off != 0  ? "cut off"
                         : m.number == 0 ? "owner"
                         : m.pid == 0    ? "joining"
                                         : "member"});
    }
    fmt::print("{}", table(members, {7}));
  }
}

// The exit status.
int list_all(const Options& options) {
  const Listing list = look(options);
  const bool is_empty = list.loaders.empty() && list.rings.empty() && list.arenas.empty();
  const int status = options.pid != 0 && is_empty ? 1 : 0;
  if (options.json) {
    print_json(list);
    return status;
  }
  print_loaders(list);
  print_rings(list);
  print_arenas(list);
  if (is_empty && list.unreadable.empty() && options.pid == 0)
    fmt::print("none of your processes has a loader, ring or arena\n");
  if (is_empty && list.unreadable.empty() && options.pid != 0)
    fmt::print("process {} has no loader, ring or arena\n", options.pid);
  for (const Unreadable& u : list.unreadable)
    fmt::print("process {} ({}): {}\n", u.pid, u.program, printable(u.error.what()));
  return status;
}

}  // namespace

void add_ls(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("ls", "List your running loaders, rings and arenas");
  add_pid(*command, options->pid,
          "List only loaders of this process (default: of all your processes; root: of all users)");
  command->add_option("--seconds", options->seconds, "Measure rates for this many seconds (default: 0.2)")
      ->type_name("S")
      ->check(seconds_between(0.001, 60));
  command->add_flag("--json", options->json, "Print one JSON value instead of text");
  command->callback([options, &exit_status] { exit_status = list_all(*options); });
}

}  // namespace observe
