// SPDX-License-Identifier: Apache-2.0
// Namespaces, where this user may have them. In a header, for programs that are linked with nothing else of support.
#pragma once

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace feedlane::test {

// Whether unshare(CLONE_NEWPID) would be allowed; tried in a child, as it can't be taken back.
inline bool has_pid_namespaces() {
  const pid_t probe = ::fork();
  if (probe == 0) ::_exit(::unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int status = -1;
  return ::waitpid(probe, &status, 0) == probe && status == 0;
}

}  // namespace feedlane::test
