// SPDX-License-Identifier: Apache-2.0
// IndexQueue: a sampler whose batches the trainer's Python code pushes ahead of the library, so that the library never calls Python.
#include <algorithm>
#include <deque>
#include <new>
#include <vector>

#include "core.hpp"

namespace feedlane::python {
namespace {

struct Queue {
  PyObject_HEAD std::deque<std::vector<std::int64_t>>* batches;
  bool is_ended;
};

Queue* queue_of(void* self) { return static_cast<Queue*>(self); }

std::int32_t next_batch(void* self, std::int64_t* indices, std::uint64_t cap, std::uint64_t* got,
                        feedlane_error* error) {
  Queue& queue = *queue_of(self);
  if (queue.batches->empty()) {
    if (queue.is_ended) return FEEDLANE_END;
    (void)PyOS_snprintf(error->text, sizeof error->text, "no batch was pushed: an error of this package");
    return FEEDLANE_E_STATE;
  }
  const std::vector<std::int64_t>& batch = queue.batches->front();
  if (batch.size() > cap) {
    (void)PyOS_snprintf(error->text, sizeof error->text, "a batch of %zu indices, %llu at most", batch.size(),
                        static_cast<unsigned long long>(cap));
    return FEEDLANE_E_ARGUMENT;
  }
  std::copy(batch.begin(), batch.end(), indices);
  *got = batch.size();
  queue.batches->pop_front();
  return FEEDLANE_OK;
}

PyObject* push(PyObject* self, PyObject* indices) {
  Ref all(PySequence_List(indices));
  if (!all) return nullptr;
  try {
    std::vector<std::int64_t> batch(static_cast<std::size_t>(PyList_Size(all.get())));
    for (std::size_t i = 0; i < batch.size(); i++) {
      Ref index(PyNumber_Index(PyList_GetItem(all.get(), static_cast<Py_ssize_t>(i))));
      batch[i] = index ? PyLong_AsLongLong(index.get()) : -1;
      if (PyErr_Occurred() != nullptr) return nullptr;
    }
    queue_of(self)->batches->push_back(std::move(batch));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* end(PyObject* self, PyObject*) {
  queue_of(self)->is_ended = true;
  Py_RETURN_NONE;
}

PyObject* restart(PyObject* self, PyObject*) {
  queue_of(self)->batches->clear();
  queue_of(self)->is_ended = false;
  Py_RETURN_NONE;
}

PyObject* sampler(PyObject* self, PyObject* rows) {
  feedlane_sampler_callbacks callbacks;
  feedlane_init(&callbacks, sizeof callbacks);
  callbacks.user_data = self;
  callbacks.next = next_batch;
  callbacks.batch_rows = PyLong_AsLongLong(rows);
  if (PyErr_Occurred() != nullptr) return nullptr;
  feedlane_sampler* made = nullptr;
  feedlane_error error;
  feedlane_init(&error, sizeof error);
  if (feedlane_sampler_custom(&callbacks, &made, &error) != FEEDLANE_OK) {
    PyErr_SetString(PyExc_ValueError, error.text);
    return nullptr;
  }
  return PyLong_FromVoidPtr(made);
}

PyObject* new_queue(PyTypeObject* type, PyObject*, PyObject*) {
  auto* const allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* const self = allocate(type, 0);
  if (self == nullptr) return nullptr;
  queue_of(self)->batches = new (std::nothrow) std::deque<std::vector<std::int64_t>>;
  if (queue_of(self)->batches != nullptr) return self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

void free_queue(PyObject* self) {
  delete queue_of(self)->batches;
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyMethodDef queue_methods[] = {
    {"push", push, METH_O, "push(indices): the next batch. TypeError: an index is no integer; OverflowError."},
    {"end", end, METH_NOARGS, "end(): no batch will follow in this epoch."},
    {"restart", restart, METH_NOARGS, "restart(): an empty queue, before the library begins an epoch."},
    {"sampler", sampler, METH_O,
     "sampler(rows) -> address of a feedlane_sampler, the caller's to destroy: batches of at most `rows` indices; 0: "
     "single\n"
     "indices. The queue must outlive it and its copies."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot queue_slots[] = {
    {Py_tp_doc, const_cast<char*>("IndexQueue(): batches of indices, pushed ahead of what the library draws.")},
    {Py_tp_new, reinterpret_cast<void*>(new_queue)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_queue)},
    {Py_tp_methods, queue_methods},
    {0, nullptr}};
PyType_Spec queue_spec = {"feedlane._core.IndexQueue", sizeof(Queue), 0, Py_TPFLAGS_DEFAULT, queue_slots};

}  // namespace

bool add_queue(PyObject* module) {
  Ref type(PyType_FromSpec(&queue_spec));
  return type && PyModule_AddObjectRef(module, "IndexQueue", type.get()) == 0;
}

}  // namespace feedlane::python
