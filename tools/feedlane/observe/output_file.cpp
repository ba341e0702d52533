// SPDX-License-Identifier: Apache-2.0
// Creates and replaces files without following links.
#include "output_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "words.hpp"

namespace observe {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A name beside the target that nobody can guess.
std::string new_name(const std::string& folder) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) return "";
  return fmt::format("{}/.feedlane-{:016x}.tmp", folder, number);
}

bool write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), folder_(folder_of(path_)) {}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) (void)::unlink(temporary_.c_str());
}

bool OutputFile::complain(const std::string& what) const {
  say("{} {}: {}", what, path_, std::strerror(errno));
  return false;
}

bool OutputFile::create_named() {
  constexpr int tries = 8;
  for (int i = 0; i < tries; i++) {
    const std::string name = new_name(folder_);
    // O_EXCL follows no link either.
    if (!name.empty()) file_.reset(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file_.get() >= 0) temporary_ = name;
    if (file_.get() >= 0 || errno != EEXIST) break;
  }
  return file_.get() >= 0;
}

bool OutputFile::create() {
  struct stat about {};
  if (::lstat(path_.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    say("{} is {}: choose a regular file or a new name", path_,
        S_ISLNK(about.st_mode)   ? "a symbolic link, which is not followed"
        : S_ISDIR(about.st_mode) ? "a folder"
                                 : "a device, pipe or socket");
    return false;
  }
  file_.reset(::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  return file_.get() >= 0 || create_named() || complain("cannot create");
}

bool OutputFile::put(const std::string& contents) {
  if (!write_all(file_.get(), contents) || ::fdatasync(file_.get()) != 0) return complain("cannot write");
  if (temporary_.empty()) {  // rename needs a name
    const std::string name = new_name(folder_);
    const std::string unnamed = fmt::format("/proc/self/fd/{}", file_.get());
    if (name.empty() || ::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0)
      return complain("cannot name");
    temporary_ = name;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return complain("cannot replace");
  temporary_.clear();
  return true;
}

}  // namespace observe
