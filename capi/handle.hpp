// SPDX-License-Identifier: Apache-2.0
// Wrappers around each function of the C interface. They check the handle, refuse overlapping calls, turn exceptions
// into statuses, and fill in the caller's error struct.
#pragma once

#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>

#include "base/error.hpp"
#include "base/versioned.hpp"
#include "os/fd.hpp"
#include "os/fork_stamp.hpp"
#include "os/socket.hpp"

namespace feedlane::capi {

// Writes an error into the caller's struct, whatever its size, and a traceback into the buffer that the struct
// provides.
void tell(feedlane_error* err, const Error& error) noexcept;

// Whether an error text belongs to the status: negative ones, and these two.
inline bool has_error(Status s) { return s < 0 || s == FEEDLANE_SLOTS_HELD || s == FEEDLANE_INTERRUPTED; }

// Runs `f(error)` and turns every exception into a status.
template <class F>
Status shield(Error& error, F&& f) noexcept {
  try {
    return f(error);
  } catch (const std::bad_alloc&) {
    return error.fail(FEEDLANE_E_MEMORY, "out of memory");
  } catch (const std::length_error&) {
    return error.fail(FEEDLANE_E_MEMORY, "the requested size exceeds the address space");
  } catch (const std::exception& e) {
    return error.fail(FEEDLANE_E_OS, "unexpected: {}", first(300, e.what()));
  } catch (...) {
    return error.fail(FEEDLANE_E_OS, "unexpected exception");
  }
}

// For a function without a handle.
template <class F>
int32_t call(feedlane_error* err, F&& f) noexcept {
  Error error;
  const Status s = shield(error, f);
  if (has_error(s)) tell(err, error);
  return s;
}

inline Status check_timeout(int64_t timeout_ns, Error& error) {
  if (timeout_ns >= 0) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "timeout_ns", timeout_ns, 0, "timeout_ns {} is negative", timeout_ns);
}

// Takes over a descriptor from the caller: from now on the library owns it, and exec closes it.
inline Status take_descriptor(int32_t fd, os::Fd& out, Error& error) {
  const int flags = fd < 0 ? -1 : ::fcntl(fd, F_GETFD);
  if (flags < 0) return error.refuse(FEEDLANE_E_ARGUMENT, "fd", fd, 0, "fd is {}: must be an open file descriptor", fd);
  (void)::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  out.reset(fd);
  return out ? FEEDLANE_OK : error.os(errno, "duplicating descriptor {}", fd);
}
// The same for a call that takes `fd` or, with fd -1, the argument `name`, whose value is `other`. E_ARGUMENT if both
// or neither were passed.
inline Status take_descriptor_or(const void* other, const char* name, int32_t fd, os::Fd& out, Error& error) {
  if (other != nullptr && fd < 0) return FEEDLANE_OK;
  const Status s = take_descriptor(fd, out, error);
  if (s != FEEDLANE_OK || other == nullptr) return s;
  return error.refuse(FEEDLANE_E_ARGUMENT, name, 1, 0, "pass fd or {}, not both", name);
}

// E_ARGUMENT: no socket can be bound to a path of this length.
inline Status check_path(const char* path, const char* argument, Error& error) {
  const std::size_t length = std::strlen(path);
  if (length >= 1 && length <= os::longest_socket_path) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, argument, length, os::longest_socket_path,
                      "{} has {} bytes: a socket's path must have 1 to {}", argument, length, os::longest_socket_path);
}

// The base of all handles: which process and how many owners have it, whether it was closed, and whether a thread is in
// an exclusive call. Each type of handle defines noun(),
// its name in error texts.
struct Handle {
  static constexpr std::uint32_t in_call = 1;
  static constexpr std::uint32_t closed = 2;
  static constexpr std::uint32_t ending = 4;   // closed, but end_what_was_begun has not run: see `leave`
  static constexpr std::uint32_t unowned = 8;  // it has no owner left

  os::ForkStamp stamp;
  std::atomic<std::uint32_t> state{0};
  std::atomic<std::uint32_t> owners{1};   // references, see feedlane_loader_ref; the last unref frees the handle
  std::atomic<std::uintptr_t> caller{0};  // the thread that is in an exclusive call

  // Relaxed: nothing else depends on whether a call sees another thread's `close`.
  [[nodiscard]] bool is_closed() const { return (state.load(std::memory_order_relaxed) & closed) != 0; }
  // Called once or more after `close`, under the guard, by the thread that is in a call or by the next one. Neither
  // waits nor throws.
  void end_what_was_begun() noexcept {}
};
// A handle whose calls send and receive messages. They set `busy` instead of `in_call`, without a locked instruction.
struct MessageHandle : Handle {
  std::atomic<bool> busy{false};
};

// Identifies the calling thread in comparisons. Never 0.
inline std::uintptr_t this_thread() { return static_cast<std::uintptr_t>(::pthread_self()); }

inline Status refuse_null(Error& error, const char* argument) {
  return error.refuse(FEEDLANE_E_ARGUMENT, argument, 0, 1, "{} is NULL", argument);
}

template <class H>
Status refuse_closed(const H& handle, Error& error) {
  return error.fail(FEEDLANE_E_STATE, "the {} was closed", handle.noun());
}
template <class H>
Status refuse_foreign(const H& handle, Error& error) {
  return error.fail(FEEDLANE_E_FORKED, "the {} belongs to the parent process", handle.noun());
}

template <class H>
Status check_handle(const H* handle, const char* argument, Error& error) {
  if (handle == nullptr) return refuse_null(error, argument);
  if (handle->stamp.is_foreign()) return refuse_foreign(*handle, error);
  if (handle->is_closed()) return refuse_closed(*handle, error);
  return FEEDLANE_OK;
}

// For a function that any thread may call at any time.
template <class H, class F>
int32_t call_any(H* handle, const char* argument, feedlane_error* err, F&& f) noexcept {
  return call(err, [&](Error& error) {
    const Status s = check_handle(handle, argument, error);
    return s == FEEDLANE_OK ? f(error) : s;
  });
}

// Keeps calls on a handle from overlapping. `enter` returns false if a call is in progress. Acquire: pairs with the
// release in `leave`, so that calls from different threads see each other's work.
struct ExactGuard {
  template <class H>
  static bool enter(H& h) {
    if constexpr (std::is_base_of_v<MessageHandle, H>) {
      return !h.busy.exchange(true, std::memory_order_acquire);
    } else {
      if ((h.state.fetch_or(Handle::in_call, std::memory_order_acquire) & Handle::in_call) != 0) return false;
      h.caller.store(this_thread(), std::memory_order_relaxed);  // another thread never finds its own value here
      return true;
    }
  }
};
// Uses no locked instruction. Such an instruction waits until earlier stores are visible, which would be most of a
// message's latency. If a thread is interrupted between the load and the store, another call may overlap. A thread that
// is already in a call, such as a wait, is detected.
struct MessageGuard {
  static bool enter(MessageHandle& h) {
    if (h.busy.load(std::memory_order_acquire)) return false;
    h.busy.store(true, std::memory_order_relaxed);  // no access of this call precedes it
    return true;
  }
};

// Ends a handle without an owner, which no other thread uses. The default deletes it.
template <class H>
void finish(H& h) {
  delete &h;
}

// Release: see ExactGuard. The handle may be gone after the release store. Before the store, this does the work that
// `close` or `unref` in another thread left to the thread in the call.
template <class H>
void leave(H& h) noexcept {
  if constexpr (std::is_base_of_v<MessageHandle, H>) {
    h.busy.store(false, std::memory_order_release);
  } else {
    h.caller.store(0, std::memory_order_relaxed);
    std::uint32_t now = h.state.load(std::memory_order_acquire);  // pairs with `close` and `unref`
    for (;;) {
      if ((now & Handle::unowned) != 0) return finish(h);
      if ((now & Handle::ending) != 0) {
        h.end_what_was_begun();
        now = h.state.fetch_and(~Handle::ending, std::memory_order_acquire) & ~Handle::ending;
      } else if (h.state.compare_exchange_weak(now, now & ~Handle::in_call, std::memory_order_release,
                                               std::memory_order_acquire)) {
        return;
      }
    }
  }
}

template <class Guard, class H, class F>
int32_t call_guarded(H* handle, const char* argument, feedlane_error* err, F&& f) noexcept {
  Error error;
  Status s = check_handle(handle, argument, error);
  if (s == FEEDLANE_OK) {
    if (!Guard::enter(*handle)) {
      s = handle->is_closed() ? refuse_closed(*handle, error)  // and another thread is about to end it
                              : error.fail(FEEDLANE_E_BUSY, "another thread is in a call on this handle");
    } else {
      s = handle->is_closed() ? refuse_closed(*handle, error) : shield(error, f);
      if (s == FEEDLANE_INTERRUPTED && handle->is_closed()) s = refuse_closed(*handle, error);
      leave(*handle);
    }
  }
  if (has_error(s)) tell(err, error);
  return s;
}

// For a function that only one thread at a time may call.
template <class H, class F>
int32_t call_one(H* handle, const char* argument, feedlane_error* err, F&& f) noexcept {
  return call_guarded<ExactGuard>(handle, argument, err, f);
}
// A separate function, so that call_message needs no stack frame for it.
template <class H, class F>
[[gnu::noinline]] int32_t call_in_full(H* handle, const char* argument, feedlane_error* err, F f) noexcept {
  return call_guarded<MessageGuard>(handle, argument, err, f);
}

// For a call that sends or receives messages. First calls `try_it()`, which neither waits nor throws nor sets an error.
// If it returns false, it has changed nothing, and `in_full()` makes the call.
template <class H, class Try, class Full>
int32_t try_message(H* handle, const Try& try_it, const Full& in_full) noexcept {
  if (handle != nullptr && !handle->stamp.is_foreign() && !handle->is_closed() && MessageGuard::enter(*handle)) {
    const bool done = try_it();
    leave(*handle);
    if (done) return FEEDLANE_OK;
  }
  return in_full();
}
// Like try_message. The full call is `f`, which returns a status and may set an error.
template <class H, class Try, class F>
int32_t call_message(H* handle, const char* argument, feedlane_error* err, const Try& try_it, const F& f) noexcept {
  return try_message(handle, try_it, [&] { return call_in_full(handle, argument, err, f); });
}

// ---- owners, and the end ----

// E_STATE for a handle without an owner. It exists only as long as batches or threads use it.
inline Status check_owned(const Handle* handle) {
  if (handle == nullptr) return FEEDLANE_E_ARGUMENT;
  if (handle->stamp.is_foreign()) return FEEDLANE_E_FORKED;
  return handle->owners.load(std::memory_order_relaxed) == 0 ? FEEDLANE_E_STATE : FEEDLANE_OK;
}

template <class H>
int32_t ref(H* handle) noexcept {
  if (const Status s = check_owned(handle); s != FEEDLANE_OK) return s;
  handle->owners.fetch_add(1, std::memory_order_relaxed);  // the caller has a reference during the call
  return FEEDLANE_OK;
}

// Ends waiting calls, and refuses later ones.
template <class H>
void mark_closed(H& h, std::uint32_t marks) {
  // Release: pairs with the acquire in `leave`.
  if ((h.state.fetch_or(Handle::closed | marks, std::memory_order_acq_rel) & Handle::closed) == 0) h.wake();
}

template <class H>
int32_t close(H* handle) noexcept {
  if (const Status s = check_owned(handle); s != FEEDLANE_OK) return s;
  if constexpr (std::is_base_of_v<MessageHandle, H>) {
    mark_closed(*handle, 0);
  } else {
    mark_closed(*handle, Handle::ending);
    if (ExactGuard::enter(*handle)) leave(*handle);  // otherwise the thread in the call sees it in `leave`
  }
  return FEEDLANE_OK;
}

template <class H>
int32_t unref(H* handle) noexcept {
  if (handle == nullptr) return FEEDLANE_OK;
  if (const Status s = check_owned(handle); s != FEEDLANE_OK) return s;
  // Release: this owner's use happens before the end. Acquire: the last owner sees the use of all others.
  if (handle->owners.fetch_sub(1, std::memory_order_acq_rel) != 1) return FEEDLANE_OK;
  if constexpr (!std::is_base_of_v<MessageHandle, H>) {
    mark_closed(*handle, 0);
    // If a thread without a reference is in a call, or this thread is in a callback, `leave` finishes the handle.
    constexpr std::uint32_t last = Handle::unowned | Handle::in_call;
    if ((handle->state.fetch_or(last, std::memory_order_acq_rel) & Handle::in_call) != 0) return FEEDLANE_OK;
  }
  finish(*handle);
  return FEEDLANE_OK;
}

// Closes `*handle`, waits until a call by another thread has returned, calls `f`, and gives the caller's reference
// back. Only clears the pointer if the handle belongs to the parent process. E_BUSY, without effect, in a callback of a
// call on this handle.
template <class H, class F>
int32_t destroy(H** handle, F&& f) noexcept {
  if (handle == nullptr || *handle == nullptr) return FEEDLANE_OK;
  H* h = *handle;
  if (h->stamp.is_foreign()) {
    *handle = nullptr;
    return FEEDLANE_OK;
  }
  if (const Status s = check_owned(h); s != FEEDLANE_OK) return s;
  if (h->caller.load(std::memory_order_relaxed) == this_thread()) return FEEDLANE_E_BUSY;
  mark_closed(*h, 0);
  // A wait in that call has ended, but a user-defined callback may take its time.
  for (timespec nap{0, 50'000}; !ExactGuard::enter(*h); nap.tv_nsec = std::min(2 * nap.tv_nsec, 1'000'000L))
    (void)::nanosleep(&nap, nullptr);
  *handle = nullptr;
  const int32_t status = f(h);
  leave(*h);
  (void)unref(h);
  return status;
}

}  // namespace feedlane::capi
