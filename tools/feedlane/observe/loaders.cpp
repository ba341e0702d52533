// SPDX-License-Identifier: Apache-2.0
// Finds loaders in other processes.
#include "loaders.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <utility>

namespace observe {
namespace {

// Of all loaders of one process that nobody has named, and loaders of all processes of one user: a user may start any number of processes.
constexpr std::int64_t most_workers = 512;
constexpr std::uint64_t most_slots = std::uint64_t{1} << 20;
constexpr std::size_t most_of_user = 1024;

// Forked workers inherit the trainer's descriptors, so their process has the same loader. Of those the trainer is kept, or the
// first process.
void keep_trainers(std::vector<Found>& all) {
  std::map<std::pair<std::int64_t, std::uint64_t>, std::size_t> kept_of;  // by trainer and time of creation
  std::vector<std::size_t> kept(all.size());
  for (std::size_t i = 0; i < all.size(); i++) {
    const feedlane_loader_info info = all[i].monitor.info();
    const auto [at, is_first] = kept_of.try_emplace({info.pid, info.created_ns}, i);
    if (!is_first && pid_as_it_sees_itself(all[at->second].pid) != info.pid &&
        pid_as_it_sees_itself(all[i].pid) == info.pid)
      at->second = i;
  }
  std::vector<bool> is_kept(all.size());
  for (const auto& [loader, i] : kept_of) is_kept[i] = true;
  std::vector<Found> result;
  for (std::size_t i = 0; i < all.size(); i++)
    if (is_kept[i]) result.push_back(std::move(all[i]));
  all = std::move(result);
}

}  // namespace

std::vector<Found> loaders_of(std::int64_t pid, feedlane::Error& error, bool is_chosen) {
  std::vector<Found> all;
  const Survey seen = survey(pid, is_chosen);
  error = seen.refusal;
  if (error.code() != 0) return all;
  if (seen.is_known && seen.loaders.empty() && !is_chosen) return all;
  std::int64_t workers = 0;
  std::uint64_t slots = 0;
  for (std::size_t nth = 0; !seen.is_known || nth <= seen.loaders.size(); nth++) {
    feedlane::Error why;
    auto monitor = feedlane::Monitor::open(pid, static_cast<int>(nth), why);
    if (monitor) {
      workers += monitor->info().workers;
      slots += monitor->stats().slots;
      all.push_back({pid, static_cast<int>(nth), program_of(pid), std::move(*monitor)});
      if (is_chosen || (workers <= most_workers && slots <= most_slots)) continue;
      error = limit_error(fmt::format("skipped: its loaders have {} workers and {} slots; the limits are {} and {}",
                                      workers, slots, most_workers, most_slots));
      return {};
    }
    if (why.code() == 0) return all;  // END: there are no more
    error = why;
    // The others say nothing of the process's next loader.
    if (why.code() != FEEDLANE_E_ABI && why.code() != FEEDLANE_E_CORRUPT) return all;
  }
  return all;
}

bool is_cut_short(const feedlane::Error& error) {
  const std::int32_t code = error.code();
  return code != 0 && code != FEEDLANE_E_PEER_DEAD && code != FEEDLANE_E_ABI && code != FEEDLANE_E_CORRUPT;
}

bool is_shortage(const feedlane::Error& error) {
  const int reason = error.os_errno();
  return error.code() == FEEDLANE_E_MEMORY ||
         (error.code() == FEEDLANE_E_OS && (reason == EMFILE || reason == ENFILE || reason == ENOMEM));
}

bool is_unreadable(const feedlane::Error& error) {
  return error.code() == FEEDLANE_E_ABI || error.code() == FEEDLANE_E_CORRUPT || error.code() == FEEDLANE_E_LIMIT ||
         is_shortage(error);
}

std::vector<Found> all_loaders(std::vector<Unreadable>& unreadable) {
  std::vector<Found> all;
  std::map<uid_t, std::size_t> of_user;
  for (const Process& process : processes()) {
    feedlane::Error error;
    std::vector<Found> found = loaders_of(process.pid, error, false);
    std::size_t& count = of_user[process.user];
    count += found.size();
    if (count > most_of_user) {
      error = limit_error(fmt::format("skipped: user {} has more than {} loaders", process.user, most_of_user));
      found.clear();
    }
    if (is_unreadable(error)) unreadable.push_back({process.pid, program_of(process.pid), error});
    std::move(found.begin(), found.end(), std::back_inserter(all));
  }
  keep_trainers(all);
  return all;
}

Search find_loaders_quietly(std::int64_t pid) {
  Search search;
  feedlane::Error error;
  if (pid == 0) search.loaders = all_loaders(search.unreadable);
  else search.loaders = loaders_of(pid, error);
  if (error.code() != 0) search.unreadable.push_back({pid, program_of(pid), error});
  search.is_short = std::any_of(search.unreadable.begin(), search.unreadable.end(),
                                [](const Unreadable& u) { return is_shortage(u.error); });
  return search;
}

void say_unreadable(const std::vector<Unreadable>& unreadable) {
  for (const Unreadable& u : unreadable) say("process {} ({}): {}", u.pid, u.program, u.error.what());
}

Search find_loaders(std::int64_t pid) {
  Search search = find_loaders_quietly(pid);
  say_unreadable(search.unreadable);
  if (pid != 0 && search.loaders.empty() && search.unreadable.empty()) say("process {} has no loader", pid);
  return search;
}

}  // namespace observe
