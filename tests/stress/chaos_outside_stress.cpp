// SPDX-License-Identifier: Apache-2.0
// A trainer and four workers under all that a machine does to them: programs and data sets that start slowly, workers that are
// killed and stopped, that wait in state D, that are frozen alone or together with the trainer, that punch holes into their
// slot or scribble over the header of data before they crash. Every batch comes once, in order, whole, and no wait for one is
// longer than what the loader promises.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "chaos.hpp"
#include "outside.hpp"
#include "support/api.hpp"

namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr std::int32_t team = 4;
constexpr std::int64_t deadline_ns = 300'000'000;
// From the deadline's passing until another worker has made the batch: the loader waits this long for the end of what it
// killed (docs/failure-semantics.md), the work itself, and a busy machine's share.
constexpr std::int64_t grace_ns = 1'000'000'000;
constexpr std::int64_t busy_ns = 1'500'000'000;

// ---- the worker ----

struct Misdeed {
  stress::Random random;
  std::int64_t at;  // when it goes wrong
  int disk = -1;
};
Misdeed misdeed;

std::pair<unsigned char*, std::size_t> data_mapping() {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  unsigned long from = 0, to = 0;
  for (char line[512]; maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr;)
    if (std::strstr(line, "feedlane-data") != nullptr && std::sscanf(line, "%lx-%lx", &from, &to) == 2) break;
  if (maps != nullptr) (void)std::fclose(maps);
  return {reinterpret_cast<unsigned char*>(from), to - from};
}

void go_wrong(const feedlane_row* row) {
  const std::uint64_t kind = misdeed.random(3);
  if (kind == 0) {  // holes in the slot that it has in hand
    const feedlane_tensor& t = row->task->tensors[2];
    const auto from = (reinterpret_cast<std::uintptr_t>(t.data) + 4095) / 4096 * 4096;
    const auto to = (reinterpret_cast<std::uintptr_t>(t.data) + t.bytes) / 4096 * 4096;
    if (to > from) (void)::madvise(reinterpret_cast<void*>(from), to - from, MADV_REMOVE);
  } else if (kind == 1) {
    const auto [header, bytes] = data_mapping();
    if (bytes != 0) header[misdeed.random(128)] ^= static_cast<unsigned char>(1 + misdeed.random(255));
  }
  std::abort();
}

std::int32_t open_data(void*, const feedlane_worker_info* info, void**, feedlane_error*) {
  misdeed.random = {static_cast<std::uint64_t>(chaos::now_ns()) * 2654435761 + static_cast<std::uint64_t>(::getpid())};
  for (int i = 0; i < 8; i++) (void)misdeed.random(2);
  if (info->generation > 0 && misdeed.random(2) == 0)
    chaos::nap(static_cast<std::int64_t>(misdeed.random(1500)) * 1'000'000);
  misdeed.at = chaos::now_ns() + static_cast<std::int64_t>(misdeed.random(8000)) * 1'000'000;
  const char* disk = std::getenv("FEEDLANE_CHAOS_DISK");
  if (disk != nullptr && info->id == 1) misdeed.disk = ::open(disk, O_WRONLY | O_CLOEXEC);
  return FEEDLANE_OK;
}

std::int32_t get(void* self, const feedlane_row* row, feedlane_error* err) {
  if (row->row == 0 && chaos::now_ns() > misdeed.at) go_wrong(row);
  if (misdeed.disk >= 0 && misdeed.random(50) == 0 && ::pwrite(misdeed.disk, "x", 1, 0) < 0) return FEEDLANE_E_OS;
  return chaos::get(self, row, err);
}

int work(std::int32_t fd) {
  if (::getpid() % 4 == 0) chaos::nap((::getpid() % 700) * INT64_C(1'000'000));  // a program that starts slowly
  feedlane_dataset d = chaos::dataset();
  d.open = open_data;
  d.get = get;
  return feedlane_worker_run(fd, nullptr, &d, nullptr) == FEEDLANE_OK ? 0 : 1;
}

// ---- the trainer ----

volatile sig_atomic_t should_stop = 0;

// How long this process did not run at all: frozen, or kept from a processor. No wait of the loader's.
class Absence {
 public:
  Absence() : thread_([this] { run(); }) {}
  ~Absence() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  [[nodiscard]] std::int64_t ns() const { return ns_.load(std::memory_order_relaxed); }

 private:
  void run() {
    constexpr std::int64_t tick = 5'000'000;
    for (std::int64_t last = chaos::now_ns(); !stop_.load(std::memory_order_relaxed);) {
      chaos::nap(tick);
      const std::int64_t now = chaos::now_ns();
      if (now - last > 50'000'000) ns_.fetch_add(now - last - tick, std::memory_order_relaxed);
      last = now;
    }
  }
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> ns_{0};
  std::thread thread_;
};

struct Tally {
  std::uint64_t batches = 0;
  std::int64_t longest = 0;
  bool has_ended = false;
};

void take_epoch(feedlane_loader* loader, std::int64_t epoch, const Absence& absence, Tally& tally) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  for (std::int64_t i = 0; should_stop == 0;) {
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    const std::int64_t before = chaos::now_ns() - absence.ns();
    const std::int32_t s = feedlane_loader_next(loader, 60 * second, &batch, &e);
    if (s == FEEDLANE_INTERRUPTED) continue;
    if (s == FEEDLANE_END && i == chaos::samples / chaos::batch_size) return;
    if (s != FEEDLANE_OK) {
      std::fprintf(stderr, "next: %s\n", feedlane_status_name(s));
      chaos::die("next", e);
    }
    chaos::nap(20'000'000 * (i == 0));  // the ticking thread's turn, before the first wait is judged
    tally.longest = std::max(tally.longest, chaos::now_ns() - absence.ns() - before);
    if (batch.batch != i) stress::die("batch", static_cast<std::uint64_t>(batch.batch), static_cast<std::uint64_t>(i));
    chaos::check(batch, epoch);
    if (feedlane_batch_release(loader, batch.token) != FEEDLANE_OK) stress::die("release", 1, 0);
    feedlane_event event;
    feedlane_init(&event, sizeof event);
    while (feedlane_loader_event(loader, &event) == FEEDLANE_OK)
      if (std::getenv("FEEDLANE_CHAOS_SAY") != nullptr)
        std::fprintf(stderr, "event %d: %s\n", event.kind, event.what.text);
    i++;
    tally.batches++;
  }
}

int train() {
  struct sigaction stop {};
  stop.sa_handler = [](int) { should_stop = 1; };
  (void)::sigaction(SIGTERM, &stop, nullptr);
  feedlane_loader* loader = chaos::create(nullptr, 0, team, deadline_ns);
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  Tally tally;
  {
    const Absence absence;
    for (std::int64_t epoch = 0; should_stop == 0; epoch++) {
      if (feedlane_loader_begin(loader, epoch, &e) != FEEDLANE_OK) chaos::die("begin", e);
      take_epoch(loader, epoch, absence, tally);
    }
  }
  feedlane_stats stats;
  feedlane_init(&stats, sizeof stats);
  (void)feedlane::test::observe(loader, feedlane_monitor_get_stats, &stats);
  if (feedlane_loader_destroy(&loader) != FEEDLANE_OK) stress::die("destroy", 1, 0);
  std::printf(
      "%llu batches, each once, in order, whole; %llu restarts, %llu hung, %llu sent again; longest wait %.0f ms\n",
      static_cast<unsigned long long>(tally.batches), static_cast<unsigned long long>(stats.restarts),
      static_cast<unsigned long long>(stats.hung), static_cast<unsigned long long>(stats.redispatched),
      static_cast<double>(tally.longest) / 1e6);
  if (stats.restarts == 0) stress::die("restarts", 0, 1);
  constexpr std::int64_t most = deadline_ns + grace_ns + busy_ns;
  if (tally.longest > most)
    stress::die("the longest wait, in ms", static_cast<std::uint64_t>(tally.longest / 1'000'000), most / 1'000'000);
  return 0;
}

// ---- what happens to them ----

class Outside {
 public:
  Outside(pid_t trainer, outside::Freezer& all, outside::Freezer& one, outside::Disk& disk, std::uint64_t seed)
      : trainer_(trainer), all_(all), one_(one), disk_(disk), random_{seed * 2 + 1} {}
  ~Outside() { (void)feedlane_monitor_destroy(&monitor_); }

  void do_something() {
    switch (random_(6)) {
      case 0: return send(SIGKILL);
      case 1: return send(SIGSTOP);
      case 2: return freeze_all();
      case 3: return freeze_one();
      case 4: return freeze_disk();
      default: return send(SIGKILL);
    }
  }
  void print() const {
    std::printf("from outside: %d kills, %d stops, %d times all frozen, %d times one, %d times the disk\n", kills_,
                stops_, frozen_, frozen_alone_, frozen_disks_);
  }

 private:
  // A worker that is ready: five in a row that end before are E_INIT.
  pid_t a_worker() {
    feedlane_error e;
    feedlane_init(&e, sizeof e);
    if (monitor_ == nullptr && feedlane_monitor_open(trainer_, 0, &monitor_, &e) != FEEDLANE_OK) return 0;
    feedlane_worker_stats s;
    feedlane_init(&s, sizeof s);
    const auto w = static_cast<std::int32_t>(random_(team));
    if (feedlane_monitor_get_worker_stats(monitor_, w, &s) != FEEDLANE_OK) return 0;
    return s.state == FEEDLANE_WORKER_READY ? static_cast<pid_t>(s.pid) : 0;
  }
  void nap(std::uint64_t least_ms, std::uint64_t most_ms) {
    chaos::nap(static_cast<std::int64_t>(least_ms + random_(most_ms - least_ms)) * 1'000'000);
  }
  void send(int signal) {
    const pid_t pid = a_worker();
    if (pid <= 1 || ::kill(pid, signal) != 0) return;
    (signal == SIGKILL ? kills_ : stops_)++;
    if (signal != SIGSTOP || random_(2) == 0) return;  // it stays so until the loader ends it
    nap(1, 200);
    (void)::kill(pid, SIGCONT);
  }
  void freeze_all() {
    if (!all_.is_there()) return;
    all_.freeze();
    nap(100, 700);
    all_.thaw();
    frozen_++;
  }
  // In version 1 it can't be killed until it is thawed.
  void freeze_one() {
    const pid_t pid = one_.is_there() ? a_worker() : 0;
    if (pid <= 1 || !one_.add(pid)) return;
    one_.freeze();
    nap(200, 3000);
    one_.thaw();
    (void)all_.add(pid);
    frozen_alone_++;
  }
  void freeze_disk() {
    if (!disk_.is_there() || !disk_.freeze()) return;
    nap(500, 3000);
    (void)disk_.thaw();
    frozen_disks_++;
  }

  pid_t trainer_;
  outside::Freezer& all_;
  outside::Freezer& one_;
  outside::Disk& disk_;
  stress::Random random_;
  feedlane_monitor* monitor_ = nullptr;
  int kills_ = 0, stops_ = 0, frozen_ = 0, frozen_alone_ = 0, frozen_disks_ = 0;
};

pid_t start_trainer(const outside::Freezer& all, const outside::Disk& disk) {
  if (disk.is_there()) (void)::setenv("FEEDLANE_CHAOS_DISK", disk.file().c_str(), 1);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (all.is_there()) (void)all.add(::getpid());
  char path[] = "/proc/self/exe", what[] = "trainer";
  char* argv[] = {path, what, nullptr};
  (void)::execv(path, argv);
  ::_exit(1);
}

}  // namespace

int main(int argc, char**) {
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) return work(fd);
  if (argc > 1) return train();
  const auto seconds = static_cast<std::int64_t>(stress::length(20, 180));
  char folder[] = "/tmp/feedlane-chaos.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  const std::string name = "feedlane-chaos-" + std::to_string(::getpid());
  int status = -1;
  {
    outside::Freezer all(name), one(name + "-one");
    outside::Disk disk(folder);
    if (!all.is_there() || !one.is_there())
      std::printf("left out: frozen processes, no control group can be made here\n");
    else if (!one.holds_kills())
      std::printf("left out: processes that SIGKILL doesn't end, control groups are version 2\n");
    if (!disk.is_there()) std::printf("left out: workers in state D, no file system can be mounted and frozen here\n");
    const pid_t trainer = start_trainer(all, disk);
    if (trainer < 0) stress::die("fork", static_cast<std::uint64_t>(errno), 0);
    Outside acts(trainer, all, one, disk, static_cast<std::uint64_t>(chaos::now_ns()));
    const std::int64_t end = chaos::now_ns() + seconds * second;
    chaos::nap(second / 2);
    while (chaos::now_ns() < end && ::waitpid(trainer, &status, WNOHANG) == 0) {
      acts.do_something();
      chaos::nap(250'000'000);
    }
    if (status == -1) {
      (void)::kill(trainer, SIGTERM);
      (void)::waitpid(trainer, &status, 0);
    }
    acts.print();
  }
  (void)::rmdir(folder);
  if (status != 0) stress::die("the trainer's status", static_cast<std::uint64_t>(status), 0);
  return 0;
}
