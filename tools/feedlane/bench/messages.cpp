// SPDX-License-Identifier: Apache-2.0
// floor, ring and lanes: small messages, there and back and one way.
#include <fmt/core.h>

#include "bench.hpp"
#include "channels.hpp"
#include "peers.hpp"
#include "queues.hpp"
#include "sizes.hpp"
#include "ways.hpp"

namespace bench {

namespace {

const Entry& entry_of(const std::vector<Entry>& entries, const std::string& name) {
  static const Entry none;
  for (const Entry& e : entries)
    if (e.name == name) return e;
  return none;
}
const Figure& figure_of(const std::vector<Entry>& entries, const std::string& name) {
  return entry_of(entries, name).figure;
}

// Feedlane's ring and Boost's queue for one producer, moving as many messages at once.
struct Pair {
  const char* name;
  std::uint32_t sent, received;
};
constexpr Pair pairs[] = {{"single", 1, 1}, {"sent by one", 1, 64}, {"batched", 32, 64}};

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
  const std::uint64_t trips = number(options.count(500'000, 50'000, 8));
  std::vector<Entry> entries{{"line", [=] { return round_trip<Line>(trips); }}};
  run_rounds(entries, options);
  if (!options.json) fmt::print("a line of 56 bytes there and back: {} ns\n", cell(entries[0].figure));
  Report report;
  report.rows.push_back({{"rtt_ns", spread(entries[0].figure)}});
  return report;
}

namespace {

// What `ring` measures: there and back, and one way; in places that the ratios know by number.
enum Trip { floor_trip, in_place_trip, calls_trip, spsc_trip };
std::vector<Entry> round_trips(const Options& options) {
  const std::uint64_t trips = number(options.count(500'000, 50'000, 8));
  const std::uint64_t slow =
      number(options.count(5'000, 500, 8));  // sleeping in the kernel takes a few hundred times as long
  std::vector<Entry> entries{
      {"floor", [=] { return round_trip<Line>(trips); }},
      {"feedlane", [=] { return round_trip<Ring<>>(trips); }},
      {"feedlane, send and receive", [=] { return round_trip<RingCalls<>>(trips); }},
      {"boost::lockfree::spsc_queue", [=] { return round_trip<BoostSpsc<>>(trips); }},
      {"boost::lockfree::queue", [=] { return round_trip<BoostMpmc<>>(trips); }},
      {"boost::interprocess::message_queue", [=] { return round_trip<BoostMessageQueue<>>(slow); }},
      {"pipe", [=] { return round_trip<Pipe<>>(slow); }},
      {"eventfd", [=] { return round_trip<Event>(slow); }},
  };
#ifdef BENCH_PEER_RIGTORP
  entries.push_back({rigtorp_name, [=] { return round_trip<RigtorpSpsc>(trips); }});
#endif
#ifdef BENCH_PEER_FOLLY
  entries.push_back({folly_name, [=] { return round_trip<FollySpsc>(trips); }});
#endif
  return entries;
}

std::vector<Entry> ways(const Options& options) {
  const std::uint64_t many = number(options.count(10'000'000, 1'000'000, 4'000));  // rings go round
  const std::uint64_t some = number(options.count(1'000'000, 100'000, 400));
  std::vector<Entry> entries;
  for (const Pair& p : pairs) {
    entries.push_back(
        {fmt::format("feedlane, {}", p.name), [=] { return one_way_by<Ring<>>(p.sent, p.received, 1, many); }});
    if (p.sent == 1 && p.received == 1)
      entries.push_back({"feedlane, send and receive, single", [=] { return one_way<RingCalls<>>(1, many); }});
    else
      entries.push_back({fmt::format("feedlane, send and receive, {}", p.name),
                         [=] { return one_way_by<RingBatches<>>(p.sent, p.received, 1, many); }});
    entries.push_back({fmt::format("boost::lockfree::spsc_queue, {}", p.name),
                       [=] { return one_way_by<BoostLanes<>>(p.sent, p.received, 1, many); }});
  }
#ifdef BENCH_PEER_RIGTORP
  entries.push_back({rigtorp_name, [=] { return one_way<RigtorpSpsc>(1, many); }});
#endif
#ifdef BENCH_PEER_FOLLY
  entries.push_back({folly_name, [=] { return one_way<FollySpsc>(1, many); }});
#endif
  entries.push_back({"boost::lockfree::queue", [=] { return one_way<BoostMpmc<>>(1, some); }});
  entries.push_back({"boost::interprocess::message_queue", [=] { return one_way<BoostMessageQueue<>>(1, some); }});
  entries.push_back({"pipe", [=] { return one_way<Pipe<>>(1, some); }});
  return entries;
}

// send and receive beside queues that copy one message a call too; the best of them only where all are there.
void add_peers(const std::vector<Entry>& through, Report& report) {
  const Figure& ours = figure_of(through, "feedlane, send and receive, single");
  const Figure& rigtorp = figure_of(through, rigtorp_name);
  const Figure& folly = figure_of(through, folly_name);
  if (has_rigtorp) report.ratio("ring.send_receive_single_over_rigtorp", ours.over(rigtorp));
  if (has_folly) report.ratio("ring.send_receive_single_over_folly", ours.over(folly));
  if (!has_rigtorp || !has_folly) return;
  const Figure& boost = figure_of(through, "boost::lockfree::spsc_queue, single");
  report.ratio("ring.send_receive_single_over_best", ours.over(rigtorp.best_with(folly).best_with(boost)));
}

void add_ratios(const std::vector<Entry>& rtt, const std::vector<Entry>& through, Report& report) {
  const Figure& bare = rtt[floor_trip].figure;
  report.ratio("ring.round_trip_over_line", rtt[in_place_trip].figure.over(bare));
  report.ratio("ring.round_trip_over_spsc", rtt[in_place_trip].figure.over(rtt[spsc_trip].figure));
  report.ratio("ring.send_receive_round_trip_over_line", rtt[calls_trip].figure.over(bare));
  const char* const names[] = {"single", "sent_by_one", "batched"};
  for (std::size_t i = 0; i < std::size(pairs); i++) {
    const Figure& boost = through[3 * i + 2].figure;
    report.ratio(fmt::format("ring.{}_over_spsc", names[i]), through[3 * i].figure.over(boost));
    report.ratio(fmt::format("ring.send_receive_{}_over_spsc", names[i]), through[3 * i + 1].figure.over(boost));
  }
  add_peers(through, report);
}

std::string peers_there() {
  if (has_rigtorp && has_folly) return "rigtorp's and folly's queues are compiled in";
  return fmt::format("not compiled in (Meson's option peers): {}{}{}", has_rigtorp ? "" : rigtorp_name,
                     has_rigtorp || has_folly ? "" : ", ", has_folly ? "" : folly_name);
}

}  // namespace

Report ring(const Options& options) {
  pin(0);
  std::vector<Entry> rtt = round_trips(options), through = ways(options);
  run_rounds(rtt, options);
  run_rounds(through, options);
  const Figure& bare = rtt[floor_trip].figure;
  const auto is_trip = [&](const std::string& name) { return !figure_of(rtt, name).empty(); };
  Report report;
  add_ratios(rtt, through, report);
  for (const Entry& e : rtt) report.rows.push_back(row(e, bare, entry_of(through, e.name)));
  for (const Entry& e : through)
    if (!is_trip(e.name)) report.rows.push_back(row({}, bare, e));
  if (!options.json) {
    fmt::print("{:48} {:>34} {:>8} {:>26} {:>30} {:>26}\n", "56 bytes between two processes", "there and back, ns",
               "x floor", "CPU of both, ns", "one way, million/s", "CPU of both, ns");
    for (const Entry& e : rtt) print_row(e, bare, entry_of(through, e.name));
    for (const Entry& e : through)
      if (!is_trip(e.name)) print_row({}, bare, e);
    fmt::print(
        "\nsingle: one is committed, sent or pushed, one taken; sent by one: up to 64 are taken at once; batched: 32 "
        "are "
        "committed, sent or pushed, up to 64 taken\n{}\n",
        peers_there());
  }
  if (!options.plot.empty()) plot_sizes(options);
  return report;
}

Report lanes(const Options& options) {
  pin(0);
  const std::vector<std::uint64_t> counts{1, 2, 4, 8};
  std::vector<Entry> entries;
  for (const std::uint64_t producers : counts) {
    const std::uint64_t each = number(options.count(10'000'000, 1'000'000, 8'000)) / producers;
    entries.push_back({"feedlane", [=] { return one_way_by<Ring<>>(32, 64, producers, each); }});
    entries.push_back({"spsc_queues", [=] { return one_way_by<BoostLanes<>>(32, 64, producers, each); }});
    entries.push_back({"queue", [=] { return one_way<BoostMpmc<>>(producers, each / 10); }});
  }
  run_rounds(entries, options);
  if (!options.json)
    fmt::print("{:>9} {:>30} {:>30} {:>24} {:>28} {:>24}\n", "producers", "feedlane, million/s", "as many spsc_queues",
               "over them", "boost::lockfree::queue", "over it");
  Report report;
  for (std::size_t i = 0; i < counts.size(); i++) {
    const Figure& ours = entries[3 * i].figure;
    const Figure& queues = entries[3 * i + 1].figure;
    const Figure& queue = entries[3 * i + 2].figure;
    const Figure over_queues = ours.over(queues), over_queue = ours.over(queue);
    if (!options.json)
      fmt::print("{:>9} {:>30} {:>30} {:>24} {:>28} {:>24}\n", counts[i], cell(ours), cell(queues), cell(over_queues),
                 cell(queue), cell(over_queue));
    report.ratio(fmt::format("lanes.{}.over_spscs", counts[i]), over_queues);
    report.ratio(fmt::format("lanes.{}.over_queue", counts[i]), over_queue);
    report.rows.push_back({{"producers", counts[i]},
                           {"mmsg_s", spread(ours)},
                           {"boost_spsc_queues_mmsg_s", spread(queues)},
                           {"over_spsc_queues", spread(over_queues)},
                           {"boost_queue_mmsg_s", spread(queue)},
                           {"over_queue", spread(over_queue)}});
  }
  return report;
}

}  // namespace bench
