// SPDX-License-Identifier: Apache-2.0
// Limits of this process, set for as long as a test wants them.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/process.hpp"

namespace feedlane::test {

inline void limit(decltype(RLIMIT_AS) which, std::uint64_t most) {
  rlimit now{};
  (void)::getrlimit(which, &now);
  now.rlim_cur = most;
  if (::setrlimit(which, &now) != 0) ::_exit(2);
}

// While it lives no descriptor can be opened but the `more` lowest of those that are free.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t more) {
    (void)::getrlimit(RLIMIT_NOFILE, &before_);
    const std::vector<int> open = open_descriptors();
    // The limit is one of numbers: holes between those that are open count too.
    std::size_t number = 0;
    for (std::size_t at = 0, free = 0;; number++) {
      if (at < open.size() && static_cast<std::size_t>(open[at]) == number) at++;
      else if (free++ == more) break;
    }
    limit(RLIMIT_NOFILE, number);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace feedlane::test
