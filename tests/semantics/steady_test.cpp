// SPDX-License-Identifier: Apache-2.0
// The steady state: from the sampler to the trainer and back nothing is asked of the system, neither memory nor anything
// else. One thread is trainer and worker by turns, so that nobody ever waits.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "support/allocation.hpp"
#include "support/process.hpp"
#include "support/sandbox.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t batches = 1'000'000;
constexpr std::int64_t warm_up = 10'000;

struct Counts {
  std::int64_t batches, allocations, page_faults;
  std::int64_t system_call;  // number of the first one, -1: there was none
};

int report = -1;
Counts counts{0, 0, 0, -1};

[[noreturn]] void tell() {
  (void)!::write(report, &counts, sizeof counts);
  ::_exit(0);
}

void tell_system_call(int, siginfo_t* info, void*) {
  counts.system_call = info->si_syscall;
  tell();
}

// From here on the first system call but those that `tell` makes ends this process.
bool refuse_system_calls() {
  struct sigaction action {};
  action.sa_sigaction = tell_system_call;
  action.sa_flags = SA_SIGINFO;
  // A crash ends this process at once: what doctest does about one needs the system.
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) (void)std::signal(signal, SIG_DFL);
  return ::sigaction(SIGSYS, &action, nullptr) == 0 &&
         filter_system_calls({SYS_getrusage, SYS_write, SYS_exit_group}, SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP);
}

long page_faults() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

// In a process of its own: trainer and worker by turns.
void run_steadily(Findings& f) {
  Setup setup((batches + warm_up) * 2, 2);
  setup.config.workers = 1;
  setup.config.start = FEEDLANE_START_THREAD;
  setup.config.prefetch_factor = 8;
  const Loader loader = setup.create();
  feedlane_loader* l = loader.get();
  begin(l, 0);
  feedlane_worker* w = nullptr;
  EXPECT(f, feedlane_loader_local_worker(l, &w, nullptr) == FEEDLANE_OK);
  EXPECT(f, feedlane_worker_ready(w, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
  auto batch = fresh<feedlane_batch>();
  std::int64_t& done = counts.batches;
  const auto turn = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; i++) {
      const feedlane_task* task = nullptr;
      while (feedlane_worker_next(w, 0, &task, nullptr) == FEEDLANE_TIMEOUT) (void)feedlane_loader_poll(l, nullptr);
      if (task == nullptr) return;
      for (std::uint64_t row = 0; row < task->count; row++)
        static_cast<std::int64_t*>(task->tensors[0].data)[row] = task->indices[row];
      if (feedlane_task_commit(task, task->count, nullptr) != FEEDLANE_OK) return;
      if (feedlane_loader_next(l, 0, &batch, nullptr) != FEEDLANE_OK) return;
      if (batch.batch != done || static_cast<std::int64_t*>(batch.tensors[0].data)[1] != 2 * done + 1) return;
      if (feedlane_batch_release(l, batch.token) != FEEDLANE_OK) return;
      done++;
    }
  };
  turn(warm_up);
  EXPECT(f, refuse_system_calls());
  const std::int64_t allocated = all_allocations();
  const long faults = page_faults();
  turn(batches);
  counts.allocations = all_allocations() - allocated;
  counts.page_faults = page_faults() - faults;
  tell();
}

}  // namespace

TEST_CASE("a million batches: no system call, no allocation, no page fault") {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  report = pipe[1];
  Child child(run_steadily);
  (void)::close(pipe[1]);
  CHECK(::read(pipe[0], &counts, sizeof counts) == sizeof counts);
  (void)::close(pipe[0]);
  (void)child.finish();
  CHECK(counts.system_call == -1);
  CHECK(counts.batches == warm_up + batches);
  CHECK(counts.allocations == 0);
  CHECK(counts.page_faults == 0);
}
