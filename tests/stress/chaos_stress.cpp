// SPDX-License-Identifier: Apache-2.0
// 7. Faults: eight workers are killed, stopped and woken at random, samples dawdle and fail: every batch comes once, in order,
// with the right bytes; and nothing grows.
#include <sys/wait.h>

#include <algorithm>

#include "chaos.hpp"
#include "footprint.hpp"

int main() {
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) {
    const feedlane_dataset d = chaos::dataset();
    return feedlane_worker_run(fd, &d, nullptr) == FEEDLANE_OK ? 0 : 1;
  }
  const auto seconds = static_cast<std::int64_t>(stress::length(30, 180));
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_loader* loader = chaos::create(nullptr, 0);
  const std::int64_t end = chaos::now_ns() + seconds * 1'000'000'000;
  std::uint64_t kills = 0, stops = 0, batches = 0;
  std::int64_t longest = 0;
  stress::Footprint first;
  {
    chaos::Disturber disturber(loader, static_cast<std::uint64_t>(chaos::now_ns()));
    bool has_first = false;
    for (std::int64_t epoch = 0; chaos::now_ns() < end; epoch++) {
      if (feedlane_loader_begin(loader, epoch, &e) != FEEDLANE_OK) chaos::die("begin", e);
      for (std::int64_t i = 0; chaos::now_ns() < end; i++, batches++) {
        feedlane_batch batch;
        feedlane_init(&batch, sizeof batch);
        const std::int64_t before = chaos::now_ns();
        const std::int32_t s = feedlane_loader_next(loader, chaos::patience_ns, &batch, &e);
        if (s == FEEDLANE_END && i == chaos::samples / chaos::batch_size) break;
        if (s != FEEDLANE_OK) {
          std::fprintf(stderr, "next: %s\n", feedlane_status_name(s));
          chaos::die("next", e);
        }
        longest = std::max(longest, chaos::now_ns() - before);
        if (batch.batch != i)
          stress::die("batch", static_cast<std::uint64_t>(batch.batch), static_cast<std::uint64_t>(i));
        chaos::check(batch, epoch);
        if (feedlane_batch_release(loader, batch.token) != FEEDLANE_OK) stress::die("release", 1, 0);
        feedlane_event event;
        feedlane_init(&event, sizeof event);
        while (feedlane_loader_event(loader, &event) == FEEDLANE_OK) continue;
        if (!has_first && disturber.kills() > 50) {
          first = stress::footprint();
          has_first = true;
        }
      }
    }
    kills = disturber.kills();
    stops = disturber.stops();
  }
  const stress::Footprint last = stress::footprint();
  // A worker may just be between two generations: descriptors of one more or less.
  stress::check_growth(first, last, {.resident_kib = 2048, .descriptors = 2 * chaos::workers, .mappings = 0});
  feedlane_stats stats;
  feedlane_init(&stats, sizeof stats);
  (void)feedlane_loader_get_stats(loader, &stats);
  if (feedlane_loader_destroy(&loader) != FEEDLANE_OK) stress::die("destroy", 1, 0);
  if (::waitpid(-1, nullptr, WNOHANG) != -1) stress::die("children left", 1, 0);
  std::printf(
      "%lld s: %llu batches, each once, in order, whole; %llu kills, %llu stops, %llu hung, %llu restarts, "
      "%llu sent again, %llu retried; longest wait %.0f ms; resident %llu -> %llu KiB\n",
      static_cast<long long>(seconds), static_cast<unsigned long long>(batches), static_cast<unsigned long long>(kills),
      static_cast<unsigned long long>(stops), static_cast<unsigned long long>(stats.hung),
      static_cast<unsigned long long>(stats.restarts), static_cast<unsigned long long>(stats.redispatched),
      static_cast<unsigned long long>(stats.retried), static_cast<double>(longest) / 1e6,
      static_cast<unsigned long long>(first.resident_kib), static_cast<unsigned long long>(last.resident_kib));
  return 0;
}
