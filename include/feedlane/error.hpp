// SPDX-License-Identifier: Apache-2.0
/**
 * @file error.hpp
 * Errors of the C++ interface. Every function that can fail has two forms:
 *  - The throwing form throws feedlane::Error. With -fno-exceptions it prints the error and aborts, as the standard
 *    library does.
 *  - The non-throwing form takes a feedlane::Error& as its last argument, like std::filesystem's error_code overloads.
 *    If it is not noexcept, it may still throw std::bad_alloc.
 *
 * Outcomes that are not errors (END, TIMEOUT, ...) are never exceptions, except in a range-for loop, see
 * Loader::Interrupted.
 */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include "feedlane.h"

namespace feedlane {
inline namespace v1 {

namespace detail {

/** Returns a struct of the C interface with `size` set and all other members zero. */
template <class T>
[[nodiscard]] T sized() noexcept {
  T object{};
  object.size = sizeof object;
  return object;
}

/** The contents of an Error, shared by its copies. */
struct Report {
  std::atomic<std::uint32_t> references{1};
  feedlane_error error;
  char what[sizeof feedlane_error::text + 32];
  std::size_t traceback_bytes = 0;
  std::unique_ptr<char[]> traceback{};
};

/** An error without contents. */
constexpr feedlane_error blank_error() {
  feedlane_error e{};
  e.size = sizeof e;
  e.worker = e.attempt = -1;
  e.epoch = e.batch = e.sample = -1;
  return e;
}
inline constexpr feedlane_error no_error = blank_error();

/** Copies as many complete UTF-8 characters as fit, then a NUL. Returns the number of bytes copied before the NUL. */
inline std::size_t copy_text(char* out, std::size_t capacity, std::string_view text) noexcept {
  std::size_t length = std::min(text.size(), capacity - 1);
  if (length < text.size())
    while (length != 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) length--;
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
  return length;
}

}  // namespace detail

/**
 * An error, and the out-parameter of non-throwing forms. An empty Error allocates nothing. Copies share their contents,
 * so copying never throws. If memory for the contents cannot be allocated, only the code is kept.
 */
class Error : public std::exception {
 public:
  /** An empty error: `code()` is 0. */
  Error() noexcept = default;
  /** Copies an error of the C interface, including its traceback. */
  [[gnu::cold]] explicit Error(const feedlane_error& said) noexcept : Error(said.code, said) {
    if (report_ == nullptr || said.detail == nullptr) return;
    const auto length = static_cast<std::size_t>(std::min(said.detail_len, said.detail_cap));
    report_->traceback.reset(length == 0 ? nullptr : new (std::nothrow) char[length]);
    if (report_->traceback == nullptr) return;
    std::memcpy(report_->traceback.get(), said.detail, length);
    report_->traceback_bytes = length;
  }
  /** Shares the report of `other`. */
  Error(const Error& other) noexcept : std::exception(other), code_(other.code_), report_(other.report_) {
    // Relaxed: the copied object has a reference, so the count can't reach 0 during the copy.
    if (report_ != nullptr) report_->references.fetch_add(1, std::memory_order_relaxed);
  }
  /** Leaves `other` empty. */
  Error(Error&& other) noexcept
      : code_(std::exchange(other.code_, 0)), report_(std::exchange(other.report_, nullptr)) {}
  /** Shares the report of `other`. */
  Error& operator=(Error other) noexcept {
    std::swap(code_, other.code_);
    std::swap(report_, other.report_);
    return *this;
  }
  ~Error() override { drop(); }

  /** A negative FEEDLANE_E_* number; 0: none. Positive: FEEDLANE_SLOTS_HELD or FEEDLANE_INTERRUPTED, which are not
   *  errors but have text and numbers. */
  [[nodiscard]] std::int32_t code() const noexcept { return code_; }
  /** The name of the code, such as "E_ARGUMENT". */
  [[nodiscard]] const char* name() const noexcept { return feedlane_status_name(code_); }
  /** The name, a colon and the text; without contents, the general text of the code. */
  [[nodiscard]] const char* what() const noexcept override {
    return report_ != nullptr ? report_->what : feedlane_status_text(code_);
  }
  /** What went wrong, in one line, without the name of the code. */
  [[nodiscard]] std::string_view text() const noexcept {
    return report_ != nullptr ? report_->error.text : code_ != 0 ? feedlane_status_text(code_) : "";
  }
  /** The offending argument; empty: none. */
  [[nodiscard]] std::string_view argument() const noexcept { return c().argument; }
  /** If a number was refused: the number found. */
  [[nodiscard]] std::int64_t found() const noexcept { return c().found; }
  /** If a number was refused: the number needed. */
  [[nodiscard]] std::int64_t needed() const noexcept { return c().needed; }
  /** errno of the system call that failed; 0: none. */
  [[nodiscard]] int os_errno() const noexcept { return c().os_errno; }
  /** The worker concerned; -1: none. */
  [[nodiscard]] std::int32_t worker() const noexcept { return c().worker; }
  /** The epoch of the batch concerned; -1: none. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return c().epoch; }
  /** The batch concerned, by its number in the epoch; -1: none. */
  [[nodiscard]] std::int64_t batch() const noexcept { return c().batch; }
  /** The data set index concerned; -1: none. */
  [[nodiscard]] std::int64_t sample() const noexcept { return c().sample; }
  /** Whether the data set marked the error as one that a retry may fix. */
  [[nodiscard]] bool transient() const noexcept { return c().transient != 0; }
  /** A worker's traceback. If the text was too long for text(), the complete text precedes it. Empty: neither exists.
   *  Valid as long as this object. */
  [[nodiscard]] std::string_view traceback() const noexcept {
    if (report_ == nullptr) return {};
    return {report_->traceback.get(), report_->traceback_bytes};
  }
  /** Whether this is an error: code() is negative. */
  [[nodiscard]] explicit operator bool() const noexcept { return code_ < 0; }
  /** The underlying struct of the C interface. */
  [[nodiscard]] const feedlane_error& c() const noexcept {
    return report_ != nullptr ? report_->error : detail::no_error;
  }

  /** Makes this object empty. */
  void clear() noexcept {
    if (report_ != nullptr) [[unlikely]]
      drop();
    code_ = 0;
  }
  /** Makes this the error of an argument that is refused before the C interface is called. */
  [[gnu::cold]] void refuse(std::string_view argument, std::int64_t found, std::int64_t needed, std::string_view text,
                            std::int32_t code = FEEDLANE_E_ARGUMENT) noexcept {
    feedlane_error e = detail::no_error;
    e.code = code;
    e.found = found;
    e.needed = needed;
    (void)detail::copy_text(e.argument, sizeof e.argument, argument);
    (void)detail::copy_text(e.text, sizeof e.text, text);
    *this = Error(e);
  }
  /** For a data set: reports that a sample can't be made, or that the data set can't be opened. `transient`: a retry
   *  may help. `sample`, in a fetch: the data set index that failed, one of the task's indices; -1: none. */
  [[gnu::cold]] void fail(std::string_view text, bool transient = false, std::int64_t sample = -1) noexcept {
    feedlane_error e = detail::no_error;
    e.code = FEEDLANE_E_SAMPLE;
    e.transient = transient ? 1 : 0;
    e.sample = sample;
    // If the text is too long, traceback() returns all of it.
    if (detail::copy_text(e.text, sizeof e.text, text) != text.size()) {
      e.detail = const_cast<char*>(text.data());
      e.detail_cap = e.detail_len = text.size();
    }
    *this = Error(e);
  }

 private:
  Error(std::int32_t code, const feedlane_error& said) noexcept
      : code_(code), report_(new (std::nothrow) detail::Report) {
    if (report_ == nullptr) return;
    feedlane_error& e = report_->error;
    e = said;
    e.size = sizeof e;
    e.detail = nullptr;
    e.detail_cap = e.detail_len = 0;
    e.argument[sizeof e.argument - 1] = e.text[sizeof e.text - 1] = '\0';
    (void)std::snprintf(report_->what, sizeof report_->what, "%s: %s", name(), e.text);
  }
  void drop() noexcept {
    // Pairs with this decrement in other threads: their use of the report happens before it is freed.
    if (report_ != nullptr && report_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete report_;
    report_ = nullptr;
  }

  std::int32_t code_ = 0;
  detail::Report* report_ = nullptr;
};

namespace detail {

/** Throws the error; with -fno-exceptions, prints it and aborts. */
template <class E>
[[noreturn, gnu::cold, gnu::noinline]] inline void raise(const E& error) {
#if FEEDLANE_EXCEPTIONS
  throw error;
#else
  (void)std::fprintf(stderr, "feedlane: %s\n", error.what());
  std::abort();
#endif
}

/** Memory for the traceback that a call may return. Allocated once and never cleared, so pages that no traceback has
 *  used take no memory. */
class Room {
 public:
  static constexpr std::size_t bytes = std::size_t{64} * 1024;
  /** Lends the memory to `error`. If it can't be allocated, the error has no traceback. */
  void lend(feedlane_error& error) noexcept {
    if (room_ == nullptr) room_.reset(new (std::nothrow) char[bytes]);
    error.detail = room_.get();
    error.detail_cap = room_ == nullptr ? 0 : bytes;
  }

 private:
  std::unique_ptr<char[]> room_;
};

/** A feedlane_error with only the members set that the library reads. The library writes the others, on failure
 *  only. */
struct Said {
  Said() noexcept {  // NOLINT
    error.size = sizeof error;
    error.code = 0;
    error.detail = nullptr;
    error.detail_cap = 0;
    error.detail_len = 0;
  }
  feedlane_error error;
};

[[gnu::cold, gnu::noinline]] inline void keep(Error& out, std::int32_t status, feedlane_error& said) noexcept {
  if (said.code != status) {  // the library wrote nothing
    said = no_error;
    said.code = status;
    (void)copy_text(said.text, sizeof said.text, feedlane_status_text(status));
  }
  out = Error(said);
}
inline bool has_words(std::int32_t status) noexcept {
  return status < 0 || status == FEEDLANE_SLOTS_HELD || status == FEEDLANE_INTERRUPTED;
}

/** Returns the status of `call(feedlane_error*)`. If the status comes with text, stores the contents in `error`;
 *  otherwise clears `error`. */
template <class Call>
std::int32_t checked(Error& error, Call&& call) {
  Said said;
  const std::int32_t status = call(&said.error);
  if (has_words(status)) [[unlikely]]
    keep(error, status, said.error);
  else error.clear();
  return status;
}
/** As above, for a call that may return a traceback. */
template <class Call>
std::int32_t checked(Error& error, Room& room, Call&& call) {
  Said said;
  room.lend(said.error);
  const std::int32_t status = call(&said.error);
  if (has_words(status)) [[unlikely]]
    keep(error, status, said.error);
  else error.clear();
  return status;
}
[[noreturn, gnu::cold, gnu::noinline]] inline void raise_said(std::int32_t status, feedlane_error& said) {
  Error error;
  keep(error, status, said);
  raise(error);
}
/** Like checked(), but throws the error. */
template <class Call>
std::int32_t checked_or_raise(Call&& call) {
  Said said;
  const std::int32_t status = call(&said.error);
  if (status < 0) [[unlikely]]
    raise_said(status, said.error);
  return status;
}

/** Returns the result of `f(error)`, or throws the error that it sets. */
template <class F>
auto or_raise(F&& f) {
  Error error;
  if constexpr (std::is_void_v<std::invoke_result_t<F, Error&>>) {
    f(error);
    if (error) raise(error);
  } else {
    auto result = f(error);
    if (error) raise(error);
    return result;
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace feedlane

#endif
