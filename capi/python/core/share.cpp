// SPDX-License-Identifier: Apache-2.0
// One loader, many trainers: places for consumers, the feeder's loop, joining. See feedlane/share.h.
#include "share.hpp"

#include <poll.h>

#include "members.hpp"
#include "slices.hpp"

namespace feedlane::python {
namespace {

// (id, lag, evict_after_ns). False with an exception.
bool read_place(PyObject* place, feedlane_consumer_config& config) {
  long long evict_after_ns = 0;
  if (PyArg_ParseTuple(place, "iiL", &config.id, &config.lag, &evict_after_ns) == 0) return false;
  config.evict_after_ns = evict_after_ns;
  return true;
}

// Raises what a signal's handler raises, or what a callback has left for the loop. False: with that exception.
bool may_go_on(PyObject* self) {
  if (PyErr_CheckSignals() != 0) return false;
  const Ref interruption = take_interruption(*loader_of(self));
  if (interruption) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interruption.get())), interruption.get());
  return !interruption;
}

}  // namespace

// ---- the feeder ----

PyObject* open_consumer(PyObject* self, PyObject* args) {
  auto config = init<feedlane_consumer_config>();
  if (!read_place(args, config)) return nullptr;
  const LoaderCall call(*loader_of(self));
  if (call.handle() == nullptr) return nullptr;
  std::int32_t id = -1, fd = -1;
  if (!check(feedlane_loader_open_consumer(call.handle(), &config, &id, &fd, error_room()))) return nullptr;
  return Py_BuildValue("(ii)", id, fd);
}

PyObject* serve(PyObject* self, PyObject* timeout_ns) {
  std::int64_t timeout = 0;
  if (!from_python(timeout_ns, "timeout_ns", timeout)) return nullptr;
  const Slices slices(timeout);
  for (;;) {
    if (!may_go_on(self)) return nullptr;
    const std::int64_t slice = slices.next_ns();
    const LoaderCall call(*loader_of(self), LoaderCall::for_next);
    if (call.handle() == nullptr) return nullptr;
    const std::int32_t s = unlocked([&] { return feedlane_loader_serve(call.handle(), slice, error_room()); });
    if (s < 0) return may_go_on(self) ? raise(s) : nullptr;
    if (s == FEEDLANE_END || (s == FEEDLANE_TIMEOUT && slice == 0)) return PyLong_FromLong(s);
  }
}

PyObject* attend(PyObject* self, PyObject* timeout_ns) {
  std::int64_t timeout = 0;
  if (!from_python(timeout_ns, "timeout_ns", timeout)) return nullptr;
  const Slices slices(timeout);
  const LoaderCall call(*loader_of(self));
  if (call.handle() == nullptr) return nullptr;
  pollfd fd{-1, POLLIN, 0};
  bool is_over = false;
  while (!is_over) {
    if (!may_go_on(self)) return nullptr;
    const std::int32_t armed = feedlane_loader_arm(call.handle(), &fd.fd);
    if (armed < 0) return refuse(self, armed);
    const std::int64_t slice = slices.next_ns();
    is_over = slice == 0 || armed == FEEDLANE_AGAIN;
    if (!is_over) is_over = unlocked([&] { return ::poll(&fd, 1, static_cast<int>(slice / 1'000'000) + 1); }) > 0;
  }
  const std::int32_t s = unlocked([&] { return feedlane_loader_poll(call.handle(), error_room()); });
  return check(s) ? PyLong_FromLong(s) : nullptr;
}

PyObject* get_consumer(PyObject* self, PyObject* nth) {
  using Stats = feedlane_consumer_stats;
  static const Member<Stats> members[] = {member_of<&Stats::id>("id"),
                                          member_of<&Stats::state>("state"),
                                          member_of<&Stats::pid>("pid"),
                                          member_of<&Stats::lag>("lag"),
                                          member_of<&Stats::delivered>("delivered"),
                                          member_of<&Stats::taken_back>("taken_back"),
                                          member_of<&Stats::waiting>("waiting"),
                                          member_of<&Stats::held>("held")};
  std::int32_t number = 0;
  if (!from_python(nth, "nth", number)) return nullptr;
  const LoaderCall call(*loader_of(self));
  if (call.handle() == nullptr) return nullptr;
  auto stats = init<Stats>();
  const std::int32_t s = feedlane_loader_get_consumer(call.handle(), number, &stats);
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  return s == FEEDLANE_OK ? dict_of<Stats>(stats, members).release() : refuse(self, s);
}

// ---- a consumer ----

PyObject* join(PyObject*, PyObject* args) {
  int fd = -1;
  char* path = nullptr;
  PyObject *socket = nullptr, *place = nullptr, *pool = nullptr;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "iOOOL:join", &fd, &socket, &place, &pool, &timeout_ns) == 0) return nullptr;
  if (socket != Py_None && PyBytes_AsStringAndSize(socket, &path, nullptr) != 0) return nullptr;
  auto config = init<feedlane_consumer_config>();
  if (place != Py_None && !read_place(place, config)) return nullptr;
  if (pool != Py_None && (config.pinned = pool_handle(pool)) == nullptr) return nullptr;
  feedlane_loader* handle = nullptr;
  const auto call = [&] { return feedlane_loader_join(fd, path, &config, timeout_ns, &handle, error_room()); };
  return check(unlocked(call)) ? new_consumer(handle).release() : nullptr;
}

}  // namespace feedlane::python
