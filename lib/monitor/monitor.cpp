// SPDX-License-Identifier: Apache-2.0
// Finds the segments of another process's loaders and maps them.
#include "monitor/monitor.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "monitor/diagnosis.hpp"
#include "monitor/files.hpp"

namespace feedlane::monitor {
namespace {

struct Beginning {
  shm::SegmentHeader header;
  shm::Geometry geometry;
};

bool is_control(const File& file, Beginning& out) {
  return ::pread(file.fd.get(), &out, sizeof out, 0) == sizeof out && out.header.magic == shm::segment_magic &&
         out.header.kind == static_cast<std::uint32_t>(shm::SegmentKind::control);
}

}  // namespace

Status Monitor::open(std::int64_t pid, std::int32_t nth, std::unique_ptr<Monitor>& out, Error& error) {
  if (nth < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "nth", nth, 0, "nth is {}: loaders are counted from 0", nth);
  std::vector<File> controls, datas;
  Status s = find_files(pid, shm::control_name, controls, error);
  if (s != FEEDLANE_OK) return s;
  if (controls.empty()) return FEEDLANE_END;  // as of most processes: their descriptors are read once
  if (s = find_files(pid, shm::data_name, datas, error); s != FEEDLANE_OK) return s;
  for (const File& control : controls) {
    Beginning beginning;
    if (!is_control(control, beginning)) continue;
    const os::FileId id{beginning.geometry.data_device, beginning.geometry.data_inode};
    const auto data = std::find_if(datas.begin(), datas.end(), [&](const File& f) { return f.id == id; });
    // A loader that is being created may have no data segment yet. With another layout the offsets are unknown.
    const bool is_ours = beginning.header.layout_hash == shm::layout_hash;
    if (is_ours && (data == datas.end() || beginning.geometry.slots == 0)) continue;
    if (nth-- != 0) continue;
    std::unique_ptr<Monitor> monitor(new Monitor);
    const int data_fd = data == datas.end() ? -1 : data->fd.get();
    s = monitor->segments_.watch(control.fd.get(), data_fd, error);
    if (s != FEEDLANE_OK) return s;
    monitor->seen_.reserve(monitor->segments_);
    monitor->seen_.take(monitor->segments_);
    monitor->pid_ = pid;
    out = std::move(monitor);
    return s;
  }
  return FEEDLANE_END;
}

feedlane_diagnosis Monitor::diagnose() {
  Snapshot now;
  now.reserve(segments_);
  const std::lock_guard lock(mutex_);
  now.take(segments_);
  now.sees_processes = now.info.pid == pid_;
  const feedlane_diagnosis d = monitor::diagnose(seen_, now);
  seen_ = std::move(now);
  return d;
}

}  // namespace feedlane::monitor
