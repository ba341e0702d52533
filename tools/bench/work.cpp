// SPDX-License-Identifier: Apache-2.0
// work: batches that take 0, 20, 200 and 2,000 us of processor time, with up to 32 workers, compared with as many
// processes that do the same work and hand nothing over.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "batches.hpp"
#include "compare.hpp"

namespace compare {

using namespace bench;

namespace {

constexpr std::uint64_t bytes = 4096;

// Takes so much processor time.
void work(std::int64_t ns) {
  if (ns == 0) return;
  const std::int64_t end = cpu_ns() + ns;
  while (cpu_ns() < end) continue;
}

std::int32_t open_work(void*, const feedlane_worker_info* info, void** state, feedlane_error*) {
  std::int64_t ns = 0;
  if (info->config_bytes != sizeof ns) return FEEDLANE_E_ARGUMENT;
  std::memcpy(&ns, info->config, sizeof ns);
  *state = new std::int64_t(ns);
  return FEEDLANE_OK;
}
std::int32_t fetch_work(void* state, const feedlane_task* task, feedlane_error*) {
  work(*static_cast<std::int64_t*>(state));
  std::memset(task->tensors[0].data, 1, bytes);
  return FEEDLANE_OK;
}
void close_work(void* state) { delete static_cast<std::int64_t*>(state); }

// A loader whose batches take so much work. Workers run where the system puts them.
class Working : public Epochs {
 public:
  Working(std::int64_t work_ns, std::int32_t workers, std::int64_t batches, std::int64_t trainer_ns)
      : workers_(workers), trainer_ns_(trainer_ns) {
    feedlane_sampler* order = sequential(batches);
    const feedlane_field field = bytes_field(bytes);
    feedlane_dataset data;
    feedlane_init(&data, sizeof data);
    data.open = open_work;
    data.fetch = fetch_work;
    data.close = close_work;
    feedlane_loader_config c;
    feedlane_init(&c, sizeof c);
    c.sampler = order;
    c.fields = &field;
    c.field_count = 1;
    c.batch_size = FEEDLANE_UNBATCHED;
    c.workers = workers;
    c.start = FEEDLANE_START_FORK;
    c.dataset = &data;
    c.worker_config = &work_ns;
    c.worker_config_bytes = sizeof work_ns;
    c.keep_workers = 1;
    open(c);
    (void)feedlane_sampler_destroy(&order);
    (void)epoch();
  }

  struct Run {
    double rate, cpu_us, switches;  // batches a second; processor time and voluntary switches of all, for each batch
  };
  Run run() {
    begin();
    (void)take();
    const Spent before = spent();
    const std::int64_t began = now_ns();
    double count = 0;
    for (; take(); count++) work(trainer_ns_);
    const std::int64_t ns = now_ns() - began;
    const Spent after = spent();
    return {count * 1e9 / static_cast<double>(ns), static_cast<double>(after.cpu_ns - before.cpu_ns) / 1e3 / count,
            static_cast<double>(after.switches - before.switches) / count};
  }

 private:
  struct Spent {
    std::int64_t cpu_ns, switches;
  };
  [[nodiscard]] Spent spent() const {
    rusage own{};
    (void)::getrusage(RUSAGE_SELF, &own);
    Spent all{process_cpu_ns(0), own.ru_nvcsw};
    feedlane_error error;
    feedlane_init(&error, sizeof error);
    feedlane_monitor* monitor = nullptr;
    check("feedlane_monitor_of", feedlane_monitor_of(loader(), &monitor, &error), error);
    feedlane_worker_stats worker;
    feedlane_init(&worker, sizeof worker);
    for (std::int32_t i = 0; i < workers_; i++) {
      if (feedlane_monitor_get_worker_stats(monitor, i, &worker) != FEEDLANE_OK) fail("a worker has no figures");
      all.cpu_ns += process_cpu_ns(static_cast<pid_t>(worker.pid));
      all.switches += switches_of(static_cast<pid_t>(worker.pid));
    }
    (void)feedlane_monitor_destroy(&monitor);
    return all;
  }
  // 0: this process.
  static std::int64_t process_cpu_ns(pid_t pid) {
    clockid_t clock = 0;
    timespec t{};
    if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &t) != 0) fail("a worker has no clock");
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
  }
  static std::int64_t switches_of(pid_t pid) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(fmt::format("/proc/{}/status", pid).c_str(), "re"),
                                                         std::fclose);
    char line[256];
    long found = -1;
    while (file != nullptr && found < 0 && std::fgets(line, sizeof line, file.get()) != nullptr)
      (void)std::sscanf(line, "voluntary_ctxt_switches: %ld", &found);
    return found;
  }

  std::int32_t workers_;
  std::int64_t trainer_ns_;
};

// Batches a second of `workers` processes that make them for nobody.
double for_nobody(std::int64_t work_ns, std::int32_t workers, std::int64_t batches) {
  const auto each = std::max<std::int64_t>(batches / workers, 1);
  Gate gate;
  auto* longest = make_shared_object<std::atomic<std::int64_t>>();
  {
    std::vector<std::unique_ptr<Child>> children;
    for (std::int32_t i = 0; i < workers; i++)
      children.push_back(std::make_unique<Child>(static_cast<std::size_t>(i), [&] {
        std::array<unsigned char, bytes> batch;
        gate.pass(static_cast<std::uint64_t>(workers));
        const std::int64_t began = now_ns();
        for (std::int64_t k = 0; k < each; k++) {
          work(work_ns);
          batch.fill(1);
          touch(batch.data(), bytes);
        }
        const std::int64_t ns = now_ns() - began;
        std::int64_t seen = longest->load(std::memory_order_relaxed);  // the process's end orders it
        while (seen < ns && !longest->compare_exchange_weak(seen, ns, std::memory_order_relaxed)) continue;
      }));
  }
  return static_cast<double>(each * workers) * 1e9 / static_cast<double>(longest->load(std::memory_order_relaxed));
}

struct Case {
  std::int64_t work_us;
  std::int32_t workers;
  std::unique_ptr<Working> loader;
  Working::Run newest;
  std::size_t entry;
};

}  // namespace

Report work(const Options& options) {
  unpin();
  std::vector<std::unique_ptr<Case>> cases;
  std::vector<Entry> entries;
  const auto times = options.work_us.empty() ? std::vector<std::int64_t>{0, 20, 200, 2'000} : options.work_us;
  const auto counts = options.workers.empty() ? std::vector<std::int32_t>{1, 2, 4, 8, 32} : options.workers;
  for (const std::int64_t work_us : times)
    for (const std::int32_t workers : counts) {
      // What is in flight as the clock starts is not to count for much.
      const std::int64_t usual = work_us == 0 ? 200'000 : std::max<std::int64_t>(800'000 / work_us, 32 * workers);
      const std::int64_t batches = options.count(usual, std::max<std::int64_t>(usual / 2, 32 * workers), 8 * workers);
      auto loader = std::make_unique<Working>(work_us * 1000, workers, batches, options.trainer_us * 1000);
      cases.push_back(std::make_unique<Case>(Case{work_us, workers, std::move(loader), {}, entries.size()}));
      Case* const c = cases.back().get();
      entries.push_back({"bare", [=] { return for_nobody(work_us * 1000, workers, batches); }});
      entries.push_back({"rate", [=] { return (c->newest = c->loader->run()).rate; }});
      entries.push_back({"cpu", [=] { return c->newest.cpu_us; }});
      entries.push_back({"switches", [=] { return c->newest.switches; }});
    }
  run_rounds(entries, options);

  if (!options.json)
    fmt::print("{:>8} {:>8} {:>34} {:>30} {:>12} {:>12}\n", "work us", "workers", "batches/s", "over bare processes",
               "CPU beyond", "sleeps");
  Report report;
  for (const auto& c : cases) {
    const Figure& rate = entries[c->entry + 1].figure;
    const Figure ratio = rate.over(entries[c->entry].figure);
    const double beyond = entries[c->entry + 2].figure.median() - static_cast<double>(c->work_us + options.trainer_us);
    const double switches = entries[c->entry + 3].figure.median();
    if (!options.json)
      fmt::print("{:>8} {:>8} {:>34} {:>30} {:>12.2f} {:>12.3f}\n", c->work_us, c->workers, cell(rate), cell(ratio),
                 beyond, switches);
    report.ratio(fmt::format("work.{}.{}.over_bare", c->work_us, c->workers), ratio);
    report.rows.push_back({{"work_us", c->work_us},
                           {"trainer_us", options.trainer_us},
                           {"workers", c->workers},
                           {"batches_s", spread(rate)},
                           {"ratio", spread(ratio)},
                           {"cpu_beyond_us", rounded(beyond)},
                           {"switches", rounded(switches)}});
  }
  return report;
}

}  // namespace compare
