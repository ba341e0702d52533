// SPDX-License-Identifier: Apache-2.0
// floor, ring and lanes: small messages, there and back and one way.
#include <fmt/core.h>

#include "bench.hpp"
#include "channels.hpp"
#include "plot.hpp"

namespace bench {

namespace {

std::uint64_t number(std::int64_t count) { return static_cast<std::uint64_t>(count); }

// ns there and back. Each side waits as its channel waits.
template <class C>
double round_trip(std::uint64_t count) {
  using Message = typename C::Message;
  C there, back;
  const Child echo(1, [&] {
    Message m{};
    there.open_receiver();
    there.receive(m);
    back.open_sender();
    back.send(m);
    for (std::uint64_t i = 0; i < count + count / 8; i++) {
      there.receive(m);
      m.words[6]++;
      back.send(m);
    }
    back.close();
    there.close();
  });
  Message m{};
  there.open_sender();
  there.send(m);
  back.open_receiver();
  back.receive(m);
  std::int64_t began = 0;
  for (std::uint64_t i = 0; i < count + count / 8; i++) {
    if (i == count / 8) began = now_ns();
    m.words[0] = i;
    there.send(m);
    back.receive(m);
    if (m.words[0] != i) fail("a message came back wrong");
  }
  return static_cast<double>(now_ns() - began) / static_cast<double>(count);
}

// Million messages a second, from the first received to the last. Producers begin together: one that came when the others
// had left would be measured alone, and their leaving is the end of what a ring's receiver waits for.
template <class C>
double one_way(C& channel, std::uint64_t producers, std::uint64_t count) {
  using Message = typename C::Message;
  constexpr std::size_t last = sizeof(Message) / 8 - 1;
  std::vector<std::unique_ptr<Child>> children;
  const std::size_t others = std::max<std::size_t>(processors().size() - 1, 1);
  Gate gate;
  for (std::uint64_t p = 0; p < producers; p++) {
    children.push_back(std::make_unique<Child>(1 + p % others, [&] {
      channel.open_sender();
      gate.pass(producers);
      Message m{};
      m.words[1] = p;
      for (std::uint64_t i = 0; i < count; i++) {
        m.words[0] = m.words[last] = i;
        channel.send(m);
      }
      channel.close();
    }));
  }
  channel.open_receiver();
  std::vector<std::uint64_t> expected(producers);
  Message m{};
  channel.receive(m);
  expected.at(m.words[1])++;
  const std::int64_t began = now_ns();
  for (std::uint64_t i = 1; i < count * producers; i++) {
    channel.receive(m);
    if (m.words[0] != expected[m.words[1]]++ || m.words[last] != m.words[0]) fail("a message is out of order or torn");
  }
  const auto ns = static_cast<double>(now_ns() - began);
  if constexpr (requires { channel.give_back(); }) channel.give_back();
  children.clear();
  channel.close();
  return static_cast<double>(count * producers - 1) * 1e3 / ns;
}
template <class C>
double one_way(std::uint64_t producers, std::uint64_t count) {
  C channel;
  return one_way(channel, producers, count);
}
// By queues that move so many messages at once: R is Ring or BoostLanes.
template <class R>
double one_way_by(std::uint32_t sent, std::uint32_t received, std::uint64_t producers, std::uint64_t count) {
  R channel(static_cast<std::uint32_t>(producers), sent, received);
  return one_way(channel, producers, count);
}

const Figure& figure_of(const std::vector<Entry>& entries, const std::string& name) {
  static const Figure none;
  for (const Entry& e : entries)
    if (e.name == name) return e.figure;
  return none;
}

// One way with messages of so many lines, for the plot: millions a second times bytes.
struct Sizes {
  std::vector<Entry> entries;
  std::vector<std::uint64_t> bytes;  // of each entry

  template <std::size_t lines>
  void add(const Options& options) {
    using M = Lines<lines>;
    constexpr std::int64_t each = sizeof(M) + 200;
    const std::uint64_t count = number(options.count((512LL << 20) / each, (64LL << 20) / each, 64));
    const std::uint64_t few = count / 8;
    add("feedlane", sizeof(M), [=] { return one_way<Ring<M>>(1, count); });
    add("feedlane, by 32", sizeof(M), [=] { return one_way_by<Ring<M>>(32, 64, 1, count); });
    add("boost::lockfree::spsc_queue", sizeof(M), [=] { return one_way<BoostSpsc<M>>(1, count); });
    add("boost::lockfree::spsc_queue, by 32", sizeof(M), [=] { return one_way_by<BoostLanes<M>>(32, 64, 1, count); });
    add("boost::interprocess::message_queue", sizeof(M), [=] { return one_way<BoostMessageQueue<M>>(1, few); });
    add("pipe", sizeof(M), [=] { return one_way<Pipe<M>>(1, few); });
  }
  void add(const char* name, std::uint64_t size, const std::function<double()>& measure) {
    entries.push_back({name, measure});
    bytes.push_back(size);
  }
};

void plot_sizes(const Options& options) {
  Sizes sizes;
  sizes.add<1>(options);
  sizes.add<4>(options);
  sizes.add<16>(options);
  sizes.add<64>(options);
  sizes.add<256>(options);
  if (!options.quick && !options.tiny) sizes.add<1024>(options);
  run_rounds(sizes.entries, options);
  Plot plot{"Messages one way between two processes", "bytes of a message", "GB/s", {}};
  for (std::size_t i = 0; i < sizes.entries.size(); i++) {
    const auto size = static_cast<double>(sizes.bytes[i]);
    plot.add(sizes.entries[i].name, size, sizes.entries[i].figure.median() * size / 1e3);
  }
  plot.draw(options.plot);
}

// Feedlane's ring and Boost's queue for one producer, moving as many messages at once.
struct Pair {
  const char* name;
  std::uint32_t sent, received;
};
constexpr Pair pairs[] = {{"single", 1, 1}, {"sent by one", 1, 64}, {"batched", 32, 64}};

void print_row(const std::string& name, const Figure& rtt, const Figure& bare, const Figure& one_way) {
  fmt::print("{:48} {:>34} {:>8} {:>30}\n", name, cell(rtt),
             rtt.empty() ? "" : fmt::format("{:.2f}", rtt.over(bare).median()), cell(one_way));
}

}  // namespace

double line_ns(const Options& options) { return round_trip<Line>(number(options.count(20'000, 20'000, 8))); }

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

Report ring(const Options& options) {
  pin(0);
  const auto usual = [&](std::int64_t quickly, std::int64_t least) {
    return number(options.count(10 * quickly, quickly, least));
  };
  // What sleeps in the kernel takes a few hundred times as long.
  const std::uint64_t trips = usual(50'000, 8), slow_trips = usual(500, 8);
  const std::uint64_t many = usual(1'000'000, 4'000), some = usual(100'000, 400);  // rings go round
  std::vector<Entry> rtt{
      {"floor", [=] { return round_trip<Line>(trips); }},
      {"feedlane", [=] { return round_trip<Ring<>>(trips); }},
      {"boost::lockfree::spsc_queue", [=] { return round_trip<BoostSpsc<>>(trips); }},
      {"boost::lockfree::queue", [=] { return round_trip<BoostMpmc<>>(trips); }},
      {"boost::interprocess::message_queue", [=] { return round_trip<BoostMessageQueue<>>(slow_trips); }},
      {"pipe", [=] { return round_trip<Pipe<>>(slow_trips); }},
      {"eventfd", [=] { return round_trip<Event>(slow_trips); }},
  };
  std::vector<Entry> through;
  for (const Pair& p : pairs) {
    through.push_back(
        {fmt::format("feedlane, {}", p.name), [=] { return one_way_by<Ring<>>(p.sent, p.received, 1, many); }});
    through.push_back({fmt::format("boost::lockfree::spsc_queue, {}", p.name),
                       [=] { return one_way_by<BoostLanes<>>(p.sent, p.received, 1, many); }});
  }
  const std::size_t first_peer = through.size();
  through.push_back({"boost::lockfree::queue", [=] { return one_way<BoostMpmc<>>(1, some); }});
  through.push_back({"boost::interprocess::message_queue", [=] { return one_way<BoostMessageQueue<>>(1, some); }});
  through.push_back({"pipe", [=] { return one_way<Pipe<>>(1, some); }});
  run_rounds(rtt, options);
  run_rounds(through, options);

  const Figure& bare = rtt[0].figure;
  Report report;
  report.ratio("ring.round_trip_over_line", rtt[1].figure.over(bare));
  report.ratio("ring.round_trip_over_spsc", rtt[1].figure.over(rtt[2].figure));
  for (std::size_t i = 0; i < std::size(pairs); i++) {
    const char* const names[] = {"ring.single_over_spsc", "ring.sent_by_one_over_spsc", "ring.batched_over_spsc"};
    report.ratio(names[i], through[2 * i].figure.over(through[2 * i + 1].figure));
  }
  for (const Entry& e : rtt)
    report.rows.push_back({{"name", e.name},
                           {"rtt_ns", spread(e.figure)},
                           {"rtt_over_line", spread(e.figure.over(bare))},
                           {"one_way_mmsg_s", spread(figure_of(through, e.name))}});
  for (std::size_t i = 0; i < first_peer; i++)
    report.rows.push_back({{"name", through[i].name},
                           {"rtt_ns", nullptr},
                           {"rtt_over_line", nullptr},
                           {"one_way_mmsg_s", spread(through[i].figure)}});
  if (!options.json) {
    fmt::print("{:48} {:>34} {:>8} {:>30}\n", "56 bytes between two processes", "there and back, ns", "x floor",
               "one way, million/s");
    for (const Entry& e : rtt) print_row(e.name, e.figure, bare, figure_of(through, e.name));
    for (std::size_t i = 0; i < first_peer; i++) print_row(through[i].name, {}, bare, through[i].figure);
    fmt::print(
        "\nsingle: one is committed or pushed, one taken; sent by one: up to 64 are taken at once; batched: 32 are "
        "committed or pushed, up to 64 taken\n");
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
