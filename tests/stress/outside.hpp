// SPDX-License-Identifier: Apache-2.0
// What root can do to a trainer and its workers from outside: a freezer of control groups, and a file system that can be
// frozen, so that its writers are in uninterruptible sleep. Both say whether this machine has them.
#pragma once

#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace outside {

inline bool write_file(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  (void)::close(fd);
  return done;
}

// A control group whose processes can be stopped without their knowing. Version 1 of control groups holds even SIGKILL back
// until the group is thawed; version 2 lets it through.
class Freezer {
 public:
  explicit Freezer(const std::string& name) {
    for (const bool is_v1 : {true, false}) {
      const std::string path = (is_v1 ? "/sys/fs/cgroup/freezer/" : "/sys/fs/cgroup/") + name;
      if (::mkdir(path.c_str(), 0755) != 0) continue;
      path_ = path;
      holds_kills_ = is_v1;
      if (::access((path + (is_v1 ? "/freezer.state" : "/cgroup.freeze")).c_str(), W_OK) == 0) return;
      (void)::rmdir(path.c_str());
      path_.clear();
    }
  }
  Freezer(const Freezer&) = delete;
  Freezer& operator=(const Freezer&) = delete;
  ~Freezer() {
    if (path_.empty()) return;
    thaw();
    (void)::rmdir(path_.c_str());
  }
  [[nodiscard]] bool is_there() const { return !path_.empty(); }
  [[nodiscard]] bool holds_kills() const { return holds_kills_; }
  [[nodiscard]] bool add(pid_t pid) const { return write_file(path_ + "/cgroup.procs", std::to_string(pid)); }
  void freeze() const { set(true); }
  void thaw() const { set(false); }

 private:
  void set(bool frozen) const {
    if (holds_kills_) (void)write_file(path_ + "/freezer.state", frozen ? "FROZEN" : "THAWED");
    else (void)write_file(path_ + "/cgroup.freeze", frozen ? "1" : "0");
  }

  std::string path_;
  bool holds_kills_ = false;
};

// A small ext4 in a file, mounted by a loop device. Who writes while it is frozen waits in state D, and no signal ends that.
class Disk {
 public:
  explicit Disk(const std::string& folder) : folder_(folder) {
    const std::string image = folder + "/image";
    if (::geteuid() != 0 || !run({"truncate", "-s", "16M", image}) || !run({"mkfs.ext4", "-q", "-F", image}) ||
        !run({"mount", "-o", "loop", image, folder}))
      return;
    fd_ = ::open((folder + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    root_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    is_there_ = fd_ >= 0 && root_ >= 0 && freeze() && thaw();
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  ~Disk() {
    if (is_there_) (void)thaw();
    if (fd_ >= 0) (void)::close(fd_);
    if (root_ >= 0) (void)::close(root_);
    (void)run({"umount", "-l", folder_});
    (void)::unlink((folder_ + "/image").c_str());
  }
  [[nodiscard]] bool is_there() const { return is_there_; }
  [[nodiscard]] std::string file() const { return folder_ + "/file"; }
  [[nodiscard]] bool freeze() const { return ::ioctl(root_, FIFREEZE, 0) == 0; }
  [[nodiscard]] bool thaw() const { return ::ioctl(root_, FITHAW, 0) == 0; }

 private:
  static bool run(const std::vector<std::string>& arguments) {
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t quiet;
    (void)::posix_spawn_file_actions_init(&quiet);
    (void)::posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    pid_t pid = 0;
    int status = 1;
    const bool started = ::posix_spawnp(&pid, argv[0], &quiet, nullptr, argv.data(), environ) == 0;
    (void)::posix_spawn_file_actions_destroy(&quiet);
    return started && ::waitpid(pid, &status, 0) == pid && status == 0;
  }

  std::string folder_;
  int fd_ = -1;
  int root_ = -1;
  bool is_there_ = false;
};

}  // namespace outside
