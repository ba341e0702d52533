// SPDX-License-Identifier: Apache-2.0
// Cursor: iterates over an epoch's batches.
#include <algorithm>
#include <cstring>
#include <ctime>
#include <string_view>

#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

// A wait ends this often, so that a signal that came just before it finds Python's handler.
constexpr std::int64_t slice_ns = 200'000'000;
constexpr std::uint8_t bool_code = 6;                      // DLPack's
constexpr std::string_view mark{"\0feedlane-plan\0", 15};  // tree.MARK; the next zero byte ends the plan
constexpr std::size_t max_dimensions = 64;                 // of a part: tree.MAX_DEPTH
// Batches between two looks for missing workers, where the program starts them: a look takes a call of the system.
constexpr std::uint64_t batches_per_look = 8;

struct Cursor {
  PyObject_HEAD PyObject* loader;  // a Loader
  PyObject* epoch;                 // iteration._Epoch: what is not an ordinary batch is its to decide
  PyObject* read;                  // metadata, number of tensors -> plan
  PyObject* from_dlpack;           // None: arrays are numpy's
  std::int64_t timeout_ns;         // for a batch; FEEDLANE_FOREVER
  std::uint64_t held;              // with so many batches held, what follows is copied; 0: never
  std::int64_t turn;               // of the loader: another iteration has begun if it is no longer ours
  bool is_whole;                   // yields Batch objects
  bool looks;                      // for missing workers
  std::uint64_t calls;             // of `next`
  bool is_in_call;                 // see InCall
  PyObject* metadata;              // of the newest batch, up to the integers, and its plan: they rarely change
  std::uint64_t tensors;
  PyObject* plan;
};

// The metadata of a batch: a plan, which is the same object as the cursor's if that didn't change, and the integers of
// its parts.
struct Described {
  Ref plan;
  Ref metadata;  // has the integers
  const char* numbers = nullptr;
  std::size_t count = 0;
  bool is_cut = false;  // the last one
};

Cursor* cursor_of(PyObject* self) { return reinterpret_cast<Cursor*>(self); }

std::string_view text_of(PyObject* bytes) {
  return {PyBytes_AsString(bytes), static_cast<std::size_t>(PyBytes_Size(bytes))};
}

Loader& loader_of_cursor(const Cursor& cursor) { return *reinterpret_cast<Loader*>(cursor.loader); }

// What a batch is made into, while its token is held.
class Builder {
 public:
  Builder(const Cursor& cursor, feedlane_loader* loader, const feedlane_batch& batch, const Described& described)
      : cursor_(cursor),
        loader_(loader),
        batch_(batch),
        numbers_(described.numbers),
        count_(described.count),
        is_cut_(described.is_cut) {}

  // NULL without an exception: what tree.build knows and this doesn't, or finds to be malformed.
  Ref build_all(PyObject* plan) {
    Ref all = is_cut_ ? Ref() : build(plan);
    return count_ == 0 ? std::move(all) : Ref();
  }

 private:
  Ref build(PyObject* plan) {
    switch (kind_of(plan)) {
      case plan_leaf: return leaf(number_at(plan, 1), number_at(plan, 2));
      case plan_list: return list(PyTuple_GetItem(plan, 1));
      case plan_tuple: return tuple(PyTuple_GetItem(plan, 1));
      case plan_mapping: return mapping(plan);
      case plan_named: return named(plan);
      case plan_value: return Ref(PyObject_CallNoArgs(PyTuple_GetItem(plan, 1)));
      case plan_fields: return fields();
      case plan_part: return part(plan);
      default: return {};
    }
  }

  static long number_at(PyObject* tuple, Py_ssize_t i) { return PyLong_AsLong(PyTuple_GetItem(tuple, i)); }
  static PlanKind kind_of(PyObject* plan) { return static_cast<PlanKind>(number_at(plan, 0)); }

  Ref list(PyObject* children) {
    const Py_ssize_t count = PyTuple_Size(children);
    Ref all(PyList_New(count));
    for (Py_ssize_t i = 0; all && i < count; i++) {
      Ref child = build(PyTuple_GetItem(children, i));
      if (!child) return {};
      PyList_SetItem(all.get(), i, child.release());
    }
    return all;
  }

  Ref tuple(PyObject* children) {
    const Py_ssize_t count = PyTuple_Size(children);
    Ref all(PyTuple_New(count));
    for (Py_ssize_t i = 0; all && i < count; i++) {
      Ref child = build(PyTuple_GetItem(children, i));
      if (!child) return {};
      PyTuple_SetItem(all.get(), i, child.release());
    }
    return all;
  }

  // Its class may have a __new__ of its own: tuple's is called.
  Ref named(PyObject* plan) {
    Ref fields = list(PyTuple_GetItem(plan, 2));
    if (!fields) return {};
    Ref make(PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyTuple_Type), "__new__"));
    return make ? Ref(PyObject_CallFunctionObjArgs(make.get(), PyTuple_GetItem(plan, 1), fields.get(), nullptr))
                : Ref();
  }

  Ref mapping(PyObject* plan) {
    if (PyTuple_GetItem(plan, 2) != reinterpret_cast<PyObject*>(&PyDict_Type)) return {};
    PyObject* const keys = PyTuple_GetItem(plan, 1);
    PyObject* const children = PyTuple_GetItem(plan, 3);
    Ref all(PyDict_New());
    for (Py_ssize_t i = 0; all && i < PyTuple_Size(keys); i++) {
      Ref child = build(PyTuple_GetItem(children, i));
      if (!child || PyDict_SetItem(all.get(), PyTuple_GetItem(keys, i), child.get()) != 0) return {};
    }
    return all;
  }

  // As Batch._fields. NULL without an exception: a name occurs twice.
  Ref fields() const {
    Ref all(PyDict_New());
    for (std::uint64_t i = 0; all && i < batch_.tensor_count; i++) {
      Ref name = name_of(batch_.tensors[i]);
      Ref array = name ? leaf(static_cast<long>(i), owner_any) : Ref();
      if (!array || PyDict_SetItem(all.get(), name.get(), array.get()) != 0) return {};
    }
    return all && static_cast<std::uint64_t>(PyDict_Size(all.get())) == batch_.tensor_count ? std::move(all) : Ref();
  }

  [[nodiscard]] bool is_torch(long owner) const {
    return owner == owner_torch || (owner == owner_any && cursor_.from_dlpack != Py_None);
  }

  // As tree._part_of, of numpy's arrays.
  Ref part(PyObject* plan) {
    PyObject* const dtype = PyTuple_GetItem(plan, 5);
    if (is_torch(number_at(plan, 2)) || dtype == Py_None) return {};
    const feedlane_tensor& shared = batch_.tensors[number_at(plan, 1)];
    const auto ndim = static_cast<std::size_t>(number_at(plan, 4));
    if (shared.ndim != 1 || shared.dtype.bits * shared.dtype.lanes != 8 || count_ < 1 + ndim) return {};
    std::int64_t numbers[1 + max_dimensions];
    std::memcpy(numbers, numbers_, (1 + ndim) * sizeof *numbers);
    numbers_ += (1 + ndim) * sizeof *numbers;
    count_ -= 1 + ndim;
    const std::int64_t offset = numbers[0], item = number_at(plan, 6);
    std::int64_t bytes = item, extent = item;  // extent: as if no length were 0, which numpy checks too
    for (std::size_t i = 1; i <= ndim; i++) {
      if (numbers[i] < 0 || __builtin_mul_overflow(extent, std::max<std::int64_t>(numbers[i], 1), &extent)) return {};
      bytes = numbers[i] == 0 ? 0 : bytes * numbers[i];
    }
    const auto end = static_cast<std::int64_t>(shared.bytes) - bytes;
    if (item == 0 || offset < 0 || offset % item != 0 || offset > end) return {};
    if (!pack_) pack_ = view_of(loader_, batch_.token, shared, is_read_only(loader_of_cursor(cursor_)));
    const Ref shape = pack_ ? shape_of(numbers + 1, static_cast<std::int32_t>(ndim)) : Ref();
    const Ref place(shape ? PyLong_FromLongLong(offset) : nullptr);
    if (!place) return {};
    Ref made(PyObject_CallFunctionObjArgs(types.ndarray, shape.get(), dtype, pack_.get(), place.get(), nullptr));
    if (!made && PyErr_ExceptionMatches(PyExc_ValueError) != 0) PyErr_Clear();  // more dimensions than this numpy has
    return made;
  }

  Ref leaf(long number, long owner) const {
    const feedlane_tensor& tensor = batch_.tensors[number];
    if (!is_torch(owner)) return array_of(loader_, batch_.token, tensor, is_read_only(loader_of_cursor(cursor_)));
    if (cursor_.from_dlpack == Py_None) return {};
    Ref capsule = capsule_of(loader_, batch_.token, static_cast<std::int32_t>(number), false);
    Ref made(capsule ? PyObject_CallFunctionObjArgs(cursor_.from_dlpack, capsule.get(), nullptr) : nullptr);
    if (!made && tensor.dtype.code == bool_code && PyErr_ExceptionMatches(PyExc_RuntimeError) != 0)
      PyErr_Clear();  // torch before 2.2 takes no bool by DLPack: it gets an array of numpy's
    return made;
  }

  const Cursor& cursor_;
  feedlane_loader* loader_;
  const feedlane_batch& batch_;
  const char* numbers_;  // those left, in the order of the plan, and how many they are
  std::size_t count_;
  bool is_cut_;
  Ref pack_;  // the View of the tensor that parts share
};

// Any worker may have written there, so it is copied once, and checked by `read`. Empty with an exception.
Described describe(Cursor& cursor, const feedlane_batch& batch) {
  const auto bytes = static_cast<Py_ssize_t>(batch.metadata_bytes);
  const char* const text = static_cast<const char*>(batch.metadata);
  Ref metadata(
      PyBytes_FromStringAndSize(text, std::min(bytes, max_metadata_bytes + 1)));  // `read` refuses that one more
  if (!metadata) return {};
  Described found;
  const std::string_view all = text_of(metadata.get());
  std::string_view words = all;
  if (all.substr(0, mark.size()) == mark) words = all.substr(0, all.find('\0', mark.size()));
  if (words.size() < all.size()) {
    const std::string_view numbers = all.substr(words.size() + 1);
    found.numbers = numbers.data();
    found.count = numbers.size() / sizeof(std::int64_t);
    found.is_cut = numbers.size() % sizeof(std::int64_t) != 0;
  }
  if (bytes > max_metadata_bytes || cursor.metadata == nullptr || cursor.tensors != batch.tensor_count ||
      words != text_of(cursor.metadata)) {
    Ref known(PyBytes_FromStringAndSize(words.data(), static_cast<Py_ssize_t>(words.size())));
    Ref count(known ? PyLong_FromUnsignedLongLong(batch.tensor_count) : nullptr);
    Ref plan(count ? PyObject_CallFunctionObjArgs(cursor.read, metadata.get(), count.get(), nullptr) : nullptr);
    if (!plan) return {};
    Ref(std::exchange(cursor.metadata, known.release()));
    Ref(std::exchange(cursor.plan, plan.release()));
    cursor.tensors = batch.tensor_count;
  }
  found.plan = Ref::borrow(cursor.plan);
  found.metadata = std::move(metadata);
  return found;
}

// Waits for a batch. The GIL is released only if none is there.
std::int32_t next_batch(const Cursor& cursor, feedlane_loader* loader, feedlane_batch& batch) {
  std::int32_t status = feedlane_loader_next(loader, 0, &batch, error_room());
  if (status != FEEDLANE_TIMEOUT && status != FEEDLANE_INTERRUPTED) return status;
  timespec now{};
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  const auto now_ns = [&] { return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec; };
  const std::int64_t end_ns = cursor.timeout_ns == FEEDLANE_FOREVER ? FEEDLANE_FOREVER : now_ns() + cursor.timeout_ns;
  for (;;) {
    if (PyErr_CheckSignals() != 0) return FEEDLANE_INTERRUPTED;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t left_ns = end_ns == FEEDLANE_FOREVER ? slice_ns : std::max<std::int64_t>(end_ns - now_ns(), 0);
    status = unlocked([&] { return feedlane_loader_next(loader, std::min(left_ns, slice_ns), &batch, error_room()); });
    if (status != FEEDLANE_TIMEOUT && status != FEEDLANE_INTERRUPTED) return status;
    if (status == FEEDLANE_TIMEOUT && left_ns <= slice_ns && end_ns != FEEDLANE_FOREVER) return status;
  }
}

// What is not an ordinary batch: `outcome` raises, or returns NotImplemented: `next` is called again.
Ref outcome(const Cursor& cursor, std::int32_t status, bool is_again) {
  Ref exception = status < 0 ? exception_of(status) : Ref::borrow(Py_None);
  PyObject* const again = is_again ? Py_True : Py_False;
  return exception ? Ref(PyObject_CallMethod(cursor.epoch, "outcome", "iOO", status, exception.get(), again)) : Ref();
}

// What `method` of the epoch makes of a Batch object.
Ref by_epoch(const Cursor& cursor, feedlane_loader* loader, const char* method, const feedlane_batch& batch) {
  Ref object = new_batch(loader, batch, is_read_only(loader_of_cursor(cursor)));
  return object ? Ref(PyObject_CallMethod(cursor.epoch, method, "O", object.get())) : Ref();
}

// Whether the loop keeps so many batches that this one must not keep its slot.
bool must_copy(const Cursor& cursor, const LoaderCall& call) {
  if (cursor.held == 0) return false;
  feedlane_monitor* const monitor = call.monitor();
  if (monitor == nullptr) {  // another thread closes the loader
    PyErr_Clear();
    return false;
  }
  auto stats = init<feedlane_stats>();
  return feedlane_monitor_get_stats(monitor, &stats) == FEEDLANE_OK && stats.slots_held >= cursor.held;
}

// is_final: it is not to be copied any more.
Ref data_of(Cursor& cursor, feedlane_loader* loader, feedlane_batch& batch, bool& is_final) {
  is_final = cursor.is_whole;
  if (cursor.is_whole) return by_epoch(cursor, loader, "arrived", batch);
  Ref data;
  if (const Described described = describe(cursor, batch); described.plan)
    data = Builder(cursor, loader, batch, described).build_all(described.plan.get());
  is_final = !data && (PyErr_Occurred() == nullptr || PyErr_ExceptionMatches(types.malformed) != 0 ||
                       PyErr_ExceptionMatches(PyExc_ImportError) != 0);
  if (is_final) {
    PyErr_Clear();  // raised again in the package's words
    return by_epoch(cursor, loader, "unusual", batch);
  }
  (void)feedlane_batch_release(loader, batch.token);
  return data;
}

// An iterator that is at its end stays so.
PyObject* closed(const Cursor& cursor) {
  Ref exception = take_exception();
  return Ref(PyObject_CallMethod(cursor.epoch, "outcome", "iOO", FEEDLANE_E_STATE, exception.get(), Py_False))
      .release();
}

// A cursor is in one call at a time.
class InCall {
 public:
  explicit InCall(Cursor& cursor) : cursor_(cursor) { cursor_.is_in_call = true; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
  ~InCall() { cursor_.is_in_call = false; }

 private:
  Cursor& cursor_;
};

// Raises what a callback has left for the loop, if anything.
bool is_interrupted(const Cursor& cursor) {
  const Ref interruption = take_interruption(loader_of_cursor(cursor));
  if (interruption) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interruption.get())), interruption.get());
  return static_cast<bool>(interruption);
}

// Before a batch is taken, so that a failed start loses none. A loop that never waits would not replace a worker otherwise.
bool start_missing(Cursor& cursor) {
  if (!cursor.looks || cursor.calls++ % batches_per_look != 0) return true;
  return static_cast<bool>(Ref(PyObject_CallMethod(cursor.epoch, "look", nullptr)));
}

PyObject* next_data(PyObject* self) {
  const Exclusive lock(self);
  Cursor& cursor = *cursor_of(self);
  if (cursor.is_in_call) return PyObject_CallMethod(cursor.epoch, "refuse", "i", FEEDLANE_E_BUSY);
  const InCall in_call(cursor);
  if (turn_of(loader_of_cursor(cursor)) == cursor.turn && !start_missing(cursor)) return nullptr;
  for (std::int32_t before = FEEDLANE_OK;;) {
    if (turn_of(loader_of_cursor(cursor)) != cursor.turn)
      return PyObject_CallMethod(cursor.epoch, "refuse", "i", FEEDLANE_E_STATE);
    if (is_interrupted(cursor)) return nullptr;
    const LoaderCall call(loader_of_cursor(cursor), LoaderCall::for_next);
    if (call.handle() == nullptr) return closed(cursor);
    auto batch = init<feedlane_batch>();
    const std::int32_t status = next_batch(cursor, call.handle(), batch);
    if (status == FEEDLANE_OK) {
      bool is_final = false;
      Ref data = data_of(cursor, call.handle(), batch, is_final);
      if (!data || is_final || !must_copy(cursor, call)) return data.release();
      return PyObject_CallMethod(cursor.epoch, "copy", "(O)", data.get());
    }
    if (PyErr_Occurred() != nullptr || is_interrupted(cursor)) return nullptr;
    if (status == FEEDLANE_END) {
      Ref told(PyObject_CallMethod(cursor.epoch, "end", nullptr));
      return nullptr;  // with no exception: StopIteration
    }
    Ref what = outcome(cursor, status, status == before);
    if (what.get() != Py_NotImplemented) return what.release();
    before = status;
  }
}

PyObject* new_cursor(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *loader = nullptr, *epoch = nullptr, *read = nullptr, *from_dlpack = nullptr;
  long long timeout_ns = 0;
  unsigned long long held = 0;
  int is_whole = 0, looks = 0;
  if (PyArg_ParseTuple(args, "OOOOLKp|p:Cursor", &loader, &epoch, &read, &from_dlpack, &timeout_ns, &held, &is_whole,
                       &looks) == 0)
    return nullptr;
  const Loader* const of = loader_of(loader);
  if (of == nullptr) return nullptr;
  auto* const cursor = new_object<Cursor>(type);
  if (cursor == nullptr) return nullptr;
  cursor->loader = Ref::borrow(loader).release();
  cursor->epoch = Ref::borrow(epoch).release();
  cursor->read = Ref::borrow(read).release();
  cursor->from_dlpack = Ref::borrow(from_dlpack).release();
  cursor->timeout_ns = timeout_ns;
  cursor->held = held;
  cursor->turn = turn_of(*of);
  cursor->is_whole = is_whole != 0;
  cursor->looks = looks != 0;
  return reinterpret_cast<PyObject*>(cursor);
}

int visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cursor_of(self)->loader);
  Py_VISIT(cursor_of(self)->epoch);
  Py_VISIT(cursor_of(self)->read);
  Py_VISIT(cursor_of(self)->plan);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(cursor_of(self)->epoch);
  Py_CLEAR(cursor_of(self)->read);
  Py_CLEAR(cursor_of(self)->plan);
  Py_CLEAR(cursor_of(self)->metadata);
  return 0;
}

void free_cursor(PyObject* self) {
  PyObject_GC_UnTrack(self);
  (void)clear(self);
  Cursor& cursor = *cursor_of(self);
  Py_CLEAR(cursor.from_dlpack);
  Py_CLEAR(cursor.loader);
  free_object(self);
}

PyObject* itself(PyObject* self) { return Ref::borrow(self).release(); }

Py_ssize_t length(PyObject* self) { return PyObject_Length(cursor_of(self)->epoch); }

PyType_Slot cursor_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("Cursor(loader, epoch, read, from_dlpack, timeout_ns, held, is_whole, looks=False): an epoch's\n"
                       "batches. looks: calls epoch.look() now and then, which starts workers.\n"
                       "epoch: see _Epoch in iteration.py.")},
    {Py_tp_new, reinterpret_cast<void*>(new_cursor)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_cursor)},
    {Py_tp_traverse, reinterpret_cast<void*>(visit)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_iter, reinterpret_cast<void*>(itself)},
    {Py_tp_iternext, reinterpret_cast<void*>(next_data)},
    {Py_sq_length, reinterpret_cast<void*>(length)},
    {0, nullptr}};
PyType_Spec cursor_spec = {"feedlane._core.Cursor", sizeof(Cursor), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           cursor_slots};

}  // namespace

bool add_cursor(PyObject* module) { return add_type(module, cursor_spec) != nullptr; }

}  // namespace feedlane::python
