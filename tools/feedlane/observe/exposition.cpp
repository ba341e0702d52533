// SPDX-License-Identifier: Apache-2.0
// Writes metrics as text.
#include "exposition.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "words.hpp"

namespace observe {
namespace {

const char* kind_name(Kind kind, Exposition form) {
  switch (kind) {
    case Kind::counter: return "counter";
    case Kind::gauge: return "gauge";
    case Kind::histogram: return "histogram";
    case Kind::info: return form == Exposition::openmetrics ? "info" : "gauge";
  }
  return "unknown";
}

const char* value_suffix(Kind kind) {
  if (kind == Kind::counter) return "_total";
  return kind == Kind::info ? "_info" : "";
}

// Printable, with backslash, quote and line feed escaped, as both formats require.
std::string escaped(std::string_view value) {
  std::string text;
  for (;;) {
    const std::size_t end = std::min(value.find('\n'), value.size());
    for (const char c : printable(value.substr(0, end))) {
      if (c == '\\' || c == '"') text += '\\';
      text += c;
    }
    if (end == value.size()) return text;
    text += "\\n";
    value.remove_prefix(end + 1);
  }
}

std::string labels_text(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels)
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "{" : ",", name, escaped(value));
  return text.empty() ? text : text + "}";
}

}  // namespace

std::string seconds_text(std::uint64_t ns) {
  constexpr std::uint64_t second = 1'000'000'000;
  if (ns % second == 0) return std::to_string(ns / second);
  std::string text = fmt::format("{}.{:09}", ns / second, ns % second);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

Metrics::Group& Metrics::group(const Family& family) {
  const auto is_it = [&](const Group& g) { return std::string_view(g.family.name) == family.name; };
  const auto found = std::find_if(groups_.begin(), groups_.end(), is_it);
  return found != groups_.end() ? *found : groups_.emplace_back(Group{family, {}});
}

void Metrics::add(const Family& family, const Labels& labels, const std::string& value) {
  group(family).lines.push_back({value_suffix(family.kind), labels, value});
}

void Metrics::add(const Family& family, const Labels& labels, std::uint64_t value) {
  add(family, labels, std::to_string(value));
}

void Metrics::add(const Family& family, const Labels& labels, const feedlane_histogram& h) {
  Group& g = group(family);
  std::uint64_t sum = 0;
  for (int b = 0; b < FEEDLANE_HISTOGRAM_BUCKETS; b++) {
    sum += h.buckets[b];
    const bool is_last = b + 1 == FEEDLANE_HISTOGRAM_BUCKETS;
    Labels with_bound = labels;
    with_bound.emplace_back("le", is_last ? "+Inf" : b == 0 ? "0.0" : seconds_text(bucket_bound(b)));
    g.lines.push_back({"_bucket", with_bound, std::to_string(sum)});
  }
  // Not h.count: buckets may have grown since it was read, and both formats require the count of the last bucket.
  g.lines.push_back({"_count", labels, std::to_string(sum)});
  g.lines.push_back({"_sum", labels, seconds_text(h.sum_ns)});
}

// The families of OpenMetrics, with numbers as numbers.
std::string Metrics::json() const {
  Json all = {{"families", Json::array()}};
  for (const Group& g : groups_) {
    const std::string name = std::string("feedlane_") + g.family.name;
    Json samples = Json::array();
    for (const Line& line : g.lines) {
      Json labels = Json::object();
      for (const auto& [label, value] : line.labels) labels[label] = value;
      samples.push_back({{"name", name + line.suffix}, {"labels", labels}, {"value", Json::parse(line.value)}});
    }
    all["families"].push_back({{"name", name},
                               {"type", kind_name(g.family.kind, Exposition::openmetrics)},
                               {"unit", g.family.unit},
                               {"help", g.family.help},
                               {"samples", samples}});
  }
  return json_text(all) + "\n";
}

std::string Metrics::text(Exposition form) const {
  if (form == Exposition::json) return json();
  std::string text;
  for (const Group& g : groups_) {
    const std::string name = std::string("feedlane_") + g.family.name;
    const bool is_open = form == Exposition::openmetrics;
    const std::string described = is_open ? name : name + value_suffix(g.family.kind);
    text += fmt::format("# TYPE {} {}\n", described, kind_name(g.family.kind, form));
    if (is_open && *g.family.unit != '\0') text += fmt::format("# UNIT {} {}\n", name, g.family.unit);
    text += fmt::format("# HELP {} {}\n", described, g.family.help);
    for (const Line& line : g.lines) text += name + line.suffix + labels_text(line.labels) + " " + line.value + "\n";
  }
  if (form == Exposition::openmetrics) text += "# EOF\n";
  return text;
}

}  // namespace observe
