// SPDX-License-Identifier: Apache-2.0
// Task: a batch to be made, in a worker or inline. It is valid until it is committed, failed, or given back by its
// callback.
#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* task_type;

struct Task {
  PyObject_HEAD const feedlane_task* task;  // null: it is over
};

// Null with an exception: it is over.
const feedlane_task* task_of(PyObject* self) {
  const feedlane_task* const task = reinterpret_cast<Task*>(self)->task;
  if (task == nullptr) (void)raise(FEEDLANE_E_STATE, "the task has ended");
  return task;
}

void free_task(PyObject* self) { free_object(self); }

// ---- what it is ----

template <auto member>
PyObject* get(PyObject* self, void*) {
  const feedlane_task* const task = task_of(self);
  return task != nullptr ? PyLong_FromLongLong(static_cast<long long>(task->*member)) : nullptr;
}

PyObject* get_indices(PyObject* self, void*) {
  const feedlane_task* const task = task_of(self);
  if (task == nullptr) return nullptr;
  if (task->indices == nullptr) Py_RETURN_NONE;
  return list_of(task->indices, task->count).release();
}

PyObject* get_seeds(PyObject* self, void*) {
  const feedlane_task* const task = task_of(self);
  return task != nullptr ? list_of(task->seeds, task->count).release() : nullptr;
}

PyGetSetDef task_members[] = {
    {"epoch", get<&feedlane_task::epoch>, nullptr, "As the trainer numbered it.", nullptr},
    {"batch", get<&feedlane_task::batch>, nullptr, "Its number in the epoch, from 0.", nullptr},
    {"attempt", get<&feedlane_task::attempt>, nullptr, "0, +1 each time the batch is sent out again.", nullptr},
    {"count", get<&feedlane_task::count>, nullptr, "Rows wanted.", nullptr},
    {"first", get<&feedlane_task::first>, nullptr, "Iterable, 1: the shard starts over.", nullptr},
    {"delivered", get<&feedlane_task::delivered>, nullptr, "Samples of the shard that were delivered before.", nullptr},
    {"indices", get_indices, nullptr, "The data set indices of its rows; None: iterable.", nullptr},
    {"seeds", get_seeds, nullptr, "A seed for each row.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// ---- what is done with it ----

// tensor(number, name, (code, bits), shape) -> a writable memoryview of its bytes. Valid as long as the task.
PyObject* tensor(PyObject* self, PyObject* args) {
  int number = 0, code = 0, bits = 0;
  const char* name = nullptr;
  PyObject* shape = nullptr;
  if (PyArg_ParseTuple(args, "iy(ii)O!:tensor", &number, &name, &code, &bits, &PyTuple_Type, &shape) == 0)
    return nullptr;
  const feedlane_task* const task = task_of(self);
  if (task == nullptr) return nullptr;
  auto field = init<feedlane_field>();
  field.name = name;
  if (!set_type(field, code, bits, shape)) return nullptr;
  feedlane_tensor out;
  if (!check(feedlane_task_tensor(task, number, &field, &out, error_room()))) return nullptr;
  return PyMemoryView_FromMemory(static_cast<char*>(out.data), static_cast<Py_ssize_t>(out.bytes), PyBUF_WRITE);
}

PyObject* metadata(PyObject* self, PyObject* args) {
  const char* bytes = nullptr;
  Py_ssize_t length = 0;
  if (PyArg_ParseTuple(args, "y#:metadata", &bytes, &length) == 0) return nullptr;
  const feedlane_task* const task = task_of(self);
  if (task == nullptr) return nullptr;
  if (!check(
          feedlane_task_store(task, FEEDLANE_STORE_METADATA, bytes, static_cast<std::uint64_t>(length), error_room())))
    return nullptr;
  Py_RETURN_NONE;
}

// Calls the Python function `self`: another index, or None.
std::int32_t substitute_by(void* self, std::int64_t failed, std::uint64_t seed, std::uint32_t tries,
                           std::int64_t* other, feedlane_error*) {
  const Ref found(PyObject_CallFunction(static_cast<PyObject*>(self), "LKI", static_cast<long long>(failed),
                                        static_cast<unsigned long long>(seed), static_cast<unsigned int>(tries)));
  if (found.get() == Py_None) return FEEDLANE_END;
  const Ref index(found ? PyNumber_Index(found.get()) : nullptr);
  *other = index ? PyLong_AsLongLong(index.get()) : 0;
  return PyErr_Occurred() == nullptr ? FEEDLANE_OK : FEEDLANE_INTERRUPTED;
}

PyObject* sample_failed(PyObject* self, PyObject* args) {
  unsigned long long position = 0;
  const char* text = nullptr;
  int is_transient = 0;
  PyObject* substitute = nullptr;
  if (PyArg_ParseTuple(args, "KypO:sample_failed", &position, &text, &is_transient, &substitute) == 0) return nullptr;
  const feedlane_task* const task = task_of(self);
  if (task == nullptr) return nullptr;
  auto failure = init<feedlane_error>();
  failure.code = FEEDLANE_E_SAMPLE;
  failure.transient = is_transient;
  PyOS_snprintf(failure.text, sizeof failure.text, "%s", text);
  std::int64_t index = 0, wait_ns = 0;
  const std::int32_t status =
      feedlane_task_sample_failed(task, position, &failure, substitute == Py_None ? nullptr : substitute_by, substitute,
                                  &index, &wait_ns, error_room());
  if (status == FEEDLANE_INTERRUPTED) return nullptr;
  if (status == FEEDLANE_E_SAMPLE) Py_RETURN_FALSE;
  if (!check(status)) return nullptr;
  if (status == FEEDLANE_OK) Py_RETURN_NONE;
  return Py_BuildValue("LL", static_cast<long long>(index), static_cast<long long>(wait_ns));
}

PyObject* look(PyObject* self, PyObject*) {
  const feedlane_task* const task = task_of(self);
  if (task == nullptr) return nullptr;
  return PyBool_FromLong(task->worker == nullptr || feedlane_worker_check(task->worker) == FEEDLANE_OK ? 1 : 0);
}

// The ends: True; False if nobody wanted the task any more.
PyObject* over(PyObject* self, std::int32_t status) {
  if (status != FEEDLANE_E_ARGUMENT) reinterpret_cast<Task*>(self)->task = nullptr;
  if (status == FEEDLANE_E_STALE) Py_RETURN_FALSE;
  return check(status) ? PyBool_FromLong(1) : nullptr;
}

PyObject* commit(PyObject* self, PyObject* rows) {
  const unsigned long long count = PyLong_AsUnsignedLongLong(rows);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const feedlane_task* const task = task_of(self);
  if (task == nullptr) return nullptr;
  if (count == FEEDLANE_EXHAUSTED) return raise(FEEDLANE_E_ARGUMENT, "rows is 2^64 - 1: call exhausted()");
  return over(self, feedlane_task_commit(task, count, error_room()));
}

PyObject* fail(PyObject* self, PyObject* args) {
  long long position = -1;
  const char *text = nullptr, *traceback = nullptr;
  if (PyArg_ParseTuple(args, "Lyy:fail", &position, &text, &traceback) == 0) return nullptr;
  const feedlane_task* const task = task_of(self);
  return task != nullptr ? over(self, feedlane_task_fail(task, position, 0, text, traceback, error_room())) : nullptr;
}

PyObject* exhausted(PyObject* self, PyObject*) {
  const feedlane_task* const task = task_of(self);
  return task != nullptr ? over(self, feedlane_task_commit(task, FEEDLANE_EXHAUSTED, error_room())) : nullptr;
}

PyMethodDef task_methods[] = {
    {"tensor", exclusive<tensor>, METH_VARARGS,
     "tensor(number, name, (code, bits), shape) -> writable memoryview of the whole tensor's bytes.\n"
     "Valid as long as the task. LimitError: `needed` is the slot_bytes that it takes."},
    {"metadata", exclusive<metadata>, METH_VARARGS, "metadata(bytes): attached to the batch; the last call counts."},
    {"sample_failed", exclusive<sample_failed>, METH_VARARGS,
     "sample_failed(position, text, is_transient, substitute) -> (index, wait_ns) to try; None: skipped; False: "
     "failed."},
    {"is_wanted", exclusive<look>, METH_NOARGS, "is_wanted() -> False: the batch will be dropped. Counts as progress."},
    {"commit", exclusive<commit>, METH_O,
     "commit(rows) -> whether it was still wanted. ArgumentError: the task goes on."},
    {"fail", exclusive<fail>, METH_VARARGS,
     "fail(position, text, traceback) -> whether it was still wanted. position: the row; -1: none."},
    {"exhausted", exclusive<exhausted>, METH_NOARGS,
     "exhausted() -> whether it was still wanted: the shard has no more samples."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot task_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_task)},
                            {Py_tp_getset, task_members},
                            {Py_tp_methods, task_methods},
                            {Py_tp_doc, const_cast<char*>("A batch to be made. StateError once it is over.")},
                            {0, nullptr}};
PyType_Spec task_spec = {"feedlane._core.Task", sizeof(Task), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         task_slots};

}  // namespace

Ref new_task(const feedlane_task* task) {
  auto* const object = new_object<Task>(task_type);
  if (object != nullptr) object->task = task;
  return Ref(reinterpret_cast<PyObject*>(object));
}

void end_task(PyObject* object) { reinterpret_cast<Task*>(object)->task = nullptr; }

bool add_task(PyObject* module) {
  task_type = add_type(module, task_spec);
  return task_type != nullptr;
}

}  // namespace feedlane::python
