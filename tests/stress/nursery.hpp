// SPDX-License-Identifier: Apache-2.0
// Child processes that are led instruction by instruction, or action by action: a system call, or a store to shared memory.
// Between two actions a process does nothing that others could tell: a kill there leaves what a kill just before the second one
// leaves. So kills before each action stand for kills at every instruction.
// A child says what it is about to do by announce(); the process that started it lets it run to such a word, walks on by so many
// instructions or actions, looks at what the child has done to shared memory, and kills it. ptrace belongs to a thread: all of a
// child's life is led by the one that started it.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared.hpp"
#include "shared_stores.hpp"

namespace stress {

enum class Unit : std::uint8_t { instruction, action };
#if defined(__x86_64__)
constexpr bool knows_actions = true;
#else
constexpr bool knows_actions = false;
#endif

// In the child: stops it with this word. The signal never arrives; of the operation that follows, the walk also makes the few
// instructions with which this returns. The signal is for this thread: one for the process may be taken by another thread, which
// isn't traced, so that it ends the process.
inline void announce(std::uint64_t word) {
  union sigval value {};
  value.sival_ptr = reinterpret_cast<void*>(word);
  if (const int error = ::pthread_sigqueue(::pthread_self(), SIGUSR1, value); error != 0)
    die("pthread_sigqueue", static_cast<std::uint64_t>(error), 0);
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
    if (::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) != 0)
      die("ptrace", to_word(errno), 0);
  }
  Led(const Led&) = delete;
  Led& operator=(const Led&) = delete;
  ~Led() { kill(); }

  // To its next word; nothing: it has ended by itself, see end_status.
  std::optional<std::uint64_t> run() {
    for (;;) {
      resume(PTRACE_CONT);
      const int status = await();
      if (!WIFSTOPPED(status)) {
        end_status_ = status;
        return std::nullopt;
      }
      if (const auto word = word_of(status)) return word;
    }
  }

  struct Walk {
    std::uint64_t steps = 0;            // instructions or actions
    std::uint64_t stores = 0;           // of the actions
    std::optional<std::uint64_t> word;  // it came to its next one
  };
  // So many instructions or actions, or to its next word. A system call is one, however long it waits. Actions: it stops before
  // the next one, and can't go on from there, as its shared memory is closed to it.
  Walk walk(Unit unit, std::uint64_t most) { return unit == Unit::action ? act(most) : step(most); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  // waitpid's status, once `run` has returned nothing.
  [[nodiscard]] std::uint64_t end_status() const { return to_word(end_status_); }
  // Where it is. It is gone when this returns.
  void kill() {
    if (pid_ < 0) return;
    (void)::kill(pid_, SIGKILL);
    while (pid_ > 0) (void)await();
  }

 private:
  Walk step(std::uint64_t most) {
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
#if defined(__x86_64__)
  Walk act(std::uint64_t most) {
    SharedStores stores(
        pid_, [](void* self) { return static_cast<Led*>(self)->await(); }, this);
    for (Walk w;;) {
      resume(PTRACE_SYSCALL);
      const int status = await();
      if (!WIFSTOPPED(status)) die("the end of a child that is led", to_word(status), 0);
      const int signal = WSTOPSIG(status);
      if (signal == (SIGTRAP | 0x80)) {
        if (!is_before_call()) {
          stores.after_call();
          continue;
        }
        if (w.steps == most) return w;
        stores.before_call();
        w.steps++;
      } else if (signal == SIGSEGV && stores.is_before_store()) {
        if (w.steps == most) return w;
        stores.let_store();
        w.steps++;
        w.stores++;
      } else if ((w.word = word_of(status))) {
        stores.open();
        return w;
      }
    }
  }
  [[nodiscard]] bool is_before_call() const {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, pid_, sizeof info, &info) < 0) die("ptrace", to_word(errno), 0);
    return info.op == PTRACE_SYSCALL_INFO_ENTRY;
  }
#else
  Walk act(std::uint64_t) { die("actions are known on x86-64 only", 0, 1); }
#endif

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
  int end_status_ = 0;
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

// How long an operation is: the most that it had when it came to its end.
struct Length {
  std::uint64_t instructions = 0, actions = 0, stores = 0;

  void take(Unit unit, const Led::Walk& walk) {
    if (!walk.word) return;
    std::uint64_t& longest = unit == Unit::action ? actions : instructions;
    longest = std::max(longest, walk.steps);
    stores = std::max(stores, walk.stores);
  }
  [[nodiscard]] std::string text() const {
    return std::to_string(instructions) + " instructions, " + std::to_string(actions) + " actions (" +
           std::to_string(stores) + " stores)";
  }
};

// Where to kill in an operation. `kill(unit, steps)` lets it run for so many instructions or actions and kills; it is false if
// the operation came to its end before.
//
// At 0, stride, 2 stride ..., until it was whole a few times in a row: it isn't always of one length.
template <class Kill>
void at_every(Unit unit, std::uint64_t stride, Kill&& kill) {
  int whole = 0;
  for (std::uint64_t steps = 0; whole < 5; steps += stride) whole = kill(unit, steps) ? 0 : whole + 1;
}
// At `count` instructions spread over its length.
template <class Kill>
void at_some(std::uint64_t count, Random& random, const Length& length, Kill&& kill) {
  if (count == 0) return;
  while (kill(Unit::instruction, UINT64_MAX)) continue;
  const std::uint64_t n = length.instructions;
  for (std::uint64_t i = 0; i < count; i++) (void)kill(Unit::instruction, (n * i + random(n)) / count);
}

// Which kills: of the arguments of a program.
struct Plan {
  static constexpr std::uint64_t short_operation = 3000;  // instructions

  std::string only;  // the operation; empty: each
  Unit unit = Unit::action;
  std::uint64_t stride = 1;

  // `arguments`: "every" or "actions", ..., OP [STRIDE], with OP at `at`.
  static Plan of(const std::vector<std::string>& arguments, std::size_t at) {
    Plan plan;
    if (arguments.size() <= at) return plan;
    plan.only = arguments[at];
    if (arguments[1] == "every") plan.unit = Unit::instruction;
    if (arguments.size() > at + 1) plan.stride = std::strtoull(arguments[at + 1].c_str(), nullptr, 10);
    return plan;
  }
  // All that there is to do in an operation: every action, which stands for every instruction (see shared_stores.hpp). Where
  // actions can't be told, `some` instructions in a check. At full length instructions beside actions too: all of a short
  // operation, of others eight times `some`. If actions do not stand for them, this is what shows it.
  template <class Kill>
  void carry_out(const std::string& name, std::uint64_t some, Random& random, const Length& length, Kill&& kill) const {
    if (!only.empty()) {
      if (only == name) at_every(unit, stride, kill);
      return;
    }
    if (knows_actions) at_every(Unit::action, 1, kill);
    const bool is_full = stress::length(0, 1) != 0;
    at_some(is_full ? 8 * some : knows_actions ? 0 : some, random, length, kill);
    if (is_full && length.instructions <= short_operation) at_every(Unit::instruction, 1, kill);
  }
};

}  // namespace stress
