// SPDX-License-Identifier: Apache-2.0
// The task that this thread makes, and those that wait behind it.
#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

thread_local const feedlane_task* in_hand = nullptr;

// Appends (id, epoch, batch, indices, seeds). False with an exception.
template <class T>
bool append(PyObject* list, const T& task) {
  const Ref indices = list_of(task.indices, task.count);
  const Ref seeds = indices ? list_of(task.seeds, task.count) : Ref();
  Ref one(seeds ? Py_BuildValue("(KLLOO)", static_cast<unsigned long long>(task.id), static_cast<long long>(task.epoch),
                                static_cast<long long>(task.batch), indices.get(), seeds.get())
                : nullptr);
  return one && PyList_Append(list, one.get()) == 0;
}

}  // namespace

TaskScope::TaskScope(const feedlane_task* task) : outer_(std::exchange(in_hand, task)) {}
TaskScope::~TaskScope() { in_hand = outer_; }

PyObject* task_id(PyObject*, PyObject*) {
  if (in_hand == nullptr || in_hand->indices == nullptr) Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(in_hand->id);
}

PyObject* tasks(PyObject*, PyObject* after) {
  unsigned long long last = PyLong_AsUnsignedLongLong(after);
  if (PyErr_Occurred() != nullptr) return nullptr;
  Ref all(PyList_New(0));
  if (!all || in_hand == nullptr || in_hand->indices == nullptr) return all.release();
  if (in_hand->id > last && !append(all.get(), *in_hand)) return nullptr;
  auto found = init<feedlane_ahead>();
  for (;;) {
    const std::int32_t s = feedlane_task_ahead(in_hand, last, &found, error_room());
    if (!check(s)) return nullptr;
    if (s != FEEDLANE_OK) return all.release();
    last = found.id;
    if (!append(all.get(), found)) return nullptr;
  }
}

}  // namespace feedlane::python
