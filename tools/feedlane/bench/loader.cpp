// SPDX-License-Identifier: Apache-2.0
// loader: a whole epoch as trainers have it, samples in random order collated into batches, beside as many processes that make
// the same batches in loops; and what a batch costs where workers outnumber processors, beside bare eventfds.
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "batches.hpp"
#include "bench.hpp"

namespace bench {

namespace {

constexpr std::int64_t batch_rows = 64;

// ---- samples ----

// Sample i: its bytes lie in memory already, as a data set that fits there has them.
struct Samples {
  std::uint64_t bytes;
  std::vector<unsigned char> memory;
  [[nodiscard]] const unsigned char* at(std::int64_t i) const {
    return memory.data() + static_cast<std::uint64_t>(i) % (memory.size() / bytes) * bytes;
  }
};
constexpr std::uint64_t resident_bytes = 64 << 20;

std::int32_t open_samples(void* user_data, const feedlane_worker_info* info, void** state, feedlane_error*) {
  if (info->id >= 0) pin(1 + static_cast<std::size_t>(info->id));
  *state = user_data;
  return FEEDLANE_OK;
}

std::int32_t get_sample(void* self, const feedlane_row* row, feedlane_error*) {
  const auto* samples = static_cast<const Samples*>(self);
  std::memcpy(row->fields[0], samples->at(row->index), samples->bytes);
  return FEEDLANE_OK;
}

// All samples of a batch in one call.
std::int32_t fetch_samples(void* self, const feedlane_task* task, feedlane_error*) {
  const auto* samples = static_cast<const Samples*>(self);
  auto* row = static_cast<unsigned char*>(task->tensors[0].data);
  for (std::uint64_t i = 0; i < task->count; i++, row += samples->bytes)
    std::memcpy(row, samples->at(task->indices[i]), samples->bytes);
  return FEEDLANE_OK;
}

enum class By : std::uint8_t { get, fetch };

class SampleEpochs : public Epochs {
 public:
  SampleEpochs(Samples& samples, By by, std::int32_t workers, std::int64_t count) {
    feedlane_error error;
    feedlane_init(&error, sizeof error);
    feedlane_random_config random;
    feedlane_init(&random, sizeof random);
    random.length = count;
    feedlane_sampler* order = nullptr;
    check("feedlane_sampler_random", feedlane_sampler_random(&random, &order, &error), error);
    const feedlane_field field = bytes_field(samples.bytes);
    feedlane_dataset data;
    feedlane_init(&data, sizeof data);
    data.user_data = &samples;
    data.open = open_samples;
    if (by == By::get) data.get = get_sample;
    else data.fetch = fetch_samples;
    feedlane_loader_config c;
    feedlane_init(&c, sizeof c);
    c.sampler = order;
    c.dataset = &data;
    c.fields = &field;
    c.field_count = 1;
    c.batch_size = batch_rows;
    c.drop_last = 1;
    c.workers = workers;
    if (workers != 0) {
      c.start = FEEDLANE_START_FORK;
      c.prefetch_factor = 4;
      c.keep_workers = 1;
    }
    open(c);
    (void)feedlane_sampler_destroy(&order);
  }
};

// What anybody would write: a permutation, and each batch collated into the same memory. By the `part`-th of `parts`.
std::int64_t loop(const Samples& samples, std::int64_t count, std::size_t part, std::size_t parts,
                  const std::function<void()>& ready) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < order.size(); i++) order[i] = static_cast<std::int64_t>(i);
  std::uint64_t seed = 1;
  for (std::size_t i = order.size(); i > 1; i--) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    std::swap(order[i - 1], order[(seed >> 33) % i]);
  }
  std::vector<unsigned char> batch(samples.bytes * batch_rows);
  ready();
  const std::int64_t began = now_ns();
  for (std::size_t i = part * batch_rows; i + batch_rows <= order.size(); i += parts * batch_rows) {
    for (std::size_t row = 0; row < batch_rows; row++)
      std::memcpy(batch.data() + row * samples.bytes, samples.at(order[i + row]), samples.bytes);
    touch(batch.data(), batch.size());
  }
  return now_ns() - began;
}

// Samples a second by so many processes, each where a worker is; 0: by this one.
double loops(const Samples& samples, std::int64_t count, std::int32_t processes) {
  const auto rate = [&](std::int64_t ns) {
    return static_cast<double>(count / batch_rows * batch_rows) * 1e9 / static_cast<double>(ns);
  };
  if (processes == 0) return rate(loop(samples, count, 0, 1, [] {}));
  const auto parts = static_cast<std::size_t>(processes);
  Gate gate;
  auto* longest = make_shared_object<std::atomic<std::int64_t>>();
  {
    std::vector<std::unique_ptr<Child>> children;
    for (std::size_t part = 0; part < parts; part++)
      children.push_back(std::make_unique<Child>(1 + part, [&, part] {
        const std::int64_t ns = loop(samples, count, part, parts, [&] { gate.pass(parts); });
        std::int64_t seen = longest->load(std::memory_order_relaxed);  // the process's end orders it
        while (seen < ns && !longest->compare_exchange_weak(seen, ns, std::memory_order_relaxed)) continue;
      }));
  }
  return rate(longest->load(std::memory_order_relaxed));
}

// ---- more workers than processors ----

// Microseconds a hand-over: so many processes that each wait for an eventfd and write another one, two of them always on
// the way to each.
double eventfd_us(std::int32_t processes, std::int64_t count) {
  std::vector<int> there, back;
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::int32_t i = 0; i < processes; i++) {
    there.push_back(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
    back.push_back(::eventfd(0, EFD_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<std::uint32_t>(i)}};
    if (::epoll_ctl(set, EPOLL_CTL_ADD, back.back(), &event) != 0) fail("epoll_ctl was refused");
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
    const char* const name = by == By::get ? "get" : "fetch";
    if (!options.json)
      fmt::print("{:>12} {:>6} {:>8} {:>34} {:>34} {:>30}\n", bytes, name, workers, cell(ours), cell(bare),
                 cell(ratio));
    report.ratio(fmt::format("loader.{}.{}.{}over_loops", bytes, workers, by == By::get ? "" : "fetch_"), ratio);
    report.rows.push_back({{"sample_bytes", bytes},
                           {"by", name},
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
    samples.push_back(std::make_unique<Samples>());
    Samples& of_size = *samples.back();
    of_size.bytes = bytes;
    of_size.memory.assign((options.tiny ? 1 << 20 : resident_bytes) / bytes * bytes, 1);
    const auto size = static_cast<std::int64_t>(bytes);
    const std::int64_t count = options.count((1LL << 30) / size, (200LL << 20) / size, 4 * batch_rows);
    const auto add = [&](By by, std::int32_t workers) {
      cases.push_back(
          {bytes, by, workers, std::make_unique<SampleEpochs>(of_size, by, workers, count), entries.size()});
      SampleEpochs* epochs = cases.back().epochs.get();
      entries.push_back({"loops", [&of_size, count, workers] { return loops(of_size, count, workers); }});
      entries.push_back({"feedlane", [epochs] { return static_cast<double>(batch_rows) * epochs->epoch(); }});
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

}  // namespace bench
