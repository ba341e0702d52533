// SPDX-License-Identifier: Apache-2.0
// The lifeline of os/process.hpp: what becomes of a process that is tied to one, whatever it does at the moment.
#include <doctest/doctest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>

#include "os/process.hpp"
#include "support/namespaces.hpp"
#include "support/skip.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::Fd;
namespace os = feedlane::os;
using feedlane::test::Pipe;

namespace {

struct Line {
  Line() {
    Error error;
    REQUIRE(lifeline.open(read, error) == FEEDLANE_OK);
  }
  os::Lifeline lifeline;
  Fd read;
};

// A child that ties itself to the lifeline, says so and then does `f`. Should this test die, the child dies with it.
template <class F>
pid_t tied_child(Line& line, F&& f) {
  Pipe said;
  const pid_t pid = feedlane::test::fork_child([&] {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    line.lifeline.cut();
    Error error;
    if (os::tie_lifeline(line.read.get(), ::getpid(), error) != FEEDLANE_OK) ::_exit(3);
    if (::write(said.write.get(), "t", 1) != 1) ::_exit(4);
    f();
  });
  said.write.reset();
  char byte = 0;
  REQUIRE(::read(said.read.get(), &byte, 1) == 1);
  return pid;
}

bool was_killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }

}  // namespace

TEST_CASE("a busy process is killed when its lifeline is cut") {
  Line line;
  const pid_t pid = tied_child(line, [] {
    volatile bool busy = true;
    while (busy) {
    }
  });
  line.lifeline.cut();
  CHECK(was_killed(feedlane::test::wait_for_end(pid)));
}

// promise: fault-trainer-killed
TEST_CASE("a stopped process is killed when its lifeline is cut") {
  Line line;
  const pid_t pid = tied_child(line, [] {
    (void)::raise(SIGSTOP);
    ::_exit(5);
  });
  int status = 0;
  REQUIRE(::waitpid(pid, &status, WUNTRACED) == pid);
  REQUIRE(WIFSTOPPED(status));
  line.lifeline.cut();
  CHECK(was_killed(feedlane::test::wait_for_end(pid)));
}

TEST_CASE("a process that blocks and ignores every signal is killed when its lifeline is cut") {
  Line line;
  const pid_t pid = tied_child(line, [] {
    sigset_t all;
    (void)sigfillset(&all);
    (void)::sigprocmask(SIG_BLOCK, &all, nullptr);
    for (int s = 1; s < 32; s++) (void)::signal(s, SIG_IGN);
    for (;;) (void)::pause();
  });
  line.lifeline.cut();
  CHECK(was_killed(feedlane::test::wait_for_end(pid)));
}

TEST_CASE("a tied process lives until the last holder of the lifeline's other end has closed it") {
  Line line;
  Pipe gate;
  const pid_t bystander = feedlane::test::fork_child([&] {
    gate.write.reset();
    char byte = 0;
    (void)!::read(gate.read.get(), &byte, 1);
  });
  Pipe ask, answer;
  const pid_t pid = tied_child(line, [&] {
    gate.write.reset();
    for (char byte = 0; ::read(ask.read.get(), &byte, 1) == 1;) (void)!::write(answer.write.get(), &byte, 1);
  });
  line.lifeline.cut();
  char byte = 'q';
  REQUIRE(::write(ask.write.get(), &byte, 1) == 1);
  byte = 0;
  CHECK(::read(answer.read.get(), &byte, 1) == 1);
  CHECK(byte == 'q');
  gate.write.reset();
  (void)feedlane::test::wait_for_end(bystander);
  CHECK(was_killed(feedlane::test::wait_for_end(pid)));
}

// promise: fault-ctrl-c-workers
TEST_CASE("a child created by fork_process holds no lifeline and leads its own process group") {
  Line one, other;
  Pipe gate, said;
  pid_t pid = 0;
  Fd pidfd;
  Error error;
  REQUIRE(os::fork_process(pid, pidfd, error) == FEEDLANE_OK);
  if (pid == 0) {
    gate.write.reset();
    const pid_t group = ::getpgrp();
    if (::write(said.write.get(), &group, sizeof group) != sizeof group) ::_exit(4);
    char byte = 0;
    (void)!::read(gate.read.get(), &byte, 1);
    ::_exit(7);
  }
  const pid_t first = tied_child(one, [&] {
    other.lifeline.cut();
    for (;;) (void)::pause();
  });
  const pid_t second = tied_child(other, [&] {
    one.lifeline.cut();
    for (;;) (void)::pause();
  });
  other.lifeline.cut();
  CHECK(was_killed(feedlane::test::wait_for_end(second)));
  one.lifeline.cut();
  CHECK(was_killed(feedlane::test::wait_for_end(first)));
  CHECK_FALSE(os::has_ended(pidfd.get()));
  pid_t group = 0;
  CHECK(::read(said.read.get(), &group, sizeof group) == sizeof group);
  CHECK(group == pid);
  gate.write.reset();
  CHECK(WEXITSTATUS(feedlane::test::wait_for_end(pid)) == 7);
  CHECK(os::has_ended(pidfd.get()));
}

// promise: trainer-killed-starting
TEST_CASE("a child created by fork_process is tied before it runs: it does not outlive a parent killed at once") {
  for (int i = 0; i < 10; i++) {
    Pipe alive;
    const pid_t parent = feedlane::test::fork_child([&] {
      os::Lifeline line;
      Fd read, pidfd;
      pid_t pid = 0;
      Error error;
      if (line.open(read, error) != FEEDLANE_OK) ::_exit(1);
      if (os::fork_process(pid, pidfd, error, read.get()) != FEEDLANE_OK) ::_exit(2);
      if (pid != 0) (void)::kill(::getpid(), SIGKILL);
      pollfd nothing{-1, 0, 0};
      (void)::poll(&nothing, 1, 60'000);
    });
    alive.write.reset();
    REQUIRE(was_killed(feedlane::test::wait_for_end(parent)));
    pollfd entry{alive.read.get(), POLLIN, 0};
    REQUIRE_MESSAGE(::poll(&entry, 1, 10'000) == 1, "the child is still there");
  }
}

// promise: trainer-forked-workers
TEST_CASE("a child forked by the host closes the lifelines it has inherited, but no other file with the same number") {
  Line own;
  Line other;
  Pipe said;
  const pid_t pid = feedlane::test::fork_child([&] {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::dup2(said.write.get(), other.lifeline.fd()) < 0) ::_exit(3);
    os::drop_inherited_lifelines();
    Error error;
    if (os::tie_lifeline(own.read.get(), ::getpid(), error) != FEEDLANE_OK) ::_exit(4);
    if (::write(other.lifeline.fd(), "t", 1) != 1) ::_exit(5);
    for (;;) (void)::pause();
  });
  said.write.reset();
  char byte = 0;
  REQUIRE(::read(said.read.get(), &byte, 1) == 1);
  own.lifeline.cut();
  CHECK(was_killed(feedlane::test::wait_for_end(pid)));
}

TEST_CASE("a forked child closes inherited lifelines even if its PID namespace gives it the same PID as its parent") {
  if (!feedlane::test::has_pid_namespaces()) return feedlane::test::skip("this user can't make PID namespaces");
  CHECK(feedlane::test::in_child([] {
          const auto in_namespace = [](const auto& f) {
            if (::unshare(CLONE_NEWPID) != 0) return 3;
            const pid_t pid = ::fork();
            if (pid == 0) ::_exit(::getpid() == 1 ? f() : 4);
            int status = 0;
            return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 5;
          };
          return in_namespace([&] {
            Fd read;
            os::Lifeline line;
            Error error;
            if (line.open(read, error) != FEEDLANE_OK) return 6;
            return in_namespace([&] {
              os::drop_inherited_lifelines();
              return ::fcntl(line.fd(), F_GETFD) < 0 && errno == EBADF ? 0 : 7;
            });
          });
        }) == 0);
}

TEST_CASE("tying a process to a lifeline that is already closed fails with E_PEER_DEAD and does not kill the process") {
  Line line;
  line.lifeline.cut();
  CHECK(feedlane::test::in_child([&] {
          Error error;
          return os::tie_lifeline(line.read.get(), ::getpid(), error);
        }) == FEEDLANE_E_PEER_DEAD);
}

TEST_CASE("a process that was untied survives the cut of the lifeline, and so do children that share the descriptor") {
  Line line;
  Pipe untied, gate;
  const pid_t pid = tied_child(line, [&] {
    gate.write.reset();
    os::untie_lifeline(line.read.get());
    if (::write(untied.write.get(), "u", 1) != 1) ::_exit(4);
    char byte = 0;
    (void)!::read(gate.read.get(), &byte, 1);
    ::_exit(7);
  });
  char byte = 0;
  REQUIRE(::read(untied.read.get(), &byte, 1) == 1);
  line.lifeline.cut();
  gate.write.reset();
  const int status = feedlane::test::wait_for_end(pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("a descriptor that can't be a lifeline is refused") {
  CHECK(feedlane::test::in_child([] {
          Error error;
          return os::tie_lifeline(-1, ::getpid(), error);
        }) == FEEDLANE_E_OS);
}

TEST_CASE("a lifeline is cut once, by a call or by the destructor, and can be opened again") {
  Line line;
  line.lifeline.cut();
  line.lifeline.cut();
  Error error;
  REQUIRE(line.lifeline.open(line.read, error) == FEEDLANE_OK);
  CHECK((::fcntl(line.read.get(), F_GETFD) & FD_CLOEXEC) != 0);
  char byte = 0;
  CHECK((::read(line.read.get(), &byte, 1) == -1 && errno == EAGAIN));
  line.lifeline.cut();
  CHECK(::read(line.read.get(), &byte, 1) == 0);
}
