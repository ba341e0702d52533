// SPDX-License-Identifier: Apache-2.0
// What every function at the C boundary does around the one line of its own: checks the handle, keeps overlapping calls
// out, lets no exception through, and tells the caller's error struct what went wrong.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>

#include "base/error.hpp"
#include "base/versioned.hpp"
#include "os/fd.hpp"
#include "os/fork_stamp.hpp"

namespace feedlane::capi {

// Writes an error into the caller's struct, of whatever size, and a traceback into the room that it offers.
void tell(feedlane_error* err, const Error& error) noexcept;

inline bool has_error(Status s) { return s < 0 || s == FEEDLANE_SLOTS_HELD; }

// Runs `f(error)` with every exception turned into a status.
template <class F>
Status shield(Error& error, F&& f) noexcept {
  try {
    return f(error);
  } catch (const std::bad_alloc&) {
    return error.fail(FEEDLANE_E_MEMORY, "out of memory");
  } catch (const std::length_error&) {
    return error.fail(FEEDLANE_E_MEMORY, "more than any memory holds");
  } catch (const std::exception& e) {
    return error.fail(FEEDLANE_E_OS, "unexpected: %.300s", e.what());
  } catch (...) {
    return error.fail(FEEDLANE_E_OS, "unexpected exception");
  }
}

// A function without a handle.
template <class F>
int32_t call(feedlane_error* err, F&& f) noexcept {
  Error error;
  const Status s = shield(error, f);
  if (has_error(s)) tell(err, error);
  return s;
}

inline Status check_timeout(int64_t timeout_ns, Error& error) {
  if (timeout_ns >= 0) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "timeout_ns", timeout_ns, 0, "timeout_ns %lld is negative",
                      static_cast<long long>(timeout_ns));
}

// Whether what the caller handed over as a descriptor is one.
inline Status check_descriptor(os::Fd& fd, Error& error) {
  const int flags = fd ? ::fcntl(fd.get(), F_GETFD) : -1;
  if (flags >= 0) {  // from here on it is the library's, and stays in this program
    (void)::fcntl(fd.get(), F_SETFD, flags | FD_CLOEXEC);
    return FEEDLANE_OK;
  }
  const int number = fd.release();  // nothing to close
  return error.refuse(FEEDLANE_E_ARGUMENT, "fd", number, 0, "fd %d is no open descriptor", number);
}

// What all handles have in front.
struct Handle {
  os::ForkStamp stamp;
  std::atomic<bool> busy{false};
  std::atomic<bool> destroyed{false};
};

inline Status refuse_null(Error& error, const char* argument) {
  return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "%s is NULL", argument);
}

inline Status check_handle(const Handle* handle, const char* argument, Error& error) {
  if (handle == nullptr) return refuse_null(error, argument);
  if (handle->stamp.is_foreign()) return error.fail(FEEDLANE_E_FORKED, "the handle belongs to the parent process");
  // Relaxed: a caller that races destroy with other calls has lost already; this finds the ones after it.
  if (handle->destroyed.load(std::memory_order_relaxed))
    return error.fail(FEEDLANE_E_STATE, "the handle was destroyed");
  return FEEDLANE_OK;
}

// A T:any function.
template <class H, class F>
int32_t call_any(H* handle, const char* argument, feedlane_error* err, F&& f) noexcept {
  return call(err, [&](Error& error) {
    const Status s = check_handle(handle, argument, error);
    return s == FEEDLANE_OK ? f(error) : s;
  });
}

// How the calls of a handle keep each other out. Acquire: pairs with the release in call_guarded, so that calls from
// different threads see each other's work.
struct ExactGuard {
  static bool enter(std::atomic<bool>& busy) { return !busy.exchange(true, std::memory_order_acquire); }
};
// Without a locked instruction, which waits until the stores before it are out: for a message, most of its way. One that is
// interrupted between looking and entering goes in beside another; whoever is in already, as in a wait, is seen.
struct MessageGuard {
  static bool enter(std::atomic<bool>& busy) {
    if (busy.load(std::memory_order_acquire)) return false;
    busy.store(true, std::memory_order_relaxed);  // nothing of this call is behind it yet
    return true;
  }
};

template <class Guard, class H, class F>
int32_t call_guarded(H* handle, const char* argument, feedlane_error* err, F&& f) noexcept {
  Error error;
  Status s = check_handle(handle, argument, error);
  if (s == FEEDLANE_OK) {
    if (!Guard::enter(handle->busy)) {
      s = error.fail(FEEDLANE_E_BUSY, "another thread is in a call on this handle");
    } else {
      s = shield(error, f);
      handle->busy.store(false, std::memory_order_release);
    }
  }
  if (has_error(s)) tell(err, error);
  return s;
}

// A T:one function.
template <class H, class F>
int32_t call_one(H* handle, const char* argument, feedlane_error* err, F&& f) noexcept {
  return call_guarded<ExactGuard>(handle, argument, err, f);
}
// Apart, so that call_message needs no frame for it.
template <class H, class F>
[[gnu::noinline]] int32_t call_in_full(H* handle, const char* argument, feedlane_error* err, F f) noexcept {
  return call_guarded<MessageGuard>(handle, argument, err, f);
}

// One for a message: `try_it()` first, which neither waits nor throws nor has anything to explain; where it says false,
// nothing has changed, and `f` does it or says why not.
template <class H, class Try, class F>
int32_t call_message(H* handle, const char* argument, feedlane_error* err, const Try& try_it, const F& f) noexcept {
  // Relaxed: see check_handle.
  if (handle != nullptr && !handle->stamp.is_foreign() && !handle->destroyed.load(std::memory_order_relaxed) &&
      MessageGuard::enter(handle->busy)) {
    const bool done = try_it();
    handle->busy.store(false, std::memory_order_release);  // see call_guarded
    if (done) return FEEDLANE_OK;
  }
  return call_in_full(handle, argument, err, f);
}

// Destroys `*handle`, unless it is the parent's: then only the pointer goes.
template <class H, class F>
int32_t destroy(H** handle, F&& f) noexcept {
  if (handle == nullptr || *handle == nullptr) return FEEDLANE_OK;
  H* h = *handle;
  if (h->stamp.is_foreign()) {
    *handle = nullptr;
    return FEEDLANE_OK;
  }
  if (h->destroyed.load(std::memory_order_relaxed)) return FEEDLANE_E_STATE;      // see check_handle
  if (h->busy.exchange(true, std::memory_order_acquire)) return FEEDLANE_E_BUSY;  // pairs with call_guarded's release
  *handle = nullptr;
  return f(h);
}

}  // namespace feedlane::capi
