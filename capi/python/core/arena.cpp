// SPDX-License-Identifier: Apache-2.0
// Arena: a feedlane_arena. arena.py derives the package's class from it. Any thread may call any method.
#include <vector>

#include "core.hpp"
#include "members.hpp"
#include "numbers.hpp"
#include "slices.hpp"

#include <structmember.h>

namespace feedlane::python {
namespace {

PyTypeObject* arena_type;

struct Arena {
  PyObject_HEAD PyObject* weak;
  feedlane_arena* handle;  // null: it was closed, and the last call has returned
  bool is_closed;
  int calls;  // under way
  std::int64_t forks;
};

Arena& self_of(PyObject* self) { return *reinterpret_cast<Arena*>(self); }

// The handle is destroyed with the last call after `close`.
void free_unused(Arena& arena) {
  if (!arena.is_closed || arena.calls != 0 || arena.handle == nullptr || arena.forks != forks()) return;
  feedlane_arena* handle = std::exchange(arena.handle, nullptr);
  (void)unlocked([&] { return feedlane_arena_destroy(&handle); });
}

// A call on the handle, which stays valid until the end of this object. Null with an exception.
class Call {
 public:
  explicit Call(PyObject* self) : arena_(self_of(self)) {
    if (arena_.forks != forks()) {
      (void)raise(FEEDLANE_E_FORKED, "the arena belongs to the parent process: join it in this process");
    } else if (arena_.is_closed) {
      (void)raise(FEEDLANE_E_STATE, "the arena was closed");
    } else {
      handle_ = arena_.handle;
      arena_.calls++;
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (handle_ == nullptr) return;
    arena_.calls--;
    free_unused(arena_);
  }
  [[nodiscard]] feedlane_arena* handle() const { return handle_; }

 private:
  Arena& arena_;
  feedlane_arena* handle_ = nullptr;
};

// The batch, or the status as an int.
Ref batch_or_status(feedlane_arena* handle, std::int32_t status, const feedlane_batch& batch, bool is_read_only) {
  if (status == INT32_MIN) return {};
  if (status == FEEDLANE_OK) return new_batch(handle, batch, is_read_only);
  return Ref(PyLong_FromLong(status));
}

// ---- beginning and end ----

PyObject* new_arena(feedlane_arena* handle) {
  auto* const arena = new_object<Arena>(arena_type);
  if (arena == nullptr) {
    (void)feedlane_arena_destroy(&handle);
    return nullptr;
  }
  arena->forks = forks();
  arena->handle = handle;
  return reinterpret_cast<PyObject*>(arena);
}

PyObject* create(PyObject*, PyObject* args) {
  auto config = init<feedlane_arena_config>();
  unsigned long long bytes = 0;
  unsigned int members = 0, entries = 0, leases = 0;
  PyObject* path = nullptr;
  char* text = nullptr;
  if (PyArg_ParseTuple(args, "KIIIiO:create", &bytes, &members, &entries, &leases, &config.when_full, &path) == 0)
    return nullptr;
  if (path != Py_None && PyBytes_AsStringAndSize(path, &text, nullptr) != 0) return nullptr;
  config.bytes = bytes;
  config.members = members;
  config.entries = entries;
  config.leases = leases;
  config.path = text;
  feedlane_arena* handle = nullptr;
  return check(feedlane_arena_create(&config, &handle, error_room())) ? new_arena(handle) : nullptr;
}

PyObject* join(PyObject*, PyObject* args) {
  int fd = -1;
  PyObject* socket = nullptr;
  char* path = nullptr;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "iOL:join", &fd, &socket, &timeout_ns) == 0) return nullptr;
  if (socket != Py_None && PyBytes_AsStringAndSize(socket, &path, nullptr) != 0) return nullptr;
  feedlane_arena* handle = nullptr;
  const std::int32_t s = unlocked([&] { return feedlane_arena_join(fd, path, timeout_ns, &handle, error_room()); });
  if (s == FEEDLANE_TIMEOUT) return raise(s, "the owner of the arena has not answered in time");
  return check(s) ? new_arena(handle) : nullptr;
}

PyObject* close(PyObject* self, PyObject*) {
  Arena& arena = self_of(self);
  if (arena.is_closed || arena.forks != forks()) Py_RETURN_NONE;
  arena.is_closed = true;
  (void)feedlane_loader_close(arena.handle);
  free_unused(arena);
  Py_RETURN_NONE;
}

void free_arena(PyObject* self) {
  if (self_of(self).weak != nullptr) PyObject_ClearWeakRefs(self);
  Ref(close(self, nullptr));
  free_object(self);
}

PyObject* get_is_closed(PyObject* self, void*) { return PyBool_FromLong(self_of(self).is_closed ? 1 : 0); }

PyObject* offer(PyObject* self, PyObject*) {
  const Call call(self);
  std::int32_t fd = -1;
  if (call.handle() == nullptr || !check(feedlane_arena_offer(call.handle(), &fd, error_room()))) return nullptr;
  return PyLong_FromLong(fd);
}

// ---- putting ----

// `fields`: ((name, (code, bits), shape), ...). False with an exception.
bool read_fields(PyObject* fields, std::vector<feedlane_field>& out) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(fields); i++) {
    auto field = init<feedlane_field>();
    int code = 0, bits = 0;
    PyObject* shape = nullptr;
    if (PyArg_ParseTuple(PyTuple_GetItem(fields, i), "s(ii)O!", &field.name, &code, &bits, &PyTuple_Type, &shape) == 0)
      return false;
    if (!set_type(field, code, bits, shape)) return false;
    out.push_back(field);
  }
  return true;
}

PyObject* reserve(PyObject* self, PyObject* args) {
  PyObject *key = nullptr, *fields = nullptr, *metadata = nullptr;
  int is_pinned = 0;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "OO!OpL:reserve", &key, &PyTuple_Type, &fields, &metadata, &is_pinned, &timeout_ns) == 0)
    return nullptr;
  std::vector<feedlane_field> all;
  if (!read_fields(fields, all)) return nullptr;
  auto put = init<feedlane_put>();
  char *key_bytes = nullptr, *metadata_bytes = nullptr;
  Py_ssize_t key_size = 0, metadata_size = 0;
  if (key != Py_None && PyBytes_AsStringAndSize(key, &key_bytes, &key_size) != 0) return nullptr;
  if (metadata != Py_None && PyBytes_AsStringAndSize(metadata, &metadata_bytes, &metadata_size) != 0) return nullptr;
  put.key = key_bytes;
  put.key_bytes = static_cast<std::uint64_t>(key_size);
  put.fields = all.data();
  put.field_count = all.size();
  put.metadata = metadata_bytes;
  put.metadata_bytes = static_cast<std::uint64_t>(metadata_size);
  put.pinned = is_pinned;
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  auto batch = init<feedlane_batch>();
  const std::int32_t s = wait_for(timeout_ns, [&](std::int64_t slice) {
    return feedlane_arena_reserve(call.handle(), &put, slice, &batch, error_room());
  });
  return batch_or_status(call.handle(), s, batch, false).release();
}

PyObject* publish(PyObject* self, PyObject* args) {
  PyObject* batch = nullptr;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "OL:publish", &batch, &timeout_ns) == 0) return nullptr;
  const Call call(self);
  const std::uint64_t token = call.handle() != nullptr ? token_in(batch, call.handle()) : 0;
  if (token == 0) return nullptr;
  const std::int32_t s = wait_for(timeout_ns, [&](std::int64_t slice) {
    return feedlane_arena_publish(call.handle(), token, slice, error_room());
  });
  if (s == INT32_MIN) return nullptr;
  if (s == FEEDLANE_OK) forget_batch(batch);
  return PyLong_FromLong(s);
}

// ---- getting ----

PyObject* get(PyObject* self, PyObject* args) {
  const char* key = nullptr;
  Py_ssize_t key_size = 0;
  int flags = 0;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "y#iL:get", &key, &key_size, &flags, &timeout_ns) == 0) return nullptr;
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  auto batch = init<feedlane_batch>();
  const std::int32_t s = wait_for(timeout_ns, [&](std::int64_t slice) {
    return feedlane_arena_get(call.handle(), key, static_cast<std::uint64_t>(key_size), flags, slice, &batch,
                              error_room());
  });
  return batch_or_status(call.handle(), s, batch, true).release();
}

PyObject* receive(PyObject* self, PyObject* timeout_ns) {
  std::int64_t timeout = 0;
  if (!from_python(timeout_ns, "timeout_ns", timeout)) return nullptr;
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  auto batch = init<feedlane_batch>();
  const std::int32_t s = wait_for(
      timeout, [&](std::int64_t slice) { return feedlane_arena_receive(call.handle(), slice, &batch, error_room()); });
  return batch_or_status(call.handle(), s, batch, true).release();
}

PyObject* serve(PyObject* self, PyObject* timeout_ns) {
  std::int64_t timeout = 0;
  if (!from_python(timeout_ns, "timeout_ns", timeout)) return nullptr;
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  const std::int32_t s =
      unlocked([&] { return feedlane_arena_receive(call.handle(), timeout, nullptr, error_room()); });
  return check(s) ? PyLong_FromLong(s) : nullptr;
}

PyObject* drop(PyObject* self, PyObject* args) {
  const char* key = nullptr;
  Py_ssize_t key_size = 0;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "y#L:drop", &key, &key_size, &timeout_ns) == 0) return nullptr;
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  const std::int32_t s = wait_for(timeout_ns, [&](std::int64_t slice) {
    return feedlane_arena_drop(call.handle(), key, static_cast<std::uint64_t>(key_size), slice, error_room());
  });
  return s == INT32_MIN ? nullptr : PyLong_FromLong(s);
}

PyObject* arm(PyObject* self, PyObject*) {
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  std::int32_t fd = -1;
  const std::int32_t s = feedlane_arena_arm(call.handle(), &fd);
  return s < 0 ? raise(s, "") : Py_BuildValue("(ii)", s, fd);
}

PyObject* interrupt(PyObject* self, PyObject*) {
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  (void)feedlane_loader_interrupt(call.handle());
  Py_RETURN_NONE;
}

PyObject* event(PyObject* self, PyObject*) {
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  auto event = init<feedlane_event>();
  if (feedlane_loader_event(call.handle(), &event) != FEEDLANE_OK) Py_RETURN_NONE;
  return Py_BuildValue("(is)", event.kind, event.what.text);
}

using Stats = feedlane_arena_stats;
const Member<Stats> stats_members[] = {
    member_of<&Stats::bytes>("bytes"),           member_of<&Stats::used_bytes>("used_bytes"),
    member_of<&Stats::free_bytes>("free_bytes"), member_of<&Stats::entries>("entries"),
    member_of<&Stats::members>("members"),       member_of<&Stats::leased>("leased"),
    member_of<&Stats::waiting>("waiting"),       member_of<&Stats::published>("published"),
    member_of<&Stats::evicted>("evicted"),       member_of<&Stats::hits>("hits"),
    member_of<&Stats::misses>("misses"),         member_of<&Stats::held>("held")};

PyObject* stats(PyObject* self, PyObject*) {
  const Call call(self);
  if (call.handle() == nullptr) return nullptr;
  auto stats = init<Stats>();
  const std::int32_t s = feedlane_arena_get_stats(call.handle(), &stats);
  return s < 0 ? raise(s, "") : dict_of<Stats>(stats, stats_members).release();
}

PyObject* observe(PyObject*, PyObject* args) {
  using One = feedlane_arena_member;
  static const Member<One> members[] = {
      member_of<&One::number>("number"),   member_of<&One::pid>("pid"),
      member_of<&One::cut_off>("cut_off"), member_of<&One::held>("held"),
      member_of<&One::waiting>("waiting"), member_of<&One::granted_bytes>("granted_bytes"),
      member_of<&One::hits>("hits"),       member_of<&One::misses>("misses")};
  long long pid = 0;
  int nth = 0;
  if (PyArg_ParseTuple(args, "Li", &pid, &nth) == 0) return nullptr;
  auto stats = init<Stats>();
  std::vector<One> all(FEEDLANE_MAX_ARENA_PROCESSES, init<One>());
  std::uint64_t count = 0;
  const std::int32_t s = feedlane_monitor_arena(pid, nth, &stats, all.data(), all.size(), &count, error_room());
  if (s < 0) return raise(s);
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  Ref found = dict_of<Stats>(stats, stats_members);
  Ref list(PyList_New(0));
  for (std::uint64_t i = 0; list && i < count; i++) {
    const Ref one = dict_of<One>(all[i], members);
    if (!one || PyList_Append(list.get(), one.get()) != 0) return nullptr;
  }
  if (!found || !list || PyDict_SetItemString(found.get(), "processes", list.get()) != 0) return nullptr;
  return found.release();
}

PyMethodDef arena_methods[] = {
    {"create", create, METH_VARARGS | METH_STATIC, "create(bytes, members, entries, leases, when_full, path) -> Arena"},
    {"join", join, METH_VARARGS | METH_STATIC, "join(fd, path, timeout_ns) -> Arena. Takes over the descriptor."},
    {"close", exclusive<close>, METH_NOARGS, "close(): calls of other threads end."},
    {"offer", exclusive<offer>, METH_NOARGS, "offer() -> descriptor, for join"},
    {"reserve", exclusive<reserve>, METH_VARARGS,
     "reserve(key, fields, metadata, is_pinned, timeout_ns) -> Batch, or a status. fields: see Loader."},
    {"publish", exclusive<publish>, METH_VARARGS, "publish(batch, timeout_ns) -> status"},
    {"get", exclusive<get>, METH_VARARGS, "get(key, flags, timeout_ns) -> Batch, or a status"},
    {"receive", exclusive<receive>, METH_O, "receive(timeout_ns) -> Batch, or a status"},
    {"serve", exclusive<serve>, METH_O, "serve(timeout_ns) -> status. Without the GIL."},
    {"drop", exclusive<drop>, METH_VARARGS, "drop(key, timeout_ns) -> status"},
    {"arm", exclusive<arm>, METH_NOARGS, "arm() -> (status, descriptor)"},
    {"interrupt", exclusive<interrupt>, METH_NOARGS, "interrupt(): ends one wait."},
    {"event", exclusive<event>, METH_NOARGS, "event() -> (kind, text); None: no more"},
    {"stats", exclusive<stats>, METH_NOARGS, "stats() -> dict of feedlane_arena_stats"},
    {"observe", observe, METH_VARARGS | METH_STATIC, "observe(pid, nth) -> dict; None: there is no such arena"},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef arena_getters[] = {{"is_closed", get_is_closed, nullptr, "Whether close was called.", nullptr},
                               {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef arena_members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Arena, weak), READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};
PyType_Slot arena_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_arena)},
                             {Py_tp_methods, arena_methods},
                             {Py_tp_getset, arena_getters},
                             {Py_tp_members, arena_members},
                             {Py_tp_doc, const_cast<char*>("The owner's or a member's end of an arena.")},
                             {0, nullptr}};
PyType_Spec arena_spec = {"feedlane._core.Arena", sizeof(Arena), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, arena_slots};

}  // namespace

bool add_arena(PyObject* module) {
  arena_type = add_type(module, arena_spec);
  return arena_type != nullptr;
}

}  // namespace feedlane::python
