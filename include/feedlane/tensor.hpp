// SPDX-License-Identifier: Apache-2.0
/** @file tensor.hpp Typed views of tensors in place, and declarations of fields. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__STDCPP_FLOAT16_T__) || defined(__STDCPP_BFLOAT16_T__)
#include <stdfloat>
#endif

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** IEEE 754 binary16 for as<>() and field<>(), because the compiler may not have the type. */
struct Half {
  std::uint16_t bits; /**< sign, exponent, fraction */
};
/** The upper half of an IEEE 754 binary32 for as<>() and field<>(), because the compiler may not have the type. */
struct BFloat16 {
  std::uint16_t bits; /**< sign, exponent, fraction */
};

/**
 * DLPack's numbers for a C++ type: an arithmetic type, std::byte, Half, BFloat16 or one of C++23's 16-bit floats.
 * Specialise it for a type of another library:
 *     template <> struct feedlane::Dtype<c10::Half> { static constexpr feedlane_dtype value{2, 16, 1}; };
 */
template <class T>
struct Dtype {
  static_assert(std::is_arithmetic_v<T>, "an arithmetic type, or one that feedlane::Dtype is specialised for");
  /** Code, bits and lanes. */
  static constexpr feedlane_dtype value{static_cast<std::uint8_t>(std::is_same_v<T, bool>       ? 6
                                                                  : std::is_floating_point_v<T> ? 2
                                                                  : std::is_signed_v<T>         ? 0
                                                                                                : 1),
                                        static_cast<std::uint8_t>(sizeof(T) * 8), 1};
};
/** std::byte is uint8. */
template <>
struct Dtype<std::byte> {
  /** Code, bits and lanes. */
  static constexpr feedlane_dtype value{1, 8, 1};
};
/** A 16-bit float. */
template <>
struct Dtype<Half> {
  /** Code, bits and lanes. */
  static constexpr feedlane_dtype value{2, 16, 1};
};
/** A bfloat16. */
template <>
struct Dtype<BFloat16> {
  /** Code, bits and lanes. */
  static constexpr feedlane_dtype value{4, 16, 1};
};
#ifdef __STDCPP_BFLOAT16_T__
/** A bfloat16. */
template <>
struct Dtype<std::bfloat16_t> {
  /** Code, bits and lanes. */
  static constexpr feedlane_dtype value{4, 16, 1};
};
#endif

/** DLPack's numbers for type T. */
template <class T>
constexpr feedlane_dtype dtype_of() {
  using U = std::remove_cv_t<T>;
  constexpr feedlane_dtype value = Dtype<U>::value;
  static_assert(value.bits * (value.lanes == 0 ? 1 : value.lanes) == sizeof(U) * 8, "a dtype of another size");
  return value;
}

namespace detail {

/** The name of a dtype, such as "float32", "bfloat16" or "int8x4". */
struct DtypeName {
  explicit DtypeName(feedlane_dtype d) noexcept {
    constexpr const char* kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
    char bits[8] = "";
    char lanes[8] = "";
    if (d.code != 6 || d.bits != 8) (void)std::snprintf(bits, sizeof bits, "%d", d.bits);
    if (d.lanes > 1) (void)std::snprintf(lanes, sizeof lanes, "x%d", d.lanes);
    if (d.code < std::size(kinds)) (void)std::snprintf(text, sizeof text, "%s%s%s", kinds[d.code], bits, lanes);
    else (void)std::snprintf(text, sizeof text, "dtype code %d of %s bits%s", d.code, bits, lanes);
  }
  char text[48];
};

constexpr bool is_same(feedlane_dtype a, feedlane_dtype b) noexcept {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

[[gnu::cold, gnu::noinline]] inline void refuse_dtype(Error& error, const feedlane_tensor& t,
                                                      feedlane_dtype wanted) noexcept {
  char text[160];
  (void)std::snprintf(text, sizeof text, "tensor '%.32s' has type %s, not %s", t.name, DtypeName(t.dtype).text,
                      DtypeName(wanted).text);
  error.refuse("dtype", t.dtype.code * 1000 + t.dtype.bits, wanted.code * 1000 + wanted.bits, text);
}
[[gnu::cold, gnu::noinline]] inline void refuse_row(Error& error, const feedlane_tensor& t,
                                                    std::size_t index) noexcept {
  char text[160];
  const std::int64_t rows = t.ndim == 0 ? 0 : t.shape[0];
  if (t.ndim == 0)
    (void)std::snprintf(text, sizeof text, "tensor '%.32s' has no dimensions, so it has no row %zu", t.name, index);
  else
    (void)std::snprintf(text, sizeof text, "tensor '%.32s' has no row %zu: its first dimension is %lld", t.name, index,
                        static_cast<long long>(rows));
  error.refuse("row", static_cast<std::int64_t>(index), rows, text);
}
/** Reports E_ARGUMENT: there is no tensor with this number. */
[[gnu::cold, gnu::noinline]] inline void refuse_tensor(Error& error, const char* of, std::size_t index,
                                                       std::size_t count) noexcept {
  char text[96];
  (void)std::snprintf(text, sizeof text, "the %s has no tensor %zu: it has %zu tensors", of, index, count);
  error.refuse("tensor", static_cast<std::int64_t>(index), static_cast<std::int64_t>(count), text);
}

constexpr feedlane_tensor nameless() {
  feedlane_tensor t{};
  t.name = "";
  return t;
}
inline constexpr feedlane_tensor no_tensor = nameless();

}  // namespace detail

/** One field of a sample. `shape` has no batch dimension. */
struct Field {
  std::string name;                  /**< up to 31 bytes, unique within the sample */
  feedlane_dtype dtype{};            /**< type of an element */
  std::vector<std::int64_t> shape{}; /**< up to 7 dimensions */
};
/** Declares a field: field<float>("image", {3, 224, 224}). */
template <class T>
Field field(std::string name, std::vector<std::int64_t> shape = {}) {
  return {std::move(name), dtype_of<T>(), std::move(shape)};
}

namespace detail {

/** Returns fields of the C interface, whose names point into `fields`. */
inline std::vector<feedlane_field> c_fields(const std::vector<Field>& fields) {
  std::vector<feedlane_field> all;
  for (const Field& f : fields) {
    feedlane_field c{};
    c.size = sizeof c;
    c.name = f.name.c_str();
    c.dtype = f.dtype;
    c.ndim = static_cast<std::int32_t>(f.shape.size());  // the library refuses too many dimensions
    for (std::size_t d = 0; d < f.shape.size() && d < FEEDLANE_MAX_NDIM; d++) c.shape[d] = f.shape[d];
    all.push_back(c);
  }
  return all;
}

}  // namespace detail

/** A view of a row-major tensor of a batch or a task, in place. Valid as long as the batch or task. */
class Tensor {
 public:
  /** An empty tensor: no dtype, no bytes. */
  Tensor() noexcept = default;
  /** A view of `tensor`, which must outlive it. */
  explicit Tensor(const feedlane_tensor& tensor) noexcept : tensor_(&tensor) {}

  /** The field's name. */
  [[nodiscard]] const char* name() const noexcept { return tensor_->name; }
  /** The type of its elements. */
  [[nodiscard]] feedlane_dtype dtype() const noexcept { return tensor_->dtype; }
  /** The dimensions. The first is the number of rows, unless the loader is unbatched or the data set gave the tensor
   *  another shape. */
  [[nodiscard]] std::span<const std::int64_t> shape() const noexcept {
    return {tensor_->shape, static_cast<std::size_t>(tensor_->ndim)};
  }
  /** All bytes, whatever the dtype. */
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(tensor_->data), static_cast<std::size_t>(tensor_->bytes)};
  }
  /** The tensor's offset in the data segment, the same in the worker and in the trainer. */
  [[nodiscard]] std::uint64_t offset() const noexcept { return tensor_->offset; }
  /** The underlying struct of the C interface. */
  [[nodiscard]] const feedlane_tensor& c() const noexcept { return *tensor_; }

  /** All elements. Throws E_ARGUMENT if T isn't the tensor's dtype. */
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    if (holds<T>()) [[likely]]
      return all<T>();
    Error error;
    detail::refuse_dtype(error, *tensor_, dtype_of<T>());
    detail::raise(error);
  }
  /** Non-throwing form: empty, with the error in `error`, if T isn't the tensor's dtype. */
  template <class T>
  [[nodiscard]] std::span<T> as(Error& error) const noexcept {
    error.clear();
    if (holds<T>()) [[likely]]
      return all<T>();
    detail::refuse_dtype(error, *tensor_, dtype_of<T>());
    return {};
  }
  /** The elements of row `index`. Throws E_ARGUMENT if T isn't the tensor's dtype or there is no such row: the data set
   *  may have given the tensor fewer rows than the batch has, or no dimension. */
  template <class T>
  [[nodiscard]] std::span<T> row(std::size_t index) const {
    if (holds<T>() && has_row(index)) [[likely]]
      return row_of<T>(index);
    Error error;
    (void)row<T>(index, error);
    detail::raise(error);
  }
  /** Non-throwing form: on failure empty, with the error in `error`. */
  template <class T>
  [[nodiscard]] std::span<T> row(std::size_t index, Error& error) const noexcept {
    error.clear();
    if (!holds<T>()) [[unlikely]]
      detail::refuse_dtype(error, *tensor_, dtype_of<T>());
    else if (!has_row(index)) [[unlikely]] detail::refuse_row(error, *tensor_, index);
    else return row_of<T>(index);
    return {};
  }

 private:
  template <class T>
  [[nodiscard]] bool holds() const noexcept {
    return detail::is_same(tensor_->dtype, dtype_of<T>());
  }
  [[nodiscard]] bool has_row(std::size_t index) const noexcept {
    return tensor_->ndim > 0 && index < static_cast<std::uint64_t>(tensor_->shape[0]);
  }
  template <class T>
  [[nodiscard]] std::span<T> all() const noexcept {
    return {static_cast<T*>(tensor_->data), static_cast<std::size_t>(tensor_->bytes / sizeof(T))};
  }
  template <class T>
  [[nodiscard]] std::span<T> row_of(std::size_t index) const noexcept {
    const std::span<T> every = all<T>();
    const std::size_t length = every.size() / static_cast<std::size_t>(tensor_->shape[0]);
    return every.subspan(index * length, length);
  }

  const feedlane_tensor* tensor_ = &detail::no_tensor;
};

}  // namespace v1
}  // namespace feedlane

#endif
