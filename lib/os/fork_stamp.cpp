// SPDX-License-Identifier: Apache-2.0
// The page that the kernel zeroes in a forked child.
#include "os/fork_stamp.hpp"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <mutex>

namespace feedlane::os {
namespace {

// One page for the life of the process. Its first word is a random number, never 0, which the first stamp sets. A
// forked child finds 0 there; if it takes a stamp, it sets another number.
std::mutex page_mutex;
volatile std::uint64_t* page = nullptr;

}  // namespace

ForkStamp::Lock::Lock() { page_mutex.lock(); }
ForkStamp::Lock::~Lock() { page_mutex.unlock(); }

Status ForkStamp::take(Error& error) {
  const std::lock_guard lock(page_mutex);
  if (page == nullptr) {
    const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return error.os(errno, "mapping the page that detects forks");
    if (::madvise(memory, bytes, MADV_WIPEONFORK) != 0) {
      const int reason = errno;
      (void)::munmap(memory, bytes);
      return error.os(reason, "MADV_WIPEONFORK");
    }
    page = static_cast<volatile std::uint64_t*>(memory);
  }
  // Not the pid, because a child in another PID namespace may have the same pid as its parent.
  while (*page == 0) {
    std::uint64_t value = 0;
    if (::getrandom(&value, sizeof value, 0) != sizeof value) return error.os(errno, "getrandom");
    *page = value;
  }
  word_ = page;
  value_ = *page;
  return FEEDLANE_OK;
}

}  // namespace feedlane::os
