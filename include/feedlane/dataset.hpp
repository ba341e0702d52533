// SPDX-License-Identifier: Apache-2.0
/**
 * @file dataset.hpp
 * A data set is a class. Of the members below it has get, fetch or next; the rest as it likes.
 *
 *     struct Digits {
 *       explicit Digits(const feedlane::WorkerInfo& info);       // once a worker
 *       void get(const feedlane::Row& row);                      // one sample into its row
 *       void fetch(const feedlane::Task& task);                  // instead: a whole batch
 *       std::optional<std::int64_t> substitute(std::int64_t failed, std::uint64_t seed, std::uint32_t tries);
 *                                                                // LoaderOptions::substitute; nothing: none
 *     };
 *     struct Shard {                                             // LoaderOptions::iterable
 *       explicit Shard(const feedlane::WorkerInfo& info);        // shard info.id() of info.count()
 *       bool next(const feedlane::Row& row);                     // the next sample; false: exhausted
 *       bool fetch(const feedlane::Task& task);                  // instead: the next batch
 *       void restart(std::int64_t epoch);                        // before each epoch; without it another one is made
 *       std::vector<std::byte> save() const;                     // after each batch: where it stands, up to 64 KiB
 *       void load(std::span<const std::byte> state);             // after restart: goes on behind that
 *     };
 *
 * What a member throws is the sample's error (the constructor's, restart's and load's: E_INIT), its what() the text. A
 * Transient is worth another try.
 */
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "task.hpp"

namespace feedlane {
inline namespace v1 {

/** Thrown by a data set whose next try may do better: LoaderOptions::retries says how often it gets one. */
class Transient : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

/** Tells `err` of an exception. Returns the status to return. */
inline std::int32_t say(feedlane_error* err, std::int32_t code, const char* text, bool transient = false) noexcept {
  std::strncpy(err->text, text, sizeof err->text - 1);
  err->transient = transient ? 1 : 0;
  return code;
}

/** Runs `f`, which returns a status; an exception becomes the callback's error. */
template <class F>
std::int32_t guarded(feedlane_error* err, std::int32_t code, F&& f) noexcept {
  try {
    return f();
  } catch (const Transient& e) {
    return say(err, code, e.what(), true);
  } catch (const Error& e) {
    return say(err, code, e.what(), e.transient());
  } catch (const std::exception& e) {
    return say(err, code, e.what());
  } catch (...) {
    return say(err, code, "an exception that is no std::exception");
  }
}

/** @{ The members of a data set. */
template <class T>
concept HasGet = requires(T& t, const Row& row) {
  t.get(row);
};
template <class T>
concept HasFetch = requires(T& t, const Task& task) {
  t.fetch(task);
};
template <class T>
concept HasNext = requires(T& t, const Row& row) {
  { t.next(row) } -> std::same_as<bool>;
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

/** Samples of a map-style data set. */
template <class T>
void add_map_callbacks(feedlane_dataset& d) {
  if constexpr (HasGet<T>)
    d.get = [](void* self, const feedlane_row* row, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, [&] { return static_cast<T*>(self)->get(Row(*row)), FEEDLANE_OK; });
    };
  if constexpr (HasFetch<T>)
    d.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, [&]() -> std::int32_t {
        const Task view(*task);
        T& dataset = *static_cast<T*>(self);
        if constexpr (std::is_same_v<decltype(dataset.fetch(view)), bool>) {
          return dataset.fetch(view) ? FEEDLANE_OK : FEEDLANE_END;
        } else {
          return dataset.fetch(view), FEEDLANE_OK;
        }
      });
    };
  if constexpr (HasSubstitute<T>)
    d.substitute = [](void* self, std::int64_t failed, std::uint64_t seed, std::uint32_t tries, std::int64_t* other,
                      feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, [&]() -> std::int32_t {
        const std::optional<std::int64_t> chosen = static_cast<T*>(self)->substitute(failed, seed, tries);
        *other = chosen.value_or(0);
        return chosen ? FEEDLANE_OK : FEEDLANE_END;
      });
    };
}

/** Shards of an iterable one. */
template <class T>
void add_shard_callbacks(feedlane_dataset& d) {
  if constexpr (HasNext<T>)
    d.next = [](void* self, const feedlane_row* row, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE,
                     [&] { return static_cast<T*>(self)->next(Row(*row)) ? FEEDLANE_OK : FEEDLANE_END; });
    };
  if constexpr (HasRestart<T>)
    d.restart = [](void* self, std::int64_t epoch, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_INIT, [&] { return static_cast<T*>(self)->restart(epoch), FEEDLANE_OK; });
    };
  if constexpr (HasSave<T>)
    d.save = [](void* self, void* buffer, std::uint64_t cap, std::uint64_t* bytes, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_SAMPLE, [&]() -> std::int32_t {
        const std::vector<std::byte> state = static_cast<T*>(self)->save();
        *bytes = state.size();
        if (state.size() > cap) return say(err, FEEDLANE_E_LIMIT, "the shard's state is larger than it may be");
        if (!state.empty()) std::memcpy(buffer, state.data(), state.size());
        return FEEDLANE_OK;
      });
    };
  if constexpr (HasLoad<T>)
    d.load = [](void* self, const void* buffer, std::uint64_t bytes, feedlane_error* err) {
      return guarded(err, FEEDLANE_E_INIT, [&] {
        static_cast<T*>(self)->load({static_cast<const std::byte*>(buffer), static_cast<std::size_t>(bytes)});
        return FEEDLANE_OK;
      });
    };
}

}  // namespace detail

/** The callback table of a data-set class, for run_worker and for LoaderOptions::dataset. Holds nothing. */
template <class T>
feedlane_dataset dataset_of() {
  static_assert(detail::HasGet<T> || detail::HasFetch<T> || detail::HasNext<T>,
                "a data set has get(const Row&), fetch(const Task&) or bool next(const Row&)");
  static_assert(detail::HasSave<T> == detail::HasLoad<T>, "a data set has both save() and load(), or none");
  feedlane_dataset d;
  feedlane_init(&d, sizeof d);
  d.open = [](void*, const feedlane_worker_info* info, void** self, feedlane_error* err) {
    return detail::guarded(err, FEEDLANE_E_INIT, [&] {
      *self = std::make_unique<T>(WorkerInfo(*info)).release();
      return FEEDLANE_OK;
    });
  };
  detail::add_map_callbacks<T>(d);
  detail::add_shard_callbacks<T>(d);
  d.close = [](void* self) { delete static_cast<T*>(self); };
  return d;
}

}  // namespace v1
}  // namespace feedlane
