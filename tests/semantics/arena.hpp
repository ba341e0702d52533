// SPDX-License-Identifier: Apache-2.0
// Arenas: an owner in the test's process, members in forked processes or in the test's own.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/api.hpp"
#include "support/events.hpp"
#include "support/over_fork.hpp"
#include "support/process.hpp"

namespace feedlane::test::arenas {

struct DestroyArena {
  void operator()(feedlane_arena* a) const { (void)feedlane_arena_destroy(&a); }
};
using Arena = std::unique_ptr<feedlane_arena, DestroyArena>;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

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

// Serves members in another thread, until the end of the scope.
class Serving {
 public:
  explicit Serving(feedlane_arena* owner) : owner_(owner), thread_([this] { serve(); }) {}
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() {
    is_over_ = true;
    (void)feedlane_loader_interrupt(owner_);
    thread_.join();
  }

 private:
  void serve() {
    while (!is_over_) {
      const std::int32_t s = feedlane_arena_receive(owner_, patience_ns, nullptr, nullptr);
      if (s != FEEDLANE_TIMEOUT && s != FEEDLANE_INTERRUPTED) return;
    }
  }
  feedlane_arena* owner_;
  std::atomic<bool> is_over_{false};
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

// ---- entries of numbers ----

// Puts `count` numbers that begin with `first`, under the key or, if it is empty, to the stream.
inline std::int32_t put(feedlane_arena* a, const std::string& key, std::int64_t first, std::int64_t count = 16,
                        std::int64_t timeout_ns = patience_ns, feedlane_error* e = nullptr, bool is_pinned = false) {
  const feedlane_field f = field("numbers", {0, 64, 1}, {count});
  auto what = fresh<feedlane_put>();
  what.key = key.empty() ? nullptr : key.data();
  what.key_bytes = key.size();
  what.fields = &f;
  what.field_count = 1;
  what.pinned = is_pinned ? 1 : 0;
  auto batch = fresh<feedlane_batch>();
  if (const std::int32_t s = feedlane_arena_reserve(a, &what, timeout_ns, &batch, e); s != FEEDLANE_OK) return s;
  auto* numbers = static_cast<std::int64_t*>(batch.tensors[0].data);
  for (std::int64_t i = 0; i < count; i++) numbers[i] = first + i;
  const std::int32_t s = feedlane_arena_publish(a, batch.token, timeout_ns, e);
  if (s != FEEDLANE_OK) (void)feedlane_batch_release(a, batch.token);
  return s;
}

inline std::int32_t get(feedlane_arena* a, const std::string& key, feedlane_batch& out,
                        std::int64_t timeout_ns = patience_ns, feedlane_error* e = nullptr, std::int32_t flags = 0) {
  feedlane_init(&out, sizeof out);
  return feedlane_arena_get(a, key.data(), key.size(), flags, timeout_ns, &out, e);
}

// The first of a batch's numbers; -1 if they are not consecutive.
inline std::int64_t first_of(const feedlane_batch& batch) {
  if (batch.tensor_count != 1) return -1;
  const auto* numbers = static_cast<const std::int64_t*>(batch.tensors[0].data);
  for (std::int64_t i = 0; i < batch.tensors[0].shape[0]; i++)
    if (numbers[i] != numbers[0] + i) return -1;
  return numbers[0];
}

// The first number under this key, or the negative status (minus 1000 for a positive one).
inline std::int64_t look(feedlane_arena* a, const std::string& key, std::int64_t timeout_ns = patience_ns) {
  feedlane_batch batch;
  const std::int32_t s = get(a, key, batch, timeout_ns);
  if (s != FEEDLANE_OK) return s < 0 ? s : s - 1000;
  const std::int64_t first = first_of(batch);
  (void)feedlane_batch_release(a, batch.token);
  return first;
}
constexpr std::int64_t nothing = FEEDLANE_TIMEOUT - 1000;

inline feedlane_arena_stats stats_of(feedlane_arena* a) {
  auto stats = fresh<feedlane_arena_stats>();
  REQUIRE(feedlane_arena_get_stats(a, &stats) == FEEDLANE_OK);
  return stats;
}

}  // namespace feedlane::test::arenas
