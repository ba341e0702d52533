// SPDX-License-Identifier: Apache-2.0
// Errors are values: a Status is returned, an Error beside it says the rest. Status numbers and all structs that the C
// boundary shows are the vocabulary of the whole library; feedlane/status.h is their one definition.
#pragma once

#include <cerrno>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/format.hpp"
#include "feedlane/status.h"

namespace feedlane {

using Status = std::int32_t;

// What was found or needed, of any integer type: `found` and `needed` of an error have 64 bits.
struct Number {
  template <std::integral T>
  Number(T number) : value(static_cast<std::int64_t>(number)) {}
  std::int64_t value;
};

// -1 in worker, attempt, epoch, batch, sample means "none", as in feedlane_error.
struct Error {
  Status code = FEEDLANE_OK;
  std::int32_t os_errno = 0;
  std::int32_t worker = -1;
  std::int32_t attempt = -1;
  bool transient = false;
  std::int64_t epoch = -1;
  std::int64_t batch = -1;
  std::int64_t sample = -1;
  std::int64_t found = 0;
  std::int64_t needed = 0;
  char argument[64];  // these two aren't zeroed behind their end: every call makes one of these structs
  char text[384];
  std::string detail;

  Error() noexcept { argument[0] = text[0] = '\0'; }

  // Each fills this error from scratch and returns its code, so that a refusal is one `return`. See format.hpp for the text.
  template <class... A>
  Status fail(Status status, FormatFor<A...> format, const A&... arguments) {
    return fill(status, format.text(), {FormatArgument(arguments)...});
  }
  // An argument that is refused: its name, the number found and the number needed.
  template <class... A>
  Status refuse(Status status, const char* name, Number number_found, Number number_needed, FormatFor<A...> format,
                const A&... arguments) {
    (void)fill(status, format.text(), {FormatArgument(arguments)...});
    return blame(name, number_found.value, number_needed.value);
  }
  // A system call that failed: what it was for, and errno.
  template <class... A>
  Status os(int error_number, FormatFor<A...> format, const A&... arguments) {
    (void)fill(FEEDLANE_E_OS, format.text(), {FormatArgument(arguments)...});
    return add_reason(error_number);
  }

 private:
  Status fill(Status status, const char* format, std::initializer_list<FormatArgument> arguments);
  Status blame(const char* name, std::int64_t number_found, std::int64_t number_needed);
  Status add_reason(int error_number);
};

// E_ARGUMENT for a number that isn't in its domain: "NAME is FOUND: RULE".
Status refuse(Error& error, const char* name, Number found, Number needed, const char* rule);

// An error in the form that callers see, but for the detail, which is the caller's memory.
feedlane_error to_c(const Error& error) noexcept;

// What the user's callback `name` returned, negative, with what it reported: E_ARGUMENT if that is no status of the table.
Status from_callback(const char* name, Status returned, const feedlane_error& report, Error& error) noexcept;

// Copies what fits and always terminates.
void copy_text(char* out, std::size_t capacity, const char* text) noexcept;

}  // namespace feedlane
