// SPDX-License-Identifier: Apache-2.0
// feedlane._core: the module's functions and their registration.
#include "core.hpp"
#include "dlpack.hpp"

namespace feedlane::python {

Types types;

namespace {

// Null, without an exception: it has none, or none of a version that this file's functions are of.
const DLPackExchangeAPI* exchange_of(PyObject* tensor_type) {
  const Ref capsule(PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__"));
  void* const found = capsule ? PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api") : nullptr;
  PyErr_Clear();
  const auto* const api = static_cast<const DLPackExchangeAPI*>(found);
  return api != nullptr && api->version.major == 1 && api->dltensor_from_py_object_no_sync != nullptr ? api : nullptr;
}

}  // namespace

void look_for_torch() {
  if (types.tensor() != nullptr) return;
  PyObject* const modules = PyImport_GetModuleDict();  // borrowed
  PyObject* const torch = modules != nullptr ? PyDict_GetItemString(modules, "torch") : nullptr;
  if (torch == nullptr) return;
  Ref tensor(PyObject_GetAttrString(torch, "Tensor"));
  Ref utils(PyObject_GetAttrString(torch, "utils"));
  Ref dlpack(utils ? PyObject_GetAttrString(utils.get(), "dlpack") : nullptr);
  Ref to_dlpack(dlpack ? PyObject_GetAttrString(dlpack.get(), "to_dlpack") : nullptr);
  Ref uint8(PyObject_GetAttrString(torch, "uint8"));
  Ref int8(PyObject_GetAttrString(torch, "int8"));
  PyErr_Clear();  // torch is being imported, or is none that we know: the package's Python code does without
  if (!tensor || !to_dlpack || !uint8 || !int8) return;
  static std::atomic<bool> is_found{false};  // relaxed: only one thread of free-threaded Python writes
  if (is_found.exchange(true, std::memory_order_relaxed)) return;
  types.uint8 = uint8.release();
  types.int8 = int8.release();
  types.to_dlpack = to_dlpack.release();
  types.exchange = exchange_of(tensor.get());
  types.tensor_type.store(tensor.release(), std::memory_order_release);  // pairs with Types::tensor
}

PyTypeObject* add_type(PyObject* module, PyType_Spec& spec) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr || PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type)) != 0) return nullptr;
  return reinterpret_cast<PyTypeObject*>(type);
}

namespace {

PyObject* set_up(PyObject*, PyObject* args) {
  PyObject *ndarray = nullptr, *dtypes = nullptr, *error = nullptr, *batch = nullptr, *malformed = nullptr;
  if (PyArg_ParseTuple(args, "OO!OOO:set_up", &ndarray, &PyDict_Type, &dtypes, &error, &batch, &malformed) == 0)
    return nullptr;
  types.ndarray = Ref::borrow(ndarray).release();
  types.dtypes = Ref::borrow(dtypes).release();
  types.error = Ref::borrow(error).release();
  types.batch = Ref::borrow(batch).release();
  types.malformed = Ref::borrow(malformed).release();
  types.name_dtype = PyUnicode_InternFromString("dtype");
  types.name_requires_grad = PyUnicode_InternFromString("requires_grad");
  if (types.name_dtype == nullptr || types.name_requires_grad == nullptr) return nullptr;
  Py_RETURN_NONE;
}

PyObject* status_text(PyObject*, PyObject* status) {
  const long number = PyLong_AsLong(status);
  if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return PyUnicode_FromString(feedlane_status_text(static_cast<std::int32_t>(number)));
}

PyObject* end(PyObject*, PyObject*) {
  begin_the_end();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"end", end, METH_NOARGS,
     "end(): the interpreter ends; threads that come back from the library stay where they are."},
    {"set_up", set_up, METH_VARARGS,
     "set_up(ndarray, dtypes, error, batch, malformed): numpy's array type; its dtypes by code << 8 | bits;\n"
     "what makes an exception of an error of the library; the class of batches;\n"
     "what is raised for a plan that is none."},
    {"status_text", status_text, METH_O, "status_text(status) -> its meaning in one line"},
    {"is_stacked", is_stacked_of, METH_O, "is_stacked(samples) -> bool: rows of one array or tensor"},
    {"collate_batch", collate_batch_of, METH_VARARGS,
     "collate_batch(samples, leaves, fallback) -> the plan of samples that come together, its leaves appended.\n"
     "fallback(samples, leaves): of what this doesn't know."},
    {"collate_whole", collate_whole, METH_VARARGS,
     "collate_whole(value, leaves, fallback, unusual) -> the plan of a value as it is, its leaves appended.\n"
     "fallback(value, leaves): of what this doesn't know. unusual: what is raised for a value that a plan would\n"
     "change, or None."},
    {"seed", seed, METH_NOARGS, "seed() -> int or None: of the sample that this thread is making."},
    {"task_id", task_id, METH_NOARGS,
     "task_id() -> int or None: of the task that this thread makes; None: iterable too."},
    {"tasks", tasks, METH_O,
     "tasks(after) -> [(id, epoch, batch, indices)]: the task that this thread makes and those behind it, above "
     "`after`."},
    {nullptr, nullptr, 0, nullptr}};

struct Constant {
  const char* name;
  long long value;
};

// As in feedlane.h, without its prefix.
#define NAMED(name) \
  Constant { #name, FEEDLANE_##name }
constexpr Constant constants[] = {NAMED(ABI),
                                  NAMED(FOREVER),
                                  NAMED(MAX_NDIM),
                                  NAMED(MAX_TENSORS),
                                  NAMED(UNBATCHED),
                                  NAMED(PREFETCH_AUTO),
                                  NAMED(OK),
                                  NAMED(END),
                                  NAMED(TIMEOUT),
                                  NAMED(AGAIN),
                                  NAMED(INTERRUPTED),
                                  NAMED(SLOTS_HELD),
                                  NAMED(ABANDONED),
                                  NAMED(ABSENT),
                                  NAMED(E_ARGUMENT),
                                  NAMED(E_STATE),
                                  NAMED(E_BUSY),
                                  NAMED(E_FORKED),
                                  NAMED(E_STALE),
                                  NAMED(E_MEMORY),
                                  NAMED(E_LIMIT),
                                  NAMED(E_OS),
                                  NAMED(E_ABI),
                                  NAMED(E_CORRUPT),
                                  NAMED(E_PEER_DEAD),
                                  NAMED(E_SAMPLE),
                                  NAMED(E_INIT),
                                  NAMED(E_HUNG),
                                  NAMED(E_QUARANTINED),
                                  NAMED(E_RESTARTS),
                                  NAMED(E_DEVICE),
                                  NAMED(E_UNSUPPORTED),
                                  NAMED(SHUFFLE_TORCH),
                                  NAMED(SHUFFLE_FEISTEL),
                                  NAMED(SHUFFLE_TORCH_LOADER),
                                  NAMED(START_SPAWN),
                                  NAMED(START_FORK),
                                  NAMED(START_THREAD),
                                  NAMED(START_EXTERNAL),
                                  NAMED(START_HOST),
                                  NAMED(DISPATCH_LEAST_LOADED),
                                  NAMED(DISPATCH_ROUND_ROBIN),
                                  NAMED(SHARE_NONE),
                                  NAMED(SHARE_EVERY),
                                  NAMED(SHARE_DEAL),
                                  NAMED(LAG_BLOCK),
                                  NAMED(LAG_EVICT),
                                  NAMED(LAG_OBSERVE),
                                  NAMED(CONSUMER_NONE),
                                  NAMED(CONSUMER_OFFERED),
                                  NAMED(CONSUMER_ATTACHED),
                                  NAMED(CONSUMER_EVICTED),
                                  NAMED(CONSUMER_LEFT),
                                  NAMED(FULL_EVICT),
                                  NAMED(FULL_WAIT),
                                  NAMED(FULL_FAIL),
                                  NAMED(GET_MAKE),
                                  NAMED(MAX_KEY_BYTES)};
#undef NAMED

bool add_constants(PyObject* module) {
  for (const Constant& c : constants) {
    Ref value(PyLong_FromLongLong(c.value));
    if (!value || PyModule_AddObjectRef(module, c.name, value.get()) != 0) return false;
  }
  return PyModule_AddStringConstant(module, "VERSION", feedlane_version()) == 0;
}

// Another library than the one that this was compiled for, found at run time.
bool check_abi() {
  if (feedlane_abi_version() == FEEDLANE_ABI) return true;
  PyErr_Format(PyExc_ImportError, "libfeedlane has binary interface %u, but this package needs %d",
               feedlane_abi_version(), static_cast<int>(FEEDLANE_ABI));
  return false;
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "feedlane._core",
                          "feedlane.h as Python objects, and what runs once a batch.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace feedlane::python

PyMODINIT_FUNC PyInit__core() {
  using namespace feedlane::python;
  Ref module(check_abi() ? PyModule_Create(&definition) : nullptr);
  if (!module || !add_constants(module.get())) return nullptr;
#ifdef Py_GIL_DISABLED
  if (PyUnstable_Module_SetGIL(module.get(), Py_MOD_GIL_NOT_USED) != 0) return nullptr;
#endif
  for (bool (*const add)(PyObject*) :
       {add_arena, add_monitor, add_ring, add_sampler, add_pool, add_loader, add_view, add_batch, add_cursor, add_task,
        add_worker, add_leaf, add_pack, add_rows, add_queue})
    if (!add(module.get())) return nullptr;
  return module.release();
}
