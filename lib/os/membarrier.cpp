// SPDX-License-Identifier: Apache-2.0
// membarrier(2), called directly because the C library has no wrapper.
#include "os/membarrier.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace feedlane::os {
namespace {

long membarrier(int command) {
  const int saved = errno;
  const long result = ::syscall(SYS_membarrier, command, 0, 0);
  errno = saved;
  return result;
}

}  // namespace

bool join_barriers() noexcept {
  const long offered = membarrier(MEMBARRIER_CMD_QUERY);
  return offered > 0 && (offered & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0 &&
         membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0 && pass_barrier();
}

bool pass_barrier() noexcept { return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0; }

}  // namespace feedlane::os
