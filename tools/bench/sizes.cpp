// SPDX-License-Identifier: Apache-2.0
// The plot of `compare ring`.
#include "sizes.hpp"

#include <functional>

#include "channels.hpp"
#include "peers.hpp"
#include "plot.hpp"
#include "ways.hpp"

namespace bench {

namespace {

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
  void add(const char* name, std::uint64_t size, const std::function<Measured()>& measure) {
    entries.push_back({name, measure});
    bytes.push_back(size);
  }
};

}  // namespace

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

}  // namespace bench
