// SPDX-License-Identifier: Apache-2.0
// What a monitor reads: methods of Loader and of Monitor. And the loader's events. Each raises by `refuse` or `check`.
#pragma once

#include <optional>

#include "core.hpp"

namespace feedlane::python {

struct Monitor;
// A call on the monitor of a Loader or on a Monitor, which stays valid until the end of this object. Null with an
// exception.
class MonitorCall {
 public:
  explicit MonitorCall(PyObject* self);
  MonitorCall(const MonitorCall&) = delete;
  MonitorCall& operator=(const MonitorCall&) = delete;
  ~MonitorCall();
  [[nodiscard]] feedlane_monitor* handle() const { return handle_; }

 private:
  std::optional<LoaderCall> loader_;
  Monitor* monitor_ = nullptr;
  feedlane_monitor* handle_ = nullptr;
};
// A method without arguments: `function` of the object and its monitor, within a MonitorCall.
template <PyObject* (*function)(PyObject*, feedlane_monitor*)>
PyObject* on_monitor(PyObject* self, PyObject*) {
  const MonitorCall call(self);
  return call.handle() != nullptr ? function(self, call.handle()) : nullptr;
}

PyObject* get_stats(PyObject* self, feedlane_monitor* monitor);
PyObject* get_worker_stats(PyObject* self, PyObject* worker);
PyObject* get_info(PyObject* self, feedlane_monitor* monitor);
PyObject* get_timings(PyObject* self, PyObject* worker);
PyObject* diagnose(PyObject* self, feedlane_monitor* monitor);
PyObject* report(PyObject* self, feedlane_monitor* monitor);
PyObject* get_error(PyObject* self, PyObject* index);
// Records as they lie in memory: an array of feedlane_batch_record. They take a seventh of what the dicts do.
PyObject* get_trace(PyObject* self, PyObject* from);
PyObject* get_slots(PyObject* self, feedlane_monitor* monitor);
// Their dicts. Static.
PyObject* read_trace(PyObject* none, PyObject* records);

// The methods above, for a type's table.
#define OBSERVE_METHODS                                                                                                \
  {"stats", on_monitor<get_stats>, METH_NOARGS, "stats() -> dict of feedlane_stats"},                                  \
      {"worker_stats", exclusive<get_worker_stats>, METH_O,                                                            \
       "worker_stats(id) -> dict of feedlane_worker_stats; None: there are fewer"},                                    \
      {"info", on_monitor<get_info>, METH_NOARGS, "info() -> dict of feedlane_loader_info"},                           \
      {"timings", exclusive<get_timings>, METH_O,                                                                      \
       "timings(id) -> dict of feedlane_timings; -1: of all; None: there are fewer"},                                  \
      {"diagnose", on_monitor<diagnose>, METH_NOARGS, "diagnose() -> dict of feedlane_diagnosis, `bound` as a word"},  \
      {"report", on_monitor<report>, METH_NOARGS, "report() -> str: about the present or newest epoch"},               \
      {"error", exclusive<get_error>, METH_O, "error(index) -> dict of feedlane_error_record; None: there are fewer"}, \
      {"slots", on_monitor<get_slots>, METH_NOARGS, "slots() -> bytes, for read_trace: the batch in each slot"}, {     \
    "trace", exclusive<get_trace>, METH_O, "trace(from) -> bytes, for read_trace. StateError: no trace is kept."       \
  }

// Only for Loader.
PyObject* event(PyObject* self, feedlane_loader* handle);

}  // namespace feedlane::python
