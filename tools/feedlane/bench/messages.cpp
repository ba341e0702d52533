// SPDX-License-Identifier: Apache-2.0
// floor, ring and lanes: small messages, there and back and one way.
#include <fmt/core.h>

#include "bench.hpp"
#include "channels.hpp"
#include "plot.hpp"

namespace bench {

namespace {

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

// Lets processes on when so many have come.
class Gate {
 public:
  void pass(std::uint64_t everybody) {
    came_->fetch_add(1, std::memory_order_relaxed);  // counts, and orders nothing
    const std::int64_t latest = now_ns() + 10'000'000'000;
    while (came_->load(std::memory_order_relaxed) < everybody) {
      if (now_ns() > latest) fail("another process didn't come");
      (void)::usleep(20);
    }
  }

 private:
  std::atomic<std::uint64_t>* came_ = make_shared_object<std::atomic<std::uint64_t>>();
};

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
  void add(bool quick) {
    using M = Lines<lines>;
    const std::uint64_t count = (quick ? 64ULL << 20 : 512ULL << 20) / (sizeof(M) + 200);
    const std::uint64_t few = count / 8;
    add("feedlane", sizeof(M), [=] { return one_way<Ring<M>>(1, count); });
    add("feedlane, by 32", sizeof(M), [=] {
      Ring<M> ring(1, 32);
      return one_way(ring, 1, count);
    });
    add("boost::lockfree::spsc_queue", sizeof(M), [=] { return one_way<BoostSpsc<M>>(1, count); });
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
  sizes.add<1>(options.quick);
  sizes.add<4>(options.quick);
  sizes.add<16>(options.quick);
  sizes.add<64>(options.quick);
  sizes.add<256>(options.quick);
  if (!options.quick) sizes.add<1024>(false);
  run_rounds(sizes.entries, options);
  Plot plot{"Messages one way between two processes", "bytes of a message", "GB/s", {}};
  for (std::size_t i = 0; i < sizes.entries.size(); i++) {
    const auto size = static_cast<double>(sizes.bytes[i]);
    plot.add(sizes.entries[i].name, size, sizes.entries[i].figure.median() * size / 1e3);
  }
  plot.draw(options.plot);
}

Json number(const Figure& f) { return f.empty() ? Json(nullptr) : Json(rounded(f.median())); }

}  // namespace

Json floor(const Options& options) {
  pin(0);
  const std::uint64_t trips = options.quick ? 50'000 : 500'000;
  std::vector<Entry> entries{{"line", [=] { return round_trip<Line>(trips); }}};
  run_rounds(entries, options);
  if (!options.json) {
    print_machine();
    fmt::print("a line of 56 bytes there and back: {} ns\n", cell(entries[0].figure));
  }
  return {{"rtt_ns", number(entries[0].figure)}, {"spread", spread(entries[0].figure)}};
}

Json ring(const Options& options) {
  pin(0);
  const std::uint64_t k = options.quick ? 1 : 10;
  // What sleeps in the kernel takes a few hundred times as long.
  const std::uint64_t trips = 50'000 * k, slow_trips = 500 * k, many = 1'000'000 * k, some = 100'000 * k;
  std::vector<Entry> rtt{
      {"floor", [=] { return round_trip<Line>(trips); }},
      {"feedlane", [=] { return round_trip<Ring<>>(trips); }},
      {"boost::lockfree::spsc_queue", [=] { return round_trip<BoostSpsc<>>(trips); }},
      {"boost::lockfree::queue", [=] { return round_trip<BoostMpmc<>>(trips); }},
      {"boost::interprocess::message_queue", [=] { return round_trip<BoostMessageQueue<>>(slow_trips); }},
      {"pipe", [=] { return round_trip<Pipe<>>(slow_trips); }},
      {"eventfd", [=] { return round_trip<Event>(slow_trips); }},
  };
  std::vector<Entry> through{
      {"feedlane", [=] { return one_way<Ring<>>(1, many); }},
      {"feedlane, by 32",
       [=] {
         Ring<> ring(1, 32);
         return one_way(ring, 1, many);
       }},
      {"boost::lockfree::spsc_queue", [=] { return one_way<BoostSpsc<>>(1, many); }},
      {"boost::lockfree::queue", [=] { return one_way<BoostMpmc<>>(1, some); }},
      {"boost::interprocess::message_queue", [=] { return one_way<BoostMessageQueue<>>(1, some); }},
      {"pipe", [=] { return one_way<Pipe<>>(1, some); }},
  };
  run_rounds(rtt, options);
  run_rounds(through, options);

  const Figure& bare = rtt[0].figure;
  const Figure& spsc = through[2].figure;
  Json peers;
  for (std::size_t i = 2; i < rtt.size(); i++)
    peers[rtt[i].name] = {{"rtt_ns", number(rtt[i].figure)},
                          {"one_way_mmsg_s", number(figure_of(through, rtt[i].name))}};
  if (!options.json) {
    print_machine();
    fmt::print("{:36} {:>34} {:>8} {:>30} {:>8}\n", "56 bytes between two processes", "there and back, ns", "x floor",
               "one way, million/s", "x spsc");
    for (const Entry& e : rtt) {
      const Figure& f = figure_of(through, e.name);
      fmt::print("{:36} {:>34} {:>8.2f} {:>30} {:>8}\n", e.name, cell(e.figure), e.figure.over(bare), cell(f),
                 f.empty() ? "-" : fmt::format("{:.2f}", f.over(spsc)));
    }
    const Figure& batched = through[1].figure;
    fmt::print("{:36} {:>34} {:>8} {:>30} {:>8.2f}\n", "feedlane, committed by 32", "", "", cell(batched),
               batched.over(spsc));
  }
  if (!options.plot.empty()) plot_sizes(options);
  return {{"floor", {{"rtt_ns", number(bare)}}},
          {"spsc",
           {{"rtt_ns", number(rtt[1].figure)},
            {"rtt_over_floor", rounded(rtt[1].figure.over(bare))},
            {"one_way_mmsg_s", number(through[0].figure)},
            {"batched_mmsg_s", number(through[1].figure)}}},
          {"peers", peers}};
}

Json lanes(const Options& options) {
  pin(0);
  const std::uint64_t k = options.quick ? 1 : 10;
  std::vector<std::uint64_t> counts{1, 2, 4, 8};
  if (options.quick) counts.resize(2);
  std::vector<Entry> entries;
  for (const std::uint64_t producers : counts) {
    entries.push_back({"feedlane", [=] {
                         Ring<> ring(static_cast<std::uint32_t>(producers), 32);
                         return one_way(ring, producers, 1'000'000 * k / producers);
                       }});
    entries.push_back(
        {"boost::lockfree::queue", [=] { return one_way<BoostMpmc<>>(producers, 100'000 * k / producers); }});
  }
  run_rounds(entries, options);
  if (!options.json) {
    print_machine();
    fmt::print("{:>9} {:>32} {:>32} {:>8}\n", "producers", "feedlane by 32, million/s", "boost::lockfree::queue",
               "ratio");
  }
  Json out = Json::array();
  for (std::size_t i = 0; i < counts.size(); i++) {
    const Figure& ours = entries[2 * i].figure;
    const Figure& theirs = entries[2 * i + 1].figure;
    if (!options.json)
      fmt::print("{:>9} {:>32} {:>32} {:>8.1f}\n", counts[i], cell(ours), cell(theirs), ours.over(theirs));
    out.push_back({{"producers", counts[i]}, {"mmsg_s", number(ours)}, {"peer_boost_queue_mmsg_s", number(theirs)}});
  }
  return out;
}

}  // namespace bench
