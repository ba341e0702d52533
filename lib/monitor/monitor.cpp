// SPDX-License-Identifier: Apache-2.0
// Finds the segments of another process's loaders and maps them.
#include "monitor/monitor.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "monitor/files.hpp"

namespace feedlane::monitor {
namespace {

struct Beginning {
  shm::SegmentHeader header;
  shm::Geometry geometry;
};

bool is_control(int fd, Beginning& out) {
  return ::pread(fd, &out, sizeof out, 0) == sizeof out && out.header.magic == shm::segment_magic &&
         out.header.kind == static_cast<std::uint32_t>(shm::SegmentKind::control);
}

}  // namespace

Status Monitor::open(std::int64_t pid, std::int32_t nth, std::unique_ptr<Monitor>& out, Error& error) {
  if (nth < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "nth", nth, 0, "nth is {}: loaders are counted from 0", nth);
  std::vector<os::OpenFile> memfds;
  Status s = list_memfds(pid, memfds, error);
  if (s != FEEDLANE_OK) return s;
  std::vector<File> datas = files_of(pid, memfds, shm::data_name);
  std::ranges::sort(datas, {}, &File::id);
  for (const File& file : files_of(pid, memfds, shm::control_name)) {
    os::Fd control;
    if (s = open_file(pid, file, control, error); s != FEEDLANE_OK) return s;
    Beginning beginning;
    if (!control || !is_control(control.get(), beginning)) continue;
    const os::FileId id{beginning.geometry.data_device, beginning.geometry.data_inode};
    auto data = std::ranges::lower_bound(datas, id, {}, &File::id);
    if (data != datas.end() && data->id != id) data = datas.end();
    // A loader that is being created may have no data segment yet. With another layout, the offsets are unknown:
    // `watch` refuses it.
    const bool is_ours = beginning.header.layout_hash == shm::layout_hash;
    if (is_ours && (data == datas.end() || beginning.geometry.slots == 0)) continue;
    if (nth-- != 0) continue;
    std::unique_ptr<Monitor> monitor(new Monitor);
    os::Fd data_fd;
    if (data != datas.end()) s = open_file(pid, *data, data_fd, error);
    if (s == FEEDLANE_OK && is_ours) s = check_is_reserved(control.get(), error);
    if (s == FEEDLANE_OK) s = monitor->segments_.watch(control.get(), data_fd.get(), error);
    if (s != FEEDLANE_OK) return s;
    monitor->pid_ = pid;
    monitor->take(monitor->seen_);
    out = std::move(monitor);
    return s;
  }
  return FEEDLANE_END;
}

void Monitor::take(Snapshot& now) const {
  now.reserve(segments_);
  now.take(segments_);
  now.sees_processes = now.info.pid == pid_;
  now.take_delays(segments_);
}

void Monitor::read(Snapshot& before, Snapshot& after, bool advances) {
  const std::lock_guard lock(mutex_);
  take(after);
  before = seen_;
  if (advances) seen_ = after;
}

}  // namespace feedlane::monitor
