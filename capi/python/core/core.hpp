// SPDX-License-Identifier: Apache-2.0
// The compiled half of the Python package: what runs once a batch. The rest of the package calls libfeedlane by ctypes.
//
// Python's stable ABI from 3.11 on. Every function is called with the GIL held and says so if it releases it.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <utility>

#include "feedlane.h"

namespace feedlane::python {

// Owns a reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* stolen) : object_(stolen) {}
  static Ref borrow(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  [[nodiscard]] PyObject* get() const { return object_; }
  [[nodiscard]] PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Kinds of a plan's nodes, and whose array a leaf is: as tree.py numbers them.
enum PlanKind : long { plan_leaf, plan_list, plan_tuple, plan_mapping, plan_named, plan_value };
enum LeafOwner : long { owner_any, owner_numpy, owner_torch };

// cursor.cpp: Cursor, the iterator of an epoch, and the views that its arrays lie over.
bool add_cursor(PyObject* module);
// queue.cpp: IndexQueue, a sampler that Python code fills.
bool add_queue(PyObject* module);
// leaf.cpp: Leaf, a tensor to be written into a slot, and `collate`.
bool add_leaf(PyObject* module);
[[nodiscard]] bool is_leaf(PyObject* object);
// Writes a Leaf as tensor `number` of the task's batch. A status of feedlane_task_tensor; no exception.
std::int32_t write_leaf(PyObject* leaf, const feedlane_task* task, std::int32_t number, const char* name,
                        feedlane_error* error);
// A list of samples as torch's default_collate would have it: the plan, its leaves appended to `leaves`, which is a
// collate.Leaves. What this doesn't know is left to `fallback(samples, leaves)`.
Ref collate_batch(PyObject* const* samples, Py_ssize_t count, PyObject* leaves, PyObject* fallback);
// A value that a collate_fn returned, as it is.
Ref collate_whole(PyObject* value, PyObject* leaves, PyObject* fallback);
// work.cpp: `work`, a worker's loop, and `seed`.
PyObject* work(PyObject* module, PyObject* args);
PyObject* seed(PyObject* module, PyObject* none);

// Set by `set_up`: numpy's array type, and the class that leaves say their type by. torch's tensor type and `to_dlpack`, null until torch is imported in this process.
struct Types {
  PyObject* ndarray = nullptr;
  PyObject* dtype = nullptr;
  PyObject* tensor = nullptr;
  PyObject* to_dlpack = nullptr;
};
extern Types types;
// Looks whether torch is there by now.
void look_for_torch();

}  // namespace feedlane::python
