// SPDX-License-Identifier: Apache-2.0
// feedlane.h with destructors, for tests of the C boundary: nothing in here checks anything.
#pragma once

#include <feedlane.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "make_sampler.hpp"
#include "monitors.hpp"
#include "slowness.hpp"

namespace feedlane::test {

// A wait that takes longer has failed: long enough for a loaded machine, short enough for the watchdog.
inline const std::int64_t patience_ns = INT64_C(20'000'000'000) * slowness();

template <class T>
T fresh() {
  T object;
  feedlane_init(&object, sizeof object);
  return object;
}

// An error struct with room for a traceback.
struct Error : feedlane_error {
  explicit Error(std::size_t room = 4096) : buffer(room) {
    feedlane_init(static_cast<feedlane_error*>(this), sizeof(feedlane_error));
    detail = buffer.data();
    detail_cap = room;
  }
  Error(const Error&) = delete;
  Error& operator=(const Error&) = delete;
  ~Error() = default;
  [[nodiscard]] std::string traceback() const { return {detail, std::min(detail_len, detail_cap)}; }
  [[nodiscard]] bool says(const std::string& words) const { return std::string(text).find(words) != std::string::npos; }

  std::vector<char> buffer;
};

struct Destroy {
  void operator()(feedlane_sampler* s) const { (void)feedlane_sampler_destroy(&s); }
  void operator()(feedlane_loader* l) const { (void)feedlane_loader_destroy(&l); }
  void operator()(feedlane_worker* w) const { (void)feedlane_worker_destroy(&w); }
};
using Sampler = std::unique_ptr<feedlane_sampler, Destroy>;
using Loader = std::unique_ptr<feedlane_loader, Destroy>;
using Worker = std::unique_ptr<feedlane_worker, Destroy>;

inline Sampler sequential(std::int64_t length) {
  feedlane_sampler* s = nullptr;
  (void)sequential_sampler(length, &s, nullptr);
  return Sampler(s);
}

inline Sampler shuffled(std::int64_t length, std::uint64_t seed) {
  auto config = fresh<feedlane_sampler_config>();
  config.length = length;
  config.seed = seed;
  feedlane_sampler* s = nullptr;
  (void)random_sampler(&config, &s, nullptr);
  return Sampler(s);
}

inline feedlane_field field(const char* name, feedlane_dtype dtype, const std::vector<std::int64_t>& shape = {}) {
  auto f = fresh<feedlane_field>();
  f.name = name;
  f.dtype = dtype;
  f.ndim = static_cast<std::int32_t>(shape.size());
  std::copy_n(shape.begin(), std::min<std::size_t>(shape.size(), FEEDLANE_MAX_NDIM), f.shape);
  return f;
}

// The descriptor to sleep on. OK: it was written.
template <class H>
std::int32_t wait_fd_of(H* handle, std::int32_t* fd) {
  std::int32_t s = FEEDLANE_OK;
  if constexpr (std::is_same_v<H, feedlane_loader>) s = feedlane_loader_arm(handle, fd);
  else if constexpr (std::is_same_v<H, feedlane_rx>) s = feedlane_rx_arm(handle, fd);
  else s = feedlane_worker_arm(handle, fd);
  return s == FEEDLANE_AGAIN ? FEEDLANE_OK : s;
}

// For `fetch`: the number of rows made.
// The sample at `position` has failed with E_OS and this text. `index`: what to try next.
inline std::int32_t fail_sample(const feedlane_task* task, std::uint64_t position, const char* text,
                                bool is_transient = false, feedlane_dataset_substitute_fn substitute = nullptr,
                                void* self = nullptr, std::int64_t* index = nullptr, feedlane_error* err = nullptr) {
  auto failure = fresh<feedlane_error>();
  failure.code = FEEDLANE_E_OS;
  failure.transient = is_transient ? 1 : 0;
  (void)std::snprintf(failure.text, sizeof failure.text, "%s", text);
  std::int64_t next = 0;
  std::int64_t wait_ns = 0;
  return feedlane_task_sample_failed(task, position, &failure, substitute, self, index == nullptr ? &next : index,
                                     &wait_ns, err);
}

inline std::int32_t set_rows(const feedlane_task* task, std::uint64_t rows) {
  *task->rows = rows;
  return FEEDLANE_OK;
}

constexpr feedlane_dtype int64_type{0, 64, 1};
constexpr feedlane_dtype uint64_type{1, 64, 1};
constexpr feedlane_dtype uint8_type{1, 8, 1};
constexpr feedlane_dtype float32_type{2, 32, 1};

}  // namespace feedlane::test
