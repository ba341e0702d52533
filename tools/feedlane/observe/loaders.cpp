// SPDX-License-Identifier: Apache-2.0
// Finds loaders in other processes, and the words that all commands use for what they find.
#include "loaders.hpp"

#include <dirent.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>

namespace observe {
namespace {

// Forked workers inherit the trainer's descriptors, so their process has the same loader. Of those the trainer is kept.
void keep_trainers(std::vector<Found>& all) {
  struct Seen {
    std::int64_t trainer;  // its process, as it sees itself
    std::uint64_t created_ns;
    bool is_trainer;  // this process is
  };
  std::vector<Seen> seen;
  for (const Found& f : all) {
    const feedlane_loader_info info = f.monitor.info();
    seen.push_back({info.pid, info.created_ns, pid_as_it_sees_itself(f.pid) == info.pid});
  }
  const auto is_copy = [&](std::size_t i) {
    for (std::size_t other = 0; other < seen.size(); other++) {
      const bool is_same =
          other != i && seen[other].trainer == seen[i].trainer && seen[other].created_ns == seen[i].created_ns;
      const bool is_better = seen[other].is_trainer != seen[i].is_trainer ? seen[other].is_trainer : other < i;
      if (is_same && is_better) return true;
    }
    return false;
  };
  std::vector<Found> kept;
  for (std::size_t i = 0; i < all.size(); i++)
    if (!is_copy(i)) kept.push_back(std::move(all[i]));
  all = std::move(kept);
}

// At most `most` bytes, whole UTF-8 characters, "..." where something was cut.
std::string shortened(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t length = most < 3 ? 0 : most - 3;
  while (length != 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) length--;
  return text.substr(0, length) + "...";
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::uint64_t read_clock(clockid_t id) {
  timespec now{};
  (void)::clock_gettime(id, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

template <std::size_t N>
const char* word(const char* const (&words)[N], std::int32_t number) {
  return number >= 0 && static_cast<std::size_t>(number) < N ? words[number] : "unknown";
}

}  // namespace

std::vector<std::int64_t> processes() {
  std::vector<std::int64_t> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), &::closedir);
  if (!folder) {
    fmt::print(stderr, "feedlane: cannot list the processes in /proc: {}\n", std::strerror(errno));
    return all;
  }
  const uid_t user = ::geteuid();
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr && errno != 0)
      fmt::print(stderr, "feedlane: cannot list all processes in /proc: {}\n", std::strerror(errno));
    if (entry == nullptr) break;
    std::int64_t pid = 0;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    const auto [stop, failure] = std::from_chars(entry->d_name, end, pid);
    if (failure != std::errc{} || stop != end || pid == ::getpid()) continue;
    struct stat about {};
    if (::fstatat(::dirfd(folder.get()), entry->d_name, &about, 0) != 0) continue;  // it has ended
    if (user == 0 || about.st_uid == user) all.push_back(pid);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<Found> loaders_of(std::int64_t pid, feedlane::Error& error) {
  std::vector<Found> all;
  error = {};
  for (int nth = 0;; nth++) {
    feedlane::Error why;
    auto monitor = feedlane::Monitor::open(pid, nth, why);
    if (monitor) {
      all.push_back({pid, nth, program_of(pid), std::move(*monitor)});
      continue;
    }
    if (why.code() == 0) return all;  // END: there are no more
    error = why;
    // The others say nothing of the process's next loader.
    if (why.code() != FEEDLANE_E_ABI && why.code() != FEEDLANE_E_CORRUPT) return all;
  }
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
  return error.code() == FEEDLANE_E_ABI || error.code() == FEEDLANE_E_CORRUPT || is_shortage(error);
}

std::vector<Found> all_loaders(std::vector<Unreadable>& unreadable) {
  std::vector<Found> all;
  for (const std::int64_t pid : processes()) {
    feedlane::Error error;
    std::vector<Found> found = loaders_of(pid, error);
    if (is_unreadable(error)) unreadable.push_back({pid, program_of(pid), error});
    std::move(found.begin(), found.end(), std::back_inserter(all));
  }
  keep_trainers(all);
  return all;
}

std::vector<Found> find_loaders(std::int64_t pid, bool& is_short) {
  if (pid == 0) {
    std::vector<Unreadable> unreadable;
    std::vector<Found> all = all_loaders(unreadable);
    for (const Unreadable& u : unreadable) fmt::print(stderr, "feedlane: process {}: {}\n", u.pid, u.error.what());
    is_short =
        std::any_of(unreadable.begin(), unreadable.end(), [](const Unreadable& u) { return is_shortage(u.error); });
    return all;
  }
  feedlane::Error error;
  std::vector<Found> all = loaders_of(pid, error);
  is_short = is_shortage(error);
  if (error.code() != 0) fmt::print(stderr, "feedlane: {}\n", error.what());
  else if (all.empty()) fmt::print(stderr, "feedlane: process {} has no loader\n", pid);
  return all;
}

std::int64_t pid_as_it_sees_itself(std::int64_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("NSpid:")) return std::atoll(line.c_str() + line.find_last_of(" \t") + 1);
  return pid;
}

std::string program_of(std::int64_t pid, std::size_t most) {
  const std::string folder = fmt::format("/proc/{}/", pid);
  std::string line = contents(folder + "cmdline");
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::replace(line.begin(), line.end(), '\0', ' ');
  if (line.empty()) {  // a process that has ended, or of the kernel
    line = contents(folder + "comm");
    while (!line.empty() && line.back() == '\n') line.pop_back();
    line = "[" + line + "]";
  }
  return shortened(printable(line), most);
}

const char* start_name(std::int32_t start) {
  static constexpr const char* words[] = {"spawn", "fork", "thread", "external"};
  return word(words, start);
}

const char* state_name(std::int32_t state) {
  static constexpr const char* words[] = {"none", "starting", "opening", "ready", "stopping", "failed"};
  return word(words, state);
}

std::string error_name(std::int32_t code) {
  const std::string name = feedlane_status_name(code);
  return name == "UNKNOWN" ? std::to_string(code) : name;
}

std::string event_name(std::int32_t kind) {
  static constexpr const char* words[] = {
      "error",   "warning",        "worker_died",        "worker_started", "worker_wanted", "quarantined",
      "invalid", "sample_retried", "sample_substituted", "sample_skipped", "worker_hung",   "device_failed"};
  return word(words, kind);
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0) return "-" + duration(-seconds);
  if (seconds < 999.5e-9) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 999.5e-6) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 999.5e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {} h", whole / 86400, whole / 3600 % 24);
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (bytes /= 1024; bytes >= 1023.95 && unit + 1 < std::size(units); unit++) bytes /= 1024;
  return fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string printable(std::string_view text) {
  std::string line(text);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return line;
}

std::string json_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json or_null(std::int64_t number) { return number < 0 ? Json() : Json(number); }

std::uint64_t now_ns() { return read_clock(CLOCK_MONOTONIC); }

std::uint64_t unix_time_ns() { return read_clock(CLOCK_REALTIME); }

std::uint64_t bucket_bound(int b) { return (std::uint64_t{1} << b) - 1; }

std::uint64_t percentile(const feedlane_histogram& h, double p) {
  // The buckets are read one after another while they grow: their own sum is what fits them.
  std::uint64_t all = 0;
  for (const std::uint64_t n : h.buckets) all += n;
  if (all == 0) return 0;
  const double wanted = std::max(1.0, std::ceil(p * static_cast<double>(all)));
  std::uint64_t sum = 0;
  for (int b = 0; b < FEEDLANE_HISTOGRAM_BUCKETS; b++) {
    sum += h.buckets[b];
    if (static_cast<double>(sum) >= wanted) return bucket_bound(b);
  }
  return bucket_bound(FEEDLANE_HISTOGRAM_BUCKETS - 1);
}

}  // namespace observe
