// SPDX-License-Identifier: Apache-2.0
// Starting, watching, signalling and reaping processes.
#include "os/process.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <vector>

#include "os/event.hpp"
#include "os/memfd.hpp"
#include "os/poller.hpp"
#include "os/socket.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::Error;
using feedlane::os::Deadline;
using feedlane::os::Ending;
using feedlane::os::Fd;
namespace os = feedlane::os;
using feedlane::test::Pipe;

namespace {

struct Child {
  pid_t pid = 0;
  Fd pidfd;
};

// Started with `inherited`, which its arguments call @.
Child start(std::vector<std::string> argv, const Fd& inherited,
            std::vector<std::string> environment = {"PATH=/usr/bin:/bin"}) {
  for (std::string& a : argv)
    if (const std::size_t at = a.find('@'); at != std::string::npos)
      a.replace(at, 1, "/proc/self/fd/" + std::to_string(inherited.get()));
  Child child;
  Error error;
  const feedlane::Status s = os::spawn({argv, std::move(environment), inherited.get()}, child.pid, child.pidfd, error);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, error.text);
  return child;
}

void wait_for_pidfd(const Fd& pidfd) {
  Error error;
  feedlane::Status s = FEEDLANE_INTERRUPTED;
  while (s == FEEDLANE_INTERRUPTED) s = os::wait_readable(pidfd.get(), Deadline::never(), error);
  REQUIRE(s == FEEDLANE_OK);
}

bool is_same(int pidfd, int other) {
  bool same = false;
  Error error;
  REQUIRE_MESSAGE(os::is_same_process(pidfd, other, same, error) == FEEDLANE_OK, error.text);
  return same;
}

// What a program writes into the pipe that it inherits.
std::string output_of(const std::vector<std::string>& argv,
                      std::vector<std::string> environment = {"PATH=/usr/bin:/bin"}, int* number = nullptr) {
  Pipe pipe;
  if (number != nullptr) *number = pipe.write.get();
  const Child child = start(argv, pipe.write, std::move(environment));
  pipe.write.reset();
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(pipe.read.get(), buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  wait_for_pidfd(child.pidfd);
  const Ending ending = os::reap(child.pidfd.get());
  CHECK(ending.known);
  CHECK(ending.code == 0);
  return text;
}

// The value behind "name:" in /proc/PID/status.
std::string field_of(const std::string& status, const std::string& name) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(name + ":", 0) == 0) return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  return "";
}

}  // namespace

// promise: fault-ctrl-c-workers
TEST_CASE("a started process leads its own process group") {
  std::istringstream words(output_of({"dd", "status=none", "if=/proc/self/stat", "of=@"}));
  const std::vector<std::string> stat{std::istream_iterator<std::string>(words), {}};
  REQUIRE(stat.size() > 4);
  CHECK(stat[0] == stat[4]);  // pid and process group
  CHECK(stat[3] == std::to_string(::getpid()));
}

TEST_CASE("a started process does not inherit the blocked and ignored signals of its parent") {
  sigset_t blocked, before;
  (void)sigemptyset(&blocked);
  for (const int s : {SIGTERM, SIGUSR2, SIGCHLD}) (void)sigaddset(&blocked, s);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  struct sigaction ignore {
  }, old_pipe{}, old_int{};
  ignore.sa_handler = SIG_IGN;
  (void)::sigaction(SIGPIPE, &ignore, &old_pipe);
  (void)::sigaction(SIGINT, &ignore, &old_int);
  const std::string status = output_of({"dd", "status=none", "if=/proc/self/status", "of=@"});
  (void)::sigaction(SIGINT, &old_int, nullptr);
  (void)::sigaction(SIGPIPE, &old_pipe, nullptr);
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  REQUIRE_FALSE(field_of(status, "SigIgn").empty());
  CHECK(std::stoull(field_of(status, "SigBlk"), nullptr, 16) == 0);
  // Signals 32 and 33 belong to the C library, which ignores them in what it starts.
  constexpr unsigned long long reserved = std::uint64_t{3} << 31;
  CHECK((std::stoull(field_of(status, "SigIgn"), nullptr, 16) & ~reserved) == 0);
}

// promise: fault-exec
TEST_CASE("a started process inherits exactly one of the library's descriptors") {
  std::vector<Fd> low;  // so that everything that follows has a number that the programs don't use themselves
  while (low.empty() || low.back().get() < 50) low.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::set<int> expected;  // what this program's own parent left open, and meant to be inherited
  for (int fd = 50; fd < 1024; fd++)
    if (const int flags = ::fcntl(fd, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC) == 0) expected.insert(fd);
  Fd event, memfd, mine, theirs, lifeline_read, self;
  os::Lifeline lifeline;
  os::Poller poller;
  Error error;
  REQUIRE(os::create_event(event, error) == FEEDLANE_OK);
  REQUIRE(os::create_memfd("x", 4096, memfd, error) == FEEDLANE_OK);
  REQUIRE(os::create_socket_pair(mine, theirs, error) == FEEDLANE_OK);
  REQUIRE(lifeline.open(lifeline_read, error) == FEEDLANE_OK);
  REQUIRE(os::open_pidfd(::getpid(), self, error) == FEEDLANE_OK);
  REQUIRE(poller.open(error) == FEEDLANE_OK);
  int inherited_fd = 0;
  std::istringstream words(output_of({"sh", "-c", "ls /proc/self/fd > @"}, {"PATH=/usr/bin:/bin"}, &inherited_fd));
  expected.insert(inherited_fd);
  std::set<int> inherited;
  for (int fd = 0; words >> fd;)
    if (fd >= 50) inherited.insert(fd);
  CHECK(std::vector(inherited.begin(), inherited.end()) == std::vector(expected.begin(), expected.end()));
}

TEST_CASE("a started process has standard descriptors, which are /dev/null where its parent has none") {
  for (const bool is_closed : {false, true}) {
    CAPTURE(is_closed);
    Pipe pipe;
    const pid_t parent = feedlane::test::fork_child([&] {
      for (const int fd : {0, 1, 2})
        if (is_closed) (void)::close(fd);
        else (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);  // closed by exec
      Fd pidfd;
      pid_t pid = -1;
      Error error;
      const std::vector<std::string> argv{
          "/bin/sh", "-c",
          "all=$(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2); echo \"$all\" >&" +
              std::to_string(pipe.write.get())};
      if (os::spawn({.argv = argv, .environment = {"PATH=/bin:/usr/bin"}, .inherited_fd = pipe.write.get()}, pid, pidfd,
                    error) != FEEDLANE_OK)
        ::_exit(1);
      os::wait_for_end(pidfd.get());
    });
    pipe.write.reset();
    CHECK(feedlane::test::wait_for_end(parent) == 0);
    std::array<char, 256> text{};
    CHECK(::read(pipe.read.get(), text.data(), text.size() - 1) > 0);
    CHECK(std::string(text.data()) == "/dev/null\n/dev/null\n/dev/null\n");
  }
}

TEST_CASE("a started process has exactly the environment that it was given") {
  const std::string text =
      output_of({"dd", "status=none", "if=/proc/self/environ", "of=@"}, {"A=1", "PATH=/usr/bin:/bin"});
  CHECK(text == std::string("A=1") + '\0' + "PATH=/usr/bin:/bin" + '\0');
}

TEST_CASE("the end of a process is seen through its pidfd, and its exit status is reaped once") {
  Pipe gate;
  const Child child = start({"sh", "-c", "read x < @; exit 7"}, gate.read);
  CHECK_FALSE(os::has_ended(child.pidfd.get()));
  CHECK_MESSAGE(!os::reap(child.pidfd.get()).known, "it hasn't ended yet");
  gate.write.reset();
  wait_for_pidfd(child.pidfd);
  CHECK(os::has_ended(child.pidfd.get()));
  const Ending ending = os::reap(child.pidfd.get());
  CHECK(ending.known);
  CHECK_FALSE(ending.signaled);
  CHECK(ending.code == 7);
  CHECK_FALSE(os::reap(child.pidfd.get()).known);
  CHECK_MESSAGE(os::has_ended(child.pidfd.get()), "reaped or not");
  os::send_signal(child.pidfd.get(), SIGKILL);  // nothing happens
}

TEST_CASE("a process never signals itself through a pidfd, whatever process or group the pidfd stands for") {
  Fd self;
  Error error;
  REQUIRE(os::open_pidfd(::getpid(), self, error) == FEEDLANE_OK);
  CHECK(os::is_this_process(self.get()));
  const Child other = start({"true"}, Pipe().read);
  CHECK_FALSE(os::is_this_process(other.pidfd.get()));
  wait_for_pidfd(other.pidfd);
  CHECK(os::reap(other.pidfd.get()).known);
  CHECK_FALSE(os::is_this_process(other.pidfd.get()));
  CHECK_FALSE(os::is_this_process(Pipe().read.get()));
  sigset_t blocked, before, pending;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  os::send_signal(self.get(), SIGUSR1);
  os::send_signal_to_group(self.get(), ::getpgrp(), SIGUSR1);
  CHECK(::sigpending(&pending) == 0);
  CHECK_FALSE(::sigismember(&pending, SIGUSR1));
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

TEST_CASE("the end of a process by a signal is reported with the signal") {
  Pipe gate;
  const Child child = start({"sh", "-c", "read x < @"}, gate.read);
  os::send_signal(child.pidfd.get(), SIGTERM);
  wait_for_pidfd(child.pidfd);
  const Ending ending = os::reap(child.pidfd.get());
  CHECK(ending.known);
  CHECK(ending.signaled);
  CHECK(ending.code == SIGTERM);
}

// promise: worker-child-programs
TEST_CASE("a signal to the group reaches the children of the started process") {
  // What it has started waits for a FIFO whose other end is here, so that nothing is left behind should this test die.
  const feedlane::test::Folder folder;
  const std::string fifo = folder.path() + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const Fd held(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(held);
  Pipe pipe;
  const Child child = start({"sh", "-c", "cat " + fifo + " & echo started > @; wait"}, pipe.write);
  pipe.write.reset();
  char byte = 0;
  REQUIRE(::read(pipe.read.get(), &byte, 1) == 1);
  os::send_signal_to_group(child.pidfd.get(), child.pid, SIGKILL);
  while (::read(pipe.read.get(), &byte, 1) == 1) {
  }  // the end of the file: both are gone, who held the other end
  os::wait_for_end(child.pidfd.get());
  CHECK(os::reap(child.pidfd.get()).code == SIGKILL);
}

TEST_CASE("a group can be signalled while its leader has ended but isn't reaped, and not after that") {
  const feedlane::test::Folder folder;
  const std::string fifo = folder.path() + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const Fd held(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  Pipe pipe;
  const Child child = start({"sh", "-c", "cat " + fifo + " > @ & exit 3"}, pipe.write);
  pipe.write.reset();
  wait_for_pidfd(child.pidfd);
  os::send_signal_to_group(child.pidfd.get(), child.pid, SIGKILL);
  char byte = 0;
  CHECK(::read(pipe.read.get(), &byte, 1) == 0);
  CHECK_MESSAGE(os::reap(child.pidfd.get()).code == 3, "it is still there to be reaped");
  os::send_signal_to_group(child.pidfd.get(), child.pid, SIGKILL);
  os::send_signal_to_group(-1, child.pid, SIGKILL);
}

// promise: trainer-killed-starting
TEST_CASE(
    "a program is tied to its lifeline before it runs: it does not outlive a parent killed right after the start") {
  for (int i = 0; i < 10; i++) {
    Pipe alive;  // as long as the program has its other end
    const pid_t starter = feedlane::test::fork_child([&] {
      os::Lifeline line;
      Fd read, pidfd;
      pid_t pid = 0;
      Error error;
      if (line.open(read, error) != FEEDLANE_OK) ::_exit(1);
      const std::vector<std::string> argv{"sleep", "60"};
      if (os::spawn({argv, {"PATH=/usr/bin:/bin"}, alive.write.get(), read.get()}, pid, pidfd, error) != FEEDLANE_OK)
        ::_exit(2);
      (void)::kill(::getpid(), SIGKILL);
    });
    alive.write.reset();
    const int status = feedlane::test::wait_for_end(starter);
    REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    Error error;
    REQUIRE_MESSAGE(os::wait_readable(alive.read.get(), Deadline::after(10'000'000'000), error) == FEEDLANE_OK,
                    "the program is still there");
  }
}

TEST_CASE("a tied program lives while its lifeline is open and is killed when it is cut") {
  os::Lifeline line;
  Fd read;
  Error error;
  REQUIRE(line.open(read, error) == FEEDLANE_OK);
  Pipe pipe;
  Child child;
  REQUIRE(os::spawn({{"sh", "-c", "echo x > /proc/self/fd/" + std::to_string(pipe.write.get()) + "; exec sleep 60"},
                     {"PATH=/usr/bin:/bin"},
                     pipe.write.get(),
                     read.get()},
                    child.pid, child.pidfd, error) == FEEDLANE_OK);
  pipe.write.reset();
  char byte = 0;
  REQUIRE(::read(pipe.read.get(), &byte, 1) == 1);
  CHECK_FALSE(os::has_ended(child.pidfd.get()));
  line.cut();
  wait_for_pidfd(child.pidfd);
  const Ending ending = os::reap(child.pidfd.get());
  CHECK(ending.signaled);
  CHECK(ending.code == SIGKILL);
}

TEST_CASE("a program name without a slash is looked up in PATH as by execvp: the first executable file is started") {
  const feedlane::test::Folder folder;
  folder.write("first/feedlane-test-program", "not executable");
  folder.write("second/feedlane-test-program", "#!/bin/sh\nexit 5\n");
  REQUIRE(::chmod((folder.path() + "/second/feedlane-test-program").c_str(), 0700) == 0);
  const std::string before = std::getenv("PATH");
  const Pipe pipe;
  const auto start_with = [&](const std::string& path, Child& child) {
    Error error;
    (void)::setenv("PATH", path.c_str(), 1);
    const feedlane::Status s =
        os::spawn({{"feedlane-test-program"}, {}, pipe.read.get()}, child.pid, child.pidfd, error);
    (void)::setenv("PATH", before.c_str(), 1);
    return s == FEEDLANE_OK ? 0 : error.os_errno;
  };
  Child child;
  REQUIRE(start_with("/nowhere:" + folder.path() + "/first:" + folder.path() + "/second", child) == 0);
  wait_for_pidfd(child.pidfd);
  CHECK(os::reap(child.pidfd.get()).code == 5);
  CHECK_MESSAGE(start_with("/nowhere:" + folder.path() + "/first", child) == EACCES, "one is there");
  CHECK(start_with("/nowhere:" + folder.path(), child) == ENOENT);
  CHECK(start_with("", child) == ENOENT);
}

TEST_CASE("starting a program that can't be executed fails, the error names the program, and no process is left") {
  const Pipe pipe;
  pid_t pid = 0;
  Fd pidfd;
  Error error;
  CHECK(os::spawn({{"/nowhere/program"}, {}, pipe.read.get()}, pid, pidfd, error) == FEEDLANE_E_OS);
  CHECK(error.os_errno == ENOENT);
  CHECK(std::string(error.text).find("/nowhere/program") != std::string::npos);
  CHECK_FALSE(pidfd);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

TEST_CASE("a host that ignores SIGCHLD loses only the exit status") {
  struct Seen {
    bool before, after, known;
  };
  const Seen seen = feedlane::test::in_child([]() -> Seen {
    (void)::signal(SIGCHLD, SIG_IGN);
    Pipe gate;
    const Child child = start({"sh", "-c", "read x < @; exit 7"}, gate.read);
    const bool before = os::has_ended(child.pidfd.get());
    gate.write.reset();
    wait_for_pidfd(child.pidfd);
    return {before, os::has_ended(child.pidfd.get()), os::reap(child.pidfd.get()).known};
  });
  CHECK_FALSE(seen.before);
  CHECK(seen.after);
  CHECK_FALSE(seen.known);
}

TEST_CASE("if SIGCHLD is ignored, starting a program that ends at once either succeeds or fails with E_PEER_DEAD") {
  const int wrong = feedlane::test::in_child([] {
    (void)::signal(SIGCHLD, SIG_IGN);
    const Pipe pipe;
    int strange = 0;
    for (int i = 0; i < 50; i++) {
      Child child;
      Error error;
      const feedlane::Status s = os::spawn({{"/bin/true"}, {}, pipe.read.get()}, child.pid, child.pidfd, error);
      if (s == FEEDLANE_OK) wait_for_pidfd(child.pidfd);
      else if (s != FEEDLANE_E_PEER_DEAD) strange++;
    }
    return strange;
  });
  CHECK(wrong == 0);
}

TEST_CASE("two pidfds of one process are distinguished from pidfds of two processes and from other descriptors") {
  Fd self, again;
  Error error;
  REQUIRE(os::open_pidfd(::getpid(), self, error) == FEEDLANE_OK);
  REQUIRE(os::open_pidfd(::getpid(), again, error) == FEEDLANE_OK);
  CHECK((::fcntl(self.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(is_same(self.get(), again.get()));
  const Pipe pipe;
  CHECK_FALSE(is_same(pipe.read.get(), self.get()));
  CHECK_FALSE(is_same(self.get(), -1));
  CHECK(os::open_pidfd(-5, again, error) == FEEDLANE_E_OS);
  Pipe gate;
  const Child child = start({"sh", "-c", "read x < @"}, gate.read);
  REQUIRE(os::open_pidfd(child.pid, again, error) == FEEDLANE_OK);
  CHECK(is_same(child.pidfd.get(), again.get()));
  CHECK_FALSE(is_same(child.pidfd.get(), self.get()));
  gate.write.reset();
  wait_for_pidfd(child.pidfd);
  (void)os::reap(child.pidfd.get());
  CHECK_FALSE_MESSAGE(is_same(child.pidfd.get(), again.get()), "gone: both are of nobody");
}

TEST_CASE("comparing pidfds without a free descriptor fails with E_OS and does not report them as different") {
  const int reason = feedlane::test::in_child([] {
    Fd self;
    Error error;
    if (os::open_pidfd(::getpid(), self, error) != FEEDLANE_OK) return -1;
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NOFILE, &none) != 0) return -2;
    bool same = false;
    return os::is_same_process(self.get(), self.get(), same, error) == FEEDLANE_E_OS ? error.os_errno : -3;
  });
  CHECK(reason == EMFILE);
}

TEST_CASE("this_program returns the absolute path of the executable, whatever argv[0] is, and its arguments") {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> argv;
  Error error;
  REQUIRE(os::this_program(argv, error) == FEEDLANE_OK);
  REQUIRE_FALSE(argv.empty());
  CHECK(argv[0] == std::filesystem::read_symlink("/proc/self/exe").string());
  CHECK(argv.size() == static_cast<std::size_t>(std::count(all.begin(), all.end(), '\0')));
  if (all.rfind("another name", 0) == 0) return;
  const pid_t renamed = feedlane::test::fork_child([] {
    (void)::execl("/proc/self/exe", "another name", "--test-case=this program: its file*", "--quiet", "", nullptr);
    ::_exit(9);
  });
  CHECK(feedlane::test::wait_for_end(renamed) == 0);
}
