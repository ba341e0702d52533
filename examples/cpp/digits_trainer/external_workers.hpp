// SPDX-License-Identifier: Apache-2.0
// Starting workers oneself (--start external), as a cluster's launcher or another language's process library would:
// the loader hands out a connected descriptor, the new process finds its number in FEEDLANE_WORKER_FD. That is all.
#pragma once

#include <feedlane/loader.hpp>

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace digits {

class ExternalWorkers {
 public:
  /// `most_starts` bounds how many processes are ever started: workers that die at once must not be replaced for ever.
  explicit ExternalWorkers(int64_t most_starts) : most_starts_(most_starts) {}
  /// Waits for all of them to end, so the loader, whose end is their sign to leave, must have been destroyed before.
  ~ExternalWorkers();
  ExternalWorkers(const ExternalWorkers&) = delete;
  ExternalWorkers& operator=(const ExternalWorkers&) = delete;

  /// Starts this program once for each worker that `loader` misses: all of them at first, later those that have died.
  /// Throws.
  void start_missing(feedlane::Loader& loader);

 private:
  int start(int fd);

  const int64_t most_starts_;
  std::vector<pid_t> processes_;
};

}  // namespace digits
