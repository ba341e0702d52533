// SPDX-License-Identifier: Apache-2.0
// The end of an arena's owner: how long until a member that waits for an entry knows of it, beside a poll of a pidfd.
#include <fmt/core.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "batches.hpp"
#include "bench.hpp"
#include "feedlane/arena.hpp"

namespace bench {

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t entry_bytes = mib / 4;

struct Board {
  std::atomic<bool> is_ready{false};  // the process that will be killed has its memory
  std::atomic<std::int64_t> killed_ns{0};
};

// A process with so much memory that lives until it is killed, and `wait`, which returns once its end is known. In us.
template <class Live, class Wait>
double time_of_end(Live&& live, Wait&& wait) {
  auto* const board = make_shared_object<Board>();
  const pid_t victim = ::fork();
  if (victim < 0) fail("cannot start a process: fork failed");
  if (victim == 0) {
    pin(1);
    live(board->is_ready);
    std::_Exit(1);
  }
  while (!board->is_ready.load(std::memory_order_acquire)) (void)::usleep(100);
  const pid_t self = ::getpid();
  double us = 0;
  {
    const Child killer(1, [=] {
      wait_until_asleep(self);
      wait_until_asleep(victim);
      board->killed_ns.store(now_ns(), std::memory_order_relaxed);
      (void)::kill(victim, SIGKILL);
    });
    wait(victim);
    const std::int64_t known_ns = now_ns();
    us = static_cast<double>(known_ns - board->killed_ns.load(std::memory_order_relaxed)) / 1e3;
  }
  (void)::waitpid(victim, nullptr, 0);
  return us;
}

double end_of_owner(std::uint64_t bytes) {
  const std::string path = fmt::format("/tmp/feedlane-bench-{}", ::getpid());
  const double us = time_of_end(
      [&](std::atomic<bool>& is_ready) {
        feedlane::Arena arena({.bytes = 2 * bytes, .path = path});
        const feedlane_field field = bytes_field(entry_bytes - 4096);
        for (std::uint64_t i = 0; i < bytes / entry_bytes; i++) {
          const std::string key = std::to_string(i);
          feedlane_put what;
          feedlane_init(&what, sizeof what);
          what.key = key.data(), what.key_bytes = key.size(), what.fields = &field, what.field_count = 1;
          feedlane_batch batch;
          feedlane_init(&batch, sizeof batch);
          feedlane_error error;
          feedlane_init(&error, sizeof error);
          check("feedlane_arena_reserve", feedlane_arena_reserve(arena.c(), &what, INT64_MAX, &batch, &error), error);
          std::memset(batch.tensors[0].data, 1, field.shape[0]);
          check("feedlane_arena_publish", feedlane_arena_publish(arena.c(), batch.token, INT64_MAX, &error), error);
        }
        is_ready.store(true, std::memory_order_release);
        arena.serve(std::chrono::nanoseconds::max());
      },
      [&](pid_t) {
        feedlane::Arena arena = feedlane::Arena::join(path);
        feedlane_batch batch;
        feedlane_init(&batch, sizeof batch);
        if (const std::int32_t s = feedlane_arena_get(arena.c(), "none", 4, 0, INT64_MAX, &batch, nullptr);
            s != FEEDLANE_E_PEER_DEAD)
          fail(fmt::format("a get returned {} after the owner's end", s));
      });
  (void)::unlink(path.c_str());
  return us;
}

double end_of_process(std::uint64_t bytes) {
  return time_of_end(
      [=](std::atomic<bool>& is_ready) {
        std::memset(shared_memory(bytes), 1, bytes);
        is_ready.store(true, std::memory_order_release);
        for (;;) (void)::pause();
      },
      [](pid_t victim) {
        pollfd entry{static_cast<int>(::syscall(SYS_pidfd_open, victim, 0)), POLLIN, 0};
        if (entry.fd < 0 || ::poll(&entry, 1, -1) != 1) fail("cannot poll a pidfd");
        (void)::close(entry.fd);
      });
}

}  // namespace

void arena_end(const Options& options, Report& report) {
  if (!options.json)
    fmt::print("{:>8} {:>28} {:>28} {:>26}\n", "memory", "owner's end to its member, us", "a process's to a poll, us",
               "over it");
  for (const std::uint64_t bytes : {mib, 256 * mib}) {
    Figure owner, process;
    alternate(2, options, [&](std::size_t i, bool counts) {
      const double us = i == 0 ? end_of_owner(bytes) : end_of_process(bytes);
      if (counts) (i == 0 ? owner : process).add(us);
    });
    const Figure over = owner.over(process);
    if (!options.json)
      fmt::print("{:>4} MiB {:>28} {:>28} {:>26}\n", bytes / mib, cell(owner), cell(process), cell(over));
    report.ratio(fmt::format("arena.{}.end_over_poll", bytes), over);
    report.rows.push_back({{"ended_bytes", bytes},
                           {"owner_end_us", spread(owner)},
                           {"process_end_us", spread(process)},
                           {"ratio", spread(over)}});
  }
}

}  // namespace bench
