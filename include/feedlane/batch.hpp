// SPDX-License-Identifier: Apache-2.0
/** @file batch.hpp A batch in the trainer's hands. */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "error.hpp"
#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** A batch in the trainer's hands, released on destruction. Move-only; may outlive its loader. */
class Batch {
 public:
  /** `other` holds nothing after. */
  Batch(Batch&& other) noexcept : loader_(std::exchange(other.loader_, nullptr)), batch_(other.batch_) {}
  /** Exchanges the two. */
  Batch& operator=(Batch&& other) noexcept {
    std::swap(loader_, other.loader_);
    std::swap(batch_, other.batch_);
    return *this;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { release(); }

  /** Before the end of its scope; the tensors are gone after. */
  void release() noexcept {
    if (loader_ != nullptr) (void)feedlane_batch_release(loader_, batch_.token);
    loader_ = nullptr;
  }

  /** As it was started. */
  [[nodiscard]] std::int64_t epoch() const { return batch_.epoch; }
  /** Its number in the epoch, from 0. */
  [[nodiscard]] std::int64_t index() const { return batch_.batch; }
  /** The number of samples. */
  [[nodiscard]] std::size_t rows() const { return static_cast<std::size_t>(batch_.count); }
  /** Who made it; -1: inline. */
  [[nodiscard]] int worker() const { return batch_.worker; }
  /** Which attempt made it, from 0. */
  [[nodiscard]] int attempt() const { return batch_.attempt; }
  /** What its rows are; empty: iterable. */
  [[nodiscard]] std::span<const std::int64_t> indices() const {
    return {batch_.indices, batch_.indices == nullptr ? 0 : rows()};
  }
  /** Indices that were left out, see LoaderOptions::skip_budget; empty: iterable. */
  [[nodiscard]] std::span<const std::int64_t> skipped() const {
    return {batch_.skipped, batch_.skipped == nullptr ? 0 : skipped_count()};
  }
  /** The number of samples that were left out. */
  [[nodiscard]] std::size_t skipped_count() const { return static_cast<std::size_t>(batch_.skipped_count); }
  /** What the data set gave along, see Task::metadata. */
  [[nodiscard]] std::span<const std::byte> metadata() const {
    return {static_cast<const std::byte*>(batch_.metadata), static_cast<std::size_t>(batch_.metadata_bytes)};
  }
  /** What names it to the C interface: one of its references is this object's. */
  [[nodiscard]] std::uint64_t token() const { return batch_.token; }
  /** The number of tensors. */
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(batch_.tensor_count); }
  /** Throws E_ARGUMENT beyond the last. */
  [[nodiscard]] Tensor operator[](std::size_t i) const {
    if (i < size()) return Tensor(batch_.tensors[i]);
    Error error;
    error.refuse("tensor", static_cast<std::int64_t>(i), static_cast<std::int64_t>(size()),
                 "the batch has no such tensor");
    throw error;
  }
  /** By name; throws E_ARGUMENT if there is none. */
  [[nodiscard]] Tensor operator[](std::string_view name) const {
    for (std::size_t i = 0; i < size(); i++)
      if (name == batch_.tensors[i].name) return Tensor(batch_.tensors[i]);
    Error error;
    error.refuse("tensor", -1, static_cast<std::int64_t>(size()),
                 "the batch has no tensor '" + std::string(name) + "'");
    throw error;
  }
  /** Enqueues a copy of a tensor to device memory, of which there are `bytes`. Throws. */
  void to_device(std::size_t i, void* device_memory, std::uint64_t bytes, void* stream) const {
    const auto number = static_cast<std::int32_t>(std::min<std::size_t>(i, INT32_MAX));
    detail::checked([&](feedlane_error* e) {
      return feedlane_batch_to_device(loader_, batch_.token, number, device_memory, bytes, stream, e);
    });
  }
  /** Released when the stream has come so far: this holds nothing after. Throws, and still holds it then. */
  void release_on(void* stream) {
    detail::checked([&](feedlane_error* e) { return feedlane_batch_release_on(loader_, batch_.token, stream, e); });
    loader_ = nullptr;
  }
  /** The stream uses the batch: its memory isn't free before the stream has done all that is enqueued when the last of this and
   *  the exported tensors is gone. Throws. */
  void record_stream(void* stream) const {
    detail::checked([&](feedlane_error* e) { return feedlane_batch_record_stream(loader_, batch_.token, stream, e); });
  }
  /** A tensor for another library, where it lies: it keeps the batch until its deleter is called; if copies of it are enqueued
   *  on a stream, record_stream. The caller's, as DLPack has it. Throws E_ARGUMENT beyond the last. */
  [[nodiscard]] DLManagedTensorVersioned* dlpack(std::size_t i) const {
    DLManagedTensorVersioned* out = nullptr;
    const auto number = static_cast<std::int32_t>(std::min<std::size_t>(i, INT32_MAX));
    detail::checked(
        [&](feedlane_error* e) { return feedlane_batch_dlpack(loader_, batch_.token, number, 0, &out, e); });
    return out;
  }
  /** The same, for the C interface; its reference stays this object's. */
  [[nodiscard]] const feedlane_batch& c() const { return batch_; }

 private:
  friend class Loader;
  Batch(feedlane_loader* loader, const feedlane_batch& batch) : loader_(loader), batch_(batch) {}
  feedlane_loader* loader_;
  feedlane_batch batch_;
};

}  // namespace v1
}  // namespace feedlane
