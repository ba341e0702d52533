// SPDX-License-Identifier: Apache-2.0
// MADV_POPULATE_WRITE in several threads, piece by piece.
#include "os/populate.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <system_error>
#include <thread>

#include "os/signals.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace feedlane::os {
namespace {

// Size of a piece. Clearing it takes some milliseconds, which is worth starting a thread for. It isn't larger because a
// pending signal waits until a call has ended.
constexpr std::uint64_t worth_a_thread = std::uint64_t{16} << 20;
constexpr std::uint64_t most_threads = 8;

}  // namespace

void populate(void* mapping, const std::vector<Stretch>& stretches, std::uint64_t unit, const SystemFiles& files) {
  const std::uint64_t step = std::max<std::uint64_t>(1, worth_a_thread / unit) * unit;
  std::vector<Stretch> pieces;
  std::uint64_t bytes = 0;
  for (const Stretch& s : stretches) {
    const std::uint64_t end = (s.offset + s.bytes + unit - 1) / unit * unit;
    bytes += s.bytes;
    for (std::uint64_t at = s.offset / unit * unit; at < end; at += step)
      pieces.push_back({at, std::min(step, end - at)});
  }
  std::atomic<std::size_t> next{0};
  const auto fill = [&] {
    // Relaxed: each piece is taken once, and join orders the threads' writes.
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces.size();)
      (void)::madvise(static_cast<std::byte*>(mapping) + pieces[i].offset, pieces[i].bytes, MADV_POPULATE_WRITE);
  };
  const std::uint64_t most = std::min(most_threads, static_cast<std::uint64_t>(usable_cpus(files)));
  const std::uint64_t threads = std::clamp<std::uint64_t>(bytes / worth_a_thread, 1, most);
  std::vector<std::thread> others;
  {
    const SignalBlock block;  // the threads inherit it, so signals go to the host's threads
    try {
      others.reserve(threads);
      for (std::uint64_t i = 1; i < threads; i++) others.emplace_back(fill);
    } catch (const std::system_error&) {  // no further thread can start: the existing ones do the work
    } catch (const std::bad_alloc&) {
    }
  }
  fill();
  for (std::thread& t : others) t.join();
}

}  // namespace feedlane::os
