// SPDX-License-Identifier: Apache-2.0
/**
 * @file await.hpp
 * Waits in coroutines, for the tasks and the event loop of any library. Declares nothing if the compiler has no coroutines.
 *
 * Each function is a coroutine. `Task` is its return type, such as asio::awaitable<T> or folly::coro::Task<T>, where T is
 * what the function without `async_` returns. It calls `readable(fd)` before each wait, and awaits the result until `fd` is
 * readable. The loader, ring or arena owns `fd`, which never changes. With Asio:
 *
 *     using Next = asio::awaitable<std::optional<feedlane::Batch>>;
 *     asio::posix::stream_descriptor events(executor);
 *     const auto readable = [&](int fd) {
 *       if (!events.is_open()) events.assign(::dup(fd));  // closed by events
 *       return events.async_wait(asio::posix::stream_descriptor::wait_read, asio::use_awaitable);
 *     };
 *     while (const auto batch = co_await feedlane::async_next<Next>(loader, readable)) train(*batch);
 *
 * co_await throws errors, also those of `readable`, and Loader::Interrupted for FEEDLANE_SLOTS_HELD and after interrupt().
 * A coroutine that is destroyed or fails while it waits has taken nothing: the next call takes what it would have taken.
 * The loader, ring or arena must outlive it. Thread safety: that of the function without `async_`, from the first step of
 * the coroutine to its end.
 */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20 && defined(__cpp_impl_coroutine)

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "arena.hpp"
#include "error.hpp"
#include "loader.hpp"
#include "ring.hpp"

namespace feedlane {
inline namespace v1 {

namespace detail {

/** Awaits `readable` until `take(error)`, which doesn't wait, has taken something or has another outcome than TIMEOUT. */
template <class Task, class Source, class Readable, class Take>
Task taken(Source& source, Readable readable, Take take) {
  for (;;) {
    Error error;
    auto found = take(error);
    if (error) raise(error);
    if (error.code() != FEEDLANE_OK) raise(Loader::Interrupted(error));
    bool is_over = found.has_value();
    if constexpr (requires { source.outcome(); }) is_over |= source.outcome() == FEEDLANE_END;
    if (is_over) co_return found;
    // After `take`, which disarms, and before the wait. Without a descriptor something has arrived since `take`.
    if (const std::optional<int> fd = source.arm()) co_await readable(*fd);
  }
}

}  // namespace detail

/** Loader::next. `loader` may be a consumer. nullopt: the epoch is over. */
template <class Task, class Readable>
[[nodiscard]] Task async_next(Loader& loader, Readable readable) {
  return detail::taken<Task>(loader, std::move(readable),
                             [&](Error& error) { return loader.next(std::chrono::nanoseconds(0), error); });
}
/** Receiver::peek. nullopt: all senders have left, and their messages were received. */
template <class Task, class Readable>
[[nodiscard]] Task async_peek(Receiver& receiver, std::uint32_t want, Readable readable) {
  return detail::taken<Task>(receiver, std::move(readable), [&receiver, want](Error& error) {
    return receiver.peek(want, std::chrono::nanoseconds(0), error);
  });
}
/** Arena::receive. The owner serves members while it waits. Never nullopt. */
template <class Task, class Readable>
[[nodiscard]] Task async_receive(Arena& arena, Readable readable) {
  return detail::taken<Task>(arena, std::move(readable),
                             [&](Error& error) { return arena.receive(std::chrono::nanoseconds(0), error); });
}

}  // namespace v1
}  // namespace feedlane

#endif
