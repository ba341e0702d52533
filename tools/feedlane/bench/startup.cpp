// SPDX-License-Identifier: Apache-2.0
// startup: from nothing to the first batch, from one epoch to the next with workers that sleep, and to the end. Workers write
// a page of each batch; what the arena's pages take is measured just before and taken off, round by round.
#include <fmt/core.h>

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <vector>

#include "batches.hpp"
#include "bench.hpp"
#include "channels.hpp"

namespace bench {

namespace {

constexpr std::uint64_t arena_bytes = 64 << 20;

constexpr int epochs_a_round = 5;

// What a new epoch costs at least, in us: an eventfd for each of `workers` processes that sleep as workers do, and a line back
// from the first to come, which the trainer polls for as it polls for the first batch.
double bare_wake(std::int32_t workers) {
  constexpr int trips = 4 * epochs_a_round;
  std::vector<std::unique_ptr<Event>> there;
  for (std::int32_t w = 0; w < workers; w++) there.push_back(std::make_unique<Event>());
  auto* const answers = make_shared_object<std::atomic<std::int64_t>>();
  std::vector<std::unique_ptr<Child>> sleepers;
  for (std::size_t w = 0; w < there.size(); w++)
    sleepers.push_back(std::make_unique<Child>(w + 1, [&there, answers, w] {
      Message m{};
      for (int i = 0; i < trips; i++) {
        there[w]->receive(m);
        answers->fetch_add(1, std::memory_order_release);  // pairs with the load below
      }
    }));
  Figure took;
  for (std::int64_t i = 0; i < trips; i++) {
    for (const auto& sleeper : sleepers) wait_until_asleep(sleeper->pid());
    const std::int64_t began = now_ns();
    for (const auto& event : there) event->send({});
    while (answers->load(std::memory_order_acquire) == i * workers) continue;  // pairs with a sleeper's addition
    took.add(static_cast<double>(now_ns() - began) / 1e3);
    while (answers->load(std::memory_order_acquire) < (i + 1) * workers) (void)::usleep(20);
  }
  return took.median();
}

// What the system takes for the arena's memory, apart: as many bytes of a memfd reserved, and given back. In ms.
struct Pages {
  double fill, free;
};
Pages measure_pages() {
  const std::int64_t began = now_ns();
  const int fd = ::memfd_create("feedlane-bench", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, arena_bytes) != 0 || ::fallocate(fd, 0, 0, arena_bytes) != 0)
    fail("cannot allocate the arena");
  void* memory = ::mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("cannot allocate the arena");
  const std::int64_t filled = now_ns();
  (void)::munmap(memory, arena_bytes);
  (void)::close(fd);
  return {static_cast<double>(filled - began) / 1e6, static_cast<double>(now_ns() - filled) / 1e6};
}

struct Case {
  std::int32_t workers, start;
  const char* mode;
  Figure first_ms = {}, beyond_fill_ms = {}, over_fill = {}, restart_us = {}, wake_us = {}, over_wake = {};
  Figure end_ms = {}, beyond_free_ms = {}, over_free = {};

  // One round; `counts` not the first time.
  void measure(bool counts) {
    const double bare_us = bare_wake(workers);
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
    wake_us.add(bare_us);
    over_wake.add(restarts.median() / bare_us);
    end_ms.add(last);
    beyond_free_ms.add(last - pages.free);
    over_free.add(last / pages.free);
  }

  void tell(const Options& options, Report& report) const {
    if (!options.json)
      fmt::print("{:>8} {:>6} {:>10.2f} {:>26} {:>10.1f} {:>26} {:>8.2f} {:>26}\n", workers, mode, first_ms.median(),
                 cell(beyond_fill_ms), restart_us.median(), cell(over_wake), end_ms.median(), cell(beyond_free_ms));
    const std::string name = fmt::format("startup.{}.{}", mode, workers);
    report.ratio(name + ".first_batch_over_pages", over_fill);
    report.ratio(name + ".new_epoch_over_wake", over_wake);
    report.ratio(name + ".end_over_pages", over_free);
    report.rows.push_back({{"workers", workers},
                           {"mode", mode},
                           {"arena_bytes", arena_bytes},
                           {"first_batch_ms", spread(first_ms)},
                           {"first_batch_beyond_pages_ms", spread(beyond_fill_ms)},
                           {"epoch_restart_us", spread(restart_us)},
                           {"bare_wake_us", spread(wake_us)},
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
  for (int round = -1; round < options.rounds; round++)
    for (Case& c : cases) c.measure(round >= 0);
  if (!options.json) {
    fmt::print(
        "arena of 64 MiB; a bare wake: an eventfd for each sleeping process, and a line back from the first\n\n");
    fmt::print("{:>8} {:>6} {:>10} {:>26} {:>10} {:>26} {:>8} {:>26}\n", "workers", "mode", "first, ms",
               "beyond its pages", "epoch, us", "over a bare wake", "end, ms", "beyond its pages");
  }
  Report report;
  for (const Case& c : cases) c.tell(options, report);
  return report;
}

}  // namespace bench
