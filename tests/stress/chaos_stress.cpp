// SPDX-License-Identifier: Apache-2.0
// 7. Faults: eight workers are killed, stopped and woken at random, samples dawdle and fail: every batch comes once, in order,
// with the right bytes; and nothing grows.
// promise: order-in-order, fault-any-moment, worker-random-kills
#include <sys/wait.h>

#include "chaos_run.hpp"

int main() {
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) {
    const feedlane_dataset d = chaos::dataset();
    return feedlane_worker_run(fd, nullptr, &d, nullptr) == FEEDLANE_OK ? 0 : 1;
  }
  const auto seconds = static_cast<std::int64_t>(stress::length(30, 180));
  feedlane_loader* loader = chaos::create(nullptr, 0);
  chaos::end(loader, seconds, chaos::run(loader, seconds), stdout);
  if (::waitpid(-1, nullptr, WNOHANG) != -1) stress::die("children left", 1, 0);
  return 0;
}
