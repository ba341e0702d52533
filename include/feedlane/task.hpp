// SPDX-License-Identifier: Apache-2.0
/** @file task.hpp What a data set receives: a description of its worker, the batch to make, the sample to make. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** Describes this worker. */
class WorkerInfo {
 public:
  /** A view of `info`, which must outlive it. */
  explicit WorkerInfo(const feedlane_worker_info& info) noexcept : info_(&info) {}
  /** The worker's id, 0 .. count() - 1; -1: inline. */
  [[nodiscard]] int id() const noexcept { return info_->id; }
  /** The number of workers. */
  [[nodiscard]] int count() const noexcept { return info_->count; }
  /** The number of earlier workers with this id. */
  [[nodiscard]] int generation() const noexcept { return info_->generation; }
  /** Iterable: the rank of the loader, 0 .. world() - 1; map-style: 0. */
  [[nodiscard]] int rank() const noexcept { return info_->rank; }
  /** Iterable: the number of ranks; map-style: 1. */
  [[nodiscard]] int world() const noexcept { return info_->world; }
  /** Iterable: the number of this worker's shard, rank() * count() + id(), or rank() inline; 0 .. shards() - 1. */
  [[nodiscard]] std::int64_t shard() const noexcept { return info_->shard; }
  /** Iterable: the number of shards of all ranks, world() * count(), or world() inline. */
  [[nodiscard]] std::int64_t shards() const noexcept { return info_->shards; }
  /** The base seed + shard(), the same in every epoch. */
  [[nodiscard]] std::uint64_t seed() const noexcept { return info_->seed; }
  /** The epoch that began last; 0 before the first. Kept workers outlive an epoch. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return info_->epoch; }
  /** Whether the data set is iterable: tasks have no indices, and this worker iterates shard shard() of shards(). */
  [[nodiscard]] bool iterable() const noexcept { return info_->iterable != 0; }
  /** The loader's worker_config, read-only. */
  [[nodiscard]] std::span<const std::byte> config() const {
    return {static_cast<const std::byte*>(info_->config), static_cast<std::size_t>(info_->config_bytes)};
  }
  /** The underlying struct of the C interface, which also has the declared fields. */
  [[nodiscard]] const feedlane_worker_info& c() const { return *info_; }

 private:
  const feedlane_worker_info* info_;
};

/** Argument of Task::sample_failed. */
struct SampleFailure {
  std::size_t position = 0;              /**< among the task's indices; iterable: among the task's samples */
  std::int32_t code = FEEDLANE_E_SAMPLE; /**< status of the failure */
  bool transient = false;                /**< a retry may succeed */
  std::string_view text{};               /**< the reason; up to 223 bytes are kept */
  feedlane_dataset_substitute_fn substitute = nullptr; /**< as feedlane_dataset.substitute; gets `user_data` */
  void* user_data = nullptr;                           /**< for `substitute` */
};

/** What to try after a sample has failed. */
struct Retry {
  std::int64_t index = 0;          /**< the index: the sample's own, or a substitute */
  std::chrono::nanoseconds wait{}; /**< the time to wait before */
};

/** A task queued behind the current one, see Task::ahead. */
struct Ahead {
  std::uint64_t id = 0;                    /**< greater than the id of every earlier task */
  std::int64_t epoch = 0;                  /**< the epoch */
  std::int64_t batch = 0;                  /**< the batch's number in the epoch, from 0 */
  std::span<const std::int64_t> indices{}; /**< a copy, valid until the worker's next call of Task::ahead */
  std::span<const std::uint64_t> seeds{};  /**< one for each index, see Task::seeds; valid as long as `indices` */
};

/** A batch to make. Functions that add to the batch throw if the library refuses the addition. */
class Task {
 public:
  /** A view of `task`, which must outlive it. */
  explicit Task(const feedlane_task& task) noexcept : task_(&task) {}
  /** The task's id, unique within a loader. A worker gets tasks in ascending order of their ids. */
  [[nodiscard]] std::uint64_t id() const noexcept { return task_->id; }
  /** The epoch. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return task_->epoch; }
  /** The batch's number in the epoch, from 0. */
  [[nodiscard]] std::int64_t batch() const noexcept { return task_->batch; }
  /** 0, plus 1 each time the batch is dispatched again. */
  [[nodiscard]] int attempt() const noexcept { return task_->attempt; }
  /** The number of rows wanted. */
  [[nodiscard]] std::size_t count() const noexcept { return static_cast<std::size_t>(task_->count); }
  /** Data set indices, one for each row; empty if iterable. */
  [[nodiscard]] std::span<const std::int64_t> indices() const {
    return {task_->indices, task_->indices == nullptr ? 0 : count()};
  }
  /** One seed for each row, independent of worker and attempt. */
  [[nodiscard]] std::span<const std::uint64_t> seeds() const { return {task_->seeds, count()}; }
  /** The number of tensors. */
  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(task_->tensor_count); }
  /** Tensor number `i`, in the order of declaration. Throws E_ARGUMENT if there is none. */
  [[nodiscard]] Tensor operator[](std::size_t i) const {
    if (i < size()) [[likely]]
      return Tensor(task_->tensors[i]);
    Error error;
    (void)at(i, error);
    detail::raise(error);
  }
  /** Non-throwing form: on failure an empty tensor, with the error in `error`. */
  [[nodiscard]] Tensor at(std::size_t i, Error& error) const noexcept {
    error.clear();
    if (i < size()) [[likely]]
      return Tensor(task_->tensors[i]);
    detail::refuse_tensor(error, "task", i, size());
    return {};
  }

  /** Gives field `index` another shape than declared, or adds a tensor if `index` is size(). `full` includes the batch
   *  dimension. The returned view is valid until the next call of tensor(). Throws E_LIMIT, with the required
   *  LoaderOptions::slot_bytes in needed(). */
  Tensor tensor(std::size_t index, const Field& full) const {  // NOLINT: it changes the viewed task
    return detail::or_raise([&](Error& error) { return tensor(index, full, error); });
  }
  /** Non-throwing form: on failure an empty tensor, with the error in `error`. */
  Tensor tensor(std::size_t index, const Field& full, Error& error) const noexcept {  // NOLINT
    feedlane_field field{};
    field.size = sizeof field;
    field.name = full.name.c_str();
    field.dtype = full.dtype;
    field.ndim = static_cast<std::int32_t>(full.shape.size());  // the library refuses it if it is too large
    for (std::size_t d = 0; d < full.shape.size() && d < FEEDLANE_MAX_NDIM; d++) field.shape[d] = full.shape[d];
    const auto number = static_cast<std::int32_t>(std::min<std::size_t>(index, INT32_MAX));
    detail::checked(error, [&](feedlane_error* e) { return feedlane_task_tensor(task_, number, &field, nullptr, e); });
    return error ? Tensor() : Tensor(task_->tensors[index]);
  }
  /** As above, for elements of type T; returns the elements. A declared field keeps its name and needs none here. */
  template <class T>
  std::span<T> tensor(std::size_t index, std::vector<std::int64_t> shape, std::string name = {}) const {
    return tensor(index, feedlane::field<T>(std::move(name), std::move(shape))).template as<T>();
  }
  /** Non-throwing form: on failure empty, with the error in `error`. */
  template <class T>
  std::span<T> tensor(std::size_t index, std::vector<std::int64_t> shape, std::string name, Error& error) const {
    const Tensor made = tensor(index, feedlane::field<T>(std::move(name), std::move(shape)), error);
    return error ? std::span<T>() : made.as<T>(error);
  }
  /** Adds opaque bytes to the batch, see Batch::metadata(). The last call counts. Throws E_LIMIT as tensor() does. */
  void metadata(std::span<const std::byte> bytes) const {
    detail::or_raise([&](Error& error) { metadata(bytes, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void metadata(std::span<const std::byte> bytes, Error& error) const noexcept {
    detail::checked(error, [&](feedlane_error* e) {
      return feedlane_task_store(task_, FEEDLANE_STORE_METADATA, bytes.data(), bytes.size(), e);
    });
  }
  /** For `fetch`: sets the number of rows that were made, 1 .. count(); 0 if all samples are recorded as skipped. */
  void rows(std::size_t made) const noexcept { *task_->rows = made; }
  /** Memory that lives until this task ends; empty: too little memory, or inline. `align` is a power of two. */
  [[nodiscard]] std::span<std::byte> scratch(std::size_t bytes, std::size_t align = 16) const noexcept {
    void* const memory = task_->worker == nullptr ? nullptr : feedlane_worker_scratch(task_->worker, bytes, align);
    return {static_cast<std::byte*>(memory), memory == nullptr ? 0 : bytes};
  }
  /** The first task queued behind this one with an id above `after`, so that its reads can begin early. This is a hint,
   *  see feedlane_task_ahead. nullopt: no such task is known, which is always so for iterable data sets and inline. */
  [[nodiscard]] std::optional<Ahead> ahead(std::uint64_t after = 0) const {
    return detail::or_raise([&](Error& error) { return ahead(after, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  [[nodiscard]] std::optional<Ahead> ahead(std::uint64_t after, Error& error) const noexcept {
    feedlane_ahead found{};
    found.size = sizeof found;
    const std::int32_t status =
        detail::checked(error, [&](feedlane_error* e) { return feedlane_task_ahead(task_, after, &found, e); });
    if (status != FEEDLANE_OK) return std::nullopt;
    const auto count = static_cast<std::size_t>(found.count);
    return Ahead{found.id, found.epoch, found.batch, {found.indices, count}, {found.seeds, count}};
  }
  /** For a `fetch`: a sample has failed. Applies the loader's policies and records the outcome, see
   *  feedlane_task_sample_failed. nullopt: the sample is skipped, and the next one gets its row. Throws E_SAMPLE or
   *  E_LIMIT if the batch must fail. */
  [[nodiscard]] std::optional<Retry> sample_failed(const SampleFailure& f) const {
    return detail::or_raise([&](Error& error) { return sample_failed(f, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  [[nodiscard]] std::optional<Retry> sample_failed(const SampleFailure& f, Error& error) const noexcept {
    feedlane_error failure = detail::no_error;
    failure.code = f.code;
    failure.transient = f.transient ? 1 : 0;
    detail::copy_text(failure.text, sizeof failure.text, f.text);
    std::int64_t index = 0;
    std::int64_t wait_ns = 0;
    const std::int32_t status = detail::checked(error, [&](feedlane_error* e) {
      return feedlane_task_sample_failed(task_, f.position, &failure, f.substitute, f.user_data, &index, &wait_ns, e);
    });
    if (status != FEEDLANE_AGAIN) return std::nullopt;
    return Retry{index, std::chrono::nanoseconds(wait_ns)};
  }
  /** The underlying struct of the C interface. */
  [[nodiscard]] const feedlane_task& c() const { return *task_; }

 private:
  const feedlane_task* task_;
};

/** A sample to make, and the row to write it to. */
class Row {
 public:
  /** A view of `row`, which must outlive it. */
  explicit Row(const feedlane_row& row) noexcept : row_(&row) {}
  /** The data set index; iterable: the sample's number in the shard, from 0. */
  [[nodiscard]] std::int64_t index() const noexcept { return row_->index; }
  /** The sample's seed, independent of worker and attempt. */
  [[nodiscard]] std::uint64_t seed() const noexcept { return row_->seed; }
  /** The row's number in the batch. After skipped samples it is less than the sample's position in the indices. */
  [[nodiscard]] std::size_t row() const noexcept { return static_cast<std::size_t>(row_->row); }
  /** The batch of this row. */
  [[nodiscard]] Task task() const noexcept { return Task(*row_->task); }
  /** This row of field number `f`, in the order of declaration. Throws E_ARGUMENT if there is no such field, or T isn't
   *  its dtype. */
  template <class T>
  [[nodiscard]] std::span<T> field(std::size_t f) const {
    if (holds<T>(f)) [[likely]]
      return of<T>(f);
    Error error;
    (void)field<T>(f, error);
    detail::raise(error);
  }
  /** Non-throwing form: on failure empty, with the error in `error`. */
  template <class T>
  [[nodiscard]] std::span<T> field(std::size_t f, Error& error) const noexcept {
    error.clear();
    if (holds<T>(f)) [[likely]]
      return of<T>(f);
    const Tensor tensor = task().at(f, error);
    if (!error) detail::refuse_dtype(error, tensor.c(), dtype_of<T>());
    return {};
  }
  /** The underlying struct of the C interface. */
  [[nodiscard]] const feedlane_row& c() const { return *row_; }

 private:
  template <class T>
  [[nodiscard]] bool holds(std::size_t f) const noexcept {
    return f < static_cast<std::size_t>(row_->task->tensor_count) &&
           detail::is_same(row_->task->tensors[f].dtype, dtype_of<T>());
  }
  template <class T>
  [[nodiscard]] std::span<T> of(std::size_t f) const noexcept {
    return {static_cast<T*>(row_->fields[f]), static_cast<std::size_t>(row_->bytes[f] / sizeof(T))};
  }

  const feedlane_row* row_;
};

}  // namespace v1
}  // namespace feedlane

#endif
