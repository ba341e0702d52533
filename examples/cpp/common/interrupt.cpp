// SPDX-License-Identifier: Apache-2.0
// The handler of SIGINT, and the loader whose wait it ends.
#include "interrupt.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>

namespace common {
namespace {

// Lock-free atomics are what a signal handler may touch.
std::atomic<bool> requested{false};
std::atomic<feedlane::Loader*> watched{nullptr};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<feedlane::Loader*>::is_always_lock_free);

extern "C" void on_interrupt(int) {
  const int saved = errno;
  // Handler and loop share a thread, others block the signal: program order is all the order there is to keep.
  requested.store(true, std::memory_order_relaxed);
  feedlane::Loader* const loader = watched.load(std::memory_order_relaxed);
  // The signal itself ends a wait that is under way; this ends one that is about to begin.
  if (loader != nullptr) loader->interrupt();
  errno = saved;
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second Ctrl-C ends the program at once
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

bool interrupt_requested() { return requested.load(std::memory_order_relaxed); }

InterruptsLoader::InterruptsLoader(feedlane::Loader& loader) { watched.store(&loader, std::memory_order_relaxed); }
InterruptsLoader::~InterruptsLoader() { watched.store(nullptr, std::memory_order_relaxed); }

}  // namespace common
