// SPDX-License-Identifier: Apache-2.0
/** @file task.hpp What a data set is given: who its worker is, the batch to make, the sample to make. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** Who this worker is. */
class WorkerInfo {
 public:
  /** A view of `info`, which must outlive it. */
  explicit WorkerInfo(const feedlane_worker_info& info) noexcept : info_(&info) {}
  /** 0 .. count() - 1; -1 inline. */
  [[nodiscard]] int id() const noexcept { return info_->id; }
  /** The number of workers. */
  [[nodiscard]] int count() const noexcept { return info_->count; }
  /** 0, +1 for each replacement. */
  [[nodiscard]] int generation() const noexcept { return info_->generation; }
  /** The base seed + id(): the same in every epoch. */
  [[nodiscard]] std::uint64_t seed() const noexcept { return info_->seed; }
  /** The one begun last, 0 before the first; kept workers outlive it. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return info_->epoch; }
  /** Whether tasks carry no indices: this worker iterates shard id() of count(), inline the whole. */
  [[nodiscard]] bool iterable() const noexcept { return info_->iterable != 0; }
  /** The loader's worker_config, read-only. */
  [[nodiscard]] std::span<const std::byte> config() const {
    return {static_cast<const std::byte*>(info_->config), static_cast<std::size_t>(info_->config_bytes)};
  }

 private:
  const feedlane_worker_info* info_;
};

/** What became of a sample that failed. */
enum class SampleOutcome : std::int32_t {
  retried = FEEDLANE_SAMPLE_RETRIED,         /**< it failed, and then it was made */
  substituted = FEEDLANE_SAMPLE_SUBSTITUTED, /**< another one took its place */
  skipped = FEEDLANE_SAMPLE_SKIPPED,         /**< it was left out: its row is the next sample's */
};

/** What Task::record says of a sample. */
struct SampleRecord {
  std::size_t position = 0;                       /**< among the task's indices; iterable: among those taken for it */
  SampleOutcome outcome = SampleOutcome::skipped; /**< what became of it */
  std::int32_t code = FEEDLANE_E_SAMPLE;          /**< of its last failure */
  std::uint32_t retries = 0;                      /**< tries after the first */
  std::int64_t other = 0;                         /**< the index that took its place */
  std::string text{};                             /**< why, up to 223 bytes are kept */
};

/** A batch to make. What a data set may add to it throws when the library refuses it. */
class Task {
 public:
  /** A view of `task`, which must outlive it. */
  explicit Task(const feedlane_task& task) noexcept : task_(&task) {}
  /** As the trainer numbered it. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return task_->epoch; }
  /** Its number in the epoch, from 0. */
  [[nodiscard]] std::int64_t batch() const noexcept { return task_->batch; }
  /** 0, +1 each time the batch is sent out again. */
  [[nodiscard]] int attempt() const noexcept { return task_->attempt; }
  /** The number of rows wanted. */
  [[nodiscard]] std::size_t count() const noexcept { return static_cast<std::size_t>(task_->count); }
  /** Data set indices, one a row; empty: iterable. */
  [[nodiscard]] std::span<const std::int64_t> indices() const {
    return {task_->indices, task_->indices == nullptr ? 0 : count()};
  }
  /** One a row, the same whoever makes the batch. */
  [[nodiscard]] std::span<const std::uint64_t> seeds() const { return {task_->seeds, count()}; }
  /** The number of tensors. */
  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(task_->tensor_count); }
  /** By the order of declaration. Throws E_ARGUMENT beyond the last. */
  [[nodiscard]] Tensor operator[](std::size_t i) const {
    if (i < size()) [[likely]]
      return Tensor(task_->tensors[i]);
    Error error;
    (void)at(i, error);
    detail::raise(error);
  }
  /** The same; one of nothing, with the reason in `error`. */
  [[nodiscard]] Tensor at(std::size_t i, Error& error) const noexcept {
    error.clear();
    if (i < size()) [[likely]]
      return Tensor(task_->tensors[i]);
    detail::refuse_tensor(error, "task", i, size());
    return {};
  }

  /** A tensor of another shape than declared: `full`, batch dimension included, in place of field `index`, or one more at
   *  size(). A view until the next call of this. Throws E_LIMIT: needed() is the LoaderOptions::slot_bytes it takes. */
  Tensor tensor(std::size_t index, const Field& full) const {  // NOLINT: it changes what it is a view of
    return detail::or_raise([&](Error& error) { return tensor(index, full, error); });
  }
  /** The same; one of nothing, with the reason in `error`. */
  Tensor tensor(std::size_t index, const Field& full, Error& error) const noexcept {  // NOLINT
    feedlane_field field{};
    field.size = sizeof field;
    field.name = full.name.c_str();
    field.dtype = full.dtype;
    field.ndim = static_cast<std::int32_t>(full.shape.size());  // beyond the largest it is refused, with this number
    for (std::size_t d = 0; d < full.shape.size() && d < FEEDLANE_MAX_NDIM; d++) field.shape[d] = full.shape[d];
    const auto number = static_cast<std::int32_t>(std::min<std::size_t>(index, INT32_MAX));
    detail::checked(error, [&](feedlane_error* e) { return feedlane_task_tensor(task_, number, &field, nullptr, e); });
    return error ? Tensor() : Tensor(task_->tensors[index]);
  }
  /** The same, by type, as its elements. A field that is declared needs no name and keeps its own. */
  template <class T>
  std::span<T> tensor(std::size_t index, std::vector<std::int64_t> shape, std::string name = {}) const {
    return tensor(index, feedlane::field<T>(std::move(name), std::move(shape))).template as<T>();
  }
  /** The same; empty, with the reason in `error`. */
  template <class T>
  std::span<T> tensor(std::size_t index, std::vector<std::int64_t> shape, std::string name, Error& error) const {
    const Tensor made = tensor(index, feedlane::field<T>(std::move(name), std::move(shape)), error);
    return error ? std::span<T>() : made.as<T>(error);
  }
  /** Opaque bytes that travel with the batch: Batch::metadata(). The last call counts. Throws E_LIMIT as above. */
  void metadata(std::span<const std::byte> bytes) const {
    detail::or_raise([&](Error& error) { metadata(bytes, error); });
  }
  /** The same; what went wrong is in `error`. */
  void metadata(std::span<const std::byte> bytes, Error& error) const noexcept {
    detail::checked(error,
                    [&](feedlane_error* e) { return feedlane_task_metadata(task_, bytes.data(), bytes.size(), e); });
  }
  /** For `fetch`: only `made` rows (1 .. count()) were made. */
  void rows(std::size_t made) const {
    detail::or_raise([&](Error& error) { rows(made, error); });
  }
  /** The same; what went wrong is in `error`. */
  void rows(std::size_t made, Error& error) const noexcept {
    detail::checked(error, [&](feedlane_error* e) { return feedlane_task_rows(task_, made, e); });
  }
  /** For `fetch`, which deals with failing samples by itself: in ascending order of positions, one a sample. Throws E_LIMIT
   *  if the loader's policies don't allow it. */
  void record(const SampleRecord& r) const {
    detail::or_raise([&](Error& error) { record(r, error); });
  }
  /** The same; what went wrong is in `error`. */
  void record(const SampleRecord& r, Error& error) const noexcept {
    detail::checked(error, [&](feedlane_error* e) {
      return feedlane_task_record(task_, r.position, static_cast<std::int32_t>(r.outcome), r.code, r.retries, r.other,
                                  r.text.c_str(), e);
    });
  }
  /** The same, for the C interface. */
  [[nodiscard]] const feedlane_task& c() const { return *task_; }

 private:
  const feedlane_task* task_;
};

/** One sample: where to put it. */
class Row {
 public:
  /** A view of `row`, which must outlive it. */
  explicit Row(const feedlane_row& row) noexcept : row_(&row) {}
  /** The data set index; iterable: its number in the shard, from 0. */
  [[nodiscard]] std::int64_t index() const noexcept { return row_->index; }
  /** The same whoever makes the sample. */
  [[nodiscard]] std::uint64_t seed() const noexcept { return row_->seed; }
  /** Its row in the batch: less than its place among the indices once samples were left out. */
  [[nodiscard]] std::size_t row() const noexcept { return static_cast<std::size_t>(row_->row); }
  /** The batch that it is a row of. */
  [[nodiscard]] Task task() const noexcept { return Task(*row_->task); }
  /** This row of field `f`, in the order of declaration. Throws E_ARGUMENT if T isn't its dtype, or beyond the last. */
  template <class T>
  [[nodiscard]] std::span<T> field(std::size_t f) const {
    if (holds<T>(f)) [[likely]]
      return of<T>(f);
    Error error;
    (void)field<T>(f, error);
    detail::raise(error);
  }
  /** The same; empty, with the reason in `error`. */
  template <class T>
  [[nodiscard]] std::span<T> field(std::size_t f, Error& error) const noexcept {
    error.clear();
    if (holds<T>(f)) [[likely]]
      return of<T>(f);
    const Tensor tensor = task().at(f, error);
    if (!error) detail::refuse_dtype(error, tensor.c(), dtype_of<T>());
    return {};
  }
  /** The same, for the C interface. */
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
