// SPDX-License-Identifier: Apache-2.0
// A file whose readers are in uninterruptible sleep until they are let go, SIGKILL or not, as on a disk or a network mount
// that has stopped to answer: a FUSE file system that takes the request to read and doesn't answer it. In a header, for the
// programs that need it. The readers are let go at the latest when this process ends.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace feedlane::test {

class StuckFile {
 public:
  // `fd` is -1 where this user may not mount such a file system; `why` says what was refused.
  StuckFile() {
    char path[] = "/tmp/feedlane-stuck-XXXXXX";
    if (::mkdtemp(path) == nullptr) {
      refused("mkdtemp");
      return;
    }
    device_ = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device_ < 0) {
      refused("open of /dev/fuse");
    } else {
      const std::string options = "fd=" + std::to_string(device_) +
                                  ",rootmode=40000,user_id=" + std::to_string(::getuid()) +
                                  ",group_id=" + std::to_string(::getgid());
      if (::mount("feedlane-test", path, "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
        refused("mount");
      } else {
        server_ = std::thread([this] { serve(); });
        fd_ = ::open((std::string(path) + "/file").c_str(), O_RDONLY);  // workers inherit it
        if (fd_ < 0) refused("open of a file in it");
        // The answer to the flush says that none is wanted ever again: at the end of this process nobody would answer one.
        else (void)::close(::dup(fd_));
        (void)::umount2(path, MNT_DETACH);
      }
    }
    (void)::rmdir(path);
  }
  StuckFile(const StuckFile&) = delete;
  StuckFile& operator=(const StuckFile&) = delete;
  ~StuckFile() {
    let_go();
    if (fd_ >= 0) (void)::close(fd_);  // with the last descriptor the file system goes, and the server's read fails
    if (server_.joinable()) server_.join();
    if (device_ >= 0) (void)::close(device_);
  }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::string& why() const { return why_; }
  // Readers in it, ever.
  [[nodiscard]] int readers() const { return readers_.load(std::memory_order_acquire); }
  // Those that are in it, and those that will come, read its end.
  void let_go() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    for (const std::uint64_t request : waiting_) answer(request, 0, nullptr, 0);
    waiting_.clear();
  }

 private:
  void refused(const char* what) { why_ = std::string(what) + ": " + std::strerror(errno); }

  void answer(std::uint64_t request, int error, const void* bytes, std::size_t count) const {
    fuse_out_header header{};
    header.len = static_cast<std::uint32_t>(sizeof header + count);
    header.error = -error;
    header.unique = request;
    iovec parts[]{{&header, sizeof header}, {const_cast<void*>(bytes), count}};
    (void)!::writev(device_, parts, count == 0 ? 1 : 2);
  }
  static fuse_attr attributes(std::uint64_t node) {
    fuse_attr a{};
    a.ino = node;
    a.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0444;
    a.nlink = 1;
    a.size = 4096;
    a.uid = ::getuid();
    a.gid = ::getgid();
    return a;
  }
  void read_file(std::uint64_t request) {
    const std::lock_guard lock(mutex_);
    if (is_open_) return answer(request, 0, nullptr, 0);
    waiting_.push_back(request);
    readers_.fetch_add(1, std::memory_order_release);
  }
  void handle(const fuse_in_header& in) {
    switch (in.opcode) {
      case FUSE_INIT: {
        fuse_init_out out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = 31;
        out.max_write = 4096;
        return answer(in.unique, 0, &out, sizeof out);
      }
      case FUSE_LOOKUP: {
        fuse_entry_out out{};
        out.nodeid = 2;
        out.attr = attributes(2);
        return answer(in.unique, 0, &out, sizeof out);
      }
      case FUSE_GETATTR: {
        fuse_attr_out out{};
        out.attr = attributes(in.nodeid);
        return answer(in.unique, 0, &out, sizeof out);
      }
      case FUSE_OPEN: {
        fuse_open_out out{};
        out.open_flags = FOPEN_DIRECT_IO;
        return answer(in.unique, 0, &out, sizeof out);
      }
      case FUSE_READ: return read_file(in.unique);
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT: return;  // have no answer, or need none
      case FUSE_RELEASE: return answer(in.unique, 0, nullptr, 0);
      default: return answer(in.unique, ENOSYS, nullptr, 0);
    }
  }
  void serve() {
    std::vector<char> buffer(std::size_t{1} << 17);
    for (;;) {
      const ssize_t got = ::read(device_, buffer.data(), buffer.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
      if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // it was unmounted
      fuse_in_header in;
      std::memcpy(&in, buffer.data(), sizeof in);
      handle(in);
    }
  }

  int device_ = -1;
  int fd_ = -1;
  std::string why_;
  std::thread server_;
  std::mutex mutex_;
  std::vector<std::uint64_t> waiting_;
  bool is_open_ = false;
  std::atomic<int> readers_{0};
};

}  // namespace feedlane::test
