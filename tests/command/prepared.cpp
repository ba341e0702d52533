// SPDX-License-Identifier: Apache-2.0
// A trainer with one prepared fault, for tests of the commands that observe.
//
// Usage: prepared FAULT [spawn | fork]
//
// After its first batches it prints one line, "running" and the process ids of its workers, and goes on until the end of standard
// input. Then it ends itself and its workers; they also end if it is killed. FEEDLANE_TRACE sets config.trace.
// The ring with `fork`: a child has inherited it, whose process id is printed. The arena: that of a member, a child.
#include <fcntl.h>
#include <feedlane.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "../support/api.hpp"

namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

constexpr std::int64_t batch_rows = 4;
constexpr std::int64_t sample_bytes = 1024;
constexpr std::int64_t everything = 4'000'000;  // samples: no test lasts so long
constexpr int first_batches = 20;               // taken before the line is printed

// Of the second loader: with all that text formats escape.
constexpr const char* other_name = "second\n\"of\" \\two";
constexpr int no_worker = -2;  // -1 is the one inline

struct Fault {
  const char* name;
  microseconds sample{250};   // a sample takes its worker so long
  microseconds trainer{500};  // a batch takes the trainer so long
  int slow = no_worker;       // this worker takes ten times as long
  int stop = no_worker;       // this worker is stopped by SIGSTOP after the first batches
  int stick = no_worker;      // this worker never ends its fifth batch
  bool deep = false;          // it does so in uninterruptible sleep
  seconds open{0};            // opening the data set takes so long
  std::int64_t fail = 0;      // each so many samples one fails and is left out
  std::int64_t die = 0;       // each so many batches one kills its worker, once
  bool hold = false;          // the trainer holds all slots but one
  int take = 0;               // the trainer takes so many batches and then no more
  int loaders = 1;
  int workers = 4;
  bool ring = false;   // no loader, but a ring
  bool arena = false;  // no loader, but an arena
};

const Fault faults[] = {
    // Long enough that a busy machine, on which each wake-up takes milliseconds, is not what bounds it.
    {.name = "slow_data", .sample = microseconds(25000), .trainer = microseconds(0)},
    {.name = "slow_trainer", .trainer = microseconds(20000)},
    {.name = "slow_worker", .sample = microseconds(1000), .slow = 1},
    {.name = "stopped_worker", .stop = 1},
    {.name = "stuck_worker", .stick = 1},
    {.name = "uninterruptible_worker", .stick = 1, .deep = true},
    {.name = "slow_open", .open = seconds(20)},
    {.name = "failing_samples", .fail = 7},
    {.name = "dying_workers", .die = 10},
    {.name = "held_slots", .sample = microseconds(2000), .hold = true},
    {.name = "idle", .take = 10},
    {.name = "two_loaders", .take = 10, .loaders = 2},
    {.name = "inline", .sample = microseconds(2000), .workers = 0},
    {.name = "ring", .ring = true},
    {.name = "arena", .arena = true},
};

[[noreturn]] void fail(const char* what, const feedlane_error& error) {
  std::fprintf(stderr, "prepared: %s: %s: %s\n", what, feedlane_status_name(error.code), error.text);
  _exit(1);  // kills the workers, by their lifelines
}

template <class T>
T sized() {
  T object{};
  object.size = sizeof object;
  return object;
}

// ---- the data set ----

struct Source {
  const Fault* fault;
  int worker;
  int batches = 0;
};

std::int32_t open_source(void*, const feedlane_worker_info* info, void** self, feedlane_error*) {
  std::size_t which = 0;
  std::memcpy(&which, info->config, sizeof which);
  std::this_thread::sleep_for(faults[which].open);
  *self = new Source{&faults[which], info->id};
  return FEEDLANE_OK;
}

// Never returns. A process that waits for a child of vfork sleeps uninterruptibly, except for SIGKILL.
[[noreturn]] void stick(bool deep) {
  if (deep && ::vfork() == 0) (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) ::pause();
}

std::int32_t get_sample(void* self, const feedlane_row* row, feedlane_error* error) {
  auto& source = *static_cast<Source*>(self);
  const Fault& fault = *source.fault;
  if (row->row == 0) source.batches++;
  if (fault.stick == source.worker && source.batches == 5) stick(fault.deep);
  std::this_thread::sleep_for(fault.sample * (fault.slow == source.worker ? 10 : 1));
  if (fault.die != 0 && row->task->attempt == 0 && row->task->batch % fault.die == fault.die - 1) ::raise(SIGKILL);
  if (fault.fail != 0 && row->index % fault.fail == 0) {
    std::snprintf(error->text, sizeof error->text, "sample %lld cannot be decoded", static_cast<long long>(row->index));
    return FEEDLANE_E_SAMPLE;
  }
  std::memset(row->fields[0], static_cast<int>(row->index), row->bytes[0]);
  return FEEDLANE_OK;
}

void close_source(void* self) { delete static_cast<Source*>(self); }

feedlane_dataset dataset() {
  auto d = sized<feedlane_dataset>();
  d.open = open_source;
  d.get = get_sample;
  d.close = close_source;
  return d;
}

// ---- the trainer ----

class Trainer {
 public:
  Trainer(std::size_t which, std::int32_t start, const char* name) : which_(which) {
    const Fault& fault = faults[which];
    auto error = sized<feedlane_error>();
    feedlane_sampler* order = nullptr;
    const std::int64_t samples = fault.take != 0 ? 1000 * batch_rows : everything;
    if (feedlane::test::sequential_sampler(samples, &order, &error) != 0) fail("sampler", error);
    auto field = sized<feedlane_field>();
    field.name = "bytes";
    field.dtype = {1, 8, 1};
    field.ndim = 1;
    field.shape[0] = sample_bytes;
    const feedlane_dataset source = dataset();
    auto config = sized<feedlane_loader_config>();
    config.sampler = order;
    config.dataset = fault.workers == 0 || start == FEEDLANE_START_FORK ? &source : nullptr;
    config.fields = &field;
    config.field_count = 1;
    config.batch_size = batch_rows;
    config.workers = fault.workers;
    config.start = start;
    config.worker_config = &which_;
    config.worker_config_bytes = sizeof which_;
    config.skip_budget = fault.fail != 0 ? -1 : 0;
    config.max_restarts = 1'000'000;
    config.stop_timeout_ns = config.term_timeout_ns = 100'000'000;  // a stopped worker ends by SIGKILL
    config.name = name;
    if (feedlane_loader_create(&config, &loader_, &error) != 0) fail("feedlane_loader_create", error);
    (void)feedlane_sampler_destroy(&order);
    if (feedlane_loader_begin(loader_, 0, &error) != 0) fail("feedlane_loader_begin", error);
  }
  ~Trainer() { (void)feedlane_loader_destroy(&loader_); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Takes a batch. false: the loader was closed.
  bool take() {
    auto batch = sized<feedlane_batch>();
    auto error = sized<feedlane_error>();
    const std::int32_t s = feedlane_loader_next(loader_, FEEDLANE_FOREVER, &batch, &error);
    if (s == FEEDLANE_E_STATE) return false;
    if (s != FEEDLANE_OK) fail("feedlane_loader_next", error);
    held_.push_back(batch.token);
    std::this_thread::sleep_for(faults[which_].trainer);
    auto stats = sized<feedlane_stats>();
    (void)feedlane::test::observe(loader_, feedlane_monitor_get_stats, &stats);
    const std::size_t keep = faults[which_].hold ? static_cast<std::size_t>(stats.slots) - 1 : 0;
    for (; held_.size() > keep; held_.pop_front()) (void)feedlane_batch_release(loader_, held_.front());
    return true;
  }

  [[nodiscard]] feedlane_worker_stats worker(int id) const {
    auto stats = sized<feedlane_worker_stats>();
    (void)feedlane::test::observe(loader_, feedlane_monitor_get_worker_stats, id, &stats);
    return stats;
  }

  // Until the loader knows that they are; nothing tells it in a trainer that takes no more batches. false: it was closed.
  bool wait_for_workers() {
    const auto is_ready = [&](int id) { return worker(id).state == FEEDLANE_WORKER_READY; };
    auto error = sized<feedlane_error>();
    for (int id = 0; id < faults[which_].workers; std::this_thread::yield()) {
      if (const std::int32_t s = feedlane_loader_poll(loader_, &error); s < 0) return false;
      while (id < faults[which_].workers && is_ready(id)) id++;
    }
    return true;
  }

  // Takes the first batches. The batch after the third one of a worker that sticks is not waited for.
  bool take_first() {
    const Fault& fault = faults[which_];
    bool is_open = true;
    for (int i = 0; is_open && i < (fault.take != 0 ? fault.take : first_batches); i++) {
      if (fault.stick >= 0 && worker(fault.stick).tasks >= 3) break;
      is_open = take();
    }
    return is_open;
  }

  void close() { (void)feedlane_loader_close(loader_); }

 private:
  const std::size_t which_;
  feedlane_loader* loader_ = nullptr;
  std::deque<std::uint64_t> held_;
};

// Returns when the kernel has stopped the process.
void stop(std::int64_t pid) {
  if (::kill(static_cast<pid_t>(pid), SIGSTOP) != 0) std::abort();
  for (char state = 0; state != 'T'; std::this_thread::yield()) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    std::getline(file, line);
    const std::size_t end = line.rfind(") ");
    state = end == std::string::npos ? 'T' : line[end + 2];
  }
}

void wait_for_end_of_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

void say_running(const std::vector<std::int64_t>& workers) {
  std::printf("running");
  for (const std::int64_t pid : workers) std::printf(" %lld", static_cast<long long>(pid));
  std::printf("\n");
  std::fflush(stdout);
}

void run_loaders(std::size_t which, std::int32_t start) {
  const Fault& fault = faults[which];
  std::deque<Trainer> trainers;
  for (int i = 0; i < fault.loaders; i++) trainers.emplace_back(which, start, i == 0 ? fault.name : other_name);
  std::thread input([&] {
    wait_for_end_of_input();
    for (Trainer& trainer : trainers) trainer.close();
  });
  bool is_open = true;
  if (fault.open.count() == 0)
    for (Trainer& trainer : trainers) is_open = is_open && trainer.wait_for_workers() && trainer.take_first();
  if (is_open && fault.stop >= 0) stop(trainers[0].worker(fault.stop).pid);
  std::vector<std::int64_t> workers;
  for (const Trainer& trainer : trainers)
    for (int w = 0; w < fault.workers; w++) workers.push_back(trainer.worker(w).pid);
  say_running(workers);
  while (is_open && fault.take == 0) is_open = trainers[0].take();
  input.join();
}

feedlane_ring_config ring_config() {
  auto config = sized<feedlane_ring_config>();
  config.message_bytes = 64;
  config.capacity = 16;
  config.lanes = 2;
  return config;
}

// Ends with this process. Its descriptors are inherited, and it has a ring of its own.
pid_t fork_child() {
  int ready[2];
  if (::pipe(ready) != 0) std::abort();
  const pid_t child = ::fork();
  if (child != 0) {
    char byte = 0;
    if (child < 0 || ::read(ready[0], &byte, 1) != 1) std::abort();
    return child;
  }
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto error = sized<feedlane_error>();
  const auto config = ring_config();
  feedlane_rx* rx = nullptr;
  if (feedlane_rx_create(&config, &rx, &error) != 0) fail("feedlane_rx_create", error);
  if (::write(ready[1], "", 1) != 1) std::abort();
  for (;;) ::pause();
}

// 10 messages of 64 bytes in a ring for two senders; 7 are received. `forks`: a child inherits its descriptors.
void run_ring(bool forks) {
  auto error = sized<feedlane_error>();
  const auto config = ring_config();
  feedlane_rx* rx = nullptr;
  feedlane_tx* tx = nullptr;
  std::int32_t fd = -1;
  feedlane_span span{};
  if (feedlane_rx_create(&config, &rx, &error) != 0 || feedlane_rx_offer(rx, &fd, &error) != 0 ||
      feedlane_tx_attach(fd, nullptr, FEEDLANE_FOREVER, &tx, nullptr, &error) != 0 ||
      feedlane_tx_reserve(tx, 10, FEEDLANE_FOREVER, &span, &error) != 0)
    fail("ring", error);
  for (std::uint32_t i = 0; i < span.count; i++) std::memset(static_cast<char*>(span.data) + i * span.stride, 1, 64);
  if (feedlane_tx_commit(tx, span.count, &error) != 0 ||
      feedlane_rx_peek(rx, 7, FEEDLANE_FOREVER, &span, &error) != 0 ||
      feedlane_rx_release(rx, span.lane, span.count, &error) != 0)
    fail("ring", error);
  const pid_t child = forks ? fork_child() : 0;
  say_running(forks ? std::vector<std::int64_t>{child} : std::vector<std::int64_t>{});
  wait_for_end_of_input();
  (void)feedlane_tx_destroy(&tx);
  (void)feedlane_rx_destroy(&rx);
  if (child == 0) return;
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
}

// Puts 64 numbers under a key.
void put(feedlane_arena* a, const char* key) {
  auto error = sized<feedlane_error>();
  const feedlane_field field = feedlane::test::field("numbers", {0, 64, 1}, {64});
  auto what = sized<feedlane_put>();
  what.key = key;
  what.key_bytes = std::strlen(key);
  what.fields = &field;
  what.field_count = 1;
  auto batch = sized<feedlane_batch>();
  if (feedlane_arena_reserve(a, &what, FEEDLANE_FOREVER, &batch, &error) != 0 ||
      feedlane_arena_publish(a, batch.token, FEEDLANE_FOREVER, &error) != 0)
    fail("put", error);
}

// An arena of 1 MiB with three entries, "a" to "c". A member holds "a", and waits for "d", which nobody puts.
void run_arena() {
  auto error = sized<feedlane_error>();
  auto config = sized<feedlane_arena_config>();
  config.bytes = 1 << 20;
  feedlane_arena* a = nullptr;
  std::int32_t fd = -1;
  if (feedlane_arena_create(&config, &a, &error) != 0 || feedlane_arena_offer(a, &fd, &error) != 0)
    fail("arena", error);
  for (const char* key : {"a", "b", "c"}) put(a, key);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    feedlane_arena* m = nullptr;
    auto batch = sized<feedlane_batch>();
    if (feedlane_arena_join(fd, nullptr, FEEDLANE_FOREVER, &m, &error) != 0 ||
        feedlane_arena_get(m, "a", 1, 0, FEEDLANE_FOREVER, &batch, &error) != 0 ||
        feedlane_arena_get(m, "d", 1, 0, FEEDLANE_FOREVER, &batch, &error) != 0)
      fail("member", error);
    std::_Exit(0);
  }
  (void)::close(fd);
  std::thread server([a] { (void)feedlane_arena_receive(a, FEEDLANE_FOREVER, nullptr, nullptr); });
  auto stats = sized<feedlane_arena_stats>();
  while (feedlane_arena_get_stats(a, &stats) == 0 && stats.waiting != 1) ::usleep(100);
  say_running({child});
  wait_for_end_of_input();
  (void)feedlane_loader_close(a);
  server.join();
  (void)feedlane_arena_destroy(&a);
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (const int fd = feedlane_worker_fd(); fd >= 0) {
    const feedlane_dataset d = dataset();
    return feedlane_worker_run(fd, nullptr, &d, nullptr) < 0 ? 1 : 0;
  }
  for (std::size_t which = 0; which < std::size(faults) && argc >= 2; which++) {
    if (std::strcmp(argv[1], faults[which].name) != 0) continue;
    const bool forks = argc >= 3 && std::strcmp(argv[2], "fork") == 0;
    if (faults[which].ring) run_ring(forks);
    else if (faults[which].arena) run_arena();
    else run_loaders(which, forks ? FEEDLANE_START_FORK : FEEDLANE_START_SPAWN);
    return 0;
  }
  std::fprintf(stderr, "usage: prepared FAULT [spawn | fork], FAULT one of");
  for (const Fault& fault : faults) std::fprintf(stderr, " %s", fault.name);
  std::fprintf(stderr, "\n");
  return 2;
}
