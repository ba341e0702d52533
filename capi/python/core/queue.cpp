// SPDX-License-Identifier: Apache-2.0
// IndexQueue: a sampler whose batches the trainer's Python code pushes ahead of the library, so that the library never
// calls Python.
#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "core.hpp"

namespace feedlane::python {
namespace {

struct Queue {
  PyObject_HEAD std::mutex* mutex;  // of the rest. The library draws without the GIL: nothing takes that one within
  std::deque<std::vector<std::int64_t>>* batches;
  bool is_ended;
};

Queue* queue_of(void* self) { return static_cast<Queue*>(self); }

std::int32_t next_batch(void* self, std::int64_t* indices, std::uint64_t cap, std::uint64_t* got,
                        feedlane_error* error) {
  Queue& queue = *queue_of(self);
  const std::lock_guard lock(*queue.mutex);
  if (queue.batches->empty()) {
    if (queue.is_ended) return FEEDLANE_END;
    (void)PyOS_snprintf(error->text, sizeof error->text, "no batch was pushed, which is a bug in this package");
    return FEEDLANE_E_STATE;
  }
  const std::vector<std::int64_t>& batch = queue.batches->front();
  if (batch.size() > cap) {
    (void)PyOS_snprintf(error->text, sizeof error->text, "a batch has %zu indices, but at most %llu are allowed",
                        batch.size(), static_cast<unsigned long long>(cap));
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
    const std::lock_guard lock(*queue_of(self)->mutex);
    queue_of(self)->batches->push_back(std::move(batch));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* end(PyObject* self, PyObject*) {
  const std::lock_guard lock(*queue_of(self)->mutex);
  queue_of(self)->is_ended = true;
  Py_RETURN_NONE;
}

PyObject* restart(PyObject* self, PyObject*) {
  const std::lock_guard lock(*queue_of(self)->mutex);
  queue_of(self)->batches->clear();
  queue_of(self)->is_ended = false;
  Py_RETURN_NONE;
}

PyObject* sampler(PyObject* self, PyObject* rows) {
  auto callbacks = init<feedlane_sampler_callbacks>();
  callbacks.user_data = self;
  callbacks.next = next_batch;
  callbacks.batch_rows = PyLong_AsLongLong(rows);
  if (PyErr_Occurred() != nullptr) return nullptr;
  auto config = init<feedlane_sampler_config>();
  config.kind = FEEDLANE_SAMPLER_CUSTOM;
  config.callbacks = &callbacks;
  return new_sampler(config, self, nullptr).release();
}

PyObject* new_queue(PyTypeObject* type, PyObject*, PyObject*) {
  auto* const queue = new_object<Queue>(type);
  Ref made(reinterpret_cast<PyObject*>(queue));
  if (!made) return nullptr;
  queue->batches = new (std::nothrow) std::deque<std::vector<std::int64_t>>;
  queue->mutex = new (std::nothrow) std::mutex;
  return queue->batches != nullptr && queue->mutex != nullptr ? made.release() : PyErr_NoMemory();
}

void free_queue(PyObject* self) {
  delete queue_of(self)->batches;
  delete queue_of(self)->mutex;
  free_object(self);
}

PyMethodDef queue_methods[] = {
    {"push", exclusive<push>, METH_O,
     "push(indices): the next batch. TypeError: an index is no integer; OverflowError."},
    {"end", exclusive<end>, METH_NOARGS, "end(): no batch will follow in this epoch."},
    {"restart", exclusive<restart>, METH_NOARGS, "restart(): an empty queue, before the library begins an epoch."},
    {"sampler", exclusive<sampler>, METH_O,
     "sampler(rows) -> Sampler of batches of at most `rows` indices; 0: of single indices."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot queue_slots[] = {
    {Py_tp_doc, const_cast<char*>("IndexQueue(): batches of indices, pushed ahead of what the library draws.")},
    {Py_tp_new, reinterpret_cast<void*>(new_queue)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_queue)},
    {Py_tp_methods, queue_methods},
    {0, nullptr}};
PyType_Spec queue_spec = {"feedlane._core.IndexQueue", sizeof(Queue), 0, Py_TPFLAGS_DEFAULT, queue_slots};

}  // namespace

bool add_queue(PyObject* module) { return add_type(module, queue_spec) != nullptr; }

}  // namespace feedlane::python
