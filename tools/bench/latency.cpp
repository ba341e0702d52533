// SPDX-License-Identifier: Apache-2.0
// latency: messages sent at a fixed rate, and how long each takes from when it was due.
//
// The sender follows a schedule, and a message carries the time at which it was due, not that at which it was sent:
// when the sender is late, because it was stopped, or the channel was full, all messages that were due meanwhile count
// as late.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "channels.hpp"
#include "compare.hpp"
#include "peers.hpp"
#include "ways.hpp"

namespace compare {

using namespace bench;

namespace {

constexpr std::uint64_t rates[] = {10'000, 100'000, 1'000'000};  // messages a second

// Of the messages of one round, ns; and the part of its time in which the receiver used a processor, be it to look for
// a message. The sender polls the clock all the time.
struct Tail {
  double p50, p99, p999, max, receiver_share;
};

// The shortest duration that at least this share does not exceed, as the library's percentiles are defined; exact.
double percentile(std::vector<std::int64_t>& ns, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(ns.size())));
  const std::size_t at = std::clamp<std::size_t>(rank, 1, ns.size()) - 1;
  std::nth_element(ns.begin(), ns.begin() + static_cast<std::ptrdiff_t>(at), ns.end());
  return static_cast<double>(ns[at]);
}

template <class C>
void send_by_schedule(C& channel, std::int64_t period_ns, std::uint64_t count) {
  Message m{};
  const std::int64_t start = now_ns() + 1'000'000;
  for (std::uint64_t i = 0; i < count; i++) {
    const std::int64_t due = start + static_cast<std::int64_t>(i) * period_ns;
    while (now_ns() < due) continue;
    m.words[0] = i;
    m.words[1] = static_cast<std::uint64_t>(due);
    channel.send(m);
  }
}

// Of `count` messages, after an eighth as many that don't count.
template <class C>
Tail latency_of(std::uint64_t rate, std::uint64_t count) {
  C channel;
  const std::uint64_t before = count / 8;
  std::vector<std::int64_t> ns;
  ns.reserve(count);
  double receiver_share = 0;
  {
    const Child sender(1, [&] {
      channel.open_sender();
      send_by_schedule(channel, 1'000'000'000 / static_cast<std::int64_t>(rate), before + count);
      channel.close();
    });
    channel.open_receiver();
    Message m{};
    std::int64_t began = 0, cpu = 0;
    for (std::uint64_t i = 0; i < before + count; i++) {
      if (i == before) began = now_ns(), cpu = cpu_ns();
      channel.receive(m);
      const std::int64_t now = now_ns();
      if (m.words[0] != i) fail("a message is out of order");
      if (i >= before) ns.push_back(now - static_cast<std::int64_t>(m.words[1]));
    }
    receiver_share = static_cast<double>(cpu_ns() - cpu) / static_cast<double>(now_ns() - began);
  }
  channel.close();
  return {percentile(ns, 0.5), percentile(ns, 0.99), percentile(ns, 0.999), percentile(ns, 1), receiver_share};
}

struct Row {
  const char* name;
  std::uint64_t rate, count;
  Tail (*measure)(std::uint64_t rate, std::uint64_t count);
  Figure p50 = {}, p99 = {}, p999 = {}, max = {}, receiver_share = {};

  void add(const Tail& tail) {
    p50.add(tail.p50);
    p99.add(tail.p99);
    p999.add(tail.p999);
    max.add(tail.max);
    receiver_share.add(tail.receiver_share);
  }
};

std::vector<Row> rows_of(const Options& options) {
  std::vector<Row> rows;
  for (const std::uint64_t rate : rates) {
    const std::int64_t usual = std::max<std::int64_t>(static_cast<std::int64_t>(rate) / 4, 5'000);
    const std::uint64_t count = number(options.count(usual, std::max<std::int64_t>(usual / 5, 2'000), 16));
    rows.push_back({"feedlane, send and receive", rate, count, latency_of<RingCalls<>>});
    rows.push_back({"boost::lockfree::spsc_queue, polled", rate, count, latency_of<BoostSpsc<>>});
    rows.push_back({"spsc_queue and an eventfd", rate, count, latency_of<EventQueue>});
    rows.push_back({"pipe", rate, count, latency_of<Pipe<>>});
  }
  return rows;
}
constexpr std::size_t channels = 4;  // rows of one rate; Feedlane, then Boost's queue, come first

}  // namespace

Report latency(const Options& options) {
  pin(0);
  std::vector<Row> rows = rows_of(options);
  alternate(rows.size(), options, [&](std::size_t i, bool counts) {
    Row& row = rows[i];
    const Tail tail = row.measure(row.rate, row.count);
    if (counts) row.add(tail);
  });
  Report report;
  if (!options.json)
    fmt::print("{:>10} {:36} {:>28} {:>28} {:>28} {:>28} {:>26}\n", "messages/s", "ns from when each was due", "p50",
               "p99", "p99.9", "most", "receiver's CPU, share");
  for (std::size_t i = 0; i < rows.size(); i++) {
    const Row& row = rows[i];
    if (!options.json)
      fmt::print("{:>10} {:36} {:>28} {:>28} {:>28} {:>28} {:>26}\n", row.rate, row.name, cell(row.p50), cell(row.p99),
                 cell(row.p999), cell(row.max), cell(row.receiver_share));
    report.rows.push_back({{"name", row.name},
                           {"rate", row.rate},
                           {"messages", row.count},
                           {"p50_ns", spread(row.p50)},
                           {"p99_ns", spread(row.p99)},
                           {"p999_ns", spread(row.p999)},
                           {"max_ns", spread(row.max)},
                           {"receiver_cpu_share", spread(row.receiver_share)}});
    if (i % channels != 0) continue;
    const Row& polled = rows[i + 1];
    report.ratio(fmt::format("latency.{}.p50_over_spsc", row.rate), row.p50.over(polled.p50));
    report.ratio(fmt::format("latency.{}.p99_over_spsc", row.rate), row.p99.over(polled.p99));
  }
  return report;
}

}  // namespace compare
