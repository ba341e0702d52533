// SPDX-License-Identifier: Apache-2.0
// How tests wait for workers without looking at a clock: a gate that workers stand before, and reports of what they do.
// Both are descriptors that started processes inherit under the same number.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <vector>

#include "api.hpp"

namespace feedlane::test {

// True if `fd` became readable (or its other end was closed) in time.
inline bool wait_readable(int fd, std::int64_t timeout_ns = patience_ns) {
  pollfd entry{fd, POLLIN, 0};
  const auto ms = static_cast<int>(timeout_ns / 1'000'000);
  int found = 0;
  do found = ::poll(&entry, 1, ms);
  while (found < 0 && errno == EINTR);
  return found == 1;
}

// Shut at first; once opened it stays open, for everybody, until it is shut again.
class Gate {
 public:
  Gate() : fd_(::eventfd(0, EFD_NONBLOCK)) {}
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { (void)::close(fd_); }
  [[nodiscard]] int fd() const { return fd_; }
  void open() const {
    const std::uint64_t one = 1;
    (void)!::write(fd_, &one, sizeof one);
  }
  void shut() const {
    std::uint64_t opened = 0;
    (void)!::read(fd_, &opened, sizeof opened);
  }

 private:
  int fd_;
};

struct Report {
  enum What : std::int64_t { opened, began, closed };
  std::int64_t what;
  std::int64_t pid;
  std::int64_t index;
  std::int64_t batch;
  std::int64_t attempt;
  std::int64_t worker;
};

inline void send_report(int fd, const Report& report) {
  if (fd >= 0) (void)!::write(fd, &report, sizeof report);  // atomic: far below PIPE_BUF
}

class Reports {
 public:
  Reports() {
    int pair[2] = {-1, -1};
    (void)!::pipe2(pair, O_CLOEXEC);
    read_ = pair[0];
    write_ = pair[1];
    (void)::fcntl(write_, F_SETFD, 0);
  }
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;
  ~Reports() {
    (void)::close(read_);
    (void)::close(write_);
  }
  [[nodiscard]] int fd() const { return write_; }

  // The next report; nothing when none came in time.
  [[nodiscard]] std::optional<Report> next(std::int64_t timeout_ns = patience_ns) const {
    Report report{};
    if (!wait_readable(read_, timeout_ns) || ::read(read_, &report, sizeof report) != sizeof report)
      return std::nullopt;
    return report;
  }
  // Waits for a report of that kind, whatever comes before.
  [[nodiscard]] std::optional<Report> wait_for(Report::What what) const {
    for (;;) {
      const auto report = next();
      if (!report || report->what == what) return report;
    }
  }
  // All that have come.
  [[nodiscard]] std::vector<Report> drain() const {
    std::vector<Report> all;
    for (auto report = next(0); report; report = next(0)) all.push_back(*report);
    return all;
  }

 private:
  int read_;
  int write_;
};

}  // namespace feedlane::test
