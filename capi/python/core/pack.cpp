// SPDX-License-Identifier: Apache-2.0
// Pack: leaves stored one after the other in a tensor of bytes, because a batch has only so many tensors.
#include <new>
#include <vector>

#include "core.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* pack_type;

constexpr std::uint64_t alignment = 64;
constexpr std::uint64_t most = std::uint64_t{1} << 62;

struct Part {
  Ref leaf;  // a Leaf, or a collate.Leaf
  std::uint64_t offset;
  std::uint64_t bytes;
};

struct Pack {
  PyObject_HEAD std::vector<Part>* parts;
};

std::vector<Part>& parts_of(PyObject* self) { return *reinterpret_cast<Pack*>(self)->parts; }

std::uint64_t size_of(const std::vector<Part>& parts) {
  return parts.empty() ? 0 : parts.back().offset + parts.back().bytes;
}

PyObject* new_pack(PyTypeObject* type, PyObject* args, PyObject*) {
  if (PyArg_ParseTuple(args, ":Pack") == 0) return nullptr;
  auto* const pack = new_object<Pack>(type);
  if (pack == nullptr) return nullptr;
  pack->parts = new (std::nothrow) std::vector<Part>;
  Ref made(reinterpret_cast<PyObject*>(pack));
  return pack->parts != nullptr ? made.release() : PyErr_NoMemory();
}

void free_pack(PyObject* self) {
  delete reinterpret_cast<Pack*>(self)->parts;
  free_object(self);
}

// False with an exception.
bool find_bytes(PyObject* leaf, std::uint64_t& bytes) {
  if (is_leaf(leaf)) {
    bytes = bytes_of(leaf);
    return true;
  }
  const Ref found(PyObject_GetAttrString(leaf, "nbytes"));
  bytes = found ? PyLong_AsUnsignedLongLong(found.get()) : 0;
  return PyErr_Occurred() == nullptr;
}

PyObject* add(PyObject* self, PyObject* leaf) {
  std::uint64_t bytes = 0;
  if (!find_bytes(leaf, bytes)) return nullptr;
  std::vector<Part>& parts = parts_of(self);
  const std::uint64_t offset = (size_of(parts) + alignment - 1) / alignment * alignment;
  if (bytes > most - offset)
    return PyErr_Format(PyExc_OverflowError, "the arrays of a batch take more than 2^62 bytes");
  try {
    parts.push_back({Ref::borrow(leaf), offset, bytes});
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return PyLong_FromUnsignedLongLong(offset);
}

PyObject* cut(PyObject* self, PyObject* count) {
  const std::size_t left = PyLong_AsSize_t(count);
  if (PyErr_Occurred() != nullptr) return nullptr;
  while (parts_of(self).size() > left) parts_of(self).pop_back();
  Py_RETURN_NONE;
}

// A collate.Leaf writes itself through a view of its part of `memory`.
bool fill_by_python(const Part& part, PyObject* memory) {
  const Ref leaf = Ref::borrow(part.leaf.get());
  const auto begin = static_cast<Py_ssize_t>(part.offset);
  const Ref place(PySequence_GetSlice(memory, begin, begin + static_cast<Py_ssize_t>(part.bytes)));
  return place && Ref(PyObject_CallMethod(leaf.get(), "fill", "O", place.get()));
}

PyObject* fill(PyObject* self, PyObject* memory) {
  const Ref bytes(PyMemoryView_FromObject(memory));
  Py_buffer buffer;
  if (!bytes || PyObject_GetBuffer(bytes.get(), &buffer, PyBUF_CONTIG) != 0) return nullptr;
  const std::uint64_t size = size_of(parts_of(self));
  bool is_done = static_cast<std::uint64_t>(buffer.len) == size;
  if (!is_done)
    PyErr_Format(PyExc_ValueError, "the memory has %zd bytes, but the tensor takes %llu", buffer.len,
                 static_cast<unsigned long long>(size));
  for (std::size_t i = 0; is_done && i < parts_of(self).size(); i++) {
    const Part& part = parts_of(self)[i];
    if (part.offset + part.bytes > size) break;  // Python code has added it meanwhile
    if (is_leaf(part.leaf.get())) write_leaf_to(part.leaf.get(), static_cast<char*>(buffer.buf) + part.offset);
    else is_done = fill_by_python(part, bytes.get());
  }
  PyBuffer_Release(&buffer);
  if (!is_done) return nullptr;
  Py_RETURN_NONE;
}

Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(parts_of(self).size()); }

PyObject* get_dtype(PyObject*, void*) { return Py_BuildValue("(ii)", 1, 8); }

PyObject* get_shape(PyObject* self, void*) {
  return Py_BuildValue("(K)", static_cast<unsigned long long>(size_of(parts_of(self))));
}

PyMethodDef pack_methods[] = {{"add", add, METH_O, "add(leaf) -> its offset in the tensor, in bytes"},
                              {"cut", cut, METH_O, "cut(count): removes the leaves after the first `count`."},
                              {"fill", fill, METH_O, "fill(memory): writes all there, which has exactly its bytes."},
                              {nullptr, nullptr, 0, nullptr}};
PyGetSetDef pack_members[] = {{"dtype", get_dtype, nullptr, "DLPack's code and bits, of bytes.", nullptr},
                              {"shape", get_shape, nullptr, "The total size, in bytes.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot pack_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_pack)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(free_pack)},
                            {Py_tp_getset, pack_members},
                            {Py_tp_methods, pack_methods},
                            {Py_sq_length, reinterpret_cast<void*>(length)},
                            {Py_tp_doc, const_cast<char*>("Leaves that share a tensor of bytes.")},
                            {0, nullptr}};
PyType_Spec pack_spec = {"feedlane._core.Pack", sizeof(Pack), 0, Py_TPFLAGS_DEFAULT, pack_slots};

}  // namespace

Py_ssize_t packed_count(PyObject* object) { return Py_TYPE(object) == pack_type ? length(object) : 0; }

PyObject* packed_leaf(PyObject* pack, Py_ssize_t number) {
  return parts_of(pack)[static_cast<std::size_t>(number)].leaf.get();
}

bool add_pack(PyObject* module) {
  pack_type = add_type(module, pack_spec);
  return pack_type != nullptr;
}

}  // namespace feedlane::python
