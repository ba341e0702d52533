// SPDX-License-Identifier: Apache-2.0
// What a trainer makes: nobody else may write to control, and everything is there before it is needed.
#include "shm/segment.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/skip.hpp"
#include "unit/os/fixtures.hpp"
#include "unit/shm/segments.hpp"

using feedlane::Error;
using feedlane::os::Fd;
namespace os = feedlane::os;
namespace shm = feedlane::shm;

namespace {

struct Made {
  explicit Made(const shm::Geometry& geometry = feedlane::test::small_geometry()) {
    feedlane::test::create(segments, geometry);
  }
  shm::Segments segments;
};

std::uint64_t size_of(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return static_cast<std::uint64_t>(status.st_size);
}

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

// Whether this process has a page there. False if the kernel does not say.
bool has_page(const void* address) {
  const Fd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::uint64_t entry = 0;
  const auto place = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(address) / page_bytes() * sizeof entry);
  return map && ::pread(map.get(), &entry, sizeof entry, place) == sizeof entry && (entry >> 63) != 0;
}

// Whether MADV_POPULATE_WRITE works, which is there since Linux 5.14; an emulator may take it and do nothing.
bool has_populate() {
  constexpr int populate_write = 23;
  void* const page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  const bool works = ::madvise(page, page_bytes(), populate_write) == 0 && has_page(page);
  (void)::munmap(page, page_bytes());
  return works;
}

// Whether a fault in shared memory maps its page alone, not a huge page or a large folio around it.
bool has_small_pages() {
  const std::size_t bytes = std::size_t{1} << 20;
  auto* const pages =
      static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(static_cast<void*>(pages) != MAP_FAILED);
  pages[0] = std::byte{1};
  const bool is_alone = !has_page(pages + page_bytes());
  (void)::munmap(pages, bytes);
  return is_alone;
}

std::uint64_t real_bytes(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

void* map(int fd, int protection) { return ::mmap(nullptr, 4096, protection, MAP_SHARED, fd, 0); }

// The VmFlags of the mapping that begins at `address`, empty if the kernel doesn't tell.
std::string flags_of(const void* address) {
  char start[32];
  (void)std::snprintf(start, sizeof start, "%lx-", reinterpret_cast<unsigned long>(address));
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.find('-') < line.find(' ') && line.find(':') > line.find(' ')) inside = line.rfind(start, 0) == 0;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line.substr(8) + " ";
  }
  return "";
}

// The beginning of a page.
bool is_mapped(void* address) {
  unsigned char resident = 0;
  return ::mincore(address, 1, &resident) == 0;
}

}  // namespace

TEST_CASE("the memory of both segments is reserved from the start") {
  const Made made;
  const shm::Plan& plan = made.segments.plan();
  CHECK(size_of(made.segments.control_fd()) == plan.control_bytes);
  CHECK(size_of(made.segments.data_fd()) == plan.data_bytes);
  CHECK(real_bytes(made.segments.control_fd()) >= plan.control_bytes);
  CHECK(real_bytes(made.segments.data_fd()) >= plan.data_bytes);
}

TEST_CASE("control's header and geometry describe the segments, and all other bytes are zero") {
  const Made made;
  const shm::Plan& plan = made.segments.plan();
  struct stat data {};
  REQUIRE(::fstat(made.segments.data_fd(), &data) == 0);
  CHECK(plan.geometry.data_device == data.st_dev);
  CHECK(plan.geometry.data_inode == data.st_ino);
  for (const shm::SegmentKind kind : {shm::SegmentKind::control, shm::SegmentKind::data}) {
    const bool control = kind == shm::SegmentKind::control;
    const std::uint64_t bytes = control ? plan.control_bytes : plan.data_bytes;
    std::string content(bytes, 'x');
    REQUIRE(::pread(control ? made.segments.control_fd() : made.segments.data_fd(), content.data(), bytes, 0) ==
            static_cast<ssize_t>(bytes));
    if (!control) {
      CHECK_MESSAGE(content.find_first_not_of('\0') == std::string::npos, "nothing that a worker could spoil");
      continue;
    }
    CHECK(content.substr(0, 8) == "FEEDLANE");
    shm::SegmentHeader header;
    std::memcpy(&header, content.data(), sizeof header);
    CHECK(header.kind == static_cast<std::uint32_t>(kind));
    CHECK(header.major == shm::format_major);
    CHECK(header.minor == shm::format_minor);
    CHECK(header.byte_order == 0x01020304);
    CHECK(header.page_bytes == static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE)));
    CHECK(header.layout_hash == shm::layout_hash);
    CHECK(header.segment_bytes == bytes);
    CHECK(header.features == 0);
    shm::Geometry geometry{};
    std::memcpy(&geometry, content.data() + sizeof header, sizeof geometry);
    CHECK(std::memcmp(&geometry, &plan.geometry, sizeof geometry) == 0);
    CHECK(content.find_first_not_of('\0', sizeof header + sizeof geometry) == std::string::npos);
  }
}

TEST_CASE("the kernel refuses every other way to write to control") {
  const Made made;
  const int fd = made.segments.control_fd();
  const auto refused = [](auto result) { return result == -1 && errno == EPERM; };
  CHECK((map(fd, PROT_READ | PROT_WRITE) == MAP_FAILED && errno == EPERM));
  CHECK(refused(::write(fd, "x", 1)));
  CHECK(refused(::pwrite(fd, "x", 1, 200)));
  CHECK(refused(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096)));
  void* view = map(fd, PROT_READ);
  REQUIRE(view != MAP_FAILED);
  CHECK(::mprotect(view, 4096, PROT_READ | PROT_WRITE) == -1);
  (void)::munmap(view, 4096);
  const Fd again(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC));
  if (again) {
    CHECK((map(again.get(), PROT_READ | PROT_WRITE) == MAP_FAILED && errno == EPERM));
    CHECK(refused(::pwrite(again.get(), "x", 1, 0)));
  }
}

TEST_CASE("the trainer's own mapping of control stays writable") {
  const Made made;
  made.segments.trainer_block()->abandon_before.store(5, std::memory_order_relaxed);
  made.segments.index_list(3)[2] = 99;
  std::uint64_t word = 0;
  const auto& plan = made.segments.plan();
  REQUIRE(::pread(made.segments.control_fd(), &word, 8, static_cast<off_t>(plan.trainer_block + 128)) == 8);
  CHECK(word == 5);
  REQUIRE(::pread(made.segments.control_fd(), &word, 8,
                  static_cast<off_t>(plan.index_lists + 3 * plan.index_list_bytes + 16)) == 8);
  CHECK(word == 99);
}

TEST_CASE("data can be mapped and written through its descriptor") {
  const Made made;
  void* view = map(made.segments.data_fd(), PROT_READ | PROT_WRITE);
  REQUIRE(view != MAP_FAILED);
  std::memcpy(static_cast<std::byte*>(view) + made.segments.plan().worker_rows, "\1", 1);
  CHECK(made.segments.worker_row(0)->sleeping.load(std::memory_order_relaxed) == 1);
  (void)::munmap(view, 4096);
}

TEST_CASE("neither segment can be shrunk, grown, or sealed further") {
  const Made made;
  for (const int fd : {made.segments.control_fd(), made.segments.data_fd()}) {
    const auto bytes = static_cast<off_t>(size_of(fd));
    CHECK((::ftruncate(fd, 0) == -1 && errno == EPERM));
    CHECK((::ftruncate(fd, bytes - 4096) == -1 && errno == EPERM));
    CHECK((::ftruncate(fd, bytes + 4096) == -1 && errno == EPERM));
    CHECK(::fallocate(fd, 0, bytes, 4096) == -1);
    CHECK((::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EPERM));
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("a forked child has no mapping of control") {
  const Made made;
  std::byte* control = reinterpret_cast<std::byte*>(made.segments.trainer_block()) - made.segments.plan().trainer_block;
  REQUIRE(is_mapped(control));
  CHECK_FALSE(feedlane::test::in_child([&] { return is_mapped(control); }));
}

TEST_CASE("a child forked by another thread during creation never has a writable mapping of control") {
  std::atomic<bool> is_over{false};
  int children = 0;
  int writable = 0;
  std::thread forker([&] {
    while (!is_over || children < 20) {
      const pid_t pid = ::fork();
      if (pid == 0) {  // only system calls: the other thread may hold any lock
        const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
        static char text[1 << 20];
        std::size_t length = 0;
        for (ssize_t got = 0; (got = ::read(fd, text + length, sizeof text - 1 - length)) > 0;)
          length += static_cast<std::size_t>(got);
        bool found = false;
        for (char* at = text; at != nullptr && *at != '\0';) {
          char* const end = std::strchr(at, '\n');
          if (end != nullptr) *end = '\0';
          found = found || (std::strstr(at, "feedlane-control") != nullptr && std::strstr(at, " rw-s ") != nullptr);
          at = end == nullptr ? nullptr : end + 1;
        }
        ::_exit(found ? 1 : 0);
      }
      int status = 0;
      if (pid < 0 || ::waitpid(pid, &status, 0) != pid) break;
      children++;
      writable += WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 1 : 0;
    }
  });
  shm::Geometry geometry = feedlane::test::small_geometry();
  geometry.config_bytes = 8 << 20;  // to be reserved after it was mapped
  for (int i = 0; i < 100; i++) {
    shm::Segments segments;
    feedlane::test::create(segments, geometry);
  }
  is_over = true;
  forker.join();
  CHECK(children >= 20);
  CHECK(writable == 0);
}

TEST_CASE("a core dump of the trainer or of a worker does not contain the arena") {
  const Made made;
  shm::Segments worker;
  Error error;
  REQUIRE(worker.attach(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
  for (const shm::Segments* s : {&made.segments, static_cast<const shm::Segments*>(&worker)}) {
    const std::string data = flags_of(reinterpret_cast<std::byte*>(s->worker_row(0)) - s->plan().worker_rows);
    if (data.empty()) return feedlane::test::skip("this kernel does not tell the flags of a mapping");
    CHECK(data.find(" dd ") != std::string::npos);
  }
}

TEST_CASE("every region of the plan is in its segment, and regions are disjoint") {
  const Made made;
  const shm::Segments& s = made.segments;
  const shm::Plan& p = s.plan();
  const std::byte* control = reinterpret_cast<std::byte*>(s.trainer_block()) - p.trainer_block;
  const std::byte* data = reinterpret_cast<std::byte*>(s.worker_row(0)) - p.worker_rows;
  const auto in_control = [&](const void* at) {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - control);
  };
  const auto in_data = [&](const void* at) {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - data);
  };
  CHECK(in_control(s.trainer_row(1)) == p.trainer_rows + sizeof(shm::TrainerRow));
  CHECK(in_control(s.fields()) == p.fields);
  CHECK(in_control(s.config()) == p.config);
  CHECK(in_control(s.index_list(3)) == p.index_lists + 3 * p.index_list_bytes);
  CHECK(in_control(s.task_ring(1)) == p.task_rings + p.ring_bytes);
  CHECK(in_data(s.worker_row(1)) == p.worker_rows + sizeof(shm::WorkerRow));
  CHECK(in_data(s.result_lane(1)) == p.result_lanes + p.ring_bytes);
  CHECK(in_data(s.slot_header(3)) == p.slot_headers + 3 * sizeof(shm::SlotHeader));
  CHECK(in_data(s.payload(3)) == p.payload_of(3));
  CHECK(reinterpret_cast<std::uintptr_t>(s.payload(1)) % shm::payload_alignment == 0);
}

TEST_CASE("restoring a slot frees memory touched beyond its reserved part and reserves that part again") {
  shm::Geometry geometry = feedlane::test::small_geometry();
  geometry.slot_bytes = 1 << 20;
  Made made(geometry);
  const shm::Segments& s = made.segments;
  const std::uint64_t before = real_bytes(s.data_fd());
  for (std::uint32_t slot = 0; slot < 2; slot++) std::memset(s.payload(slot), 7, s.plan().slot_stride);
  CHECK(real_bytes(s.data_fd()) > before + (1 << 20));
  REQUIRE(::madvise(s.payload(1), s.plan().slot_reserved, MADV_REMOVE) == 0);
  const std::uint64_t given_back = s.trainer_block()->given_back.load(std::memory_order_relaxed);
  Error error;
  for (std::uint32_t slot = 0; slot < 2; slot++) REQUIRE(s.restore_slot(slot, error) == FEEDLANE_OK);
  CHECK(real_bytes(s.data_fd()) == before);
  CHECK(s.trainer_block()->given_back.load(std::memory_order_relaxed) == given_back + 2);
  CHECK_MESSAGE(s.payload(0)[100] == std::byte{7}, "its reserved part stays as it is");
  CHECK(s.payload(1)[100] == std::byte{0});
  CHECK(s.payload(0)[s.plan().slot_reserved] == std::byte{0});
}

TEST_CASE("populated memory is in this process's page tables, and unreserved memory is not allocated yet") {
  shm::Geometry geometry = feedlane::test::small_geometry();
  geometry.slot_bytes = 1 << 16;
  shm::Plan plan;
  Error error;
  REQUIRE(shm::make_plan(geometry, plan, error) == FEEDLANE_OK);
  if (!has_page(&plan) || !has_populate())
    return feedlane::test::skip("a kernel that populates nothing, or no page map of this process");
  if (!has_small_pages()) return feedlane::test::skip("a fault in shared memory maps more than its page here");
  for (const bool is_populated : {false, true}) {
    CAPTURE(is_populated);
    shm::Segments segments;
    REQUIRE(segments.create(plan, {}, error, {.is_populated = is_populated}) == FEEDLANE_OK);
    for (std::uint32_t slot = 0; slot < geometry.slots; slot++) {
      const std::byte* const payload = segments.payload(slot);
      CHECK(has_page(payload) == is_populated);
      CHECK(has_page(payload + plan.slot_reserved - 1) == is_populated);
      CHECK_FALSE(has_page(payload + plan.slot_reserved + page_bytes()));
    }
  }
}

// promise: fault-little-memory, machine-little-memory
TEST_CASE("insufficient memory is detected before any memory is reserved") {
  const feedlane::test::Folder folder;
  folder.write("proc/meminfo", "MemAvailable: 4 kB\n");
  shm::Plan plan;
  shm::Segments segments;
  Error error;
  REQUIRE(shm::make_plan(feedlane::test::small_geometry(), plan, error) == FEEDLANE_OK);
  CHECK(segments.create(plan, {folder.path() + "/proc", folder.path()}, error) == FEEDLANE_E_MEMORY);
  CHECK(error.found == 4096);
  CHECK(error.needed == static_cast<std::int64_t>(plan.control_bytes + plan.data_bytes));
  CHECK(segments.control_fd() == -1);
  CHECK(segments.data_fd() == -1);
}

TEST_CASE("insufficient memory on the named nodes is detected before any memory is reserved") {
  const feedlane::test::Folder folder;
  folder.write("node1/meminfo", "Node 1 MemFree: 4 kB\n");
  feedlane::os::NumberSet nodes;
  REQUIRE(nodes.read("1"));
  shm::Plan plan;
  shm::Segments segments;
  Error error;
  REQUIRE(shm::make_plan(feedlane::test::small_geometry(), plan, error) == FEEDLANE_OK);
  os::SystemFiles files;
  files.nodes = folder.path();
  CHECK(segments.create(plan, files, error, {.nodes = &nodes}) == FEEDLANE_E_MEMORY);
  CHECK(std::string(error.argument) == "config.memory_nodes");
  CHECK(segments.control_fd() == -1);
  CHECK(segments.data_fd() == -1);
}
