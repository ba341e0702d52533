// SPDX-License-Identifier: Apache-2.0
// Two descriptors that somebody hands over: refused, or every part of both segments lies within them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "input.hpp"
#include "monitor/stats.hpp"
#include "os/memfd.hpp"
#include "shm/ring_layout.hpp"
#include "shm/segment.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

using namespace feedlane;

namespace {

struct Beginning {
  shm::SegmentHeader header;
  shm::Geometry geometry;
};

shm::Geometry small_geometry() {
  shm::Geometry g{};
  g.workers = 2;
  g.world = 1;
  g.slots = 3;
  g.max_rows = 4;
  g.field_count = 1;
  g.ring_capacity = 4;
  g.config_bytes = 10;
  g.slot_bytes = g.reserved_bytes = 5000;
  g.list_bytes = 64;
  g.record_rows = 4;
  g.trace_records = 5;
  return g;
}

Beginning sound(shm::SegmentKind kind, std::uint64_t bytes) {
  Beginning b{};
  b.header.magic = shm::segment_magic;
  b.header.kind = static_cast<std::uint32_t>(kind);
  b.header.major = shm::format_major;
  b.header.byte_order = shm::byte_order_mark;
  b.header.page_bytes = static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE));
  b.header.layout_hash = shm::layout_hash;
  b.header.segment_bytes = bytes;
  b.header.pair_id = 1234;
  return b;
}

// A memfd of that size that begins like this. Only its first page takes memory.
os::Fd make(const Beginning& beginning, std::uint64_t bytes, int seals) {
  os::Fd fd;
  Error error;
  if (os::create_memfd("feedlane-fuzz", bytes, fd, error) != FEEDLANE_OK) return {};
  if (bytes != 0) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, sizeof beginning));
    PROMISE(::pwrite(fd.get(), &beginning, count, 0) == static_cast<ssize_t>(count));
  }
  PROMISE(os::add_seals(fd.get(), seals, error) == FEEDLANE_OK);
  return fd;
}

int edit_seals(fuzz::Input& in, int seals) {
  return in.pick(8) == 7 ? in.pick(64) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE) : seals;
}

// A byte of it, first or last.
void touch(const void* memory, std::uint64_t bytes, std::uint64_t& sum) {
  if (bytes == 0) return;
  const auto* at = static_cast<const volatile std::uint8_t*>(memory);
  sum += at[0] + at[bytes - 1];
}

void walk(const shm::Segments& s) {
  const shm::Plan& p = s.plan();
  const shm::Geometry& g = p.geometry;
  std::uint64_t sum = 0;
  touch(s.trainer_block(), sizeof(shm::TrainerBlock), sum);
  touch(s.counters(), sizeof(shm::LoaderCounters), sum);
  touch(s.fields(), g.field_count * sizeof(shm::FieldRecord), sum);
  touch(s.config(), g.config_bytes, sum);
  touch(s.facts(), sizeof(shm::LoaderFacts), sum);
  touch(s.timing_row(0), p.timing_rows() * sizeof(shm::TimingRow), sum);
  touch(s.error_rows(), shm::error_rows * sizeof(shm::ErrorRow), sum);
  touch(s.slot_record(0), g.slots * sizeof(shm::BatchRecord), sum);
  if (g.trace_records != 0) {
    touch(s.trace_head(), sizeof(shm::TraceHead), sum);
    touch(s.trace(), g.trace_records * sizeof(shm::BatchRecord), sum);
  }
  if (g.workers != 0) {
    const std::uint32_t last = g.workers - 1;
    touch(s.trainer_row(last), sizeof(shm::TrainerRow), sum);
    touch(s.task_ring(last), p.ring_bytes, sum);
    touch(s.worker_row(last), sizeof(shm::WorkerRow), sum);
    touch(s.result_lane(last), p.ring_bytes, sum);
    feedlane_worker_stats stats;
    PROMISE(monitor::read_worker_stats(s, static_cast<std::int32_t>(last), stats) == FEEDLANE_OK);
  }
  const std::uint32_t last = g.slots - 1;
  touch(s.index_list(last), g.list_bytes, sum);
  touch(s.slot_header(last), sizeof(shm::SlotHeader), sum);
  touch(s.records(last), p.record_bytes, sum);
  touch(s.payload(last), g.slot_bytes, sum);
  PROMISE(p.reserved_bytes() <= p.control_bytes + p.data_bytes);
  PROMISE(monitor::read_stats(s).slots == g.slots);
}

// A memfd of that size without a word in it.
os::Fd make_data(std::uint64_t bytes, int seals, os::FileId& id) {
  os::Fd fd;
  Error error;
  if (os::create_memfd("feedlane-fuzz", bytes, fd, error) != FEEDLANE_OK) return {};
  PROMISE(os::add_seals(fd.get(), seals, error) == FEEDLANE_OK);
  PROMISE(os::file_id(fd.get(), id, error) == FEEDLANE_OK);
  return fd;
}

// Of a loader; with `follow` the segments have the sizes that the changed geometry asks for.
void attach_loader(fuzz::Input& in) {
  Beginning control = sound(shm::SegmentKind::control, 0);
  control.geometry = small_geometry();
  fuzz::edit(in, &control.geometry, sizeof control.geometry);
  shm::Plan plan;
  Error error;
  const Status planned = shm::make_plan(control.geometry, plan, error);
  PROMISE(planned == FEEDLANE_OK || planned == FEEDLANE_E_LIMIT);
  if (planned != FEEDLANE_OK || !in.flag()) PROMISE(shm::make_plan(small_geometry(), plan, error) == FEEDLANE_OK);
  const std::uint64_t control_bytes = plan.control_bytes + (in.pick(16) == 15 ? std::uint64_t{in.u16()} : 0);
  const std::uint64_t data_bytes = in.pick(16) == 15 ? in.u32() : plan.data_bytes;
  control.header.segment_bytes = control_bytes;
  fuzz::edit(in, &control.header, sizeof control.header);
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  os::FileId id;
  const os::Fd data_fd = make_data(data_bytes, edit_seals(in, seals), id);
  if (in.pick(16) != 15) control.geometry.data_device = id.device, control.geometry.data_inode = id.inode;
  os::Fd control_fd = make(control, control_bytes, edit_seals(in, seals | F_SEAL_FUTURE_WRITE));
  if (in.pick(16) == 15) control_fd.reset();
  shm::Segments segments;
  const Status s = in.flag() ? segments.watch(control_fd.get(), data_fd.get(), error)
                             : segments.attach(control_fd.get(), data_fd.get(), error);
  PROMISE(s == FEEDLANE_OK || s == FEEDLANE_E_CORRUPT || s == FEEDLANE_E_ABI || s == FEEDLANE_E_MEMORY ||
          s == FEEDLANE_E_OS);
  if (s == FEEDLANE_OK) walk(segments);
  else PROMISE(error.code == s && error.text[0] != '\0');
}

// Of a ring: the plan of any geometry, and segments that fit it or don't.
void attach_ring(fuzz::Input& in) {
  shm::RingGeometry g{8, 64, 4, 1};
  fuzz::edit(in, &g, sizeof g);
  shm::RingPlan plan;
  Error error;
  const Status planned = shm::make_ring_plan(g.message_bytes, g.capacity, g.lanes, plan, error);
  PROMISE(planned == FEEDLANE_OK || planned == FEEDLANE_E_ARGUMENT);
  if (planned != FEEDLANE_OK) return;
  PROMISE(plan.receiver_rows + g.lanes * sizeof(shm::ReceiverRow) <= plan.control_bytes);
  const std::uint64_t ring_bytes = std::uint64_t{plan.geometry.cell_bytes} * g.capacity;
  PROMISE(plan.cells + ring_bytes <= plan.data_bytes && plan.all_bytes() <= shm::max_segment_bytes);
  PROMISE(plan.sender_row + sizeof(shm::SenderRow) <= plan.cells);
  PROMISE(plan.geometry.cell_bytes >= g.message_bytes + 8 && plan.geometry.cell_bytes % 64 == 0);
  Beginning control = sound(shm::SegmentKind::ring_control, plan.control_bytes);
  Beginning data = sound(shm::SegmentKind::ring_data, plan.data_bytes);
  fuzz::edit(in, &control.header, sizeof control.header);
  fuzz::edit(in, &data.header, sizeof data.header);
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const os::Fd control_fd = make(control, plan.control_bytes, seals | F_SEAL_FUTURE_WRITE);
  const os::Fd data_fd = make(data, plan.data_bytes, seals);
  shm::SegmentPair pair;
  Status s =
      pair.attach(shm::SegmentKind::ring_control, control_fd.get(), data_fd.get(), shm::Access::read_write, error);
  if (s == FEEDLANE_OK) s = pair.check_sizes(plan.control_bytes, plan.data_bytes + (in.pick(16) == 15 ? 1 : 0), error);
  PROMISE(s == FEEDLANE_OK || s == FEEDLANE_E_CORRUPT || s == FEEDLANE_E_ABI || s == FEEDLANE_E_MEMORY);
  if (s != FEEDLANE_OK) return;
  std::uint64_t sum = 0;
  touch(pair.data<std::byte>(plan.cells), ring_bytes, sum);
  touch(pair.control<std::byte>(plan.receiver_rows), g.lanes * sizeof(shm::ReceiverRow), sum);
}

// What the trainer makes, a worker takes.
void create_loader(fuzz::Input& in) {
  shm::Geometry g = small_geometry();
  g.workers = in.pick(5);
  g.slots = 1 + in.pick(4);
  g.max_rows = 1 + in.pick(8);
  g.slot_bytes = 1 + in.u16();
  g.reserved_bytes = 1 + in.u16() % g.slot_bytes;
  g.record_rows = in.pick(g.max_rows + 1);
  g.trace_records = in.pick(4);
  shm::Plan plan;
  Error error;
  PROMISE(shm::make_plan(g, plan, error) == FEEDLANE_OK);
  shm::Segments trainer;
  PROMISE(trainer.create(plan, {"/nowhere", "/nowhere"}, error) == FEEDLANE_OK);
  walk(trainer);
  shm::Segments worker;
  PROMISE(worker.attach(trainer.control_fd(), trainer.data_fd(), error) == FEEDLANE_OK);
  walk(worker);
  PROMISE(worker.plan().payload_of(g.slots - 1) == trainer.plan().payload_of(g.slots - 1));
  worker.unmap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  switch (in.pick(16)) {
    case 0: create_loader(in); break;
    case 1:
    case 2:
    case 3: attach_ring(in); break;
    default: attach_loader(in); break;
  }
  return 0;
}
