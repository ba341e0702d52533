// SPDX-License-Identifier: Apache-2.0
// startup: from nothing to the first batch, from one epoch to the next with workers that sleep, and to the end. Workers write
// a page of each batch; what the arena's pages take is measured just before and taken off, round by round.
#include <fmt/core.h>

#include <sys/mman.h>

#include <memory>

#include "batches.hpp"
#include "bench.hpp"
#include "peers.hpp"

namespace bench {

namespace {

constexpr std::uint64_t arena_bytes = 64 << 20;

constexpr int epochs_a_round = 5;

// A bare eventfd there and back, in us, by a process that sleeps as long as workers do before a new epoch.
double bare_round_trip() {
  Event there, back;
  Figure trips;
  const Child echo(1, [&] {
    Message m{};
    for (int i = 0; i < 4 * epochs_a_round; i++) {
      there.receive(m);
      back.send(m);
    }
  });
  Message m{};
  for (int i = 0; i < 4 * epochs_a_round; i++) {
    wait_until_asleep(echo.pid());
    const std::int64_t began = now_ns();
    there.send(m);
    back.receive(m);
    trips.add(static_cast<double>(now_ns() - began) / 1e3);
  }
  return trips.median();
}

// What the system takes for the arena's memory, apart: as many bytes of a memfd reserved, and given back. In ms.
struct Pages {
  double fill, free;
};
Pages measure_pages() {
  const std::int64_t began = now_ns();
  const int fd = ::memfd_create("feedlane-bench", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, arena_bytes) != 0 || ::fallocate(fd, 0, 0, arena_bytes) != 0)
    fail("no memory for the arena");
  void* memory = ::mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("no memory for the arena");
  const std::int64_t filled = now_ns();
  (void)::munmap(memory, arena_bytes);
  (void)::close(fd);
  return {static_cast<double>(filled - began) / 1e6, static_cast<double>(now_ns() - filled) / 1e6};
}

struct Case {
  std::int32_t workers, start;
  const char* mode;
  Figure first_ms = {}, beyond_fill_ms = {}, over_fill = {}, restart_us = {}, over_eventfd = {};
  Figure end_ms = {}, beyond_free_ms = {}, over_free = {};

  // One round; `counts` not the first time.
  void measure(double eventfd_us, bool counts) {
    const auto slots = static_cast<std::uint64_t>(2 * workers + 2);  // prefetch * workers in flight, one held, a spare
    const BatchOptions options{.bytes = (arena_bytes / slots) & ~std::uint64_t{4095},
                               .workers = workers,
                               .batches = 8,
                               .prefetch = 2,
                               .start = start,
                               .copied = 4096};
    const Pages pages = measure_pages();  // just before, so that it is in the same state of the system
    const std::int64_t began = now_ns();
    auto loader = std::make_unique<Batches>(options);
    loader->begin();
    (void)loader->take();
    const double first = static_cast<double>(now_ns() - began) / 1e6;
    while (loader->take()) continue;
    Figure restarts;
    for (int i = 0; i < epochs_a_round; i++) {
      loader->wait_until_workers_sleep();
      const std::int64_t again = now_ns();
      loader->begin();
      (void)loader->take();
      restarts.add(static_cast<double>(now_ns() - again) / 1e3);
      while (loader->take()) continue;
    }
    const std::int64_t end = now_ns();
    loader.reset();
    const double last = static_cast<double>(now_ns() - end) / 1e6;
    if (!counts) return;
    first_ms.add(first);
    beyond_fill_ms.add(first - pages.fill);
    over_fill.add(first / pages.fill);
    restart_us.add(restarts.median());
    over_eventfd.add(restarts.median() / eventfd_us);
    end_ms.add(last);
    beyond_free_ms.add(last - pages.free);
    over_free.add(last / pages.free);
  }

  void tell(const Options& options, const Figure& eventfd, Report& report) const {
    if (!options.json)
      fmt::print("{:>8} {:>6} {:>10.2f} {:>26} {:>10.1f} {:>26} {:>8.2f} {:>26}\n", workers, mode, first_ms.median(),
                 cell(beyond_fill_ms), restart_us.median(), cell(over_eventfd), end_ms.median(), cell(beyond_free_ms));
    const std::string name = fmt::format("startup.{}.{}", mode, workers);
    report.ratio(name + ".first_batch_over_pages", over_fill);
    report.ratio(name + ".new_epoch_over_eventfd", over_eventfd);
    report.ratio(name + ".end_over_pages", over_free);
    report.rows.push_back({{"workers", workers},
                           {"mode", mode},
                           {"arena_bytes", arena_bytes},
                           {"first_batch_ms", spread(first_ms)},
                           {"first_batch_beyond_pages_ms", spread(beyond_fill_ms)},
                           {"epoch_restart_us", spread(restart_us)},
                           {"eventfd_rtt_us", spread(eventfd)},
                           {"shutdown_ms", spread(end_ms)},
                           {"shutdown_beyond_pages_ms", spread(beyond_free_ms)}});
  }
};

}  // namespace

Report startup(const Options& options) {
  pin(0);
  std::vector<Case> cases;
  for (const std::int32_t workers : options.workers.empty() ? std::vector{1, 2} : options.workers) {
    cases.push_back({workers, FEEDLANE_START_FORK, "fork"});
    cases.push_back({workers, FEEDLANE_START_SPAWN, "spawn"});
  }
  Figure eventfd;
  for (int round = -1; round < options.rounds; round++) {
    const double us = bare_round_trip();
    if (round >= 0) eventfd.add(us);
    for (Case& c : cases) c.measure(us, round >= 0);
  }
  if (!options.json) {
    fmt::print("arena of 64 MiB; a bare eventfd there and back to a sleeping process: {} us\n\n", cell(eventfd));
    fmt::print("{:>8} {:>6} {:>10} {:>26} {:>10} {:>26} {:>8} {:>26}\n", "workers", "mode", "first, ms",
               "beyond its pages", "epoch, us", "over eventfd", "end, ms", "beyond its pages");
  }
  Report report;
  for (const Case& c : cases) c.tell(options, eventfd, report);
  return report;
}

}  // namespace bench
