// SPDX-License-Identifier: Apache-2.0
// Finds memfds of another process.
#include "monitor/files.hpp"

#include <sys/stat.h>

#include <set>
#include <string>
#include <utility>

namespace feedlane::monitor {

Status list_memfds(std::int64_t pid, std::vector<os::OpenFile>& out, Error& error) {
  return os::list_open_files(pid, "/memfd:feedlane-", out, error);
}

std::vector<File> files_of(std::int64_t pid, const std::vector<os::OpenFile>& memfds, const char* name) {
  const std::string target = std::string("/memfd:") + name + " (deleted)";
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  std::vector<File> files;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const os::OpenFile& open : memfds) {
    struct stat about {};
    if (open.target != target || ::stat((folder + std::to_string(open.number)).c_str(), &about) != 0) continue;
    if (seen.emplace(about.st_dev, about.st_ino).second) files.push_back({open.number, {about.st_dev, about.st_ino}});
  }
  return files;
}

Status open_file(std::int64_t pid, const File& file, os::Fd& out, Error& error) {
  if (const Status s = os::open_again(pid, file.number, out, error); s != FEEDLANE_OK) return s;
  os::FileId found;
  Error gone;
  if (out && (os::file_id(out.get(), found, gone) != FEEDLANE_OK || found != file.id)) out.reset();
  return FEEDLANE_OK;
}

Status check_is_reserved(int control_fd, Error& error) {
  struct stat about {};
  if (::fstat(control_fd, &about) != 0) return error.os(errno, "fstat of a segment");
  const std::int64_t reserved = about.st_blocks * 512;
  if (reserved >= about.st_size) return FEEDLANE_OK;
  return error.refuse(
      FEEDLANE_E_CORRUPT, "control", reserved, about.st_size,
      "a control segment of {} bytes has only {} bytes of memory: it does not belong to a loader or a ring",
      about.st_size, reserved);
}

}  // namespace feedlane::monitor
