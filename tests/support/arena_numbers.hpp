// SPDX-License-Identifier: Apache-2.0
// Entries of an arena that hold consecutive numbers, so that an entry that is not whole is seen.
#pragma once

#include <feedlane.h>

#include <cstdint>
#include <string>

#include "api.hpp"

namespace feedlane::test::arenas {

// Reserves `count` numbers that begin with `first`, under the key or, if it is empty, for the stream, and fills them in.
inline std::int32_t reserve(feedlane_arena* a, const std::string& key, std::int64_t first, std::int64_t count,
                            std::int64_t timeout_ns, feedlane_batch& out, feedlane_error* e, bool is_pinned = false) {
  const feedlane_field f = field("numbers", {0, 64, 1}, {count});
  auto what = fresh<feedlane_put>();
  what.key = key.empty() ? nullptr : key.data();
  what.key_bytes = key.size();
  what.fields = &f;
  what.field_count = 1;
  what.pinned = is_pinned ? 1 : 0;
  feedlane_init(&out, sizeof out);
  const std::int32_t s = feedlane_arena_reserve(a, &what, timeout_ns, &out, e);
  if (s != FEEDLANE_OK) return s;
  auto* numbers = static_cast<std::int64_t*>(out.tensors[0].data);
  for (std::int64_t i = 0; i < count; i++) numbers[i] = first + i;
  return s;
}

// Reserves and publishes.
inline std::int32_t put(feedlane_arena* a, const std::string& key, std::int64_t first, std::int64_t count = 16,
                        std::int64_t timeout_ns = patience_ns, feedlane_error* e = nullptr, bool is_pinned = false) {
  feedlane_batch batch;
  if (const std::int32_t s = reserve(a, key, first, count, timeout_ns, batch, e, is_pinned); s != FEEDLANE_OK) return s;
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

}  // namespace feedlane::test::arenas
