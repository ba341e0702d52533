// SPDX-License-Identifier: Apache-2.0
// Worker: a feedlane_worker, in the process that the trainer or its host has started.
#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

struct Worker {
  PyObject_HEAD feedlane_worker* handle;
};

PyTypeObject* worker_type;

Worker* worker_of(PyObject* self) { return reinterpret_cast<Worker*>(self); }

PyObject* new_worker(PyTypeObject* type, PyObject* args, PyObject*) {
  int fd = -1;
  if (PyArg_ParseTuple(args, "i:Worker", &fd) == 0) return nullptr;
  auto* const worker = new_object<Worker>(type);
  Ref made(reinterpret_cast<PyObject*>(worker));
  if (!made) return nullptr;
  const std::int32_t s =
      unlocked([&] { return feedlane_worker_attach(fd, nullptr, FEEDLANE_FOREVER, &worker->handle, error_room()); });
  return check(s) ? made.release() : nullptr;
}

PyObject* of_thread(PyObject*, PyObject* object) {
  Loader* const loader = loader_of(object);
  if (loader == nullptr) return nullptr;
  const LoaderCall call(*loader);
  if (call.handle() == nullptr) return nullptr;
  auto* const worker = new_object<Worker>(worker_type);
  Ref made(reinterpret_cast<PyObject*>(worker));
  if (!made) return nullptr;
  const std::int32_t s = feedlane_worker_attach(-1, call.handle(), FEEDLANE_FOREVER, &worker->handle, error_room());
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  return check(s) ? made.release() : nullptr;
}

void free_worker(PyObject* self) {
  (void)feedlane_worker_destroy(&worker_of(self)->handle);
  free_object(self);
}

// ((name, (code, bits), shape), ...), as the trainer declared them.
Ref fields_of(const feedlane_worker_info& info) {
  Ref all(PyTuple_New(static_cast<Py_ssize_t>(info.field_count)));
  for (std::uint64_t i = 0; all && i < info.field_count; i++) {
    const feedlane_field& field = info.fields[i];
    Ref shape = shape_of(field.shape, field.ndim);
    PyObject* const one =
        shape ? Py_BuildValue("(s(ii)O)", field.name, field.dtype.code, field.dtype.bits, shape.get()) : nullptr;
    if (one == nullptr) return {};
    PyTuple_SetItem(all.get(), static_cast<Py_ssize_t>(i), one);
  }
  return all;
}

PyObject* info(PyObject* self, PyObject*) {
  auto info = init<feedlane_worker_info>();
  if (const std::int32_t s = feedlane_worker_get_info(worker_of(self)->handle, &info); s != FEEDLANE_OK)
    return raise(s, "");
  const Ref fields = fields_of(info);
  if (!fields) return nullptr;
  return Py_BuildValue("{s:i,s:i,s:i,s:i,s:i,s:O,s:K,s:L,s:i,s:i,s:L,s:L,s:y#}", "iterable", info.iterable, "drop_last",
                       info.drop_last, "id", info.id, "count", info.count, "generation", info.generation, "fields",
                       fields.get(), "seed", static_cast<unsigned long long>(info.seed), "epoch",
                       static_cast<long long>(info.epoch), "rank", info.rank, "world", info.world, "shard",
                       static_cast<long long>(info.shard), "shards", static_cast<long long>(info.shards), "config",
                       static_cast<const char*>(info.config != nullptr ? info.config : ""),
                       static_cast<Py_ssize_t>(info.config_bytes));
}

PyObject* ready(PyObject* self, PyObject* args) {
  int status = 0;
  const char* text = nullptr;
  if (PyArg_ParseTuple(args, "iy:ready", &status, &text) == 0) return nullptr;
  if (!check(feedlane_worker_ready(worker_of(self)->handle, status, text, error_room()))) return nullptr;
  Py_RETURN_NONE;
}

PyObject* run(PyObject* self, PyObject* glue) {
  std::int32_t status = FEEDLANE_OK;
  if (!work(worker_of(self)->handle, glue, status) || !check(status)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* detach(PyObject* self, PyObject*) {
  (void)feedlane_worker_destroy(&worker_of(self)->handle);
  Py_RETURN_NONE;
}

PyObject* descriptor(PyObject*, PyObject*) { return PyLong_FromLong(feedlane_worker_fd()); }

PyMethodDef worker_methods[] = {
    {"of_thread", of_thread, METH_O | METH_STATIC,
     "of_thread(loader) -> Worker: this thread is one of this process's loader; None: none is missing."},
    {"descriptor", descriptor, METH_NOARGS | METH_STATIC,
     "descriptor() -> the trainer's, -1: none has started this process"},
    {"info", exclusive<info>, METH_NOARGS,
     "info() -> dict: iterable, drop_last, id, count, generation, fields, seed, epoch, rank, world, shard, shards, "
     "config"},
    {"ready", exclusive<ready>, METH_VARARGS,
     "ready(status, text: bytes): the data set is open (0), or could not be opened because of `text`."},
    {"run", exclusive<run>, METH_O, "run(glue): makes batches until the trainer wants no more. glue: see worker.py."},
    {"detach", exclusive<detach>, METH_NOARGS, "detach(): leaves."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot worker_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_worker)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_worker)},
    {Py_tp_methods, worker_methods},
    {Py_tp_doc,
     const_cast<char*>("Worker(descriptor): attaches to the trainer; the descriptor is the library's from here on.")},
    {0, nullptr}};
PyType_Spec worker_spec = {"feedlane._core.Worker", sizeof(Worker), 0, Py_TPFLAGS_DEFAULT, worker_slots};

}  // namespace

bool add_worker(PyObject* module) {
  worker_type = add_type(module, worker_spec);
  return worker_type != nullptr;
}

}  // namespace feedlane::python
