// SPDX-License-Identifier: Apache-2.0
// Sixteen bytes as a processor's registers hold them, in the form that gcc and clang have for every processor.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace images {

using Byte16 = uint8_t __attribute__((vector_size(16)));
using Short8 = uint16_t __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Float4 = float __attribute__((vector_size(16)));

template <class Vector, class Element>
Vector load(const Element* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class Vector, class Element>
void store(Element* to, const Vector& v) {
  std::memcpy(to, &v, sizeof v);
}

/// The upper 16 bits of each product. x86 has an instruction for it that compilers don't find by themselves.
inline Short8 multiply_high(Short8 a, Short8 b) {
#if defined(__SSE2__)
  return reinterpret_cast<Short8>(_mm_mulhi_epu16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  Short8 product;
  for (int i = 0; i < 8; i++) product[i] = static_cast<uint16_t>((uint32_t{a[i]} * b[i]) >> 16);
  return product;
#endif
}

/// Eight bytes, times 256.
inline Short8 lower_times_256(Byte16 bytes) {
  return reinterpret_cast<Short8>(
      __builtin_shufflevector(Byte16{}, bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
}
inline Short8 upper_times_256(Byte16 bytes) {
  return reinterpret_cast<Short8>(
      __builtin_shufflevector(Byte16{}, bytes, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}

inline Float4 lower_as_float(Short8 v) {
  const auto wide = reinterpret_cast<Int4>(__builtin_shufflevector(v, Short8{}, 0, 8, 1, 9, 2, 10, 3, 11));
  return __builtin_convertvector(wide, Float4);
}
inline Float4 upper_as_float(Short8 v) {
  const auto wide = reinterpret_cast<Int4>(__builtin_shufflevector(v, Short8{}, 4, 12, 5, 13, 6, 14, 7, 15));
  return __builtin_convertvector(wide, Float4);
}

}  // namespace images
