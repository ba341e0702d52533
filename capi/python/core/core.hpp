// SPDX-License-Identifier: Apache-2.0
// The compiled module of the Python package: feedlane.h as Python objects, and what runs once a batch.
//
// Python's stable ABI from 3.11 on, or that of one free-threaded Python. Every function is called with the GIL held. Calls of
// the library that may wait release it (see unlocked), and callbacks that use Python take it (see Locked). Without a GIL, what
// is done to an object's state between two waits is done under the object's lock instead (see Exclusive).
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <cstddef>
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

// failure.cpp: does not return in a thread beside the main one once the interpreter ends. Python would end that thread
// by an exception, which the library's frames cannot pass.
void stay_out_of_the_end();
// The interpreter ends: no loader is left.
void begin_the_end();

// Releases the GIL.
class Unlocked {
 public:
  Unlocked() = default;
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    stay_out_of_the_end();
    PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_ = PyEval_SaveThread();
};

// The status of `call`, a call of the library that may wait, without the GIL.
template <typename Call>
std::int32_t unlocked(const Call& call) {
  const Unlocked others;
  return call();
}

// Holds the GIL in a callback, whose thread may have it already.
class Locked {
 public:
  Locked() : state_((stay_out_of_the_end(), PyGILState_Ensure())) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// Free-threaded Python: holds the object's lock, which Unlocked gives up meanwhile, as it does the GIL.
class Exclusive {
 public:
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;
#ifdef Py_GIL_DISABLED
  explicit Exclusive(PyObject* object) { PyCriticalSection_Begin(&section_, object); }
  ~Exclusive() { PyCriticalSection_End(&section_); }

 private:
  PyCriticalSection section_;
#else
  explicit Exclusive(PyObject*) {}
#endif
};
// A method under its object's lock.
template <PyObject* (*function)(PyObject*, PyObject*)>
PyObject* exclusive(PyObject* self, PyObject* args) {
  const Exclusive lock(self);
  return function(self, args);
}

// Frees an object of a type that is allocated on the heap; the object's own members are freed before.
inline void free_object(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// A new object of a type whose fields are all zero, or null with an exception.
template <typename Object>
Object* new_object(PyTypeObject* type) {
  return reinterpret_cast<Object*>(reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0));
}

// Makes the type and adds it to the module by the last part of its name. Null with an exception. The reference is the
// module's, which is never unloaded.
PyTypeObject* add_type(PyObject* module, PyType_Spec& spec);

// A struct of feedlane.h with its size set.
template <typename Struct>
Struct init() {
  Struct value;
  feedlane_init(&value, sizeof value);
  return value;
}

// ---- failure.cpp: errors ----

// This thread's, with room for a traceback. For one call: the next one overwrites it.
feedlane_error* error_room();
// An exception of the package's for a status that `error_room` was just filled in for; null with another exception.
Ref exception_of(std::int32_t status);
// Raises it. `text`: in place of the library's.
std::nullptr_t raise(std::int32_t status, const char* text = nullptr);
// Raises it if the status is an error.
inline bool check(std::int32_t status) { return status >= 0 || raise(status) != nullptr; }
// The exception that is set, with its traceback; it is set no more.
Ref take_exception();
// Forks between the first process and this one: in another process than its own a loader's memory isn't mapped.
std::int64_t forks();

// ---- the types ----

// Kinds of a plan's nodes, and whose array a leaf is: as tree.py numbers them.
enum PlanKind : long {
  plan_leaf,
  plan_list,
  plan_tuple,
  plan_mapping,
  plan_named,
  plan_value,
  plan_state,
  plan_part,
  plan_object,
  plan_fields
};
enum LeafOwner : long { owner_any, owner_numpy, owner_torch };
constexpr Py_ssize_t max_metadata_bytes = 16 << 20;  // tree.MAX_BYTES

// loader.cpp: Loader.
struct Loader;
bool add_loader(PyObject* module);
// The Loader of a consumer. Takes over the handle. Null with an exception; then it is freed.
Ref new_consumer(feedlane_loader* handle);
// Null with a TypeError.
Loader* loader_of(PyObject* object);
// A call on the handle, which stays valid until the end of this object. Null with a StateError: it was closed. While
// one waits for_next, the next epoch can't begin: it would get a batch of that one.
class LoaderCall {
 public:
  enum Kind : char { for_any, for_next };
  explicit LoaderCall(Loader& loader, Kind kind = for_any);
  LoaderCall(const LoaderCall&) = delete;
  LoaderCall& operator=(const LoaderCall&) = delete;
  ~LoaderCall();
  [[nodiscard]] feedlane_loader* handle() const { return handle_; }
  // The loader's one monitor, which is destroyed with the handle. Null with an exception: a StateError if the loader
  // was closed.
  [[nodiscard]] feedlane_monitor* monitor() const;

 private:
  Loader& loader_;
  feedlane_loader* handle_;
  Kind kind_;
};
// A method of Loader without arguments: `function` of the object and its handle, within a LoaderCall.
template <PyObject* (*function)(PyObject*, feedlane_loader*)>
PyObject* on_handle(PyObject* self, PyObject*) {
  const LoaderCall call(*loader_of(self));
  return call.handle() != nullptr ? function(self, call.handle()) : nullptr;
}
// Raises for a function of the library that fills in no error. `self`: a Loader, or a Monitor.
std::nullptr_t refuse(PyObject* self, std::int32_t status);
// The number of `begin`s so far.
std::int64_t turn_of(const Loader& loader);
// Whether its batches are mapped for reading only: those of a consumer.
bool is_read_only(const Loader& loader);
// An exception that a callback raised and that ends loops at once, or null.
Ref take_interruption(const Loader& loader);

// batch.cpp: Batch and its Tensors.
bool add_batch(PyObject* module);
// Takes over the caller's reference of the batch. Null with an exception; then it is released.
Ref new_batch(feedlane_loader* loader, const feedlane_batch& batch, bool is_read_only);
// The name of a tensor, as a string.
Ref name_of(const feedlane_tensor& tensor);
// The token of a Batch of this loader. Zero with an exception: it is no such thing, or was released.
std::uint64_t token_in(PyObject* batch, const feedlane_loader* loader);

// view.cpp: the arrays and tensors over a batch's memory.
bool add_view(PyObject* module);
// numpy's element type; null without an exception: numpy has none such.
Ref numpy_type(const feedlane_dtype& type);
// A View: the bytes of a tensor of a held batch. It keeps a reference to the batch.
Ref view_of(feedlane_loader* loader, std::uint64_t token, const feedlane_tensor& tensor, bool is_read_only);
// A numpy array over tensor `number` of a batch that is held; it holds a reference of its own. Null without an
// exception: of a type that numpy doesn't have.
Ref array_of(feedlane_loader* loader, std::uint64_t token, const feedlane_tensor& tensor, bool is_read_only);
// A DLPack capsule of it.
Ref capsule_of(feedlane_loader* loader, std::uint64_t token, std::int32_t number, bool is_versioned);

// The library has taken over the reference of a Batch.
void forget_batch(PyObject* batch);

// arena.cpp: Arena.
bool add_arena(PyObject* module);

// observe.cpp: Monitor.
bool add_monitor(PyObject* module);

// ring.cpp: Receiver, Sender and Span.
bool add_ring(PyObject* module);

// cursor.cpp: Cursor, the iterator of an epoch.
bool add_cursor(PyObject* module);

// sampler.cpp: Sampler.
bool add_sampler(PyObject* module);
// Creates a Sampler, which keeps a reference to `source`, the object that its callbacks use, or null. sampler_target
// returns `target`. Null with an exception.
Ref new_sampler(const feedlane_sampler_config& config, PyObject* source, PyObject* target);
// Null with a TypeError.
const feedlane_sampler* sampler_handle(PyObject* object);
// The `target` of the callbacks_over that yields its indices; borrowed. Null: no Python object yields them.
PyObject* sampler_target(PyObject* object);

// callbacks.cpp: the library's calls into Python.
//
// A sampler over `target`, which has: restart(); draw(cap) -> an object with the buffer of int64, or None at the end;
// failed(exception) -> (text, traceback), both bytes; interruption, None; rows > 0: a batch sampler. `target` is
// borrowed: the garbage collector must see the references to it. `size` 0: an exception.
feedlane_sampler_callbacks callbacks_over(PyObject* target);
// A data set over `target`, which has: restart(); fetch(task) -> rows, None at the end; failed as above; `rows`: None,
// or a Rows, which makes the batches of `target.dataset` in place of fetch. Borrowed. `size` 0: an exception.
feedlane_dataset dataset_over(PyObject* target);

// pool.cpp: Pool.
bool add_pool(PyObject* module);
// Null with a TypeError.
feedlane_pool* pool_handle(PyObject* object);

// task.cpp: Task, a batch to be made, while a worker or a callback has it.
bool add_task(PyObject* module);
Ref new_task(const feedlane_task* task);
// The task is over; the object refuses every further call.
void end_task(PyObject* object);

// ahead.cpp: the task that this thread makes. A data set may itself go through a loader: the outer task comes back.
class TaskScope {
 public:
  explicit TaskScope(const feedlane_task* task);
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;
  ~TaskScope();

 private:
  const feedlane_task* outer_;
};
// task_id() -> int or None: of that task; None: there is none, or its data set is iterable.
PyObject* task_id(PyObject* module, PyObject* none);
// tasks(after) -> [(id, epoch, batch, indices)]: that task and those behind it, with ids above `after`.
PyObject* tasks(PyObject* module, PyObject* after);

// worker.cpp: Worker.
bool add_worker(PyObject* module);

// rows.cpp: Rows, the batches of a BatchDataset.
bool add_rows(PyObject* module);
// The batch of a task: `dataset.fetch` writes its rows. `rows` is a Rows. False with an exception: what `fetch` raises;
// TypeError: it has kept an array.
bool write_rows(PyObject* rows, PyObject* dataset, const feedlane_task* task);

// queue.cpp: IndexQueue, a sampler that Python code fills.
bool add_queue(PyObject* module);

// leaf.cpp: Leaf, a tensor to be written into a slot.
bool add_leaf(PyObject* module);
[[nodiscard]] bool is_leaf(PyObject* object);
// A Leaf of arrays, tensors, or numbers, one per row; not stacked: of one, as it is. Null without an exception: they
// are not of the plain kinds that this knows, and the package's Python code is asked.
Ref array_leaf(PyObject* const* arrays, Py_ssize_t count, bool is_stacked);
Ref tensor_leaf(PyObject* const* tensors, Py_ssize_t count, bool is_stacked);
Ref number_leaf(PyObject* const* numbers, Py_ssize_t count);
// Where the memory of a leaf's one source lies, also of a collate.Leaf. 0 bytes: not known.
struct Place {
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
};
Place place_of(PyObject* leaf);
// The bytes that a Leaf takes.
std::uint64_t bytes_of(PyObject* leaf);
// Writes a Leaf to so many bytes.
void write_leaf_to(PyObject* leaf, char* place);
// Writes a Leaf as tensor `number` of the task's batch. A status of feedlane_task_tensor; no exception.
std::int32_t write_leaf(PyObject* leaf, const feedlane_task* task, std::int32_t number, const char* name);

// pack.cpp: Pack, leaves that share a tensor.
bool add_pack(PyObject* module);
// The leaves in a Pack; another object has none. Borrowed.
Py_ssize_t packed_count(PyObject* object);
PyObject* packed_leaf(PyObject* pack, Py_ssize_t number);

// collate.cpp: plans (see tree.py) and leaves of samples and of values. What is not common is the package's Python
// code's.
//
// A list or tuple of samples as torch's default_collate would have it: the plan, its leaves appended to `leaves`, which
// is a collate.Leaves. What this does not know is left to `fallback(samples, leaves)`.
Ref collate_batch(PyObject* samples, PyObject* leaves, PyObject* fallback);
// Whether samples come as the rows of one array or tensor, so that collating them makes the same array. torch must have
// been looked for.
bool is_stacked(PyObject* samples);
PyObject* is_stacked_of(PyObject* module, PyObject* samples);
// collate_batch(samples, leaves, fallback) -> plan
PyObject* collate_batch_of(PyObject* module, PyObject* args);
// collate_whole(value, leaves, fallback, unusual) -> plan. A value that a collate_fn returned, as it is. `unusual`: the
// exception that is raised for a value that a plan would change: a list, dict or memory that is in it twice, a named
// tuple with attributes, or too many parts; None: such a value is changed.
PyObject* collate_whole(PyObject* module, PyObject* args);

// work.cpp: a worker's loop. `glue` is a worker.Glue. False with an exception: it ends this worker.
bool work(feedlane_worker* worker, PyObject* glue, std::int32_t& status);
// seed() -> int or None: of the sample that this thread is making.
PyObject* seed(PyObject* module, PyObject* none);

struct DLPackExchangeAPI;
// What `set_up` was given, and torch's.
struct Types {
  PyObject* ndarray = nullptr;    // numpy's array type
  PyObject* dtypes = nullptr;     // code << 8 | bits -> numpy's dtype
  PyObject* error = nullptr;      // errors.from_library
  PyObject* batch = nullptr;      // batch.Batch
  PyObject* malformed = nullptr;  // values.Malformed
  // torch's tensor type; null until torch is imported in this process. The rest of torch is written before.
  std::atomic<PyObject*> tensor_type{nullptr};
  // Acquire: who finds the type finds the rest. Pairs with look_for_torch.
  [[nodiscard]] PyObject* tensor() const { return tensor_type.load(std::memory_order_acquire); }
  PyObject* to_dlpack = nullptr;
  const DLPackExchangeAPI* exchange = nullptr;  // null: torch has none yet
  PyObject* uint8 = nullptr;                    // torch.uint8
  PyObject* int8 = nullptr;
  PyObject* name_dtype = nullptr;  // "dtype", interned
  PyObject* name_requires_grad = nullptr;
};
extern Types types;
// Looks whether torch is there by now.
void look_for_torch();

}  // namespace feedlane::python
