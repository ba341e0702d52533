// SPDX-License-Identifier: Apache-2.0
// Reads the control segments of standalone rings.
#include "monitor/rings.hpp"

#include <unistd.h>

#include <vector>

#include "monitor/files.hpp"
#include "shm/ring_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::monitor {
namespace {

bool is_ring(int fd) {
  shm::SegmentHeader header{};
  return ::pread(fd, &header, sizeof header, 0) == sizeof header && header.magic == shm::segment_magic &&
         header.kind == static_cast<std::uint32_t>(shm::SegmentKind::ring_control);
}

Status read_control(std::int64_t pid, int fd, feedlane_ring_info& out, Error& error) {
  shm::SegmentPair pair;
  Status s = check_is_reserved(fd, error);
  if (s == FEEDLANE_OK) s = pair.attach_control(shm::SegmentKind::ring_control, fd, error);
  if (s != FEEDLANE_OK) return s;
  const shm::RingGeometry geometry = *pair.control<shm::RingGeometry>(sizeof(shm::SegmentHeader));
  shm::RingPlan plan;
  if (shm::make_ring_plan(geometry.message_bytes, geometry.capacity, geometry.lanes, plan, error) != FEEDLANE_OK)
    return error.code = FEEDLANE_E_CORRUPT;
  if (s = pair.check_control_size(plan.control_bytes, error); s != FEEDLANE_OK) return s;
  out = {};
  out.size = sizeof out;
  out.pid = pid;
  out.message_bytes = geometry.message_bytes;
  out.capacity = geometry.capacity;
  out.lanes = geometry.lanes;
  out.control_bytes = plan.control_bytes;
  const auto* const rows = pair.control<shm::ReceiverRow>(plan.receiver_rows);
  for (std::uint32_t lane = 0; lane < geometry.lanes; lane++)
    out.received += rows[lane].position.load(std::memory_order_relaxed);  // only a statistic
  return FEEDLANE_OK;
}

}  // namespace

Status read_ring(std::int64_t pid, std::int32_t nth, feedlane_ring_info& out, Error& error) {
  if (nth < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "nth", nth, 0, "nth is {}: rings are counted from 0", nth);
  std::vector<os::OpenFile> memfds;
  if (const Status s = list_memfds(pid, memfds, error); s != FEEDLANE_OK) return s;
  for (const File& file : files_of(pid, memfds, shm::ring_control_name)) {
    os::Fd fd;
    if (const Status s = open_file(pid, file, fd, error); s != FEEDLANE_OK) return s;
    if (fd && is_ring(fd.get()) && nth-- == 0) return read_control(pid, fd.get(), out, error);
  }
  return FEEDLANE_END;
}

}  // namespace feedlane::monitor
