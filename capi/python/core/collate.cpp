// SPDX-License-Identifier: Apache-2.0
// Plans (see tree.py) and leaves of samples and of values: what is common by itself, the rest by the package's Python
// code.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "core.hpp"

namespace feedlane::python {
namespace {

// What a value has more than a plan would keep. More is pickled as it is, which is quicker too.
constexpr std::size_t max_depth = 60;  // tree.MAX_DEPTH, less what is around
constexpr std::size_t max_parts = 8192;

// The parts of a value, for Collation::whole.
struct Parts {
  PyObject* unusual = nullptr;  // borrowed; null: nobody asks
  std::size_t depth = 0;
  std::size_t count = 0;
  std::vector<const PyObject*> containers;  // that can be changed

  // With the exception: false.
  bool add(PyObject* value, bool can_change) {
    if (unusual == nullptr) return true;
    count++;
    if (can_change) containers.push_back(value);
    if (depth <= max_depth && count <= max_parts) return true;
    PyErr_SetNone(unusual);
    return false;
  }

  // Whether a list or dict, or the memory of a leaf, is there twice. With the exception: true.
  bool has_twice(PyObject* leaves) {
    if (unusual == nullptr) return false;
    std::sort(containers.begin(), containers.end());
    bool is_twice = std::adjacent_find(containers.begin(), containers.end()) != containers.end();
    std::vector<Place> places;
    const auto add_place = [&places](PyObject* leaf) {
      const Place place = place_of(leaf);
      if (place.bytes != 0) places.push_back(place);
    };
    for (Py_ssize_t i = 0; !is_twice && i < PyList_Size(leaves); i++) {
      PyObject* const leaf = PyList_GetItem(leaves, i);
      add_place(leaf);
      for (Py_ssize_t k = 0; k < packed_count(leaf); k++) add_place(packed_leaf(leaf, k));
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.address < b.address; });
    for (std::size_t i = 1; i < places.size(); i++)
      is_twice = is_twice || places[i].address - places[i - 1].address < places[i - 1].bytes;
    if (is_twice) PyErr_SetNone(unusual);
    return is_twice;
  }
};

struct Collation {
  PyObject* leaves;
  PyObject* fallback;
  Parts* parts = nullptr;

  // The last tensors are collate.Leaves' to deal with: what a batch has more shares one.
  [[nodiscard]] bool is_full() const { return PyList_Size(leaves) >= FEEDLANE_MAX_TENSORS - 1; }

  Ref plan_of(Ref leaf, long owner) const {
    if (is_full()) return Ref(PyObject_CallMethod(leaves, "plan", "Ol", leaf.get(), owner));
    const Py_ssize_t number = PyList_Size(leaves);
    if (PyList_Append(leaves, leaf.get()) != 0) return {};
    return Ref(Py_BuildValue("(lnl)", static_cast<long>(plan_leaf), number, owner));
  }

  Ref by_python(PyObject* value) const {
    look_for_torch();
    return Ref(PyObject_CallFunctionObjArgs(fallback, value, leaves, nullptr));
  }

  // As torch hands them on: the elements of sequences as a tuple, others as a list. Texts come together as that.
  Ref by_python(PyObject* const* samples, Py_ssize_t count, bool are_elements) const {
    Ref all(are_elements ? PyTuple_New(count) : PyList_New(count));
    for (Py_ssize_t i = 0; all && i < count; i++) {
      PyObject* const sample = Ref::borrow(samples[i]).release();
      if ((are_elements ? PyTuple_SetItem : PyList_SetItem)(all.get(), i, sample) != 0) return {};
    }
    return all ? by_python(all.get()) : Ref();
  }

  // are_elements: of sequences.
  Ref batch(PyObject* const* samples, Py_ssize_t count, bool are_elements) const;
  Ref mappings(PyObject* const* samples, Py_ssize_t count, bool are_elements) const;
  Ref sequences(PyObject* const* samples, Py_ssize_t count, bool are_elements) const;
  Ref whole(PyObject* value) const;
  Ref container(PyObject* value, PyObject* keys) const;
};

// The elements at one place of all samples. It owns them: the samples may be changed while they are collated.
class Column {
 public:
  explicit Column(Py_ssize_t count)
      : count_(count),
        objects_(count <= few
                     ? inline_
                     : static_cast<PyObject**>(std::calloc(static_cast<std::size_t>(count), sizeof(PyObject*)))) {
    if (objects_ == nullptr) PyErr_NoMemory();
  }
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;
  ~Column() {
    for (Py_ssize_t i = 0; objects_ != nullptr && i < count_; i++) Py_XDECREF(objects_[i]);
    if (objects_ != inline_) std::free(objects_);
  }
  explicit operator bool() const { return objects_ != nullptr; }
  void set(Py_ssize_t i, PyObject* object) { Ref(std::exchange(objects_[i], Ref::borrow(object).release())); }
  [[nodiscard]] PyObject* const* objects() const { return objects_; }

 private:
  static constexpr Py_ssize_t few = 64;
  Py_ssize_t count_;
  PyObject* inline_[few] = {};
  PyObject** objects_;
};

// Samples and values may be nested as deep as Python's own functions may be.
class Recursion {
 public:
  Recursion() : is_within_(Py_EnterRecursiveCall(" while a batch is collated") == 0) {}
  Recursion(const Recursion&) = delete;
  Recursion& operator=(const Recursion&) = delete;
  ~Recursion() {
    if (is_within_) Py_LeaveRecursiveCall();
  }
  explicit operator bool() const { return is_within_; }

 private:
  bool is_within_;
};

// Whether it is a named tuple.
bool has_fields(PyObject* tuple) {
  const Ref fields(PyObject_GetAttrString(tuple, "_fields"));
  PyErr_Clear();
  return fields && PyTuple_Check(fields.get()) != 0 && PyTuple_Size(fields.get()) == PyTuple_Size(tuple);
}

// Whether the instance has attributes.
bool has_attributes(PyObject* value) {
  const Ref attributes(PyObject_GetAttrString(value, "__dict__"));
  PyErr_Clear();
  return attributes && PyDict_Check(attributes.get()) != 0 && PyDict_Size(attributes.get()) != 0;
}

Ref Collation::batch(PyObject* const* samples, Py_ssize_t count, bool are_elements) const {
  const Recursion recursion;
  if (!recursion) return {};
  PyObject* const first = samples[0];
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(first));
  Ref leaf;
  const bool is_container = PyDict_CheckExact(first) || PyTuple_CheckExact(first) || PyList_CheckExact(first);
  if (is_full() && !is_container) return by_python(samples, count, are_elements);
  if (type == types.ndarray) leaf = array_leaf(samples, count, true);
  else if (PyFloat_CheckExact(first) || PyLong_CheckExact(first) || PyBool_Check(first))
    leaf = number_leaf(samples, count);
  else if (types.tensor() != nullptr && type == types.tensor()) leaf = tensor_leaf(samples, count, true);
  else if (PyDict_CheckExact(first)) return mappings(samples, count, are_elements);
  else if (PyTuple_CheckExact(first) || PyList_CheckExact(first)) return sequences(samples, count, are_elements);
  if (leaf) return plan_of(std::move(leaf), owner_any);
  return PyErr_Occurred() != nullptr ? Ref() : by_python(samples, count, are_elements);
}

Ref Collation::mappings(PyObject* const* samples, Py_ssize_t count, bool are_elements) const {
  for (Py_ssize_t i = 0; i < count; i++)
    if (!PyDict_CheckExact(samples[i])) return by_python(samples, count, are_elements);
  Ref keys(PySequence_Tuple(samples[0]));
  const Py_ssize_t length = keys ? PyTuple_Size(keys.get()) : 0;
  Ref children(keys ? PyTuple_New(length) : nullptr);
  Column column(count);
  for (Py_ssize_t k = 0; children && column && k < length; k++) {
    for (Py_ssize_t i = 0; i < count; i++) {
      PyObject* const value = PyDict_GetItemWithError(samples[i], PyTuple_GetItem(keys.get(), k));
      if (value == nullptr) {
        if (PyErr_Occurred() == nullptr) PyErr_SetObject(PyExc_KeyError, PyTuple_GetItem(keys.get(), k));
        return {};
      }
      column.set(i, value);
    }
    Ref child = batch(column.objects(), count, false);
    if (!child) return {};
    PyTuple_SetItem(children.get(), k, child.release());
  }
  if (!children || !column) return {};
  return Ref(Py_BuildValue("(lO{}O)", static_cast<long>(plan_mapping), keys.get(), children.get()));
}

Ref Collation::sequences(PyObject* const* samples, Py_ssize_t count, bool are_elements) const {
  const Py_ssize_t length = PySequence_Size(samples[0]);
  for (Py_ssize_t i = 0; i < count; i++)
    if (Py_TYPE(samples[i]) != Py_TYPE(samples[0]) || PySequence_Size(samples[i]) != length)
      return by_python(samples, count, are_elements);
  const bool are_tuples = PyTuple_CheckExact(samples[0]);
  Ref children(PyTuple_New(length));
  Column column(count);
  for (Py_ssize_t k = 0; children && column && k < length; k++) {
    for (Py_ssize_t i = 0; i < count; i++) {
      PyObject* const value = are_tuples ? PyTuple_GetItem(samples[i], k) : PyList_GetItem(samples[i], k);
      if (value == nullptr) return {};  // a list that has become shorter
      column.set(i, value);
    }
    Ref child = batch(column.objects(), count, true);
    if (!child) return {};
    PyTuple_SetItem(children.get(), k, child.release());
  }
  if (!children || !column) return {};
  return Ref(Py_BuildValue("(lO)", static_cast<long>(plan_list), children.get()));
}

Ref Collation::whole(PyObject* value) const {
  const Recursion recursion;
  if (!recursion) return {};
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  const bool is_dict = PyDict_CheckExact(value), is_list = PyList_CheckExact(value);
  if (!parts->add(value, is_dict || is_list)) return {};
  // A tensor in a shared one would view the storage of all: it is pickled, if that is allowed.
  if (is_full() && type == types.tensor()) return by_python(value);
  if (type == types.ndarray)
    if (Ref leaf = array_leaf(&value, 1, false)) return plan_of(std::move(leaf), owner_numpy);
  if (types.tensor() != nullptr && type == types.tensor())
    if (Ref leaf = tensor_leaf(&value, 1, false)) return plan_of(std::move(leaf), owner_torch);
  if (PyErr_Occurred() != nullptr) return {};
  if (!is_dict && !is_list && PyTuple_Check(value) == 0) return by_python(value);
  const bool is_named = PyTuple_Check(value) != 0 && !PyTuple_CheckExact(value);
  if (is_named && (!has_fields(value) || (parts->unusual != nullptr && has_attributes(value)))) return by_python(value);
  Ref keys(is_dict ? PySequence_Tuple(value) : nullptr);
  if (is_dict && !keys) return {};
  parts->depth++;
  Ref children = container(value, keys.get());
  parts->depth--;
  if (!children) return {};
  if (is_dict) return Ref(Py_BuildValue("(lO{}O)", static_cast<long>(plan_mapping), keys.get(), children.get()));
  if (is_named) return Ref(Py_BuildValue("(lOO)", static_cast<long>(plan_named), type, children.get()));
  return Ref(Py_BuildValue("(lO)", static_cast<long>(is_list ? plan_list : plan_tuple), children.get()));
}

// The plans of a dict's values, by its keys, or of a sequence's elements.
Ref Collation::container(PyObject* value, PyObject* keys) const {
  const bool is_tuple = PyTuple_Check(value) != 0;
  const Py_ssize_t length = keys != nullptr ? PyTuple_Size(keys) : is_tuple ? PyTuple_Size(value) : PyList_Size(value);
  Ref children(PyTuple_New(length));
  for (Py_ssize_t i = 0; children && i < length; i++) {
    PyObject* const item = keys != nullptr ? PyDict_GetItemWithError(value, PyTuple_GetItem(keys, i))
                           : is_tuple      ? PyTuple_GetItem(value, i)
                                           : PyList_GetItem(value, i);
    if (item == nullptr && PyErr_Occurred() == nullptr)
      PyErr_SetObject(PyExc_KeyError, PyTuple_GetItem(keys, i));  // it has gone meanwhile
    const Ref kept = Ref::borrow(item);
    Ref child = kept ? whole(kept.get()) : Ref();
    if (!child) return {};
    PyTuple_SetItem(children.get(), i, child.release());
  }
  return children;
}

// Whether the attribute is a number of at least this value.
bool has_at_least(PyObject* object, const char* name, long least) {
  const Ref attribute(PyObject_GetAttrString(object, name));
  const long value = attribute ? PyLong_AsLong(attribute.get()) : -1;
  PyErr_Clear();
  return value >= least;
}

// NULL without an exception: it is not for a leaf.
Ref stacked(PyObject* samples, const Collation& collation) {
  if (collation.is_full()) return {};
  const bool is_array = reinterpret_cast<PyObject*>(Py_TYPE(samples)) == types.ndarray;
  Ref leaf = is_array ? array_leaf(&samples, 1, false) : tensor_leaf(&samples, 1, false);
  return leaf ? collation.plan_of(std::move(leaf), owner_any) : Ref();
}

}  // namespace

bool is_stacked(PyObject* samples) {
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(samples));
  const bool is_array = type == types.ndarray, is_tensor = types.tensor() != nullptr && type == types.tensor();
  return (is_array || (is_tensor && !has_at_least(samples, "requires_grad", 1))) && has_at_least(samples, "ndim", 2) &&
         PySequence_Size(samples) > 0;
}

PyObject* is_stacked_of(PyObject*, PyObject* samples) {
  look_for_torch();
  return PyBool_FromLong(is_stacked(samples) ? 1 : 0);
}

Ref collate_batch(PyObject* samples, PyObject* leaves, PyObject* fallback) {
  if (is_stacked(samples)) {
    if (Ref plan = stacked(samples, Collation{leaves, fallback}); plan || PyErr_Occurred() != nullptr) return plan;
    const Ref rows(PySequence_List(samples));
    return rows ? collate_batch(rows.get(), leaves, fallback) : Ref();
  }
  const bool is_tuple = PyTuple_Check(samples) != 0;
  const Py_ssize_t count = PySequence_Size(samples);
  if (count == 0) PyErr_SetString(PyExc_IndexError, "a batch has no samples");
  if (count <= 0) return {};
  Column column(count);
  for (Py_ssize_t i = 0; column && i < count; i++)
    column.set(i, is_tuple ? PyTuple_GetItem(samples, i) : PyList_GetItem(samples, i));
  return column ? Collation{leaves, fallback}.batch(column.objects(), count, is_tuple) : Ref();
}

PyObject* collate_batch_of(PyObject*, PyObject* args) {
  PyObject *samples = nullptr, *leaves = nullptr, *fallback = nullptr;
  if (PyArg_ParseTuple(args, "OO!O:collate_batch", &samples, &PyList_Type, &leaves, &fallback) == 0) return nullptr;
  look_for_torch();
  if (PyTuple_Check(samples) == 0 && PyList_Check(samples) == 0 && !is_stacked(samples))
    return PyErr_Format(PyExc_TypeError, "samples must be a list, a tuple, or an array of rows");
  return collate_batch(samples, leaves, fallback).release();
}

PyObject* collate_whole(PyObject*, PyObject* args) {
  PyObject *value = nullptr, *leaves = nullptr, *fallback = nullptr, *unusual = nullptr;
  if (PyArg_ParseTuple(args, "OO!OO:collate_whole", &value, &PyList_Type, &leaves, &fallback, &unusual) == 0)
    return nullptr;
  look_for_torch();
  try {
    Parts parts;
    parts.unusual = unusual != Py_None ? unusual : nullptr;
    Ref plan = Collation{leaves, fallback, &parts}.whole(value);
    return plan && !parts.has_twice(leaves) ? plan.release() : nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace feedlane::python
