// SPDX-License-Identifier: Apache-2.0
// Bad input, row by row: a call, what it answers, and what its error says. Every function of feedlane.h has rows.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>

#include "support/process.hpp"
#include "support/trainer.hpp"

namespace feedlane::test {

// How many rows a function has, in all tables of this program.
std::map<std::string, int>& rows_by_function();

// `argument` NULL: the function has no err, or what it says isn't promised. "": it names none.
template <class F>
struct Row {
  const char* function;
  const char* what;
  std::int32_t status;
  const char* argument;
  std::int64_t found, needed;
  std::int32_t (*call)(F& f, feedlane_error* e);
};

constexpr std::int32_t some_error = INT32_MIN;  // which one is not promised

// Rows of a table in which `F` is the fixture `f`. REFUSES: with err (`e`); ANSWERS: a status alone; HOLDS: for functions
// that return no status, a condition.
#define REFUSES(function, what, status, argument, found, needed, ...)                             \
  {                                                                                               \
#function, what, status, argument, found, needed,                                             \
        []([[maybe_unused]] F & f,                                                                \
           [[maybe_unused]] feedlane_error * e) -> std::int32_t { return function(__VA_ARGS__); } \
  }
#define ANSWERS(function, what, status, ...) REFUSES(function, what, status, nullptr, 0, 0, __VA_ARGS__)
#define HOLDS(function, what, ...)                                                                     \
  {                                                                                                    \
#function, what, FEEDLANE_OK, nullptr, 0, 0,                                                       \
        []([[maybe_unused]] F & f,                                                                     \
           feedlane_error*) -> std::int32_t { return (__VA_ARGS__) ? FEEDLANE_OK : FEEDLANE_E_STATE; } \
  }

// A struct of a header to come, whose tail says something.
template <class T>
struct Later {
  explicit Later(const T& of) : known(of) {}
  T known;
  std::uint64_t tail = 1;
};

template <class T>
T sized(std::size_t size) {
  T object = fresh<T>();
  object.size = size;
  return object;
}

struct DestroyAny : Destroy {
  using Destroy::operator();
  void operator()(feedlane_rx* rx) const { (void)feedlane_rx_destroy(&rx); }
  void operator()(feedlane_tx* tx) const { (void)feedlane_tx_destroy(&tx); }
  void operator()(feedlane_pool* p) const { (void)feedlane_pool_destroy(&p); }
  void operator()(feedlane_monitor* m) const { (void)feedlane_monitor_destroy(&m); }
};

// Where functions put what they make: NULL after each failure, whatever was there before.
template <class T>
struct Out {
  Out() = default;
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;
  ~Out() {
    if (handle != poison() && handle != nullptr) DestroyAny()(handle);
  }
  static T* poison() { return reinterpret_cast<T*>(64); }
  T** place() { return &(handle = poison()); }
  [[nodiscard]] bool is_poisoned() const { return handle == poison(); }
  T* handle = nullptr;
};

// A descriptor that a call may take or give.
struct Number {
  Number() = default;
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  ~Number() {
    if (value >= 0) (void)::close(value);
  }
  std::int32_t value = -1;
};

inline bool is_answer(std::int32_t status, std::int32_t expected) {
  return expected == some_error ? status < 0 : status == expected;
}

template <class F>
void check_said(const Row<F>& r, std::int32_t status, const Error& e) {
  if (r.argument == nullptr || (status >= 0 && status != FEEDLANE_SLOTS_HELD)) return;
  CHECK(e.code == status);
  CHECK(std::string(e.argument) == r.argument);
  CHECK(e.found == r.found);
  CHECK(e.needed == r.needed);
  CHECK(e.text[0] != '\0');
}

// Each row on a fixture of its own: with an error struct, without, and with one whose size was never set.
template <class F, std::size_t n>
void check_rows(const Row<F> (&rows)[n]) {
  const std::vector<int> before = open_descriptors();
  for (const Row<F>& r : rows) {
    INFO(std::string(r.function), ": ", std::string(r.what));
    for (int form = 0; form < 3; form++) {
      F f;
      Error e;
      if (form == 2) e.size = 0;
      const std::int32_t status = r.call(f, form == 1 ? nullptr : &e);
      CHECK_MESSAGE(is_answer(status, r.status), "status ", status, ", expected ", r.status, ": ", std::string(e.text));
      if (form == 0) check_said(r, status, e);
      else CHECK(e.code == 0);
      CHECK(f.is_clean());
    }
    CHECK(open_descriptors() == before);
  }
}

// All rows in one forked child, on the parent's handles.
template <class F, std::size_t n>
void check_forked(F& f, const Row<F> (&rows)[n]) {
  CHECK(in_child([&](Findings& found) {
          for (const Row<F>& r : rows) {
            Error e;
            const std::int32_t status = r.call(f, &e);
            found.expect(status == r.status, (r.function + std::string(": ") + std::to_string(status)).c_str(),
                         __LINE__);
            if (r.argument != nullptr) found.expect(e.code == r.status, r.function, __LINE__);
          }
        }) == "");
}

// Counts the rows of a table.
struct Counted {
  template <class F, std::size_t n>
  explicit Counted(const Row<F> (&rows)[n]) {
    for (const Row<F>& r : rows) rows_by_function()[r.function]++;
  }
};

}  // namespace feedlane::test
