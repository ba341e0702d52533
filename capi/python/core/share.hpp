// SPDX-License-Identifier: Apache-2.0
// Feeders and consumers of a shared loader: methods of Loader, see the table in loader.cpp. Each raises by `refuse` or
// `check`.
#pragma once

#include "core.hpp"

namespace feedlane::python {

PyObject* open_consumer(PyObject* self, PyObject* args);
PyObject* serve(PyObject* self, PyObject* timeout_ns);
PyObject* attend(PyObject* self, PyObject* timeout_ns);
PyObject* get_consumer(PyObject* self, PyObject* nth);
// Static.
PyObject* join(PyObject* none, PyObject* args);

}  // namespace feedlane::python
