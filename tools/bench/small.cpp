// SPDX-License-Identifier: Apache-2.0
// small: what a sample of 256 bytes costs where nobody hands it over, and where that goes: to the batch, to the call
// for each sample, or to cache misses that a call for each sample keeps apart.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "compare.hpp"
#include "samples.hpp"

namespace compare {

using namespace bench;

namespace {

constexpr std::uint64_t sample_bytes = 256;

// One way to make all batches, beside the loop that makes as large ones out of as much memory.
struct Case {
  const Samples* samples;
  std::int64_t rows;
  By by;
  std::unique_ptr<SampleEpochs> epochs;
  std::size_t loop, entry;

  void tell(const std::vector<Entry>& entries, const Options& options, Report& report) const {
    const Figure& bare = entries[loop].figure;
    const Figure& ours = entries[entry].figure;
    const Figure ratio = bare.over(ours);
    const double beyond = ours.minus(bare).median() * static_cast<double>(rows);
    if (!options.json)
      fmt::print("{:>10} {:>6} {:>17} {:>24} {:>24} {:>26} {:>12.0f}\n", samples->memory.size() >> 10, rows,
                 name_of(by), cell(ours), cell(bare), cell(ratio), beyond);
    report.ratio(fmt::format("small.{}.{}.{}_over_loop", samples->memory.size(), rows,
                             by == By::get_ahead ? "get_ahead" : name_of(by)),
                 ratio);
    report.rows.push_back({{"memory_bytes", samples->memory.size()},
                           {"batch_size", rows},
                           {"by", name_of(by)},
                           {"sample_ns", spread(ours)},
                           {"loop_ns", spread(bare)},
                           {"ratio", spread(ratio)},
                           {"beyond_ns", rounded(beyond)}});
  }
};

}  // namespace

Report small(const Options& options) {
  pin(0);
  std::vector<std::unique_ptr<Samples>> all;
  std::vector<Case> cases;
  std::vector<Entry> entries;
  for (const std::uint64_t bytes :
       {256U << 10, options.tiny ? 2U << 20 : 64U << 20})  // within a core's own cache; far beyond
    for (const std::int64_t rows : {64, 512}) {
      all.push_back(std::make_unique<Samples>(sample_bytes, bytes));
      Samples& samples = *all.back();
      const std::int64_t count = options.count(4 << 20, 1 << 20, 2 * rows) / rows * rows;
      const auto per_sample = static_cast<double>(count);
      const std::size_t loop = entries.size();
      entries.push_back({"loop", [&samples, count, rows, per_sample] {
                           const auto ns = loop_over(samples, count, static_cast<std::size_t>(rows), 0, 1, [] {});
                           return static_cast<double>(ns) / per_sample;
                         }});
      for (const By by : {By::fetch, By::get_ahead, By::get}) {
        cases.push_back(
            {&samples, rows, by, std::make_unique<SampleEpochs>(samples, by, 0, count, rows), loop, entries.size()});
        entries.push_back(
            {name_of(by), [epochs = cases.back().epochs.get()] { return 1e9 / epochs->samples_per_s(); }});
      }
    }
  run_rounds(entries, options);
  if (!options.json)
    fmt::print("{:>10} {:>6} {:>17} {:>24} {:>24} {:>26} {:>12}\n", "KiB of all", "rows", "by", "ns a sample",
               "the loop, ns", "the loop over it", "ns a batch");
  Report report;
  for (const Case& c : cases) c.tell(entries, options, report);
  return report;
}

}  // namespace compare
