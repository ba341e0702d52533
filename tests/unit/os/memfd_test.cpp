// SPDX-License-Identifier: Apache-2.0
// Memory files: size, seals, reservations, and what interrupts them.
#include "os/memfd.hpp"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <array>
#include <ctime>

#include "support/skip.hpp"
#include "unit/os/fixtures.hpp"

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020  // Linux 6.3: the library asks for it where it can
#endif

using feedlane::Error;
using feedlane::os::Fd;
namespace os = feedlane::os;

namespace {

constexpr std::uint64_t mib = 1 << 20;

// A kernel before 6.10, on which fallocate takes longer than the signals of an AlarmClock are apart.
struct OldKernel {
  int calls = 0, given_up = 0;
  int without_alarms = 0;  // no alarm came between the beginning of the last one and this one
  int alarms_before = 0;
};
OldKernel* old_kernel = nullptr;  // none: the one that is there

volatile std::sig_atomic_t alarms = 0;

// SIGALRM each millisecond.
class AlarmClock {
 public:
  AlarmClock() {
    struct sigaction action {};
    action.sa_handler = [](int) { alarms = alarms + 1; };
    (void)::sigaction(SIGALRM, &action, &before_);
    set(1000);
  }
  AlarmClock(const AlarmClock&) = delete;
  AlarmClock& operator=(const AlarmClock&) = delete;
  ~AlarmClock() {
    set(0);
    (void)::sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  static void set(int us) {
    const itimerval every{{0, us}, {0, us}};
    (void)::setitimer(ITIMER_REAL, &every, nullptr);
  }
  struct sigaction before_ {};
};

std::array<bool, 65> blocked_signals() {
  sigset_t set;
  (void)::pthread_sigmask(SIG_BLOCK, nullptr, &set);
  std::array<bool, 65> all{};
  for (int number = 1; number < 65; number++) all[static_cast<std::size_t>(number)] = ::sigismember(&set, number) == 1;
  return all;
}

Fd make(std::uint64_t bytes) {
  Fd fd;
  Error error;
  REQUIRE(os::create_memfd("feedlane-test", bytes, fd, error) == FEEDLANE_OK);
  return fd;
}

std::uint64_t real_bytes(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

}  // namespace

// In the library's place too.
extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (old_kernel != nullptr) {
    OldKernel& k = *old_kernel;
    if (k.calls++ != 0 && alarms == k.alarms_before) k.without_alarms++;
    k.alarms_before = alarms;
    const timespec long_enough{0, 20'000'000};
    if (k.given_up < 10 && ::nanosleep(&long_enough, nullptr) != 0) {
      k.given_up++;
      return -1;  // EINTR, and all of it is undone
    }
  }
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}

// promise: fault-exec
TEST_CASE("a new memfd has the requested size, only holes, a name, close-on-exec, and can still be sealed") {
  const Fd fd = make(3 * mib + 5);
  Error error;
  std::uint64_t bytes = 0;
  CHECK(os::file_size(fd.get(), bytes, error) == FEEDLANE_OK);
  CHECK(bytes == 3 * mib + 5);
  CHECK(real_bytes(fd.get()) == 0);
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((os::get_seals(fd.get()) & ~F_SEAL_EXEC) == 0);
  std::array<char, 64> name{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd.get());
  REQUIRE(::readlink(link.c_str(), name.data(), name.size() - 1) > 0);
  CHECK(std::string(name.data()).find("memfd:feedlane-test") != std::string::npos);
}

TEST_CASE("reserving allocates exactly the requested range and keeps the contents") {
  const Fd fd = make(4 * mib);
  Error error;
  REQUIRE(::pwrite(fd.get(), "kept", 4, 2 * mib) == 4);
  const std::uint64_t before = real_bytes(fd.get());
  CHECK(os::reserve(fd.get(), 1 * mib, 2 * mib, error) == FEEDLANE_OK);
  CHECK(real_bytes(fd.get()) >= 2 * mib);
  CHECK(real_bytes(fd.get()) <= 2 * mib + before);
  std::array<char, 4> text{};
  REQUIRE(::pread(fd.get(), text.data(), 4, 2 * mib) == 4);
  CHECK(std::string(text.data(), 4) == "kept");
  REQUIRE(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 * mib, 2 * mib) == 0);
  CHECK_MESSAGE(real_bytes(fd.get()) == 0, "nothing outside the range was reserved");
}

TEST_CASE("reserving more than one chunk allocates the whole range, to the last page") {
  const Fd fd = make(33 * mib + 1);
  Error error;
  CHECK(os::reserve(fd.get(), 0, 33 * mib + 1, error) == FEEDLANE_OK);
  CHECK(real_bytes(fd.get()) > 33 * mib);
  CHECK(os::reserve(fd.get(), 0, 0, error) == FEEDLANE_OK);
}

TEST_CASE("a reservation that is interrupted by signals still completes") {
  const Fd fd = make(64 * mib);
  Error error;
  const feedlane::test::Signals signals(2000);
  CHECK(os::reserve(fd.get(), 0, 64 * mib, error) == FEEDLANE_OK);
  CHECK(real_bytes(fd.get()) >= 64 * mib);
}

TEST_CASE("if signals arrive faster than a chunk can be reserved, they are delivered after that chunk, on any kernel") {
  const Fd fd = make(64 * mib);
  Error error;
  sigset_t mine;
  (void)::sigemptyset(&mine);
  (void)::sigaddset(&mine, SIGUSR2);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &mine, nullptr) == 0);
  const std::array<bool, 65> before = blocked_signals();
  OldKernel kernel;
  {
    const AlarmClock clock;
    old_kernel = &kernel;
    CHECK(os::reserve(fd.get(), 0, 64 * mib, error) == FEEDLANE_OK);
    old_kernel = nullptr;
  }
  CHECK(kernel.given_up == 0);
  CHECK(kernel.calls > 1);
  CHECK(kernel.without_alarms == 0);
  CHECK(real_bytes(fd.get()) >= 64 * mib);
  CHECK(blocked_signals() == before);
  REQUIRE(os::add_seals(fd.get(), F_SEAL_GROW, error) == FEEDLANE_OK);
  CHECK(os::reserve(fd.get(), 64 * mib, mib, error) == FEEDLANE_E_OS);
  CHECK(error.os_errno == EPERM);
  CHECK(blocked_signals() == before);
  REQUIRE(::pthread_sigmask(SIG_UNBLOCK, &mine, nullptr) == 0);
}

TEST_CASE("a failed reservation reports the requested size and how much was reserved") {
  const Fd fd = make(32 * mib);
  Error error;
  REQUIRE(os::add_seals(fd.get(), F_SEAL_GROW, error) == FEEDLANE_OK);
  CHECK(os::reserve(fd.get(), 0, 40 * mib, error) == FEEDLANE_E_OS);
  CHECK(error.os_errno == EPERM);
  CHECK(error.needed == 40 * mib);
  CHECK(error.found == 32 * mib);
  CHECK(std::string(error.text).find("41943040 bytes") != std::string::npos);
}

TEST_CASE("missing memory is reported as E_MEMORY, not as a failed system call") {
  // A file system of one MiB, in a namespace of a child's own, stands for a machine that is full.
  struct Answer {
    bool possible;
    feedlane::Status code;
    std::int32_t os_errno;
    std::int64_t needed;
  };
  const feedlane::test::Folder folder;
  const std::string file = folder.path() + "/f";
  const std::string user = "0 " + std::to_string(::getuid()) + " 1";
  const std::string group = "0 " + std::to_string(::getgid()) + " 1";
  const Answer a = feedlane::test::in_child([&]() -> Answer {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return {};
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/gid_map") << group;
    if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) return {};
    const Fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd) return {};
    Error error;
    (void)os::reserve(fd.get(), 0, 2 * mib, error);
    return {true, error.code, error.os_errno, error.needed};
  });
  if (!a.possible) {
    feedlane::test::skip("this user can't mount a file system");
    return;
  }
  CHECK(a.code == FEEDLANE_E_MEMORY);
  CHECK(a.os_errno == ENOSPC);
  CHECK(a.needed == 2 * mib);
}

TEST_CASE("seals stay in force, and none can be added after F_SEAL_SEAL") {
  const Fd fd = make(1 * mib);
  Error error;
  CHECK(os::add_seals(fd.get(), F_SEAL_SHRINK | F_SEAL_SEAL, error) == FEEDLANE_OK);
  CHECK((os::get_seals(fd.get()) & ~F_SEAL_EXEC) == (F_SEAL_SHRINK | F_SEAL_SEAL));
  CHECK(::ftruncate(fd.get(), 1) == -1);
  CHECK(errno == EPERM);
  CHECK(os::add_seals(fd.get(), F_SEAL_GROW, error) == FEEDLANE_E_OS);
  CHECK(error.os_errno == EPERM);
}

// promise: worker-closed-stdio
TEST_CASE("memory sealed against growing can't be changed by write(2), not through any copy of its descriptor") {
  const Fd fd = make(1 * mib);
  Error error;
  CHECK(::write(fd.get(), "before", 6) == 6);
  REQUIRE(os::add_seals(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW, error) == FEEDLANE_OK);
  const Fd copy(::dup(fd.get()));
  for (const int one : {fd.get(), copy.get()}) {
    CHECK(::lseek(one, 0, SEEK_SET) == 0);
    CHECK(::write(one, "after", 5) == -1);
    CHECK(errno == EPERM);
    CHECK(::pwrite(one, "after", 5, 0) == -1);
  }
  std::array<char, 6> text{};
  CHECK(::pread(fd.get(), text.data(), text.size(), 0) == 6);
  CHECK(std::string(text.data(), text.size()) == "before");
}

TEST_CASE("a new memfd is not executable where the kernel supports that") {
  const Fd fd = make(1 * mib);
  struct stat status {};
  REQUIRE(::fstat(fd.get(), &status) == 0);
  const int seals = os::get_seals(fd.get());
  const Fd probe(::memfd_create("probe", MFD_CLOEXEC | 8U));
  if (!probe) feedlane::test::skip("Linux 6.3: this kernel has no MFD_NOEXEC_SEAL");
  else CHECK(((seals & F_SEAL_EXEC) != 0 && (status.st_mode & 0111) == 0));
}

TEST_CASE("get_seals fails for a descriptor that is not a memfd, and file_size fails for an invalid descriptor") {
  const feedlane::test::Pipe pipe;
  CHECK(os::get_seals(pipe.read.get()) == -1);
  Error error;
  std::uint64_t bytes = 77;
  CHECK(os::file_size(-1, bytes, error) == FEEDLANE_E_OS);
  CHECK(error.os_errno == EBADF);
  CHECK(bytes == 77);
}
