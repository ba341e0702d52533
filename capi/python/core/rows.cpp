// SPDX-License-Identifier: Apache-2.0
// Rows: batches of a BatchDataset, which writes them itself. What that costs beside its own work is paid for each
// batch, so the arrays over a slot are made once and kept for the next batch there; the data set gets views of them.
// What it does to a view's shape or flags is gone with the view. Views that are kept are noticed, and so is all that
// refers to one; not the address alone, nor the memory below an array's base.
#include <algorithm>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "core.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

// Arrays of one element type and shape beside the rows, over one place of each slot.
class Column {
 public:
  // `shape`: a tuple, without the rows. `access`: PyBUF_READ or PyBUF_WRITE.
  Column(Ref dtype, Ref shape, int access) : dtype_(std::move(dtype)), shape_(std::move(shape)), access_(access) {}

  // A view of `rows` rows at `data`, which are the task's. Null with an exception.
  Ref over(const void* data, std::uint64_t bytes, std::uint64_t rows) {
    Array& there = arrays_[data];
    now_ = &there;
    if (!there.array || there.rows != rows) {
      there.rows = rows;
      there.array = make(data, bytes, rows);
      if (!there.array) return {};
    }
    return Ref(PyObject_GetItem(there.array.get(), Py_Ellipsis));
  }

  // After the caller's reference to the newest view is gone: whether somebody has kept the view, or one of it. Then the
  // array is not used again.
  bool is_kept() {
    if (now_ == nullptr || !now_->array || Py_REFCNT(now_->array.get()) == 1) return false;
    now_->array = Ref();
    return true;
  }

 private:
  struct Array {
    std::uint64_t rows = 0;
    Ref array;
  };

  Ref make(const void* data, std::uint64_t bytes, std::uint64_t rows) const {
    auto* const start = static_cast<char*>(const_cast<void*>(data));
    Ref memory(PyMemoryView_FromMemory(start, static_cast<Py_ssize_t>(bytes), access_));
    Ref first(memory ? Py_BuildValue("(K)", static_cast<unsigned long long>(rows)) : nullptr);
    Ref shape(first ? PySequence_Concat(first.get(), shape_.get()) : nullptr);
    return shape ? Ref(PyObject_CallFunctionObjArgs(types.ndarray, shape.get(), dtype_.get(), memory.get(), nullptr))
                 : Ref();
  }

  Ref dtype_, shape_;
  int access_;
  std::unordered_map<const void*, Array> arrays_;  // by place, of which there are at most as many as slots
  Array* now_ = nullptr;                           // that of the newest view; elements of the map stay where they are
};

struct Field {
  Ref name;               // a str
  std::string encoded;    // the same for the library
  feedlane_field tensor;  // without its name, of no rows
  Column column;
};

constexpr feedlane_dtype int64_type{0, 64, 1}, uint64_type{1, 64, 1};  // DLPack's codes

class Batches {
 public:
  Batches(Ref index_type, Ref seed_type, std::string metadata)
      : indices_(std::move(index_type), Ref(PyTuple_New(0)), PyBUF_READ),
        seeds_(std::move(seed_type), Ref(PyTuple_New(0)), PyBUF_READ),
        metadata_(std::move(metadata)) {}

  // `field`: (name, the same as bytes, (code, bits), numpy's dtype, shape). False with an exception.
  bool add(PyObject* field) {
    PyObject *name = nullptr, *dtype = nullptr, *shape = nullptr;
    const char* encoded = nullptr;
    int code = 0, bits = 0;
    if (PyArg_ParseTuple(field, "Uy(ii)OO!", &name, &encoded, &code, &bits, &dtype, &PyTuple_Type, &shape) == 0)
      return false;
    auto tensor = init<feedlane_field>();
    if (!set_type(tensor, code, bits, shape)) return false;
    if (tensor.ndim >= FEEDLANE_MAX_NDIM) {
      PyErr_Format(PyExc_ValueError, "field %R has %d dimensions in addition to the rows, but at most %d are allowed",
                   name, tensor.ndim, FEEDLANE_MAX_NDIM - 1);
      return false;
    }
    std::copy_backward(tensor.shape, tensor.shape + tensor.ndim, tensor.shape + tensor.ndim + 1);
    tensor.ndim++;
    fields_.push_back(
        {Ref::borrow(name), encoded, tensor, Column(Ref::borrow(dtype), Ref::borrow(shape), PyBUF_WRITE)});
    return true;
  }

  bool write(PyObject* dataset, const feedlane_task* task) {
    const bool is_written = call(dataset, task);
    bool is_kept = indices_.is_kept();
    is_kept = seeds_.is_kept() || is_kept;
    for (Field& field : fields_) is_kept = field.column.is_kept() || is_kept;
    if (!is_written) return false;  // its traceback has them
    if (is_kept) return refuse_kept(dataset);
    return check(feedlane_task_store(task, FEEDLANE_STORE_METADATA, metadata_.data(), metadata_.size(), error_room()));
  }

 private:
  bool call(PyObject* dataset, const feedlane_task* task) {
    const std::uint64_t count = task->count;
    const Ref indices = indices_.over(task->indices, count * sizeof *task->indices, count);
    const Ref seeds = indices ? seeds_.over(task->seeds, count * sizeof *task->seeds, count) : Ref();
    Ref out(seeds ? PyDict_New() : nullptr);
    if (!out) return false;
    for (std::size_t i = 0; i < fields_.size(); i++)
      if (!add_tensor(task, static_cast<std::int32_t>(i), fields_[i], out.get())) return false;
    static PyObject* const method = PyUnicode_InternFromString("fetch");
    if (method == nullptr) return false;
    const Ref done(PyObject_CallMethodObjArgs(dataset, method, indices.get(), seeds.get(), out.get(), nullptr));
    PyDict_Clear(out.get());  // the dict itself may be kept
    return static_cast<bool>(done);
  }

  static bool add_tensor(const feedlane_task* task, std::int32_t number, Field& field, PyObject* out) {
    field.tensor.name = field.encoded.c_str();
    field.tensor.shape[0] = static_cast<std::int64_t>(task->count);
    feedlane_tensor tensor;
    if (!check(feedlane_task_tensor(task, number, &field.tensor, &tensor, error_room()))) return false;
    const Ref array = field.column.over(tensor.data, tensor.bytes, task->count);
    return array && PyDict_SetItem(out, field.name.get(), array.get()) == 0;
  }

  static bool refuse_kept(PyObject* dataset) {
    const Ref name(PyType_GetName(Py_TYPE(dataset)));
    if (name)
      PyErr_Format(PyExc_TypeError,
                   "%U.fetch has kept an array, but its memory belongs to the loader after fetch returns", name.get());
    return false;
  }

  Column indices_, seeds_;
  std::vector<Field> fields_;
  std::string metadata_;
};

PyTypeObject* rows_type;

struct Rows {
  PyObject_HEAD Batches* batches;
};

PyObject* new_rows(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* fields = nullptr;
  const char* metadata = nullptr;
  Py_ssize_t length = 0;
  if (PyArg_ParseTuple(args, "O!y#:Rows", &PyList_Type, &fields, &metadata, &length) == 0) return nullptr;
  auto* const rows = new_object<Rows>(type);
  Ref made(reinterpret_cast<PyObject*>(rows));
  if (!made) return nullptr;
  Ref index_type = numpy_type(int64_type), seed_type = numpy_type(uint64_type);
  if (!index_type || !seed_type) return nullptr;
  try {
    rows->batches = new Batches(std::move(index_type), std::move(seed_type),
                                std::string(metadata, static_cast<std::size_t>(length)));
    for (Py_ssize_t i = 0; i < PyList_Size(fields); i++)
      if (!rows->batches->add(PyList_GetItem(fields, i))) return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return made.release();
}

void free_rows(PyObject* self) {
  delete reinterpret_cast<Rows*>(self)->batches;
  free_object(self);
}

PyType_Slot rows_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_rows)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_rows)},
    {Py_tp_doc, const_cast<char*>("Rows(fields, metadata): the arrays that a BatchDataset writes, see rows.cpp.")},
    {0, nullptr}};
PyType_Spec rows_spec = {"feedlane._core.Rows", sizeof(Rows), 0, Py_TPFLAGS_DEFAULT, rows_slots};

}  // namespace

bool write_rows(PyObject* rows, PyObject* dataset, const feedlane_task* task) {
  if (Py_TYPE(rows) != rows_type) {
    PyErr_SetString(PyExc_TypeError, "not a Rows object");
    return false;
  }
  try {
    return reinterpret_cast<Rows*>(rows)->batches->write(dataset, task);
  } catch (const std::bad_alloc&) {
    (void)PyErr_NoMemory();
    return false;
  }
}

bool add_rows(PyObject* module) {
  rows_type = add_type(module, rows_spec);
  return rows_type != nullptr;
}

}  // namespace feedlane::python
