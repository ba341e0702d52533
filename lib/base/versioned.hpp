// SPDX-License-Identifier: Apache-2.0
// Structs that begin with `size`. They are shorter in callers compiled with an older header, longer with a newer one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/error.hpp"

namespace feedlane {

// In every version of the headers, the size of each struct is a multiple of this.
constexpr std::size_t struct_step = 8;

// Copies the caller's input struct. Members that it doesn't have become zero. E_ARGUMENT for NULL. E_ABI for a size
// that no version can have (it could cut a member in two), or for non-zero bytes after the members that this library
// knows.
template <class T>
Status read_versioned(const T* in, T& out, const char* argument, Error& error) {
  if (in == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "{} is NULL", argument);
  const std::size_t size = in->size;
  static_assert(sizeof(T) % struct_step == 0);
  if (size < sizeof in->size || size > std::size_t{1} << 20 || size % struct_step != 0)
    return error.refuse(FEEDLANE_E_ABI, argument, size, sizeof(T),
                        "{}->size is {}, which is not the size of this struct: set it with feedlane_init (here to {})",
                        argument, size, sizeof(T));
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char b) { return b != 0; }))
    return error.refuse(FEEDLANE_E_ABI, argument, size, sizeof(T),
                        "{}->size is {}, but this library knows only the first {} bytes, and later ones are not zero",
                        argument, size, sizeof(T));
  out = T{};
  std::memcpy(&out, in, std::min(size, sizeof(T)));
  out.size = sizeof(T);
  return FEEDLANE_OK;
}

// Checks an output struct, before any work is done. E_ARGUMENT for NULL, E_ABI for a size that is too small.
template <class T>
Status check_output(const T* out, const char* argument, Error& error) {
  if (out == nullptr) return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "{} is NULL", argument);
  if (out->size < sizeof out->size)
    return error.refuse(FEEDLANE_E_ABI, argument, out->size, sizeof(T),
                        "{}->size is {}: set it with feedlane_init (here to {})", argument, out->size, sizeof(T));
  return FEEDLANE_OK;
}

// Writes the members that the caller's struct has and keeps its `size`. Further members of a longer struct keep their
// values.
template <class T>
void write_versioned(T* out, const T& value) {
  const std::size_t size = out->size;
  std::memcpy(out, &value, std::min(size, sizeof(T)));
  out->size = size;
}

}  // namespace feedlane
