// SPDX-License-Identifier: Apache-2.0
// Errors are values: functions return a Status, and an Error argument takes the details. Status numbers and the structs of the
// C interface are used throughout the library; feedlane/status.h is their one definition.
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

// An integer of any type, for `found` and `needed` of an error, which have 64 bits.
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
  char argument[64];  // argument and text are not zeroed after their terminator: every call creates an Error
  char text[384];
  std::string detail;

  Error() noexcept { argument[0] = text[0] = '\0'; }

  // Each of these sets all members and returns the code, so that a refusal is one `return`. See format.hpp for the text.
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
  // A failed system call: its purpose, and errno.
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

// E_ARGUMENT for a number out of range: "NAME is FOUND: RULE".
Status refuse(Error& error, const char* name, Number found, Number needed, const char* rule);

// The C form of an error, without the detail, whose memory is the caller's.
feedlane_error to_c(const Error& error) noexcept;

// The error of the user's callback `name`: its negative return value and its report. E_ARGUMENT if the value is no status.
Status from_callback(const char* name, Status returned, const feedlane_error& report, Error& error) noexcept;

// Copies what fits and always terminates.
void copy_text(char* out, std::size_t capacity, const char* text) noexcept;

}  // namespace feedlane
