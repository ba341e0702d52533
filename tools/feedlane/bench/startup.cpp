// SPDX-License-Identifier: Apache-2.0
// startup: from nothing to the first batch, from one epoch to the next, and to the end. Workers write a page of each batch:
// what else it takes is not theirs to answer for.
#include <fmt/core.h>

#include <sys/mman.h>

#include <memory>

#include "batches.hpp"
#include "bench.hpp"
#include "channels.hpp"

namespace bench {

namespace {

constexpr std::uint64_t arena_bytes = 64 << 20;

// A bare eventfd there and back, in us.
double bare_round_trip() {
  Event there, back;
  constexpr int trips = 500;
  const Child echo(1, [&] {
    Message m{};
    for (int i = 0; i < trips; i++) {
      there.receive(m);
      back.send(m);
    }
  });
  Message m{};
  const std::int64_t began = now_ns();
  for (int i = 0; i < trips; i++) {
    there.send(m);
    back.receive(m);
  }
  return static_cast<double>(now_ns() - began) / 1e3 / trips;
}

struct Times {
  Figure first_ms, restart_us, shutdown_ms;
};

// What the system takes for the arena's memory, apart: as many bytes of a memfd reserved, and given back.
void measure_pages(Figure& fill_ms, Figure& free_ms) {
  const std::int64_t began = now_ns();
  const int fd = ::memfd_create("feedlane-bench", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, arena_bytes) != 0 || ::fallocate(fd, 0, 0, arena_bytes) != 0)
    fail("no memory for the arena");
  void* memory = ::mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail("no memory for the arena");
  const std::int64_t filled = now_ns();
  (void)::munmap(memory, arena_bytes);
  (void)::close(fd);
  fill_ms.add(static_cast<double>(filled - began) / 1e6);
  free_ms.add(static_cast<double>(now_ns() - filled) / 1e6);
}

void once(const BatchOptions& options, Times& times) {
  const std::int64_t began = now_ns();
  auto loader = std::make_unique<Batches>(options);
  loader->begin();
  (void)loader->take();
  times.first_ms.add(static_cast<double>(now_ns() - began) / 1e6);
  while (loader->take()) continue;
  const std::int64_t again = now_ns();
  loader->begin();
  (void)loader->take();
  times.restart_us.add(static_cast<double>(now_ns() - again) / 1e3);
  while (loader->take()) continue;
  const std::int64_t end = now_ns();
  loader.reset();
  times.shutdown_ms.add(static_cast<double>(now_ns() - end) / 1e6);
}

}  // namespace

Json startup(const Options& options) {
  pin(0);
  struct Case {
    std::int32_t workers, start;
    const char* mode;
  };
  std::vector<Case> cases;
  for (const std::int32_t workers : options.workers.empty() ? std::vector{1, 2} : options.workers) {
    cases.push_back({workers, FEEDLANE_START_FORK, "fork"});
    cases.push_back({workers, FEEDLANE_START_SPAWN, "spawn"});
  }
  std::vector<Times> times(cases.size());
  Figure bare, fill, free;
  for (int round = 0; round < options.rounds; round++) {
    bare.add(bare_round_trip());
    measure_pages(fill, free);
    for (std::size_t i = 0; i < cases.size(); i++) {
      // prefetch * workers in flight, one held and a spare.
      const auto slots = static_cast<std::uint64_t>(2 * cases[i].workers + 2);
      once({.bytes = (arena_bytes / slots) & ~std::uint64_t{4095},
            .workers = cases[i].workers,
            .batches = 8,
            .prefetch = 2,
            .start = cases[i].start,
            .copied = 4096},
           times[i]);
    }
  }
  if (!options.json) {
    print_machine();
    fmt::print(
        "arena of 64 MiB, whose pages alone take {:.2f} ms to fill, {:.2f} to free; a bare eventfd there and back "
        "{:.1f} us\n\n",
        fill.median(), free.median(), bare.median());
    fmt::print("{:>8} {:>6} {:>16} {:>16} {:>12}\n", "workers", "mode", "first batch, ms", "new epoch, us", "end, ms");
  }
  Json out = Json::array();
  for (std::size_t i = 0; i < cases.size(); i++) {
    const Times& t = times[i];
    if (!options.json)
      fmt::print("{:>8} {:>6} {:>16.2f} {:>16.1f} {:>12.2f}\n", cases[i].workers, cases[i].mode, t.first_ms.median(),
                 t.restart_us.median(), t.shutdown_ms.median());
    out.push_back({{"workers", cases[i].workers},
                   {"mode", cases[i].mode},
                   {"arena_bytes", arena_bytes},
                   {"pages_ms", rounded(fill.median())},
                   {"free_ms", rounded(free.median())},
                   {"first_batch_ms", rounded(t.first_ms.median())},
                   {"epoch_restart_us", rounded(t.restart_us.median())},
                   {"eventfd_rtt_us", rounded(bare.median())},
                   {"shutdown_ms", rounded(t.shutdown_ms.median())}});
  }
  return out;
}

}  // namespace bench
