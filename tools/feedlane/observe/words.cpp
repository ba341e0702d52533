// SPDX-License-Identifier: Apache-2.0
// Formats texts and numbers for people and programs.
#include "words.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iterator>

namespace observe {
namespace {

std::uint64_t read_clock(clockid_t id) {
  timespec now{};
  (void)::clock_gettime(id, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

template <std::size_t N>
const char* word(const char* const (&words)[N], std::int32_t number) {
  return number >= 0 && static_cast<std::size_t>(number) < N ? words[number] : "unknown";
}

// ---- characters ----

struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool is_valid = false;
};

// The character at the beginning of a text that is not empty; of one that is not UTF-8, its first byte.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return {};
  char32_t code = lead & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; i++) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool is_overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (is_overlong || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return {};
  return {code, length, true};
}

struct Range {
  char32_t first, last;
};
// Control characters, soft hyphen, direction marks, invisible characters, separators of lines, tags.
constexpr Range obeyed[] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
                            {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},  {0xfeff, 0xfeff},
                            {0xfff9, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0xe0fff}};

bool is_obeyed(char32_t code) {
  return std::any_of(std::begin(obeyed), std::end(obeyed), [&](Range r) { return r.first <= code && code <= r.last; });
}

}  // namespace

std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const Character c = first_of(text);
    if (c.is_valid && !is_obeyed(c.code)) line += text.substr(0, c.bytes);
    else line += '?';
    text.remove_prefix(c.bytes);
  }
  return line;
}

std::string json_text(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace); }

std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t length = most < 3 ? 0 : most - 3;
  while (length != 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) length--;
  return text.substr(0, length) + "...";
}

void say_line(const std::string& text) { fmt::print(stderr, "feedlane: {}\n", printable(text)); }

const char* start_name(std::int32_t start) {
  static constexpr const char* words[] = {"spawn", "fork", "thread", "external", "host"};
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

Json or_null(std::int64_t number) { return number < 0 ? Json() : Json(number); }

std::uint64_t now_ns() { return read_clock(CLOCK_MONOTONIC); }

std::uint64_t unix_time_ns() { return read_clock(CLOCK_REALTIME); }

std::uint64_t bucket_bound(int b) { return (std::uint64_t{1} << b) - 1; }

}  // namespace observe
