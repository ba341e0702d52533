// SPDX-License-Identifier: Apache-2.0
// Processes that refuse themselves every system call but those that docs/sandbox.md names, and are killed by any other.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/process.hpp"
#include "support/sandbox.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// Numbers of the names on the page, -1: not on this machine.
#define CALL(name) \
  { #name, SYS_##name }
const std::map<std::string, long> numbers{
    CALL(brk),          CALL(clock_gettime), CALL(close),    CALL(epoll_pwait),  CALL(exit_group),
    CALL(fallocate),    CALL(fcntl),         CALL(futex),    CALL(getpgid),      CALL(getpid),
    CALL(madvise),      CALL(mmap),          CALL(mprotect), CALL(munmap),       CALL(pidfd_send_signal),
    CALL(ppoll),        CALL(prctl),         CALL(recvmsg),  CALL(rt_sigaction), CALL(rt_sigprocmask),
    CALL(rt_sigreturn), CALL(sendmsg),       CALL(waitid),   CALL(write),        CALL(kill),
    CALL(epoll_ctl),    CALL(lseek),         CALL(fstat),    CALL(openat),       CALL(read),
    CALL(membarrier),
#ifdef SYS_epoll_pwait2
    CALL(epoll_pwait2),
#else
    {"epoll_pwait2", -1},
#endif
#ifdef SYS_poll
    CALL(poll),         CALL(epoll_wait),
#else
    {"poll", -1},
    {"epoll_wait", -1},
#endif
};
#undef CALL

// The first column of the tables below a heading, up to the next one.
std::vector<long> calls_of(const std::string& heading) {
  std::ifstream page(SANDBOX_PAGE);
  std::vector<long> calls;
  bool is_below = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("#")) is_below = line == heading;
    if (!is_below || !line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find('|', 1));
    for (std::size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at)) {
      const std::size_t end = cell.find('`', at + 1);
      const auto found = numbers.find(cell.substr(at + 1, end - at - 1));
      REQUIRE_MESSAGE(found != numbers.end(), cell);
      if (found->second >= 0) calls.push_back(found->second);
      at = end + 1;
    }
  }
  REQUIRE(!calls.empty());
  return calls;
}

// What a worker's data set is opened with. Workers are forked: each has a copy.
struct Sandbox {
  std::vector<long> calls;  // none: no sandbox
  bool grows = false;
};

std::int32_t open(void* user_data, const feedlane_worker_info*, void** self, feedlane_error* err) {
  const auto& calls = static_cast<Sandbox*>(user_data)->calls;
  *self = user_data;
  if (calls.empty() || filter_system_calls(calls, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS)) return FEEDLANE_OK;
  (void)std::snprintf(err->text, sizeof err->text, "no filter of system calls");
  return FEEDLANE_E_UNSUPPORTED;
}

// Uses what a data set may use of the library: scratch memory and, with `grows`, more of the slot than was reserved from the
// start. Sample 5 fails at the first try, so its batch waits to be retried.
std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error* err) {
  static bool has_failed = false;
  if (task->indices[0] <= 5 && 5 < task->indices[0] + static_cast<std::int64_t>(task->count) && !has_failed) {
    has_failed = true;
    err->transient = 1;
    return FEEDLANE_E_SAMPLE;
  }
  if (feedlane_worker_scratch(task->worker, 1 << 20, 64) == nullptr) return FEEDLANE_E_MEMORY;
  for (std::uint64_t i = 0; i < task->count; i++)
    static_cast<std::int64_t*>(task->tensors[0].data)[i] = task->indices[i];
  if (!static_cast<Sandbox*>(self)->grows) return FEEDLANE_OK;
  const feedlane_field large = field("large", uint8_type, {static_cast<std::int64_t>(task->count), 100'000});
  feedlane_tensor added{};
  const std::int32_t s = feedlane_task_tensor(task, task->tensor_count, &large, &added, err);
  if (s == FEEDLANE_OK) static_cast<char*>(added.data)[added.bytes - 1] = 1;
  return s;
}

struct Sandboxed : Setup {
  Sandboxed(std::vector<long> calls, bool grows) : Setup(60, 4), sandbox{std::move(calls), grows} {
    auto table = fresh<feedlane_dataset>();
    table.user_data = &sandbox;
    table.open = open;
    table.fetch = fetch;
    forked(2, table);
    fields({field("index", int64_type)});
    config.slot_bytes = std::uint64_t{4} << 20;
    config.retries = 1;
  }
  Sandbox sandbox;
};

}  // namespace

// Each test is a process of its own: what was used first elsewhere would not be used for the first time here.
// promise: fault-sandbox
TEST_CASE("a worker limited to the documented system calls when its data set opens makes batches, retries and exits") {
  for (const bool grows : {false, true}) {
    CAPTURE(grows);
    std::vector<long> calls = calls_of("## A worker");
    if (grows)
      for (const long call : calls_of("### A slot that grows")) calls.push_back(call);
    const std::string found = in_child([&](Findings& f) {
      Sandboxed s(calls, grows);
      const Loader l = s.create();
      for (std::int64_t epoch = 0; epoch < 2; epoch++) {
        begin(l.get(), epoch);
        for (std::int64_t batch = 0; batch < 15; batch++) {
          Error e;
          f.expect(take(l.get(), &e).status == FEEDLANE_OK, e.text, __LINE__);
        }
        EXPECT(f, take(l.get()).status == FEEDLANE_END);
      }
      EXPECT(f, stats_of(l.get()).restarts == 0);
      EXPECT(f, stats_of(l.get()).retried >= 1);
    });
    CHECK_MESSAGE(found.empty(), found);
  }
}

// promise: fault-sandbox
TEST_CASE(
    "a trainer limited to the documented system calls after its first epoch runs further epochs with its workers") {
  const std::vector<long> calls = calls_of("## A trainer");
  const std::string found = in_child([&](Findings& f) {
    Sandboxed s({}, true);
    s.config.keep_workers = 1;
    Loader l = s.create();
    EXPECT(f, take_epoch(l.get(), 0).size() == 15);
    EXPECT(f, filter_system_calls(calls, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS));
    for (std::int64_t epoch = 1; epoch < 3; epoch++) EXPECT(f, take_epoch(l.get(), epoch).size() == 15);
    l.reset();
  });
  CHECK_MESSAGE(found.empty(), found);
}
