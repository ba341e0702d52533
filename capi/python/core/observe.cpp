// SPDX-License-Identifier: Apache-2.0
// Monitor, and what a monitor reads: counters, timings, the trace, the bottleneck. And the loader's events.
#include "observe.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "members.hpp"

namespace feedlane::python {

// A loader of another process, or of this one.
struct Monitor {
  PyObject_HEAD feedlane_monitor* handle;  // null: it was closed, and the last call has returned
  bool is_closed;
  int calls;  // under way
};

namespace {

PyTypeObject* monitor_type;

Monitor& monitor_of(PyObject* self) { return *reinterpret_cast<Monitor*>(self); }

// The handle is destroyed with the last call after `close`.
void free_unused(Monitor& monitor) {
  if (monitor.is_closed && monitor.calls == 0) (void)feedlane_monitor_destroy(&monitor.handle);
}

using Record = feedlane_batch_record;

// `read(handle, number, &value)`, of a worker or an error, as a dict. None: there are fewer.
template <typename Struct>
PyObject* numbered(PyObject* self, const char* name, PyObject* number, std::span<const Member<Struct>> members,
                   std::int32_t (*read)(const feedlane_monitor*, std::int32_t, Struct*)) {
  std::int32_t id = 0;
  if (!from_python(number, name, id)) return nullptr;
  const MonitorCall call(self);
  if (call.handle() == nullptr) return nullptr;
  auto value = init<Struct>();
  const std::int32_t s = read(call.handle(), id, &value);
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  return s == FEEDLANE_OK ? dict_of<Struct>(value, members).release() : refuse(self, s);
}

// The word for a FEEDLANE_BOUND_*; the number of one that this module doesn't know.
PyObject* bound_word(const feedlane_diagnosis& d) {
  switch (d.bound) {
    case FEEDLANE_BOUND_NOTHING: return PyUnicode_FromString("nothing");
    case FEEDLANE_BOUND_TRAINER: return PyUnicode_FromString("trainer");
    case FEEDLANE_BOUND_DATA: return PyUnicode_FromString("data");
    case FEEDLANE_BOUND_WORKER: return PyUnicode_FromString("worker");
    case FEEDLANE_BOUND_SLOTS: return PyUnicode_FromString("slots");
    case FEEDLANE_BOUND_STARTING: return PyUnicode_FromString("starting");
    case FEEDLANE_BOUND_PROCESSORS: return PyUnicode_FromString("processors");
    default: return PyUnicode_FromFormat("%d", d.bound);
  }
}

PyObject* bytes_of(const std::vector<Record>& records) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(records.data()),
                                   static_cast<Py_ssize_t>(records.size() * sizeof(Record)));
}

Member<feedlane_diagnosis> bound_member() {
  auto member = member_of<&feedlane_diagnosis::bound>("bound");
  member.get = bound_word;
  return member;
}

}  // namespace

PyObject* get_stats(PyObject* self, feedlane_monitor* monitor) {
  using Stats = feedlane_stats;
  static const Member<Stats> members[] = {member_of<&Stats::batches>("batches"),
                                          member_of<&Stats::samples>("samples"),
                                          member_of<&Stats::bytes>("bytes"),
                                          member_of<&Stats::epochs>("epochs"),
                                          member_of<&Stats::wait_ns>("wait_ns"),
                                          member_of<&Stats::restarts>("restarts"),
                                          member_of<&Stats::redispatched>("redispatched"),
                                          member_of<&Stats::quarantined>("quarantined"),
                                          member_of<&Stats::invalid_results>("invalid_results"),
                                          member_of<&Stats::late_results>("late_results"),
                                          member_of<&Stats::slots>("slots"),
                                          member_of<&Stats::slots_free>("slots_free"),
                                          member_of<&Stats::slots_held>("slots_held"),
                                          member_of<&Stats::control_bytes>("control_bytes"),
                                          member_of<&Stats::data_bytes>("data_bytes"),
                                          member_of<&Stats::reserved_bytes>("reserved_bytes"),
                                          member_of<&Stats::retried>("retried"),
                                          member_of<&Stats::substituted>("substituted"),
                                          member_of<&Stats::skipped>("skipped"),
                                          member_of<&Stats::hung>("hung"),
                                          member_of<&Stats::rank_source>("rank_source"),
                                          member_of<&Stats::huge_bytes>("huge_bytes"),
                                          member_of<&Stats::start_wait_ns>("start_wait_ns"),
                                          member_of<&Stats::restarts_signal>("restarts_signal"),
                                          member_of<&Stats::restarts_exit>("restarts_exit"),
                                          member_of<&Stats::restarts_hung>("restarts_hung"),
                                          member_of<&Stats::restarts_invalid>("restarts_invalid"),
                                          member_of<&Stats::restarts_unattached>("restarts_unattached")};
  auto stats = init<Stats>();
  const std::int32_t s = feedlane_monitor_get_stats(monitor, &stats);
  return s == FEEDLANE_OK ? dict_of<Stats>(stats, members).release() : refuse(self, s);
}

PyObject* get_worker_stats(PyObject* self, PyObject* worker) {
  using Stats = feedlane_worker_stats;
  static const Member<Stats> members[] = {member_of<&Stats::pid>("pid"),
                                          member_of<&Stats::state>("state"),
                                          member_of<&Stats::generation>("generation"),
                                          member_of<&Stats::tasks>("tasks"),
                                          member_of<&Stats::samples>("samples"),
                                          member_of<&Stats::bytes>("bytes"),
                                          member_of<&Stats::errors>("errors"),
                                          member_of<&Stats::work_ns>("work_ns"),
                                          member_of<&Stats::wait_ns>("wait_ns"),
                                          member_of<&Stats::state_since_ns>("state_since_ns"),
                                          member_of<&Stats::task_since_ns>("task_since_ns"),
                                          member_of<&Stats::epoch>("epoch"),
                                          member_of<&Stats::batch>("batch"),
                                          member_of<&Stats::row>("row")};
  return numbered<Stats>(self, "worker", worker, members, feedlane_monitor_get_worker_stats);
}

PyObject* event(PyObject* self, feedlane_loader* handle) {
  auto event = init<feedlane_event>();
  const std::int32_t s = feedlane_loader_event(handle, &event);
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  if (s != FEEDLANE_OK) return refuse(self, s);
  Ref text(to_python(event.what.text));
  if (!text) return nullptr;
  return Py_BuildValue("(iOiLL)", event.kind, text.get(), event.what.worker, static_cast<long long>(event.what.batch),
                       static_cast<long long>(event.what.sample));
}

PyObject* get_info(PyObject* self, feedlane_monitor* monitor) {
  using Info = feedlane_loader_info;
  static const Member<Info> members[] = {member_of<&Info::pid>("pid"),
                                         member_of<&Info::created_ns>("created_ns"),
                                         member_of<&Info::start>("start"),
                                         member_of<&Info::workers>("workers"),
                                         member_of<&Info::prefetch_factor>("prefetch_factor"),
                                         member_of<&Info::held>("held"),
                                         member_of<&Info::batch_size>("batch_size"),
                                         member_of<&Info::task_timeout_ns>("task_timeout_ns"),
                                         member_of<&Info::iterable>("iterable"),
                                         member_of<&Info::in_epoch>("in_epoch"),
                                         member_of<&Info::epoch>("epoch"),
                                         member_of<&Info::batch>("batch"),
                                         member_of<&Info::batches>("batches"),
                                         member_of<&Info::begun_ns>("begun_ns"),
                                         member_of<&Info::yielded_ns>("yielded_ns"),
                                         member_of<&Info::waiting_since_ns>("waiting_since_ns"),
                                         member_of<&Info::trace>("trace"),
                                         member_of<&Info::name>("name"),
                                         member_of<&Info::version>("version"),
                                         member_of<&Info::next_epoch>("next_epoch")};
  auto info = init<Info>();
  const std::int32_t s = feedlane_monitor_get_info(monitor, &info);
  return s == FEEDLANE_OK ? dict_of<Info>(info, members).release() : refuse(self, s);
}

PyObject* get_timings(PyObject* self, PyObject* worker) {
  using Timings = feedlane_timings;
  static const Member<Timings> members[] = {member_of<&Timings::exposed>("exposed"),
                                            member_of<&Timings::start>("start"),
                                            member_of<&Timings::queue>("queue"),
                                            member_of<&Timings::work>("work"),
                                            member_of<&Timings::ready>("ready"),
                                            member_of<&Timings::hold>("hold"),
                                            member_of<&Timings::exposed_percentiles>("exposed_percentiles"),
                                            member_of<&Timings::start_percentiles>("start_percentiles"),
                                            member_of<&Timings::queue_percentiles>("queue_percentiles"),
                                            member_of<&Timings::work_percentiles>("work_percentiles"),
                                            member_of<&Timings::ready_percentiles>("ready_percentiles"),
                                            member_of<&Timings::hold_percentiles>("hold_percentiles")};
  return numbered<Timings>(self, "worker", worker, members, feedlane_monitor_get_timings);
}

// A look into /proc may be part of it.
PyObject* diagnose(PyObject* self, feedlane_monitor* monitor) {
  using Diagnosis = feedlane_diagnosis;
  static const Member<Diagnosis> members[] = {bound_member(),
                                              member_of<&Diagnosis::worker>("worker"),
                                              member_of<&Diagnosis::interval_ns>("interval_ns"),
                                              member_of<&Diagnosis::batches>("batches"),
                                              member_of<&Diagnosis::samples>("samples"),
                                              member_of<&Diagnosis::bytes>("bytes"),
                                              member_of<&Diagnosis::exposed_ns>("exposed_ns"),
                                              member_of<&Diagnosis::start_ns>("start_ns"),
                                              member_of<&Diagnosis::busy_ns>("busy_ns"),
                                              member_of<&Diagnosis::ready>("ready"),
                                              member_of<&Diagnosis::asked>("asked"),
                                              member_of<&Diagnosis::text>("text"),
                                              member_of<&Diagnosis::advice>("advice")};
  auto diagnosis = init<Diagnosis>();
  const std::int32_t s = unlocked([&] { return feedlane_monitor_diagnose(monitor, &diagnosis); });
  return s == FEEDLANE_OK ? dict_of<Diagnosis>(diagnosis, members).release() : refuse(self, s);
}

PyObject* report(PyObject*, feedlane_monitor* monitor) {
  std::uint64_t bytes = 4096;  // more than most take
  for (std::int32_t s = FEEDLANE_E_LIMIT; s == FEEDLANE_E_LIMIT;) {
    Ref buffer(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!buffer) return nullptr;
    char* const text = PyBytes_AsString(buffer.get());
    const std::uint64_t cap = bytes;
    s = unlocked([&] { return feedlane_monitor_report(monitor, text, cap, &bytes, error_room()); });
    if (s == FEEDLANE_OK) return PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(bytes), "replace");
    if (s != FEEDLANE_E_LIMIT) return raise(s);
  }
  return nullptr;
}

PyObject* get_trace(PyObject* self, PyObject* from) {
  std::uint64_t first = 0;
  if (!from_python(from, "from_", first)) return nullptr;
  const MonitorCall call(self);
  const feedlane_monitor* const monitor = call.handle();
  if (monitor == nullptr) return nullptr;
  auto info = init<feedlane_loader_info>();
  std::int32_t s = feedlane_monitor_get_info(monitor, &info);
  try {
    constexpr std::uint64_t chunk = 1024;
    std::vector<Record> all;
    // No more than the trace keeps: more of them may be written meanwhile.
    while (s == FEEDLANE_OK && all.size() < info.trace) {
      const std::size_t have = all.size();
      all.resize(have + std::min(chunk, info.trace - have), init<Record>());
      std::uint64_t count = 0;
      s = feedlane_monitor_get_trace(monitor, first, &all[have], all.size() - have, &count);
      all.resize(have + (s == FEEDLANE_OK ? count : 0));
      if (s == FEEDLANE_OK) first = all.back().sequence + 1;
    }
    if (s == FEEDLANE_OK && info.trace == 0)
      return raise(FEEDLANE_E_STATE, "no trace is recorded: pass trace=, or set FEEDLANE_TRACE");
    if (s != FEEDLANE_OK && s != FEEDLANE_END) return refuse(self, s);
    return bytes_of(all);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* get_slots(PyObject* self, feedlane_monitor* monitor) {
  auto stats = init<feedlane_stats>();
  std::int32_t s = feedlane_monitor_get_stats(monitor, &stats);
  if (s != FEEDLANE_OK) return refuse(self, s);
  try {
    std::vector<Record> all(stats.slots, init<Record>());
    std::uint64_t count = 0;
    s = feedlane_monitor_get_trace(monitor, FEEDLANE_SLOTS, all.data(), all.size(), &count);
    if (s != FEEDLANE_OK && s != FEEDLANE_END) return refuse(self, s);
    all.resize(s == FEEDLANE_OK ? count : 0);
    return bytes_of(all);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* get_error(PyObject* self, PyObject* index) {
  using Error = feedlane_error_record;
  static const Member<Error> members[] = {
      member_of<&Error::kind>("kind"),         member_of<&Error::code>("code"),
      member_of<&Error::worker>("worker"),     member_of<&Error::batch>("batch"),
      member_of<&Error::sample>("sample"),     member_of<&Error::count>("count"),
      member_of<&Error::first_ns>("first_ns"), member_of<&Error::last_ns>("last_ns"),
      member_of<&Error::text>("text")};
  return numbered<Error>(self, "index", index, members, feedlane_monitor_get_error);
}

PyObject* read_trace(PyObject*, PyObject* records) {
  static const Member<Record> members[] = {member_of<&Record::sequence>("sequence"),
                                           member_of<&Record::task>("task"),
                                           member_of<&Record::epoch>("epoch"),
                                           member_of<&Record::batch>("batch"),
                                           member_of<&Record::worker>("worker"),
                                           member_of<&Record::attempt>("attempt"),
                                           member_of<&Record::slot>("slot"),
                                           member_of<&Record::status>("status"),
                                           member_of<&Record::rows>("rows"),
                                           member_of<&Record::bytes>("bytes"),
                                           member_of<&Record::dispatched_ns>("dispatched_ns"),
                                           member_of<&Record::begun_ns>("begun_ns"),
                                           member_of<&Record::committed_ns>("committed_ns"),
                                           member_of<&Record::swept_ns>("swept_ns"),
                                           member_of<&Record::yielded_ns>("yielded_ns"),
                                           member_of<&Record::released_ns>("released_ns"),
                                           member_of<&Record::exposed_ns>("exposed_ns")};
  char* bytes = nullptr;
  Py_ssize_t length = 0;
  if (PyBytes_AsStringAndSize(records, &bytes, &length) != 0) return nullptr;
  const Py_ssize_t count = length / static_cast<Py_ssize_t>(sizeof(Record));
  Ref all(PyList_New(count));
  for (Py_ssize_t i = 0; all && i < count; i++) {
    Record record;
    std::memcpy(&record, bytes + i * static_cast<Py_ssize_t>(sizeof record), sizeof record);
    Ref one = dict_of<Record>(record, members);
    if (!one || PyList_SetItem(all.get(), i, one.release()) != 0) return nullptr;
  }
  return all.release();
}

// ---- Monitor ----

MonitorCall::MonitorCall(PyObject* self) {
  if (Py_TYPE(self) != monitor_type) {
    loader_.emplace(*loader_of(self));
    handle_ = loader_->monitor();
    return;
  }
  const Exclusive lock(self);
  if (monitor_of(self).is_closed) {
    (void)raise(FEEDLANE_E_STATE, "the monitor was closed");
    return;
  }
  monitor_ = &monitor_of(self);
  monitor_->calls++;
  handle_ = monitor_->handle;
}

MonitorCall::~MonitorCall() {
  if (monitor_ == nullptr) return;
  const Exclusive lock(reinterpret_cast<PyObject*>(monitor_));
  monitor_->calls--;
  free_unused(*monitor_);
}

namespace {

PyObject* open(PyObject*, PyObject* args) {
  long long pid = 0;
  int nth = 0;
  if (PyArg_ParseTuple(args, "Li:open", &pid, &nth) == 0) return nullptr;
  feedlane_monitor* handle = nullptr;
  const std::int32_t s = unlocked([&] { return feedlane_monitor_open(pid, nth, &handle, error_room()); });
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  if (!check(s)) return nullptr;
  auto* const monitor = new_object<Monitor>(monitor_type);
  if (monitor == nullptr) (void)feedlane_monitor_destroy(&handle);
  else monitor->handle = handle;
  return reinterpret_cast<PyObject*>(monitor);
}

PyObject* close(PyObject* self, PyObject*) {
  monitor_of(self).is_closed = true;
  free_unused(monitor_of(self));
  Py_RETURN_NONE;
}

void free_monitor(PyObject* self) {
  (void)feedlane_monitor_destroy(&monitor_of(self).handle);
  free_object(self);
}

PyMethodDef monitor_methods[] = {
    {"open", open, METH_VARARGS | METH_STATIC, "open(pid, nth) -> Monitor; None: there is no such loader"},
    {"close", exclusive<close>, METH_NOARGS, "close(): frees the memory of the other loader."},
    OBSERVE_METHODS,
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot monitor_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_monitor)},
                               {Py_tp_methods, monitor_methods},
                               {Py_tp_doc, const_cast<char*>("A monitor of a loader. Any thread may call any method.")},
                               {0, nullptr}};
PyType_Spec monitor_spec = {"feedlane._core.Monitor", sizeof(Monitor), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, monitor_slots};

}  // namespace

bool add_monitor(PyObject* module) {
  monitor_type = add_type(module, monitor_spec);
  return monitor_type != nullptr;
}

}  // namespace feedlane::python
