// SPDX-License-Identifier: Apache-2.0
// The steady state: from the sampler to the trainer and back nothing is asked of the system, neither memory nor anything
// else, as long as neither side has to wait for the other. Once one thread is trainer and worker in turn; once they are two
// processes, and words beside the loader tell each that it needn't wait. Gets from an arena by the owner and a member.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>

#include "support/allocation.hpp"
#include "support/arena_numbers.hpp"
#include "support/process.hpp"
#include "support/sandbox.hpp"
#include "support/skip.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

constexpr std::int64_t batches = 1'000'000;
constexpr std::int64_t warm_up = 10'000;

// What one process has found.
struct Counts {
  std::int64_t batches = 0, allocations = -1, page_faults = -1;
  std::int64_t system_call = -1;  // number of the first one, -1: there was none
  bool is_filtered = false;
};

// In memory that the processes share.
struct Shared {
  Counts trainer, worker;
  std::atomic<std::int64_t> may_take{0}, made{0};  // tasks, batches
  std::atomic<bool> worker_is_done{false}, is_over{false};
};
Shared* shared = nullptr;
Counts* counts = nullptr;  // of this process

[[noreturn]] void end() {
  shared->is_over.store(true, std::memory_order_release);
  ::_exit(0);
}

void tell_system_call(int, siginfo_t* info, void*) {
  counts->system_call = info->si_syscall;
  end();
}

// From here on the first system call but those that this test makes itself ends this process.
bool refuse_system_calls() {
  struct sigaction action {};
  action.sa_sigaction = tell_system_call;
  action.sa_flags = SA_SIGINFO;
  // A crash ends this process at once: what doctest does about one needs the system.
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) (void)std::signal(signal, SIG_DFL);
  return ::sigaction(SIGSYS, &action, nullptr) == 0 &&
         filter_system_calls({SYS_getrusage, SYS_sched_yield, SYS_exit_group}, SECCOMP_RET_ALLOW, SECCOMP_RET_TRAP);
}

long page_faults() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

// Runs turn() so often, first as warm-up and then in the steady state; ends early if it returns false.
template <class F>
void count_steadily(std::int64_t most, F&& turn) {
  const auto run = [&](std::int64_t turns) {
    for (std::int64_t i = 0; i < turns && turn(); i++) counts->batches++;
  };
  run(warm_up);
  if (counts->batches != warm_up) end();
  counts->is_filtered = refuse_system_calls();
  if (!counts->is_filtered) end();
  const std::int64_t allocated = all_allocations();
  const long faults = page_faults();
  run(most);
  counts->allocations = all_allocations() - allocated;
  counts->page_faults = page_faults() - faults;
}

// The worker's part of one batch, whose task is there.
bool make(feedlane_worker* w) {
  const feedlane_task* task = nullptr;
  if (feedlane_worker_next(w, 0, &task, nullptr) != FEEDLANE_OK) return false;
  for (std::uint64_t row = 0; row < task->count; row++)
    static_cast<std::int64_t*>(task->tensors[0].data)[row] = task->indices[row];
  return feedlane_task_commit(task, task->count, nullptr) == FEEDLANE_OK;
}

// The trainer's part of one that has been made.
bool take_made(feedlane_loader* l) {
  static auto batch = fresh<feedlane_batch>();
  return feedlane_loader_next(l, 0, &batch, nullptr) == FEEDLANE_OK && batch.batch == counts->batches &&
         static_cast<std::int64_t*>(batch.tensors[0].data)[1] == 2 * counts->batches + 1 &&
         feedlane_batch_release(l, batch.token) == FEEDLANE_OK;
}

// In a process of its own: trainer and worker in turn.
void run_in_one_thread(Findings& f) {
  counts = &shared->trainer;
  Setup setup((batches + warm_up) * 2, 2);
  setup.config.workers = 1;
  setup.config.start = FEEDLANE_START_THREAD;
  setup.config.prefetch_factor = 8;
  const Loader loader = setup.create();
  begin(loader.get(), 0);
  feedlane_worker* w = nullptr;
  EXPECT(f, feedlane_worker_attach(-1, loader.get(), FEEDLANE_FOREVER, &w, nullptr) == FEEDLANE_OK);
  EXPECT(f, feedlane_worker_ready(w, FEEDLANE_OK, nullptr, nullptr) == FEEDLANE_OK);
  wait_until_ready(loader.get(), 1);
  count_steadily(batches, [&] { return make(w) && take_made(loader.get()); });
  end();
}

constexpr std::int64_t pair_batches = 200'000;
constexpr std::int64_t ahead = 32;  // tasks that are in the worker's lane while it makes a batch; half of the window

// False: the other process has ended.
template <class T>
bool wait_for(const std::atomic<T>& word, T least) {
  while (word.load(std::memory_order_acquire) < least) {
    if (shared->is_over.load(std::memory_order_acquire)) return false;
    (void)::sched_yield();
  }
  return true;
}

// The other process, which gets its descriptor later: forked before the trainer makes anything, as each page that is there
// at a fork faults once more when the trainer writes to it next, however late.
class Peer {
 public:
  explicit Peer(void (*run)(int fd)) {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) != 0 || ::fork() != 0) return;
    counts = &shared->worker;
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)::close(ends_[0]);
    run(receive_descriptor(ends_[1]));
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    for (const int end : ends_) (void)::close(end);
  }
  // Gives `fd` away.
  [[nodiscard]] bool send(int fd) {
    const bool sent = send_descriptors(ends_[0], "d", {fd});
    (void)::close(fd);
    return sent;
  }

 private:
  int ends_[2] = {-1, -1};
};

[[noreturn]] void run_worker(int fd) {
  feedlane_worker* w = nullptr;
  if (feedlane_worker_attach(fd, nullptr, patience_ns, &w, nullptr) != FEEDLANE_OK ||
      feedlane_worker_ready(w, FEEDLANE_OK, nullptr, nullptr) != FEEDLANE_OK)
    ::_exit(1);
  count_steadily(pair_batches, [&] {
    if (!wait_for(shared->may_take, counts->batches + 1) || !make(w)) return false;
    shared->made.store(counts->batches + 1, std::memory_order_release);
    return true;
  });
  shared->worker_is_done.store(true, std::memory_order_release);
  (void)wait_for(shared->is_over, true);
  ::_exit(0);
}

// In a process of its own: the trainer, with a worker in a process of its own.
void run_pair(Findings& f) {
  Peer worker(run_worker);
  counts = &shared->trainer;
  Setup setup((pair_batches + warm_up) * 2, 2);
  setup.external(1).config.prefetch_factor = 2 * ahead;
  const Loader loader = setup.create();
  feedlane_loader* l = loader.get();
  std::int32_t id = -1, fd = -1;
  EXPECT(f, feedlane_loader_open_worker(l, &id, &fd, nullptr) == FEEDLANE_OK);
  EXPECT(f, worker.send(fd));
  begin(l, 0);
  wait_until_ready(l, 1);
  shared->may_take.store(ahead, std::memory_order_release);
  count_steadily(pair_batches, [&] {
    if (!wait_for(shared->made, counts->batches + 1) || !take_made(l)) return false;
    shared->may_take.store(counts->batches + 1 + ahead, std::memory_order_release);
    return true;
  });
  (void)wait_for(shared->worker_is_done, true);
  end();
}

constexpr std::int64_t gets = 100'000;

// Gets each of two entries, one of which another process has put.
bool get_both(feedlane_arena* a) {
  feedlane_batch batch;
  for (const char* key : {"owner's", "member's"})
    if (arenas::get(a, key, batch) != FEEDLANE_OK || arenas::first_of(batch) != 1 ||
        feedlane_batch_release(a, batch.token) != FEEDLANE_OK)
      return false;
  return true;
}

[[noreturn]] void run_member(int fd) {
  feedlane_arena* a = nullptr;
  if (feedlane_arena_join(fd, nullptr, patience_ns, &a, nullptr) != FEEDLANE_OK ||
      arenas::put(a, "member's", 1) != FEEDLANE_OK || !get_both(a))
    end();
  shared->made.store(1, std::memory_order_release);
  count_steadily(gets, [&] { return get_both(a); });
  shared->worker_is_done.store(true, std::memory_order_release);
  (void)wait_for(shared->is_over, true);
  ::_exit(0);
}

// In a process of its own: the owner of an arena, with a member in a process of its own.
void run_arena(Findings& f) {
  Peer member(run_member);
  counts = &shared->trainer;
  auto config = fresh<feedlane_arena_config>();
  config.bytes = 1 << 20;
  feedlane_arena* a = nullptr;
  std::int32_t fd = -1;
  EXPECT(f, feedlane_arena_create(&config, &a, nullptr) == FEEDLANE_OK);
  EXPECT(f, arenas::put(a, "owner's", 1) == FEEDLANE_OK);
  EXPECT(f, feedlane_arena_offer(a, &fd, nullptr) == FEEDLANE_OK);
  EXPECT(f, member.send(fd));
  EXPECT(f, get_both(a));  // which serves the member
  while (shared->made.load(std::memory_order_acquire) == 0 && !shared->is_over.load(std::memory_order_acquire))
    (void)feedlane_arena_receive(a, 1'000'000, nullptr, nullptr);
  count_steadily(gets, [&] { return get_both(a); });
  (void)wait_for(shared->worker_is_done, true);
  end();
}

// False: such a filter can't be had here.
bool run(void (*trainer)(Findings&)) {
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  shared = new (memory) Shared;
  if (in_child([](Findings& f) {
        EXPECT(f, filter_system_calls({SYS_getrusage}, SECCOMP_RET_ALLOW, SECCOMP_RET_ALLOW));
      }) != "")
    return false;
  Child child(trainer);
  CHECK(child.finish() == "the child did not come to its end");  // as it ends within
  CHECK(child.wait_status() == 0);
  return true;
}

void check(const Counts& found, std::int64_t needed) {
  CHECK(found.is_filtered);
  CHECK(found.system_call == -1);
  CHECK(found.batches == warm_up + needed);
  CHECK(found.allocations == 0);
  CHECK(found.page_faults == 0);
}

}  // namespace

// promise: steady-no-system-calls
TEST_CASE("a million batches without workers cause no system call, no allocation and no page fault") {
  if (!run(run_in_one_thread)) return skip("system calls can't be filtered here");
  check(shared->trainer, batches);
}

// promise: steady-no-system-calls
TEST_CASE("trainer and worker processes that don't wait cause no system call, no allocation and no page fault") {
  if (!run(run_pair)) return skip("system calls can't be filtered here");
  for (const bool is_worker : {false, true}) {
    CAPTURE(is_worker);
    check(is_worker ? shared->worker : shared->trainer, pair_batches);
  }
}

// promise: arena-zero-copy
TEST_CASE("gets that find their entry cause no system call, no allocation and no page fault") {
  if (!run(run_arena)) return skip("system calls can't be filtered here");
  for (const bool is_member : {false, true}) {
    CAPTURE(is_member);
    check(is_member ? shared->worker : shared->trainer, gets);
  }
}
