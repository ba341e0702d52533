// SPDX-License-Identifier: Apache-2.0
// Errors of the library as exceptions, and what a process that was forked has to know.
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "core.hpp"

namespace feedlane::python {
namespace {

constexpr std::size_t detail_bytes = 65536;  // no traceback is longer

struct Room {
  Room() : error(init<feedlane_error>()), detail(static_cast<char*>(std::malloc(detail_bytes))) {
    error.detail = detail;
    error.detail_cap = detail != nullptr ? detail_bytes : 0;
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { std::free(detail); }

  feedlane_error error;
  char* detail;
};

std::atomic<std::int64_t> fork_count{0};  // relaxed: written only in a child that has one thread

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  fork_count.store(fork_count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
});

std::atomic<bool> is_ending{
    false};  // release by the main thread; acquire in the others, which need nothing but the flag

Ref text_of(const char* text, std::size_t length) {
  return Ref(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), "replace"));
}

// What an error of no worker, batch or sample has.
feedlane_error blank(std::int32_t status) {
  auto error = init<feedlane_error>();
  error.code = status;
  error.worker = error.attempt = -1;
  error.epoch = error.batch = error.sample = -1;
  return error;
}

// The package's exception for this error. Null with another exception.
Ref make(const feedlane_error& e) {
  Ref text = text_of(e.text, strnlen(e.text, sizeof e.text));
  Ref argument = text_of(e.argument, strnlen(e.argument, sizeof e.argument));
  Ref traceback = text_of(e.detail != nullptr ? e.detail : "", std::min<std::uint64_t>(e.detail_len, e.detail_cap));
  if (!text || !argument || !traceback) return {};
  return Ref(PyObject_CallFunction(types.error, "iOOOiiLLLLLi", e.code, text.get(), argument.get(), traceback.get(),
                                   e.worker, e.attempt, static_cast<long long>(e.epoch),
                                   static_cast<long long>(e.batch), static_cast<long long>(e.sample),
                                   static_cast<long long>(e.found), static_cast<long long>(e.needed), e.os_errno));
}

}  // namespace

std::int64_t forks() { return fork_count.load(std::memory_order_relaxed); }

void stay_out_of_the_end() {
  while (is_ending.load(std::memory_order_acquire) && syscall(SYS_gettid) != getpid()) (void)pause();
}

void begin_the_end() { is_ending.store(true, std::memory_order_release); }

feedlane_error* error_room() {
  thread_local Room room;
  return &room.error;
}

Ref exception_of(std::int32_t status) {
  const feedlane_error& e = *error_room();
  return make(e.code == status ? e : blank(status));  // another code: the function has no feedlane_error
}

std::nullptr_t raise(std::int32_t status, const char* text) {
  Ref exception;
  if (text != nullptr) {
    feedlane_error error = blank(status);
    (void)PyOS_snprintf(error.text, sizeof error.text, "%s", text);
    exception = make(error);
  } else {
    exception = exception_of(status);
  }
  if (exception) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
  return nullptr;
}

Ref take_exception() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr && value != nullptr) (void)PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref(value);
}

}  // namespace feedlane::python
