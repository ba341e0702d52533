// SPDX-License-Identifier: Apache-2.0
// Structs that begin with `size`: callers compiled against an older header have shorter ones, against a newer one longer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/error.hpp"

namespace feedlane {

// Every struct's size is a multiple of it, in every header.
constexpr std::size_t struct_step = 8;

// A copy of the caller's input struct with everything it doesn't have zeroed. E_ARGUMENT for NULL, E_ABI for a size that
// can't be, or for non-zero bytes behind what this library knows. With a size no struct has, a member could be cut in two.
template <class T>
Status read_versioned(const T* in, T& out, const char* argument, Error& error) {
  if (in == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "{} is NULL", argument);
  const std::size_t size = in->size;
  static_assert(sizeof(T) % struct_step == 0);
  if (size < sizeof in->size || size > std::size_t{1} << 20 || size % struct_step != 0)
    return error.refuse(FEEDLANE_E_ABI, argument, size, sizeof(T),
                        "{}->size is {}, not that of a struct of feedlane.h; feedlane_init sets it (here {})", argument,
                        size, sizeof(T));
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char b) { return b != 0; }))
    return error.refuse(FEEDLANE_E_ABI, argument, size, sizeof(T),
                        "{}->size is {}, this library knows {} bytes of it, and what is behind them isn't zero",
                        argument, size, sizeof(T));
  out = T{};
  std::memcpy(&out, in, std::min(size, sizeof(T)));
  out.size = sizeof(T);
  return FEEDLANE_OK;
}

// Whether an output struct can be written, before the work that fills it.
template <class T>
Status check_output(const T* out, const char* argument, Error& error) {
  if (out == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "{} is NULL", argument);
  if (out->size < sizeof out->size)
    return error.refuse(FEEDLANE_E_ABI, argument, out->size, sizeof(T),
                        "{}->size is {}; feedlane_init sets it (here {})", argument, out->size, sizeof(T));
  return FEEDLANE_OK;
}

// Writes as much as the caller has room for; its size stays. What a longer struct has beyond is left as it is.
template <class T>
void write_versioned(T* out, const T& value) {
  const std::size_t size = out->size;
  std::memcpy(out, &value, std::min(size, sizeof(T)));
  out->size = size;
}

}  // namespace feedlane
