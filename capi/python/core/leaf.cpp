// SPDX-License-Identifier: Apache-2.0
// Leaf: a tensor that is to be written into a slot, and where its rows come from.
#include <cstdlib>
#include <cstring>

#include "core.hpp"
#include "dlpack.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* leaf_type;

// A row, and what keeps it.
struct Source {
  const void* data;
  Py_buffer buffer;  // of an array
  PyObject* keeper;  // of a tensor: a capsule, or the tensor itself
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
    Py_XDECREF(leaf.sources[i].keeper);
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

// The rows, one after the other, from `place` on.
void copy_rows(const Leaf& leaf, char* place) {
  if (leaf.row_bytes == 0) return;
  if (leaf.count == 0) std::memcpy(place, leaf.numbers, leaf.row_bytes);
  for (Py_ssize_t i = 0; i < leaf.count; i++)
    std::memcpy(place + static_cast<std::uint64_t>(i) * leaf.row_bytes, leaf.sources[i].data, leaf.row_bytes);
}

PyObject* get_bytes(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(bytes_of(self)); }

PyObject* fill(PyObject* self, PyObject* memory) {
  const Leaf& leaf = *leaf_of(self);
  const std::uint64_t bytes = bytes_of(self);
  Py_buffer buffer;
  if (PyObject_GetBuffer(memory, &buffer, PyBUF_CONTIG) != 0) return nullptr;
  const bool fits = static_cast<std::uint64_t>(buffer.len) == bytes;
  if (fits) copy_rows(leaf, static_cast<char*>(buffer.buf));
  PyBuffer_Release(&buffer);
  if (!fits)
    return PyErr_Format(PyExc_ValueError, "the memory has %zd bytes, but the tensor takes %llu", buffer.len,
                        static_cast<unsigned long long>(bytes));
  Py_RETURN_NONE;
}

PyMethodDef leaf_methods[] = {{"fill", fill, METH_O, "fill(memory): writes it there, which has exactly its bytes."},
                              {nullptr, nullptr, 0, nullptr}};
PyGetSetDef leaf_members[] = {{"dtype", get_dtype, nullptr, "DLPack's code and bits.", nullptr},
                              {"shape", get_shape, nullptr, "In elements.", nullptr},
                              {"nbytes", get_bytes, nullptr, "Its size in bytes.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot leaf_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_leaf)},
                            {Py_tp_getset, leaf_members},
                            {Py_tp_methods, leaf_methods},
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

bool is_dense(const DLTensor& t) {
  std::int64_t stride = 1;
  for (std::int32_t i = t.ndim - 1; t.strides != nullptr && i >= 0; i--) {
    if (t.shape[i] != 1 && t.strides[i] != stride) return false;
    stride *= t.shape[i];
  }
  return true;
}

// Whether DLPack says all of this tensor of torch's. It doesn't say that gradients are wanted, and exports torch's
// integers of less than 8 bits as if they had 8. With an exception: false.
bool is_told_by_dlpack(PyObject* tensor, const feedlane_dtype& dtype) {
  if (dtype.code == 6 || (dtype.code < 2 && dtype.bits != 8)) return true;
  const bool is_integer = dtype.code < 2;
  Ref found(PyObject_GetAttr(tensor, is_integer ? types.name_dtype : types.name_requires_grad));
  return found.get() == (!is_integer ? Py_False : dtype.code == 0 ? types.int8 : types.uint8);
}

// False: it is sparse, on a device, or of a type that DLPack doesn't have. `keeper` keeps what `t` points to.
bool describe(PyObject* tensor, DLTensor& t, PyObject*& keeper) {
  if (types.exchange != nullptr) {
    keeper = Ref::borrow(tensor).release();
    if (types.exchange->dltensor_from_py_object_no_sync(tensor, &t) == 0) return true;
  } else {
    keeper = PyObject_CallFunctionObjArgs(types.to_dlpack, tensor, nullptr);
    void* const managed = keeper != nullptr ? PyCapsule_GetPointer(keeper, "dltensor") : nullptr;
    if (managed != nullptr) {
      t = static_cast<const DLManagedTensor*>(managed)->dl_tensor;
      return true;
    }
  }
  PyErr_Clear();
  return false;
}

}  // namespace

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

Ref tensor_leaf(PyObject* const* tensors, Py_ssize_t count, bool is_stacked) {
  Leaf* const leaf = new_leaf(count);
  Ref made(reinterpret_cast<PyObject*>(leaf));
  for (Py_ssize_t i = 0; made && i < count; i++) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(tensors[i])) != types.tensor()) return {};
    Source& source = leaf->sources[i];
    DLTensor t;
    if (!describe(tensors[i], t, source.keeper)) return {};
    const feedlane_dtype dtype{t.dtype.code, t.dtype.bits, t.dtype.lanes};
    std::uint64_t elements = 1;
    for (std::int32_t d = 0; d < t.ndim; d++) elements *= static_cast<std::uint64_t>(t.shape[d]);
    // A view of a complex tensor's imaginary part may be one to negate, which DLPack doesn't tell; it is never dense.
    const bool may_be_negated = elements == 1 && (dtype.code == 2 || dtype.code == 4);
    // Complex numbers are not ours, nor what DLPack has since 1.1: torch 2.15 exports float8 so.
    const bool is_of_ours = dtype.code <= 6 && dtype.code != 5;
    if (t.device.device_type != 1 || dtype.lanes != 1 || dtype.bits % 8 != 0 || !is_of_ours || may_be_negated ||
        !is_dense(t) || !agree(*leaf, i, dtype, t.ndim, t.shape, elements * dtype.bits / 8, is_stacked) ||
        !is_told_by_dlpack(tensors[i], dtype))
      return {};
    source.data = static_cast<const char*>(t.data) + t.byte_offset;
  }
  return made;
}

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

Place place_of(PyObject* object) {
  if (is_leaf(object)) {
    const Leaf& leaf = *leaf_of(object);
    if (leaf.count != 1) return {};
    return {reinterpret_cast<std::uintptr_t>(leaf.sources[0].data), leaf.row_bytes};
  }
  unsigned long long address = 0, bytes = 0;
  const Ref place(PyObject_GetAttrString(object, "place"));
  if (!place || PyArg_ParseTuple(place.get(), "KK", &address, &bytes) == 0) PyErr_Clear();
  return {static_cast<std::uintptr_t>(address), bytes};
}

std::uint64_t bytes_of(PyObject* object) {
  const Leaf& leaf = *leaf_of(object);
  return leaf.row_bytes * static_cast<std::uint64_t>(leaf.count != 0 ? leaf.count : 1);
}

void write_leaf_to(PyObject* object, char* place) { copy_rows(*leaf_of(object), place); }

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
  copy_rows(leaf, static_cast<char*>(out.data));
  return FEEDLANE_OK;
}

bool add_leaf(PyObject* module) {
  leaf_type = add_type(module, leaf_spec);
  return leaf_type != nullptr;
}

}  // namespace feedlane::python
