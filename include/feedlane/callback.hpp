// SPDX-License-Identifier: Apache-2.0
/** @file callback.hpp Turns failures in callbacks of data sets and samplers into errors of the C interface. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "error.hpp"

namespace feedlane {
inline namespace v1 {

/** Thrown by a data set for an error that a retry may fix; LoaderOptions::retries limits the retries. */
class Transient : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

/** Writes a failure to `err` and returns `code`. If `text` does not fit, the complete text also goes into err->detail,
 *  before `traceback`. Allocates nothing, because memory may be exhausted. */
inline std::int32_t say(feedlane_error* err, std::int32_t code, std::string_view text, bool transient = false,
                        std::string_view traceback = {}) noexcept {
  const bool fits = copy_text(err->text, sizeof err->text, text) == text.size();
  err->transient = transient ? 1 : 0;
  if (err->detail == nullptr) return code;
  const auto append = [&](std::string_view part) {
    if (err->detail_len < err->detail_cap) {
      const auto room = static_cast<std::size_t>(err->detail_cap - err->detail_len);
      std::memcpy(err->detail + err->detail_len, part.data(), std::min(room, part.size()));
    }
    err->detail_len += part.size();
  };
  err->detail_len = 0;
  if (!fits) append(text);
  if (!fits && !traceback.empty()) append("\n");
  if (!traceback.empty()) append(traceback);
  return code;
}

/** Writes `e` to `err`. With `own`, `err` gets the code and text of `e`. Otherwise it gets `code`, and as text
 *  e.what(), or e.text() if the data set itself reported the failure. */
inline std::int32_t say(feedlane_error* err, std::int32_t code, bool own, const Error& e) noexcept {
  const bool is_failure =
      own || e.code() == FEEDLANE_E_SAMPLE;  // reported by the data set itself, not by a function that it called
  if (is_failure) err->sample = e.sample();
  return say(err, own ? e.code() : code, is_failure ? e.text() : e.what(), e.transient(), e.traceback());
}

/** Returns the status of `f()` or `f(error)`. An exception, or an error in `error`, becomes the callback's error. */
template <class F>
std::int32_t guarded(feedlane_error* err, std::int32_t code, bool own, F&& f) noexcept {
#if FEEDLANE_EXCEPTIONS
  try {
#endif
    if constexpr (std::is_invocable_v<F, Error&>) {
      Error error;
      const std::int32_t status = f(error);
      return error ? say(err, code, own, error) : status;
    } else {
      return f();
    }
#if FEEDLANE_EXCEPTIONS
  } catch (const Transient& e) {
    return say(err, code, e.what(), true);
  } catch (const Error& e) {
    return say(err, code, own, e);
  } catch (const std::exception& e) {
    return say(err, code, e.what());
  } catch (...) {
    return say(err, code, "an exception that is not a std::exception");
  }
#endif
}

}  // namespace detail
}  // namespace v1
}  // namespace feedlane

#endif
