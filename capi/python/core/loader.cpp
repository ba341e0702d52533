// SPDX-License-Identifier: Apache-2.0
// Loader: a feedlane_loader. A reference besides the one that close gives up keeps the handle valid for calls of other
// threads.
#include "core.hpp"
#include "members.hpp"
#include "numbers.hpp"
#include "observe.hpp"
#include "share.hpp"

#include <structmember.h>

#include <new>
#include <vector>

namespace feedlane::python {

struct Loader {
  PyObject_HEAD PyObject* weak;
  feedlane_loader* handle;    // for calls; null: it was closed, and the last call has returned
  feedlane_loader* owned;     // for close; null: it was closed
  feedlane_monitor* monitor;  // null until it is needed
  bool is_closing, is_consumer;
  int calls, nexts;  // under way; those for_next
  std::int64_t turn, forks;
  PyObject *data, *sampler, *pool;  // what the handle uses
};

namespace {

PyTypeObject* loader_type;

Loader& self_of(PyObject* self) { return *reinterpret_cast<Loader*>(self); }

// The memory of a loader that was closed is freed with the last call. Its monitor would keep it.
void free_unused(Loader& loader) {
  if (loader.owned != nullptr || loader.is_closing || loader.calls != 0 || loader.forks != forks()) return;
  (void)feedlane_monitor_destroy(&loader.monitor);
  (void)feedlane_loader_unref(std::exchange(loader.handle, nullptr));
}

std::nullptr_t refuse_closed() { return raise(FEEDLANE_E_STATE, "the loader was closed"); }

// ---- the configuration ----

using Config = feedlane_loader_config;

std::span<const Member<Config>> config_members() {
  static const Member<Config> members[] = {member_of<&Config::batch_size>("batch_size"),
                                           member_of<&Config::iterable_length>("iterable_length"),
                                           member_of<&Config::drop_last>("drop_last"),
                                           member_of<&Config::iterable>("iterable"),
                                           member_of<&Config::deterministic>("deterministic"),
                                           member_of<&Config::out_of_order>("out_of_order"),
                                           member_of<&Config::seed>("seed"),
                                           member_of<&Config::has_seed>("has_seed"),
                                           member_of<&Config::workers>("workers"),
                                           member_of<&Config::start>("start"),
                                           member_of<&Config::prefetch_factor>("prefetch_factor"),
                                           member_of<&Config::dispatch>("dispatch"),
                                           member_of<&Config::keep_workers>("keep_workers"),
                                           member_of<&Config::no_lifeline>("no_lifeline"),
                                           member_of<&Config::start_timeout_ns>("start_timeout_ns"),
                                           member_of<&Config::stop_timeout_ns>("stop_timeout_ns"),
                                           member_of<&Config::term_timeout_ns>("term_timeout_ns"),
                                           member_of<&Config::task_timeout_ns>("task_timeout_ns"),
                                           member_of<&Config::max_restarts>("max_restarts"),
                                           member_of<&Config::max_kills_per_batch>("max_kills_per_batch"),
                                           member_of<&Config::retries>("retries"),
                                           member_of<&Config::substitute>("substitute"),
                                           member_of<&Config::retry_backoff_ns>("retry_backoff_ns"),
                                           member_of<&Config::skip_budget>("skip_budget"),
                                           member_of<&Config::slot_bytes>("slot_bytes"),
                                           member_of<&Config::arena_bytes>("arena_bytes"),
                                           member_of<&Config::held>("held"),
                                           member_of<&Config::staged>("staged"),
                                           member_of<&Config::trace>("trace"),
                                           member_of<&Config::world>("world"),
                                           member_of<&Config::rank>("rank"),
                                           member_of<&Config::max_batches>("max_batches"),
                                           member_of<&Config::share>("share"),
                                           member_of<&Config::consumers>("consumers"),
                                           member_of<&Config::share_tail>("share_tail")};
  return members;
}

// The fields and the arguments of a worker's command, which the configuration points to.
struct Lists {
  std::vector<feedlane_field> fields;
  std::vector<const char*> argv;
};

// ((name, (code, bits), shape), ...)
bool read_fields(PyObject* object, std::vector<feedlane_field>& fields) {
  for (Py_ssize_t i = 0; object != Py_None && i < PyTuple_Size(object); i++) {
    auto field = init<feedlane_field>();
    int code = 0, bits = 0;
    PyObject* shape = nullptr;
    if (PyArg_ParseTuple(PyTuple_GetItem(object, i), "y(ii)O!:fields", &field.name, &code, &bits, &PyTuple_Type,
                         &shape) == 0)
      return false;
    if (!set_type(field, code, bits, shape)) return false;
    fields.push_back(field);
  }
  return PyErr_Occurred() == nullptr;
}

bool read_argv(PyObject* object, std::vector<const char*>& argv) {
  if (object == Py_None) return true;
  for (Py_ssize_t i = 0; i < PyList_Size(object); i++) {
    const char* const word = PyBytes_AsString(PyList_GetItem(object, i));
    if (word == nullptr) return false;
    argv.push_back(word);
  }
  argv.push_back(nullptr);
  return PyErr_Occurred() == nullptr;
}

// ---- life ----

PyObject* new_loader(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"config",        "fields",       "data",  "sampler", "pool",
                                "worker_config", "argv",         "state", "name",    "share_path",
                                "worker_cpus",   "memory_nodes", nullptr};
  PyObject *numbers = nullptr, *fields = Py_None, *data = Py_None, *sampler = Py_None, *pool = Py_None, *argv = Py_None;
  const char *worker_config = nullptr, *state = nullptr, *name = nullptr, *share_path = nullptr;
  const char *worker_cpus = nullptr, *memory_nodes = nullptr;
  Py_ssize_t worker_config_bytes = 0, state_bytes = 0, share_path_bytes = 0;
  if (PyArg_ParseTupleAndKeywords(args, keywords, "O!|OOOOz#Oz#zz#zz:Loader", const_cast<char**>(names), &PyDict_Type,
                                  &numbers, &fields, &data, &sampler, &pool, &worker_config, &worker_config_bytes,
                                  &argv, &state, &state_bytes, &name, &share_path, &share_path_bytes, &worker_cpus,
                                  &memory_nodes) == 0)
    return nullptr;
  auto config = init<Config>();
  Lists lists;
  feedlane_dataset dataset;
  if (!set_members<Config>(config, numbers, config_members())) return nullptr;
  if (sampler != Py_None && (config.sampler = sampler_handle(sampler)) == nullptr) return nullptr;
  if (pool != Py_None && (config.pinned = pool_handle(pool)) == nullptr) return nullptr;
  if (data != Py_None) {
    dataset = dataset_over(data);
    if (dataset.size == 0) return nullptr;
    config.dataset = &dataset;
  }
  try {
    if (!read_fields(fields, lists.fields) || !read_argv(argv, lists.argv)) return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  if (!lists.fields.empty()) config.fields = lists.fields.data();
  config.field_count = lists.fields.size();
  config.argv = lists.argv.empty() ? nullptr : lists.argv.data();
  config.worker_config = worker_config;
  config.worker_config_bytes = static_cast<std::uint64_t>(worker_config_bytes);
  config.state = state;
  config.state_bytes = static_cast<std::uint64_t>(state_bytes);
  config.name = name;
  config.share_path = share_path;
  config.worker_cpus = worker_cpus;
  config.memory_nodes = memory_nodes;

  auto* const loader = new_object<Loader>(type);
  Ref made(reinterpret_cast<PyObject*>(loader));
  if (!made) return nullptr;
  loader->forks = forks();
  for (const auto& [place, object] :
       {std::pair{&loader->data, data}, {&loader->sampler, sampler}, {&loader->pool, pool}})
    if (object != Py_None) *place = Ref::borrow(object).release();
  if (!check(unlocked([&] { return feedlane_loader_create(&config, &loader->owned, error_room()); }))) return nullptr;
  loader->handle = loader->owned;
  (void)feedlane_loader_ref(loader->handle);
  return made.release();
}

// Without a wait: workers that remain are killed. close() is the way that lets them finish.
void free_loader(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Loader& loader = self_of(self);
  if (loader.weak != nullptr) PyObject_ClearWeakRefs(self);
  if (loader.forks == forks()) {
    (void)feedlane_loader_unref(std::exchange(loader.owned, nullptr));
    free_unused(loader);
  }
  Py_CLEAR(loader.data);
  Py_CLEAR(loader.sampler);
  Py_CLEAR(loader.pool);
  free_object(self);
}

int visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self_of(self).data);
  Py_VISIT(self_of(self).sampler);
  Py_VISIT(self_of(self).pool);
  return 0;
}

PyObject* close(PyObject* self, PyObject*) {
  Loader& loader = self_of(self);
  feedlane_loader* owned = std::exchange(loader.owned, nullptr);
  if (owned == nullptr || loader.forks != forks()) Py_RETURN_NONE;
  feedlane_loader* const same = owned;
  loader.is_closing = true;
  const std::int32_t s = unlocked([&] { return feedlane_loader_destroy(&owned); });
  loader.is_closing = false;
  if (s != FEEDLANE_E_BUSY) {
    free_unused(loader);
  } else {
    loader.owned = same;
    return raise(s, "close was called in a callback of this loader: call it after the callback has returned");
  }
  Py_RETURN_NONE;
}

PyObject* is_closed(PyObject* self, void*) { return PyBool_FromLong(self_of(self).owned == nullptr ? 1 : 0); }

// ---- epochs ----

PyObject* begin(PyObject* self, PyObject* epoch) {
  const long long number = PyLong_AsLongLong(epoch);
  if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
  const LoaderCall call(self_of(self));
  if (call.handle() == nullptr) return nullptr;
  if (self_of(self).nexts > 0)
    return raise(FEEDLANE_E_BUSY, "another thread is already waiting for a batch of this loader");
  if (!check(unlocked([&] { return feedlane_loader_begin(call.handle(), number, error_room()); }))) return nullptr;
  self_of(self).turn++;
  Py_RETURN_NONE;
}

PyObject* stop(PyObject*, feedlane_loader* handle) {
  if (!check(unlocked([&] { return feedlane_loader_stop(handle, error_room()); }))) return nullptr;
  Py_RETURN_NONE;
}

PyObject* poll(PyObject* self, feedlane_loader* handle) {
  for (;;) {
    const std::int32_t s = unlocked([&] { return feedlane_loader_poll(handle, error_room()); });
    if (s != FEEDLANE_OK) return check(s) ? PyBool_FromLong(1) : nullptr;
    const std::int32_t armed = feedlane_loader_arm(handle, nullptr);
    if (armed < 0) return refuse(self, armed);
    if (armed == FEEDLANE_OK) return PyBool_FromLong(0);
  }
}

PyObject* fileno(PyObject* self, feedlane_loader* handle) {
  std::int32_t fd = -1;
  const std::int32_t s = feedlane_loader_arm(handle, &fd);
  return s < 0 ? refuse(self, s) : PyLong_FromLong(fd);
}

PyObject* get_turn(PyObject* self, void*) { return PyLong_FromLongLong(self_of(self).turn); }

PyObject* state(PyObject* self, PyObject* args) {
  PyObject* batch = Py_None;
  if (PyArg_ParseTuple(args, "|O:state", &batch) == 0) return nullptr;
  const LoaderCall loader_call(self_of(self));
  feedlane_loader* const handle = loader_call.handle();
  if (handle == nullptr) return nullptr;
  const std::uint64_t token = batch == Py_None ? 0 : token_in(batch, handle);
  if (batch != Py_None && token == 0) return nullptr;
  std::uint64_t bytes = 1024;  // a consumer asks its feeder at each call: one is enough for most states
  for (;;) {
    const std::uint64_t cap = bytes;
    Ref buffer(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(cap)));
    if (!buffer) return nullptr;
    char* const to = PyBytes_AsString(buffer.get());
    const auto call = [&] { return feedlane_loader_state(handle, token, to, cap, &bytes, error_room()); };
    const std::int32_t s = self_of(self).is_consumer ? unlocked(call) : call();
    if (s == FEEDLANE_OK) return PySequence_GetSlice(buffer.get(), 0, static_cast<Py_ssize_t>(bytes));
    if (s != FEEDLANE_E_LIMIT) return raise(s);
  }
}

PyObject* open_worker(PyObject*, feedlane_loader* handle) {
  std::int32_t id = -1, fd = -1;
  const std::int32_t s = feedlane_loader_open_worker(handle, &id, &fd, error_room());
  if (!check(s)) return nullptr;
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  return Py_BuildValue("(ii)", id, fd);
}

// ---- states ----

PyObject* read_state(PyObject*, PyObject* args) {
  using Info = feedlane_state_info;
  static const Member<Info> members[] = {member_of<&Info::epoch>("epoch"),     member_of<&Info::batch>("batch"),
                                         member_of<&Info::samples>("samples"), member_of<&Info::base_seed>("base_seed"),
                                         member_of<&Info::ended>("ended"),     member_of<&Info::iterable>("iterable")};
  const char* bytes = nullptr;
  Py_ssize_t length = 0;
  if (PyArg_ParseTuple(args, "y#:read_state", &bytes, &length) == 0) return nullptr;
  auto info = init<Info>();
  if (!check(feedlane_state_read(bytes, static_cast<std::uint64_t>(length), &info, error_room()))) return nullptr;
  return dict_of<Info>(info, members).release();
}

PyObject* config_layout(PyObject*, PyObject*) { return layout_of<Config>(config_members()).release(); }

PyMethodDef loader_methods[] = {
    {"close", exclusive<close>, METH_NOARGS,
     "close(): ends the calls of other threads, then the workers, and waits for them.\n"
     "Busy: in a callback of this loader."},
    {"begin", exclusive<begin>, METH_O, "begin(epoch)"},
    {"stop", on_handle<stop>, METH_NOARGS, "stop(): ends the epoch and all workers, and waits for them."},
    {"poll", on_handle<poll>, METH_NOARGS, "poll() -> whether next would not wait; False: the descriptor is armed"},
    {"fileno", on_handle<fileno>, METH_NOARGS, "fileno() -> the loader's descriptor"},
    {"state", exclusive<state>, METH_VARARGS,
     "state(batch=None) -> bytes: the position after the newest batch, or after a Batch that is held"},
    {"open_worker", on_handle<open_worker>, METH_NOARGS,
     "open_worker() -> (id, descriptor), the caller's to close; None: none is missing"},
    {"open_consumer", exclusive<open_consumer>, METH_VARARGS,
     "open_consumer(id, lag, evict_after_ns) -> (id, descriptor), the caller's to close"},
    {"serve", exclusive<serve>, METH_O, "serve(timeout_ns) -> END or TIMEOUT: the feeder's loop"},
    {"attend", exclusive<attend>, METH_O,
     "attend(timeout_ns): waits for something to happen, at most so long, and handles it"},
    {"consumer", exclusive<get_consumer>, METH_O,
     "consumer(nth) -> dict of feedlane_consumer_stats; None: there are fewer"},
    {"join", join, METH_VARARGS | METH_STATIC,
     "join(fd, path, place, timeout_ns) -> Loader of a consumer. Takes ownership of fd in every case.\n"
     "Either fd is -1, or path and place are None. place: (id, lag, evict_after_ns)."},
    {"event", on_handle<event>, METH_NOARGS, "event() -> (kind, text, worker, batch, sample); None: no more"},
    OBSERVE_METHODS,
    {"read_trace", read_trace, METH_O | METH_STATIC, "read_trace(bytes) -> list of dicts of feedlane_batch_record"},
    {"read_state", read_state, METH_VARARGS | METH_STATIC, "read_state(bytes) -> dict of feedlane_state_info"},
    {"config_layout", config_layout, METH_NOARGS | METH_STATIC,
     "config_layout() -> {name: (offset, bytes)} of what `config` may hold"},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef loader_getters[] = {{"is_closed", is_closed, nullptr, "Whether close was called.", nullptr},
                                {"turn", get_turn, nullptr, "How many epochs were begun.", nullptr},
                                {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef loader_members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Loader, weak), READONLY, nullptr},
                                {nullptr, 0, 0, 0, nullptr}};
PyType_Slot loader_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_loader)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_loader)},
    {Py_tp_traverse, reinterpret_cast<void*>(visit)},
    {Py_tp_methods, loader_methods},
    {Py_tp_getset, loader_getters},
    {Py_tp_members, loader_members},
    {Py_tp_doc,
     const_cast<char*>(
         "Loader(config, fields=None, data=None, sampler=None, pool=None, worker_config=None, argv=None, state=None, "
         "name=None, share_path=None, worker_cpus=None, memory_nodes=None)\n"
         "config: dict of feedlane_loader_config; fields: ((name, (code, bits), shape), ...); data: without workers,\n"
         "see callbacks.cpp; worker_config, state: bytes; argv: list of bytes; name, share_path, worker_cpus, "
         "memory_nodes: str. One thread at a "
         "time, but\n"
         "close.")},
    {0, nullptr}};
PyType_Spec loader_spec = {"feedlane._core.Loader", sizeof(Loader), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           loader_slots};

}  // namespace

Loader* loader_of(PyObject* object) {
  if (Py_TYPE(object) == loader_type) return &self_of(object);
  PyErr_Format(PyExc_TypeError, "%R is not a Loader", object);
  return nullptr;
}

// The counters of calls are the loader's state, also where a call is another object's method.
LoaderCall::LoaderCall(Loader& loader, Kind kind) : loader_(loader), handle_(nullptr), kind_(kind) {
  const Exclusive lock(reinterpret_cast<PyObject*>(&loader));
  handle_ = loader.handle;
  if (handle_ == nullptr) (void)refuse_closed();
  else if (loader.forks != forks()) handle_ = raise(FEEDLANE_E_FORKED, "");
  if (handle_ == nullptr) return;
  loader_.calls++;
  if (kind_ == for_next) loader_.nexts++;
}

LoaderCall::~LoaderCall() {
  if (handle_ == nullptr) return;
  const Exclusive lock(reinterpret_cast<PyObject*>(&loader_));
  loader_.calls--;
  if (kind_ == for_next) loader_.nexts--;
  free_unused(loader_);
}

feedlane_monitor* LoaderCall::monitor() const {
  if (handle_ == nullptr) return nullptr;  // the constructor has raised
  const Exclusive lock(reinterpret_cast<PyObject*>(&loader_));
  if (loader_.owned == nullptr) return refuse_closed();
  if (loader_.monitor == nullptr && !check(feedlane_monitor_of(handle_, &loader_.monitor, error_room())))
    return nullptr;
  return loader_.monitor;
}

std::nullptr_t refuse(PyObject* self, std::int32_t status) {
  const bool is_closed = Py_TYPE(self) == loader_type && self_of(self).owned == nullptr;
  return status == FEEDLANE_E_STATE && is_closed ? refuse_closed() : raise(status, "");
}

std::int64_t turn_of(const Loader& loader) { return loader.turn; }

bool is_read_only(const Loader& loader) { return loader.is_consumer; }

Ref new_consumer(feedlane_loader* handle) {
  auto* const loader = new_object<Loader>(loader_type);
  if (loader == nullptr) {
    (void)feedlane_loader_destroy(&handle);
    return {};
  }
  loader->forks = forks();
  loader->is_consumer = true;
  loader->owned = loader->handle = handle;
  (void)feedlane_loader_ref(handle);
  return Ref(reinterpret_cast<PyObject*>(loader));
}

Ref take_interruption(const Loader& loader) {
  PyObject* const python = loader.sampler != nullptr ? sampler_target(loader.sampler) : nullptr;
  for (PyObject* const target : {python, loader.data}) {
    Ref found(target != nullptr ? PyObject_GetAttrString(target, "interruption") : nullptr);
    if (!found || found.get() == Py_None) continue;
    if (PyObject_SetAttrString(target, "interruption", Py_None) == 0) return found;
  }
  PyErr_Clear();
  return {};
}

bool add_loader(PyObject* module) {
  loader_type = add_type(module, loader_spec);
  return loader_type != nullptr;
}

}  // namespace feedlane::python
