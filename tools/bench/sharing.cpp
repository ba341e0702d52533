// SPDX-License-Identifier: Apache-2.0
// sharing: one loader for several consumers, beside as many loaders with the same data set. The data set generates its
// bytes, as decoding does. What counts: batches a second at every consumer, and the CPU time of feeder, workers and
// consumers a batch.
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <memory>

#include "batches.hpp"
#include "compare.hpp"

namespace compare {

using namespace bench;

namespace {

// A sample is generated word by word: about what it costs to decode one.
struct Work {
  std::uint64_t bytes;
};

std::int32_t open_work(void* user_data, const feedlane_worker_info*, void** self, feedlane_error*) {
  *self = user_data;
  return FEEDLANE_OK;
}

std::int32_t generate(void* self, const feedlane_row* row, feedlane_error*) {
  auto* const words = static_cast<std::uint64_t*>(row->fields[0]);
  std::uint64_t x = static_cast<std::uint64_t>(row->index) + 1;
  for (std::uint64_t i = 0; i < static_cast<const Work*>(self)->bytes / sizeof x; i++) {
    for (int round = 0; round < 4; round++) {
      x ^= x >> 30;
      x *= 0xbf58476d1ce4e5b9U;
      x ^= x >> 27;
    }
    words[i] = x;
  }
  return FEEDLANE_OK;
}

struct Scene {
  Work work;
  std::int64_t batches;
  std::int32_t consumers;
};

// One process's account of an epoch.
struct Account {
  std::int64_t wall_ns;     // from its first batch on, or of the epoch
  std::int64_t own_ns;      // CPU of the process itself
  std::int64_t workers_ns;  // CPU of its workers
};

std::int64_t cpu_of(int who) {
  rusage usage{};
  (void)::getrusage(who, &usage);
  const auto ns = [](const timeval& t) { return (std::int64_t{t.tv_sec} * 1'000'000 + t.tv_usec) * 1000; };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

feedlane_loader* create(const Scene& scene, std::int32_t share, const char* path) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_sampler* order = sequential(scene.batches);
  const feedlane_field field = bytes_field(scene.work.bytes);
  feedlane_dataset data;
  feedlane_init(&data, sizeof data);
  data.user_data = const_cast<Work*>(&scene.work);
  data.open = open_work;
  data.get = generate;
  feedlane_loader_config c;
  feedlane_init(&c, sizeof c);
  c.sampler = order;
  c.dataset = &data;
  c.fields = &field;
  c.field_count = 1;
  c.batch_size = 1;
  c.workers = 1;
  c.prefetch_factor = 4;
  c.start = FEEDLANE_START_FORK;
  c.share = share;
  c.consumers = share == FEEDLANE_SHARE_NONE ? 0 : scene.consumers;
  c.share_path = path;
  feedlane_loader* loader = nullptr;
  check("feedlane_loader_create", feedlane_loader_create(&c, &loader, &error), error);
  (void)feedlane_sampler_destroy(&order);
  return loader;
}

// Takes an epoch, every page of every batch touched.
void take_epoch(feedlane_loader* loader, Account& account) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  check("feedlane_loader_begin", feedlane_loader_begin(loader, 0, &error), error);
  std::int64_t began = 0, cpu = 0;
  for (;;) {
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    const std::int32_t s = feedlane_loader_next(loader, FEEDLANE_FOREVER, &batch, &error);
    if (s == FEEDLANE_END) break;
    check("feedlane_loader_next", s, error);
    if (began == 0) {
      began = now_ns();
      cpu = cpu_of(RUSAGE_SELF);
    }
    touch(batch.tensors[0].data, batch.tensors[0].bytes);
    (void)feedlane_batch_release(loader, batch.token);
  }
  account.wall_ns = now_ns() - began;
  account.own_ns = cpu_of(RUSAGE_SELF) - cpu;
}

void serve(feedlane_loader* feeder) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  const std::int32_t s = feedlane_loader_serve(feeder, FEEDLANE_FOREVER, &error);
  if (s != FEEDLANE_END) check("feedlane_loader_serve", s, error);
}

void feed(const Scene& scene, const char* path, Account& account) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_loader* feeder = create(scene, FEEDLANE_SHARE_EVERY, path);
  serve(feeder);  // until all have joined
  const std::int64_t cpu = cpu_of(RUSAGE_SELF), began = now_ns();
  check("feedlane_loader_begin", feedlane_loader_begin(feeder, 0, &error), error);
  serve(feeder);
  account.wall_ns = now_ns() - began;
  account.own_ns = cpu_of(RUSAGE_SELF) - cpu;
  serve(feeder);  // until all have left
  (void)feedlane_loader_destroy(&feeder);
  account.workers_ns = cpu_of(RUSAGE_CHILDREN);
}

void consume(const char* path, Account& account) {
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  feedlane_loader* loader = nullptr;
  const timespec nap{0, 1'000'000};
  std::int32_t s = FEEDLANE_E_PEER_DEAD;
  while (s == FEEDLANE_E_PEER_DEAD) {  // until the feeder listens
    s = feedlane_loader_join(-1, path, nullptr, FEEDLANE_FOREVER, &loader, &error);
    if (s == FEEDLANE_E_PEER_DEAD) (void)::nanosleep(&nap, nullptr);
  }
  check("feedlane_loader_join", s, error);
  take_epoch(loader, account);
  (void)feedlane_loader_destroy(&loader);
}

// What a batch costs, over all processes; and what each consumer got.
struct Outcome {
  double rate;         // batches a second at the slowest consumer
  double feeder_us;    // of feeder and workers, a batch; separate: of all workers, a batch that one consumer took
  double consumer_us;  // of a consumer, a batch
};

Outcome outcome_of(const Scene& scene, const Account* accounts, std::int64_t making_ns) {
  std::int64_t longest = 0, own = 0;
  for (std::int32_t i = 0; i < scene.consumers; i++) {
    longest = std::max(longest, accounts[i].wall_ns);
    own += accounts[i].own_ns;
  }
  const auto batches = static_cast<double>(scene.batches);
  return {(batches - 1) * 1e9 / static_cast<double>(longest), static_cast<double>(making_ns) / 1e3 / batches,
          static_cast<double>(own) / 1e3 / batches / scene.consumers};
}

Outcome shared(const Scene& scene) {
  auto* accounts =
      static_cast<Account*>(shared_memory(sizeof(Account) * (static_cast<std::size_t>(scene.consumers) + 1)));
  Account& feeder = accounts[scene.consumers];
  const std::string path = fmt::format("/tmp/feedlane-bench-{}-{}", ::getpid(), scene.consumers);
  {
    std::vector<std::unique_ptr<Child>> children;
    children.push_back(std::make_unique<Child>(0, [&] { feed(scene, path.c_str(), feeder); }));
    for (std::int32_t i = 0; i < scene.consumers; i++)
      children.push_back(std::make_unique<Child>(0, [&, i] { consume(path.c_str(), accounts[i]); }));
  }
  return outcome_of(scene, accounts, feeder.own_ns + feeder.workers_ns);
}

Outcome separate(const Scene& scene) {
  auto* accounts = static_cast<Account*>(shared_memory(sizeof(Account) * static_cast<std::size_t>(scene.consumers)));
  {
    std::vector<std::unique_ptr<Child>> children;
    for (std::int32_t i = 0; i < scene.consumers; i++)
      children.push_back(std::make_unique<Child>(0, [&, i] {
        feedlane_loader* loader = create(scene, FEEDLANE_SHARE_NONE, nullptr);
        take_epoch(loader, accounts[i]);
        (void)feedlane_loader_destroy(&loader);
        accounts[i].workers_ns = cpu_of(RUSAGE_CHILDREN);
      }));
  }
  std::int64_t making = 0;
  for (std::int32_t i = 0; i < scene.consumers; i++) making += accounts[i].workers_ns;
  return outcome_of(scene, accounts, making);
}

struct Row {
  Scene scene;
  Figure rate = {}, feeder_us = {}, consumer_us = {}, rate_apart = {}, feeder_us_apart = {};
};

}  // namespace

Report sharing(const Options& options) {
  leave_placement_alone();  // there are more processes than processors
  Report report;
  const std::vector<std::uint64_t> sizes =
      options.bytes.empty() ? std::vector<std::uint64_t>{4096, 256 << 10, 1 << 20} : options.bytes;
  if (!options.json)
    fmt::print("{:>8} {:>9} {:>28} {:>24} {:>28} {:>24} {:>24}\n", "bytes", "consumers", "batches/s at the slowest",
               "feeder + worker, us", "over separate loaders", "their workers, us", "a consumer, us");
  for (const std::uint64_t bytes : sizes) {
    const std::int64_t batches = options.count((std::int64_t{256} << 20) / static_cast<std::int64_t>(bytes), 1000, 20);
    std::vector<Row> rows;
    for (const std::int32_t n : options.workers.empty() ? std::vector<std::int32_t>{1, 2, 4, 8} : options.workers)
      rows.push_back({Scene{{bytes}, std::min<std::int64_t>(batches, 20'000), n}});
    for (int round = -1; round < options.rounds; round++)
      for (Row& row : rows) {
        const Outcome together = shared(row.scene), apart = separate(row.scene);
        if (round < 0) continue;
        row.rate.add(together.rate);
        row.feeder_us.add(together.feeder_us);
        row.consumer_us.add(together.consumer_us);
        row.rate_apart.add(apart.rate);
        row.feeder_us_apart.add(apart.feeder_us);
      }
    for (const Row& row : rows) {
      if (!options.json)
        fmt::print("{:>8} {:>9} {:>28} {:>24} {:>28} {:>24} {:>24}\n", bytes, row.scene.consumers, cell(row.rate),
                   cell(row.feeder_us), cell(row.rate_apart), cell(row.feeder_us_apart), cell(row.consumer_us));
      const std::string name = fmt::format("sharing.{}.{}", bytes, row.scene.consumers);
      report.ratio(name + ".cpu_over_one", row.feeder_us.over(rows[0].feeder_us));
      report.ratio(name + ".rate_over_one", row.rate.over(rows[0].rate));
      report.ratio(name + ".rate_over_separate", row.rate.over(row.rate_apart));
      report.ratio(name + ".cpu_over_separate", row.feeder_us.over(row.feeder_us_apart));
      report.rows.push_back({{"bytes", bytes},
                             {"consumers", row.scene.consumers},
                             {"batches_per_s", spread(row.rate)},
                             {"feeder_and_worker_us", spread(row.feeder_us)},
                             {"consumer_us", spread(row.consumer_us)},
                             {"separate_batches_per_s", spread(row.rate_apart)},
                             {"separate_workers_us", spread(row.feeder_us_apart)}});
    }
  }
  return report;
}

}  // namespace compare
