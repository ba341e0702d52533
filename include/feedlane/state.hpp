// SPDX-License-Identifier: Apache-2.0
/** @file state.hpp Saved states of loaders and samplers, as bytes. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** Contents of a loader's state; see Loader::state. */
struct StateInfo {
  std::int64_t epoch = 0;      /**< the epoch that start_epoch resumes */
  std::int64_t batch = 0;      /**< all batches before this one were yielded; iterable: number of yielded batches */
  std::int64_t samples = 0;    /**< number of indices in these batches; iterable: number of yielded samples */
  std::uint64_t base_seed = 0; /**< the base seed, which the resumed loader uses */
  bool ended = false;          /**< the epoch has ended; the resumed loader runs the next one */
  bool iterable = false;       /**< whether the data set is iterable */
};

/** Reads a state. E_CORRUPT: the bytes are damaged or are not a state. */
inline StateInfo read_state(std::span<const std::byte> state, Error& error) noexcept {
  feedlane_state_info info{};
  info.size = sizeof info;
  detail::checked(error, [&](feedlane_error* e) { return feedlane_state_read(state.data(), state.size(), &info, e); });
  return {info.epoch, info.batch, info.samples, info.base_seed, info.ended != 0, info.iterable != 0};
}
/** Throwing form of the above. */
inline StateInfo read_state(std::span<const std::byte> state) {
  return detail::or_raise([&](Error& error) { return read_state(state, error); });
}

namespace detail {

/** Returns all bytes that `call(buffer, cap, bytes, err)` writes. On failure empty, with the error in `error`. */
template <class Call>
std::vector<std::byte> saved(Error& error, Room& room, Call&& call) {
  std::vector<std::byte> state(512);
  for (;;) {
    std::uint64_t bytes = 0;
    const std::int32_t s =
        checked(error, room, [&](feedlane_error* e) { return call(state.data(), state.size(), &bytes, e); });
    const bool too_small = s == FEEDLANE_E_LIMIT && bytes > state.size();
    if (s < 0 && !too_small) return {};
    state.resize(static_cast<std::size_t>(bytes));
    if (!too_small) return state;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace feedlane

#endif
