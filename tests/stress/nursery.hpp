// SPDX-License-Identifier: Apache-2.0
// Child processes that are led instruction by instruction. A child says what it is about to do by announce(); whoever started
// it lets it run to such a word, walks on by so many instructions, looks at what the child has done to shared memory, and
// kills it. ptrace belongs to a thread: all of a child's life is led by the one that started it.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared.hpp"

namespace stress {

// In the child: stops it with this word. The signal never arrives; of the operation that follows, the walk also makes the few
// instructions with which this returns.
inline void announce(std::uint64_t word) {
  union sigval value {};
  value.sival_ptr = reinterpret_cast<void*>(word);
  (void)::sigqueue(::getpid(), SIGUSR1, value);
}

constexpr int exit_untraceable = 77;

// This program again with other arguments. It gets `fd` and no other descriptor that is close-on-exec.
inline pid_t start_again(const std::vector<std::string>& arguments, int fd, const cpu_set_t* where, bool traced) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) die("fork", static_cast<std::uint64_t>(errno), 0);
  if (pid != 0) return pid;
  // Other threads' locks may be held for ever here: system calls only.
  if (where != nullptr) (void)::sched_setaffinity(0, sizeof *where, where);
  if (traced && ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(exit_untraceable);
  const int kept = ::dup(fd);
  if (kept < 0 || ::dup2(kept, fd) < 0 || ::close(kept) != 0) ::_exit(1);  // so that it isn't close-on-exec
  (void)::execv("/proc/self/exe", argv.data());
  ::_exit(1);
}

class Led {
 public:
  Led(const std::vector<std::string>& arguments, int fd) : pid_(start_again(arguments, fd, nullptr, true)) {
    const int status = await();
    if (WIFEXITED(status) && WEXITSTATUS(status) == exit_untraceable) std::_Exit(exit_untraceable);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP) die("a child that stops at exec", to_word(status), SIGTRAP);
    if (::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_EXITKILL) != 0) die("ptrace", to_word(errno), 0);
  }
  Led(const Led&) = delete;
  Led& operator=(const Led&) = delete;
  ~Led() { kill(); }

  // To its next word; nothing: it has ended by itself.
  std::optional<std::uint64_t> run() {
    for (;;) {
      resume(PTRACE_CONT);
      const int status = await();
      if (!WIFSTOPPED(status)) return std::nullopt;
      if (const auto word = word_of(status)) return word;
    }
  }

  struct Walk {
    std::uint64_t steps = 0;
    std::optional<std::uint64_t> word;  // it came to its next one
  };
  // So many instructions, or to its next word. A system call is one, however long it waits.
  Walk walk(std::uint64_t most) {
    Walk w;
    while (w.steps < most) {
      resume(PTRACE_SINGLESTEP);
      const int status = await();
      if (!WIFSTOPPED(status)) die("the end of a child that is led", to_word(status), 0);
      if (WSTOPSIG(status) == SIGCHLD) continue;  // no instruction; it is ignored
      if ((w.word = word_of(status))) return w;
      w.steps++;
    }
    return w;
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Where it is. It is gone when this returns.
  void kill() {
    if (pid_ < 0) return;
    (void)::kill(pid_, SIGKILL);
    while (pid_ > 0) (void)await();
  }

 private:
  static std::uint64_t to_word(int number) { return static_cast<std::uint64_t>(number); }
  void resume(decltype(PTRACE_CONT) how) const {
    if (::ptrace(how, pid_, nullptr, nullptr) != 0) die("ptrace", to_word(errno), 0);
  }
  int await() {
    int status = 0;
    pid_t found = 0;
    do found = ::waitpid(pid_, &status, __WALL);
    while (found < 0 && errno == EINTR);
    if (found != pid_) die("waitpid", to_word(errno), 0);
    if (!WIFSTOPPED(status)) pid_ = -1;
    return status;
  }
  // The word with which it has stopped; nothing after a step, or when a child of it has ended.
  [[nodiscard]] std::optional<std::uint64_t> word_of(int status) const {
    if (WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGCHLD) return std::nullopt;
    siginfo_t info{};
    if (WSTOPSIG(status) != SIGUSR1 || ::ptrace(PTRACE_GETSIGINFO, pid_, nullptr, &info) != 0 ||
        info.si_code != SI_QUEUE)
      die("a child that is led gets a signal", to_word(WSTOPSIG(status)), SIGUSR1);
    return reinterpret_cast<std::uint64_t>(info.si_value.sival_ptr);
  }

  pid_t pid_;
};

// Keeps the calling thread, and the children that it leads, on one processor: who is woken next needn't be told another one.
class OneProcessor {
 public:
  OneProcessor() {
    (void)::sched_getaffinity(0, sizeof all_, &all_);
    int last = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
      if (CPU_ISSET(cpu, &all_)) last = cpu;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
  }
  // Those that there were before, for children that aren't led.
  [[nodiscard]] const cpu_set_t& all() const { return all_; }

 private:
  cpu_set_t all_{};
};

// Where to kill in an operation. `kill(steps)` lets it run for so many instructions and kills; it is false if the operation
// came to its end before.
//
// At 0, stride, 2 stride ... instructions, until it was whole a few times in a row: it isn't always of one length.
template <class Kill>
void at_every(std::uint64_t stride, Kill&& kill) {
  int whole = 0;
  for (std::uint64_t steps = 0; whole < 5; steps += stride) whole = kill(steps) ? 0 : whole + 1;
}
// At `count` places spread over its length. `longest()` is the most instructions that it had when it was whole.
template <class Kill, class Longest>
void at_some(std::uint64_t count, Random& random, Kill&& kill, Longest&& longest) {
  while (kill(UINT64_MAX)) continue;
  const std::uint64_t length = longest();
  for (std::uint64_t i = 0; i < count; i++) (void)kill((length * i + random(length)) / count);
}

}  // namespace stress
