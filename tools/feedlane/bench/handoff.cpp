// SPDX-License-Identifier: Apache-2.0
// handoff: batches a second from one and from two workers, beside as many threads that copy into the very same slots.
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

// One size with one number of workers, and what is measured of it.
struct Case {
  std::uint64_t bytes = 0;
  std::int32_t workers = 0, prefetch = 0;
  std::unique_ptr<Batches> loader;
  double cpu_ns = 0;  // of the newest measurement of the trainer's time
  std::size_t entry = 0;

  void measure(std::vector<Entry>& entries, std::int64_t batches, bool rate_only) {
    Case* const self = this;
    entry = entries.size();
    entries.push_back({"rate", [=] { return self->loader->epoch(); }});
    if (rate_only) return;
    entries.push_back({"copy", [=] { return copy_rate(self->loader->slots(), self->bytes, batches, self->workers); }});
    entries.push_back({"wall", [=] {
                         const Epochs::Trainer t = self->loader->trainer();
                         self->cpu_ns = t.cpu_ns;
                         return t.wall_ns;
                       }});
    entries.push_back({"cpu", [=] { return self->cpu_ns; }});
    if (!has_reader()) return;
    entries.push_back(
        {"read copies", [=] { return read_copy_rate(self->loader->slots(), self->bytes, batches, self->workers); }});
  }

  // Whether copiers and their reader have a processor each.
  [[nodiscard]] bool has_reader() const { return static_cast<std::size_t>(workers) < processors().size(); }

  // A row of the table and of the report.
  void tell(const std::vector<Entry>& entries, const Figure& line, const Options& options, Report& report, Plot& plot) {
    const Figure& rate = entries[entry].figure;
    const Figure none;
    const Figure& copy = options.rate_only ? none : entries[entry + 1].figure;
    const Figure& wall = options.rate_only ? none : entries[entry + 2].figure;
    const Figure& cpu = options.rate_only ? none : entries[entry + 3].figure;
    const Figure& read = options.rate_only || !has_reader() ? none : entries[entry + 4].figure;
    Figure loaded;  // bytes a second
    for (const double value : rate.rounds()) loaded.add(value * static_cast<double>(bytes));
    const Figure ratio = loaded.over(copy), of_read = loaded.over(read);
    const double gb = rate.median() * static_cast<double>(bytes) / 1e9;
    if (!options.json)
      fmt::print("{:>8} {:>8} {:>9} {:>12.1f} {:>9.2f} {:>13.2f} {:>30} {:>30} {:>10.3f} {:>10.3f}\n", size_of(bytes),
                 workers, prefetch, rate.median(), gb, copy.median() / 1e9, cell(ratio), cell(of_read),
                 wall.median() / 1e3, cpu.median() / 1e3);
    plot.add(fmt::format("feedlane, {} worker{}", workers, workers == 1 ? "" : "s"), static_cast<double>(bytes), gb);
    plot.add(fmt::format("memcpy by {} thread{}", workers, workers == 1 ? "" : "s"), static_cast<double>(bytes),
             copy.median() / 1e9);
    const std::string name = fmt::format("handoff.{}.{}", bytes, workers);
    if (!options.rate_only) {
      report.ratio(name + ".over_copiers", ratio);
      if (has_reader()) report.ratio(name + ".over_read_copiers", of_read);
      report.ratio(name + ".trainer_over_line", cpu.over(line));
    }
    report.rows.push_back({{"bytes", bytes},
                           {"workers", workers},
                           {"prefetch", prefetch},
                           {"batches_s", spread(rate)},
                           {"gb_s", rounded(gb)},
                           {"copiers_gb_s", rounded(copy.median() / 1e9)},
                           {"ratio", spread(ratio)},
                           {"over_read_copiers", spread(of_read)},
                           {"trainer_wall_us", rounded(wall.median() / 1e3)},
                           {"trainer_cpu_us", rounded(cpu.median() / 1e3)}});
  }
};

}  // namespace

Report handoff(const Options& options) {
  pin(0);
  std::vector<std::uint64_t> sizes{4 * kib, 64 * kib, 256 * kib, mib, 16 * mib, 147 * mib};
  if (!options.bytes.empty()) sizes = options.bytes;
  const std::vector<std::int32_t> counts = options.workers.empty() ? std::vector{1, 2} : options.workers;
  if (!options.json)
    fmt::print("{:>8} {:>8} {:>9} {:>12} {:>9} {:>13} {:>30} {:>30} {:>10} {:>10}\n", "batch", "workers", "prefetch",
               "batches/s", "GB/s", "copiers GB/s", "over as many copiers", "over them with a reader", "trainer us",
               "CPU us");
  Report report;
  Plot plot{"Batches from workers to a trainer", "bytes of a batch", "GB/s", {}};
  for (const std::uint64_t bytes : sizes) {
    const auto fits = static_cast<double>(3'000 * mib) / static_cast<double>(bytes);
    const auto usual = std::clamp(fits, 12.0, 200'000.0);
    const std::int64_t batches =
        options.count(static_cast<std::int64_t>(usual), static_cast<std::int64_t>(usual / 4), 12);
    std::vector<Case> cases(counts.size());
    std::vector<Entry> entries{{"line", [&] { return line_ns(options); }}};
    for (std::size_t i = 0; i < counts.size(); i++) {
      Case& c = cases[i];
      c.bytes = bytes;
      c.workers = counts[i];
      c.prefetch = options.prefetch != 0 ? options.prefetch : bytes < mib ? 32 : 2;
      c.loader = std::make_unique<Batches>(
          BatchOptions{.bytes = bytes, .workers = c.workers, .batches = batches, .prefetch = c.prefetch});
      (void)c.loader->epoch();  // every slot was there once
      c.measure(entries, batches, options.rate_only);
    }
    run_rounds(entries, options);
    for (Case& c : cases) c.tell(entries, entries[0].figure, options, report, plot);
  }
  if (!options.plot.empty()) plot.draw(options.plot);
  return report;
}

}  // namespace bench
