// SPDX-License-Identifier: Apache-2.0
// Receiver, Sender: the ends of a ring. Span: its messages in place. ring.py wraps them.
#include <climits>
#include <cstring>

#include "core.hpp"
#include "members.hpp"
#include "numbers.hpp"
#include "slices.hpp"

#include <structmember.h>

namespace feedlane::python {
namespace {

PyTypeObject *receiver_type, *sender_type, *span_type;

// An end of a ring: a Receiver has an `rx`, a Sender a `tx`. One call at a time.
struct End {
  PyObject_HEAD PyObject* weak;
  feedlane_rx* rx;
  feedlane_tx* tx;
  std::uint32_t message_bytes;
  bool is_closed;
  bool is_in_call;
  Py_ssize_t spans;  // Span objects that keep the memory
  PyObject* span;    // borrowed: the Span that is not finished yet, or null
  std::int64_t forks;
};

End& self_of(PyObject* self) { return *reinterpret_cast<End*>(self); }

// The handle is destroyed after `close`, when no call and no Span uses it.
void free_unused(End& end) {
  if (!end.is_closed || end.is_in_call || end.spans != 0 || end.forks != forks()) return;
  feedlane_rx* rx = std::exchange(end.rx, nullptr);
  feedlane_tx* tx = std::exchange(end.tx, nullptr);
  if (rx == nullptr && tx == nullptr) return;
  (void)unlocked([&] { return rx != nullptr ? feedlane_rx_destroy(&rx) : feedlane_tx_destroy(&tx); });
}

// A call on an end. Not valid: with an exception.
class Call {
 public:
  explicit Call(PyObject* self) : end_(self_of(self)) {
    if (end_.forks != forks()) {
      (void)raise(FEEDLANE_E_FORKED, "this end of the ring belongs to the parent process");
    } else if (end_.is_closed) {
      (void)raise(FEEDLANE_E_STATE, "this end of the ring was closed");
    } else if (end_.is_in_call) {
      (void)raise(FEEDLANE_E_BUSY, "another thread is in a call of this end of the ring");
    } else {
      is_valid_ = end_.is_in_call = true;
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (!is_valid_) return;
    end_.is_in_call = false;
    free_unused(end_);
  }
  explicit operator bool() const { return is_valid_; }

 private:
  End& end_;
  bool is_valid_ = false;
};

PyObject* new_end(PyTypeObject* type, feedlane_rx* rx, feedlane_tx* tx, std::uint32_t message_bytes) {
  auto* const end = new_object<End>(type);
  if (end == nullptr) {
    (void)feedlane_rx_destroy(&rx);
    (void)feedlane_tx_destroy(&tx);
    return nullptr;
  }
  end->rx = rx;
  end->tx = tx;
  end->message_bytes = message_bytes;
  end->forks = forks();
  return reinterpret_cast<PyObject*>(end);
}

void end_span(End& end);

PyObject* close(PyObject* self, PyObject*) {
  End& end = self_of(self);
  if (end.is_closed || end.forks != forks()) Py_RETURN_NONE;
  end.is_closed = true;
  (void)(end.rx != nullptr ? feedlane_rx_close(end.rx) : feedlane_tx_close(end.tx));
  end_span(end);
  free_unused(end);
  Py_RETURN_NONE;
}

void free_end(PyObject* self) {
  if (self_of(self).weak != nullptr) PyObject_ClearWeakRefs(self);
  Ref(close(self, nullptr));
  free_object(self);
}

PyObject* get_is_closed(PyObject* self, void*) { return PyBool_FromLong(self_of(self).is_closed ? 1 : 0); }
PyObject* get_message_bytes(PyObject* self, void*) { return PyLong_FromUnsignedLong(self_of(self).message_bytes); }

// ---- spans ----

// Its state is protected by the lock of its end.
struct Span {
  PyObject_HEAD PyObject* end;  // never changes
  feedlane_span c;
  Py_ssize_t exports;  // buffers, which are views of the memory
  bool is_over;
  bool is_counted;                  // in End::spans
  Py_ssize_t shape[2], strides[2];  // of the buffers
};

Span& span_of(PyObject* self) { return *reinterpret_cast<Span*>(self); }

// False with a StateError: the end's last span is not over.
bool has_no_span(const End& end) {
  return end.span == nullptr ||
         raise(FEEDLANE_E_STATE, "the messages of the last peek or reserve are still in use: release them") != nullptr;
}

PyObject* new_span(PyObject* end, const feedlane_span& c) {
  auto* const span = new_object<Span>(span_type);
  if (span == nullptr) return nullptr;
  span->end = Ref::borrow(end).release();
  span->c = c;
  const auto count = static_cast<Py_ssize_t>(c.count), bytes = static_cast<Py_ssize_t>(self_of(end).message_bytes);
  span->shape[0] = count;
  span->shape[1] = bytes;
  span->strides[0] = static_cast<Py_ssize_t>(c.stride);
  span->strides[1] = 1;
  span->is_counted = true;
  self_of(end).spans++;
  self_of(end).span = reinterpret_cast<PyObject*>(span);
  return reinterpret_cast<PyObject*>(span);
}

void free_span(PyObject* self) {
  const Ref owner(span_of(self).end);
  {
    const Exclusive lock(owner.get());
    End& end = self_of(owner.get());
    if (span_of(self).is_counted) end.spans--;
    if (end.span == self) end.span = nullptr;  // received messages come again, reserved ones are dropped
    free_unused(end);
  }
  free_object(self);
}

// At the close of its end: a span without buffers no longer keeps the memory.
void end_span(End& end) {
  if (end.span == nullptr || span_of(end.span).exports != 0) return;
  span_of(end.span).is_over = true;
  span_of(end.span).is_counted = false;
  end.spans--;
  end.span = nullptr;
}

// Releases or commits the first messages.
PyObject* finish(PyObject* self, PyObject* count) {
  Span& span = span_of(self);
  const Exclusive lock(span.end);
  std::uint32_t number = 0;
  if (!from_python(count, "count", number)) return nullptr;
  if (span.is_over) return raise(FEEDLANE_E_STALE, "these messages were released, or their end of the ring was closed");
  if (span.exports != 0) {
    PyErr_SetString(
        PyExc_BufferError,
        "an array, a memoryview or a structured element of these messages still exists: delete it, or copy it");
    return nullptr;
  }
  if (number > span.c.count) {
    PyErr_Format(PyExc_ValueError, "count=%u: must be from 0 to %u, the number of messages", number, span.c.count);
    return nullptr;
  }
  End& end = self_of(span.end);
  const Call call(span.end);
  if (!call) return nullptr;
  const std::int32_t s = end.rx != nullptr ? feedlane_rx_release(end.rx, span.c.lane, number, error_room())
                                           : feedlane_tx_commit(end.tx, number, error_room());
  if (!check(s)) return nullptr;
  span.is_over = true;
  end.span = nullptr;
  Py_RETURN_NONE;
}

int get_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  Span& span = span_of(self);
  const Exclusive lock(span.end);
  const bool is_read_only = self_of(span.end).rx != nullptr;
  const bool is_dense = span.c.count <= 1 || span.strides[0] == span.shape[1];
  const bool wants_dense =
      (flags & PyBUF_STRIDES) != PyBUF_STRIDES ||
      (flags & (PyBUF_C_CONTIGUOUS | PyBUF_F_CONTIGUOUS | PyBUF_ANY_CONTIGUOUS) & ~PyBUF_STRIDES) != 0;
  const char* reason = nullptr;
  if (span.is_over) reason = "these messages were released, or their end of the ring was closed";
  else if (self_of(span.end).forks != forks()) reason = "these messages belong to the parent process";
  else if (is_read_only && (flags & PyBUF_WRITABLE) != 0) reason = "received messages are read-only";
  else if (!is_dense && wants_dense) reason = "messages do not lie next to each other";
  buffer->obj = nullptr;
  if (reason != nullptr) {
    PyErr_SetString(PyExc_BufferError, reason);
    return -1;
  }
  static char bytes_format[] = "B";
  buffer->buf = span.c.data;
  buffer->len = span.shape[0] * span.shape[1];
  buffer->itemsize = 1;
  buffer->readonly = is_read_only ? 1 : 0;
  buffer->format = (flags & PyBUF_FORMAT) != 0 ? bytes_format : nullptr;
  buffer->ndim = 2;
  buffer->shape = (flags & PyBUF_ND) != 0 ? span.shape : nullptr;
  if (buffer->shape == nullptr) buffer->ndim = 1;
  buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? span.strides : nullptr;
  buffer->suboffsets = nullptr;
  buffer->internal = nullptr;
  buffer->obj = Ref::borrow(self).release();
  span.exports++;
  return 0;
}

void release_buffer(PyObject* self, Py_buffer*) {
  const Exclusive lock(span_of(self).end);
  span_of(self).exports--;
}

Py_ssize_t span_length(PyObject* self) { return span_of(self).shape[0]; }
PyObject* get_lane(PyObject* self, void*) { return PyLong_FromUnsignedLong(span_of(self).c.lane); }

// ---- the receiver ----

PyObject* create(PyObject*, PyObject* args) {
  auto config = init<feedlane_ring_config>();
  PyObject* path = nullptr;
  char* text = nullptr;
  if (PyArg_ParseTuple(args, "IIIO:create", &config.message_bytes, &config.capacity, &config.lanes, &path) == 0)
    return nullptr;
  if (path != Py_None && PyBytes_AsStringAndSize(path, &text, nullptr) != 0) return nullptr;
  config.path = text;
  feedlane_rx* rx = nullptr;
  if (!check(feedlane_rx_create(&config, &rx, error_room()))) return nullptr;
  return new_end(receiver_type, rx, nullptr, config.message_bytes);
}

PyObject* offer(PyObject* self, PyObject*) {
  const Call call(self);
  std::int32_t fd = -1;
  if (!call || !check(feedlane_rx_offer(self_of(self).rx, &fd, error_room()))) return nullptr;
  return PyLong_FromLong(fd);
}

// Up to `want` messages in place. Not OK: END or TIMEOUT, or INT32_MIN with an exception.
std::int32_t peek_span(End& end, unsigned want, std::int64_t timeout_ns, feedlane_span& span) {
  return wait_for(timeout_ns,
                  [&](std::int64_t slice) { return feedlane_rx_peek(end.rx, want, slice, &span, error_room()); });
}

PyObject* peek(PyObject* self, PyObject* args) {
  unsigned want = 0;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "IL:peek", &want, &timeout_ns) == 0) return nullptr;
  const Call call(self);
  if (!call || !has_no_span(self_of(self))) return nullptr;
  feedlane_span span{};
  const std::int32_t s = peek_span(self_of(self), want, timeout_ns, span);
  if (s == INT32_MIN) return nullptr;
  return s == FEEDLANE_OK ? new_span(self, span) : PyLong_FromLong(s);
}

// A copy of the messages, which are released. It has their size, which is not known before the peek.
PyObject* receive(PyObject* self, PyObject* args) {
  unsigned want = 0;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "IL:receive", &want, &timeout_ns) == 0) return nullptr;
  const Call call(self);
  End& end = self_of(self);
  if (!call || !has_no_span(end)) return nullptr;
  feedlane_span span{};
  const std::int32_t s = peek_span(end, want, timeout_ns, span);
  if (s == INT32_MIN) return nullptr;
  if (s != FEEDLANE_OK) return PyLong_FromLong(s);
  Ref copies(PyByteArray_FromStringAndSize(
      nullptr, static_cast<Py_ssize_t>(span.count) * static_cast<Py_ssize_t>(end.message_bytes)));
  if (!copies) return nullptr;
  char* const to = PyByteArray_AsString(copies.get());
  for (std::size_t i = 0; i < span.count; i++)
    std::memcpy(to + i * end.message_bytes, static_cast<const char*>(span.data) + i * span.stride, end.message_bytes);
  if (!check(feedlane_rx_release(end.rx, span.lane, span.count, error_room()))) return nullptr;
  return copies.release();
}

PyObject* arm(PyObject* self, PyObject*) {
  const Call call(self);
  std::int32_t fd = -1;
  if (!call) return nullptr;
  const std::int32_t s = feedlane_rx_arm(self_of(self).rx, &fd);
  if (s == FEEDLANE_E_OS)
    return raise(s, "the ring cannot wait: the process has too few descriptors, or the system refuses membarrier");
  if (s < 0) return raise(s, "");
  return Py_BuildValue("(ii)", s, fd);
}

PyObject* observe(PyObject*, PyObject* args) {
  using Info = feedlane_ring_info;
  static const Member<Info> members[] = {
      member_of<&Info::pid>("pid"),           member_of<&Info::message_bytes>("message_bytes"),
      member_of<&Info::capacity>("capacity"), member_of<&Info::lanes>("lanes"),
      member_of<&Info::received>("received"), member_of<&Info::control_bytes>("control_bytes")};
  long long pid = 0;
  int nth = 0;
  if (PyArg_ParseTuple(args, "Li:observe", &pid, &nth) == 0) return nullptr;
  auto info = init<Info>();
  const std::int32_t s = feedlane_monitor_ring(pid, nth, &info, error_room());
  if (s == FEEDLANE_END) Py_RETURN_NONE;
  return check(s) ? dict_of<Info>(info, members).release() : nullptr;
}

// ---- the sender ----

PyObject* attach(PyObject*, PyObject* args) {
  int fd = -1;
  PyObject* socket = nullptr;
  char* path = nullptr;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "iOL:attach", &fd, &socket, &timeout_ns) == 0) return nullptr;
  if (socket != Py_None && PyBytes_AsStringAndSize(socket, &path, nullptr) != 0) return nullptr;
  feedlane_tx* tx = nullptr;
  std::uint32_t bytes = 0;
  const std::int32_t s = unlocked([&] { return feedlane_tx_attach(fd, path, timeout_ns, &tx, &bytes, error_room()); });
  if (s == FEEDLANE_TIMEOUT) return raise(s, "the receiver of the ring has not answered in time");
  return check(s) ? new_end(sender_type, nullptr, tx, bytes) : nullptr;
}

// The number of messages that were sent, all of them unless the time was over.
PyObject* send_all(End& end, const Py_buffer& messages, std::int64_t timeout_ns) {
  const Py_ssize_t bytes = static_cast<Py_ssize_t>(end.message_bytes), count = messages.len / bytes;
  if (count * bytes != messages.len) {
    PyErr_Format(PyExc_ValueError, "messages have %zd bytes: must be a multiple of %zd, the size of a message",
                 messages.len, bytes);
    return nullptr;
  }
  const Slices slices(timeout_ns);
  Py_ssize_t done = 0;
  while (done < count) {
    const auto part = static_cast<std::uint32_t>(std::min<Py_ssize_t>(count - done, INT_MAX));
    std::uint32_t sent = 0;
    const std::int32_t s = wait_for(timeout_ns == 0 ? 0 : slices.left_ns(), [&](std::int64_t slice) {
      const std::int32_t status = feedlane_tx_send(end.tx, static_cast<const char*>(messages.buf) + done * bytes, part,
                                                   slice, &sent, error_room());
      return sent != 0 ? FEEDLANE_OK : status;  // the rest is sent by the next call
    });
    if (s == INT32_MIN) return nullptr;
    done += sent;
    if (s == FEEDLANE_TIMEOUT) break;
  }
  return PyLong_FromSsize_t(done);
}

PyObject* send(PyObject* self, PyObject* args) {
  PyObject* object = nullptr;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "OL:send", &object, &timeout_ns) == 0) return nullptr;
  const Call call(self);
  Py_buffer messages{};
  if (!call || !has_no_span(self_of(self)) || PyObject_GetBuffer(object, &messages, PyBUF_C_CONTIGUOUS) != 0)
    return nullptr;
  PyObject* const sent = send_all(self_of(self), messages, timeout_ns);
  PyBuffer_Release(&messages);
  return sent;
}

PyObject* reserve(PyObject* self, PyObject* args) {
  unsigned want = 0;
  long long timeout_ns = 0;
  if (PyArg_ParseTuple(args, "IL:reserve", &want, &timeout_ns) == 0) return nullptr;
  const Call call(self);
  End& end = self_of(self);
  if (!call || !has_no_span(end)) return nullptr;
  feedlane_span span{};
  const std::int32_t s = wait_for(
      timeout_ns, [&](std::int64_t slice) { return feedlane_tx_reserve(end.tx, want, slice, &span, error_room()); });
  if (s == INT32_MIN) return nullptr;
  return s == FEEDLANE_OK ? new_span(self, span) : PyLong_FromLong(s);
}

// ---- the types ----

PyMethodDef receiver_methods[] = {
    {"create", create, METH_VARARGS | METH_STATIC, "create(message_bytes, capacity, senders, path) -> Receiver"},
    {"close", exclusive<close>, METH_NOARGS, "close(): ends the call of another thread."},
    {"offer", exclusive<offer>, METH_NOARGS, "offer() -> descriptor, for attach"},
    {"peek", exclusive<peek>, METH_VARARGS, "peek(want, timeout_ns) -> Span, or a status"},
    {"receive", exclusive<receive>, METH_VARARGS, "receive(want, timeout_ns) -> bytearray, or a status"},
    {"arm", exclusive<arm>, METH_NOARGS, "arm() -> (status, descriptor)"},
    {"observe", observe, METH_VARARGS | METH_STATIC, "observe(pid, nth) -> dict; None: there is no such ring"},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef sender_methods[] = {
    {"attach", attach, METH_VARARGS | METH_STATIC,
     "attach(fd, path, timeout_ns) -> Sender. Takes over the descriptor."},
    {"close", exclusive<close>, METH_NOARGS, "close(): ends the call of another thread."},
    {"send", exclusive<send>, METH_VARARGS, "send(messages, timeout_ns) -> how many were sent"},
    {"reserve", exclusive<reserve>, METH_VARARGS, "reserve(want, timeout_ns) -> Span, or a status"},
    {nullptr, nullptr, 0, nullptr}};
PyMethodDef span_methods[] = {{"finish", finish, METH_O, "finish(count): releases or sends the first messages."},
                              {nullptr, nullptr, 0, nullptr}};
PyGetSetDef end_getters[] = {{"is_closed", get_is_closed, nullptr, "Whether close was called.", nullptr},
                             {"message_bytes", get_message_bytes, nullptr, "Size of a message.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyGetSetDef span_getters[] = {{"lane", get_lane, nullptr, "The sender's lane.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef end_members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(End, weak), READONLY, nullptr},
                             {nullptr, 0, 0, 0, nullptr}};
PyType_Slot receiver_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_end)},
                                {Py_tp_methods, receiver_methods},
                                {Py_tp_getset, end_getters},
                                {Py_tp_members, end_members},
                                {Py_tp_doc, const_cast<char*>("The receiving end of a ring.")},
                                {0, nullptr}};
PyType_Slot sender_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_end)},
                              {Py_tp_methods, sender_methods},
                              {Py_tp_getset, end_getters},
                              {Py_tp_members, end_members},
                              {Py_tp_doc, const_cast<char*>("A sending end of a ring.")},
                              {0, nullptr}};
PyType_Slot span_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_span)},
                            {Py_tp_methods, span_methods},
                            {Py_tp_getset, span_getters},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                            {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                            {Py_sq_length, reinterpret_cast<void*>(span_length)},
                            {Py_tp_doc, const_cast<char*>("Messages in place: a buffer [messages, message_bytes].")},
                            {0, nullptr}};
constexpr unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
PyType_Spec receiver_spec = {"feedlane._core.Receiver", sizeof(End), 0, flags, receiver_slots};
PyType_Spec sender_spec = {"feedlane._core.Sender", sizeof(End), 0, flags, sender_slots};
PyType_Spec span_spec = {"feedlane._core.Span", sizeof(Span), 0, flags, span_slots};

}  // namespace

bool add_ring(PyObject* module) {
  receiver_type = add_type(module, receiver_spec);
  sender_type = add_type(module, sender_spec);
  span_type = add_type(module, span_spec);
  return receiver_type != nullptr && sender_type != nullptr && span_type != nullptr;
}

}  // namespace feedlane::python
