// SPDX-License-Identifier: Apache-2.0
// Sampler: a feedlane_sampler, and the functions that make one.
#include <memory>
#include <new>

#include "core.hpp"
#include "members.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* sampler_type;

struct Sampler {
  PyObject_HEAD feedlane_sampler* handle;
  PyObject* source;  // what its callbacks use, or null
  PyObject* target;  // the same if it is Python's own; borrowed
};

Sampler* sampler_of(PyObject* self) { return reinterpret_cast<Sampler*>(self); }

void free_sampler(PyObject* self) {
  PyObject_GC_UnTrack(self);
  (void)feedlane_sampler_destroy(&sampler_of(self)->handle);
  Py_CLEAR(sampler_of(self)->source);
  free_object(self);
}

int visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(sampler_of(self)->source);
  return 0;
}

PyObject* restart(PyObject* self, PyObject* epoch) {
  const long long number = PyLong_AsLongLong(epoch);
  if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (!check(feedlane_sampler_restart(sampler_of(self)->handle, number, error_room()))) return nullptr;
  Py_RETURN_NONE;
}

// Callbacks run in here with the GIL held: there is nothing to wait for.
PyObject* next_indices(PyObject* self, PyObject* cap) {
  const std::size_t room = PyLong_AsSize_t(cap);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const std::unique_ptr<std::int64_t[]> indices(new (std::nothrow) std::int64_t[room]);
  if (!indices) return PyErr_NoMemory();
  std::uint64_t got = 0;
  const std::int32_t s = feedlane_sampler_next(sampler_of(self)->handle, indices.get(), room, &got, error_room());
  if (!check(s)) return nullptr;
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  return list_of(indices.get(), got).release();
}

PyObject* length(PyObject* self, PyObject*) {
  std::int64_t count = -1;
  const std::int32_t s = feedlane_sampler_length(sampler_of(self)->handle, &count);
  return s == FEEDLANE_OK ? PyLong_FromLongLong(count) : raise(s, "");
}

PyMethodDef sampler_methods[] = {
    {"restart", restart, METH_O, "restart(epoch: int): from the first index of this epoch."},
    {"next", next_indices, METH_O,
     "next(cap: int) -> list of up to `cap` indices, one batch of a batch sampler; None at the end."},
    {"length", length, METH_NOARGS, "length() -> indices or batches of an epoch; -1: unknown."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot sampler_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_sampler)},
                               {Py_tp_traverse, reinterpret_cast<void*>(visit)},
                               {Py_tp_methods, sampler_methods},
                               {Py_tp_doc, const_cast<char*>("A feedlane_sampler. One thread at a time.")},
                               {0, nullptr}};
PyType_Spec sampler_spec = {"feedlane._core.Sampler", sizeof(Sampler), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, sampler_slots};

// ---- the functions that make one ----

PyObject* made(std::int32_t status, feedlane_sampler* handle, PyObject* source = nullptr, PyObject* target = nullptr) {
  if (status != FEEDLANE_OK) return raise(status);
  Ref sampler = new_sampler(handle, source);
  if (sampler) sampler_of(sampler.get())->target = target;
  return sampler.release();
}

PyObject* sequential(PyObject*, PyObject* length) {
  const long long count = PyLong_AsLongLong(length);
  if (count == -1 && PyErr_Occurred() != nullptr) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s = feedlane_sampler_sequential(count, &handle, error_room());
  return made(s, handle);
}

PyObject* random(PyObject*, PyObject* config) {
  using Config = feedlane_random_config;
  static const Member<Config> members[] = {member_of<&Config::length>("length"), member_of<&Config::seed>("seed"),
                                           member_of<&Config::num_samples>("num_samples"),
                                           member_of<&Config::replacement>("replacement"),
                                           member_of<&Config::shuffle>("shuffle")};
  auto value = init<Config>();
  if (!set_members<Config>(value, config, members)) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s = feedlane_sampler_random(&value, &handle, error_room());
  return made(s, handle);
}

// An array of 8-byte elements.
class Elements {
 public:
  explicit Elements(PyObject* object) : is_there_(PyObject_GetBuffer(object, &buffer_, PyBUF_C_CONTIGUOUS) == 0) {}
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;
  ~Elements() {
    if (is_there_) PyBuffer_Release(&buffer_);
  }
  explicit operator bool() const { return is_there_; }
  [[nodiscard]] const void* data() const { return buffer_.buf; }
  [[nodiscard]] std::uint64_t count() const { return static_cast<std::uint64_t>(buffer_.len) / 8; }

 private:
  Py_buffer buffer_{};
  bool is_there_;
};

PyObject* subset(PyObject*, PyObject* args) {
  PyObject* indices = nullptr;
  int in_order = 0;
  unsigned long long seed = 0;
  if (PyArg_ParseTuple(args, "OpK:subset", &indices, &in_order, &seed) == 0) return nullptr;
  const Elements all(indices);
  if (!all) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s = feedlane_sampler_subset(static_cast<const std::int64_t*>(all.data()), all.count(), in_order,
                                                 seed, &handle, error_room());
  return made(s, handle);
}

PyObject* weighted(PyObject*, PyObject* args) {
  using Config = feedlane_weighted_config;
  static const Member<Config> members[] = {member_of<&Config::num_samples>("num_samples"),
                                           member_of<&Config::seed>("seed"),
                                           member_of<&Config::without_replacement>("without_replacement")};
  PyObject *weights = nullptr, *config = nullptr;
  if (PyArg_ParseTuple(args, "OO!:weighted", &weights, &PyDict_Type, &config) == 0) return nullptr;
  auto value = init<Config>();
  const Elements all(weights);
  if (!all || !set_members<Config>(value, config, members)) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s =
      feedlane_sampler_weighted(static_cast<const double*>(all.data()), all.count(), &value, &handle, error_room());
  return made(s, handle);
}

PyObject* distributed(PyObject*, PyObject* config) {
  using Config = feedlane_distributed_config;
  static const Member<Config> members[] = {member_of<&Config::length>("length"),
                                           member_of<&Config::world>("world"),
                                           member_of<&Config::rank>("rank"),
                                           member_of<&Config::seed>("seed"),
                                           member_of<&Config::no_shuffle>("no_shuffle"),
                                           member_of<&Config::drop_last>("drop_last"),
                                           member_of<&Config::shuffle>("shuffle"),
                                           member_of<&Config::detect_off>("detect_off")};
  auto value = init<Config>();
  if (!set_members<Config>(value, config, members)) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s = feedlane_sampler_distributed(&value, &handle, error_room());
  return made(s, handle);
}

PyObject* tokens(PyObject*, PyObject* args) {
  using Config = feedlane_tokens_config;
  static const Member<Config> members[] = {member_of<&Config::max_tokens>("max_tokens"),
                                           member_of<&Config::max_rows>("max_rows"),
                                           member_of<&Config::seed>("seed"),
                                           member_of<&Config::window>("window"),
                                           member_of<&Config::padded>("padded"),
                                           member_of<&Config::no_shuffle>("no_shuffle"),
                                           member_of<&Config::drop_last>("drop_last"),
                                           member_of<&Config::drop_long>("drop_long"),
                                           member_of<&Config::world>("world"),
                                           member_of<&Config::rank>("rank")};
  PyObject *lengths = nullptr, *config = nullptr;
  if (PyArg_ParseTuple(args, "OO!:tokens", &lengths, &PyDict_Type, &config) == 0) return nullptr;
  auto value = init<Config>();
  const Elements all(lengths);
  if (!all || !set_members<Config>(value, config, members)) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s =
      feedlane_sampler_tokens(static_cast<const std::int64_t*>(all.data()), all.count(), &value, &handle, error_room());
  return made(s, handle);
}

PyObject* mixture(PyObject*, PyObject* args) {
  using Config = feedlane_mixture_config;
  static const Member<Config> members[] = {member_of<&Config::num_samples>("num_samples"),
                                           member_of<&Config::seed>("seed"),
                                           member_of<&Config::window>("window"),
                                           member_of<&Config::no_shuffle>("no_shuffle"),
                                           member_of<&Config::drop_last>("drop_last"),
                                           member_of<&Config::world>("world"),
                                           member_of<&Config::rank>("rank")};
  PyObject *lengths = nullptr, *weights = nullptr, *from = nullptr, *config = nullptr;
  if (PyArg_ParseTuple(args, "OOOO!:mixture", &lengths, &weights, &from, &PyDict_Type, &config) == 0) return nullptr;
  auto value = init<Config>();
  const Elements sizes(lengths), shares(weights), stages(from);
  if (!sizes || !shares || !stages || !set_members<Config>(value, config, members)) return nullptr;
  if (stages.count() == 0 || shares.count() / stages.count() != sizes.count() || shares.count() % stages.count() != 0) {
    PyErr_Format(PyExc_ValueError, "%zu weights, wanted are %zu stages of %zu sources", std::size_t{shares.count()},
                 std::size_t{stages.count()}, std::size_t{sizes.count()});
    return nullptr;
  }
  value.from = static_cast<const std::int64_t*>(stages.data());
  value.stages = stages.count();
  feedlane_sampler* handle = nullptr;
  const std::int32_t s =
      feedlane_sampler_mixture(static_cast<const std::int64_t*>(sizes.data()), sizes.count(),
                               static_cast<const double*>(shares.data()), &value, &handle, error_room());
  return made(s, handle);
}

PyObject* batch(PyObject*, PyObject* args) {
  PyObject* inner = nullptr;
  long long size = 0;
  int drop_last = 0;
  if (PyArg_ParseTuple(args, "OLp:batch", &inner, &size, &drop_last) == 0) return nullptr;
  const feedlane_sampler* const of = sampler_handle(inner);
  if (of == nullptr) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s = feedlane_sampler_batch(of, size, drop_last, &handle, error_room());
  return made(s, handle, sampler_of(inner)->source, sampler_of(inner)->target);
}

PyObject* custom(PyObject*, PyObject* args) {
  PyObject* target = nullptr;
  long long rows = 0;
  if (PyArg_ParseTuple(args, "OL:custom", &target, &rows) == 0) return nullptr;
  feedlane_sampler* handle = nullptr;
  const std::int32_t s = make_custom_sampler(target, rows, &handle);
  return made(s, handle, target, target);
}

PyObject* rank_detect(PyObject*, PyObject*) {
  using Rank = feedlane_rank;
  static const Member<Rank> members[] = {member_of<&Rank::rank>("rank"), member_of<&Rank::world>("world"),
                                         member_of<&Rank::source>("source"), member_of<&Rank::warning>("warning")};
  auto rank = init<Rank>();
  if (!check(feedlane_rank_detect(&rank, error_room()))) return nullptr;
  return dict_of<Rank>(rank, members).release();
}

PyObject* torch_base_seed(PyObject*, PyObject* seed) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(seed);
  if (PyErr_Occurred() != nullptr) return nullptr;
  std::uint64_t base = 0;
  if (!check(feedlane_torch_base_seed(value, 0, &base, error_room()))) return nullptr;
  return PyLong_FromUnsignedLongLong(base);
}

PyMethodDef sampler_functions[] = {
    {"sequential", sequential, METH_O, "sequential(length) -> Sampler"},
    {"random", random, METH_O, "random(dict of feedlane_random_config) -> Sampler"},
    {"subset", subset, METH_VARARGS, "subset(buffer of int64, in_order, seed) -> Sampler"},
    {"weighted", weighted, METH_VARARGS, "weighted(buffer of float64, dict of feedlane_weighted_config) -> Sampler"},
    {"distributed", distributed, METH_O, "distributed(dict of feedlane_distributed_config) -> Sampler"},
    {"tokens", tokens, METH_VARARGS, "tokens(buffer of int64, dict of feedlane_tokens_config) -> Sampler"},
    {"mixture", mixture, METH_VARARGS,
     "mixture(lengths: buffer of int64, weights: buffer of float64, from: buffer of int64,\n"
     "dict of feedlane_mixture_config) -> Sampler"},
    {"batch", batch, METH_VARARGS, "batch(inner, batch_size, drop_last) -> Sampler"},
    {"custom", custom, METH_VARARGS,
     "custom(target, rows) -> Sampler over an object with restart(), draw(cap) and failed(exception).\n"
     "rows > 0: of batches."},
    {"rank_detect", rank_detect, METH_NOARGS, "rank_detect() -> dict of feedlane_rank"},
    {"torch_base_seed", torch_base_seed, METH_O,
     "torch_base_seed(seed) -> what DataLoader draws after manual_seed(seed)"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

Ref new_sampler(feedlane_sampler* handle, PyObject* source) {
  auto* const sampler = new_object<Sampler>(sampler_type);
  if (sampler == nullptr) {
    (void)feedlane_sampler_destroy(&handle);
    return {};
  }
  sampler->handle = handle;
  sampler->source = Ref::borrow(source).release();
  return Ref(reinterpret_cast<PyObject*>(sampler));
}

const feedlane_sampler* sampler_handle(PyObject* object) {
  if (Py_TYPE(object) == sampler_type) return sampler_of(object)->handle;
  PyErr_Format(PyExc_TypeError, "%R is no Sampler", object);
  return nullptr;
}

PyObject* sampler_target(PyObject* object) { return sampler_of(object)->target; }

bool add_sampler(PyObject* module) {
  sampler_type = add_type(module, sampler_spec);
  return sampler_type != nullptr && PyModule_AddFunctions(module, sampler_functions) == 0;
}

}  // namespace feedlane::python
