// SPDX-License-Identifier: Apache-2.0
// Arenas: an owner in the test's process, members in forked processes or in the test's own.
#pragma once

#include <doctest/doctest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/api.hpp"
#include "support/arena_numbers.hpp"
#include "support/events.hpp"
#include "support/over_fork.hpp"
#include "support/process.hpp"

namespace feedlane::test::arenas {

struct DestroyArena {
  void operator()(feedlane_arena* a) const { (void)feedlane_arena_destroy(&a); }
};
using Arena = std::unique_ptr<feedlane_arena, DestroyArena>;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::int64_t quarter = 30'000;  // numbers: of a MiB arena, a little less than a quarter

inline feedlane_arena_config config_of(std::uint64_t bytes, std::int32_t when_full = FEEDLANE_FULL_EVICT) {
  auto c = fresh<feedlane_arena_config>();
  c.bytes = bytes;
  c.when_full = when_full;
  return c;
}

inline Arena create(const feedlane_arena_config& config) {
  feedlane_arena* a = nullptr;
  Error e;
  const std::int32_t s = feedlane_arena_create(&config, &a, &e);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
  return Arena(a);
}
inline Arena create(std::uint64_t bytes = 4 * mib, std::int32_t when_full = FEEDLANE_FULL_EVICT) {
  return create(config_of(bytes, when_full));
}

inline std::int32_t offer(feedlane_arena* owner) {
  Error e;
  std::int32_t fd = -1;
  const std::int32_t s = feedlane_arena_offer(owner, &fd, &e);
  REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
  return fd;
}

// Serves members in another thread, until the end of the scope. The thread is outside the library while this program forks:
// AddressSanitizer's allocator cannot be used in a child that was forked while another thread allocated.
class Serving {
 public:
  explicit Serving(feedlane_arena* owner) : owner_(owner) {
    static const int registered = ::pthread_atfork(stop_all, resume_all, resume_all);
    REQUIRE(registered == 0);
    next_ = std::exchange(first_, this);  // they end in the reverse order
    thread_ = std::thread([this] { serve(); });
    while (!has_begun_) std::this_thread::yield();  // a thread that begins allocates too
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() {
    is_over_ = true;
    (void)feedlane_loader_interrupt(owner_);
    thread_.join();
    first_ = next_;
  }

 private:
  void serve() {
    has_begun_ = true;
    while (!is_over_) {
      while (must_stop_) std::this_thread::yield();
      const std::lock_guard serving(serving_);
      const std::int32_t s =
          feedlane_arena_receive(owner_, 5'000'000, nullptr, nullptr);  // so that a fork waits no longer
      if (s != FEEDLANE_TIMEOUT && s != FEEDLANE_INTERRUPTED) return;
    }
  }
  static void stop_all() {
    for (Serving* s = first_; s != nullptr; s = s->next_) {
      s->must_stop_ = true;
      s->serving_.lock();
    }
  }
  static void resume_all() {
    for (Serving* s = first_; s != nullptr; s = s->next_) {
      s->must_stop_ = false;
      s->serving_.unlock();
    }
  }

  static inline Serving* first_ = nullptr;
  Serving* next_ = nullptr;
  feedlane_arena* owner_;
  std::atomic<bool> has_begun_{false};
  std::atomic<bool> is_over_{false};
  std::atomic<bool> must_stop_{false};
  std::mutex serving_;  // held during a call
  std::thread thread_;
};

// A member in a forked process.
class Member {
 public:
  Member(feedlane_arena* owner, const std::function<void(feedlane_arena*, Findings&)>& run)
      : fd_(offer(owner)), child_({fd_}, [&](Findings& f) {
          Error e;
          feedlane_arena* a = nullptr;
          EXPECT(f, feedlane_arena_join(fd_, nullptr, patience_ns, &a, &e) == FEEDLANE_OK);
          if (a == nullptr) return f.expect(false, e.text, __LINE__);
          run(a, f);
          EXPECT(f, feedlane_arena_destroy(&a) == FEEDLANE_OK);
        }) {
    (void)::close(fd_);
  }
  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  std::string finish() { return child_.finish(); }

 private:
  int fd_;
  Child child_;
};

inline feedlane_arena_stats stats_of(feedlane_arena* a) {
  auto stats = fresh<feedlane_arena_stats>();
  REQUIRE(feedlane_arena_get_stats(a, &stats) == FEEDLANE_OK);
  return stats;
}

}  // namespace feedlane::test::arenas
