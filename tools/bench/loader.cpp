// SPDX-License-Identifier: Apache-2.0
// loader: a whole epoch as trainers have it, samples in random order collated into batches, beside as many processes
// that make the same batches in loops; and what a batch costs where workers outnumber processors, beside bare eventfds.
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "compare.hpp"
#include "samples.hpp"

namespace compare {

using namespace bench;

namespace {

constexpr std::int64_t batch_rows = 64;
constexpr std::uint64_t resident_bytes = 64 << 20;

// Samples a second by so many processes, each where a worker is; 0: by this one.
double loops(const Samples& samples, std::int64_t count, std::int32_t processes) {
  const auto rate = [&](std::int64_t ns) {
    return static_cast<double>(count / batch_rows * batch_rows) * 1e9 / static_cast<double>(ns);
  };
  if (processes == 0) return rate(loop_over(samples, count, batch_rows, 0, 1, [] {}));
  const auto parts = static_cast<std::size_t>(processes);
  Gate gate;
  auto* longest = make_shared_object<std::atomic<std::int64_t>>();
  {
    std::vector<std::unique_ptr<Child>> children;
    for (std::size_t part = 0; part < parts; part++)
      children.push_back(std::make_unique<Child>(1 + part, [&, part] {
        const std::int64_t ns = loop_over(samples, count, batch_rows, part, parts, [&] { gate.pass(parts); });
        std::int64_t seen = longest->load(std::memory_order_relaxed);  // the process's end orders it
        while (seen < ns && !longest->compare_exchange_weak(seen, ns, std::memory_order_relaxed)) continue;
      }));
  }
  return rate(longest->load(std::memory_order_relaxed));
}

// ---- more workers than processors ----

// Microseconds a hand-over: so many processes that each wait for an eventfd and write another one, two of them always
// on the way to each.
double eventfd_us(std::int32_t processes, std::int64_t count) {
  std::vector<int> there, back;
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::int32_t i = 0; i < processes; i++) {
    there.push_back(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
    back.push_back(::eventfd(0, EFD_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(i)}};
    if (::epoll_ctl(set, EPOLL_CTL_ADD, back.back(), &event) != 0) fail("epoll_ctl failed");
  }
  const std::int64_t each = count / processes;
  double us = 0;
  {
    std::vector<std::unique_ptr<Child>> children;
    for (std::int32_t i = 0; i < processes; i++)
      children.push_back(std::make_unique<Child>(1 + static_cast<std::size_t>(i), [&, i] {
        eventfd_t value = 0;
        for (std::int64_t k = 0; k < each; k++) {
          (void)::eventfd_read(there[static_cast<std::size_t>(i)], &value);
          (void)::eventfd_write(back[static_cast<std::size_t>(i)], 1);
        }
      }));
    std::vector<std::int64_t> asked(there.size(), std::min<std::int64_t>(2, each));
    for (std::size_t i = 0; i < there.size(); i++) (void)::eventfd_write(there[i], static_cast<eventfd_t>(asked[i]));
    const std::int64_t began = now_ns();
    for (std::int64_t done = 0; done < each * processes;) {
      epoll_event events[64];
      const int ready = ::epoll_wait(set, events, 64, -1);
      for (int e = 0; e < ready; e++) {
        const std::size_t i = events[e].data.u32;
        eventfd_t value = 0;
        (void)::eventfd_read(back[i], &value);
        done += static_cast<std::int64_t>(value);
        const std::int64_t more = std::min(static_cast<std::int64_t>(value), each - asked[i]);
        asked[i] += more;
        if (more != 0) (void)::eventfd_write(there[i], static_cast<eventfd_t>(more));
      }
    }
    us = static_cast<double>(now_ns() - began) / 1e3 / static_cast<double>(each * processes);
  }
  for (const int fd : there) (void)::close(fd);
  for (const int fd : back) (void)::close(fd);
  (void)::close(set);
  return us;
}

// A size of samples with a number of workers, beside as many loops.
struct Case {
  std::uint64_t bytes;
  By by;
  std::int32_t workers;
  std::unique_ptr<SampleEpochs> epochs;
  std::size_t entry;

  void tell(const std::vector<Entry>& entries, const Options& options, Report& report) const {
    const Figure& bare = entries[entry].figure;
    const Figure& ours = entries[entry + 1].figure;
    const Figure ratio = ours.over(bare);
    if (!options.json)
      fmt::print("{:>12} {:>6} {:>8} {:>34} {:>34} {:>30}\n", bytes, name_of(by), workers, cell(ours), cell(bare),
                 cell(ratio));
    report.ratio(fmt::format("loader.{}.{}.{}over_loops", bytes, workers, by == By::get ? "" : "fetch_"), ratio);
    report.rows.push_back({{"sample_bytes", bytes},
                           {"by", name_of(by)},
                           {"batch_size", batch_rows},
                           {"workers", workers},
                           {"samples_s", spread(ours)},
                           {"loops_samples_s", spread(bare)},
                           {"ratio", spread(ratio)}});
  }
};

}  // namespace

Report loader(const Options& options) {
  pin(0);
  const std::vector<std::uint64_t> sizes{256, 3 << 10, 147 << 10};
  std::vector<std::unique_ptr<Samples>> samples;
  std::vector<Case> cases;
  std::vector<Entry> entries;
  for (const std::uint64_t bytes : sizes) {
    samples.push_back(std::make_unique<Samples>(bytes, options.tiny ? 1 << 20 : resident_bytes));
    Samples& of_size = *samples.back();
    const auto size = static_cast<std::int64_t>(bytes);
    const std::int64_t count = options.count((1LL << 30) / size, (200LL << 20) / size, 4 * batch_rows);
    const auto add = [&](By by, std::int32_t workers) {
      cases.push_back({bytes, by, workers, std::make_unique<SampleEpochs>(of_size, by, workers, count, batch_rows),
                       entries.size()});
      SampleEpochs* epochs = cases.back().epochs.get();
      entries.push_back({"loops", [&of_size, count, workers] { return loops(of_size, count, workers); }});
      entries.push_back({"feedlane", [epochs] { return epochs->samples_per_s(); }});
    };
    for (const std::int32_t workers : {0, 1, 2}) add(By::get, workers);
    if (bytes == sizes.front())  // of larger ones a call a sample is hardly anything
      for (const std::int32_t workers : {0, 1, 2}) add(By::fetch, workers);
  }
  const std::int32_t many = 64;
  const std::int64_t batches = options.count(64'000, 6'400, 4 * many);
  Batches crowd({.bytes = 64, .workers = many, .batches = batches, .prefetch = 2});
  entries.push_back({"eventfd", [=] { return eventfd_us(many, batches); }});
  entries.push_back({"crowd", [&] { return 1e6 / crowd.epoch(); }});
  run_rounds(entries, options);

  if (!options.json)
    fmt::print("{:>12} {:>6} {:>8} {:>34} {:>34} {:>30}\n", "sample", "by", "workers", "samples/s, in batches of 64",
               "as many loops (0: one, here)", "ratio");
  Report report;
  for (const Case& c : cases) c.tell(entries, options, report);
  const Figure& eventfd = entries[entries.size() - 2].figure;
  const Figure& tiny = entries.back().figure;
  const Figure ratio = tiny.over(eventfd);
  if (!options.json)
    fmt::print("\n{} workers on {} processors: {} us for a batch of 64 bytes, {} by bare eventfds, ratio {}\n", many,
               processors().size(), cell(tiny), cell(eventfd), cell(ratio));
  report.ratio("loader.crowd_over_eventfds", ratio);
  report.rows.push_back({{"sample_bytes", 64},
                         {"batch_size", 1},
                         {"workers", many},
                         {"batch_us", spread(tiny)},
                         {"eventfd_us", spread(eventfd)},
                         {"ratio", spread(ratio)}});
  return report;
}

}  // namespace compare
