// SPDX-License-Identifier: Apache-2.0
// Errors are values: functions return a Status and store details in an Error argument. The library uses the status
// numbers and structs of the C interface throughout; only the headers in feedlane/ define them.
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

// Converts an integer of any type to the 64 bits of an error's `found` and `needed`.
struct Number {
  template <std::integral T>
  Number(T number) : value(static_cast<std::int64_t>(number)) {}
  std::int64_t value;
};

// -1 in worker, attempt, epoch, batch and sample means none, as in feedlane_error.
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
  char argument[64];  // argument and text are only terminated, not zeroed, because every call creates an Error
  char text[384];
  std::string detail;

  Error() noexcept { argument[0] = text[0] = '\0'; }

  // Each of these functions sets all members and returns the code, so a caller refuses in one `return`. For `format`
  // see format.hpp.
  template <class... A>
  Status fail(Status status, FormatFor<A...> format, const A&... arguments) {
    return fill(status, format.text(), {FormatArgument(arguments)...});
  }
  // For a refused argument: its name, the number found and the number needed.
  template <class... A>
  Status refuse(Status status, const char* name, Number number_found, Number number_needed, FormatFor<A...> format,
                const A&... arguments) {
    (void)fill(status, format.text(), {FormatArgument(arguments)...});
    return blame(name, number_found.value, number_needed.value);
  }
  // For a failed system call: its purpose, and errno. The code is E_OS.
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

// Refuses a number that is out of range with E_ARGUMENT and the text "NAME is FOUND: RULE".
Status refuse(Error& error, const char* name, Number found, Number needed, const char* rule);

// Refuses a pointer with E_ARGUMENT and the text "NAME is set: RULE" or "NAME is NULL: RULE".
Status refuse_pointer(Error& error, const char* name, bool is_set, const char* rule);

// The C form of an error, without the text of `detail`, which goes into a buffer that the caller provides.
feedlane_error to_c(const Error& error) noexcept;

// Makes the error of the user's callback `name` from its negative return value and its report. E_ARGUMENT if that value
// is not an error status.
Status from_callback(const char* name, Status returned, const feedlane_error& report, Error& error) noexcept;

// Copies as much of `text` as fits, and terminates it. Does nothing if `capacity` is 0.
void copy_text(char* out, std::size_t capacity, const char* text) noexcept;

}  // namespace feedlane
