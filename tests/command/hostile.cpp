// SPDX-License-Identifier: Apache-2.0
// A process that pretends to have loaders, with what no loader would have in its memory. Commands that observe must end beside it.
//
// Usage: hostile KIND
//
// It prints "running" when all is prepared, and lives until the end of standard input.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "shm/plan.hpp"

namespace {

using namespace feedlane::shm;

// What a terminal obeys, or a reader of text, JSON or labels might: ESC, BEL, CR, C1 controls, quotes, a mark that turns the
// direction of writing around, and a byte that is not UTF-8.
constexpr const char* evil_name =
    "\x1b]0;owned\x07\x1b[31m\xc2\x9b"
    "32m\"\\\n# EOF\r\xff\xe2\x80\xae";

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

int make_memfd(const char* name, std::uint64_t bytes) {
  const int fd = ::memfd_create(name, MFD_ALLOW_SEALING);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail(name);
  return fd;
}

void seal(int fd, int more = 0) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | more) != 0) fail("F_ADD_SEALS");
}

template <class T>
T* map(int fd, std::uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) fail("mmap");
  return static_cast<T*>(at);
}

// A loader's two segments, which nobody serves.
struct Fake {
  Geometry geometry{};
  Plan plan;
  char* control = nullptr;
  char* data = nullptr;

  template <class T>
  T* in_control(std::uint64_t offset) {
    return reinterpret_cast<T*>(control + offset);
  }
};

Geometry small_geometry() {
  Geometry g{};
  g.workers = 2;
  g.slots = 8;
  g.max_rows = 16;
  g.ring_capacity = 8;
  g.slot_bytes = g.reserved_bytes = 4096;
  g.list_bytes = 128;
  g.world = 1;
  return g;
}

Fake make_fake(const Geometry& geometry, const char* name, bool has_memory = true) {
  Fake fake;
  fake.geometry = geometry;
  feedlane::Error error;
  if (make_plan(geometry, fake.plan, error) != FEEDLANE_OK) fail(error.text);
  const int data = make_memfd("feedlane-data", fake.plan.data_bytes);
  const int control = make_memfd("feedlane-control", fake.plan.control_bytes);
  if (has_memory && ::fallocate(control, 0, 0, static_cast<off_t>(fake.plan.control_bytes)) != 0) fail("fallocate");
  seal(data);
  struct stat about {};
  if (::fstat(data, &about) != 0) fail("fstat");
  fake.geometry.data_device = about.st_dev;
  fake.geometry.data_inode = about.st_ino;
  fake.control = map<char>(control, fake.plan.control_bytes);
  fake.data = map<char>(data, fake.plan.data_bytes);
  seal(control, F_SEAL_FUTURE_WRITE);
  SegmentHeader header{};
  header.magic = segment_magic;
  header.kind = static_cast<std::uint32_t>(SegmentKind::control);
  header.major = format_major;
  header.minor = format_minor;
  header.byte_order = byte_order_mark;
  header.page_bytes = static_cast<std::uint32_t>(::getpagesize());
  header.layout_hash = layout_hash;
  header.segment_bytes = fake.plan.control_bytes;
  header.pair_id = 1;
  std::memcpy(fake.control, &header, sizeof header);
  std::memcpy(fake.control + sizeof header, &fake.geometry, sizeof fake.geometry);
  auto* facts = fake.in_control<LoaderFacts>(fake.plan.facts);
  facts->pid = static_cast<std::uint64_t>(::getpid());
  facts->created_ns = static_cast<std::uint64_t>(feedlane::os::now_ns());
  facts->start = 1;
  facts->held = 1;
  std::strncpy(facts->version, "0.1.0", sizeof facts->version - 1);
  std::strncpy(facts->name, name, sizeof facts->name - 1);
  auto* counters = fake.in_control<LoaderCounters>(fake.plan.counters);
  counters->epoch = counters->in_epoch = counters->begun_ns = 1;
  counters->batches = 5;
  return fake;
}

// Each worker says that it has a task which no slot has, so that a search for it goes through all of them.
void pretend_work(Fake& fake) {
  for (std::uint32_t w = 0; w < fake.geometry.workers; w++) {
    auto* trainers = fake.in_control<TrainerRow>(fake.plan.trainer_rows) + w;
    trainers->state = FEEDLANE_WORKER_READY;
    trainers->pid = static_cast<std::uint64_t>(::getpid());
    auto* row = reinterpret_cast<WorkerRow*>(fake.data + fake.plan.worker_rows) + w;
    row->started_task = 12345;
    row->started_ns = 1;
  }
}

void fill_with_ones(Fake& fake) {
  const auto fill = [&](std::uint64_t offset, std::size_t bytes) { std::memset(fake.control + offset, 0xff, bytes); };
  fill(fake.plan.counters, sizeof(LoaderCounters));
  fill(fake.plan.trainer_rows, fake.geometry.workers * sizeof(TrainerRow));
  fill(fake.plan.timings, fake.plan.timing_rows() * sizeof(TimingRow));
  fill(fake.plan.errors, error_rows * sizeof(ErrorRow));
  fill(fake.plan.slot_records, fake.geometry.slots * sizeof(BatchRecord));
  fill(fake.plan.facts + 16, sizeof(LoaderFacts) - 16);
  if (fake.geometry.trace_records != 0) fill(fake.plan.trace, fake.geometry.trace_records * sizeof(BatchRecord));
}

// As many descriptors as this process may have.
void open_names() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) fail("getrlimit");
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  for (int i = 0; i < 21'000 && ::memfd_create("feedlane-control", 0) >= 0; i++) {
  }
}

[[noreturn]] void live(Fake* writes) {
  std::puts("running");
  (void)std::fflush(stdout);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (::poll(&input, 1, writes == nullptr ? -1 : 0) == 0)
    for (int i = 0; i < 100'000; i++) writes->in_control<TraceHead>(writes->plan.trace_head)->written += 1000;
  std::exit(0);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string kind = count == 2 ? arguments[1] : "";
  Geometry g = small_geometry();
  if (kind == "many_loaders") {
    for (int i = 0; i < 500; i++) (void)make_fake(g, "many");
    live(nullptr);
  }
  if (kind == "many_names") {
    open_names();
    live(nullptr);
  }
  if (kind == "no_memory" || kind == "many_workers") g.workers = 4096;
  if (kind == "no_memory") g.slots = g.ring_capacity = 1U << 20;
  if (kind == "many_slots") g.slots = g.ring_capacity = 1U << 16, g.workers = 8;
  if (kind == "endless_trace" || kind == "racing_trace" || kind == "ones") g.trace_records = 1025;
  Fake fake = make_fake(g, kind == "evil_name" ? evil_name : "hostile", kind != "no_memory");
  if (kind == "many_slots" || kind == "many_workers" || kind == "no_memory") pretend_work(fake);
  if (kind == "ones") fill_with_ones(fake);
  if (g.trace_records != 0)
    fake.in_control<TraceHead>(fake.plan.trace_head)->written = kind == "endless_trace" ? UINT64_MAX : 1500;
  live(kind == "racing_trace" ? &fake : nullptr);
}
