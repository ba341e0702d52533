// SPDX-License-Identifier: Apache-2.0
// Which signals are blocked, and which are not.
#include "os/signals.hpp"

namespace feedlane::os {
namespace {

// signal(7)
bool is_ignored_by_default(int number) {
  return number == SIGCHLD || number == SIGCONT || number == SIGURG || number == SIGWINCH;
}

}  // namespace

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
