// SPDX-License-Identifier: Apache-2.0
// However it ends, nothing is left behind, within a bound that doesn't grow with the number of workers.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/skip.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

double seconds(const std::function<void()>& what) {
  const auto before = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

// Runs `use` with a loader that is destroyed at its end, and looks at what is left.
void check_nothing_left(const std::function<void(Setup&)>& use) {
  const std::vector<int> before = open_descriptors();
  {
    Setup s(20, 2);
    s.workers(3);
    use(s);
  }
  CHECK(open_descriptors() == before);
  CHECK(mappings_of("feedlane-") == 0);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

// A process that has another one as a debugger has it, from here until it is told to let go.
class Tracer {
 public:
  explicit Tracer(pid_t traced)
      : process_([&, traced](Findings& f) {
          EXPECT(f, ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0);
          has_it_.open();
          EXPECT(f, wait_readable(lets_go_.fd()));
        }) {
    REQUIRE(wait_readable(has_it_.fd()));
  }
  // "": it had it.
  std::string let_go() {
    lets_go_.open();
    return process_.finish();
  }

 private:
  Gate has_it_, lets_go_;
  Child process_;
};

}  // namespace

// promise: fault-exec
TEST_CASE("a running loader's descriptors are close-on-exec, so an executed program inherits no such descriptor") {
  const std::vector<int> before = open_descriptors();
  const auto is_old = [&](int fd) { return std::find(before.begin(), before.end(), fd) != before.end(); };
  int words[2];
  REQUIRE(::pipe(words) == 0);
  CHECK(in_child([&](Findings& f) {
          Setup s(20, 2);
          const Loader l = s.workers(2).create();
          begin(l.get(), 0);
          EXPECT(f, take(l.get()).status == FEEDLANE_OK);
          std::string own;
          int count = 0;
          for (const int fd : open_descriptors()) {
            if (is_old(fd) || fd == words[0] || fd == words[1]) continue;
            EXPECT(f, (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
            own += " " + std::to_string(fd);
            count++;
          }
          EXPECT(f, count > 2);
          if (!f.text().empty()) return;
          (void)::dup2(words[1], STDOUT_FILENO);
          const std::string look = "for i in" + own + "; do test ! -e /proc/self/fd/$i || echo $i; done; echo end";
          (void)::execl("/bin/sh", "sh", "-c", look.c_str(), static_cast<char*>(nullptr));
        }) == "the child did not come to its end");
  (void)::close(words[1]);
  char text[256] = {};
  CHECK(::read(words[0], text, sizeof text - 1) > 0);
  CHECK(std::string(text) == "end\n");
  (void)::close(words[0]);
}

// promise: end-leaves-nothing
TEST_CASE("a destroyed loader leaves no process, no descriptor and no mapping") {
  SUBCASE("after an epoch") {
    check_nothing_left([](Setup& s) {
      const Loader l = s.create();
      check_sequence(take_epoch(l.get(), 0), 20, 2);
    });
  }
  SUBCASE("after epochs with kept workers") {
    check_nothing_left([](Setup& s) {
      s.config.keep_workers = 1;
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 3; epoch++) (void)take_epoch(l.get(), epoch);
    });
  }
  SUBCASE("after the trainer leaves its loop during an epoch") {
    check_nothing_left([](Setup& s) {
      const Loader l = s.create();
      begin(l.get(), 0);
      for (int i = 0; i < 3; i++) CHECK(take(l.get()).status == FEEDLANE_OK);
    });
  }
  SUBCASE("when workers have only just been started") {
    check_nothing_left([](Setup& s) {
      const Loader l = s.create();
      begin(l.get(), 0);
    });
  }
  SUBCASE("when no epoch was begun") {
    check_nothing_left([](Setup& s) { CHECK(s.create() != nullptr); });
  }
  SUBCASE("after stop") {
    check_nothing_left([](Setup& s) {
      const Loader l = s.create();
      begin(l.get(), 0);
      (void)take(l.get());
      CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
      CHECK_FALSE(has_children());
      CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
    });
  }
  SUBCASE("after workers were killed and replaced") {
    check_nothing_left([](Setup& s) {
      s.plan.end_index = 7;
      s.plan.end_attempts = 2;
      s.plan.end_signal = SIGKILL;
      const Loader l = s.create();
      check_sequence(take_epoch(l.get(), 0), 20, 2);
    });
  }
  SUBCASE("after workers that can't open their data set") {
    check_nothing_left([](Setup& s) {
      s.plan.fail_open = -2;
      const Loader l = s.create();
      begin(l.get(), 0);
      CHECK(take(l.get()).status == FEEDLANE_E_INIT);
    });
  }
  SUBCASE("after a worker program that exits without attaching") {
    check_nothing_left([](Setup& s) {
      s.argv = {"/bin/true", nullptr};
      const Loader l = s.create();
      begin(l.get(), 0);
      CHECK(take(l.get()).status == FEEDLANE_E_INIT);
    });
  }
  SUBCASE("with a batch that is released after destroy") {
    check_nothing_left([](Setup& s) {
      feedlane_loader* l = s.create().release();
      feedlane_loader* const copy = l;
      begin(l, 0);
      auto b = fresh<feedlane_batch>();
      REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
      CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
      CHECK_FALSE(has_children());
      const Taken kept = copy_of(b);
      CHECK(kept.value("index", 1) == 1);
      CHECK(feedlane_batch_release(copy, b.token) == FEEDLANE_OK);
    });
  }
}

// promise: fault-descriptor-count
TEST_CASE("the number of open descriptors does not depend on the number of batches and epochs") {
  Setup s(200);
  s.workers(2);
  s.config.keep_workers = 1;
  s.config.held = 50;
  const Loader l = s.create();
  (void)take_epoch(l.get(), 0);
  const std::size_t standard = open_descriptors().size();
  begin(l.get(), 1);
  std::vector<std::uint64_t> held;
  for (int i = 0; i < 50; i++) {
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    held.push_back(b.token);
  }
  CHECK(open_descriptors().size() == standard);
  for (const std::uint64_t token : held) CHECK(feedlane_batch_release(l.get(), token) == FEEDLANE_OK);
  (void)take_rest(l.get());
  (void)take_epoch(l.get(), 2);
  CHECK(open_descriptors().size() == standard);
}

namespace {

// Seconds that destroy takes with workers that stand before a gate and don't listen.
double end_of_stuck(std::int32_t workers, bool ignore_sigterm, std::int64_t timeout_ns) {
  Setup s(20);
  s.workers(workers);
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = -2;
  s.plan.report_fd = reports.fd();
  s.plan.ignore_sigterm = ignore_sigterm ? 1 : 0;
  s.config.stop_timeout_ns = timeout_ns;
  s.config.term_timeout_ns = timeout_ns;
  feedlane_loader* l = s.create().release();
  begin(l, 0);
  for (std::int32_t w = 0; w < workers; w++) REQUIRE(reports.wait_for(Report::began));
  wait_until_ready(l, workers);
  std::int32_t status = -1000;
  const double taken = seconds([&] { status = feedlane_loader_destroy(&l); });
  CHECK(status == FEEDLANE_OK);
  CHECK_FALSE(has_children());
  return taken;
}

}  // namespace

// promise: end-limited-time, end-sigterm-sigkill, worker-ignores-sigterm
TEST_CASE("destroy sends SIGTERM, then SIGKILL, to all unresponsive workers at the same time") {
  const double term = end_of_stuck(4, false, 250'000'000);
  CHECK(term >= 0.25);
  CHECK(term < 4 * 0.25);
  const double kill = end_of_stuck(4, true, 250'000'000);
  CHECK(kill >= 0.5);
  CHECK(kill < 4 * 0.5);
}

// promise: end-sigterm-sigkill
TEST_CASE("destroy waits until every worker has exited, even with timeouts that no worker can meet") {
  for (int round = 0; round < 5; round++) (void)end_of_stuck(4, true, 1);
}

// promise: end-leaves-nothing
TEST_CASE("a killed worker under a tracer is reaped after the tracer detaches, by destroy or by the next create") {
  for (const bool lets_go_first : {true, false}) {
    Setup s(8);
    s.config.keep_workers = 1;
    Loader l = s.workers(1).create();
    begin(l.get(), 0);
    REQUIRE(take(l.get()).status == FEEDLANE_OK);
    const auto pid = static_cast<pid_t>(worker_of(l.get(), 0).pid);
    Tracer tracer(pid);
    REQUIRE(::kill(pid, SIGKILL) == 0);
    CHECK(take_rest(l.get()).size() == 7);
    REQUIRE(eventually([&] {
      (void)feedlane_loader_poll(l.get(), nullptr);
      return !is_running(pid) && worker_of(l.get(), 0).pid != pid;
    }));
    std::string refused;
    if (lets_go_first) refused = tracer.let_go();
    l.reset();
    if (!lets_go_first) {
      refused = tracer.let_go();
      CHECK((has_children() || !refused.empty()));
      l = Setup(1).create();
    }
    CHECK_FALSE(has_children());
    if (!refused.empty()) return skip("no process may trace another one here");
  }
}

// promise: end-asked-first
TEST_CASE("workers that are opening their data sets when stop is called exit by themselves, and stop succeeds") {
  Setup s(4);
  s.workers(2);
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_open = 1;
  s.plan.report_fd = reports.fd();
  s.config.stop_timeout_ns = FEEDLANE_FOREVER;
  const Loader l = s.create();
  const auto all_are = [&](std::int32_t state) {
    return worker_of(l.get(), 0).state == state && worker_of(l.get(), 1).state == state;
  };
  begin(l.get(), 0);
  REQUIRE(eventually([&] {
    (void)feedlane_loader_poll(l.get(), nullptr);
    return all_are(FEEDLANE_WORKER_OPENING);
  }));
  std::thread other([&] {
    (void)eventually([&] { return all_are(FEEDLANE_WORKER_STOPPING); });
    gate.open();
  });
  CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  other.join();
  int closed = 0;
  for (const Report& r : reports.drain()) closed += r.what == Report::closed ? 1 : 0;
  CHECK_MESSAGE(closed == 2, "nobody was killed");
  CHECK(stats_of(l.get()).invalid_results == 0);
}

// promise: end-asked-first
TEST_CASE("a worker that is between two samples when its loader is destroyed exits without a signal") {
  Setup s(4, 2);
  s.workers(1, "pull");
  const Gate gate;
  const Reports reports;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 0;
  s.plan.report_fd = reports.fd();
  s.config.stop_timeout_ns = FEEDLANE_FOREVER;
  Loader l = s.create();
  begin(l.get(), 0);
  REQUIRE(reports.wait_for(Report::began));
  wait_until_ready(l.get(), 1);
  gate.open();
  l.reset();
  CHECK_MESSAGE(reports.wait_for(Report::closed), "it came to its end by itself");
}
