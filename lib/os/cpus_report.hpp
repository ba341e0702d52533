// SPDX-License-Identifier: Apache-2.0
// How a forked child tells its parent whether it runs on the processors that it should.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/placement.hpp"

namespace feedlane::os {

// The result of run_on in a forked child, told to its parent. The child alone sets its processors: as soon as it runs, a data set's
// `open` may set others.
class CpusReport {
 public:
  Status open(Error& error) {
    return open_pipe(read_end_, write_end_) ? FEEDLANE_OK : error.os(errno, "pipe2");
  }
  // In the child, which ends if it can't run on them.
  void set(const NumberSet& cpus) const {
    const int reason = run_on(cpus);
    (void)!::write(write_end_.get(), &reason, sizeof reason);
    if (reason != 0) ::_exit(1);
  }
  // In the parent: waits for the report, or for the child's end without one. Other children may have the write end, so that its
  // end would say nothing. Returns 0, or errno.
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
