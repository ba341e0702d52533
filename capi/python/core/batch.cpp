// SPDX-License-Identifier: Apache-2.0
// Batch: a batch that the trainer holds. batch.py derives the package's class from it, and gives it the data.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

struct Batch {
  PyObject_HEAD feedlane_loader* loader;  // valid for the functions of its batches after its end too
  feedlane_batch batch;
  bool is_held;
  bool is_read_only;
  std::int64_t forks;
};

Batch* batch_of(PyObject* self) { return reinterpret_cast<Batch*>(self); }

// Null with an exception.
const Batch* held(PyObject* self) {
  const Batch* const b = batch_of(self);
  if (!b->is_held) return raise(FEEDLANE_E_STALE, "the batch was released");
  if (b->forks != forks())
    return raise(FEEDLANE_E_FORKED, "the batch belongs to the parent process, and its memory is not mapped here");
  return b;
}

void free_batch(PyObject* self) {
  if (batch_of(self)->is_held) (void)feedlane_batch_release(batch_of(self)->loader, batch_of(self)->batch.token);
  free_object(self);
}

// ---- what it is ----

template <auto member>
PyObject* get(PyObject* self, void*) {
  return PyLong_FromLongLong(static_cast<long long>(batch_of(self)->batch.*member));
}

PyObject* get_is_held(PyObject* self, void*) { return PyBool_FromLong(batch_of(self)->is_held ? 1 : 0); }

PyObject* get_is_read_only(PyObject* self, void*) { return PyBool_FromLong(batch_of(self)->is_read_only ? 1 : 0); }

PyObject* get_indices(PyObject* self, void*) {
  const Batch* const b = held(self);
  if (b == nullptr) return nullptr;
  if (b->batch.indices == nullptr) Py_RETURN_NONE;
  return list_of(b->batch.indices, b->batch.count).release();
}

PyObject* get_skipped(PyObject* self, void*) {
  const Batch* const b = held(self);
  if (b == nullptr) return nullptr;
  return list_of(b->batch.skipped, b->batch.skipped != nullptr ? b->batch.skipped_count : 0).release();
}

PyObject* get_stamps(PyObject* self, void*) {
  const feedlane_batch& b = batch_of(self)->batch;
  const std::uint64_t stamps[] = {b.dispatched_ns, b.begun_ns, b.committed_ns, b.swept_ns, b.yielded_ns, b.exposed_ns};
  return sequence_of<PyTuple_New, PyTuple_SetItem>(stamps, std::size(stamps)).release();
}

PyGetSetDef batch_members[] = {
    {"epoch", get<&feedlane_batch::epoch>, nullptr, "Which epoch it is of.", nullptr},
    {"number", get<&feedlane_batch::batch>, nullptr, "Its number in the epoch, from 0.", nullptr},
    {"worker", get<&feedlane_batch::worker>, nullptr, "The worker that made it; -1: the trainer itself.", nullptr},
    {"attempt", get<&feedlane_batch::attempt>, nullptr, "Which attempt made it, from 0.", nullptr},
    {"rows", get<&feedlane_batch::count>, nullptr, "How many rows it has.", nullptr},
    {"missed", get<&feedlane_batch::missed>, nullptr, "Batches just before it that the feeder took back.", nullptr},
    {"tensor_count", get<&feedlane_batch::tensor_count>, nullptr, "How many tensors it has.", nullptr},
    {"_stamps", get_stamps, nullptr, "Its stamps, as batch.Stamps has them.", nullptr},
    {"is_held", get_is_held, nullptr, "False: it was released.", nullptr},
    {"is_read_only", get_is_read_only, nullptr,
     "Whether its memory can't be written: a consumer's, or an arena's entry.", nullptr},
    {"indices", get_indices, nullptr, "The data set indices of its rows; None of an iterable data set.", nullptr},
    {"skipped", get_skipped, nullptr, "The data set indices of samples that were left out of it.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// ---- its contents ----

// Any worker may write there: the bytes are copied.
PyObject* metadata(PyObject* self, PyObject* most) {
  const Batch* const b = held(self);
  const std::size_t limit = PyLong_AsSize_t(most);
  if (b == nullptr || PyErr_Occurred() != nullptr) return nullptr;
  const auto bytes = std::min<std::size_t>(b->batch.metadata_bytes, limit);
  return PyBytes_FromStringAndSize(static_cast<const char*>(b->batch.metadata), static_cast<Py_ssize_t>(bytes));
}

// Null with an exception.
const feedlane_tensor* tensor_of(const Batch* b, long long number) {
  if (b == nullptr || PyErr_Occurred() != nullptr) return nullptr;
  if (number >= 0 && static_cast<std::uint64_t>(number) < b->batch.tensor_count) return &b->batch.tensors[number];
  PyErr_Format(PyExc_IndexError, "tensor %lld does not exist: the batch has %llu tensors", number,
               static_cast<unsigned long long>(b->batch.tensor_count));
  return nullptr;
}

PyObject* tensor(PyObject* self, PyObject* number) {
  const feedlane_tensor* const t = tensor_of(held(self), PyLong_AsLongLong(number));
  if (t == nullptr) return nullptr;
  Ref shape = shape_of(t->shape, t->ndim);
  Ref name = name_of(*t);
  if (!shape || !name) return nullptr;
  return Py_BuildValue("(O(ii)OKKK)", name.get(), t->dtype.code, t->dtype.bits, shape.get(),
                       static_cast<unsigned long long>(t->bytes), static_cast<unsigned long long>(t->offset),
                       reinterpret_cast<unsigned long long>(t->data));
}

PyObject* array(PyObject* self, PyObject* number) {
  const feedlane_tensor* const t = tensor_of(held(self), PyLong_AsLongLong(number));
  if (t == nullptr) return nullptr;
  Ref made = array_of(batch_of(self)->loader, batch_of(self)->batch.token, *t, batch_of(self)->is_read_only);
  if (!made && PyErr_Occurred() == nullptr) Py_RETURN_NONE;
  return made.release();
}

PyObject* view(PyObject* self, PyObject* number) {
  const feedlane_tensor* const t = tensor_of(held(self), PyLong_AsLongLong(number));
  if (t == nullptr) return nullptr;
  return view_of(batch_of(self)->loader, batch_of(self)->batch.token, *t, batch_of(self)->is_read_only).release();
}

PyObject* capsule(PyObject* self, PyObject* args) {
  int number = 0, is_versioned = 0;
  if (PyArg_ParseTuple(args, "ip:capsule", &number, &is_versioned) == 0) return nullptr;
  const Batch* const b = held(self);
  if (tensor_of(b, number) == nullptr) return nullptr;
  return capsule_of(b->loader, b->batch.token, number, is_versioned != 0).release();
}

PyObject* record_stream(PyObject* self, PyObject* stream) {
  const Batch* const b = held(self);
  const unsigned long long address = PyLong_AsUnsignedLongLong(stream);
  if (b == nullptr || PyErr_Occurred() != nullptr) return nullptr;
  if (!check(feedlane_batch_record_stream(b->loader, b->batch.token, reinterpret_cast<void*>(address), error_room())))
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* release(PyObject* self, PyObject*) {
  if (held(self) == nullptr) return nullptr;
  batch_of(self)->is_held = false;
  if (const std::int32_t s = feedlane_batch_release(batch_of(self)->loader, batch_of(self)->batch.token);
      s != FEEDLANE_OK)
    return raise(s, "");
  Py_RETURN_NONE;
}

PyObject* check_held(PyObject* self, PyObject*) {
  if (held(self) == nullptr) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef batch_methods[] = {
    {"_check_held", exclusive<check_held>, METH_NOARGS,
     "_check_held(): StaleBatch: it was released; Forked: it is the parent's."},
    {"_metadata", exclusive<metadata>, METH_O, "_metadata(most) -> a copy of at most so many bytes"},
    {"_tensor", exclusive<tensor>, METH_O, "_tensor(number) -> (name, (code, bits), shape, bytes, offset, address)"},
    {"_array", exclusive<array>, METH_O,
     "_array(number) -> numpy array over it; None: of a type that numpy doesn't have"},
    {"_view", exclusive<view>, METH_O, "_view(number) -> View of its bytes"},
    {"_capsule", exclusive<capsule>, METH_VARARGS, "_capsule(number, is_versioned) -> DLPack's capsule"},
    {"_record_stream", exclusive<record_stream>, METH_O, "_record_stream(address)"},
    {"_release", exclusive<release>, METH_NOARGS, "_release(): its own reference. StaleBatch: it was released before."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot batch_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_batch)},
                             {Py_tp_getset, batch_members},
                             {Py_tp_methods, batch_methods},
                             {Py_tp_doc, const_cast<char*>("A batch that the trainer holds.")},
                             {0, nullptr}};
PyType_Spec batch_spec = {"feedlane._core.Batch", sizeof(Batch), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, batch_slots};

}  // namespace

Ref new_batch(feedlane_loader* loader, const feedlane_batch& batch, bool is_read_only) {
  auto* const b = new_object<Batch>(reinterpret_cast<PyTypeObject*>(types.batch));
  if (b == nullptr) {
    (void)feedlane_batch_release(loader, batch.token);
    return {};
  }
  b->loader = loader;
  b->batch = batch;
  b->is_held = true;
  b->is_read_only = is_read_only;
  b->forks = forks();
  return Ref(reinterpret_cast<PyObject*>(b));
}

Ref name_of(const feedlane_tensor& tensor) {
  const char* const text = tensor.name != nullptr ? tensor.name : "";
  return Ref(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace"));
}

std::uint64_t token_in(PyObject* batch, const feedlane_loader* loader) {
  if (PyObject_IsInstance(batch, types.batch) != 1) {
    if (PyErr_Occurred() == nullptr)
      PyErr_SetString(PyExc_TypeError, "must be a Batch from Loader.batches() or of an Arena");
    return 0;
  }
  const Batch* const b = held(batch);
  if (b == nullptr) return 0;
  if (b->loader == loader) return b->batch.token;
  (void)raise(FEEDLANE_E_ARGUMENT, "the batch belongs to another loader");
  return 0;
}

void forget_batch(PyObject* batch) { batch_of(batch)->is_held = false; }

bool add_batch(PyObject* module) { return add_type(module, batch_spec) != nullptr; }

}  // namespace feedlane::python
