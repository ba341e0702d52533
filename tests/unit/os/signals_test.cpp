// SPDX-License-Identifier: Apache-2.0
// Blocking signals in one thread, and what other threads notice of it.
#include "os/signals.hpp"

#include <doctest/doctest.h>

#include <array>
#include <csignal>
#include <string>
#include <thread>

#include "os/event.hpp"
#include "os/poller.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::Fd;
using feedlane::os::SignalBlock;
using feedlane::test::fork_child;
using feedlane::test::wait_for_end;
namespace os = feedlane::os;

namespace {

bool is_blocked(int number) {
  sigset_t now;
  REQUIRE(::pthread_sigmask(SIG_BLOCK, nullptr, &now) == 0);
  return ::sigismember(&now, number) == 1;
}

// A disposition, until the end.
class Disposition {
 public:
  Disposition(int number, void (*handler)(int)) : number_(number), before_(std::signal(number, handler)) {}
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;
  ~Disposition() { (void)std::signal(number_, before_); }

 private:
  int number_;
  void (*before_)(int);
};

}  // namespace

TEST_CASE("a SignalBlock blocks all signals except those that this process ignores") {
  CHECK_FALSE(is_blocked(SIGUSR1));
  {
    const SignalBlock block;
    for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGALRM}) CHECK(is_blocked(number));
    for (const int number : {SIGCHLD, SIGCONT, SIGURG, SIGWINCH}) CHECK_FALSE(is_blocked(number));
  }
  CHECK_FALSE(is_blocked(SIGUSR1));
  const Disposition handled(SIGCHLD, [](int) {});
  const Disposition ignored(SIGHUP, SIG_IGN);
  const SignalBlock block;
  CHECK(is_blocked(SIGCHLD));
  CHECK_FALSE(is_blocked(SIGHUP));
}

TEST_CASE("children that end while their parent's thread blocks signals don't interrupt the wait of another thread") {
  os::Poller poller;
  Fd bell;
  Error error;
  REQUIRE(os::create_event(bell, error) == FEEDLANE_OK);
  REQUIRE(poller.open(error) == FEEDLANE_OK);
  REQUIRE(poller.add(bell.get(), 1, error) == FEEDLANE_OK);
  int interruptions = 0;
  std::thread waiting([&] {
    Error ignored;
    std::array<os::Poller::Event, 1> events;
    std::size_t count = 0;
    while (poller.wait(os::Deadline::never(), events, count, ignored) == FEEDLANE_INTERRUPTED) interruptions++;
  });
  for (int child = 0; child < 50; child++) {
    const SignalBlock block;
    (void)wait_for_end(fork_child([] {}));
  }
  os::signal_event(bell.get());
  waiting.join();
  CHECK(interruptions == 0);
}

TEST_CASE("signals have the names of their macros") {
  CHECK(std::string(feedlane::os::signal_name(SIGKILL)) == "SIGKILL");
  CHECK(std::string(feedlane::os::signal_name(SIGSYS)) == "SIGSYS");
  CHECK(std::string(feedlane::os::signal_name(SIGRTMIN + 1)) == "a real-time signal");
}
