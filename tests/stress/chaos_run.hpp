// SPDX-License-Identifier: Apache-2.0
// A loader of chaos.hpp, disturbed for a while: every batch comes once, in order, with the right bytes; and nothing grows.
#pragma once

#include <algorithm>

#include "chaos.hpp"
#include "footprint.hpp"
#include "support/api.hpp"

namespace chaos {

// What happened in the run.
struct Totals {
  std::uint64_t batches = 0, kills = 0, stops = 0;
  std::int64_t longest_ns = 0;  // wait for a batch
  stress::Footprint first, last;
};

// Iterates epochs for `seconds` and checks every batch; ends the process at the first that is wrong.
inline Totals run(feedlane_loader* loader, std::int64_t seconds) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  Totals t;
  const std::int64_t end = now_ns() + seconds * 1'000'000'000;
  {
    Disturber disturber(loader, static_cast<std::uint64_t>(now_ns()));
    bool has_first = false;
    for (std::int64_t epoch = 0; now_ns() < end; epoch++) {
      if (feedlane_loader_begin(loader, epoch, &e) != FEEDLANE_OK) die("begin", e);
      for (std::int64_t i = 0; now_ns() < end; i++, t.batches++) {
        feedlane_batch batch;
        feedlane_init(&batch, sizeof batch);
        const std::int64_t before = now_ns();
        const std::int32_t s = feedlane_loader_next(loader, patience_ns, &batch, &e);
        if (s == FEEDLANE_END && i == samples / batch_size) break;
        if (s != FEEDLANE_OK) {
          std::fprintf(stderr, "next: %s\n", feedlane_status_name(s));
          die("next", e);
        }
        t.longest_ns = std::max(t.longest_ns, now_ns() - before);
        if (batch.batch != i)
          stress::die("batch", static_cast<std::uint64_t>(batch.batch), static_cast<std::uint64_t>(i));
        check(batch, epoch);
        if (feedlane_batch_release(loader, batch.token) != FEEDLANE_OK) stress::die("release", 1, 0);
        feedlane_event event;
        feedlane_init(&event, sizeof event);
        while (feedlane_loader_event(loader, &event) == FEEDLANE_OK) continue;
        if (!has_first && disturber.kills() > 50) {
          t.first = stress::footprint();
          has_first = true;
        }
      }
    }
    t.kills = disturber.kills();
    t.stops = disturber.stops();
  }
  t.last = stress::footprint();
  return t;
}

// Ends the loader and prints one line to `out`.
inline void end(feedlane_loader* loader, std::int64_t seconds, const Totals& t, std::FILE* out) {
  // A worker may just be between two generations: descriptors of one more or less.
  if (t.first.descriptors != 0)
    stress::check_growth(t.first, t.last, {.resident_kib = 2048, .descriptors = 2 * workers, .mappings = 0});
  feedlane_stats stats;
  feedlane_init(&stats, sizeof stats);
  (void)feedlane::test::observe(loader, feedlane_monitor_get_stats, &stats);
  if (feedlane_loader_destroy(&loader) != FEEDLANE_OK) stress::die("destroy", 1, 0);
  const auto number = [](auto value) { return static_cast<unsigned long long>(value); };
  std::fprintf(out,
               "%lld s: %llu batches, each once, in order, whole; %llu kills, %llu stops, %llu hung, %llu restarts, "
               "%llu sent again, %llu retried; longest wait %.0f ms; resident %llu -> %llu KiB\n",
               static_cast<long long>(seconds), number(t.batches), number(t.kills), number(t.stops), number(stats.hung),
               number(stats.restarts), number(stats.redispatched), number(stats.retried),
               static_cast<double>(t.longest_ns) / 1e6, number(t.first.resident_kib), number(t.last.resident_kib));
}

}  // namespace chaos
