// SPDX-License-Identifier: Apache-2.0
// The trainer is killed at instructions of all that it does with a loader: create, begin and recover (a dead worker is replaced)
// for each way of starting workers; arm, poll, next, state, release, stop, destroy. Its workers end: those of a loader without
// lifeline by themselves, with their task done. A successor goes on from the newest state that was saved: each batch of the
// epoch once, in order, whole.
//   trainer_kills_stress                         each operation, at every action (beside threads: at a few instructions); with
//                                                FEEDLANE_STRESS=full at instructions too
//   trainer_kills_stress actions MODE OP         one operation, at every action; MODE: spawn, fork, external
//   trainer_kills_stress every MODE OP [STRIDE]  one operation, at every STRIDE-th instruction; MODE: spawn, fork, thread, external
// promise: trainer-any-instruction
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "chaos.hpp"
#include "nursery.hpp"
#include "support/api.hpp"
#include "support/slowness.hpp"

namespace {

enum class Op : std::uint8_t { none, create, begin, recover, open, arm, poll, next, state, release, stop, destroy };
constexpr std::array<const char*, 12> names{"none", "create", "begin", "recover", "open", "arm",
                                            "poll", "next",   "state", "release", "stop", "destroy"};
// Once in the life of a trainer; arm: it sleeps at least until the first batch.
bool is_once(Op op) { return op <= Op::recover || op == Op::arm || op >= Op::stop; }
// Depends on how workers are started.
bool is_of_start(Op op) { return op >= Op::begin && op <= Op::open; }
// Tens of thousands of instructions, of create hundreds of thousands: it looks how much memory there is.
bool is_long(Op op) { return op <= Op::open; }
constexpr std::array<const char*, 4> modes{"spawn", "fork", "thread", "external"};
constexpr std::int32_t workers = 2;
constexpr std::int64_t batches = 12;       // of the epoch
constexpr std::int64_t recover_after = 4;  // batches, when a worker is killed

void say(Op op) { stress::announce(static_cast<std::uint64_t>(op)); }
template <class F>
auto doing(Op op, F&& f) {
  say(op);
  const auto result = f();
  say(Op::none);
  return result;
}
void compare(const char* what, std::int64_t found, std::int64_t needed) {
  if (found != needed) stress::die(what, static_cast<std::uint64_t>(found), static_cast<std::uint64_t>(needed));
}

// ---- what survives the trainer ----

// Two states, of which the newest is the one that counts: a trainer may be killed while it writes the other one.
struct Checkpoints {
  std::atomic<std::uint64_t> count;  // saved so far; the newest is at (count - 1) % 2
  std::uint64_t bytes[2];
  std::int64_t next[2];  // the first batch that isn't in it
  unsigned char data[2][8192];
};

Checkpoints& checkpoints(int fd) {
  void* const memory = ::mmap(nullptr, sizeof(Checkpoints), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) stress::die("mmap", static_cast<std::uint64_t>(errno), 0);
  return *static_cast<Checkpoints*>(memory);
}

void save(feedlane_loader* l, const feedlane_batch& batch, Checkpoints& all, feedlane_error& e) {
  const std::uint64_t count = all.count.load(std::memory_order_relaxed), at = count % 2;
  const std::int32_t s = doing(Op::state, [&] {
    return feedlane_loader_state(l, batch.token, all.data[at], sizeof all.data[at], &all.bytes[at], &e);
  });
  if (s != FEEDLANE_OK) chaos::die("state", e);
  all.next[at] = batch.batch + 1;
  all.count.store(count + 1, std::memory_order_release);
}

// In the order of the samples: making a permutation is most of what would be walked through.
feedlane_loader* create(const void* state, std::uint64_t bytes, std::int32_t worker_count,
                        const std::function<void(feedlane_loader_config&)>& adjust) {
  feedlane_sampler* sampler = nullptr;
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  if (feedlane::test::sequential_sampler(batches * chaos::batch_size, &sampler, &e) != FEEDLANE_OK)
    chaos::die("sampler", e);
  feedlane_loader* const l = chaos::create(state, bytes, worker_count, 0, [&](feedlane_loader_config& c) {
    c.sampler = sampler;
    adjust(c);
  });
  (void)feedlane_sampler_destroy(&sampler);
  return l;
}

// ---- the trainer ----

class Trainer {
 public:
  Trainer(std::int32_t mode, int fd) : mode_(mode), saved_(checkpoints(fd)) { feedlane_init(&error_, sizeof error_); }

  // Ends after so many batches, by stop and destroy.
  int run(std::int64_t leave) {
    const feedlane_dataset dataset = chaos::dataset();
    (void)doing(Op::create, [&] {
      loader_ = create(nullptr, 0, workers, [&](feedlane_loader_config& c) {
        c.start = mode_;
        c.no_lifeline = mode_ == FEEDLANE_START_EXTERNAL ? 1 : 0;
        if (mode_ == FEEDLANE_START_FORK || mode_ == FEEDLANE_START_THREAD) c.dataset = &dataset;
      });
      return 0;
    });
    std::vector<std::thread> threads;
    for (std::int32_t i = 0; mode_ == FEEDLANE_START_THREAD && i < workers; i++)
      threads.emplace_back([this] { (void)feedlane_worker_run(-1, loader_, nullptr, nullptr); });
    fill_places();
    if (doing(Op::begin, [&] { return feedlane_loader_begin(loader_, 0, &error_); }) != FEEDLANE_OK)
      chaos::die("begin", error_);
    for (std::int64_t i = 0; i < leave; i++) {
      if (i == recover_after && mode_ != FEEDLANE_START_THREAD) lose_worker();
      take(i);
    }
    if (doing(Op::stop, [&] { return feedlane_loader_stop(loader_, &error_); }) != FEEDLANE_OK)
      chaos::die("stop", error_);
    for (std::thread& t : threads) t.join();
    compare("destroy", doing(Op::destroy, [&] { return feedlane_loader_destroy(&loader_); }), FEEDLANE_OK);
    return 0;
  }

 private:
  void await_something() {
    pollfd p{-1, POLLIN, 0};
    if (doing(Op::arm, [&] { return feedlane_loader_arm(loader_, &p.fd); }) != FEEDLANE_OK) return;
    if (::poll(&p, 1, -1) < 0 && errno != EINTR) stress::die("poll", static_cast<std::uint64_t>(errno), 0);
  }
  void take(std::int64_t i) {
    for (;;) {
      const std::int32_t s = doing(Op::poll, [&] { return feedlane_loader_poll(loader_, &error_); });
      if (s == FEEDLANE_AGAIN) break;
      if (s != FEEDLANE_OK) chaos::die("poll", error_);
      await_something();
    }
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    if (doing(Op::next, [&] { return feedlane_loader_next(loader_, FEEDLANE_FOREVER, &batch, &error_); }) !=
        FEEDLANE_OK)
      chaos::die("next", error_);
    compare("the trainer's batch", batch.batch, i);
    chaos::check(batch, 0);
    save(loader_, batch, saved_, error_);
    compare("release", doing(Op::release, [&] { return feedlane_batch_release(loader_, batch.token); }), FEEDLANE_OK);
  }
  // A worker is killed, and with the poll that finds it dead it is replaced.
  void lose_worker() {
    feedlane_worker_stats s;
    feedlane_init(&s, sizeof s);
    do {  // an external one has no pid before it has attached
      compare("get_worker_stats", feedlane::test::observe(loader_, feedlane_monitor_get_worker_stats, 1, &s),
              FEEDLANE_OK);
      if (s.pid <= 0 && feedlane_loader_poll(loader_, &error_) < 0) chaos::die("poll", error_);
    } while (s.pid <= 0);
    const auto dead = static_cast<pid_t>(s.pid);
    if (::kill(dead, SIGKILL) != 0) stress::die("kill", static_cast<std::uint64_t>(errno), 0);
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(dead), &info, WEXITED | WNOWAIT) != 0)
      stress::die("waitid", static_cast<std::uint64_t>(errno), 0);
    const std::int32_t found = doing(Op::recover, [&] { return feedlane_loader_poll(loader_, &error_); });
    if (found < 0) chaos::die("poll", error_);
    fill_places();
  }
  // External mode: the worker gets its descriptor at the number of the one that all children of this program get.
  void fill_places() {
    while (mode_ == FEEDLANE_START_EXTERNAL) {
      std::int32_t id = -1, fd = -1;
      const std::int32_t s = doing(Op::open, [&] { return feedlane_loader_open_worker(loader_, &id, &fd, &error_); });
      if (s == FEEDLANE_END) return;
      if (s != FEEDLANE_OK) chaos::die("open_worker", error_);
      (void)stress::start_again({"trainer_kills_stress", "worker", std::to_string(fd)}, fd, nullptr, false);
      (void)::close(fd);
    }
  }

  std::int32_t mode_;
  Checkpoints& saved_;
  feedlane_loader* loader_ = nullptr;
  feedlane_error error_{};
};

// ---- its successor ----

int go_on(int fd) {
  const Checkpoints& saved = checkpoints(fd);
  // Acquire: of a trainer that is dead.
  const std::uint64_t count = saved.count.load(std::memory_order_acquire), at = (count - 1) % 2;
  std::int64_t i = count == 0 ? 0 : saved.next[at];
  const feedlane_dataset dataset = chaos::dataset();
  feedlane_loader* l = create(count == 0 ? nullptr : saved.data[at], count == 0 ? 0 : saved.bytes[at], 0,
                              [&](feedlane_loader_config& c) {
                                c.keep_workers = 0;
                                c.dataset = &dataset;
                              });
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  if (feedlane_loader_begin(l, 0, &e) != FEEDLANE_OK) chaos::die("begin", e);
  for (;; i++) {
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    const std::int32_t s = feedlane_loader_next(l, FEEDLANE_FOREVER, &batch, &e);
    if (s == FEEDLANE_END) break;
    if (s != FEEDLANE_OK) chaos::die("the successor's next", e);
    compare("the successor's batch", batch.batch, i);
    chaos::check(batch, 0);
    compare("release", feedlane_batch_release(l, batch.token), FEEDLANE_OK);
  }
  compare("the batches of the epoch", i, batches);
  compare("destroy", feedlane_loader_destroy(&l), FEEDLANE_OK);
  return 0;
}

// ---- who leads them ----

class Leader {
 public:
  explicit Leader(std::int32_t mode) : mode_(mode), fd_(::memfd_create("checkpoints", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::ftruncate(fd_, sizeof(Checkpoints)) != 0)
      stress::die("memfd", static_cast<std::uint64_t>(errno), 0);
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) stress::die("prctl", static_cast<std::uint64_t>(errno), 0);
    saved_ = &checkpoints(fd_);
  }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;
  ~Leader() {
    (void)::munmap(saved_, sizeof *saved_);
    (void)::close(fd_);
  }

  // Threads of the trainer aren't led, and what is shared is closed to them too: there, instructions only.
  void carry_out(const stress::Plan& plan, Op op) {
    const auto kill_at = [&](stress::Unit unit, std::uint64_t steps) { return kill(op, unit, steps); };
    if (mode_ == FEEDLANE_START_THREAD && op != Op::create && plan.only.empty())
      stress::at_some(is_long(op) ? 2 : 8, random_, tallies_[op].length, kill_at);
    else
      plan.carry_out(names[static_cast<std::size_t>(op)], is_long(op) ? 2 : 8, random_, tallies_[op].length, kill_at);
  }
  [[nodiscard]] bool has(Op op) const {
    if (op == Op::open) return mode_ == FEEDLANE_START_EXTERNAL;
    return op != Op::recover || mode_ != FEEDLANE_START_THREAD;
  }

  void print() const {
    for (const auto& [op, t] : tallies_) {
      std::printf("%-8s %-8s %5llu kills, %llu whole; %s; all over within %.0f ms; workers:",
                  modes[static_cast<std::size_t>(mode_)], names[static_cast<std::size_t>(op)],
                  static_cast<unsigned long long>(t.kills), static_cast<unsigned long long>(t.whole),
                  t.length.text().c_str(), static_cast<double>(t.longest_end_ns) / 1e6);
      for (const auto& [o, n] : t.outcomes)
        std::printf(" (%d ended, %d killed: %llu)", o.first, o.second, static_cast<unsigned long long>(n));
      std::printf("\n");
    }
  }

 private:
  struct Tally {
    std::uint64_t kills = 0, whole = 0;
    stress::Length length;
    std::int64_t longest_end_ns = 0;
    std::map<std::pair<int, int>, std::uint64_t> outcomes;  // workers that ended by themselves, and by a signal
  };

  // Kills a trainer in this operation after so many instructions. False: the operation came to its end before.
  bool kill(Op op, stress::Unit unit, std::uint64_t steps) {
    (void)::alarm(60 * static_cast<unsigned>(feedlane::test::slowness()));
    std::optional<stress::Led> led;
    do {  // one that finds its first batch made already doesn't come to arm
      std::memset(static_cast<void*>(saved_), 0, sizeof *saved_);
      led.emplace(
          std::vector<std::string>{"trainer_kills_stress", "trainer", std::to_string(mode_), std::to_string(fd_),
                                   std::to_string(op >= Op::stop ? random_(batches) : batches)},
          fd_);
    } while (!leads_to(*led, op, is_once(op) ? 0 : random_(op == Op::open ? 2 : batches)));
    stress::Led& trainer = *led;
    const stress::Led::Walk walk = trainer.walk(unit, steps);
    trainer.kill();
    const std::int64_t killed_ns = chaos::now_ns();
    Tally& t = tallies_[op];
    t.outcomes[await_ends()]++;
    t.longest_end_ns = std::max(t.longest_end_ns, chaos::now_ns() - killed_ns);
    t.kills++;
    t.whole += walk.word ? 1 : 0;
    t.length.take(unit, walk);
    const pid_t successor =
        stress::start_again({"trainer_kills_stress", "successor", std::to_string(fd_)}, fd_, &processor_.all(), false);
    int status = -1;
    if (::waitpid(successor, &status, 0) != successor || status != 0)
      stress::die(("a successor after a kill in " + std::string(names[static_cast<std::size_t>(op)]) + " after " +
                   std::to_string(walk.steps) + " instructions or actions")
                      .c_str(),
                  static_cast<std::uint64_t>(status), 0);
    return !walk.word.has_value();
  }
  // To the `nth` of its operations of this kind, from 0; false: it has ended, and so have its workers.
  [[nodiscard]] bool leads_to(stress::Led& trainer, Op op, std::uint64_t nth) const {
    while (const auto word = trainer.run())
      if (*word == static_cast<std::uint64_t>(op) && nth-- == 0) return true;
    if (op != Op::arm) stress::die("a trainer ended by itself: its wait status", trainer.end_status(), SIGKILL);
    (void)await_ends();
    return false;
  }
  // This process gets the orphans: the workers have ended when there is no child.
  [[nodiscard]] std::pair<int, int> await_ends() const {
    std::pair<int, int> ends{0, 0};
    for (int status = -1;;) {
      const pid_t pid = ::waitpid(-1, &status, 0);
      if (pid < 0 && errno == EINTR) continue;
      if (pid < 0) return ends;
      (WIFEXITED(status) ? ends.first : ends.second)++;
      if (status != 0 && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL))
        stress::die("the status of a worker", static_cast<std::uint64_t>(status), 0);
    }
  }

  std::int32_t mode_;
  int fd_;
  Checkpoints* saved_;
  stress::OneProcessor processor_;
  stress::Random random_{0xfeed};
  std::map<Op, Tally> tallies_;
};

int work(std::int32_t fd) {
  const feedlane_dataset d = chaos::dataset();
  const std::int32_t s = feedlane_worker_run(fd, nullptr, &d, nullptr);
  // Its trainer may be dead before it has attached.
  return s == FEEDLANE_OK || s == FEEDLANE_E_PEER_DEAD ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) return work(fd);
  const std::vector<std::string> a(argv, argv + argc);
  if (argc == 3 && a[1] == "worker") return work(std::atoi(argv[2]));
  if (argc == 3 && a[1] == "successor") return go_on(std::atoi(argv[2]));
  if (argc == 5 && a[1] == "trainer") return Trainer(std::atoi(argv[2]), std::atoi(argv[3])).run(std::atoll(argv[4]));
  (void)::setenv("LD_BIND_NOW", "1", 1);  // else much of what is walked through is the dynamic linker
  const stress::Plan plan = stress::Plan::of(a, 3);
  for (std::int32_t mode = 0; mode < static_cast<std::int32_t>(modes.size()); mode++) {
    if (!plan.only.empty() && a[2] != modes[static_cast<std::size_t>(mode)]) continue;
    Leader leader(mode);
    for (std::size_t i = 1; i < names.size(); i++) {
      const auto op = static_cast<Op>(i);
      const bool is_chosen =
          plan.only.empty() ? is_of_start(op) || mode == FEEDLANE_START_SPAWN : plan.only == names[i];
      if (leader.has(op) && is_chosen) leader.carry_out(plan, op);
    }
    leader.print();
  }
  (void)::alarm(0);
  return 0;
}
