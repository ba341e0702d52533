// SPDX-License-Identifier: Apache-2.0
// Finds memfds of another process.
#include "monitor/files.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "os/other_process.hpp"

namespace feedlane::monitor {

Status find_files(std::int64_t pid, const char* name, std::vector<File>& out, Error& error) {
  std::vector<os::OpenFile> all;
  if (const Status s = os::list_open_files(pid, all, error); s != FEEDLANE_OK) return s;
  const std::string target = std::string("/memfd:") + name + " (deleted)";
  for (const os::OpenFile& open : all) {
    if (open.target != target) continue;
    File file;
    if (const Status s = os::open_again(pid, open.number, file.fd, error); s != FEEDLANE_OK) return s;
    Error gone;
    if (!file.fd || os::file_id(file.fd.get(), file.id, gone) != FEEDLANE_OK) continue;
    if (std::none_of(out.begin(), out.end(), [&](const File& f) { return f.id == file.id; }))
      out.push_back(std::move(file));
  }
  return FEEDLANE_OK;
}

}  // namespace feedlane::monitor
