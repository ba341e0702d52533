// SPDX-License-Identifier: Apache-2.0
// feedlane._core: the module's functions and their registration.
#include "core.hpp"

namespace feedlane::python {

Types types;

void look_for_torch() {
  if (types.tensor != nullptr) return;
  PyObject* const modules = PyImport_GetModuleDict();  // borrowed
  PyObject* const torch = modules != nullptr ? PyDict_GetItemString(modules, "torch") : nullptr;
  if (torch == nullptr) return;
  Ref tensor(PyObject_GetAttrString(torch, "Tensor"));
  Ref utils(PyObject_GetAttrString(torch, "utils"));
  Ref dlpack(utils ? PyObject_GetAttrString(utils.get(), "dlpack") : nullptr);
  Ref to_dlpack(dlpack ? PyObject_GetAttrString(dlpack.get(), "to_dlpack") : nullptr);
  PyErr_Clear();  // torch is being imported, or is none that we know: the package's Python code does without
  if (!tensor || !to_dlpack) return;
  types.tensor = tensor.release();
  types.to_dlpack = to_dlpack.release();
}

namespace {

PyObject* set_up(PyObject*, PyObject* args) {
  PyObject *ndarray = nullptr, *dtype = nullptr;
  if (PyArg_ParseTuple(args, "OO:set_up", &ndarray, &dtype) == 0) return nullptr;
  types.ndarray = Ref::borrow(ndarray).release();
  types.dtype = Ref::borrow(dtype).release();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "set_up(ndarray, dtype): numpy's array type; what makes a Leaf's dtype."},
    {"work", work, METH_VARARGS,
     "work(worker, error, glue) -> status: makes batches until the trainer wants no more. glue: see worker.py."},
    {"seed", seed, METH_NOARGS, "seed() -> int or None: of the sample that this thread is making."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "feedlane._core",
                          "What runs once a batch: the trainer's iterator and the worker's loop.",
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
  Ref module(PyModule_Create(&definition));
  if (!module || !add_cursor(module.get()) || !add_leaf(module.get()) || !add_queue(module.get())) return nullptr;
  return module.release();
}
