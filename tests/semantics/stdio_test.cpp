// SPDX-License-Identifier: Apache-2.0
// Programs that have closed some of the descriptors 0, 1 and 2, as daemons do: the kernel gives these numbers to whatever is opened
// next, and what anybody prints then lands there. Nothing of the library may have them, and no print may change a batch.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "semantics/sharing.hpp"
#include "support/few_descriptors.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;
namespace sharing = feedlane::test::sharing;

namespace {

using Numbers = std::vector<int>;

constexpr std::int64_t samples = 60;
constexpr std::int64_t values = 64;  // of a sample: a line of 500 bytes covers it

// `run` in a child for each choice of closed descriptors.
void with_closed_stdio(const std::function<void(Findings&, const Numbers& closed)>& run) {
  for (unsigned mask = 1; mask < 8; mask++) {
    Numbers closed;
    for (int fd = 0; fd <= 2; fd++)
      if ((mask >> fd & 1) != 0) closed.push_back(fd);
    CAPTURE(mask);
    CHECK(in_child([&](Findings& f) {
            for (const int fd : closed) (void)::close(fd);
            run(f, closed);
          }) == "");
  }
}

bool are_closed(const Numbers& numbers, pid_t pid = ::getpid()) {
  struct stat status {};
  return std::all_of(numbers.begin(), numbers.end(), [&](int fd) {
    return ::lstat(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)).c_str(), &status) != 0;
  });
}

void print() {
  char line[500];
  std::memset(line, '.', sizeof line);
  for (const int fd : {1, 2}) (void)!::write(fd, line, sizeof line);
}

// ---- loaders ----

Numbers closed_in_worker;  // that a forked worker looks at

// Prints, and says in each value whether the numbers are still closed: index, or -1.
feedlane_dataset printing_dataset() {
  auto table = fresh<feedlane_dataset>();
  table.get = [](void*, const feedlane_row* row, feedlane_error*) -> std::int32_t {
    auto* const x = static_cast<std::int64_t*>(row->fields[0]);
    std::fill_n(x, values, are_closed(closed_in_worker) ? row->index : -1);
    print();
    return FEEDLANE_OK;
  };
  return table;
}

// Two samples a batch of `values` times their index.
struct Printing : Setup {
  explicit Printing(const Numbers& closed) : Setup(samples, 2) {
    closed_in_worker = closed;
    fields({field("x", int64_type, {values})});
    dataset = printing_dataset();
  }
};

// An epoch, whole and in order, while this process prints.
void check_epoch(Findings& f, feedlane_loader* l, std::int64_t epoch = 0) {
  std::int64_t next = 0;
  EXPECT(f, feedlane_loader_begin(l, epoch, nullptr) == FEEDLANE_OK);
  auto batch = fresh<feedlane_batch>();
  Error e;
  std::int32_t s = FEEDLANE_OK;
  while ((s = feedlane_loader_next(l, patience_ns, &batch, &e)) == FEEDLANE_OK) {
    print();
    const auto* const x = static_cast<const std::int64_t*>(batch.tensors[0].data);
    for (std::uint64_t i = 0; i < batch.count * values; i++)
      if (x[i] != next + static_cast<std::int64_t>(i) / values) return f.expect(false, "a batch is wrong", __LINE__);
    next += static_cast<std::int64_t>(batch.count);
    EXPECT(f, feedlane_batch_release(l, batch.token) == FEEDLANE_OK);
  }
  f.expect(s == FEEDLANE_END, e.text, __LINE__);
  EXPECT(f, next == samples);
  EXPECT(f, stats_of(l).restarts == 0);
  EXPECT(f, stats_of(l).invalid_results == 0);
}

Loader made(Findings& f, Setup& s) {
  Loader l;
  Error e;
  f.expect(s.try_create(l, &e) == FEEDLANE_OK, e.text, __LINE__);
  return l;
}

// A process that works by `run`, without any descriptor of the trainer's but its own.
std::int32_t work(feedlane_loader* l, std::vector<std::unique_ptr<Child>>& workers,
                  const std::function<void(Findings&, int fd)>& run) {
  std::int32_t id = -1;
  std::int32_t fd = -1;
  const std::int32_t s = feedlane_loader_open_worker(l, &id, &fd, nullptr);
  if (s != FEEDLANE_OK) return s;
  workers.push_back(std::make_unique<Child>(std::vector{fd}, [&](Findings& f) { run(f, fd); }));
  (void)::close(fd);
  return s;
}

// ---- rings ----

constexpr std::uint64_t messages = 50;

void send_all(Findings& f, int fd, const char* path, const Numbers& closed) {
  feedlane_tx* tx = nullptr;
  Error e;
  f.expect(feedlane_tx_attach(fd, path, patience_ns, &tx, nullptr, &e) == FEEDLANE_OK, e.text, __LINE__);
  EXPECT(f, are_closed(closed));
  for (std::uint64_t i = 0; tx != nullptr && i < messages; i++) {
    print();
    EXPECT(f, feedlane_tx_send(tx, &i, 1, patience_ns, nullptr, nullptr) == FEEDLANE_OK);
  }
  EXPECT(f, feedlane_tx_destroy(&tx) == FEEDLANE_OK);
}

void receive_all(Findings& f, feedlane_rx* rx, const Numbers& closed) {
  for (std::uint64_t i = 0; i < messages; i++) {
    std::uint64_t message = 0;
    std::uint32_t got = 0;
    print();
    EXPECT(f, feedlane_rx_receive(rx, &message, 1, patience_ns, &got, nullptr, nullptr) == FEEDLANE_OK);
    EXPECT(f, message == i);
    EXPECT(f, are_closed(closed));
  }
}

std::string path_of(const char* name) { return "/tmp/feedlane-" + std::to_string(::getpid()) + name; }

}  // namespace

// promise: fault-closed-stdio, worker-closed-stdio
TEST_CASE(
    "closed stdio: trainers with or without forked workers have no descriptor below 3, and prints change no batch") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    with_closed_stdio([&](Findings& f, const Numbers& closed) {
      Printing s(closed);
      s.forked(workers, s.dataset);
      const Loader l = made(f, s);
      for (std::int64_t epoch = 0; epoch < 2; epoch++) check_epoch(f, l.get(), epoch);
      EXPECT(f, are_closed(closed));
    });
  }
}

// promise: fault-closed-stdio
TEST_CASE("closed stdio: a worker program that the library starts has the closed descriptors open on /dev/null") {
  with_closed_stdio([&](Findings& f, const Numbers& closed) {
    Setup s(8);
    s.workers(2);
    const Loader l = made(f, s);
    EXPECT(f, feedlane_loader_begin(l.get(), 0, nullptr) == FEEDLANE_OK);
    EXPECT(f, take(l.get()).status == FEEDLANE_OK);
    EXPECT(f, are_closed(closed));
    for (const int fd : closed) {
      char target[64] = {};
      const std::string link = "/proc/" + std::to_string(worker_of(l.get(), 0).pid) + "/fd/" + std::to_string(fd);
      EXPECT(f, ::readlink(link.c_str(), target, sizeof target - 1) > 0);
      EXPECT(f, std::string(target) == "/dev/null");
    }
  });
}

// promise: fault-closed-stdio
TEST_CASE("closed stdio: external workers and worker threads have no descriptor below 3, and prints change no batch") {
  with_closed_stdio([&](Findings& f, const Numbers& closed) {
    Printing s(closed);
    s.external(2);
    const Loader l = made(f, s);
    std::vector<std::unique_ptr<Child>> workers;
    const feedlane_dataset dataset = printing_dataset();
    while (work(l.get(), workers, [&](Findings& own, int fd) {
             Error e;
             own.expect(feedlane_worker_run(fd, nullptr, &dataset, &e) == FEEDLANE_OK, e.text, __LINE__);
           }) == FEEDLANE_OK) {
    }
    EXPECT(f, workers.size() == 2);
    wait_until_ready(l.get(), 2);
    check_epoch(f, l.get());
    EXPECT(f, are_closed(closed));
    EXPECT(f, feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
    for (const auto& worker : workers) {
      const std::string found = worker->finish();
      f.expect(found.empty(), found.c_str(), __LINE__);
    }
  });
  with_closed_stdio([&](Findings& f, const Numbers& closed) {
    Printing s({});  // while one thread looks another may be about to move a descriptor
    s.connect();
    s.config.start = FEEDLANE_START_THREAD;
    s.config.workers = 2;
    s.config.dataset = &s.dataset;
    feedlane_loader* l = nullptr;
    EXPECT(f, feedlane_loader_create(&s.config, &l, nullptr) == FEEDLANE_OK);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++) threads.emplace_back([&] { (void)feedlane_worker_run(-1, l, nullptr, nullptr); });
    wait_until_ready(l, 2);
    check_epoch(f, l);
    EXPECT(f, are_closed(closed));
    EXPECT(f, feedlane_loader_stop(l, nullptr) == FEEDLANE_OK);
    for (std::thread& t : threads) t.join();
    EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
  });
}

// promise: fault-closed-stdio
TEST_CASE("closed stdio: receivers and senders have no descriptor below 3, and prints change no message") {
  with_closed_stdio([&](Findings& f, const Numbers& closed) {
    const std::string path = path_of(".ring");
    auto config = fresh<feedlane_ring_config>();
    config.message_bytes = 8;
    config.capacity = 4;
    config.path = path.c_str();
    for (const bool by_path : {false, true}) {
      feedlane_rx* rx = nullptr;
      EXPECT(f, feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
      std::int32_t fd = -1;
      if (!by_path) EXPECT(f, feedlane_rx_offer(rx, &fd, nullptr) == FEEDLANE_OK);
      EXPECT(f, are_closed(closed));
      Child sender({fd}, [&](Findings& own) { send_all(own, fd, by_path ? path.c_str() : nullptr, closed); });
      (void)::close(fd);
      receive_all(f, rx, closed);
      f.expect(sender.finish().empty(), "the sender", __LINE__);
      EXPECT(f, feedlane_rx_destroy(&rx) == FEEDLANE_OK);
    }
  });
}

// promise: fault-closed-stdio
TEST_CASE("closed stdio: feeders and consumers have no descriptor below 3, and prints change no batch") {
  with_closed_stdio([&](Findings& f, const Numbers& closed) {
    const std::string path = path_of(".share");
    Printing s(closed);
    s.forked(2, s.dataset);
    sharing::shared(s, FEEDLANE_SHARE_EVERY, 3);
    s.config.share_path = path.c_str();
    const Loader l = made(f, s);
    const auto train = [&](Findings& own, feedlane_loader* consumer) {
      check_epoch(own, consumer);
      EXPECT(own, are_closed(closed));
      (void)feedlane_loader_destroy(&consumer);
    };
    const auto by_path = [&](Findings& own) {
      feedlane_loader* consumer = nullptr;
      EXPECT(own, feedlane_loader_join(-1, path.c_str(), nullptr, patience_ns, &consumer, nullptr) == FEEDLANE_OK);
      train(own, consumer);
    };
    std::int32_t id = -1;
    std::int32_t fd = -1;
    EXPECT(f, feedlane_loader_open_consumer(l.get(), nullptr, &id, &fd, nullptr) == FEEDLANE_OK);
    EXPECT(f, are_closed(closed));
    Child first({fd}, [&](Findings& own) {
      feedlane_loader* consumer = nullptr;
      EXPECT(own, feedlane_loader_join(fd, nullptr, nullptr, patience_ns, &consumer, nullptr) == FEEDLANE_OK);
      train(own, consumer);
    });
    (void)::close(fd);
    Child second({}, by_path);
    const auto attached = [&](std::int32_t nth) {
      auto stats = fresh<feedlane_consumer_stats>();
      return feedlane_loader_get_consumer(l.get(), nth, &stats) == FEEDLANE_OK &&
             stats.state == FEEDLANE_CONSUMER_ATTACHED;
    };
    EXPECT(f, sharing::poll_until(l.get(), [&] { return attached(0) && attached(1); }));
    EXPECT(f, feedlane_loader_begin(l.get(), 0, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_loader_serve(l.get(), patience_ns, nullptr) == FEEDLANE_END);
    EXPECT(f, are_closed(closed));
    for (Child* consumer : {&first, &second}) f.expect(consumer->finish().empty(), "a consumer", __LINE__);
  });
}

// promise: fault-closed-stdio
TEST_CASE("closed stdio: monitors and pools have no descriptor below 3") {
  with_closed_stdio([&](Findings& f, const Numbers& closed) {
    Printing s(closed);
    s.forked(0, s.dataset);
    const Loader l = made(f, s);
    feedlane_monitor* monitor = nullptr;
    EXPECT(f, feedlane_monitor_open(::getpid(), 0, &monitor, nullptr) == FEEDLANE_OK);
    const auto config = fresh<feedlane_pool_config>();
    feedlane_pool* pool = nullptr;
    EXPECT(f, feedlane_pool_create(&config, &pool, nullptr) == FEEDLANE_OK);
    EXPECT(f, are_closed(closed));
    check_epoch(f, l.get());
    auto stats = fresh<feedlane_stats>();
    EXPECT(f, feedlane_monitor_get_stats(monitor, &stats) == FEEDLANE_OK);
    EXPECT(f, stats.epochs == 1);
    EXPECT(f, feedlane_pool_destroy(&pool) == FEEDLANE_OK);
    EXPECT(f, feedlane_monitor_destroy(&monitor) == FEEDLANE_OK);
  });
}

// promise: fault-closed-stdio
TEST_CASE("closed stdio: a worker's socket may be descriptor 0, which is closed when the library has taken it over") {
  CHECK(in_child([](Findings& f) {
          Printing s({0});
          s.external(1);
          const Loader l = made(f, s);
          std::vector<std::unique_ptr<Child>> workers;
          const feedlane_dataset dataset = printing_dataset();
          EXPECT(f, work(l.get(), workers, [&](Findings& own, int fd) {
                      EXPECT(own, ::dup2(fd, 0) == 0);
                      (void)::close(fd);
                      EXPECT(own, feedlane_worker_run(0, nullptr, &dataset, nullptr) == FEEDLANE_OK);
                    }) == FEEDLANE_OK);
          check_epoch(f, l.get());
          EXPECT(f, feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
          f.expect(workers[0]->finish().empty(), "the worker", __LINE__);
        }) == "");
}

// promise: fault-closed-stdio
TEST_CASE(
    "closed stdio: without free descriptors above 2 each handle fails with E_OS, and no descriptor is left open") {
  with_closed_stdio([&](Findings& f, const Numbers& closed) {
    Printing s(closed);
    s.forked(0, s.dataset);
    const std::vector<int> before = open_descriptors();
    bool was_made = false;
    for (std::size_t more = 0; !was_made && more < 100; more++) {
      Error e;
      {
        const FewDescriptors few(closed.size() + more);
        Loader l;
        was_made = s.try_create(l, &e) == FEEDLANE_OK;
      }
      EXPECT(f, was_made || (e.code == FEEDLANE_E_OS && e.os_errno == EMFILE));
      EXPECT(f, open_descriptors() == before);
    }
    EXPECT(f, was_made);
    int pair[2] = {-1, -1};
    EXPECT(f, ::pipe(pair) == 0);  // one of them is 0, 1 or 2
    Error e;
    feedlane_tx* tx = nullptr;
    const FewDescriptors none(closed.size() == 3 ? 1 : 0);  // but for 2, where that is closed
    EXPECT(f, feedlane_tx_attach(pair[0], nullptr, 0, &tx, nullptr, &e) == FEEDLANE_E_OS);
    EXPECT(f, e.os_errno == EMFILE);
    EXPECT(f, ::fcntl(pair[0], F_GETFD) < 0);
  });
}
