// SPDX-License-Identifier: Apache-2.0
// Shared loaders: a feeder in the test's process, consumers in forked processes or in the test's own.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/over_fork.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

namespace feedlane::test::sharing {

using Epochs = std::vector<std::vector<Taken>>;

inline Setup& shared(Setup& s, std::int32_t share, std::int32_t consumers) {
  s.config.share = share;
  s.config.consumers = consumers;
  return s;
}

// What a loader of the same configuration without a share yields, errors of batches included.
inline Epochs plain_epochs(Setup& s, std::int64_t epochs) {
  const feedlane_loader_config config = s.config;
  s.config.share = FEEDLANE_SHARE_NONE;
  s.config.consumers = 0;
  s.config.share_tail = 0;
  s.config.share_path = nullptr;
  const Loader l = s.create();
  Epochs all;
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    begin(l.get(), epoch);
    all.push_back(take_outcomes(l.get()));
  }
  s.config = config;
  return all;
}

// The batches of `consumer`, where `consumers` are dealt to; without those that not every consumer gets a batch of.
inline std::vector<Taken> dealt(const std::vector<Taken>& epoch, std::size_t consumer, std::size_t consumers,
                                std::size_t from = 0) {
  std::vector<Taken> share;
  for (std::size_t k = from; k + consumers <= epoch.size(); k += consumers) share.push_back(epoch[k + consumer]);
  return share;
}

// ---- places ----

inline feedlane_consumer_config place(std::int32_t lag = FEEDLANE_LAG_BLOCK, std::int32_t id = -1,
                                      std::int64_t evict_after_ns = 0) {
  auto c = fresh<feedlane_consumer_config>();
  c.id = id;
  c.lag = lag;
  c.evict_after_ns = evict_after_ns;
  return c;
}

struct Place {
  explicit Place(feedlane_loader* feeder, const feedlane_consumer_config& config = place()) {
    Error e;
    const std::int32_t s = feedlane_loader_open_consumer(feeder, &config, &id, &fd, &e);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    if (fd >= 0) (void)::close(fd);
  }
  int release() { return std::exchange(fd, -1); }

  std::int32_t id = -1;
  std::int32_t fd = -1;
};

// A consumer in the feeder's own process.
inline Loader join(int fd) {
  feedlane_loader* l = nullptr;
  Error e;
  const std::int32_t s = feedlane_loader_join(fd, nullptr, nullptr, patience_ns, &l, &e);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
  return Loader(l);
}
inline Loader join_here(feedlane_loader* feeder, const feedlane_consumer_config& config = place()) {
  return join(Place(feeder, config).release());
}

inline feedlane_consumer_stats consumer_of(feedlane_loader* feeder, std::int32_t nth) {
  auto stats = fresh<feedlane_consumer_stats>();
  REQUIRE(feedlane_loader_get_consumer(feeder, nth, &stats) == FEEDLANE_OK);
  return stats;
}
// Those that are there, or have left and still hold batches.
inline std::int32_t count_consumers(feedlane_loader* feeder) {
  auto stats = fresh<feedlane_consumer_stats>();
  std::int32_t count = 0;
  while (feedlane_loader_get_consumer(feeder, count, &stats) == FEEDLANE_OK) count++;
  return count;
}

// ---- serving ----

inline std::int32_t serve(feedlane_loader* feeder, feedlane_error* err = nullptr) {
  return feedlane_loader_serve(feeder, patience_ns, err);
}

inline void serve_epochs(feedlane_loader* feeder, std::int64_t epochs, std::int64_t first = 0) {
  for (std::int64_t epoch = first; epoch < first + epochs; epoch++) {
    begin(feeder, epoch);
    Error e;
    const std::int32_t s = serve(feeder, &e);
    REQUIRE_MESSAGE(s == FEEDLANE_END, std::string(feedlane_status_name(s)) << ": " << std::string(e.text));
  }
}

// A thread that serves epochs while the test's thread is a consumer.
class Serving {
 public:
  explicit Serving(feedlane_loader* feeder, std::int64_t epochs = 1, std::int64_t first = 0)
      : feeder_(feeder), thread_([=, this] {
          for (std::int64_t epoch = first; epoch < first + epochs; epoch++) {
            status_ = feedlane_loader_begin(feeder, epoch, &error_);
            if (status_ == FEEDLANE_OK) status_ = serve(feeder, &error_);
            if (status_ != FEEDLANE_END) return;
          }
          (void)serve(feeder);  // consumers may ask for states
        }) {}
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() {
    if (thread_.joinable()) (void)finish();
  }
  // The last epoch's outcome. Call it after END, or the epoch is left in the middle.
  std::int32_t finish() {
    (void)feedlane_loader_interrupt(feeder_);
    thread_.join();
    return status_;
  }
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  feedlane_loader* feeder_;
  Error error_;
  std::int32_t status_ = FEEDLANE_OK;
  std::thread thread_;
};

// Polls the feeder until it has found what `holds` asks for.
inline bool poll_until(feedlane_loader* feeder, const std::function<bool()>& holds) {
  return eventually([&] {
    (void)feedlane_loader_poll(feeder, nullptr);
    return holds();
  });
}

// The consumer's next outcome, while this thread polls the feeder.
inline Taken polled(feedlane_loader* feeder, feedlane_loader* l, feedlane_error* err = nullptr) {
  Taken taken;
  REQUIRE(poll_until(feeder, [&] {
    taken = take(l, err, 0);
    return taken.status != FEEDLANE_TIMEOUT;
  }));
  return taken;
}
inline feedlane_batch polled_batch(feedlane_loader* feeder, feedlane_loader* l) {
  auto batch = fresh<feedlane_batch>();
  REQUIRE(poll_until(feeder, [&] { return feedlane_loader_next(l, 0, &batch, nullptr) != FEEDLANE_TIMEOUT; }));
  REQUIRE(batch.token != 0);
  return batch;
}

// Nothing is left of any consumer: every slot is free again.
inline void check_all_returned(feedlane_loader* feeder) {
  CHECK(poll_until(feeder, [&] {
    const feedlane_stats stats = stats_of(feeder);
    return stats.slots_held == 0 && stats.slots_free == stats.slots;
  }));
}

// ---- consumers ----

using Trainer = std::function<void(feedlane_loader* l, Findings& f)>;

// A consumer in a process of its own, which keeps no descriptor of the feeder's but those in `keep`.
class Consumer {
 public:
  Consumer(feedlane_loader* feeder, const Trainer& train, std::vector<int> keep = {},
           const feedlane_consumer_config& config = place())
      : place_(feeder, config), child_(with(std::move(keep), place_.fd), [fd = place_.fd, train](Findings& f) {
          feedlane_loader* l = nullptr;
          Error e;
          f.expect(feedlane_loader_join(fd, nullptr, nullptr, patience_ns, &l, &e) == FEEDLANE_OK, e.text, __LINE__);
          if (l == nullptr) return;
          train(l, f);
          EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
        }) {
    (void)::close(place_.release());
  }
  [[nodiscard]] std::int32_t id() const { return place_.id; }
  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  std::string finish() { return child_.finish(); }
  [[nodiscard]] int wait_status() const { return child_.wait_status(); }

 private:
  static std::vector<int> with(std::vector<int> keep, int fd) {
    keep.push_back(fd);
    return keep;
  }
  Place place_;
  Child child_;
};

// Which member differs; "" if none does.
inline std::string difference(const Taken& found, const Taken& expected) {
  if (found.status != expected.status) return "status";
  if (found.epoch != expected.epoch) return "epoch";
  if (found.batch != expected.batch) return "batch";
  if (found.count != expected.count || found.indices != expected.indices) return "indices";
  if (found.skipped != expected.skipped) return "skipped";
  if (found.names != expected.names || found.shapes != expected.shapes) return "names or shapes";
  if (found.bytes != expected.bytes) return "bytes";
  if (found.metadata != expected.metadata) return "metadata";
  return found.sample != expected.sample ? "sample" : "";
}

inline void expect_same(const std::vector<Taken>& found, const std::vector<Taken>& expected, Findings& f) {
  const std::string counts = std::to_string(found.size()) + " outcomes, not " + std::to_string(expected.size());
  f.expect(found.size() == expected.size(), counts.c_str(), __LINE__);
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); i++) {
    const std::string what = difference(found[i], expected[i]);
    f.expect(what.empty(), (what + " of outcome " + std::to_string(i) + " differs: " + found[i].text).c_str(),
             __LINE__);
  }
}

// The same in the test's process.
inline void check_same(const std::vector<Taken>& found, const std::vector<Taken>& expected) {
  Findings f;
  expect_same(found, expected, f);
  CHECK(f.text() == "");
}

inline void expect_epochs(feedlane_loader* l, const Epochs& expected, Findings& f) {
  for (std::size_t epoch = 0; epoch < expected.size(); epoch++) {
    begin(l, static_cast<std::int64_t>(epoch));
    expect_same(take_outcomes(l), expected[epoch], f);
  }
}

// Waits until the consumers have left, and collects what they found.
inline void finish(feedlane_loader* feeder, std::vector<std::unique_ptr<Consumer>>& consumers) {
  CHECK(serve(feeder) == FEEDLANE_END);
  for (const std::unique_ptr<Consumer>& c : consumers) CHECK(c->finish() == "");
  CHECK(count_consumers(feeder) == 0);
  check_all_returned(feeder);
}

// What forked consumers leave for the test.
struct Notes {
  std::atomic<std::int64_t> count{0};
  std::int64_t values[1000] = {};

  void add(std::int64_t value) { values[count.fetch_add(1, std::memory_order_relaxed)] = value; }
  [[nodiscard]] std::vector<std::int64_t> all() const {
    return {values, values + count.load(std::memory_order_relaxed)};
  }
};

// Two workers, a batch of three samples with bytes to compare.
struct Shuffled : Setup {
  explicit Shuffled(std::int64_t samples = 47, std::int64_t batch_size = 3) : Setup(samples, batch_size) {
    sampler = shuffled(samples, 7);
    fields({field("index", int64_type), field("noise", uint8_type, {300}), field("seed", uint64_type)});
    workers(2);
  }
};

}  // namespace feedlane::test::sharing
