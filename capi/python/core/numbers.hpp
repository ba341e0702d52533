// SPDX-License-Identifier: Apache-2.0
// Integers of feedlane.h, lists and tuples of them, and a field's element type and shape, to and from Python.
#pragma once

#include <algorithm>

#include "core.hpp"

namespace feedlane::python {

inline PyObject* to_python(std::int32_t value) { return PyLong_FromLong(value); }
inline PyObject* to_python(std::uint32_t value) { return PyLong_FromUnsignedLong(value); }
inline PyObject* to_python(std::int64_t value) { return PyLong_FromLongLong(value); }
inline PyObject* to_python(std::uint64_t value) { return PyLong_FromUnsignedLongLong(value); }

template <PyObject* (*make)(Py_ssize_t), int (*set)(PyObject*, Py_ssize_t, PyObject*), typename Integer>
Ref sequence_of(const Integer* numbers, std::uint64_t count) {
  Ref all(make(static_cast<Py_ssize_t>(count)));
  for (std::uint64_t i = 0; all && i < count; i++) {
    PyObject* const number = to_python(numbers[i]);
    if (number == nullptr || set(all.get(), static_cast<Py_ssize_t>(i), number) != 0) return {};
  }
  return all;
}

// A list of `count` integers. Null with an exception.
template <typename Integer>
Ref list_of(const Integer* numbers, std::uint64_t count) {
  return sequence_of<PyList_New, PyList_SetItem>(numbers, count);
}

// A shape as a tuple of `ndim` lengths. Null with an exception.
inline Ref shape_of(const std::int64_t* lengths, std::int32_t ndim) {
  return sequence_of<PyTuple_New, PyTuple_SetItem>(lengths, static_cast<std::uint64_t>(ndim));
}

// Sets a field's element type, DLPack's code and bits, and its shape, a tuple of integers. A tuple that is too long is
// left to the library to refuse: its ndim says so. False with an exception.
inline bool set_type(feedlane_field& field, int code, int bits, PyObject* shape) {
  field.dtype = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  field.ndim = static_cast<std::int32_t>(std::min<Py_ssize_t>(PyTuple_Size(shape), FEEDLANE_MAX_NDIM + 1));
  for (std::int32_t i = 0; i < std::min(field.ndim, FEEDLANE_MAX_NDIM); i++) {
    field.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (field.shape[i] == -1 && PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

}  // namespace feedlane::python
