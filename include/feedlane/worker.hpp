// SPDX-License-Identifier: Apache-2.0
/**
 * @file worker.hpp
 * The worker's side: a data set is a class.
 *
 *     struct Digits {
 *       explicit Digits(const feedlane::WorkerInfo& info);       // once a worker; may throw
 *       void get(const feedlane::Row& row);                      // one sample into its row; may throw
 *       // or: void fetch(const feedlane::Task& task);           // a whole batch
 *     };
 *     int main() {
 *       if (feedlane::is_worker()) return feedlane::run_worker<Digits>();
 *       ...
 *     }
 */
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** Who this worker is. */
class WorkerInfo {
 public:
  /** A view of `info`, which must outlive it. */
  explicit WorkerInfo(const feedlane_worker_info& info) : info_(&info) {}
  /** 0 .. count() - 1; -1 inline. */
  [[nodiscard]] int id() const { return info_->id; }
  /** The number of workers. */
  [[nodiscard]] int count() const { return info_->count; }
  /** 0, +1 for each replacement. */
  [[nodiscard]] int generation() const { return info_->generation; }
  /** The base seed + id(). */
  [[nodiscard]] std::uint64_t seed() const { return info_->seed; }
  /** The loader's worker_config, read-only. */
  [[nodiscard]] std::span<const std::byte> config() const {
    return {static_cast<const std::byte*>(info_->config), static_cast<std::size_t>(info_->config_bytes)};
  }

 private:
  const feedlane_worker_info* info_;
};

/** A batch to make. */
class Task {
 public:
  /** A view of `task`, which must outlive it. */
  explicit Task(const feedlane_task& task) : task_(&task) {}
  /** As the trainer numbered it. */
  [[nodiscard]] std::int64_t epoch() const { return task_->epoch; }
  /** Its number in the epoch, from 0. */
  [[nodiscard]] std::int64_t batch() const { return task_->batch; }
  /** 0, +1 each time the batch is sent out again. */
  [[nodiscard]] int attempt() const { return task_->attempt; }
  /** Data set indices, one a row. */
  [[nodiscard]] std::span<const std::int64_t> indices() const {
    return {task_->indices, static_cast<std::size_t>(task_->count)};
  }
  /** One a row, the same whoever makes the batch. */
  [[nodiscard]] std::span<const std::uint64_t> seeds() const {
    return {task_->seeds, static_cast<std::size_t>(task_->count)};
  }
  /** The number of tensors. */
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(task_->tensor_count); }
  /** By the order of declaration; i < size(). */
  [[nodiscard]] Tensor operator[](std::size_t i) const { return Tensor(task_->tensors[i]); }
  /** The same, for the C interface. */
  [[nodiscard]] const feedlane_task& c() const { return *task_; }

 private:
  const feedlane_task* task_;
};

/** One sample: where to put it. */
class Row {
 public:
  /** A view of `row`, which must outlive it. */
  explicit Row(const feedlane_row& row) : row_(&row) {}
  /** The data set index. */
  [[nodiscard]] std::int64_t index() const { return row_->index; }
  /** The same whoever makes the sample. */
  [[nodiscard]] std::uint64_t seed() const { return row_->seed; }
  /** The batch that it is a row of. */
  [[nodiscard]] Task task() const { return Task(*row_->task); }
  /** This row of field `f`, in the order of declaration. Throws E_ARGUMENT if T isn't its dtype. */
  template <class T>
  [[nodiscard]] std::span<T> field(std::size_t f) const {
    (void)Tensor(row_->task->tensors[f]).as<T>();
    return {static_cast<T*>(row_->fields[f]), static_cast<std::size_t>(row_->bytes[f] / sizeof(T))};
  }
  /** The same, for the C interface. */
  [[nodiscard]] const feedlane_row& c() const { return *row_; }

 private:
  const feedlane_row* row_;
};

namespace detail {

/** Runs `f`; an exception becomes the callback's error. */
template <class F>
std::int32_t guarded(feedlane_error* err, std::int32_t code, F&& f) noexcept {
  const auto say = [&](const char* text) {
    std::strncpy(err->text, text, sizeof err->text - 1);
    return code;
  };
  try {
    f();
    return FEEDLANE_OK;
  } catch (const std::exception& e) {
    return say(e.what());
  } catch (...) {
    return say("an exception that is no std::exception");
  }
}

template <class T>
concept HasGet = requires(T& t, const Row& row) {
  t.get(row);
};
template <class T>
concept HasFetch = requires(T& t, const Task& task) {
  t.fetch(task);
};

}  // namespace detail

/** The callback table of a data-set class, for run_worker and for LoaderOptions::dataset. Holds nothing. */
template <class T>
feedlane_dataset dataset_of() {
  static_assert(detail::HasGet<T> || detail::HasFetch<T>, "a data set has get(const Row&) or fetch(const Task&)");
  feedlane_dataset d;
  feedlane_init(&d, sizeof d);
  d.open = [](void*, const feedlane_worker_info* info, void** self, feedlane_error* err) -> std::int32_t {
    return detail::guarded(err, FEEDLANE_E_INIT, [&] { *self = std::make_unique<T>(WorkerInfo(*info)).release(); });
  };
  if constexpr (detail::HasGet<T>)
    d.get = [](void* self, const feedlane_row* row, feedlane_error* err) -> std::int32_t {
      return detail::guarded(err, FEEDLANE_E_SAMPLE, [&] { static_cast<T*>(self)->get(Row(*row)); });
    };
  if constexpr (detail::HasFetch<T>)
    d.fetch = [](void* self, const feedlane_task* task, feedlane_error* err) -> std::int32_t {
      return detail::guarded(err, FEEDLANE_E_SAMPLE, [&] { static_cast<T*>(self)->fetch(Task(*task)); });
    };
  d.close = [](void* self) { delete static_cast<T*>(self); };
  return d;
}

/** Whether a trainer started this process. Ask early in main, once: the descriptor is kept for run_worker. */
inline std::int32_t& worker_descriptor() {
  static std::int32_t fd = feedlane_worker_fd();
  return fd;
}
/** Whether a trainer started this process to work. */
inline bool is_worker() { return worker_descriptor() >= 0; }

/** Works until the trainer wants no more. Returns an exit status for main; what went wrong is in `error`. */
template <class T>
int run_worker(std::int32_t fd, Error& error) {
  const feedlane_dataset dataset = dataset_of<T>();
  detail::checked(error, [&](feedlane_error* e) { return feedlane_worker_run(fd, &dataset, e); });
  return error ? 1 : 0;
}
/** The same for the process that is_worker() is true of; what went wrong is not told. */
template <class T>
int run_worker() {
  Error error;
  return run_worker<T>(worker_descriptor(), error);
}

}  // namespace v1
}  // namespace feedlane
