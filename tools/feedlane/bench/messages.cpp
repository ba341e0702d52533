// SPDX-License-Identifier: Apache-2.0
// floor and ring: small messages, there and back and one way.
#include "messages.hpp"

#include <fmt/core.h>

#include <iterator>

#include "bench.hpp"
#include "channels.hpp"
#include "ways.hpp"

namespace bench {

namespace {

void print_row(const Entry& trip, const Figure& bare, const Entry& way) {
  fmt::print("{:48} {:>34} {:>8} {:>26} {:>30} {:>26}\n", trip.name.empty() ? way.name : trip.name, cell(trip.figure),
             trip.figure.empty() ? "" : fmt::format("{:.2f}", trip.figure.over(bare).median()), cell(trip.cpu_ns),
             cell(way.figure), cell(way.cpu_ns));
}

Json row(const Entry& trip, const Figure& bare, const Entry& way) {
  return {{"name", trip.name.empty() ? way.name : trip.name},
          {"rtt_ns", spread(trip.figure)},
          {"rtt_over_line", spread(trip.figure.over(bare))},
          {"rtt_cpu_ns", spread(trip.cpu_ns)},
          {"one_way_mmsg_s", spread(way.figure)},
          {"one_way_cpu_ns", spread(way.cpu_ns)}};
}

}  // namespace

double line_ns(const Options& options) { return round_trip<Line>(number(options.count(20'000, 20'000, 8))).value; }

Report floor(const Options& options) {
  pin(0);
  std::vector<Entry> entries{{"line", [=] { return round_trip<Line>(usual_trips(options)); }}};
  run_rounds(entries, options);
  if (!options.json) fmt::print("a line of 56 bytes there and back: {} ns\n", cell(entries[0].figure));
  Report report;
  report.rows.push_back({{"rtt_ns", spread(entries[0].figure)}});
  return report;
}

std::uint64_t usual_trips(const Options& options) { return number(options.count(500'000, 50'000, 8)); }
std::uint64_t slow_trips(const Options& options) { return number(options.count(5'000, 500, 8)); }
std::uint64_t usual_messages(const Options& options) { return number(options.count(10'000'000, 1'000'000, 4'000)); }

std::vector<Entry> round_trips(const Options& options) {
  const std::uint64_t trips = usual_trips(options);
  return {{"floor", [=] { return round_trip<Line>(trips); }},
          {"feedlane", [=] { return round_trip<Ring<>>(trips); }},
          {"feedlane, send and receive", [=] { return round_trip<RingCalls<>>(trips); }}};
}

std::vector<Entry> ways_of(const Pair& pair, std::uint64_t count) {
  const Pair p = pair;
  const auto by_calls = [=] {
    return p.sent == 1 && p.received == 1 ? one_way<RingCalls<>>(1, count)
                                          : one_way_by<RingBatches<>>(p.sent, p.received, 1, count);
  };
  return {{fmt::format("feedlane, {}", p.name), [=] { return one_way_by<Ring<>>(p.sent, p.received, 1, count); }},
          {fmt::format("feedlane, send and receive, {}", p.name), by_calls}};
}

const Entry& entry_of(const std::vector<Entry>& entries, const std::string& name) {
  static const Entry none;
  for (const Entry& e : entries)
    if (e.name == name) return e;
  return none;
}

Report tell_messages(const std::vector<Entry>& trips, const std::vector<Entry>& ways, const Options& options) {
  const Figure& bare = trips[floor_trip].figure;
  const auto is_trip = [&](const std::string& name) { return !entry_of(trips, name).figure.empty(); };
  Report report;
  report.ratio("ring.round_trip_over_line", trips[in_place_trip].figure.over(bare));
  report.ratio("ring.send_receive_round_trip_over_line", trips[calls_trip].figure.over(bare));
  for (const Entry& e : trips) report.rows.push_back(row(e, bare, entry_of(ways, e.name)));
  for (const Entry& e : ways)
    if (!is_trip(e.name)) report.rows.push_back(row({}, bare, e));
  if (options.json) return report;
  fmt::print("{:48} {:>34} {:>8} {:>26} {:>30} {:>26}\n", "56 bytes between two processes", "there and back, ns",
             "x floor", "CPU of both, ns", "one way, million/s", "CPU of both, ns");
  for (const Entry& e : trips) print_row(e, bare, entry_of(ways, e.name));
  for (const Entry& e : ways)
    if (!is_trip(e.name)) print_row({}, bare, e);
  fmt::print(
      "\nsingle: one is committed, sent or pushed, one taken; sent by one: up to 64 are taken at once; batched: 32 are "
      "committed, sent or pushed, up to 64 taken\n");
  return report;
}

Report ring(const Options& options) {
  pin(0);
  std::vector<Entry> trips = round_trips(options), ways;
  for (const Pair& pair : pairs)
    for (Entry& entry : ways_of(pair, usual_messages(options))) ways.push_back(std::move(entry));
  run_rounds(trips, options);
  run_rounds(ways, options);
  return tell_messages(trips, ways, options);
}

}  // namespace bench
