// SPDX-License-Identifier: Apache-2.0
/** @file custom_sampler.hpp The callbacks of a custom sampler; see Sampler::custom. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "callback.hpp"

namespace feedlane {
inline namespace v1 {
namespace detail {

/** The callback table for an object; see Sampler::custom. */
template <class T>
feedlane_sampler_callbacks sampler_callbacks(T& object) {
  feedlane_sampler_callbacks c{};
  c.size = sizeof c;
  c.user_data = &object;
  c.next = [](void* user_data, std::int64_t* indices, std::uint64_t cap, std::uint64_t* got, feedlane_error* err) {
    return guarded(err, FEEDLANE_E_SAMPLE, true, [&](Error& error) -> std::int32_t {
      const std::span<std::int64_t> room(indices, static_cast<std::size_t>(cap));
      (void)error;
      std::optional<std::size_t> written;
      if constexpr (requires(T & t) { t.next(room, error); }) written = static_cast<T*>(user_data)->next(room, error);
      else if constexpr (requires(T & t) { t.next(room); }) written = static_cast<T*>(user_data)->next(room);
      else if constexpr (requires(T & t) { t(room, error); }) written = (*static_cast<T*>(user_data))(room, error);
      else written = (*static_cast<T*>(user_data))(room);
      *got = written.value_or(0);
      return !written ? FEEDLANE_AGAIN : *got == 0 ? FEEDLANE_END : FEEDLANE_OK;
    });
  };
  if constexpr (requires(T & t) { t.restart(std::int64_t{}, std::uint64_t{}); })
    c.restart = [](void* user_data, std::int64_t epoch, std::uint64_t seed, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, true,
                     [&] { return static_cast<T*>(user_data)->restart(epoch, seed), FEEDLANE_OK; });
    };
  if constexpr (requires(T & t) { t.save(); })
    c.save = [](void* user_data, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, true, [&]() -> std::int32_t {
        const std::vector<std::byte> state = static_cast<T*>(user_data)->save();
        *bytes = state.size();
        if (state.size() > cap) return FEEDLANE_E_LIMIT;
        if (!state.empty()) std::memcpy(buffer, state.data(), state.size());
        return FEEDLANE_OK;
      });
    };
  if constexpr (requires(T & t) { t.load(std::span<const std::byte>()); })
    c.load = [](void* user_data, const void* buffer, std::uint64_t bytes, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, true, [&] {
        static_cast<T*>(user_data)->load({static_cast<const std::byte*>(buffer), static_cast<std::size_t>(bytes)});
        return FEEDLANE_OK;
      });
    };
  c.drop = [](void* user_data) { delete static_cast<T*>(user_data); };
  if constexpr (requires(const T& t) { t.length(); }) c.length = object.length();
  if constexpr (requires(const T& t) { t.batch_rows(); }) c.batch_rows = object.batch_rows();
  if constexpr (requires(const T& t) { t.wake_fd(); }) c.wake_fd = object.wake_fd();
  return c;
}

}  // namespace detail
}  // namespace v1
}  // namespace feedlane

#endif
