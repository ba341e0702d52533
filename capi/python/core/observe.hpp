// SPDX-License-Identifier: Apache-2.0
// What a loader's monitor reads, and the loader's events: methods of Loader, see the table in loader.cpp. Each raises
// by `refuse` or `check`.
#pragma once

#include "core.hpp"

namespace feedlane::python {

PyObject* get_stats(PyObject* self, feedlane_monitor* monitor);
PyObject* get_worker_stats(PyObject* self, PyObject* worker);
PyObject* event(PyObject* self, feedlane_loader* handle);
PyObject* get_info(PyObject* self, feedlane_monitor* monitor);
PyObject* get_timings(PyObject* self, PyObject* worker);
PyObject* diagnose(PyObject* self, feedlane_monitor* monitor);
PyObject* report(PyObject* self, feedlane_monitor* monitor);
// Records as they lie in memory: an array of feedlane_batch_record. They take a seventh of what the dicts do.
PyObject* get_trace(PyObject* self, PyObject* from);
// Its dicts. Static.
PyObject* read_trace(PyObject* none, PyObject* records);

}  // namespace feedlane::python
