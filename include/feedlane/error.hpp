// SPDX-License-Identifier: Apache-2.0
/**
 * @file error.hpp
 * Errors of the C++ interface. Every function that can fail comes twice: one throws feedlane::Error, the other takes a
 * feedlane::Error& and returns what it can (like std::filesystem's error_code overloads). Normal outcomes other than
 * "done" (END, TIMEOUT, ...) are never exceptions.
 */
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "feedlane.h"

namespace feedlane {
inline namespace v1 {

/** What went wrong; also the out-parameter of the overloads that don't throw. `code()` is 0 when nothing did. */
class Error : public std::exception {
 public:
  Error() { feedlane_init(&error_, sizeof error_); }

  /** A negative FEEDLANE_E_ number, or 0. */
  [[nodiscard]] std::int32_t code() const noexcept { return error_.code; }
  /** "E_ARGUMENT" and so on. */
  [[nodiscard]] const char* name() const noexcept { return feedlane_status_name(error_.code); }
  /** The name, a colon and the text. */
  [[nodiscard]] const char* what() const noexcept override { return what_.c_str(); }
  /** One line, without the status name. */
  [[nodiscard]] std::string_view text() const noexcept { return error_.text; }
  /** The offending argument, empty if none. */
  [[nodiscard]] std::string_view argument() const noexcept { return error_.argument; }
  /** The number found, in a refusal that has numbers. */
  [[nodiscard]] std::int64_t found() const noexcept { return error_.found; }
  /** The number needed. */
  [[nodiscard]] std::int64_t needed() const noexcept { return error_.needed; }
  /** errno of the system call that failed, 0 if none. */
  [[nodiscard]] int os_errno() const noexcept { return error_.os_errno; }
  /** The worker that it is about; -1: none. */
  [[nodiscard]] std::int32_t worker() const noexcept { return error_.worker; }
  /** The epoch of the batch that it is about; -1: none. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return error_.epoch; }
  /** The batch that it is about, its number in the epoch; -1: none. */
  [[nodiscard]] std::int64_t batch() const noexcept { return error_.batch; }
  /** The data set index that it is about; -1: none. */
  [[nodiscard]] std::int64_t sample() const noexcept { return error_.sample; }
  /** Whether the data set said that it is worth a retry. */
  [[nodiscard]] bool transient() const noexcept { return error_.transient != 0; }
  /** A worker's traceback, empty if none. */
  [[nodiscard]] const std::string& traceback() const noexcept { return traceback_; }
  /** Whether anything went wrong. */
  [[nodiscard]] explicit operator bool() const noexcept { return error_.code < 0; }

  /** An argument refused on this side of the C interface. */
  void refuse(std::string_view argument, std::int64_t found, std::int64_t needed, std::string_view text) {
    feedlane_init(&error_, sizeof error_);
    error_.code = FEEDLANE_E_ARGUMENT;
    error_.worker = error_.attempt = -1;
    error_.epoch = error_.batch = error_.sample = -1;
    error_.found = found;
    error_.needed = needed;
    argument.copy(error_.argument, sizeof error_.argument - 1);
    text.copy(error_.text, sizeof error_.text - 1);
    traceback_.clear();
    what_ = std::string(name()) + ": " + error_.text;
  }

  /** For a call of the C interface: fresh, with room for a traceback. */
  feedlane_error* prepare() {
    feedlane_init(&error_, sizeof error_);
    traceback_.clear();
    what_.clear();
    room_.resize(std::size_t{64} * 1024);  // nothing after the first call
    error_.detail = room_.data();
    error_.detail_cap = room_.size();
    return &error_;
  }
  /** After it: keeps what was said. Returns `status`. */
  std::int32_t finish(std::int32_t status) {
    error_.detail = nullptr;
    error_.code = status < 0 ? status : 0;
    if (status >= 0) return status;
    const std::uint64_t length = error_.detail_len < error_.detail_cap ? error_.detail_len : error_.detail_cap;
    traceback_.assign(room_.data(), static_cast<std::size_t>(length));
    what_ = std::string(name()) + ": " + error_.text;
    return status;
  }

 private:
  feedlane_error error_{};
  std::vector<char> room_;
  std::string traceback_;
  std::string what_;
};

namespace detail {

/** Runs `call(feedlane_error*)`; a negative status becomes `error` and, in the throwing form, an exception. */
template <class Call>
std::int32_t checked(Error& error, Call&& call) {
  feedlane_error* const c = error.prepare();
  return error.finish(call(c));
}
template <class Call>
std::int32_t checked(Call&& call) {
  Error error;
  const std::int32_t status = checked(error, call);
  if (status < 0) throw error;
  return status;
}

}  // namespace detail
}  // namespace v1
}  // namespace feedlane
