// SPDX-License-Identifier: Apache-2.0
/**
 * @file error.hpp
 * Errors of the C++ interface. Every function that can fail comes twice: one throws feedlane::Error, the other takes a
 * feedlane::Error& as its last argument and returns what it can (like std::filesystem's error_code overloads). The second
 * form throws nothing but std::bad_alloc, where it is not noexcept, and is there with -fno-exceptions too; the first one
 * then prints the error and aborts, as the standard library does. Normal outcomes other than "done" (END, TIMEOUT, ...)
 * are never exceptions, but in a range-for loop, see Loader::Interrupted.
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

/** What an Error says, shared by its copies. */
struct Report {
  std::atomic<std::uint32_t> references{1};
  feedlane_error error;
  char what[sizeof feedlane_error::text + 32];
  std::size_t traceback_bytes = 0;
  std::unique_ptr<char[]> traceback{};
};

/** An error that says nothing. */
constexpr feedlane_error blank_error() {
  feedlane_error e{};
  e.size = sizeof e;
  e.worker = e.attempt = -1;
  e.epoch = e.batch = e.sample = -1;
  return e;
}
inline constexpr feedlane_error no_error = blank_error();

/** Copies what fits, whole UTF-8 characters, and terminates it. Returns how much that was. */
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
 * What went wrong; also the out-parameter of the overloads that don't throw. One that says nothing costs nothing, and
 * copies share what they say: no copy throws. Where memory is too short for what there is to say, the code is left.
 */
class Error : public std::exception {
 public:
  /** `code()` is 0. */
  Error() noexcept = default;
  /** What a call of the C interface has said, its traceback included. */
  [[gnu::cold]] explicit Error(const feedlane_error& said) noexcept : Error(said.code, said) {
    if (report_ == nullptr || said.detail == nullptr) return;
    const auto length = static_cast<std::size_t>(std::min(said.detail_len, said.detail_cap));
    report_->traceback.reset(length == 0 ? nullptr : new (std::nothrow) char[length]);
    if (report_->traceback == nullptr) return;
    std::memcpy(report_->traceback.get(), said.detail, length);
    report_->traceback_bytes = length;
  }
  Error(const Error& other) noexcept : std::exception(other), code_(other.code_), report_(other.report_) {
    // Relaxed: who copies has a reference, so none is the last one meanwhile.
    if (report_ != nullptr) report_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Error(Error&& other) noexcept
      : code_(std::exchange(other.code_, 0)), report_(std::exchange(other.report_, nullptr)) {}
  Error& operator=(Error other) noexcept {
    std::swap(code_, other.code_);
    std::swap(report_, other.report_);
    return *this;
  }
  ~Error() override { drop(); }

  /** A negative FEEDLANE_E_ number, or 0. Positive: FEEDLANE_SLOTS_HELD or FEEDLANE_INTERRUPTED, outcomes that are no errors
   *  but have something to say. */
  [[nodiscard]] std::int32_t code() const noexcept { return code_; }
  /** "E_ARGUMENT" and so on. */
  [[nodiscard]] const char* name() const noexcept { return feedlane_status_name(code_); }
  /** The name, a colon and the text. */
  [[nodiscard]] const char* what() const noexcept override {
    return report_ != nullptr ? report_->what : feedlane_status_text(code_);
  }
  /** One line, without the status name. */
  [[nodiscard]] std::string_view text() const noexcept {
    return report_ != nullptr ? report_->error.text : code_ != 0 ? feedlane_status_text(code_) : "";
  }
  /** The offending argument, empty if none. */
  [[nodiscard]] std::string_view argument() const noexcept { return c().argument; }
  /** The number found, in a refusal that has numbers. */
  [[nodiscard]] std::int64_t found() const noexcept { return c().found; }
  /** The number needed. */
  [[nodiscard]] std::int64_t needed() const noexcept { return c().needed; }
  /** errno of the system call that failed, 0 if none. */
  [[nodiscard]] int os_errno() const noexcept { return c().os_errno; }
  /** The worker that it is about; -1: none. */
  [[nodiscard]] std::int32_t worker() const noexcept { return c().worker; }
  /** The epoch of the batch that it is about; -1: none. */
  [[nodiscard]] std::int64_t epoch() const noexcept { return c().epoch; }
  /** The batch that it is about, its number in the epoch; -1: none. */
  [[nodiscard]] std::int64_t batch() const noexcept { return c().batch; }
  /** The data set index that it is about; -1: none. */
  [[nodiscard]] std::int64_t sample() const noexcept { return c().sample; }
  /** Whether the data set said that it is worth a retry. */
  [[nodiscard]] bool transient() const noexcept { return c().transient != 0; }
  /** A worker's traceback, or the whole of a text that was too long for text(); empty if none. Lives as long as this. */
  [[nodiscard]] std::string_view traceback() const noexcept {
    if (report_ == nullptr) return {};
    return {report_->traceback.get(), report_->traceback_bytes};
  }
  /** Whether anything went wrong. */
  [[nodiscard]] explicit operator bool() const noexcept { return code_ < 0; }
  /** The same, for the C interface. */
  [[nodiscard]] const feedlane_error& c() const noexcept {
    return report_ != nullptr ? report_->error : detail::no_error;
  }

  /** Says nothing again. */
  void clear() noexcept {
    if (report_ != nullptr) [[unlikely]]
      drop();
    code_ = 0;
  }
  /** An argument refused on this side of the C interface. */
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
  /** For a data set: its sample can't be made, or it can't be opened; `transient`: another try may help. */
  [[gnu::cold]] void fail(std::string_view text, bool transient = false) noexcept {
    feedlane_error e = detail::no_error;
    e.code = FEEDLANE_E_SAMPLE;
    e.transient = transient ? 1 : 0;
    // Too long a text is there as a whole behind it, see traceback().
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
    // Pairs with itself: what the others did with the report happens before it is freed.
    if (report_ != nullptr && report_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete report_;
    report_ = nullptr;
  }

  std::int32_t code_ = 0;
  detail::Report* report_ = nullptr;
};

namespace detail {

/** Throws it. Without exceptions the program ends. */
template <class E>
[[noreturn, gnu::cold, gnu::noinline]] inline void raise(const E& error) {
#if FEEDLANE_EXCEPTIONS
  throw error;
#else
  (void)std::fprintf(stderr, "feedlane: %s\n", error.what());
  std::abort();
#endif
}

/** Room for a traceback, for the calls that can bring one. Got once, and never cleared: untouched memory costs nothing. */
class Room {
 public:
  static constexpr std::size_t bytes = std::size_t{64} * 1024;
  /** Without memory for it there is no traceback. */
  void lend(feedlane_error& error) noexcept {
    if (room_ == nullptr) room_.reset(new (std::nothrow) char[bytes]);
    error.detail = room_.get();
    error.detail_cap = room_ == nullptr ? 0 : bytes;
  }

 private:
  std::unique_ptr<char[]> room_;
};

/** Of a feedlane_error only what the library reads is set: the rest is written when there is something to say. */
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
  if (said.code != status) {  // nothing was written
    said = no_error;
    said.code = status;
    (void)copy_text(said.text, sizeof said.text, feedlane_status_text(status));
  }
  out = Error(said);
}
inline bool has_words(std::int32_t status) noexcept {
  return status < 0 || status == FEEDLANE_SLOTS_HELD || status == FEEDLANE_INTERRUPTED;
}

/** Runs `call(feedlane_error*)`; what its status has to say goes to `error`. */
template <class Call>
std::int32_t checked(Error& error, Call&& call) {
  Said said;
  const std::int32_t status = call(&said.error);
  if (has_words(status)) [[unlikely]]
    keep(error, status, said.error);
  else error.clear();
  return status;
}
/** The same, for a call that may bring a traceback. */
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
/** The same as checked(); an error is thrown. */
template <class Call>
std::int32_t checked_or_raise(Call&& call) {
  Said said;
  const std::int32_t status = call(&said.error);
  if (status < 0) [[unlikely]]
    raise_said(status, said.error);
  return status;
}

/** What `f(error)` returns; its error is thrown. */
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
