// SPDX-License-Identifier: Apache-2.0
// Fills errors and converts them to the C form.
#include "base/error.hpp"

#include <cstring>

namespace feedlane {

void copy_text(char* out, std::size_t capacity, const char* text) noexcept {
  if (capacity == 0) return;
  const std::size_t length = strnlen(text, capacity - 1);
  std::memcpy(out, text, length);
  out[length] = '\0';
}

Status from_callback(const char* name, Status returned, const feedlane_error& report, Error& error) noexcept {
  if (returned >= 0 || returned < FEEDLANE_E_UNSUPPORTED)
    return error.refuse(FEEDLANE_E_ARGUMENT, name, returned, 0,
                        "{} returned {} ({}), which is not a valid result of this callback", name, returned,
                        feedlane_status_name(returned));
  const std::size_t length = strnlen(report.text, sizeof report.text);
  if (length == 0) (void)error.fail(returned, "{} returned {} ({})", name, returned, feedlane_status_name(returned));
  else (void)error.fail(returned, "{}", std::string_view(report.text, length));
  copy_text(error.argument, sizeof error.argument, name);
  error.os_errno = report.os_errno;
  error.transient = report.transient != 0;
  return returned;
}

feedlane_error to_c(const Error& error) noexcept {
  feedlane_error e{};
  e.size = sizeof e;
  e.code = error.code;
  e.os_errno = error.os_errno;
  e.worker = error.worker;
  e.attempt = error.attempt;
  e.transient = error.transient ? 1 : 0;
  e.epoch = error.epoch;
  e.batch = error.batch;
  e.sample = error.sample;
  e.found = error.found;
  e.needed = error.needed;
  copy_text(e.argument, sizeof e.argument, error.argument);
  copy_text(e.text, sizeof e.text, error.text);
  e.detail_len = error.detail.size();
  return e;
}

Status Error::fill(Status status, const char* format, std::initializer_list<FormatArgument> arguments) {
  *this = Error{};
  code = status;
  (void)format_arguments(text, sizeof text, format, arguments);
  return code;
}

Status Error::blame(const char* name, std::int64_t number_found, std::int64_t number_needed) {
  copy_text(argument, sizeof argument, name);
  found = number_found;
  needed = number_needed;
  return code;
}

Status refuse(Error& error, const char* name, Number found, Number needed, const char* rule) {
  return error.refuse(FEEDLANE_E_ARGUMENT, name, found, needed, "{} is {}: {}", name, found.value, rule);
}

Status refuse_pointer(Error& error, const char* name, bool is_set, const char* rule) {
  return error.refuse(FEEDLANE_E_ARGUMENT, name, is_set ? 1 : 0, is_set ? 0 : 1, "{} is {}: {}", name,
                      is_set ? "set" : "NULL", rule);
}

namespace {

// Overloads for the two variants of strerror_r. GNU's returns the text, which may lie outside the buffer. POSIX's
// (musl) writes the text into the buffer, or returns an error.
[[maybe_unused]] const char* reason_of(const char* returned, const char*) { return returned; }
[[maybe_unused]] const char* reason_of(int returned, const char* written) {
  return returned == 0 ? written : "an unknown reason";
}

}  // namespace

Status Error::add_reason(int error_number) {
  os_errno = error_number;
  char reason[128];
  const std::size_t used = std::strlen(text);
  (void)format_arguments(text + used, sizeof text - used, ": {}",
                         {FormatArgument(reason_of(strerror_r(error_number, reason, sizeof reason), reason))});
  return code;
}

}  // namespace feedlane
