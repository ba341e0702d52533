// SPDX-License-Identifier: Apache-2.0
// Sampler: a feedlane_sampler of any kind.
#include <algorithm>
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

// ---- the configuration ----

using Config = feedlane_sampler_config;

std::span<const Member<Config>> config_members() {
  static const Member<Config> members[] = {member_of<&Config::shuffle>("shuffle"),
                                           member_of<&Config::length>("length"),
                                           member_of<&Config::seed>("seed"),
                                           member_of<&Config::num_samples>("num_samples"),
                                           member_of<&Config::replacement>("replacement"),
                                           member_of<&Config::without_replacement>("without_replacement"),
                                           member_of<&Config::no_shuffle>("no_shuffle"),
                                           member_of<&Config::drop_last>("drop_last"),
                                           member_of<&Config::world>("world"),
                                           member_of<&Config::rank>("rank"),
                                           member_of<&Config::detect_off>("detect_off"),
                                           member_of<&Config::padded>("padded"),
                                           member_of<&Config::drop_long>("drop_long"),
                                           member_of<&Config::batch_size>("batch_size"),
                                           member_of<&Config::max_tokens>("max_tokens"),
                                           member_of<&Config::max_rows>("max_rows"),
                                           member_of<&Config::window>("window")};
  return members;
}

PyObject* config_layout(PyObject*, PyObject*) { return layout_of<Config>(config_members()).release(); }

// Removes a member from `members`. Null without an exception: it is not given.
Ref take(PyObject* members, const char* name) {
  Ref object = Ref::borrow(PyDict_GetItemString(members, name));
  if (object) (void)PyDict_DelItemString(members, name);
  return object;
}

// A member that is an array of 8-byte elements.
template <typename Element>
class Elements {
 public:
  Elements() = default;
  Elements(const Elements&) = delete;
  Elements& operator=(const Elements&) = delete;
  ~Elements() {
    if (is_given_) PyBuffer_Release(&buffer_);
  }
  // Removes it from `members` if it is given. False with an exception.
  bool read(PyObject* members, const char* name) {
    static_assert(sizeof(Element) == 8);
    const Ref object = take(members, name);
    is_given_ = object && PyObject_GetBuffer(object.get(), &buffer_, PyBUF_C_CONTIGUOUS) == 0;
    return is_given_ || !object;
  }
  [[nodiscard]] bool is_given() const { return is_given_; }
  [[nodiscard]] const Element* data() const { return static_cast<const Element*>(buffer_.buf); }
  [[nodiscard]] std::uint64_t count() const { return static_cast<std::uint64_t>(buffer_.len) / sizeof(Element); }

 private:
  Py_buffer buffer_{};
  bool is_given_ = false;
};

struct Arrays {
  Elements<std::int64_t> indices, lengths, from;
  Elements<double> weights;

  // Sets the members that point to arrays, and their lengths. False with an exception, also if the library would read
  // beyond the end of one.
  bool set(Config& config, PyObject* members) {
    if (!indices.read(members, "indices") || !lengths.read(members, "lengths") || !weights.read(members, "weights") ||
        !from.read(members, "from_"))
      return false;
    if (indices.is_given() && (lengths.is_given() || weights.is_given())) {  // `count` is the length of one of them
      PyErr_SetString(PyExc_ValueError, "indices cannot be combined with lengths or weights");
      return false;
    }
    config.indices = indices.data();
    config.lengths = lengths.data();
    config.weights = weights.data();
    config.from = from.data();
    config.stages = from.count();
    config.count = indices.is_given() ? indices.count() : lengths.is_given() ? lengths.count() : weights.count();
    const std::uint64_t parts = std::max<std::uint64_t>(config.stages, 1);
    if (!weights.is_given() || (weights.count() / parts == config.count && weights.count() % parts == 0)) return true;
    PyErr_Format(PyExc_ValueError,
                 "%zu lengths, %zu weights and %zu stages: each stage must have one weight per length",
                 std::size_t{lengths.count()}, std::size_t{weights.count()}, std::size_t{parts});
    return false;
  }
};

PyObject* make_sampler(PyTypeObject*, PyObject* args, PyObject* keywords) {
  auto config = init<Config>();
  if (PyArg_ParseTuple(args, "i:Sampler", &config.kind) == 0) return nullptr;
  const Ref members(keywords != nullptr ? PyDict_Copy(keywords) : PyDict_New());
  if (!members) return nullptr;
  Arrays arrays;
  if (!arrays.set(config, members.get())) return nullptr;
  const Ref inner = take(members.get(), "inner"), target = take(members.get(), "callbacks");
  if (inner && (config.inner = sampler_handle(inner.get())) == nullptr) return nullptr;
  feedlane_sampler_callbacks callbacks;
  if (target) {
    callbacks = callbacks_over(target.get());
    if (callbacks.size == 0) return nullptr;
    config.callbacks = &callbacks;
  }
  if (!set_members<Config>(config, members.get(), config_members())) return nullptr;
  if (!inner) return new_sampler(config, target.get(), target.get()).release();
  return new_sampler(config, sampler_of(inner.get())->source, sampler_of(inner.get())->target).release();
}

// ---- the type ----

PyMethodDef sampler_methods[] = {
    {"restart", exclusive<restart>, METH_O, "restart(epoch: int): from the first index of this epoch."},
    {"next", exclusive<next_indices>, METH_O,
     "next(cap: int) -> list of up to `cap` indices, one batch of a batch sampler; None at the end. Empty: a live\n"
     "sampler has too few now."},
    {"length", exclusive<length>, METH_NOARGS, "length() -> indices or batches of an epoch; -1: unknown."},
    {"config_layout", config_layout, METH_NOARGS | METH_STATIC,
     "config_layout() -> {name: (offset, bytes)} of the members that are numbers"},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot sampler_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make_sampler)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_sampler)},
    {Py_tp_traverse, reinterpret_cast<void*>(visit)},
    {Py_tp_methods, sampler_methods},
    {Py_tp_doc,
     const_cast<char*>("Sampler(kind, **members): a feedlane_sampler. kind, members: of feedlane_sampler_config.\n"
                       "indices, lengths, from_: buffers of int64; weights: of float64; inner: a Sampler;\n"
                       "callbacks: an object with restart(), draw(cap), failed(exception), rows and wake_fd,\n"
                       "see callbacks.cpp. One thread at a time.")},
    {0, nullptr}};
PyType_Spec sampler_spec = {"feedlane._core.Sampler", sizeof(Sampler), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                            sampler_slots};

PyObject* rank_detect(PyObject*, PyObject*) {
  using Rank = feedlane_rank;
  static const Member<Rank> members[] = {member_of<&Rank::rank>("rank"), member_of<&Rank::world>("world"),
                                         member_of<&Rank::source>("source"), member_of<&Rank::warning>("warning")};
  auto rank = init<Rank>();
  if (!check(feedlane_rank_detect(&rank, error_room()))) return nullptr;
  return dict_of<Rank>(rank, members).release();
}

PyMethodDef sampler_functions[] = {{"rank_detect", rank_detect, METH_NOARGS, "rank_detect() -> dict of feedlane_rank"},
                                   {nullptr, nullptr, 0, nullptr}};

}  // namespace

Ref new_sampler(const feedlane_sampler_config& config, PyObject* source, PyObject* target) {
  auto* const sampler = new_object<Sampler>(sampler_type);
  Ref made(reinterpret_cast<PyObject*>(sampler));
  if (!made) return {};
  sampler->source = Ref::borrow(source).release();
  sampler->target = target;
  return check(feedlane_sampler_create(&config, &sampler->handle, error_room())) ? std::move(made) : Ref();
}

const feedlane_sampler* sampler_handle(PyObject* object) {
  if (Py_TYPE(object) == sampler_type) return sampler_of(object)->handle;
  PyErr_Format(PyExc_TypeError, "%R is not a Sampler", object);
  return nullptr;
}

PyObject* sampler_target(PyObject* object) { return sampler_of(object)->target; }

bool add_sampler(PyObject* module) {
  sampler_type = add_type(module, sampler_spec);
  return sampler_type != nullptr && PyModule_AddFunctions(module, sampler_functions) == 0;
}

}  // namespace feedlane::python
