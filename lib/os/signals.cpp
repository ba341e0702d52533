// SPDX-License-Identifier: Apache-2.0
// Selects the signals to block, and names signals.
#include "os/signals.hpp"

namespace feedlane::os {
namespace {

// See signal(7).
bool is_ignored_by_default(int number) {
  return number == SIGCHLD || number == SIGCONT || number == SIGURG || number == SIGWINCH;
}

}  // namespace

// From 2.32 on glibc has a function for this.
const char* signal_name(int number) {
  static constexpr struct {
    int number;
    const char* name;
  } names[] = {{SIGABRT, "SIGABRT"}, {SIGALRM, "SIGALRM"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
               {SIGHUP, "SIGHUP"},   {SIGILL, "SIGILL"},   {SIGINT, "SIGINT"},   {SIGIO, "SIGIO"},
               {SIGKILL, "SIGKILL"}, {SIGPIPE, "SIGPIPE"}, {SIGPROF, "SIGPROF"}, {SIGPWR, "SIGPWR"},
               {SIGQUIT, "SIGQUIT"}, {SIGSEGV, "SIGSEGV"}, {SIGSYS, "SIGSYS"},   {SIGTERM, "SIGTERM"},
               {SIGTRAP, "SIGTRAP"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGVTALRM, "SIGVTALRM"},
               {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}};
  for (const auto& n : names)
    if (n.number == number) return n.name;
  return "a real-time signal";
}

SignalBlock::SignalBlock() {
  sigset_t all;
  (void)::sigfillset(&all);
  for (int number = 1; number < NSIG; number++) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN || (action.sa_handler == SIG_DFL && is_ignored_by_default(number)))
      (void)::sigdelset(&all, number);
  }
  (void)::pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalBlock::~SignalBlock() { (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace feedlane::os
