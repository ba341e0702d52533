// SPDX-License-Identifier: Apache-2.0
// What the stress runs share: anonymous memory between forked processes, and their length.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

#include "base/error.hpp"
#include "os/event.hpp"
#include "os/poller.hpp"

namespace stress {

// FEEDLANE_STRESS=full runs at full length; else short enough for every check.
inline std::uint64_t length(std::uint64_t in_check, std::uint64_t full) {
  const char* how = std::getenv("FEEDLANE_STRESS");
  return how != nullptr && std::strcmp(how, "full") == 0 ? full : in_check;
}

[[noreturn]] inline void die(const char* what, std::uint64_t found, std::uint64_t needed) {
  std::fprintf(stderr, "%s: found %llu, needed %llu\n", what, static_cast<unsigned long long>(found),
               static_cast<unsigned long long>(needed));
  std::_Exit(1);
}

// A zeroed T that forked children share.
template <class T>
T* make_shared_object() {
  void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap", 0, sizeof(T));
  return new (memory) T;
}

// In such memory.
using Count = std::atomic<std::uint64_t>;
inline std::uint64_t read(const Count& c) { return c.load(std::memory_order_seq_cst); }
inline void count(Count& c, std::uint64_t more = 1) { c.fetch_add(more, std::memory_order_seq_cst); }
inline void raise_to(Count& c, std::uint64_t value) {
  for (std::uint64_t now = read(c); now < value && !c.compare_exchange_weak(now, value);) continue;
}

inline feedlane::os::Fd make_event() {
  feedlane::os::Fd fd;
  feedlane::Error error;
  if (feedlane::os::create_event(fd, error) != FEEDLANE_OK) die(error.text, 0, 1);
  return fd;
}

// The sleeper's end of a doorbell.
class Bell {
 public:
  explicit Bell(int event) {
    feedlane::Error error;
    if (poller_.open(error) != FEEDLANE_OK || poller_.add_bell(event, 0, error) != FEEDLANE_OK) die(error.text, 0, 1);
  }
  void wait() {
    feedlane::os::Poller::Event event{};
    std::size_t count = 0;
    feedlane::Error error;
    (void)poller_.wait(feedlane::os::Deadline::never(), std::span(&event, 1), count, error);
  }

 private:
  feedlane::os::Poller poller_;
};

// Small, fast, seeded: which numbers come matters little, only that runs can be repeated.
struct Random {
  std::uint64_t state;
  std::uint64_t operator()(std::uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
  }
};

}  // namespace stress
