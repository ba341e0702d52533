// SPDX-License-Identifier: Apache-2.0
#include "os/membarrier.hpp"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "support/sandbox.hpp"

using feedlane::os::join_barriers;
using feedlane::os::pass_barrier;

namespace {

// What `run` says in a child, whose sandbox ends with it.
template <class F>
bool in_child(F&& run) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run() ? 0 : 1);
  int status = -1;
  (void)::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("who has joined passes barriers, and errno stays as it was") {
  errno = 7;
  if (!join_barriers()) return;  // not on every kernel
  CHECK(pass_barrier());
  CHECK(join_barriers());
  CHECK(errno == 7);
}

TEST_CASE("where membarrier is refused nobody joins; whoever had joined is told") {
  CHECK(in_child([] { return feedlane::test::refuse_system_call(SYS_membarrier) && !join_barriers(); }));
  if (!join_barriers()) return;
  CHECK(in_child([] {
    if (!join_barriers() || !feedlane::test::refuse_system_call(SYS_membarrier)) return false;
    errno = 7;
    return !pass_barrier() && errno == 7;
  }));
}
