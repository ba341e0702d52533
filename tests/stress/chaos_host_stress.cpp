// SPDX-License-Identifier: Apache-2.0
// The trainer of chaos_stress in a host that takes no care: it has closed descriptors 0, 1 and 2 and prints all the same, as do its
// workers; a thread reaps every child; and two processes beside it publish a loader of random bytes and observe both. Every batch
// still comes once, in order, with the right bytes.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "chaos_run.hpp"
#include "shm/plan.hpp"

namespace {

// Descriptor 1 or 2 of the process, whatever file is there. Closed: nothing happens.
void print_in_vain() {
  constexpr char text[] = "a line that somebody prints\n";
  (void)!::write(1, text, sizeof text - 1);
  (void)!::write(2, text, sizeof text - 1);
}

std::int32_t get_and_print(void* self, const feedlane_row* row, feedlane_error* error) {
  print_in_vain();
  return chaos::get(self, row, error);
}

// The child ends with this process, and is not a child of it: the reaping thread would wait for it.
template <class Life>
void start_beside(Life life) {
  const pid_t trainer = ::getpid();
  const pid_t between = ::fork();
  if (between > 0) {
    (void)::waitpid(between, nullptr, 0);
    return;
  }
  if (::fork() != 0) ::_exit(0);
  const auto process = static_cast<int>(::syscall(SYS_pidfd_open, trainer, 0));
  pollfd end{process, POLLIN, 0};
  while (process >= 0 && ::poll(&end, 1, 0) == 0) life();
  ::_exit(0);
}

// A loader whose segments any reader finds plausible at first. Random bytes follow the geometry.
class Liar {
 public:
  Liar() {
    namespace shm = feedlane::shm;
    feedlane::Error e;
    shm::Geometry g{};
    g.workers = 2;
    g.slots = 8;
    g.max_rows = 16;
    g.ring_capacity = 8;
    g.slot_bytes = g.reserved_bytes = 4096;
    g.list_bytes = 128;
    g.world = 1;
    g.trace_records = 1025;
    shm::Plan plan;
    if (shm::make_plan(g, plan, e) != FEEDLANE_OK) stress::die(e.text, 1, 0);
    const int control = ::memfd_create("feedlane-control", MFD_ALLOW_SEALING);
    bytes_ = plan.control_bytes;
    if (control < 0 || ::ftruncate(control, static_cast<off_t>(bytes_)) != 0) stress::die("memfd", 0, 1);
    memory_ = static_cast<char*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, control, 0));
    if (memory_ == MAP_FAILED) stress::die("mmap", 0, bytes_);
    (void)::fcntl(control, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    shm::SegmentHeader h{};
    h.magic = shm::segment_magic;
    h.kind = 1;
    h.major = shm::format_major;
    h.minor = shm::format_minor;
    h.byte_order = shm::byte_order_mark;
    h.page_bytes = 4096;
    h.layout_hash = shm::layout_hash;
    h.segment_bytes = bytes_;
    h.pair_id = 1;
    std::memcpy(memory_, &h, sizeof h);
    std::memcpy(memory_ + sizeof h, &g, sizeof g);
    start_ = sizeof h + sizeof g;
  }
  void lie() {
    for (std::size_t i = start_; i + 8 <= bytes_; i += 8) {
      const std::uint64_t word = random_(1u << 31) << 33 | random_(1u << 31);
      std::memcpy(memory_ + i, &word, sizeof word);
    }
  }

 private:
  char* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::size_t start_ = 0;
  stress::Random random_{5};
};

void observe(std::int64_t pid) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_monitor* monitor = nullptr;
  if (feedlane_monitor_open(pid, 0, &monitor, &e) != FEEDLANE_OK) return;
  feedlane_stats stats;
  feedlane_init(&stats, sizeof stats);
  (void)feedlane_monitor_get_stats(monitor, &stats);
  (void)feedlane_monitor_destroy(&monitor);
}

}  // namespace

int main() {
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) {
    feedlane_dataset d = chaos::dataset();
    d.get = get_and_print;
    return feedlane_worker_run(fd, nullptr, &d, nullptr) == FEEDLANE_OK ? 0 : 1;
  }
  const auto seconds = static_cast<std::int64_t>(stress::length(30, 600));
  stderr = ::fdopen(::fcntl(2, F_DUPFD_CLOEXEC, 3), "w");
  (void)std::setvbuf(stderr, nullptr, _IONBF, 0);
  std::FILE* const out = ::fdopen(::fcntl(1, F_DUPFD_CLOEXEC, 3), "w");
  for (const int fd : {0, 1, 2}) (void)::close(fd);

  auto* const liar_pid = stress::make_shared_object<std::atomic<std::int64_t>>();
  const std::int64_t trainer = ::getpid();
  start_beside([liar_pid] {
    static Liar liar;
    liar_pid->store(::getpid(), std::memory_order_relaxed);
    liar.lie();
    chaos::nap(1'000'000);
  });
  start_beside([liar_pid, trainer] {
    observe(liar_pid->load(std::memory_order_relaxed));
    observe(trainer);
    chaos::nap(5'000'000);
  });

  feedlane_loader* loader = chaos::create(nullptr, 0);
  std::atomic<bool> is_over{false};
  std::thread reaper([&] {
    while (!is_over.load(std::memory_order_relaxed)) {
      print_in_vain();
      while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
      chaos::nap(1'000'000);
    }
  });
  const chaos::Totals totals = chaos::run(loader, seconds);
  chaos::end(loader, seconds, totals, out);
  is_over.store(true, std::memory_order_relaxed);
  reaper.join();
  (void)std::fflush(out);
  for (const int fd : {0, 1, 2})
    if (::fcntl(fd, F_GETFD) != -1) stress::die("descriptors below 3", static_cast<std::uint64_t>(fd), 3);
  return 0;
}
