// SPDX-License-Identifier: Apache-2.0
/**
 * @file dataset.hpp
 * A data set is a class. It must have get, fetch or next; dataset_of<T>() also needs the constructor. The other members
 * below are optional.
 *
 *     struct Digits {
 *       explicit Digits(const feedlane::WorkerInfo& info);       // once for each worker
 *       void get(const feedlane::Row& row);                      // one sample into its row
 *       void fetch(const feedlane::Task& task);                  // or: a complete batch
 *       std::optional<std::int64_t> substitute(std::int64_t failed, std::uint64_t seed, std::uint32_t tries);
 *                                                                // LoaderOptions::substitute; nullopt: none
 *     };
 *     struct Shard {                                             // LoaderOptions::iterable
 *       explicit Shard(const feedlane::WorkerInfo& info);        // shard info.shard() of info.shards()
 *       bool next(const feedlane::Row& row);                     // the next sample; false: exhausted
 *       bool fetch(const feedlane::Task& task);                  // or: the next batch
 *       void restart(std::int64_t epoch);                        // before each epoch; default: a new object
 *       std::vector<std::byte> save() const;                     // after each batch: its position, up to 64 KiB
 *       void load(std::span<const std::byte> state);             // after restart: continues from there
 *     };
 *
 * An exception from a member becomes the sample's error, with what() as its text. From the constructor, restart and
 * load it becomes E_INIT. If the text is longer than 383 bytes, the trainer finds all of it in Error::traceback(). A
 * sample may be retried if the exception is a Transient.
 *
 * To report failures without exceptions, get, fetch, next and the constructor may take an Error& as their last argument
 * and call Error::fail(). An error that a function of Task or Row stores there counts as a failure too.
 *
 * dataset_of<Digits>() returns the callback table for the C interface. dataset_of(object) returns the table for an
 * existing object.
 */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "callback.hpp"
#include "task.hpp"

namespace feedlane {
inline namespace v1 {

namespace detail {

/** @{ Which members a data set has; get, fetch and next may have an Error& as their last parameter. */
template <class T>
concept GetSays = requires(T& t, const Row& row, Error& error) {
  t.get(row, error);
};
template <class T>
concept HasGet = GetSays<T> || requires(T& t, const Row& row) {
  t.get(row);
};
template <class T>
concept FetchSays = requires(T& t, const Task& task, Error& error) {
  t.fetch(task, error);
};
template <class T>
concept HasFetch = FetchSays<T> || requires(T& t, const Task& task) {
  t.fetch(task);
};
template <class T>
concept NextSays = requires(T& t, const Row& row, Error& error) {
  { t.next(row, error) } -> std::same_as<bool>;
};
template <class T>
concept HasNext = NextSays<T> || requires(T& t, const Row& row) {
  { t.next(row) } -> std::same_as<bool>;
};
template <class T>
concept HasOpen = requires(T& t, const WorkerInfo& info) {
  t.open(info);
};
template <class T>
concept HasRestart = requires(T& t) {
  t.restart(std::int64_t{});
};
template <class T>
concept HasSave = requires(T& t) {
  { t.save() } -> std::convertible_to<std::vector<std::byte>>;
};
template <class T>
concept HasLoad = requires(T& t) {
  t.load(std::span<const std::byte>());
};
template <class T>
concept HasSubstitute = requires(T& t) {
  {
    t.substitute(std::int64_t{}, std::uint64_t{}, std::uint32_t{})
    } -> std::convertible_to<std::optional<std::int64_t>>;
};
/** @} */

template <class T>
auto call_fetch(T& dataset, const Task& task, Error& error) {
  if constexpr (FetchSays<T>) return dataset.fetch(task, error);
  else return dataset.fetch(task);
}
/** Whether fetch returns bool, as for an iterable data set: false means that the shard is exhausted. */
template <class T>
concept FetchEnds = HasFetch<T> && requires(T& t, const Task& task, Error& error) {
  { call_fetch(t, task, error) } -> std::same_as<bool>;
};

/** Callbacks of a map-style data set. */
template <class T>
void add_map_callbacks(feedlane_dataset& d) {
  if constexpr (GetSays<T>)
    d.get = [](void* self, const feedlane_row* row, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, false,
                     [&](Error& error) { return static_cast<T*>(self)->get(Row(*row), error), FEEDLANE_OK; });
    };
  else if constexpr (HasGet<T>)
    d.get = [](void* self, const feedlane_row* row, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, false, [&] { return static_cast<T*>(self)->get(Row(*row)), FEEDLANE_OK; });
    };
  if constexpr (HasFetch<T>)
    d.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, false, [&](Error& error) -> std::int32_t {
        T& dataset = *static_cast<T*>(self);
        if constexpr (FetchEnds<T>) return call_fetch(dataset, Task(*task), error) ? FEEDLANE_OK : FEEDLANE_END;
        else return call_fetch(dataset, Task(*task), error), FEEDLANE_OK;
      });
    };
  if constexpr (HasSubstitute<T>)
    d.substitute = [](void* self, std::int64_t failed, std::uint64_t seed, std::uint32_t tries, std::int64_t* other,
                      feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, false, [&]() -> std::int32_t {
        const std::optional<std::int64_t> chosen = static_cast<T*>(self)->substitute(failed, seed, tries);
        *other = chosen.value_or(0);
        return chosen ? FEEDLANE_OK : FEEDLANE_END;
      });
    };
}

/** Callbacks of an iterable data set. */
template <class T>
void add_shard_callbacks(feedlane_dataset& d) {
  if constexpr (NextSays<T>)
    d.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, false, [&](Error& error) {
        return static_cast<T*>(self)->next(Row(*row), error) ? FEEDLANE_OK : FEEDLANE_END;
      });
    };
  else if constexpr (HasNext<T>)
    d.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, false,
                     [&] { return static_cast<T*>(self)->next(Row(*row)) ? FEEDLANE_OK : FEEDLANE_END; });
    };
  if constexpr (HasRestart<T>)
    d.restart = [](void* self, std::int64_t epoch, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_INIT, false, [&] { return static_cast<T*>(self)->restart(epoch), FEEDLANE_OK; });
    };
  if constexpr (HasSave<T>)
    d.save = [](void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, false, [&]() -> std::int32_t {
        const std::vector<std::byte> state = static_cast<T*>(self)->save();
        *bytes = state.size();
        if (state.size() > cap) return say(err, FEEDLANE_E_LIMIT, "the shard's state exceeds the allowed size");
        if (!state.empty()) std::memcpy(buffer, state.data(), state.size());
        return FEEDLANE_OK;
      });
    };
  if constexpr (HasLoad<T>)
    d.load = [](void* self, const void* buffer, std::uint64_t bytes, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_INIT, false, [&] {
        static_cast<T*>(self)->load({static_cast<const std::byte*>(buffer), static_cast<std::size_t>(bytes)});
        return FEEDLANE_OK;
      });
    };
}

/** All callbacks except open and close. */
template <class T>
feedlane_dataset member_callbacks() {
  static_assert(HasGet<T> || HasFetch<T> || HasNext<T>,
                "a data set has get(const Row&), fetch(const Task&) or bool next(const Row&)");
  static_assert(HasSave<T> == HasLoad<T>, "a data set has both save() and load(), or none");
  feedlane_dataset d{};
  d.size = sizeof d;
  add_map_callbacks<T>(d);
  add_shard_callbacks<T>(d);
  return d;
}

}  // namespace detail

/** The callback table of a data set class, for run_worker and LoaderOptions::dataset. The table owns nothing. Each
 *  worker creates its own object. */
template <class T>
feedlane_dataset dataset_of() {
  static_assert(std::is_constructible_v<T, WorkerInfo> || std::is_constructible_v<T, WorkerInfo, Error&>,
                "a data set is made from a WorkerInfo; dataset_of(object) takes one that is there");
  feedlane_dataset d = detail::member_callbacks<T>();
  d.open = [](void*, const feedlane_worker_info* info, void** self, feedlane_error* err) {
    return detail::guarded(err, FEEDLANE_E_INIT, false, [&](Error& error) {
      if constexpr (std::is_constructible_v<T, WorkerInfo, Error&>)
        *self = std::make_unique<T>(WorkerInfo(*info), error).release();
      else *self = std::make_unique<T>(WorkerInfo(*info)).release();
      if (error) delete static_cast<T*>(std::exchange(*self, nullptr));
      return FEEDLANE_OK;
    });
  };
  d.close = [](void* self) { delete static_cast<T*>(self); };
  return d;
}

/**
 * The callback table of an existing object, which must outlive every loader that uses it.
 *  - Inline: all tasks use the object.
 *  - Fork: each worker uses its copy.
 *  - Thread: all workers share the object, so its members must be safe to call from several threads at once. If it is
 *    iterable, give each thread its own object.
 *
 * The object's `open(const WorkerInfo&)`, if any, is called once per worker. An object with next(), or with a fetch()
 * that returns bool, needs restart(), because no new object is created for an epoch.
 */
template <class T>
feedlane_dataset dataset_of(T& object) {
  static_assert(!std::is_const_v<T>, "a data set's members may change it");
  static_assert((!detail::HasNext<T> && !detail::FetchEnds<T>) || detail::HasRestart<T>,
                "an iterable data set that isn't made anew for each epoch has restart(std::int64_t epoch)");
  feedlane_dataset d = detail::member_callbacks<T>();
  d.user_data = &object;
  if constexpr (detail::HasOpen<T>)
    d.open = [](void* user_data, const feedlane_worker_info* info, void** self, feedlane_error* err) {
      return detail::guarded(err, FEEDLANE_E_INIT, false, [&] {
        *self = user_data;
        static_cast<T*>(user_data)->open(WorkerInfo(*info));
        return FEEDLANE_OK;
      });
    };
  return d;
}

}  // namespace v1
}  // namespace feedlane

#endif
