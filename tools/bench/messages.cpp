// SPDX-License-Identifier: Apache-2.0
// ring and lanes: messages through Feedlane's ring, and through queues of Boost and others, a pipe and an eventfd.
#include "messages.hpp"

#include <fmt/core.h>

#include <iterator>

#include "channels.hpp"
#include "compare.hpp"
#include "peers.hpp"
#include "queues.hpp"
#include "sizes.hpp"
#include "ways.hpp"

namespace compare {

using namespace bench;

namespace {

const Figure& figure_of(const std::vector<Entry>& entries, const std::string& name) {
  return entry_of(entries, name).figure;
}

std::vector<Entry> trips_of_all(const Options& options) {
  const std::uint64_t trips = usual_trips(options), slow = slow_trips(options);
  std::vector<Entry> entries = round_trips(options);
  entries.push_back({"boost::lockfree::spsc_queue", [=] { return round_trip<BoostSpsc<>>(trips); }});
  entries.push_back({"boost::lockfree::queue", [=] { return round_trip<BoostMpmc<>>(trips); }});
  entries.push_back({"boost::interprocess::message_queue", [=] { return round_trip<BoostMessageQueue<>>(slow); }});
  entries.push_back({"pipe", [=] { return round_trip<Pipe<>>(slow); }});
  entries.push_back({"eventfd", [=] { return round_trip<Event>(slow); }});
#ifdef BENCH_PEER_RIGTORP
  entries.push_back({rigtorp_name, [=] { return round_trip<RigtorpSpsc>(trips); }});
#endif
#ifdef BENCH_PEER_FOLLY
  entries.push_back({folly_name, [=] { return round_trip<FollySpsc>(trips); }});
#endif
  return entries;
}

std::vector<Entry> ways_of_all(const Options& options) {
  const std::uint64_t many = usual_messages(options), some = number(options.count(1'000'000, 100'000, 400));
  std::vector<Entry> entries;
  for (const Pair& p : pairs) {
    for (Entry& entry : ways_of(p, many)) entries.push_back(std::move(entry));
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

// send and receive compared with queues that also copy one message per call; with the fastest only if all are compiled
// in.
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

void add_ratios(const std::vector<Entry>& trips, const std::vector<Entry>& through, Report& report) {
  report.ratio("ring.round_trip_over_spsc",
               trips[in_place_trip].figure.over(figure_of(trips, "boost::lockfree::spsc_queue")));
  const char* const names[] = {"single", "sent_by_one", "batched"};
  for (std::size_t i = 0; i < std::size(pairs); i++) {
    const Figure& boost = through[3 * i + 2].figure;
    report.ratio(fmt::format("ring.{}_over_spsc", names[i]), through[3 * i].figure.over(boost));
    report.ratio(fmt::format("ring.send_receive_{}_over_spsc", names[i]), through[3 * i + 1].figure.over(boost));
  }
  add_peers(through, report);
}

std::string compiled_peers() {
  if (has_rigtorp && has_folly) return "rigtorp's and folly's queues are compiled in";
  return fmt::format("not compiled in (Meson's option peers): {}{}{}", has_rigtorp ? "" : rigtorp_name,
                     has_rigtorp || has_folly ? "" : ", ", has_folly ? "" : folly_name);
}

}  // namespace

Report ring(const Options& options) {
  pin(0);
  std::vector<Entry> trips = trips_of_all(options), through = ways_of_all(options);
  run_rounds(trips, options);
  run_rounds(through, options);
  Report report = tell_messages(trips, through, options);
  add_ratios(trips, through, report);
  if (!options.json) fmt::print("{}\n", compiled_peers());
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

}  // namespace compare
