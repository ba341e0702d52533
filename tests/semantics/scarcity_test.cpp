// SPDX-License-Identifier: Apache-2.0
// Descriptors, file sizes and address space that are too short: each is told by a clear error, wherever it is noticed, nothing
// is left open, and all goes well when there is enough.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/events.hpp"
#include "support/few_descriptors.hpp"
#include "support/old_kernel.hpp"
#include "support/over_fork.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::uint64_t mib = 1 << 20;

bool says_descriptors(const Error& e) { return e.os_errno == EMFILE && e.says("Too many open files"); }

// `attempt` with ever more descriptors until it succeeds. Before that each is refused, and leaves nothing open.
void at_every_descriptor(const std::function<std::int32_t(Error&)>& attempt) {
  const std::vector<int> before = open_descriptors();
  for (std::size_t more = 0;; more++) {
    CAPTURE(more);
    Error e;
    std::int32_t s = FEEDLANE_OK;
    {
      const FewDescriptors few(more);
      s = attempt(e);
    }
    CHECK(open_descriptors() == before);
    if (s == FEEDLANE_OK) {
      CHECK_MESSAGE(more > 0, "it takes some");
      return;
    }
    CHECK(s == FEEDLANE_E_OS);
    CHECK_MESSAGE(says_descriptors(e), std::string(e.text));
    REQUIRE(more < 100);
  }
}

feedlane_ring_config ring_config(const char* path = nullptr) {
  auto config = fresh<feedlane_ring_config>();
  config.message_bytes = 8;
  config.capacity = 4;
  config.lanes = 1;
  config.path = path;
  return config;
}

}  // namespace

// promise: descriptors-elsewhere, descriptors-create
TEST_CASE("creating a loader with too few descriptors, however many, fails with E_OS and leaves no descriptor open") {
  at_every_descriptor([&](Error& e) {
    Setup s(4);
    Loader l;
    return s.try_create(l, &e);
  });
}

// promise: descriptors-elsewhere, descriptors-begin
TEST_CASE("a begin with too few descriptors for its workers fails with E_OS, and a later begin starts the workers") {
  for (const bool by_fork : {false, true}) {
    CAPTURE(by_fork);
    Setup s(8);
    if (by_fork) s.forked(2, scripted_dataset());
    else s.workers(2);
    const Loader l = s.create();
    at_every_descriptor([&](Error& e) {
      const std::int32_t status = feedlane_loader_begin(l.get(), 0, &e);
      if (status != FEEDLANE_OK) CHECK_MESSAGE((e.worker == 0 || e.worker == 1), "the worker that did not start");
      (void)feedlane_loader_stop(l.get(), nullptr);
      CHECK_FALSE(has_children());
      return status;
    });
    check_sequence(take_epoch(l.get(), 1), 8, 1);
  }
}

// promise: descriptors-elsewhere, descriptors-replacement
TEST_CASE("a lack of descriptors to replace a worker is a warning, and the replacement is retried until it succeeds") {
  for (const std::int32_t dispatch : {FEEDLANE_DISPATCH_LEAST_LOADED, FEEDLANE_DISPATCH_ROUND_ROBIN}) {
    CAPTURE(dispatch);
    Setup s(40);
    s.workers(2).fields({field("index", int64_type)});
    s.config.dispatch = dispatch;
    const Loader l = s.create();
    begin(l.get(), 0);
    wait_until_ready(l.get(), 2);
    {
      const FewDescriptors few(0);
      const auto pid = static_cast<pid_t>(worker_of(l.get(), 1).pid);
      REQUIRE(::kill(pid, SIGKILL) == 0);
      REQUIRE(eventually([&] { return !is_running(pid); }));
      std::vector<feedlane_event> told;
      REQUIRE(eventually([&] {
        (void)feedlane_loader_poll(l.get(), nullptr);
        for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_WARNING)) told.push_back(e);
        return !told.empty();
      }));
      CHECK(told[0].what.worker == 1);
      CHECK(told[0].what.os_errno == EMFILE);
      CHECK(stats_of(l.get()).restarts == 0);
    }
    // With batches of its own the worker is needed; otherwise the other one does without.
    if (dispatch == FEEDLANE_DISPATCH_ROUND_ROBIN) check_sequence(take_rest(l.get()), 40, 1);
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return stats_of(l.get()).restarts == 1;
    }));
    if (dispatch == FEEDLANE_DISPATCH_LEAST_LOADED) check_sequence(take_rest(l.get()), 40, 1);
  }
}

// promise: descriptors-elsewhere
TEST_CASE("a worker that could not be replaced is started by the next begin if the epoch has no more work") {
  Setup s(8);
  s.workers(2).fields({field("index", int64_type)});
  const Loader l = s.create();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 2);
  {
    const FewDescriptors few(0);
    const auto pid = static_cast<pid_t>(worker_of(l.get(), 1).pid);
    REQUIRE(::kill(pid, SIGKILL) == 0);
    REQUIRE(eventually([&] { return !is_running(pid); }));
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return !events_of(l.get(), FEEDLANE_EVENT_WARNING).empty();
    }));
    check_sequence(take_rest(l.get()), 8, 1);
  }
  // The next try would come within a tenth of a second.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < until) {
    (void)feedlane_loader_poll(l.get(), nullptr);
    (void)::usleep(10'000);
  }
  CHECK(stats_of(l.get()).restarts == 0);
  begin(l.get(), 1);
  wait_until_ready(l.get(), 2);
  check_sequence(take_rest(l.get()), 8, 1);
}

// promise: descriptors-elsewhere, descriptors-only-replacement
TEST_CASE("next fails with E_OS while descriptors to replace the only worker are lacking, then the epoch continues") {
  Setup s(8);
  s.workers(1);
  const Loader l = s.create();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 1);
  std::vector<Taken> taken;
  {
    const FewDescriptors few(0);
    const auto pid = static_cast<pid_t>(worker_of(l.get(), 0).pid);
    REQUIRE(::kill(pid, SIGKILL) == 0);
    REQUIRE(eventually([&] { return !is_running(pid); }));
    for (int told = 0; told < 3;) {
      Error e;
      const Taken t = take(l.get(), &e);
      if (t.status == FEEDLANE_OK) {  // made before
        taken.push_back(t);
        continue;
      }
      REQUIRE(t.status == FEEDLANE_E_OS);
      CHECK_MESSAGE(says_descriptors(e), std::string(e.text));
      CHECK(e.worker == 0);
      told++;
    }
  }
  for (Taken& t : take_rest(l.get())) taken.push_back(std::move(t));
  check_sequence(taken, 8, 1);
  CHECK(stats_of(l.get()).restarts == 1);
}

// promise: descriptors-elsewhere, descriptors-pidfd-attach
TEST_CASE("each worker start without descriptors for its message fails next with E_OS once, then the epoch continues") {
  for (const bool by_fork : {false, true}) {
    const OldKernel old_kernel;  // otherwise the message needs no descriptor
    CAPTURE(by_fork);
    Setup s(8);
    if (by_fork) s.forked(1, scripted_dataset());
    else s.workers(1);
    const Gate gate;
    const Reports reports;
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = 0;
    s.plan.report_fd = reports.fd();
    s.config.max_restarts = -1;
    s.config.max_kills_per_batch = 2;  // a worker that is ended for want of our descriptors counts for no batch
    const Loader l = s.create();
    begin(l.get(), 0);
    // More often than a program may end before it attaches.
    std::int64_t ended = 0;
    for (int told = 0; told < 7;) {
      CAPTURE(told);
      REQUIRE_MESSAGE(eventually([&] {
                        CHECK(feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_OK);
                        const feedlane_worker_stats w = worker_of(l.get(), 0);
                        return w.state != FEEDLANE_WORKER_NONE && w.pid != ended;
                      }),
                      "another is started");
      (void)feedlane_loader_poll(l.get(), nullptr);                        // it gets tasks
      if (worker_of(l.get(), 0).state != FEEDLANE_WORKER_STARTING) break;  // a quick one's message has come already
      // A worker may begin a batch before its message is read.
      REQUIRE(reports.wait_for(Report::began).has_value());
      const FewDescriptors few(0);
      Error e;
      REQUIRE(take(l.get(), &e).status == FEEDLANE_E_OS);
      CHECK_MESSAGE(says_descriptors(e), std::string(e.text));
      CHECK(e.worker == 0);
      CHECK(events_of(l.get(), FEEDLANE_EVENT_WARNING).size() == 1);
      ended = worker_of(l.get(), 0).pid;
      told++;
    }
    gate.open();
    check_sequence(take_rest(l.get()), 8, 1);
    CHECK_MESSAGE(stats_of(l.get()).restarts == 0, "no worker has died");
  }
}

// promise: descriptors-elsewhere, descriptors-pidfd-attach
TEST_CASE(
    "if descriptors for one of two workers' messages are lacking, the other continues and the first is restarted") {
  const OldKernel old_kernel;  // otherwise the message needs no descriptor
  Setup s(40);
  s.workers(2);
  s.config.dispatch = FEEDLANE_DISPATCH_ROUND_ROBIN;
  const Loader l = s.create();
  begin(l.get(), 0);
  wait_until_ready(l.get(), 2);
  bool is_told = false;
  std::uint64_t killed = 0;
  while (!is_told) {  // a quick worker's message may come before the limit
    REQUIRE(::kill(static_cast<pid_t>(worker_of(l.get(), 1).pid), SIGKILL) == 0);
    killed++;
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return stats_of(l.get()).restarts == killed;
    }));
    const FewDescriptors few(0);
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      is_told = !events_of(l.get(), FEEDLANE_EVENT_WARNING).empty();
      return is_told || worker_of(l.get(), 1).state == FEEDLANE_WORKER_READY;
    }));
  }
  check_sequence(take_rest(l.get()), 40, 1);
  CHECK(stats_of(l.get()).restarts == killed);
}

// promise: descriptors-elsewhere, descriptors-pidfd-attach
TEST_CASE("a lack of descriptors for a worker's Attached message is reported as EMFILE, and another worker attaches") {
  Setup s(8);
  s.external(1);
  const Loader l = s.create();
  begin(l.get(), 0);
  const auto start = [&] {
    std::int32_t id = -1;
    std::int32_t fd = -1;
    REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
    auto process = std::make_unique<Process>(worker_program, "get", fd);
    (void)::close(fd);
    return process;
  };
  {  // for its pidfd
    constexpr std::size_t more = 0;
    const auto first = start();
    auto batch = fresh<feedlane_batch>();
    std::int32_t status = FEEDLANE_OK;
    {
      const FewDescriptors few(more);
      status = feedlane_loader_next(l.get(), patience_ns, &batch, nullptr);
    }
    CHECK(status == FEEDLANE_E_PEER_DEAD);
    bool is_told = false;
    for (const feedlane_event& e : events_of(l.get(), FEEDLANE_EVENT_WARNING))
      is_told = is_told || (e.what.code == FEEDLANE_E_OS && e.what.os_errno == EMFILE);
    CHECK(is_told);
    CHECK(stats_of(l.get()).invalid_results == 0);
  }
  const auto second = start();
  check_sequence(take_rest(l.get()), 8, 1);
}

// promise: descriptors-elsewhere, descriptors-in-worker
TEST_CASE("a worker with too few descriptors fails to attach with E_OS, and another worker attaches in its place") {
  Setup s(4);
  s.external(1);
  const Loader l = s.create();
  // What the child found, as it ends before the test does.
  const OverFork<bool> attached;
  std::size_t more = 0;
  for (; !*attached; more++) {
    CAPTURE(more);
    REQUIRE(more < 100);
    std::int32_t id = -1;
    std::int32_t fd = -1;
    REQUIRE(feedlane_loader_open_worker(l.get(), &id, &fd, nullptr) == FEEDLANE_OK);
    Child child({fd}, [&](Findings& f) {
      const std::size_t mappings = mappings_of("feedlane-");  // inherited
      const std::size_t descriptors = open_descriptors().size();
      Error e;
      feedlane_worker* w = nullptr;
      std::int32_t status = FEEDLANE_OK;
      {
        const FewDescriptors few(more);
        status = feedlane_worker_attach(fd, nullptr, patience_ns, &w, &e);
      }
      *attached = status == FEEDLANE_OK;
      EXPECT(f, (status == FEEDLANE_OK) == (w != nullptr));
      if (status != FEEDLANE_OK) {
        EXPECT(f, status == FEEDLANE_E_OS);
        EXPECT(f, says_descriptors(e));
        EXPECT(f, open_descriptors().size() == descriptors - 1);  // the offer's is taken
        EXPECT(f, mappings_of("feedlane-") == mappings);
      }
      (void)feedlane_worker_destroy(&w);
    });
    (void)::close(fd);
    CHECK(child.finish() == "");
  }
  CHECK(more > 3);
}

// promise: descriptors-elsewhere, descriptors-ring-monitor
TEST_CASE("rings and monitors fail with E_OS for lack of descriptors, and leave no descriptor open") {
  const std::string path = "/tmp/feedlane-scarcity-" + std::to_string(::getpid());
  const auto with_path = ring_config(path.c_str());
  const auto without = ring_config();
  at_every_descriptor([&](Error& e) {
    feedlane_rx* rx = nullptr;
    const std::int32_t s = feedlane_rx_create(&with_path, &rx, &e);
    (void)feedlane_rx_destroy(&rx);
    CHECK(::access(path.c_str(), F_OK) != 0);
    return s;
  });
  feedlane_rx* rx = nullptr;
  REQUIRE(feedlane_rx_create(&without, &rx, nullptr) == FEEDLANE_OK);
  at_every_descriptor([&](Error& e) {
    std::int32_t fd = -1;
    const std::int32_t s = feedlane_rx_offer(rx, &fd, &e);
    if (s == FEEDLANE_OK) (void)::close(fd);
    if (s == FEEDLANE_OK) (void)feedlane_rx_arm(rx, nullptr);  // hears of the end
    return s;
  });
  (void)feedlane_rx_destroy(&rx);
  at_every_descriptor([&](Error& e) {
    feedlane_rx* receiver = nullptr;
    std::int32_t fd = -1;
    {
      rlimit all{};
      (void)::getrlimit(RLIMIT_NOFILE, &all);
      limit(RLIMIT_NOFILE, all.rlim_max);
      REQUIRE(feedlane_rx_create(&without, &receiver, nullptr) == FEEDLANE_OK);
      REQUIRE(feedlane_rx_offer(receiver, &fd, nullptr) == FEEDLANE_OK);
      limit(RLIMIT_NOFILE, all.rlim_cur + 8);  // what the receiver and the offer take
    }
    feedlane_tx* tx = nullptr;
    const std::int32_t s = feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, &e);
    (void)feedlane_tx_destroy(&tx);
    (void)feedlane_rx_destroy(&receiver);
    return s;
  });
  Setup setup(4);
  // Listing descriptors takes two of them, so that with two the third control file cannot be opened.
  const Loader one = setup.create(), two = setup.create(), three = setup.create();
  at_every_descriptor([&](Error& e) {
    feedlane_monitor* m = nullptr;
    const std::int32_t s = feedlane_monitor_open(::getpid(), 2, &m, &e);
    (void)feedlane_monitor_destroy(&m);
    return s;
  });
}

// promise: descriptors-elsewhere, descriptors-sender-path
TEST_CASE("peek fails with E_OS, without a busy wait, until there are descriptors to accept a sender that connects") {
  const std::string path = "/tmp/feedlane-scarcity-" + std::to_string(::getpid());
  const auto config = ring_config(path.c_str());
  feedlane_rx* rx = nullptr;
  REQUIRE(feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
  std::int32_t wait_fd = -1;
  REQUIRE(wait_fd_of(rx, &wait_fd) == FEEDLANE_OK);
  REQUIRE(feedlane_rx_arm(rx, nullptr) == FEEDLANE_OK);
  Child sender({}, [&](Findings& f) {
    feedlane_tx* tx = nullptr;
    EXPECT(f, feedlane_tx_attach(-1, path.c_str(), patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
    feedlane_span span;
    EXPECT(f, feedlane_tx_reserve(tx, 1, patience_ns, &span, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_tx_commit(tx, 1, nullptr) == FEEDLANE_OK);
    EXPECT(f, feedlane_tx_destroy(&tx) == FEEDLANE_OK);
  });
  REQUIRE(wait_readable(wait_fd));
  feedlane_span span;
  for (const std::size_t more : {0u, 1u, 2u}) {  // to accept it, then for its two events and for its lane
    CAPTURE(more);
    const FewDescriptors few(more);
    for (int again = 0; again < 2; again++) {  // the second error comes when the ring tries again by itself
      Error e;
      CHECK(feedlane_rx_peek(rx, 1, patience_ns, &span, &e) == FEEDLANE_E_OS);
      CHECK_MESSAGE(says_descriptors(e), std::string(e.text));
    }
    // In between, nothing wakes the receiver.
    CHECK(feedlane_rx_peek(rx, 1, 0, &span, nullptr) == FEEDLANE_TIMEOUT);
    CHECK(feedlane_rx_arm(rx, nullptr) == FEEDLANE_OK);
    CHECK(wait_readable(wait_fd));
    CHECK(feedlane_rx_arm(rx, nullptr) == FEEDLANE_E_OS);
  }
  CHECK(feedlane_rx_peek(rx, 1, patience_ns, &span, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_rx_release(rx, span.lane, span.count, nullptr) == FEEDLANE_OK);
  CHECK(sender.finish() == "");
  (void)feedlane_rx_destroy(&rx);
}

// promise: descriptors-elsewhere, descriptors-sender-pidfd
TEST_CASE(
    "a sender whose RingAttached message lacks descriptors fails to attach with E_OS, and its lane is free again") {
  const auto config = ring_config();
  feedlane_rx* rx = nullptr;
  REQUIRE(feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
  // For its pidfd; and, where the kernel has none of senders, to look whose that is.
  for (const std::size_t more : {0u, 3u}) {
    CAPTURE(more);
    const bool is_enough = more != 0;
    std::int32_t fd = -1;
    REQUIRE(feedlane_rx_offer(rx, &fd, nullptr) == FEEDLANE_OK);
    Child sender({fd}, [&](Findings& f) {
      feedlane_tx* tx = nullptr;
      Error e;
      const std::int32_t s = feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, &e);
      EXPECT(f, s == (is_enough ? FEEDLANE_OK : FEEDLANE_E_OS));
      EXPECT(f, is_enough || says_descriptors(e));
      feedlane_span span;
      if (s == FEEDLANE_OK) EXPECT(f, feedlane_tx_reserve(tx, 1, 0, &span, &e) == FEEDLANE_OK);
      if (s == FEEDLANE_OK) EXPECT(f, feedlane_tx_commit(tx, 1, &e) == FEEDLANE_OK);
      EXPECT(f, feedlane_tx_destroy(&tx) == FEEDLANE_OK);
    });
    (void)::close(fd);
    feedlane_span span;
    {
      const FewDescriptors few(more);
      CHECK(feedlane_rx_peek(rx, 1, patience_ns, &span, nullptr) == (is_enough ? FEEDLANE_OK : FEEDLANE_END));
    }
    if (is_enough) CHECK(feedlane_rx_release(rx, span.lane, span.count, nullptr) == FEEDLANE_OK);
    CHECK(sender.finish() == "");
    CHECK(feedlane_rx_peek(rx, 1, patience_ns, &span, nullptr) == FEEDLANE_END);
  }
  (void)feedlane_rx_destroy(&rx);
}

// promise: fault-little-memory, machine-file-size
TEST_CASE(
    "a loader or ring beyond RLIMIT_FSIZE or RLIMIT_AS fails with E_LIMIT, not by a signal, and a smaller one works") {
  for (const bool of_files : {true, false}) {
    CAPTURE(of_files);
    CHECK(in_child([&](Findings& f) {
            if (of_files) {
              limit(RLIMIT_FSIZE, 2 * mib);
            } else {
              std::uint64_t pages = 0;
              std::ifstream("/proc/self/statm") >> pages;
              limit(RLIMIT_AS, pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + 256 * mib);
            }
            const char* const name = of_files ? "RLIMIT_FSIZE" : "RLIMIT_AS";
            const std::int64_t large = of_files ? 4 * mib : 512 * mib;
            Setup s(4);
            s.fields({field("noise", uint8_type, {large})});
            Loader l;
            Error e;
            EXPECT(f, s.try_create(l, &e) == FEEDLANE_E_LIMIT);
            EXPECT(f, std::string(e.argument) == name);
            EXPECT(f, e.needed >= large);
            EXPECT(f, e.found < e.needed);
            auto config = ring_config();
            config.capacity = 1 << 16;
            config.message_bytes = static_cast<std::uint32_t>(large >> 14);
            feedlane_rx* rx = nullptr;
            EXPECT(f, feedlane_rx_create(&config, &rx, &e) == FEEDLANE_E_LIMIT);
            EXPECT(f, std::string(e.argument) == name);
            config = ring_config();
            EXPECT(f, feedlane_rx_create(&config, &rx, &e) == FEEDLANE_OK);
            EXPECT(f, feedlane_rx_destroy(&rx) == FEEDLANE_OK);
            s.fields({field("noise", uint8_type, {1000})});
            EXPECT(f, s.try_create(l, &e) == FEEDLANE_OK);
          }) == "");
  }
}
