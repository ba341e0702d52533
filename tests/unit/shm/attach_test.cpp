// SPDX-License-Identifier: Apache-2.0
// What a worker makes of two descriptors that somebody hands to it: nothing is taken on trust.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <array>

#include "unit/os/fixtures.hpp"
#include "unit/shm/segments.hpp"

using feedlane::Error;
using feedlane::Status;
using feedlane::os::Fd;
using feedlane::test::changed_copy;
using feedlane::test::seals_of;
namespace os = feedlane::os;
namespace shm = feedlane::shm;
using shm::SegmentKind;

namespace {

struct Made {
  explicit Made(const shm::Geometry& geometry = feedlane::test::small_geometry()) {
    feedlane::test::create(segments, geometry);
  }
  [[nodiscard]] int fd(SegmentKind kind) const {
    return kind == SegmentKind::control ? segments.control_fd() : segments.data_fd();
  }
  [[nodiscard]] std::uint64_t bytes(SegmentKind kind) const {
    return kind == SegmentKind::control ? segments.plan().control_bytes : segments.plan().data_bytes;
  }
  shm::Segments segments;
};

// Attaches to the segments of `made` with one of them replaced.
Status attach_with(const Made& made, SegmentKind kind, int replacement, Error& error) {
  shm::Segments segments;
  const bool control = kind == SegmentKind::control;
  return segments.attach(control ? replacement : made.segments.control_fd(),
                         control ? made.segments.data_fd() : replacement, error);
}

shm::SegmentHeader& header_of(std::byte* segment) { return *reinterpret_cast<shm::SegmentHeader*>(segment); }
shm::Geometry& geometry_of(std::byte* segment) {
  return *reinterpret_cast<shm::Geometry*>(segment + sizeof(shm::SegmentHeader));
}

// With changed control.
template <class Edit>
Status attach_changed(const Made& made, Error& error, Edit&& edit) {
  constexpr SegmentKind kind = SegmentKind::control;
  const Fd copy = changed_copy(made.fd(kind), made.bytes(kind), seals_of(kind), edit);
  return attach_with(made, kind, copy.get(), error);
}

// With data of so many bytes and these seals, and control that says it is the one.
Status attach_data(const Made& made, std::uint64_t bytes, int seals, Error& error) {
  const Fd data = changed_copy(made.segments.data_fd(), bytes, seals, [](std::byte*) {});
  struct stat status {};
  REQUIRE(::fstat(data.get(), &status) == 0);
  constexpr SegmentKind kind = SegmentKind::control;
  const Fd control = changed_copy(made.fd(kind), made.bytes(kind), seals_of(kind),
                                  [&](std::byte* s) { geometry_of(s).data_inode = status.st_ino; });
  shm::Segments segments;
  return segments.attach(control.get(), data.get(), error);
}

constexpr std::array kinds{SegmentKind::control, SegmentKind::data};

}  // namespace

TEST_CASE("an attached worker sees the trainer's geometry and the same memory") {
  const Made made;
  shm::Segments worker;
  Error error;
  REQUIRE(worker.attach(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
  CHECK(worker.plan().geometry.base_seed == 77);
  CHECK(worker.plan().payload == made.segments.plan().payload);
  made.segments.index_list(2)[1] = 1234;
  CHECK(worker.index_list(2)[1] == 1234);
  worker.payload(3)[4999] = std::byte{9};
  CHECK(made.segments.payload(3)[4999] == std::byte{9});
  CHECK_MESSAGE(worker.control_fd() == -1, "descriptors stay the caller's");
}

TEST_CASE("an attached worker can't make its mapping of control writable, but can write to data") {
  const Made made;
  shm::Segments worker;
  Error error;
  REQUIRE(worker.attach(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
  auto* control = reinterpret_cast<std::byte*>(worker.trainer_block()) - worker.plan().trainer_block;
  CHECK(::mprotect(control, 4096, PROT_READ | PROT_WRITE) == -1);
}

TEST_CASE("a worker's own children have no mapping of data") {
  const Made made;
  shm::Segments worker;
  Error error;
  REQUIRE(worker.attach(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
  auto* data = reinterpret_cast<std::byte*>(worker.worker_row(0)) - worker.plan().worker_rows;
  const auto mapped = [&] {
    unsigned char resident = 0;
    return ::mincore(data, 1, &resident) == 0;
  };
  CHECK(mapped());
  CHECK_FALSE(feedlane::test::in_child(mapped));
}

TEST_CASE("unchanged copies of the segments are accepted, and so is another minor version") {
  const Made made;
  Error error;
  CHECK(attach_changed(made, error, [](std::byte*) {}) == FEEDLANE_OK);
  CHECK(attach_data(made, made.bytes(SegmentKind::data), seals_of(SegmentKind::data), error) == FEEDLANE_OK);
  CHECK_MESSAGE(attach_changed(made, error, [](std::byte* s) { header_of(s).minor++; }) == FEEDLANE_OK,
                "a minor version is compatible");
}

// promise: worker-overwrites-segment
TEST_CASE("a worker can attach, no matter what another worker writes into data") {
  const Made made;
  shm::Segments worker;
  Error error;
  REQUIRE(worker.attach(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
  std::byte* const data = reinterpret_cast<std::byte*>(worker.worker_row(0)) - worker.plan().worker_rows;
  for (const int byte : {0xff, 0x00, 0x5a}) {
    std::memset(data, byte, worker.plan().data_bytes);
    shm::Segments another;
    CHECK(another.attach(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
    shm::Segments monitor;
    CHECK(monitor.watch(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
  }
}

TEST_CASE("a doorbell write to data's descriptor by mistake changes only unused bytes") {
  const Made made;
  const std::uint64_t one = 1;
  REQUIRE(::fcntl(made.segments.data_fd(), F_SETFL, 0) ==
          0);  // what keeps it from being written to; any holder may do so
  REQUIRE(::write(made.segments.data_fd(), &one, sizeof one) == sizeof one);
  CHECK(made.segments.plan().worker_rows >= sizeof one);
}

TEST_CASE("each header number that differs from this library's is refused by name, with both numbers") {
  struct Change {
    const char* name;
    Status refusal;
    std::int64_t found, needed;
    void (*edit)(shm::SegmentHeader&);
  };
  const Made made;
  const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
  const auto bytes = static_cast<std::int64_t>(made.bytes(SegmentKind::control));
  constexpr auto magic = static_cast<std::int64_t>(shm::segment_magic);
  constexpr auto hash = static_cast<std::int64_t>(shm::layout_hash);
  for (const Change& c : {
           Change{"magic", FEEDLANE_E_CORRUPT, magic ^ 1, magic, [](auto& h) { h.magic ^= 1; }},
           {"kind", FEEDLANE_E_CORRUPT, 2, 1, [](auto& h) { h.kind = 2; }},
           {"kind", FEEDLANE_E_CORRUPT, 0, 1, [](auto& h) { h.kind = 0; }},
           {"major", FEEDLANE_E_ABI, shm::format_major + 1, shm::format_major, [](auto& h) { h.major++; }},
           {"byte_order", FEEDLANE_E_ABI, 0x04030201, 0x01020304, [](auto& h) { h.byte_order = 0x04030201; }},
           {"layout_hash", FEEDLANE_E_ABI, hash ^ 2, hash, [](auto& h) { h.layout_hash ^= 2; }},
           {"features", FEEDLANE_E_ABI, 1, 0, [](auto& h) { h.features = 1; }},
           {"page_bytes", FEEDLANE_E_ABI, page * 4, page, [](auto& h) { h.page_bytes *= 4; }},
           {"segment_bytes", FEEDLANE_E_CORRUPT, bytes - 1, bytes, [](auto& h) { h.segment_bytes--; }},
       }) {
    CAPTURE(std::string(c.name));
    Error error;
    CHECK(attach_changed(made, error, [&](std::byte* s) { c.edit(header_of(s)); }) == c.refusal);
    CHECK(std::string(error.argument) == c.name);
    CHECK(error.found == c.found);
    CHECK(error.needed == c.needed);
    CHECK(std::string(error.text).find("feedlane-control") != std::string::npos);
  }
}

TEST_CASE("a segment that lacks one of its seals is refused") {
  const Made made;
  for (const SegmentKind kind : kinds)
    for (const int seal : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_FUTURE_WRITE}) {
      const int needed = seals_of(kind);
      if ((needed & seal) == 0) continue;
      CAPTURE(seal);
      const Fd copy = changed_copy(made.fd(kind), made.bytes(kind), needed & ~seal, [](std::byte*) {});
      Error error;
      CHECK(attach_with(made, kind, copy.get(), error) == FEEDLANE_E_CORRUPT);
      CHECK(std::string(error.argument) == (kind == SegmentKind::control ? "feedlane-control" : "feedlane-data"));
      CHECK((error.found & needed) == (needed & ~seal));
      CHECK(error.needed == needed);
    }
}

TEST_CASE("read-only data is refused by a worker and accepted by a monitor") {
  shm::Plan plan;
  Error error;
  REQUIRE(shm::make_plan(feedlane::test::small_geometry(), plan, error) == FEEDLANE_OK);
  shm::Segments trainer;
  REQUIRE(trainer.create(plan, {}, error, {.holes = shm::Holes::forbidden}) == FEEDLANE_OK);
  shm::Segments worker, monitor;
  CHECK(worker.attach(trainer.control_fd(), trainer.data_fd(), error) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(error.text).find("which forbid writing") != std::string::npos);
  CHECK(monitor.watch(trainer.control_fd(), trainer.data_fd(), error) == FEEDLANE_OK);
}

TEST_CASE("a descriptor that is not a memfd is refused") {
  const Made made;
  const feedlane::test::Pipe pipe;
  for (const SegmentKind kind : kinds)
    for (const int fd : {pipe.read.get(), -1}) {
      Error error;
      CHECK(attach_with(made, kind, fd, error) == FEEDLANE_E_CORRUPT);
      CHECK(error.found == -1);
    }
}

TEST_CASE("control shorter than a header, or than its header states, is refused before more is read") {
  const Made made;
  constexpr SegmentKind kind = SegmentKind::control;
  const std::uint64_t whole = made.bytes(kind);
  for (const std::uint64_t bytes : {whole - 1, whole - 4096, whole + 4096, std::uint64_t{4096}, std::uint64_t{240}}) {
    if (bytes == whole) continue;
    CAPTURE(bytes);
    const Fd copy = changed_copy(made.fd(kind), bytes, seals_of(kind), [](std::byte*) {});
    Error error;
    CHECK(attach_with(made, kind, copy.get(), error) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(error.argument) == "segment_bytes");
    CHECK(error.found == static_cast<std::int64_t>(whole));
    CHECK(error.needed == static_cast<std::int64_t>(bytes));
  }
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{239}}) {
    CAPTURE(bytes);
    const Fd copy = changed_copy(made.fd(kind), bytes, seals_of(kind), [](std::byte*) {});
    Error error;
    CHECK(attach_with(made, kind, copy.get(), error) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(error.argument) == "feedlane-control");
    CHECK(error.found == static_cast<std::int64_t>(bytes));
    CHECK(error.needed == 240);
  }
}

TEST_CASE("data of a size other than the geometry requires is refused") {
  const Made made;
  const std::uint64_t whole = made.bytes(SegmentKind::data);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, whole - 4096, whole - 1, whole + 4096}) {
    CAPTURE(bytes);
    Error error;
    CHECK(attach_data(made, bytes, seals_of(SegmentKind::data), error) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(error.argument) == "segment_bytes");
    CHECK(error.found == static_cast<std::int64_t>(bytes));
    CHECK(error.needed == static_cast<std::int64_t>(whole));
  }
}

TEST_CASE("truncated control whose header states the truncated size is refused, because its geometry requires more") {
  const Made made;
  constexpr SegmentKind kind = SegmentKind::control;
  const std::uint64_t bytes = made.bytes(kind) - 4096;
  const Fd copy =
      changed_copy(made.fd(kind), bytes, seals_of(kind), [&](std::byte* s) { header_of(s).segment_bytes = bytes; });
  Error error;
  CHECK(attach_with(made, kind, copy.get(), error) == FEEDLANE_E_CORRUPT);
  CHECK(std::string(error.argument) == "segment_bytes");
  CHECK(std::string(error.text).find("but its geometry requires") != std::string::npos);
}

TEST_CASE("control and data of different loaders are refused") {
  const Made one, other;
  Error error;
  for (const SegmentKind kind : kinds) {
    CHECK(attach_with(one, kind, other.fd(kind), error) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(error.argument) == "geometry.data_inode");
    CHECK(error.found != error.needed);
  }
}

TEST_CASE("a forked child takes over its parent's mapping of data, and its own children do not inherit it") {
  shm::Plan plan;
  Error error;
  REQUIRE(shm::make_plan(feedlane::test::small_geometry(), plan, error) == FEEDLANE_OK);
  shm::Segments trainer;
  REQUIRE(trainer.create(plan, {}, error, {.holes = shm::Holes::forbidden}) == FEEDLANE_OK);
  const std::string wrong = feedlane::test::in_child([&]() -> const char* {
    shm::Segments worker;
    Error why;
    if (worker.attach_inherited(trainer.control_fd(), trainer.data_fd(), trainer, why) != FEEDLANE_OK) return "attach";
    worker.payload(3)[4999] = std::byte{9};
    std::byte* const payload = worker.payload(0);
    if (::madvise(payload, 4096, MADV_REMOVE) != -1 || errno != EPERM) return "MADV_REMOVE";
    if (::fallocate(trainer.data_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != -1) return "fallocate";
    if (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, trainer.data_fd(), 0) != MAP_FAILED) return "mmap";
    const auto is_mapped = [&] {
      unsigned char resident = 0;
      return ::mincore(payload, 1, &resident) == 0;
    };
    return !is_mapped() || feedlane::test::in_child(is_mapped) ? "children" : "";
  });
  CHECK(wrong == "");
  CHECK(trainer.payload(3)[4999] == std::byte{9});
}

TEST_CASE("a forked child refuses another loader's segments as inherited segments") {
  const Made one, other;
  CHECK(feedlane::test::in_child([&] {
          shm::Segments worker;
          Error error;
          return worker.attach_inherited(other.segments.control_fd(), other.segments.data_fd(),
                                         const_cast<shm::Segments&>(one.segments), error);
        }) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("control and data are refused if they are exchanged") {
  const Made made;
  shm::Segments worker;
  Error error;
  CHECK(worker.attach(made.segments.data_fd(), made.segments.control_fd(), error) == FEEDLANE_E_CORRUPT);
}

TEST_CASE("a geometry out of range is refused by name, and a different geometry is refused by the sizes") {
  struct Change {
    const char* name;
    void (*edit)(shm::Geometry&);
  };
  const Made made;
  for (const Change& c : {
           Change{"geometry.workers", [](auto& g) { g.workers = UINT32_MAX; }},
           {"geometry.slots", [](auto& g) { g.slots = 0; }},
           {"geometry.slots", [](auto& g) { g.slots = UINT32_MAX; }},
           {"geometry.max_rows", [](auto& g) { g.max_rows = 0; }},
           {"geometry.field_count", [](auto& g) { g.field_count = 65; }},
           {"geometry.ring_capacity", [](auto& g) { g.ring_capacity = 3; }},
           {"geometry.config_bytes", [](auto& g) { g.config_bytes = UINT64_MAX; }},
           {"geometry.slot_bytes", [](auto& g) { g.slot_bytes = UINT64_MAX; }},
           {"geometry.reserved_bytes", [](auto& g) { g.reserved_bytes = g.slot_bytes + 1; }},
           {"geometry.list_bytes", [](auto& g) { g.list_bytes = 8 * g.max_rows - 1; }},
           {"geometry.record_rows", [](auto& g) { g.record_rows = g.max_rows + 1; }},
           {"geometry.trace_records", [](auto& g) { g.trace_records = shm::max_trace_records + 1; }},
           {"segment_bytes", [](auto& g) { g.workers = 300; }},
           {"segment_bytes", [](auto& g) { g.workers = 0; }},
           {"segment_bytes", [](auto& g) { g.slots = 1; }},
           {"segment_bytes", [](auto& g) { g.max_rows = 5000, g.list_bytes = 40000; }},
           {"segment_bytes", [](auto& g) { g.field_count = 64; }},
           {"segment_bytes", [](auto& g) { g.ring_capacity = 512; }},
           {"segment_bytes", [](auto& g) { g.config_bytes = 5000; }},
           {"segment_bytes", [](auto& g) { g.slot_bytes = g.reserved_bytes = 1; }},
       }) {
    Error error;
    CAPTURE(std::string(c.name));
    CHECK(attach_changed(made, error, [&](std::byte* s) { c.edit(geometry_of(s)); }) == FEEDLANE_E_CORRUPT);
    CHECK(std::string(error.argument) == c.name);
  }
}

TEST_CASE("a loader without workers also has segments") {
  shm::Geometry geometry = feedlane::test::small_geometry();
  geometry.workers = 0;
  geometry.config_bytes = 0;
  const Made made(geometry);
  shm::Segments worker;
  Error error;
  CHECK(worker.attach(made.segments.control_fd(), made.segments.data_fd(), error) == FEEDLANE_OK);
}

TEST_CASE("a mapping that does not fit into the address space fails with E_MEMORY and its size") {
  const Fd file(::memfd_create("too large", MFD_CLOEXEC));
  constexpr std::uint64_t bytes = std::uint64_t{1} << 47;  // as much as there are addresses
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  shm::Mapping mapping;
  Error error;
  CHECK(mapping.map(file.get(), bytes, shm::Access::read_only, shm::Children::none, error) == FEEDLANE_E_MEMORY);
  CHECK(error.code == FEEDLANE_E_MEMORY);
  CHECK(error.needed == static_cast<std::int64_t>(bytes));
}
