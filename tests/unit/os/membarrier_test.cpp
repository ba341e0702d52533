// SPDX-License-Identifier: Apache-2.0
// Barriers across processes, and a kernel that refuses them.
#include "os/membarrier.hpp"

#include <doctest/doctest.h>
#include <sys/syscall.h>

#include <cerrno>

#include "support/sandbox.hpp"
#include "support/skip.hpp"
#include "unit/os/fixtures.hpp"

using feedlane::os::join_barriers;
using feedlane::os::pass_barrier;
using feedlane::test::in_child;
using feedlane::test::skip;

TEST_CASE("a registered process can issue barriers, and errno is kept") {
  errno = 7;
  if (!join_barriers()) return skip("this kernel has no membarrier");
  CHECK(pass_barrier());
  CHECK(join_barriers());
  CHECK(errno == 7);
}

TEST_CASE("where membarrier is refused, registration fails, and so does a barrier of an already registered process") {
  CHECK(in_child([] { return feedlane::test::refuse_system_call(SYS_membarrier) && !join_barriers(); }));
  if (!join_barriers()) return skip("this kernel has no membarrier");
  CHECK(in_child([] {
    if (!join_barriers() || !feedlane::test::refuse_system_call(SYS_membarrier)) return false;
    errno = 7;
    return !pass_barrier() && errno == 7;
  }));
}
