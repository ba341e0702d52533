// SPDX-License-Identifier: Apache-2.0
// Leaf: a tensor that is to be written into a slot, and where its rows come from. `collate` makes plans (see tree.py) and
// leaves of samples: what is common by itself, the rest by the package's Python code.
#include <cstdlib>
#include <cstring>

#include "arena/dlpack_abi.hpp"
#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* leaf_type;

// A row, and what keeps it.
struct Source {
  const void* data;
  Py_buffer buffer;   // of an array
  PyObject* capsule;  // of a tensor
};

struct Leaf {
  PyObject_HEAD feedlane_dtype dtype;
  std::int32_t ndim;
  std::int64_t shape[FEEDLANE_MAX_NDIM];
  std::uint64_t row_bytes;
  Py_ssize_t count;  // of sources, or 0: the values are in `numbers`
  Source* sources;
  char* numbers;
};

Leaf* leaf_of(PyObject* self) { return reinterpret_cast<Leaf*>(self); }

void free_leaf(PyObject* self) {
  Leaf& leaf = *leaf_of(self);
  for (Py_ssize_t i = 0; i < leaf.count; i++) {
    if (leaf.sources[i].buffer.obj != nullptr) PyBuffer_Release(&leaf.sources[i].buffer);
    Py_XDECREF(leaf.sources[i].capsule);
  }
  std::free(leaf.sources);
  std::free(leaf.numbers);
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

// For maker.Maker: as collate.Leaf has them.
PyObject* get_dtype(PyObject* self, void*) {
  return Py_BuildValue("(ii)", leaf_of(self)->dtype.code, leaf_of(self)->dtype.bits);
}

PyObject* get_shape(PyObject* self, void*) { return shape_of(leaf_of(self)->shape, leaf_of(self)->ndim).release(); }

PyGetSetDef leaf_members[] = {{"dtype", get_dtype, nullptr, "DLPack's code and bits.", nullptr},
                              {"shape", get_shape, nullptr, "In elements.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot leaf_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_leaf)},
                            {Py_tp_getset, leaf_members},
                            {Py_tp_doc, const_cast<char*>("A tensor to be: dtype, shape, and where its rows lie.")},
                            {0, nullptr}};
PyType_Spec leaf_spec = {"feedlane._core.Leaf", sizeof(Leaf), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         leaf_slots};

Leaf* new_leaf(Py_ssize_t sources) {
  auto* const leaf = PyObject_New(Leaf, leaf_type);
  if (leaf == nullptr) return nullptr;
  std::memset(&leaf->dtype, 0, sizeof *leaf - offsetof(Leaf, dtype));
  if (sources == 0) return leaf;
  leaf->sources = static_cast<Source*>(std::calloc(static_cast<std::size_t>(sources), sizeof(Source)));
  leaf->count = leaf->sources != nullptr ? sources : 0;
  if (leaf->sources != nullptr) return leaf;
  Py_DECREF(reinterpret_cast<PyObject*>(leaf));
  PyErr_NoMemory();
  return nullptr;
}

// ---- element types ----

// Of a buffer's format in native byte order. Code 255: none that a tensor can be of.
feedlane_dtype dtype_of(const Py_buffer& buffer) {
  const char* f = buffer.format != nullptr ? buffer.format : "B";
  const bool is_complex = *f == 'Z';
  if (is_complex) f++;
  feedlane_dtype dtype{255, static_cast<std::uint8_t>(buffer.itemsize * 8), 1};
  if (f[0] == '\0' || f[1] != '\0' || buffer.itemsize > 16) return dtype;
  if (is_complex) dtype.code = std::strchr("fd", *f) != nullptr ? 5 : 255;
  else if (*f == '?') dtype.code = 6;
  else if (std::strchr("bhilq", *f) != nullptr) dtype.code = 0;
  else if (std::strchr("BHILQ", *f) != nullptr) dtype.code = 1;
  else if (std::strchr("efd", *f) != nullptr) dtype.code = 2;
  return dtype;
}

bool same(const feedlane_dtype& a, const feedlane_dtype& b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

// ---- leaves ----

// How a leaf's first source says what all must be. False: another one, or too many dimensions.
bool agree(Leaf& leaf, Py_ssize_t position, const feedlane_dtype& dtype, std::int32_t ndim, const std::int64_t* shape,
           std::uint64_t bytes, bool is_stacked) {
  const std::int32_t lead = is_stacked ? 1 : 0;
  if (position == 0) {
    if (ndim + lead > FEEDLANE_MAX_NDIM) return false;
    leaf.dtype = dtype;
    leaf.ndim = ndim + lead;
    leaf.row_bytes = bytes;
    if (is_stacked) leaf.shape[0] = leaf.count;
    for (std::int32_t i = 0; i < ndim; i++) leaf.shape[lead + i] = shape[i];
    return true;
  }
  bool is_same = same(leaf.dtype, dtype) && leaf.ndim == ndim + lead;
  for (std::int32_t i = 0; is_same && i < ndim; i++) is_same = leaf.shape[lead + i] == shape[i];
  return is_same;
}

// A null Ref without an exception, here and below: the Python code is asked.
Ref array_leaf(PyObject* const* arrays, Py_ssize_t count, bool is_stacked) {
  Leaf* const leaf = new_leaf(count);
  Ref made(reinterpret_cast<PyObject*>(leaf));
  for (Py_ssize_t i = 0; made && i < count; i++) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(arrays[i])) != types.ndarray) return {};
    Source& source = leaf->sources[i];
    if (PyObject_GetBuffer(arrays[i], &source.buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();  // another layout, or a type that buffers don't have
      source.buffer.obj = nullptr;
      return {};
    }
    const Py_buffer& b = source.buffer;
    const feedlane_dtype dtype = dtype_of(b);
    static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
    if (dtype.code == 255 || !agree(*leaf, i, dtype, b.ndim, reinterpret_cast<const std::int64_t*>(b.shape),
                                    static_cast<std::uint64_t>(b.len), is_stacked))
      return {};
    source.data = b.buf;
  }
  return made;
}

bool is_dense(const DLTensor& t) {
  std::int64_t stride = 1;
  for (std::int32_t i = t.ndim - 1; t.strides != nullptr && i >= 0; i--) {
    if (t.shape[i] != 1 && t.strides[i] != stride) return false;
    stride *= t.shape[i];
  }
  return true;
}

// More are quicker by one torch.stack.
constexpr Py_ssize_t max_tensors_by_one = 16;

Ref tensor_leaf(PyObject* const* tensors, Py_ssize_t count, bool is_stacked) {
  if (count > max_tensors_by_one) return {};
  Leaf* const leaf = new_leaf(count);
  Ref made(reinterpret_cast<PyObject*>(leaf));
  for (Py_ssize_t i = 0; made && i < count; i++) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(tensors[i])) != types.tensor) return {};
    Source& source = leaf->sources[i];
    source.capsule = PyObject_CallFunctionObjArgs(types.to_dlpack, tensors[i], nullptr);
    void* const managed = source.capsule != nullptr ? PyCapsule_GetPointer(source.capsule, "dltensor") : nullptr;
    if (managed == nullptr) {
      PyErr_Clear();  // sparse, on a device, of a type that DLPack doesn't have
      return {};
    }
    const DLTensor& t = static_cast<const DLManagedTensor*>(managed)->dl_tensor;
    const feedlane_dtype dtype{t.dtype.code, t.dtype.bits, t.dtype.lanes};
    std::uint64_t elements = 1;
    for (std::int32_t d = 0; d < t.ndim; d++) elements *= static_cast<std::uint64_t>(t.shape[d]);
    // A view of a complex tensor's imaginary part may be one to negate, which DLPack doesn't tell; it is never dense.
    const bool may_be_negated = elements == 1 && (dtype.code == 2 || dtype.code == 4);
    // Complex numbers are not ours, nor what DLPack has since 1.1: torch 2.15 exports float8 so.
    const bool is_of_ours = dtype.code <= 6 && dtype.code != 5;
    if (t.device.device_type != 1 || dtype.lanes != 1 || dtype.bits % 8 != 0 || !is_of_ours || may_be_negated ||
        !is_dense(t) || !agree(*leaf, i, dtype, t.ndim, t.shape, elements * dtype.bits / 8, is_stacked))
      return {};
    source.data = static_cast<const char*>(t.data) + t.byte_offset;
  }
  return made;
}

// One number a sample: all of one of Python's own types.
Ref number_leaf(PyObject* const* numbers, Py_ssize_t count) {
  Leaf* const leaf = new_leaf(0);
  Ref made(reinterpret_cast<PyObject*>(leaf));
  if (!made) return made;
  const bool is_float = PyFloat_CheckExact(numbers[0]), is_bool = PyBool_Check(numbers[0]);
  const std::size_t item = is_bool ? 1 : 8;
  leaf->dtype = {static_cast<std::uint8_t>(is_bool ? 6 : is_float ? 2 : 0), static_cast<std::uint8_t>(item * 8), 1};
  leaf->ndim = 1;
  leaf->shape[0] = count;
  leaf->row_bytes = static_cast<std::uint64_t>(count) * item;
  leaf->numbers = static_cast<char*>(std::malloc(static_cast<std::size_t>(count) * item));
  if (leaf->numbers == nullptr) return Ref(PyErr_NoMemory());
  for (Py_ssize_t i = 0; i < count; i++) {
    if (Py_TYPE(numbers[i]) != Py_TYPE(numbers[0])) return {};
    char* const place = leaf->numbers + static_cast<std::size_t>(i) * item;
    if (is_float) {
      const double value = PyFloat_AsDouble(numbers[i]);
      std::memcpy(place, &value, sizeof value);
    } else if (is_bool) {
      *place = numbers[i] == Py_True ? 1 : 0;
    } else {
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(numbers[i], &overflow);
      if (overflow != 0) return {};
      std::memcpy(place, &value, sizeof value);
    }
  }
  return made;
}

// ---- plans ----

struct Collation {
  PyObject* leaves;
  PyObject* fallback;

  // The last tensors are collate.Leaves' to deal with: more than a batch has share one.
  [[nodiscard]] bool is_full() const { return PyList_Size(leaves) >= FEEDLANE_MAX_TENSORS - 1; }

  Ref plan_of(Ref leaf, long owner) const {
    const Py_ssize_t number = PyList_Size(leaves);
    if (PyList_Append(leaves, leaf.get()) != 0) return {};
    return Ref(Py_BuildValue("(lnl)", static_cast<long>(plan_leaf), number, owner));
  }

  Ref by_python(PyObject* value) const {
    look_for_torch();
    return Ref(PyObject_CallFunctionObjArgs(fallback, value, leaves, nullptr));
  }

  Ref by_python(PyObject* const* samples, Py_ssize_t count) const {
    Ref all(PyList_New(count));
    for (Py_ssize_t i = 0; all && i < count; i++) {
      Py_INCREF(samples[i]);
      PyList_SetItem(all.get(), i, samples[i]);
    }
    return all ? by_python(all.get()) : Ref();
  }

  Ref batch(PyObject* const* samples, Py_ssize_t count) const;
  Ref mappings(PyObject* const* samples, Py_ssize_t count) const;
  Ref sequences(PyObject* const* samples, Py_ssize_t count) const;
  Ref whole(PyObject* value) const;
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

Ref Collation::batch(PyObject* const* samples, Py_ssize_t count) const {
  const Recursion recursion;
  if (!recursion) return {};
  PyObject* const first = samples[0];
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(first));
  Ref leaf;
  const bool is_container = PyDict_CheckExact(first) || PyTuple_CheckExact(first) || PyList_CheckExact(first);
  if (is_full() && !is_container) return by_python(samples, count);
  if (type == types.ndarray) leaf = array_leaf(samples, count, true);
  else if (PyFloat_CheckExact(first) || PyLong_CheckExact(first) || PyBool_Check(first))
    leaf = number_leaf(samples, count);
  else if (types.tensor != nullptr && type == types.tensor) leaf = tensor_leaf(samples, count, true);
  else if (PyDict_CheckExact(first)) return mappings(samples, count);
  else if (PyTuple_CheckExact(first) || PyList_CheckExact(first)) return sequences(samples, count);
  if (leaf) return plan_of(std::move(leaf), owner_any);
  return PyErr_Occurred() != nullptr ? Ref() : by_python(samples, count);
}

Ref Collation::mappings(PyObject* const* samples, Py_ssize_t count) const {
  for (Py_ssize_t i = 0; i < count; i++)
    if (!PyDict_CheckExact(samples[i])) return by_python(samples, count);
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
    Ref child = batch(column.objects(), count);
    if (!child) return {};
    PyTuple_SetItem(children.get(), k, child.release());
  }
  if (!children || !column) return {};
  return Ref(Py_BuildValue("(lO{}O)", static_cast<long>(plan_mapping), keys.get(), children.get()));
}

Ref Collation::sequences(PyObject* const* samples, Py_ssize_t count) const {
  const Py_ssize_t length = PySequence_Size(samples[0]);
  for (Py_ssize_t i = 0; i < count; i++)
    if (Py_TYPE(samples[i]) != Py_TYPE(samples[0]) || PySequence_Size(samples[i]) != length)
      return by_python(samples, count);
  const bool are_tuples = PyTuple_CheckExact(samples[0]);
  Ref children(PyTuple_New(length));
  Column column(count);
  for (Py_ssize_t k = 0; children && column && k < length; k++) {
    for (Py_ssize_t i = 0; i < count; i++) {
      PyObject* const value = are_tuples ? PyTuple_GetItem(samples[i], k) : PyList_GetItem(samples[i], k);
      if (value == nullptr) return {};  // a list that has become shorter
      column.set(i, value);
    }
    Ref child = batch(column.objects(), count);
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
  if (is_full() && (type == types.ndarray || type == types.tensor)) return by_python(value);
  if (type == types.ndarray)
    if (Ref leaf = array_leaf(&value, 1, false)) return plan_of(std::move(leaf), owner_numpy);
  if (types.tensor != nullptr && type == types.tensor)
    if (Ref leaf = tensor_leaf(&value, 1, false)) return plan_of(std::move(leaf), owner_torch);
  if (PyErr_Occurred() != nullptr) return {};
  const bool is_tuple = PyTuple_CheckExact(value), is_dict = PyDict_CheckExact(value);
  if (!is_tuple && !is_dict && !PyList_CheckExact(value)) return by_python(value);
  Ref keys(is_dict ? PySequence_Tuple(value) : nullptr);
  if (is_dict && !keys) return {};
  const Py_ssize_t length = PyObject_Size(value);
  Ref children(PyTuple_New(length));
  for (Py_ssize_t i = 0; children && i < length; i++) {
    PyObject* const item = is_dict    ? PyDict_GetItemWithError(value, PyTuple_GetItem(keys.get(), i))
                           : is_tuple ? PyTuple_GetItem(value, i)
                                      : PyList_GetItem(value, i);
    if (item == nullptr && PyErr_Occurred() == nullptr)
      PyErr_SetObject(PyExc_KeyError, PyTuple_GetItem(keys.get(), i));  // it has gone meanwhile
    const Ref kept = Ref::borrow(item);
    Ref child = kept ? whole(kept.get()) : Ref();
    if (!child) return {};
    PyTuple_SetItem(children.get(), i, child.release());
  }
  if (!children) return {};
  if (is_dict) return Ref(Py_BuildValue("(lO{}O)", static_cast<long>(plan_mapping), keys.get(), children.get()));
  return Ref(Py_BuildValue("(lO)", static_cast<long>(is_tuple ? plan_tuple : plan_list), children.get()));
}

}  // namespace

Ref collate_batch(PyObject* const* samples, Py_ssize_t count, PyObject* leaves, PyObject* fallback) {
  return Collation{leaves, fallback}.batch(samples, count);
}

Ref collate_whole(PyObject* value, PyObject* leaves, PyObject* fallback) {
  return Collation{leaves, fallback}.whole(value);
}

bool is_leaf(PyObject* object) { return Py_TYPE(object) == leaf_type; }

std::int32_t write_leaf(PyObject* object, const feedlane_task* task, std::int32_t number, const char* name) {
  const Leaf& leaf = *leaf_of(object);
  auto field = init<feedlane_field>();
  field.name = name;
  field.dtype = leaf.dtype;
  field.ndim = leaf.ndim;
  std::memcpy(field.shape, leaf.shape, sizeof field.shape);
  feedlane_tensor out;
  if (const std::int32_t s = feedlane_task_tensor(task, number, &field, &out, error_room()); s != FEEDLANE_OK) return s;
  if (leaf.row_bytes == 0) return FEEDLANE_OK;
  auto* const place = static_cast<char*>(out.data);
  if (leaf.count == 0) std::memcpy(place, leaf.numbers, leaf.row_bytes);
  for (Py_ssize_t i = 0; i < leaf.count; i++)
    std::memcpy(place + static_cast<std::uint64_t>(i) * leaf.row_bytes, leaf.sources[i].data, leaf.row_bytes);
  return FEEDLANE_OK;
}

bool add_leaf(PyObject* module) {
  leaf_type = add_type(module, leaf_spec);
  return leaf_type != nullptr;
}

}  // namespace feedlane::python
