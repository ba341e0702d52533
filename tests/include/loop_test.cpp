// SPDX-License-Identifier: Apache-2.0
// The range-for loop: what ends it and what doesn't.
#include <doctest/doctest.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <feedlane/feedlane.hpp>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using feedlane::Batch;
using feedlane::Loader;

std::atomic<int> handled{0};
std::atomic<Loader*> to_interrupt{nullptr};
std::atomic<pthread_t> trainer{};
std::atomic<pid_t> trainer_tid{0};

bool trainer_sleeps() {
  std::ifstream file("/proc/self/task/" + std::to_string(trainer_tid.load()) + "/stat");
  std::string line;
  (void)std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && line[name_end + 2] == 'S';
}

// Each sample has the trainer, which sleeps for it, handle a signal first.
struct Slow {
  explicit Slow(const feedlane::WorkerInfo&) {}
  void get(const feedlane::Row& row) {
    while (!trainer_sleeps()) std::this_thread::yield();
    const int before = handled.load();
    (void)::pthread_kill(trainer.load(), SIGUSR1);
    while (handled.load() == before) std::this_thread::yield();
    row.field<std::int64_t>(0)[0] = row.index();
  }
};

extern "C" void on_signal(int) {
  handled.fetch_add(1);
  if (Loader* const loader = to_interrupt.load(); loader != nullptr) loader->interrupt();
}

struct Handler {
  Handler() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR1, &action, &before);
    trainer.store(::pthread_self());
    trainer_tid.store(::gettid());
  }
  ~Handler() { ::sigaction(SIGUSR1, &before, nullptr); }
  struct sigaction before {};
};

struct Threaded {
  feedlane::Sampler order = feedlane::Sampler::sequential(64);
  feedlane_dataset dataset = feedlane::dataset_of<Slow>();
  Loader loader{{.sampler = &order,
                 .fields = {feedlane::field<std::int64_t>("index")},
                 .batch_size = 4,
                 .dataset = &dataset,
                 .workers = 1,
                 .start = feedlane::Start::thread,
                 .keep_workers = true}};
  std::thread worker{[this] { (void)loader.run_worker(); }};
  ~Threaded() {
    loader.stop();  // it is in there: it has made batches
    worker.join();
  }
};

}  // namespace

TEST_CASE("signals that the program handles don't end a range-for loop") {
  const Handler handler;
  handled.store(0);
  Threaded t;
  std::int64_t sum = 0;
  int interrupted = 0;
  for (Batch& batch : t.loader)
    for (const std::int64_t x : batch[0].as<std::int64_t>()) sum += x;
  CHECK(sum == 64 * 63 / 2);
  // next() returns INTERRUPTED for a signal, and the next call continues the epoch.
  t.loader.start_epoch(1);
  feedlane::Error error;
  for (;;) {
    const auto batch = t.loader.next(std::chrono::nanoseconds::max(), error);
    if (t.loader.outcome() == FEEDLANE_END) break;
    if (batch) continue;
    interrupted++;
    REQUIRE(error.code() == FEEDLANE_INTERRUPTED);
    CHECK(error.os_errno() == EINTR);
    CHECK_FALSE(error);
  }
  CHECK(interrupted > 0);
  CHECK(handled.load() == 128);
}

TEST_CASE("an event loop reads an epoch with arm() and poll(), and next() never waits") {
  struct Index {
    explicit Index(const feedlane::WorkerInfo&) {}
    void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = row.index(); }
  };
  feedlane::Sampler order = feedlane::Sampler::sequential(64);
  feedlane_dataset dataset = feedlane::dataset_of<Index>();
  Loader loader({.sampler = &order,
                 .fields = {feedlane::field<std::int64_t>("index")},
                 .batch_size = 4,
                 .dataset = &dataset,
                 .workers = 1,
                 .start = feedlane::Start::thread,
                 .keep_workers = true});
  std::thread worker([&] { (void)loader.run_worker(); });
  loader.start_epoch(0);
  std::int64_t batches = 0;
  int sleeps = 0;
  for (feedlane::Error error; loader.outcome() != FEEDLANE_END;) {
    if (const auto batch = loader.next(std::chrono::nanoseconds(0), error); batch) {
      CHECK((*batch)[0].as<std::int64_t>()[0] == 4 * batches++);
      continue;
    }
    REQUIRE_FALSE(error);
    if (loader.outcome() != FEEDLANE_TIMEOUT || loader.poll()) continue;
    const std::optional<int> fd = loader.arm();
    if (!fd) continue;
    pollfd entry{*fd, POLLIN, 0};
    sleeps++;
    REQUIRE(::poll(&entry, 1, 60'000) == 1);
  }
  CHECK(batches == 16);
  CHECK(sleeps > 0);
  loader.stop();
  worker.join();
  feedlane::Error error;
  Loader moved(std::move(loader));
  CHECK_FALSE(loader.arm(error));
  CHECK(error.code() == FEEDLANE_E_ARGUMENT);
}

TEST_CASE("interrupt() in a signal handler ends a range-for loop, and next() continues the epoch") {
  const Handler handler;
  handled.store(0);
  Threaded t;
  to_interrupt.store(&t.loader);
  std::int64_t seen = 0;
  try {
    for (Batch& batch : t.loader) {
      seen += static_cast<std::int64_t>(batch.rows());
      batch.release();
    }
    FAIL("the loop has ended by itself");
  } catch (const feedlane::Error& e) {
    const auto* interrupted = dynamic_cast<const Loader::Interrupted*>(&e);
    REQUIRE(interrupted != nullptr);
    CHECK(interrupted->outcome() == FEEDLANE_INTERRUPTED);
    CHECK(e.os_errno() == 0);
  }
  to_interrupt.store(nullptr);
  for (feedlane::Error error;;) {
    const auto batch = t.loader.next(std::chrono::nanoseconds::max(), error);
    if (t.loader.outcome() == FEEDLANE_END) break;
    if (batch) seen += static_cast<std::int64_t>(batch->rows());
    REQUIRE_FALSE(error);
  }
  CHECK(seen == 64);
}

TEST_CASE("a range-for loop that holds every batch fails with SLOTS_HELD, and the error has both numbers") {
  struct Index {
    explicit Index(const feedlane::WorkerInfo&) {}
    void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = row.index(); }
  };
  const feedlane::Sampler order = feedlane::Sampler::sequential(64);
  const feedlane_dataset dataset = feedlane::dataset_of<Index>();
  Loader loader({.sampler = &order,
                 .fields = {feedlane::field<std::int64_t>("index")},
                 .batch_size = 4,
                 .dataset = &dataset,
                 .held = 2});
  std::vector<Batch> kept;
  try {
    for (Batch& batch : loader) kept.push_back(std::move(batch));
    FAIL("every batch was held");
  } catch (const feedlane::Error& e) {
    CHECK(e.code() == FEEDLANE_SLOTS_HELD);
    CHECK(e.argument() == "config.held");
    CHECK(e.found() == static_cast<std::int64_t>(kept.size()));
    CHECK(e.needed() > 0);
    CHECK(std::string(e.what()).find("SLOTS_HELD: ") == 0);
  }
  kept.clear();
  CHECK(loader.next());
}
