// SPDX-License-Identifier: Apache-2.0
// A worker's loop: takes tasks, asks the data set for their samples, writes the batch and commits it. What is not an
// ordinary batch of a map-style data set is left to worker.py.
#include <new>
#include <string>
#include <vector>

#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

// A wait ends this often, so that a signal that came just before it finds Python's handler.
constexpr std::int64_t slice_ns = 1'000'000'000;

// The first index of a batch whose indices are a pickle: indices.MARK.
constexpr std::int64_t payload_mark = INT64_MIN;

// Of the sample that this thread is making.
thread_local const std::uint64_t* sample_seed = nullptr;

class SeedScope {
 public:
  ~SeedScope() { sample_seed = outer_; }
  static void set(const std::uint64_t* seed) { sample_seed = seed; }

 private:
  const std::uint64_t* outer_ = sample_seed;  // of a data set that itself goes through a loader
};

// A batch in the making: the samples, and what they become.
class Loop {
 public:
  // `glue` is a worker.Glue.
  bool open(feedlane_worker* worker, PyObject* glue) {
    worker_ = worker;
    struct {
      const char* name;
      Ref* place;
    } const members[] = {{"dataset", &dataset_},   {"get_all", &get_all_}, {"collate_fn", &collate_fn_},
                         {"leaves", &new_leaves_}, {"batch", &batch_},     {"single", &single_},
                         {"whole", &whole_},       {"compare", &compare_}, {"write", &write_},
                         {"dump", &dump_},         {"slow", &slow_},       {"failed", &failed_},
                         {"refused", &refused_},   {"rows", &rows_},       {"begins", &begins_},
                         {"caught", &caught_}};
    for (const auto& m : members) {
      *m.place = Ref(PyObject_GetAttrString(glue, m.name));
      if (!*m.place) return false;
    }
    Ref ordinary(PyObject_GetAttrString(glue, "ordinary")), batched(PyObject_GetAttrString(glue, "batched"));
    Ref names(PyObject_GetAttrString(glue, "names")), counts(PyObject_GetAttrString(glue, "counts"));
    if (!ordinary || !batched || !names || !counts) return false;
    counts_ = PyObject_IsTrue(counts.get()) == 1;
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
      status = feedlane_worker_next(worker_, 0, &task, error_room());
      if (status == FEEDLANE_TIMEOUT)
        status = unlocked([&] { return feedlane_worker_next(worker_, slice_ns, &task, error_room()); });
      if (status == FEEDLANE_INTERRUPTED || status == FEEDLANE_TIMEOUT) {
        if (PyErr_CheckSignals() != 0) return false;
        continue;
      }
      if (status != FEEDLANE_OK) return true;
      const TaskScope scope(task);
      if (!(is_ordinary_ && !has_payload(task) ? do_ordinary(task) : do_by_python(task))) return false;
    }
  }

 private:
  // Calls a method of the glue with the task as its first argument; the task is over after it.
  bool tell(const Ref& method, const feedlane_task* task, PyObject* reason = nullptr, PyObject* position = nullptr,
            PyObject* index = nullptr) {
    Ref object = new_task(task);
    if (!object) return false;
    Ref told(PyObject_CallFunctionObjArgs(method.get(), object.get(), reason, position, index, nullptr));
    end_task(object.get());
    return static_cast<bool>(told);
  }

  // Whether its indices are no integers: see indices.py.
  static bool has_payload(const feedlane_task* task) { return task->indices[0] == payload_mark; }

  bool do_by_python(const feedlane_task* task) { return tell(slow_, task); }

  // Before the first batch of an epoch in this worker.
  bool begin(const feedlane_task* task) {
    if (begins_.get() == Py_None || task->epoch == epoch_) return true;
    if (!Ref(PyObject_CallFunction(begins_.get(), "L", static_cast<long long>(task->epoch)))) return false;
    epoch_ = task->epoch;
    return true;
  }

  bool do_ordinary(const feedlane_task* task) {
    position_ = -1;
    if (begin(task) && make(task)) {
      const std::int32_t s = feedlane_task_commit(task, task->count, error_room());
      if (s == FEEDLANE_OK || s == FEEDLANE_E_STALE) return true;
      (void)raise(s);
      if (s != FEEDLANE_E_ARGUMENT) return false;  // else the task is still there, and fails by it
    }
    if (PyErr_ExceptionMatches(caught_.get()) == 0) return false;
    Ref reason = take_exception();
    Ref position(PyLong_FromLongLong(position_));
    Ref index(PyLong_FromLongLong(position_ >= 0 ? task->indices[position_] : -1));
    return reason && position && index && tell(failed_, task, reason.get(), position.get(), index.get());
  }

  bool make(const feedlane_task* task) {
    if (rows_.get() != Py_None) return write_rows(rows_.get(), dataset_.get(), task);
    Ref leaves(PyObject_CallNoArgs(new_leaves_.get()));
    Ref plan = leaves ? plan_of(task, leaves.get()) : Ref();
    Ref numbers(plan ? PyObject_GetAttrString(leaves.get(), "numbers") : nullptr);
    return numbers && write(task, leaves.get()) && attach(task, plan.get(), numbers.get());
  }

  Ref plan_of(const feedlane_task* task, PyObject* leaves) {
    if (collate_fn_.get() == Py_None && is_batched_) {
      if (get_all_.get() == Py_None) {
        Ref samples = by_index(task);
        return samples ? collate_batch(samples.get(), leaves, batch_.get()) : Ref();
      }
      Ref samples = at_once(task);
      if (samples && PyTuple_Check(samples.get()) == 0 && !is_stacked(samples.get()))
        samples = Ref(PySequence_List(samples.get()));
      if (!samples) return {};
      const Py_ssize_t count = PySequence_Size(samples.get());
      if (!counts_ || count == static_cast<Py_ssize_t>(task->count))
        return collate_batch(samples.get(), leaves, batch_.get());
      PyErr_Format(PyExc_RuntimeError, "__getitems__ was called with %llu indices, but returned %zd samples",
                   static_cast<unsigned long long>(task->count), count);
      return {};
    }
    Ref samples = is_batched_ && get_all_.get() != Py_None ? at_once(task) : by_index(task);
    if (!samples) return {};
    Ref first(is_batched_ ? nullptr : PySequence_GetItem(samples.get(), 0));
    if (!is_batched_ && !first) return {};
    PyObject* const input = is_batched_ ? samples.get() : first.get();
    if (collate_fn_.get() == Py_None) return Ref(PyObject_CallFunctionObjArgs(single_.get(), input, leaves, nullptr));
    Ref value(PyObject_CallFunctionObjArgs(collate_fn_.get(), input, nullptr));
    return value ? Ref(PyObject_CallFunctionObjArgs(whole_.get(), value.get(), leaves, nullptr)) : Ref();
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
    Ref indices = list_of(task->indices, task->count);
    return indices ? Ref(PyObject_CallFunctionObjArgs(get_all_.get(), indices.get(), nullptr)) : Ref();
  }

  bool write(const feedlane_task* task, PyObject* leaves) {
    if (compare_.get() != Py_None && !Ref(PyObject_CallFunctionObjArgs(compare_.get(), leaves, nullptr))) return false;
    const Py_ssize_t count = PyList_Size(leaves);
    for (Py_ssize_t i = 0; i < count; i++) {
      PyObject* const leaf = PyList_GetItem(leaves, i);
      const auto number = static_cast<std::int32_t>(i);
      if (!is_leaf(leaf)) {
        if (!write_by_python(task, number, leaf)) return false;
        continue;
      }
      const std::int32_t s = write_leaf(leaf, task, number, names_[static_cast<std::size_t>(i)].c_str());
      if (s != FEEDLANE_OK) return refuse(s);
    }
    return true;
  }

  bool write_by_python(const feedlane_task* task, std::int32_t number, PyObject* leaf) {
    Ref object = new_task(task);
    if (!object) return false;
    Ref written(PyObject_CallFunction(write_.get(), "OiO", object.get(), number, leaf));
    end_task(object.get());
    return static_cast<bool>(written);
  }

  // Whether equal plans of this kind are the same plan: no value that could be another one of an equal type (1 and
  // True), be changed in place, or be equal as its class has it. With an exception: false.
  static bool is_plain(PyObject* plan) {
    const long kind = PyLong_AsLong(PyTuple_GetItem(plan, 0));
    if (kind == plan_leaf || kind == plan_part || kind == plan_object) return true;
    if (kind == plan_value) return PyUnicode_CheckExact(PyTuple_GetItem(plan, 1));
    if (kind == plan_mapping) {
      PyObject* const shell = PyTuple_GetItem(plan, 2);
      if (!PyDict_CheckExact(shell) || PyDict_Size(shell) != 0) return false;
      PyObject* const keys = PyTuple_GetItem(plan, 1);
      for (Py_ssize_t i = 0; i < PyTuple_Size(keys); i++)
        if (!PyUnicode_CheckExact(PyTuple_GetItem(keys, i))) return false;
    } else if (kind != plan_list && kind != plan_tuple) {
      return false;
    }
    PyObject* const children = PyTuple_GetItem(plan, PyTuple_Size(plan) - 1);
    for (Py_ssize_t i = 0; i < PyTuple_Size(children); i++)
      if (!is_plain(PyTuple_GetItem(children, i))) return false;
    return true;
  }

  // The plan rarely changes from one batch to the next; the numbers, an array.array, do.
  bool attach(const feedlane_task* task, PyObject* plan, PyObject* numbers) {
    const bool plain = is_plain(plan);
    const int is_same = plain && newest_plan_ ? PyObject_RichCompareBool(plan, newest_plan_.get(), Py_EQ) : 0;
    if (is_same < 0) return false;
    if (is_same == 0) {
      Ref blob(PyObject_CallFunctionObjArgs(dump_.get(), plan, nullptr));
      if (!blob) return false;
      newest_plan_ = plain ? Ref::borrow(plan) : Ref();
      blob_ = std::move(blob);
    }
    char* bytes = nullptr;
    Py_ssize_t length = 0;
    if (PyBytes_AsStringAndSize(blob_.get(), &bytes, &length) != 0) return false;
    const Py_ssize_t count = PySequence_Size(numbers);
    if (count <= 0) return count == 0 && store(task, bytes, length);
    if (count > (max_metadata_bytes - length - 1) / Py_ssize_t{sizeof(std::int64_t)}) {
      const Ref whole(PyObject_CallFunctionObjArgs(dump_.get(), plan, numbers, nullptr));  // says that it is too long
      if (whole) PyErr_SetString(PyExc_RuntimeError, "the batch was changed while it was written");
      return false;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(numbers, &view, PyBUF_SIMPLE) != 0) return false;
    metadata_.assign(bytes, static_cast<std::size_t>(length));
    metadata_.push_back('\0');
    metadata_.append(static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len));
    PyBuffer_Release(&view);
    return store(task, metadata_.data(), static_cast<Py_ssize_t>(metadata_.size()));
  }

  bool store(const feedlane_task* task, const char* bytes, Py_ssize_t length) {
    const std::int32_t s =
        feedlane_task_store(task, FEEDLANE_STORE_METADATA, bytes, static_cast<std::uint64_t>(length), error_room());
    return s == FEEDLANE_OK || refuse(s);
  }

  // Raises for a status of the library's, in the package's words.
  bool refuse(std::int32_t status) {
    Ref exception = exception_of(status);
    if (exception) (void)Ref(PyObject_CallFunctionObjArgs(refused_.get(), exception.get(), nullptr));
    if (PyErr_Occurred() == nullptr) PyErr_Format(PyExc_RuntimeError, "status %d", status);
    return false;
  }

  feedlane_worker* worker_ = nullptr;
  bool is_ordinary_ = false, is_batched_ = true;
  bool counts_ = true;  // __getitems__ must return as many samples as it was asked for
  Ref dataset_, get_all_, collate_fn_, new_leaves_, batch_, single_, whole_, compare_, write_, dump_, slow_, failed_,
      refused_, rows_, begins_, caught_;
  std::vector<std::string> names_;
  Ref newest_plan_, blob_;
  std::string metadata_;
  std::int64_t epoch_ = -1;
  long long position_ = -1;  // of the sample that is being made
};

}  // namespace

bool work(feedlane_worker* worker, PyObject* glue, std::int32_t& status) {
  try {
    Loop loop;
    return loop.open(worker, glue) && loop.run(status);
  } catch (const std::bad_alloc&) {
    (void)PyErr_NoMemory();
    return false;
  }
}

PyObject* seed(PyObject*, PyObject*) {
  if (sample_seed == nullptr) Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(*sample_seed);
}

}  // namespace feedlane::python
