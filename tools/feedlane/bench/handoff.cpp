// SPDX-License-Identifier: Apache-2.0
// handoff: batches a second from one and from two workers, beside a copy by one process into the very same slots.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "batches.hpp"
#include "bench.hpp"
#include "plot.hpp"

namespace bench {

namespace {

constexpr std::uint64_t kib = 1024, mib = kib * kib;

std::string size_of(std::uint64_t bytes) {
  return bytes < mib ? fmt::format("{} KiB", bytes / kib) : fmt::format("{} MiB", bytes / mib);
}

}  // namespace

Json handoff(const Options& options) {
  pin(0);
  std::vector<std::uint64_t> sizes{4 * kib, 64 * kib, 256 * kib, mib, 16 * mib, 147 * mib};
  if (options.quick) sizes = {4 * kib, 64 * kib, mib, 16 * mib};
  if (!options.bytes.empty()) sizes = options.bytes;
  const std::vector<std::int32_t> counts = options.workers.empty() ? std::vector{1, 2} : options.workers;
  if (!options.json) {
    print_machine();
    fmt::print("{:>8} {:>8} {:>12} {:>9} {:>12} {:>7} {:>17} {:>16}\n", "batch", "workers", "batches/s", "GB/s",
               "memcpy GB/s", "ratio", "[min .. max]", "trainer us/batch");
  }
  Json out = Json::array();
  Plot plot{"Batches from workers to a trainer", "bytes of a batch", "GB/s", {}};
  for (const std::uint64_t bytes : sizes) {
    const double share = options.quick ? 0.25 : 1;
    const auto fits = static_cast<double>(3'000 * mib) / static_cast<double>(bytes);
    const auto batches = static_cast<std::int64_t>(share * std::clamp(fits, 12.0, 200'000.0));
    std::vector<std::unique_ptr<Batches>> loaders;
    for (const std::int32_t workers : counts) {
      loaders.push_back(std::make_unique<Batches>(
          BatchOptions{.bytes = bytes, .workers = workers, .batches = batches, .prefetch = bytes < mib ? 32 : 2}));
      (void)loaders.back()->epoch();  // every slot was there once
    }
    std::vector<Entry> entries;
    for (const auto& l : loaders) {
      Batches* loader = l.get();
      entries.push_back({"rate", [=] { return loader->epoch(); }});
      entries.push_back({"copy", [=] {
                           pin(1);  // where the first worker is: no two processors are alike
                           const double rate = copy_rate(loader->slots(), bytes, batches);
                           pin(0);
                           return rate;
                         }});
      entries.push_back({"cpu", [=] { return loader->trainer_ns(); }});
    }
    run_rounds(entries, options);
    for (std::size_t i = 0; i < loaders.size(); i++) {
      const Figure& rate = entries[3 * i].figure;
      const Figure& copy = entries[3 * i + 1].figure;
      const double gb = rate.median() * static_cast<double>(bytes) / 1e9;
      const double ratio = gb * 1e9 / copy.median();
      const double us = entries[3 * i + 2].figure.median() / 1e3;
      if (!options.json)
        fmt::print("{:>8} {:>8} {:>12.1f} {:>9.2f} {:>12.2f} {:>7.3f} {:>17} {:>16.3f}\n", size_of(bytes), counts[i],
                   rate.median(), gb, copy.median() / 1e9, ratio,
                   fmt::format("[{:.4g} .. {:.4g}]", rate.min(), rate.max()), us);
      plot.add(fmt::format("feedlane, {} worker{}", counts[i], counts[i] == 1 ? "" : "s"), static_cast<double>(bytes),
               gb);
      if (i == 0) plot.add("memcpy by one process", static_cast<double>(bytes), copy.median() / 1e9);
      out.push_back({{"bytes", bytes},
                     {"workers", counts[i]},
                     {"batches_s", rounded(rate.median())},
                     {"gb_s", rounded(gb)},
                     {"memcpy_gb_s", rounded(copy.median() / 1e9)},
                     {"ratio", rounded(ratio)},
                     {"trainer_cpu_us", rounded(us)}});
    }
  }
  if (!options.plot.empty()) plot.draw(options.plot);
  return out;
}

}  // namespace bench
