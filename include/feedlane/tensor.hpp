// SPDX-License-Identifier: Apache-2.0
/** @file tensor.hpp Typed views of tensors in place, and declarations of fields. */
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** DLPack's numbers for an arithmetic type. */
template <class T>
constexpr feedlane_dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  static_assert(std::is_arithmetic_v<U>, "dtype_of: an arithmetic type");
  constexpr auto bits = static_cast<std::uint8_t>(sizeof(U) * 8);
  if constexpr (std::is_same_v<U, bool>) return {6, bits, 1};
  if constexpr (std::is_floating_point_v<U>) return {2, bits, 1};
  return {static_cast<std::uint8_t>(std::is_signed_v<U> ? 0 : 1), bits, 1};
}

/** One field of a sample; `shape` without the batch dimension. */
struct Field {
  std::string name;                  /**< up to 31 bytes, unique within the sample */
  feedlane_dtype dtype{};            /**< of an element */
  std::vector<std::int64_t> shape{}; /**< up to 7 dimensions */
};
/** field<float>("image", {3, 224, 224}) */
template <class T>
Field field(std::string name, std::vector<std::int64_t> shape = {}) {
  return {std::move(name), dtype_of<T>(), std::move(shape)};
}

/** A tensor of a batch or a task, row-major, in place. A view: it lives as long as its batch or task. */
class Tensor {
 public:
  /** A view of `tensor`, which must outlive it. */
  explicit Tensor(const feedlane_tensor& tensor) : tensor_(&tensor) {}

  /** The field's name. */
  [[nodiscard]] const char* name() const { return tensor_->name; }
  /** The type of its elements. */
  [[nodiscard]] feedlane_dtype dtype() const { return tensor_->dtype; }
  /** The number of rows first. */
  [[nodiscard]] std::span<const std::int64_t> shape() const {
    return {tensor_->shape, static_cast<std::size_t>(tensor_->ndim)};
  }
  /** All of it, whatever it holds. */
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(tensor_->data), static_cast<std::size_t>(tensor_->bytes)};
  }
  /** Where it lies in the data segment: the same number in the worker and in the trainer. */
  [[nodiscard]] std::uint64_t offset() const { return tensor_->offset; }
  /** The same, for the C interface. */
  [[nodiscard]] const feedlane_tensor& c() const { return *tensor_; }

  /** All elements. Throws E_ARGUMENT if T isn't the tensor's dtype. */
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    Error error;
    const std::span<T> all = as<T>(error);
    if (error) throw error;
    return all;
  }
  /** The same; empty, with the reason in `error`, if T isn't the tensor's dtype. */
  template <class T>
  [[nodiscard]] std::span<T> as(Error& error) const {
    constexpr feedlane_dtype wanted = dtype_of<T>();
    const feedlane_dtype d = tensor_->dtype;
    if (d.code != wanted.code || d.bits != wanted.bits || d.lanes != wanted.lanes) {
      error.refuse(
          "dtype", d.code * 1000 + d.bits, wanted.code * 1000 + wanted.bits,
          std::string("tensor '") + tensor_->name + "' is asked for as another dtype than it has (code * 1000 + bits)");
      return {};
    }
    error = {};
    return {static_cast<T*>(tensor_->data), static_cast<std::size_t>(tensor_->bytes / sizeof(T))};
  }
  /** The elements of one row. */
  template <class T>
  [[nodiscard]] std::span<T> row(std::size_t index) const {
    const std::span<T> all = as<T>();
    const std::size_t length = all.size() / static_cast<std::size_t>(tensor_->shape[0]);
    return all.subspan(index * length, length);
  }

 private:
  const feedlane_tensor* tensor_;
};

}  // namespace v1
}  // namespace feedlane
