// SPDX-License-Identifier: Apache-2.0
// Reports to a parent process whether its forked child could restrict itself to the requested processors.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/placement.hpp"

namespace feedlane::os {

// Carries the result of run_on from a forked child to its parent. The child sets its processors itself, because its
// data set's `open` may set others as soon as the child runs.
class CpusReport {
 public:
  Status open(Error& error) { return open_pipe(read_end_, write_end_) ? FEEDLANE_OK : error.os(errno, "pipe2"); }
  // In the child: sets its processors and reports the result. Exits on failure.
  void set(const NumberSet& cpus) const {
    const int reason = run_on(cpus);
    (void)!::write(write_end_.get(), &reason, sizeof reason);
    if (reason != 0) ::_exit(1);
  }
  // In the parent: waits for the report, or for the child's end without one. It watches the pidfd because end-of-file
  // doesn't show the child's end: other children may hold the write end too. Returns 0, or the child's errno.
  [[nodiscard]] int wait(const Fd& pidfd) const {
    int reason = 0;
    pollfd entries[] = {{read_end_.get(), POLLIN, 0}, {pidfd.get(), POLLIN, 0}};
    while (pidfd && ::poll(entries, 2, -1) < 0 && errno == EINTR) {
    }
    return ::read(read_end_.get(), &reason, sizeof reason) == sizeof reason ? reason : 0;
  }

 private:
  Fd read_end_, write_end_;
};

}  // namespace feedlane::os
