// SPDX-License-Identifier: Apache-2.0
// Starts and joins the worker threads.
#include "worker_threads.hpp"

#include <signal.h>

#include "complain.hpp"

namespace common {

WorkerThreads::~WorkerThreads() {
  feedlane::Error ignored;
  loader_.stop(ignored);
  for (std::thread& thread : threads_) thread.join();
}

void WorkerThreads::start(int32_t count) {
  // Threads inherit the mask: Ctrl-C is for the trainer's thread, whose wait it ends.
  sigset_t interrupt;
  sigset_t before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &before);
  for (int32_t worker = 0; worker < count; worker++) threads_.emplace_back([this] { work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void WorkerThreads::work() {
  feedlane::Error error;
  loader_.run_worker(error);
  if (!error) return;
  complain("worker", error);
  failed_.store(true, std::memory_order_release);  // pairs with failed()
  loader_.interrupt();
}

}  // namespace common
