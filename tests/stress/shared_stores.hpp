// SPDX-License-Identifier: Apache-2.0
// A traced process that stops before each store to memory that it shares. Its shared mappings are closed to it, by calls of
// mprotect that are made in it, so that such a store is a fault; they are open to system calls that may write there, to those
// that change what is mapped, and to children that it starts. One thread, x86-64.
#pragma once

#if defined(__x86_64__)

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "shared.hpp"

namespace stress {

class SharedStores {
 public:
  // `await` returns the status of the next stop of `pid`, which has just made a system call and isn't inside one.
  SharedStores(pid_t pid, int (*await)(void*), void* self) : pid_(pid), await_(await), self_(self) {
    instruction_ = registers().rip - 2;
    constexpr std::uint64_t syscall_instruction = 0x050f;
    if ((static_cast<std::uint64_t>(::ptrace(PTRACE_PEEKTEXT, pid_, instruction_, nullptr)) & 0xffff) !=
        syscall_instruction)
      die("a process behind a system call", 0, 1);
    close();
  }

  // It goes on by itself.
  void open() {
    protect(PROT_READ | PROT_WRITE);
    is_open_ = true;
  }

  // It is about to make a system call.
  void before_call() {
    const user_regs_struct r = registers();
    if (r.orig_rax == SYS_clone3) die("a thread of a process that is led: system call", r.orig_rax, 0);
    if (is_open_ || !may_write(r)) return;
    // In its place a number that there isn't; then it is made again.
    user_regs_struct none = r;
    none.orig_rax = UINT64_MAX;
    set(none);
    await_call();
    open();
    user_regs_struct again = r;
    again.rip -= 2;
    again.rax = r.orig_rax;
    set(again);
    await_call();
  }
  // It has made it.
  void after_call() {
    const auto result = static_cast<std::int64_t>(registers().rax);
    if (result == -EFAULT && !is_open_)
      die("a system call may write shared memory: its number", registers().orig_rax, 0);
    constexpr std::int64_t first_restart = 512, last_restart = 516;  // ERESTARTSYS and so on: it is made again
    const bool is_again = -result >= first_restart && -result <= last_restart;
    if (is_open_ && !is_again) close();
  }
  // Whether it has stopped, by SIGSEGV, before a store to shared memory.
  [[nodiscard]] bool is_before_store() const {
    siginfo_t info{};
    if (::ptrace(PTRACE_GETSIGINFO, pid_, nullptr, &info) != 0) die("ptrace", static_cast<std::uint64_t>(errno), 0);
    return info.si_code == SEGV_ACCERR && contains(reinterpret_cast<std::uint64_t>(info.si_addr));
  }
  void let_store() {
    open();
    for (int signal = 0; signal != SIGTRAP;) {
      resume(PTRACE_SINGLESTEP);
      const int status = await_(self_);
      if (!WIFSTOPPED(status)) die("the end of a process that is led", static_cast<std::uint64_t>(status), 0);
      signal = WSTOPSIG(status);
      if (signal != SIGTRAP && signal != SIGCHLD)
        die("a signal instead of a step", static_cast<std::uint64_t>(signal), SIGTRAP);
    }
    protect(PROT_READ);
    is_open_ = false;
  }

 private:
  using Region = std::pair<std::uint64_t, std::uint64_t>;

  [[nodiscard]] bool contains(std::uint64_t address) const {
    return std::any_of(regions_.begin(), regions_.end(),
                       [&](const Region& r) { return address >= r.first && address < r.second; });
  }
  [[nodiscard]] bool may_write(const user_regs_struct& r) const {
    if (r.orig_rax == SYS_rt_tgsigqueueinfo) return false;  // a word; what follows must be its signal
    constexpr std::array<std::uint64_t, 7> always{SYS_mmap, SYS_mprotect, SYS_munmap, SYS_mremap,
                                                  SYS_fork, SYS_vfork,    SYS_clone};
    if (std::find(always.begin(), always.end(), r.orig_rax) != always.end()) return true;
    const std::array<std::uint64_t, 6> arguments{r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9};
    return std::any_of(arguments.begin(), arguments.end(), [&](std::uint64_t a) { return contains(a); });
  }

  // What is mapped now. All of it is open, as far as it may be.
  void close() {
    regions_.clear();
    std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
    for (std::string line; std::getline(maps, line);) {
      const std::size_t dash = line.find('-'), space = line.find(' ');
      if (space == std::string::npos || line.compare(space + 1, 2, "rw") != 0 || line[space + 4] != 's') continue;
      regions_.emplace_back(std::stoull(line, nullptr, 16), std::stoull(line.substr(dash + 1), nullptr, 16));
    }
    protect(PROT_READ);
    is_open_ = false;
  }
  void protect(int how) const {
    for (const auto& [begin, end] : regions_) {
      const user_regs_struct before = registers();
      user_regs_struct r = before;
      r.rip = instruction_;
      r.rax = SYS_mprotect;
      r.orig_rax = UINT64_MAX;
      r.rdi = begin;
      r.rsi = end - begin;
      r.rdx = static_cast<std::uint64_t>(how);
      set(r);
      await_call();
      await_call();
      if (registers().rax != 0) die("mprotect in a process that is led", registers().rax, 0);
      set(before);
    }
  }

  // To the begin of its next system call, or to the end of that in which it is.
  void await_call() const {
    constexpr int system_call = SIGTRAP | 0x80;
    for (int signal = 0; signal != system_call;) {
      resume(PTRACE_SYSCALL);
      const int status = await_(self_);
      if (!WIFSTOPPED(status)) die("the end of a process that is led", static_cast<std::uint64_t>(status), 0);
      signal = WSTOPSIG(status);
      if (signal != system_call && signal != SIGCHLD)
        die("a signal instead of a system call", static_cast<std::uint64_t>(signal), system_call);
    }
  }
  void resume(decltype(PTRACE_CONT) how) const {
    if (::ptrace(how, pid_, nullptr, nullptr) != 0) die("ptrace", static_cast<std::uint64_t>(errno), 0);
  }
  [[nodiscard]] user_regs_struct registers() const {
    user_regs_struct r{};
    if (::ptrace(PTRACE_GETREGS, pid_, nullptr, &r) != 0) die("ptrace", static_cast<std::uint64_t>(errno), 0);
    return r;
  }
  void set(const user_regs_struct& r) const {
    if (::ptrace(PTRACE_SETREGS, pid_, nullptr, &r) != 0) die("ptrace", static_cast<std::uint64_t>(errno), 0);
  }

  pid_t pid_;
  int (*await_)(void*);
  void* self_;
  std::uint64_t instruction_ = 0;  // a system call's
  std::vector<Region> regions_;
  bool is_open_ = false;
};

}  // namespace stress

#endif
