// SPDX-License-Identifier: Apache-2.0
// Finds the segments of another process's loaders and maps them.
#include "monitor/monitor.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "os/memfd.hpp"
#include "os/other_process.hpp"

namespace feedlane::monitor {
namespace {

struct File {
  os::Fd fd;
  os::FileId id;
};

// Adds the file unless it is listed already. It is checked later: any process may give a memfd this name.
void open_file(std::int64_t pid, int number, std::vector<File>& files) {
  File file{os::open_again(pid, number), {}};
  Error gone;
  if (!file.fd || os::file_id(file.fd.get(), file.id, gone) != FEEDLANE_OK) return;
  if (std::none_of(files.begin(), files.end(), [&](const File& f) { return f.id == file.id; }))
    files.push_back(std::move(file));
}

struct Files {
  std::vector<File> control, data;
};

Status find_files(std::int64_t pid, Files& out, Error& error) {
  std::vector<os::OpenFile> files;
  if (const Status s = os::list_open_files(pid, files, error); s != FEEDLANE_OK) return s;
  const auto is_named = [](const os::OpenFile& file, const char* name) {
    return file.target == std::string("/memfd:") + name + " (deleted)";
  };
  for (const os::OpenFile& file : files) {
    if (is_named(file, shm::control_name)) open_file(pid, file.number, out.control);
    else if (is_named(file, shm::data_name)) open_file(pid, file.number, out.data);
  }
  return FEEDLANE_OK;
}

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
  Files files;
  if (const Status s = find_files(pid, files, error); s != FEEDLANE_OK) return s;
  for (const File& control : files.control) {
    Beginning beginning;
    if (!is_control(control, beginning)) continue;
    const os::FileId id{beginning.geometry.data_device, beginning.geometry.data_inode};
    const auto data = std::find_if(files.data.begin(), files.data.end(), [&](const File& f) { return f.id == id; });
    // A loader that is being created may have no data segment yet. With another layout the offsets are unknown.
    const bool is_ours = beginning.header.layout_hash == shm::layout_hash;
    if (is_ours && (data == files.data.end() || beginning.geometry.slots == 0)) continue;
    if (nth-- != 0) continue;
    std::unique_ptr<Monitor> monitor(new Monitor);
    const int data_fd = data == files.data.end() ? -1 : data->fd.get();
    const Status s = monitor->segments_.watch(control.fd.get(), data_fd, error);
    if (s == FEEDLANE_OK) out = std::move(monitor);
    return s;
  }
  return FEEDLANE_END;
}

}  // namespace feedlane::monitor
