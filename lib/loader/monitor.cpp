// SPDX-License-Identifier: Apache-2.0
#include "loader/monitor.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "os/other_process.hpp"

namespace feedlane::loader {
namespace {

// What a memfd of a loader begins with; that of data has no geometry, and what is there then isn't looked at.
struct Beginning {
  shm::SegmentHeader header;
  shm::Geometry geometry;
};

struct Half {
  os::Fd fd;
  Beginning beginning;
};

// The name alone proves nothing: anybody may give it to a memfd.
bool open_half(std::int64_t pid, int number, shm::SegmentKind kind, Half& out) {
  out.fd = os::open_again(pid, number);
  if (!out.fd || ::pread(out.fd.get(), &out.beginning, sizeof out.beginning, 0) != sizeof out.beginning) return false;
  const shm::SegmentHeader& header = out.beginning.header;
  return header.magic == shm::segment_magic && header.kind == static_cast<std::uint32_t>(kind);
}

struct Halves {
  std::vector<Half> control, data;
};

Status find_halves(std::int64_t pid, Halves& out, Error& error) {
  std::vector<os::OpenFile> files;
  if (const Status s = os::list_open_files(pid, files, error); s != FEEDLANE_OK) return s;
  const auto is_named = [](const os::OpenFile& file, const char* name) {
    return file.target == std::string("/memfd:") + name + " (deleted)";
  };
  for (const os::OpenFile& file : files) {
    Half half;
    if (is_named(file, shm::control_name) && open_half(pid, file.number, shm::SegmentKind::control, half))
      out.control.push_back(std::move(half));
    else if (is_named(file, shm::data_name) && open_half(pid, file.number, shm::SegmentKind::data, half))
      out.data.push_back(std::move(half));
  }
  return FEEDLANE_OK;
}

const Half* find(const std::vector<Half>& halves, std::uint64_t pair_id) {
  const auto found =
      std::find_if(halves.begin(), halves.end(), [&](const Half& h) { return h.beginning.header.pair_id == pair_id; });
  return found == halves.end() ? nullptr : &*found;
}

}  // namespace

Status Monitor::open(std::int64_t pid, std::int32_t nth, std::unique_ptr<Monitor>& out, Error& error) {
  if (nth < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "nth", nth, 0, "nth is %d: loaders are counted from 0", nth);
  Halves halves;
  if (const Status s = find_halves(pid, halves, error); s != FEEDLANE_OK) return s;
  for (const Half& control : halves.control) {
    const std::uint64_t pair_id = control.beginning.header.pair_id;
    if (find(halves.control, pair_id) != &control) continue;  // a duplicate
    const Half* data = find(halves.data, pair_id);
    // One that is just being made isn't there yet. Where another layout has what, nobody knows.
    const bool is_ours = control.beginning.header.layout_hash == shm::layout_hash;
    if (is_ours && (data == nullptr || control.beginning.geometry.slots == 0)) continue;
    if (nth-- != 0) continue;
    std::unique_ptr<Monitor> monitor(new Monitor);
    const int data_fd = data == nullptr ? -1 : data->fd.get();
    const Status s = monitor->segments_.watch(control.fd.get(), data_fd, error);
    if (s == FEEDLANE_OK) out = std::move(monitor);
    return s;
  }
  return FEEDLANE_END;
}

}  // namespace feedlane::loader
