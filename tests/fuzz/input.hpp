// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: bytes taken apart into numbers and edits, and promises that end the process when broken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

// A promise of the library's: in every build, unlike assert.
#define PROMISE(condition)                                                                 \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      (void)std::fprintf(stderr, "%s:%d: not kept: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

namespace feedlane::fuzz {

// Takes the input from its front. Behind its end there are zeros.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  template <class T>
  T take() {
    T value{};
    const std::size_t count = std::min(sizeof value, rest_.size());
    if (count != 0) std::memcpy(&value, rest_.data(), count);
    rest_ = rest_.subspan(count);
    return value;
  }
  std::uint8_t u8() { return take<std::uint8_t>(); }
  std::uint16_t u16() { return take<std::uint16_t>(); }
  std::uint32_t u32() { return take<std::uint32_t>(); }
  std::int32_t i32() { return take<std::int32_t>(); }
  std::uint64_t u64() { return take<std::uint64_t>(); }
  std::int64_t i64() { return take<std::int64_t>(); }
  // One of 0 .. count - 1.
  std::uint32_t pick(std::uint32_t count) { return u8() % count; }
  bool flag() { return (u8() & 1) != 0; }
  // A number that is small more often than not: bounds lie there.
  std::int64_t number() {
    const std::uint8_t first = u8();
    if (first < 200) return std::int64_t{first} - 4;
    return first < 240 ? i32() : i64();
  }
  std::span<const std::uint8_t> bytes(std::size_t most) {
    const auto taken = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  // A length, then as many bytes.
  std::string text(std::size_t most) {
    const auto taken = bytes(u8() % (most + 1));
    return {taken.begin(), taken.end()};
  }
  [[nodiscard]] bool any() const { return !rest_.empty(); }

 private:
  std::span<const std::uint8_t> rest_;
};

// Changes what was sound: up to 15 numbers of 1, 2, 4 or 8 bytes, anywhere in `memory`, replaced or moved a little.
inline void edit(Input& in, void* memory, std::size_t size) {
  auto* bytes = static_cast<std::uint8_t*>(memory);
  for (std::uint32_t left = in.pick(16); left > 0; left--) {
    const std::uint8_t how = in.u8();
    const std::size_t width = std::size_t{1} << (how & 3);
    // Where numbers lie, unless asked for otherwise.
    std::size_t at = in.u16() % size;
    if ((how & 4) == 0) at -= at % width;
    if (at + width > size) continue;
    std::uint64_t value = 0;
    if ((how & 8) != 0) {
      std::memcpy(&value, bytes + at, width);
      value += static_cast<std::uint64_t>(std::int64_t{static_cast<std::int8_t>(in.u8())});
    } else {
      const auto given = in.bytes(width);
      if (!given.empty()) std::memcpy(&value, given.data(), given.size());
    }
    std::memcpy(bytes + at, &value, width);
  }
}

}  // namespace feedlane::fuzz
