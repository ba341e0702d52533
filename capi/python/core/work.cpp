// SPDX-License-Identifier: Apache-2.0
// A worker's loop: takes tasks, asks the data set for their samples, writes the batch and commits it. What is not an ordinary
// batch of a map-style data set is left to worker.py.
#include <new>
#include <string>
#include <vector>

#include "core.hpp"

namespace feedlane::python {
namespace {

// Of the sample that this thread is making.
thread_local const std::uint64_t* sample_seed = nullptr;

class SeedScope {
 public:
  ~SeedScope() { sample_seed = outer_; }
  static void set(const std::uint64_t* seed) { sample_seed = seed; }

 private:
  const std::uint64_t* outer_ = sample_seed;  // of a data set that itself goes through a loader
};

// The exception that is set, with its traceback; it is set no more.
Ref take_exception() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr && value != nullptr) (void)PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref(value);
}

// A batch in the making: the samples, and what they become.
class Loop {
 public:
  // `glue` is a worker.Glue.
  bool open(feedlane_worker* worker, feedlane_error* error, PyObject* glue) {
    worker_ = worker;
    error_ = error;
    struct {
      const char* name;
      Ref* place;
    } const members[] = {{"dataset", &dataset_},   {"get_all", &get_all_},    {"collate_fn", &collate_fn_},
                         {"leaves", &new_leaves_}, {"batch", &batch_},        {"single", &single_},
                         {"whole", &whole_},       {"compare", &compare_},    {"write", &write_},
                         {"dump", &dump_},         {"slow", &slow_},          {"failed", &failed_},
                         {"refused", &refused_},   {"committed", &committed_}};
    for (const auto& m : members) {
      *m.place = Ref(PyObject_GetAttrString(glue, m.name));
      if (!*m.place) return false;
    }
    Ref ordinary(PyObject_GetAttrString(glue, "ordinary")), batched(PyObject_GetAttrString(glue, "batched"));
    Ref names(PyObject_GetAttrString(glue, "names"));
    if (!ordinary || !batched || !names) return false;
    is_ordinary_ = PyObject_IsTrue(ordinary.get()) == 1;
    is_batched_ = PyObject_IsTrue(batched.get()) == 1;
    for (Py_ssize_t i = 0; i < PyList_Size(names.get()); i++) {
      const char* const name = PyBytes_AsString(PyList_GetItem(names.get(), i));
      if (name == nullptr) return false;
      names_.emplace_back(name);
    }
    look_for_torch();
    return true;
  }

  // Until the trainer wants no more: the status. -1 with an exception: it ends this worker.
  bool run(std::int32_t& status) {
    for (;;) {
      const feedlane_task* task = nullptr;
      status = feedlane_worker_next(worker_, 0, &task, error_);
      if (status == FEEDLANE_TIMEOUT) {
        Py_BEGIN_ALLOW_THREADS;
        status = feedlane_worker_next(worker_, FEEDLANE_FOREVER, &task, error_);
        Py_END_ALLOW_THREADS;
      }
      if (status == FEEDLANE_INTERRUPTED) {
        if (PyErr_CheckSignals() != 0) return false;
        continue;
      }
      if (status != FEEDLANE_OK) return true;
      if (!(is_ordinary_ ? do_ordinary(task) : do_by_python(task))) return false;
    }
  }

 private:
  static unsigned long long address_of(const void* object) { return reinterpret_cast<unsigned long long>(object); }

  bool do_by_python(const feedlane_task* task) {
    return static_cast<bool>(Ref(PyObject_CallFunction(slow_.get(), "K", address_of(task))));
  }

  bool do_ordinary(const feedlane_task* task) {
    position_ = -1;
    if (make(task)) {
      const std::int32_t s = feedlane_task_commit(task, task->count, error_);
      if (s == FEEDLANE_OK || s == FEEDLANE_E_STALE) return true;
      return static_cast<bool>(Ref(PyObject_CallFunction(committed_.get(), "Ki", address_of(task), s)));
    }
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;  // KeyboardInterrupt, SystemExit
    Ref reason = take_exception();
    const long long index = position_ >= 0 ? task->indices[position_] : -1;
    Ref told(PyObject_CallFunction(failed_.get(), "KOLL", address_of(task), reason.get(), position_, index));
    return static_cast<bool>(told);
  }

  bool make(const feedlane_task* task) {
    Ref leaves(PyObject_CallNoArgs(new_leaves_.get()));
    Ref plan = leaves ? plan_of(task, leaves.get()) : Ref();
    return plan && write(task, leaves.get()) && attach(task, plan.get());
  }

  Ref plan_of(const feedlane_task* task, PyObject* leaves) {
    if (collate_fn_.get() == Py_None && is_batched_) {
      if (get_all_.get() == Py_None) {
        Ref samples = by_index(task);
        return samples ? collate(samples.get(), leaves) : Ref();
      }
      Ref all = at_once(task);
      Ref samples(all ? PySequence_List(all.get()) : nullptr);
      if (!samples) return {};
      if (PyList_Size(samples.get()) == static_cast<Py_ssize_t>(task->count)) return collate(samples.get(), leaves);
      PyErr_Format(PyExc_RuntimeError, "__getitems__ was asked for %llu samples and returned %zd",
                   static_cast<unsigned long long>(task->count), PyList_Size(samples.get()));
      return {};
    }
    Ref samples = is_batched_ && get_all_.get() != Py_None ? at_once(task) : by_index(task);
    if (!samples) return {};
    Ref first(is_batched_ ? nullptr : PySequence_GetItem(samples.get(), 0));
    if (!is_batched_ && !first) return {};
    PyObject* const input = is_batched_ ? samples.get() : first.get();
    if (collate_fn_.get() == Py_None) return Ref(PyObject_CallFunctionObjArgs(single_.get(), input, leaves, nullptr));
    Ref value(PyObject_CallFunctionObjArgs(collate_fn_.get(), input, nullptr));
    return value ? collate_whole(value.get(), leaves, whole_.get()) : Ref();
  }

  Ref collate(PyObject* samples, PyObject* leaves) {
    const Py_ssize_t count = PyList_Size(samples);
    objects_.resize(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; i++) objects_[static_cast<std::size_t>(i)] = PyList_GetItem(samples, i);
    return collate_batch(objects_.data(), count, leaves, batch_.get());
  }

  Ref by_index(const feedlane_task* task) {
    const auto count = static_cast<Py_ssize_t>(task->count);
    Ref samples(PyList_New(0));
    const SeedScope scope;
    for (Py_ssize_t i = 0; samples && i < count; i++) {
      position_ = i;
      SeedScope::set(&task->seeds[i]);
      Ref index(PyLong_FromLongLong(task->indices[i]));
      Ref sample(index ? PyObject_GetItem(dataset_.get(), index.get()) : nullptr);
      if (!sample || PyList_Append(samples.get(), sample.get()) != 0) return {};
    }
    position_ = -1;
    return samples;
  }

  Ref at_once(const feedlane_task* task) {
    Ref indices(PyList_New(static_cast<Py_ssize_t>(task->count)));
    for (std::uint64_t i = 0; indices && i < task->count; i++)
      PyList_SetItem(indices.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(task->indices[i]));
    return indices ? Ref(PyObject_CallFunctionObjArgs(get_all_.get(), indices.get(), nullptr)) : Ref();
  }

  bool write(const feedlane_task* task, PyObject* leaves) {
    if (compare_.get() != Py_None && !Ref(PyObject_CallFunctionObjArgs(compare_.get(), leaves, nullptr))) return false;
    const Py_ssize_t count = PyList_Size(leaves);
    for (Py_ssize_t i = 0; i < count; i++) {
      PyObject* const leaf = PyList_GetItem(leaves, i);
      const auto number = static_cast<std::int32_t>(i);
      if (!is_leaf(leaf)) {
        if (!Ref(PyObject_CallFunction(write_.get(), "KiO", address_of(task), number, leaf))) return false;
        continue;
      }
      const std::int32_t s = write_leaf(leaf, task, number, names_[static_cast<std::size_t>(i)].c_str(), error_);
      if (s != FEEDLANE_OK) return refuse(s);
    }
    return true;
  }

  // The plan rarely changes from one batch to the next.
  bool attach(const feedlane_task* task, PyObject* plan) {
    int is_same = newest_plan_ ? PyObject_RichCompareBool(plan, newest_plan_.get(), Py_EQ) : 0;
    if (is_same < 0) {
      PyErr_Clear();  // of values that can't be compared, such as arrays of texts
      is_same = 0;
    }
    if (is_same == 0) {
      Ref blob(PyObject_CallFunctionObjArgs(dump_.get(), plan, nullptr));
      if (!blob) return false;
      newest_plan_ = Ref::borrow(plan);
      blob_ = std::move(blob);
    }
    char* bytes = nullptr;
    Py_ssize_t length = 0;
    if (PyBytes_AsStringAndSize(blob_.get(), &bytes, &length) != 0) return false;
    const std::int32_t s = feedlane_task_metadata(task, bytes, static_cast<std::uint64_t>(length), error_);
    return s == FEEDLANE_OK || refuse(s);
  }

  // Raises for a status of the library's.
  bool refuse(std::int32_t status) {
    (void)Ref(PyObject_CallFunction(refused_.get(), "i", status));
    if (PyErr_Occurred() == nullptr) PyErr_Format(PyExc_RuntimeError, "status %d", status);
    return false;
  }

  feedlane_worker* worker_ = nullptr;
  feedlane_error* error_ = nullptr;
  bool is_ordinary_ = false, is_batched_ = true;
  Ref dataset_, get_all_, collate_fn_, new_leaves_, batch_, single_, whole_, compare_, write_, dump_, slow_, failed_,
      refused_, committed_;
  std::vector<std::string> names_;
  std::vector<PyObject*> objects_;  // borrowed, of the batch in the making
  Ref newest_plan_, blob_;
  long long position_ = -1;  // of the sample that is being made
};

}  // namespace

PyObject* work(PyObject*, PyObject* args) {
  unsigned long long worker = 0, error = 0;
  PyObject* glue = nullptr;
  if (PyArg_ParseTuple(args, "KKO:work", &worker, &error, &glue) == 0) return nullptr;
  try {
    Loop loop;
    std::int32_t status = FEEDLANE_OK;
    if (!loop.open(reinterpret_cast<feedlane_worker*>(worker), reinterpret_cast<feedlane_error*>(error), glue))
      return nullptr;
    return loop.run(status) ? PyLong_FromLong(status) : nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* seed(PyObject*, PyObject*) {
  if (sample_seed == nullptr) Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(*sample_seed);
}

}  // namespace feedlane::python
