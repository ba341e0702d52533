// SPDX-License-Identifier: Apache-2.0
// What mutated sources call: every change is compiled in, and the environment chooses one of them. See mutate.py.
//
//   FEEDLANE_MUTANT=N          the change that is made; none: the code is as it was written
//   FEEDLANE_MUTANTS_SEEN=F    a file of `most` bytes: byte N becomes 1 when a process comes to the place of change N
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace feedlane_mutants {

constexpr int most = 1 << 16;

inline const int chosen = [] {
  const char* const text = std::getenv("FEEDLANE_MUTANT");
  return text == nullptr ? -1 : std::atoi(text);
}();

inline unsigned char* const seen = []() -> unsigned char* {
  const char* const path = std::getenv("FEEDLANE_MUTANTS_SEEN");
  const int fd = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const memory = ::mmap(nullptr, most, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  (void)::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}();

// Whether change `number` is made. Never while the compiler evaluates a constant.
constexpr bool on(int number) {
  if (__builtin_is_constant_evaluated()) return false;
  if (seen != nullptr) seen[number] = 1;
  return chosen == number;
}

// 1; changed: 0.
template <int number>
constexpr int one() {
  return on(number) ? 0 : 1;
}

// `a < Bound<number, std::less<>, std::less_equal<>>{} > b` is a < b, and with the change a <= b: both signs bind as the one that
// they replace does.
template <int number, class Written, class Changed>
struct Bound {};
template <int number, class Written, class Changed, class A>
struct Left {
  const A& a;
  template <class B>
  friend constexpr bool operator>(const Left& left, const B& b) {
    return on(number) ? Changed()(left.a, b) : Written()(left.a, b);
  }
};
template <int number, class Written, class Changed, class A>
constexpr Left<number, Written, Changed, A> operator<(const A& a, Bound<number, Written, Changed>) {
  return {a};
}

}  // namespace feedlane_mutants
