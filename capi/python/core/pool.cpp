// SPDX-License-Identifier: Apache-2.0
// Pool: a feedlane_pool. Loaders, batches and streams may still use it when the object ends: its end is tried again
// then.
#include <new>
#include <vector>

#include "core.hpp"
#include "members.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* pool_type;
// By the GIL: of objects that ended while the pool was in use. It has room for every Pool that there is.
std::vector<feedlane_pool*> left;
std::size_t alive = 0;

struct Pool {
  PyObject_HEAD feedlane_pool* handle;
};

Pool* pool_of(PyObject* self) { return reinterpret_cast<Pool*>(self); }

void end_left() {
  std::erase_if(left, [](feedlane_pool*& pool) { return feedlane_pool_destroy(&pool) == FEEDLANE_OK; });
}

PyObject* new_pool(PyTypeObject* type, PyObject* args, PyObject*) {
  using Config = feedlane_pool_config;
  static const Member<Config> members[] = {member_of<&Config::device>("device"), member_of<&Config::buffers>("buffers"),
                                           member_of<&Config::buffer_bytes>("buffer_bytes"),
                                           member_of<&Config::budget_bytes>("budget_bytes")};
  const char* backend = nullptr;
  unsigned long long custom = 0;
  PyObject* rest = nullptr;
  if (PyArg_ParseTuple(args, "zKO!:Pool", &backend, &custom, &PyDict_Type, &rest) == 0) return nullptr;
  end_left();
  auto config = init<Config>();
  config.backend = backend;
  config.custom = reinterpret_cast<const feedlane_backend*>(custom);
  if (!set_members<Config>(config, rest, members)) return nullptr;
  auto* const pool = new_object<Pool>(type);
  Ref made(reinterpret_cast<PyObject*>(pool));
  if (!made) return nullptr;
  alive++;
  try {
    left.reserve(left.size() + alive);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  const std::int32_t s = unlocked([&] { return feedlane_pool_create(&config, &pool->handle, error_room()); });
  return check(s) ? made.release() : nullptr;
}

void free_pool(PyObject* self) {
  alive--;
  if (pool_of(self)->handle != nullptr) left.push_back(pool_of(self)->handle);
  end_left();
  free_object(self);
}

PyObject* get_stats(PyObject* self, PyObject*) {
  using Stats = feedlane_pool_stats;
  static const Member<Stats> members[] = {
      member_of<&Stats::buffers>("buffers"),   member_of<&Stats::in_use>("in_use"),
      member_of<&Stats::pending>("pending"),   member_of<&Stats::registered_bytes>("registered_bytes"),
      member_of<&Stats::acquired>("acquired"), member_of<&Stats::waited_ns>("waited_ns"),
      member_of<&Stats::failures>("failures")};
  auto stats = init<Stats>();
  const std::int32_t s = feedlane_pool_get_stats(pool_of(self)->handle, &stats);
  return s == FEEDLANE_OK ? dict_of<Stats>(stats, members).release() : raise(s, "");
}

PyObject* end_unused(PyObject*, PyObject*) {
  end_left();
  return PyLong_FromSize_t(left.size());
}

PyMethodDef pool_methods[] = {{"stats", exclusive<get_stats>, METH_NOARGS, "stats() -> dict of feedlane_pool_stats"},
                              {"end_unused", end_unused, METH_NOARGS | METH_STATIC,
                               "end_unused() -> ends the pools that have no Python object and are not in use; returns "
                               "the number of those in use"},
                              {nullptr, nullptr, 0, nullptr}};
PyType_Slot pool_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_pool)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_pool)},
    {Py_tp_methods, pool_methods},
    {Py_tp_doc,
     const_cast<char*>(
         "Pool(backend, custom, dict of feedlane_pool_config). custom: the address of a feedlane_backend, or 0.")},
    {0, nullptr}};
PyType_Spec pool_spec = {"feedlane._core.Pool", sizeof(Pool), 0, Py_TPFLAGS_DEFAULT, pool_slots};

}  // namespace

feedlane_pool* pool_handle(PyObject* object) {
  if (Py_TYPE(object) == pool_type) return pool_of(object)->handle;
  PyErr_Format(PyExc_TypeError, "%R is not a Pool", object);
  return nullptr;
}

bool add_pool(PyObject* module) {
  pool_type = add_type(module, pool_spec);
  return pool_type != nullptr;
}

}  // namespace feedlane::python
