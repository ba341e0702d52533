// SPDX-License-Identifier: Apache-2.0
// Cursor: iterates over an epoch's batches. The arrays of a batch lie over a View, which holds a reference of the batch.
#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "arena/dlpack_abi.hpp"
#include "core.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* view_type;

// ---- View: the memory of one tensor, as a buffer ----

struct View {
  PyObject_HEAD feedlane_loader* loader;  // good for the functions of its batches after its end too
  std::uint64_t token;
  void* data;
  std::uint64_t bytes;
};

void free_view(PyObject* self) {
  auto* const view = reinterpret_cast<View*>(self);
  (void)feedlane_batch_release(view->loader, view->token);
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

int get_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  auto* const view = reinterpret_cast<View*>(self);
  return PyBuffer_FillInfo(buffer, self, view->data, static_cast<Py_ssize_t>(view->bytes), 0, flags);
}

PyType_Slot view_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_view)},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                            {Py_tp_doc, const_cast<char*>("The memory of a tensor. It keeps its batch.")},
                            {0, nullptr}};
PyType_Spec view_spec = {"feedlane._core.View", sizeof(View), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         view_slots};

// ---- DLPack's legacy form, which every torch takes ----

constexpr const char* capsule_name = "dltensor";

void free_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, capsule_name) == 0) return;  // it was consumed
  auto* const tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, capsule_name));
  if (tensor->deleter != nullptr) tensor->deleter(tensor);
}

// ---- Cursor ----

// A wait ends this often, so that a signal that came just before it finds Python's handler.
constexpr std::int64_t slice_ns = 200'000'000;
constexpr Py_ssize_t max_metadata_bytes = 16 << 20;  // tree.MAX_BYTES
constexpr std::size_t detail_bytes = 65536;          // no traceback is longer

struct Cursor {
  PyObject_HEAD feedlane_loader* loader;  // a reference of its own
  PyObject* epoch;                        // loader._Epoch: what is not an ordinary batch is its to decide
  PyObject* read;                         // metadata, number of tensors -> plan
  PyObject* dtypes;                       // code << 8 | bits -> numpy's dtype
  PyObject* from_dlpack;                  // None: arrays are numpy's
  std::int64_t timeout_ns;                // for a batch; FEEDLANE_FOREVER
  std::uint64_t held;                     // with so many batches held, what follows is copied; 0: never
  const std::int64_t* turn;               // of the loader: another iteration has begun if it is no longer ours
  std::int64_t own_turn;
  bool is_in_call;
  PyObject* metadata;  // of the newest batch, and its plan: they rarely change
  std::uint64_t tensors;
  PyObject* plan;
  feedlane_error error;
};

Cursor* cursor_of(PyObject* self) { return reinterpret_cast<Cursor*>(self); }

// What a batch is made into, while its token is held.
class Builder {
 public:
  Builder(const Cursor& cursor, const feedlane_batch& batch) : cursor_(cursor), batch_(batch) {}

  // NULL without an exception: a plan that tree.build knows and this doesn't.
  Ref build(PyObject* plan) const {
    switch (kind_of(plan)) {
      case plan_leaf: return leaf(number_at(plan, 1), number_at(plan, 2));
      case plan_list: return list(PyTuple_GetItem(plan, 1));
      case plan_tuple: return tuple(PyTuple_GetItem(plan, 1));
      case plan_mapping: return mapping(plan);
      case plan_named: return named(plan);
      case plan_value: return Ref(PyObject_CallNoArgs(PyTuple_GetItem(plan, 1)));
      default: return {};
    }
  }

 private:
  static long number_at(PyObject* tuple, Py_ssize_t i) { return PyLong_AsLong(PyTuple_GetItem(tuple, i)); }
  static PlanKind kind_of(PyObject* plan) { return static_cast<PlanKind>(number_at(plan, 0)); }

  Ref list(PyObject* children) const {
    const Py_ssize_t count = PyTuple_Size(children);
    Ref all(PyList_New(count));
    for (Py_ssize_t i = 0; all && i < count; i++) {
      Ref child = build(PyTuple_GetItem(children, i));
      if (!child) return {};
      PyList_SetItem(all.get(), i, child.release());
    }
    return all;
  }

  Ref tuple(PyObject* children) const {
    const Py_ssize_t count = PyTuple_Size(children);
    Ref all(PyTuple_New(count));
    for (Py_ssize_t i = 0; all && i < count; i++) {
      Ref child = build(PyTuple_GetItem(children, i));
      if (!child) return {};
      PyTuple_SetItem(all.get(), i, child.release());
    }
    return all;
  }

  // Its class may have a __new__ of its own: tuple's is called.
  Ref named(PyObject* plan) const {
    Ref fields = list(PyTuple_GetItem(plan, 2));
    if (!fields) return {};
    Ref make(PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyTuple_Type), "__new__"));
    return make ? Ref(PyObject_CallFunctionObjArgs(make.get(), PyTuple_GetItem(plan, 1), fields.get(), nullptr))
                : Ref();
  }

  Ref mapping(PyObject* plan) const {
    if (PyTuple_GetItem(plan, 2) != reinterpret_cast<PyObject*>(&PyDict_Type)) return {};
    PyObject* const keys = PyTuple_GetItem(plan, 1);
    PyObject* const children = PyTuple_GetItem(plan, 3);
    Ref all(PyDict_New());
    for (Py_ssize_t i = 0; all && i < PyTuple_Size(keys); i++) {
      Ref child = build(PyTuple_GetItem(children, i));
      if (!child || PyDict_SetItem(all.get(), PyTuple_GetItem(keys, i), child.get()) != 0) return {};
    }
    return all;
  }

  Ref leaf(long number, long owner) const {
    const feedlane_tensor& tensor = batch_.tensors[number];
    const bool is_torch = owner == owner_torch || (owner == owner_any && cursor_.from_dlpack != Py_None);
    if (is_torch) return cursor_.from_dlpack != Py_None ? torch_tensor(static_cast<std::int32_t>(number)) : Ref();
    return array(tensor);
  }

  Ref array(const feedlane_tensor& tensor) const {
    Ref key(PyLong_FromLong(tensor.dtype.lanes == 1 ? tensor.dtype.code << 8 | tensor.dtype.bits : -1));
    PyObject* const dtype = key ? PyDict_GetItem(cursor_.dtypes, key.get()) : nullptr;  // borrowed
    if (dtype == nullptr) return {};
    auto* const view = PyObject_New(View, view_type);
    if (view == nullptr) return {};
    view->loader = cursor_.loader;
    view->token = batch_.token;
    view->data = tensor.data;
    view->bytes = tensor.bytes;
    (void)feedlane_batch_retain(view->loader, view->token);  // it is held: that cannot fail
    Ref memory(reinterpret_cast<PyObject*>(view));
    Ref shape(PyTuple_New(tensor.ndim));
    for (std::int32_t i = 0; shape && i < tensor.ndim; i++)
      PyTuple_SetItem(shape.get(), i, PyLong_FromLongLong(tensor.shape[i]));
    if (!shape) return {};
    return Ref(PyObject_CallFunctionObjArgs(types.ndarray, shape.get(), dtype, memory.get(), nullptr));
  }

  Ref torch_tensor(std::int32_t number) const {
    DLManagedTensor* tensor = nullptr;
    feedlane_error error;
    feedlane_init(&error, sizeof error);
    if (feedlane_batch_dlpack_legacy(cursor_.loader, batch_.token, number, 0, &tensor, &error) != FEEDLANE_OK) {
      PyErr_SetString(PyExc_RuntimeError, error.text);
      return {};
    }
    Ref capsule(PyCapsule_New(tensor, capsule_name, free_capsule));
    if (!capsule) {
      tensor->deleter(tensor);
      return {};
    }
    return Ref(PyObject_CallFunctionObjArgs(cursor_.from_dlpack, capsule.get(), nullptr));
  }

  const Cursor& cursor_;
  const feedlane_batch& batch_;
};

// The plan of this batch: any worker may have written there, so it is copied once, and checked by `read`.
bool read_plan(Cursor& cursor, const feedlane_batch& batch) {
  const auto bytes = static_cast<Py_ssize_t>(batch.metadata_bytes);
  const char* const text = static_cast<const char*>(batch.metadata);
  Ref metadata(
      PyBytes_FromStringAndSize(text, std::min(bytes, max_metadata_bytes + 1)));  // `read` refuses that one more
  if (!metadata) return false;
  if (cursor.metadata != nullptr && cursor.tensors == batch.tensor_count) {
    const int same = PyObject_RichCompareBool(metadata.get(), cursor.metadata, Py_EQ);
    if (same != 0) return same == 1;
  }
  Ref count(PyLong_FromUnsignedLongLong(batch.tensor_count));
  Ref plan(count ? PyObject_CallFunctionObjArgs(cursor.read, metadata.get(), count.get(), nullptr) : nullptr);
  if (!plan) return false;
  Ref(std::exchange(cursor.metadata, metadata.release()));
  Ref(std::exchange(cursor.plan, plan.release()));
  cursor.tensors = batch.tensor_count;
  return true;
}

// Waits for a batch. The GIL is released only if none is there.
std::int32_t next_batch(Cursor& cursor, feedlane_batch& batch) {
  std::int32_t status = feedlane_loader_next(cursor.loader, 0, &batch, &cursor.error);
  if (status != FEEDLANE_TIMEOUT && status != FEEDLANE_INTERRUPTED) return status;
  timespec now{};
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  const auto now_ns = [&] { return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec; };
  const std::int64_t end_ns = cursor.timeout_ns == FEEDLANE_FOREVER ? FEEDLANE_FOREVER : now_ns() + cursor.timeout_ns;
  for (;;) {
    if (PyErr_CheckSignals() != 0) return FEEDLANE_INTERRUPTED;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t left_ns = end_ns == FEEDLANE_FOREVER ? slice_ns : std::max<std::int64_t>(end_ns - now_ns(), 0);
    Py_BEGIN_ALLOW_THREADS;
    status = feedlane_loader_next(cursor.loader, std::min(left_ns, slice_ns), &batch, &cursor.error);
    Py_END_ALLOW_THREADS;
    if (status != FEEDLANE_TIMEOUT && status != FEEDLANE_INTERRUPTED) return status;
    if (status == FEEDLANE_TIMEOUT && left_ns <= slice_ns && end_ns != FEEDLANE_FOREVER) return status;
  }
}

// What is not an ordinary batch: `outcome` raises, returns the next data, or returns NotImplemented: `next` is called again.
Ref outcome(const Cursor& cursor, std::int32_t status) {
  return Ref(
      PyObject_CallMethod(cursor.epoch, "outcome", "iK", status, reinterpret_cast<unsigned long long>(&cursor.error)));
}

// What _Epoch makes of a batch that the Builder doesn't know. It takes the token.
Ref unusual(const Cursor& cursor, feedlane_batch& batch) {
  return Ref(PyObject_CallMethod(cursor.epoch, "unusual", "K", reinterpret_cast<unsigned long long>(&batch)));
}

// Whether the loop keeps so many batches that this one must not keep its slot.
bool must_copy(const Cursor& cursor) {
  if (cursor.held == 0) return false;
  feedlane_stats stats;
  feedlane_init(&stats, sizeof stats);
  return feedlane_loader_get_stats(cursor.loader, &stats) == FEEDLANE_OK && stats.slots_held >= cursor.held;
}

Ref data_of(Cursor& cursor, feedlane_batch& batch) {
  Ref data;
  if (read_plan(cursor, batch)) data = Builder(cursor, batch).build(cursor.plan);
  if (!data && PyErr_Occurred() == nullptr) return unusual(cursor, batch);
  if (!data && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) {
    PyErr_Clear();  // Malformed, or too little memory: said the package's way
    return unusual(cursor, batch);
  }
  (void)feedlane_batch_release(cursor.loader, batch.token);
  return data;
}

PyObject* next_data(PyObject* self) {
  Cursor& cursor = *cursor_of(self);
  for (;;) {
    if (*cursor.turn != cursor.own_turn || cursor.is_in_call)
      return PyObject_CallMethod(cursor.epoch, "refuse", "i", cursor.is_in_call ? FEEDLANE_E_BUSY : FEEDLANE_E_STATE);
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    cursor.is_in_call = true;
    const std::int32_t status = next_batch(cursor, batch);
    cursor.is_in_call = false;
    if (status == FEEDLANE_OK) {
      Ref data = data_of(cursor, batch);
      if (!data || !must_copy(cursor)) return data.release();
      return PyObject_CallMethod(cursor.epoch, "copy", "(O)", data.get());
    }
    if (PyErr_Occurred() != nullptr) return nullptr;
    if (status == FEEDLANE_END) {
      Ref told(PyObject_CallMethod(cursor.epoch, "end", nullptr));
      return nullptr;  // with no exception: StopIteration
    }
    Ref what = outcome(cursor, status);
    if (what.get() != Py_NotImplemented) return what.release();
  }
}

PyObject* new_cursor(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long loader = 0, turn = 0, held = 0;
  long long timeout_ns = 0;
  PyObject *epoch = nullptr, *read = nullptr, *dtypes = nullptr, *from_dlpack = nullptr;
  if (PyArg_ParseTuple(args, "KKOOOOLK:Cursor", &loader, &turn, &epoch, &read, &dtypes, &from_dlpack, &timeout_ns,
                       &held) == 0)
    return nullptr;
  char* const detail = static_cast<char*>(std::calloc(1, detail_bytes));
  if (detail == nullptr) return PyErr_NoMemory();
  auto* const allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  auto* const cursor = reinterpret_cast<Cursor*>(allocate(type, 0));
  if (cursor == nullptr) {
    std::free(detail);
    return nullptr;
  }
  cursor->loader = reinterpret_cast<feedlane_loader*>(loader);
  (void)feedlane_loader_ref(cursor->loader);
  for (PyObject* const object : {epoch, read, dtypes, from_dlpack}) Py_INCREF(object);
  cursor->epoch = epoch;
  cursor->read = read;
  cursor->dtypes = dtypes;
  cursor->from_dlpack = from_dlpack;
  cursor->timeout_ns = timeout_ns;
  cursor->held = held;
  cursor->turn = reinterpret_cast<const std::int64_t*>(turn);
  cursor->own_turn = *cursor->turn;
  feedlane_init(&cursor->error, sizeof cursor->error);
  cursor->error.detail = detail;
  cursor->error.detail_cap = detail_bytes;
  return reinterpret_cast<PyObject*>(cursor);
}

int visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cursor_of(self)->epoch);
  Py_VISIT(cursor_of(self)->read);
  Py_VISIT(cursor_of(self)->plan);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(cursor_of(self)->epoch);
  Py_CLEAR(cursor_of(self)->read);
  Py_CLEAR(cursor_of(self)->plan);
  return 0;
}

void free_cursor(PyObject* self) {
  PyObject_GC_UnTrack(self);
  (void)clear(self);
  Cursor& cursor = *cursor_of(self);
  Py_CLEAR(cursor.dtypes);
  Py_CLEAR(cursor.from_dlpack);
  Py_CLEAR(cursor.metadata);
  std::free(cursor.error.detail);
  if (cursor.loader != nullptr) (void)feedlane_loader_unref(cursor.loader);
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyObject* itself(PyObject* self) {
  Py_INCREF(self);
  return self;
}

Py_ssize_t length(PyObject* self) { return PyObject_Length(cursor_of(self)->epoch); }

PyType_Slot cursor_slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "Cursor(loader, turn, epoch, read, dtypes, from_dlpack, timeout_ns, held): an epoch's batches.")},
    {Py_tp_new, reinterpret_cast<void*>(new_cursor)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_cursor)},
    {Py_tp_traverse, reinterpret_cast<void*>(visit)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_iter, reinterpret_cast<void*>(itself)},
    {Py_tp_iternext, reinterpret_cast<void*>(next_data)},
    {Py_sq_length, reinterpret_cast<void*>(length)},
    {0, nullptr}};
PyType_Spec cursor_spec = {"feedlane._core.Cursor", sizeof(Cursor), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           cursor_slots};

}  // namespace

bool add_cursor(PyObject* module) {
  Ref view(PyType_FromSpec(&view_spec));
  Ref cursor(PyType_FromSpec(&cursor_spec));
  if (!view || !cursor) return false;
  view_type = reinterpret_cast<PyTypeObject*>(view.release());
  return PyModule_AddObjectRef(module, "Cursor", cursor.get()) == 0;
}

}  // namespace feedlane::python
