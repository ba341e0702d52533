// SPDX-License-Identifier: Apache-2.0
// The library's calls into Python: a sampler and a data set over Python objects. What they raise is kept by the object,
// as nothing may be thrown through the library, and the library is told a status and a text.
#include <algorithm>
#include <cstring>

#include "core.hpp"
#include "members.hpp"

namespace feedlane::python {
namespace {

// Tells the object of the exception that is set, and the library what the object says of it.
std::int32_t fail(PyObject* target, feedlane_error* error) {
  Ref reason = take_exception();
  Ref said(reason ? PyObject_CallMethod(target, "failed", "O", reason.get()) : nullptr);
  const char *text = nullptr, *traceback = nullptr;
  Py_ssize_t text_bytes = 0, traceback_bytes = 0;
  long long sample = -1;
  if (said && PyArg_ParseTuple(said.get(), "y#y#|L", &text, &text_bytes, &traceback, &traceback_bytes, &sample) != 0) {
    error->sample = sample;
    (void)PyOS_snprintf(error->text, sizeof error->text, "%.*s",
                        static_cast<int>(std::min<Py_ssize_t>(text_bytes, 383)), text);
    error->detail_len = std::min(static_cast<std::uint64_t>(traceback_bytes), error->detail_cap);
    if (error->detail != nullptr) std::memcpy(error->detail, traceback, error->detail_len);
    return FEEDLANE_E_SAMPLE;
  }
  // A signal's handler has raised meanwhile: that is what the loop ends with.
  Ref second = take_exception();
  if (second) (void)PyObject_SetAttrString(target, "interruption", second.get());
  PyErr_Clear();
  return FEEDLANE_E_SAMPLE;
}

std::int32_t call_restart(PyObject* target, feedlane_error* error) {
  return Ref(PyObject_CallMethod(target, "restart", nullptr)) ? FEEDLANE_OK : fail(target, error);
}

PyObject* object_of(void* user_data) { return static_cast<PyObject*>(user_data); }

// ---- a sampler ----

std::int32_t restart_sampler(void* user_data, std::int64_t, std::uint64_t, feedlane_error* error) {
  const Locked gil;
  return call_restart(object_of(user_data), error);
}

std::int32_t next_indices(void* user_data, std::int64_t* indices, std::uint64_t cap, std::uint64_t* got,
                          feedlane_error* error) {
  const Locked gil;
  PyObject* const target = object_of(user_data);
  *got = 0;
  Ref drawn(PyObject_CallMethod(target, "draw", "K", static_cast<unsigned long long>(cap)));
  if (!drawn) return fail(target, error);
  if (drawn.get() == Py_None) return FEEDLANE_END;
  Py_buffer buffer;
  if (PyObject_GetBuffer(drawn.get(), &buffer, PyBUF_C_CONTIGUOUS) != 0) return fail(target, error);
  const std::uint64_t count = std::min(static_cast<std::uint64_t>(buffer.len) / sizeof(std::int64_t), cap);
  std::memcpy(indices, buffer.buf, count * sizeof(std::int64_t));
  *got = count;
  PyBuffer_Release(&buffer);
  return count == 0 ? FEEDLANE_AGAIN : FEEDLANE_OK;
}

// ---- a data set without workers ----

std::int32_t restart_dataset(void* self, std::int64_t, feedlane_error* error) {
  const Locked gil;
  return call_restart(object_of(self), error);
}

std::int32_t fetch(void* self, const feedlane_task* task, feedlane_error* error) {
  const Locked gil;
  PyObject* const target = object_of(self);
  const TaskScope scope(task);
  Ref object = new_task(task);
  Ref rows(object ? PyObject_CallMethod(target, "fetch", "O", object.get()) : nullptr);
  if (object) end_task(object.get());
  if (!rows) return fail(target, error);
  if (rows.get() == Py_None) return FEEDLANE_END;
  return from_python(rows.get(), "rows", *task->rows) ? FEEDLANE_OK : fail(target, error);
}

std::int32_t fetch_rows(void* self, const feedlane_task* task, feedlane_error* error) {
  const Locked gil;
  PyObject* const target = object_of(self);
  const TaskScope scope(task);
  const Ref rows(PyObject_GetAttrString(target, "rows"));
  const Ref dataset(rows ? PyObject_GetAttrString(target, "dataset") : nullptr);
  return dataset && write_rows(rows.get(), dataset.get(), task) ? FEEDLANE_OK : fail(target, error);
}

// The maker substitutes by itself; the library wants to see that there is a function for it.
std::int32_t substitute(void*, std::int64_t, std::uint64_t, std::uint32_t, std::int64_t*, feedlane_error*) {
  return FEEDLANE_E_SAMPLE;
}

}  // namespace

feedlane_sampler_callbacks callbacks_over(PyObject* target) {
  auto callbacks = init<feedlane_sampler_callbacks>();
  callbacks.user_data = target;
  callbacks.restart = restart_sampler;
  callbacks.next = next_indices;
  const Ref rows(PyObject_GetAttrString(target, "rows"));
  if (!rows || !from_python(rows.get(), "rows", callbacks.batch_rows)) return {};
  const Ref wake_fd(PyObject_GetAttrString(target, "wake_fd"));
  if (!wake_fd || !from_python(wake_fd.get(), "wake_fd", callbacks.wake_fd)) return {};
  return callbacks;
}

feedlane_dataset dataset_over(PyObject* target) {
  const Ref rows(PyObject_GetAttrString(target, "rows"));
  if (!rows) return {};
  auto dataset = init<feedlane_dataset>();
  dataset.user_data = target;
  dataset.fetch = rows.get() == Py_None ? fetch : fetch_rows;
  dataset.restart = restart_dataset;
  dataset.substitute = substitute;
  return dataset;
}

}  // namespace feedlane::python
