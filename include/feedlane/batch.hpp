// SPDX-License-Identifier: Apache-2.0
/** @file batch.hpp A batch that the trainer holds. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>

#include "error.hpp"
#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** A batch that the trainer holds; the destructor releases it. Move-only; may outlive its loader. After a release or a
 *  move it is empty: it has no tensors, rows or indices, and functions that need the batch fail with E_STATE. */
class Batch {
 public:
  /** An empty batch. */
  Batch() noexcept = default;
  /** `other` becomes empty. */
  Batch(Batch&& other) noexcept : loader_(std::exchange(other.loader_, nullptr)), batch_(other.batch_) {
    other.empty();
  }
  /** Swaps the two objects. */
  Batch& operator=(Batch&& other) noexcept {
    std::swap(loader_, other.loader_);
    std::swap(batch_, other.batch_);
    return *this;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    if (loader_ != nullptr) (void)feedlane_batch_release(loader_, batch_.token);
  }

  /** Releases the batch now. Views of its tensors must not be used afterwards. */
  void release() noexcept {
    if (loader_ != nullptr) (void)feedlane_batch_release(loader_, batch_.token);
    loader_ = nullptr;
    empty();
  }
  /** Whether the batch is still held: neither released nor moved from. */
  [[nodiscard]] bool held() const noexcept { return loader_ != nullptr; }

  /** The epoch, as passed to start_epoch. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return batch_.epoch; }
  /** The batch's number in the epoch, from 0. */
  [[nodiscard]] std::int64_t index() const noexcept { return batch_.batch; }
  /** The number of samples. */
  [[nodiscard]] std::size_t rows() const noexcept { return static_cast<std::size_t>(batch_.count); }
  /** The worker that made the batch; -1: made inline. */
  [[nodiscard]] int worker() const noexcept { return batch_.worker; }
  /** The attempt that made the batch, from 0. */
  [[nodiscard]] int attempt() const noexcept { return batch_.attempt; }
  /** The data set index of each row; empty if iterable. */
  [[nodiscard]] std::span<const std::int64_t> indices() const noexcept {
    return {batch_.indices, batch_.indices == nullptr ? 0 : rows()};
  }
  /** Data set indices that were skipped, see LoaderOptions::skip_budget; empty if iterable. */
  [[nodiscard]] std::span<const std::int64_t> skipped() const noexcept {
    return {batch_.skipped, batch_.skipped == nullptr ? 0 : skipped_count()};
  }
  /** The number of samples that were skipped. */
  [[nodiscard]] std::size_t skipped_count() const noexcept { return static_cast<std::size_t>(batch_.skipped_count); }
  /** The data set's metadata for this batch, see Task::metadata. */
  [[nodiscard]] std::span<const std::byte> metadata() const noexcept {
    return {static_cast<const std::byte*>(batch_.metadata), static_cast<std::size_t>(batch_.metadata_bytes)};
  }
  /** When each step of the batch happened: dispatched_ns, begun_ns, committed_ns, swept_ns and yielded_ns. exposed_ns
   *  is how long next waited for the batch. */
  [[nodiscard]] const feedlane_batch& stamps() const noexcept { return batch_; }
  /** The batch's token for the C interface; 0: this object is empty. A held batch owns one reference. */
  [[nodiscard]] std::uint64_t token() const noexcept { return batch_.token; }
  /** The number of tensors. */
  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(batch_.tensor_count); }

  /** Tensor number `i`. Throws E_ARGUMENT if there is none. */
  [[nodiscard]] Tensor operator[](std::size_t i) const {
    if (i < size()) [[likely]]
      return Tensor(batch_.tensors[i]);
    Error error;
    (void)at(i, error);
    detail::raise(error);
  }
  /** The tensor of this name. Throws E_ARGUMENT if there is none. */
  [[nodiscard]] Tensor operator[](std::string_view name) const {
    if (const feedlane_tensor* t = find(name); t != nullptr) [[likely]]
      return Tensor(*t);
    Error error;
    (void)at(name, error);
    detail::raise(error);
  }
  /** Non-throwing form of operator[]: on failure an empty tensor, with the error in `error`. */
  [[nodiscard]] Tensor at(std::size_t i, Error& error) const noexcept {
    error.clear();
    if (i < size()) [[likely]]
      return Tensor(batch_.tensors[i]);
    if (is_there(error)) detail::refuse_tensor(error, "batch", i, size());
    return {};
  }
  /** As above, by name. */
  [[nodiscard]] Tensor at(std::string_view name, Error& error) const noexcept {
    error.clear();
    if (const feedlane_tensor* t = find(name); t != nullptr) [[likely]]
      return Tensor(*t);
    if (is_there(error)) {
      char text[96];
      (void)std::snprintf(text, sizeof text, "the batch has no tensor '%.*s'",
                          static_cast<int>(std::min<std::size_t>(name.size(), 40)), name.data());
      error.refuse("tensor", -1, static_cast<std::int64_t>(size()), text);
    }
    return {};
  }

  /** Releases the batch once the stream has completed all work enqueued so far. This object becomes empty at once. On
   *  failure it throws, and this object still holds the batch. */
  void release_on(void* stream) {
    detail::or_raise([&](Error& error) { release_on(stream, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void release_on(void* stream, Error& error) noexcept {
    if (!is_there(error)) return;
    detail::checked(error,
                    [&](feedlane_error* e) { return feedlane_batch_release_on(loader_, batch_.token, stream, e); });
    if (error) return;
    loader_ = nullptr;
    empty();
  }
  /** Records that the stream uses the batch. Its memory becomes free when all references (this object and exported
   *  tensors) are gone and the stream has completed all work enqueued before the last release. Throws. */
  void record_stream(void* stream) const {
    detail::or_raise([&](Error& error) { record_stream(stream, error); });
  }
  /** Non-throwing form: the error is in `error`. */
  void record_stream(void* stream, Error& error) const noexcept {
    if (!is_there(error)) return;
    detail::checked(error,
                    [&](feedlane_error* e) { return feedlane_batch_record_stream(loader_, batch_.token, stream, e); });
  }
  /** Exports tensor `i` in place to another library through DLPack. The caller owns the exported tensor, which holds
   *  the batch until its deleter is called. If copies of the tensor are enqueued on a stream, call record_stream.
   *  Throws E_ARGUMENT if there is no such tensor. */
  [[nodiscard]] DLManagedTensorVersioned* dlpack(std::size_t i) const {
    void* out = nullptr;
    if (loader_ == nullptr) [[unlikely]]
      detail::or_raise([&](Error& error) { (void)is_there(error); });
    detail::checked_or_raise(
        [&](feedlane_error* e) { return feedlane_batch_dlpack(loader_, batch_.token, number(i), 0, &out, e); });
    return static_cast<DLManagedTensorVersioned*>(out);
  }
  /** Non-throwing form: on failure nullptr, with the error in `error`. */
  [[nodiscard]] DLManagedTensorVersioned* dlpack(std::size_t i, Error& error) const noexcept {
    void* out = nullptr;
    if (!is_there(error)) return nullptr;
    detail::checked(
        error, [&](feedlane_error* e) { return feedlane_batch_dlpack(loader_, batch_.token, number(i), 0, &out, e); });
    return static_cast<DLManagedTensorVersioned*>(out);
  }
  /** The underlying struct of the C interface; this object still owns the reference. */
  [[nodiscard]] const feedlane_batch& c() const noexcept { return batch_; }

 private:
  friend class Loader;
  friend class Arena;
  Batch(feedlane_loader* loader, const feedlane_batch& batch) noexcept : loader_(loader), batch_(batch) {}

  // The reference was given away.
  void forget() noexcept {
    loader_ = nullptr;
    empty();
  }
  // Clears the token, pointers and counts; epoch, index and so on stay.
  void empty() noexcept {
    batch_.token = 0;
    batch_.tensors = nullptr;
    batch_.indices = batch_.skipped = nullptr;
    batch_.metadata = nullptr;
    batch_.tensor_count = batch_.count = batch_.skipped_count = batch_.metadata_bytes = 0;
  }
  [[nodiscard]] bool is_there(Error& error) const noexcept {
    if (loader_ != nullptr) [[likely]]
      return true;
    error.refuse("batch", 0, 1, "the batch was released or moved away", FEEDLANE_E_STATE);
    return false;
  }
  [[nodiscard]] const feedlane_tensor* find(std::string_view name) const noexcept {
    for (std::size_t i = 0; i < size(); i++)
      if (name == batch_.tensors[i].name) return &batch_.tensors[i];
    return nullptr;
  }
  static std::int32_t number(std::size_t i) noexcept {
    return static_cast<std::int32_t>(std::min<std::size_t>(i, INT32_MAX));
  }

  feedlane_loader* loader_ = nullptr;
  feedlane_batch batch_{};
};

}  // namespace v1
}  // namespace feedlane

#endif
