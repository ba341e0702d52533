// SPDX-License-Identifier: Apache-2.0
// Texts and numbers as all commands write them. What another process chose passes through `printable` before it is written.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <feedlane/monitor.hpp>
#include <feedlane/progress.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace observe {

using Json = nlohmann::ordered_json;

// The text without what a terminal or a reader would obey: control characters, marks that change the direction of writing,
// invisible ones, line separators, and bytes that are not UTF-8 become '?'.
std::string printable(std::string_view text);
// One line of ASCII: other characters are escaped, and bytes that are not UTF-8 replaced.
std::string json_text(const Json& value);
// At most `most` bytes, complete UTF-8 characters, "..." where something was cut.
std::string shortened(const std::string& text, std::size_t most);
// Writes a line on standard error.
void say_line(const std::string& text);
template <typename... Arguments>
void say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  say_line(fmt::format(format, std::forward<Arguments>(arguments)...));
}

const char* start_name(std::int32_t start);  // "spawn", "fork", "thread", "external", "host"
const char* state_name(std::int32_t state);  // "none", "starting", "opening", "ready", "stopping", "failed"
using feedlane::bound_name;                 // "nothing", "trainer", "data", "worker", "slots", "starting", "processors"
std::string error_name(std::int32_t code);  // "E_SAMPLE", or the number
std::string event_name(std::int32_t kind);  // "worker_died"; 0: "error"
std::string duration(double seconds);       // "250 us", "1.5 s", "3 min 10 s"
std::string bytes_text(double bytes);       // "4.0 KiB"
Json or_null(std::int64_t number);          // null for the -1 that stands for "none" or "unknown"
std::uint64_t now_ns();                     // CLOCK_MONOTONIC
std::uint64_t unix_time_ns();               // CLOCK_REALTIME
// The largest duration in bucket b: 2^b - 1 ns. The last bucket has no upper bound; its number is the same power.
std::uint64_t bucket_bound(int b);

}  // namespace observe
