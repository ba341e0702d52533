// SPDX-License-Identifier: Apache-2.0
// Structs of feedlane.h as dicts: a table names the members that Python sees, or sets, and how.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {

// A member of a Struct. `set` is null where Python only reads it. False or null: with an exception.
template <typename Struct>
struct Member {
  const char* name;
  PyObject* (*get)(const Struct&);
  bool (*set)(Struct&, PyObject*);
  std::size_t offset, bytes;
  bool is_signed;
};

// ---- one value ----

template <std::size_t Size>
PyObject* to_python(const char (&text)[Size]) {
  return PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(strnlen(text, Size)), "replace");
}

inline PyObject* to_python(const feedlane_histogram& h) {
  Ref buckets = list_of(h.buckets, FEEDLANE_HISTOGRAM_BUCKETS);
  return buckets ? Py_BuildValue("{sKsKsO}", "count", static_cast<unsigned long long>(h.count), "sum_ns",
                                 static_cast<unsigned long long>(h.sum_ns), "buckets", buckets.get())
                 : nullptr;
}

inline PyObject* to_python(const feedlane_percentiles& p) {
  return Py_BuildValue("{sKsKsK}", "p50_ns", static_cast<unsigned long long>(p.p50_ns), "p90_ns",
                       static_cast<unsigned long long>(p.p90_ns), "p99_ns", static_cast<unsigned long long>(p.p99_ns));
}

// OverflowError beyond the type's range, TypeError for what is no integer.
template <typename Integer>
bool from_python(PyObject* object, const char* name, Integer& value) {
  Ref index(PyNumber_Index(object));
  if (!index) return false;
  if constexpr (std::is_signed_v<Integer>) {
    const long long wide = PyLong_AsLongLong(index.get());
    if (wide == -1 && PyErr_Occurred() != nullptr) return false;
    value = static_cast<Integer>(wide);
    if (value == wide) return true;
  } else {
    const unsigned long long wide = PyLong_AsUnsignedLongLong(index.get());
    if (wide == std::numeric_limits<unsigned long long>::max() && PyErr_Occurred() != nullptr) return false;
    value = static_cast<Integer>(wide);
    if (value == wide) return true;
  }
  PyErr_Format(PyExc_OverflowError, "%s=%R: must be an integer of %zu bits", name, object, sizeof(Integer) * 8);
  return false;
}

// ---- a struct ----

template <typename Struct, typename Value>
constexpr Struct struct_of(Value Struct::*);

// Of the member that `member` points to, an integer or a text.
template <auto member>
Member<decltype(struct_of(member))> member_of(const char* name) {
  using Struct = decltype(struct_of(member));
  using Value = std::remove_reference_t<decltype(std::declval<Struct&>().*member)>;
  static const Struct probe{};
  const auto offset =
      static_cast<std::size_t>(reinterpret_cast<const char*>(&(probe.*member)) - reinterpret_cast<const char*>(&probe));
  Member<Struct> m{name,          [](const Struct& s) { return to_python(s.*member); },
                   nullptr,       offset,
                   sizeof(Value), std::is_signed_v<Value>};
  if constexpr (std::is_integral_v<Value>)
    m.set = [](Struct& s, PyObject* object) { return from_python(object, "a field", s.*member); };
  return m;
}

template <typename Struct>
Ref dict_of(const Struct& value, std::span<const Member<Struct>> members) {
  Ref all(PyDict_New());
  for (const Member<Struct>& m : members) {
    Ref object(all ? m.get(value) : nullptr);
    if (!object || PyDict_SetItemString(all.get(), m.name, object.get()) != 0) return {};
  }
  return all;
}

// Sets the members that `dict` names. TypeError: there is no such member.
template <typename Struct>
bool set_members(Struct& value, PyObject* dict, std::span<const Member<Struct>> members) {
  PyObject *key = nullptr, *object = nullptr;  // borrowed
  for (Py_ssize_t position = 0; dict != nullptr && PyDict_Next(dict, &position, &key, &object) != 0;) {
    const auto found = std::find_if(members.begin(), members.end(), [&](const Member<Struct>& m) {
      return PyUnicode_CompareWithASCIIString(key, m.name) == 0;
    });
    if (found == members.end() || found->set == nullptr) {
      PyErr_Format(PyExc_TypeError, "no such field: %R", key);
      return false;
    }
    if (!found->set(value, object)) {
      if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0)
        PyErr_Format(PyExc_OverflowError, "%U=%R: must be an integer of %zu bits%s", key, object, found->bytes * 8,
                     found->is_signed ? "" : ", 0 or more");
      return false;
    }
  }
  return true;
}

// {name: (offset, bytes)}, for the test that compares it with the record of the interface.
template <typename Struct>
Ref layout_of(std::span<const Member<Struct>> members) {
  Ref all(PyDict_New());
  for (const Member<Struct>& m : members) {
    Ref place(all ? Py_BuildValue("(nn)", static_cast<Py_ssize_t>(m.offset), static_cast<Py_ssize_t>(m.bytes))
                  : nullptr);
    if (!place || PyDict_SetItemString(all.get(), m.name, place.get()) != 0) return {};
  }
  return all;
}

}  // namespace feedlane::python
