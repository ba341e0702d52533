// SPDX-License-Identifier: Apache-2.0
// Arrays and DLPack capsules over the memory of a batch's tensor. Each holds a reference of the batch.
#include "core.hpp"
#include "dlpack.hpp"
#include "numbers.hpp"

namespace feedlane::python {
namespace {

PyTypeObject* view_type;

// ---- View: the memory of one tensor, as a buffer ----

struct View {
  PyObject_HEAD feedlane_loader* loader;  // valid for the functions of its batches after its end too
  std::uint64_t token;
  void* data;
  std::uint64_t bytes;
  bool is_read_only;
};

void free_view(PyObject* self) {
  auto* const view = reinterpret_cast<View*>(self);
  (void)feedlane_batch_release(view->loader, view->token);
  free_object(self);
}

int get_buffer(PyObject* self, Py_buffer* buffer, int flags) {
  auto* const view = reinterpret_cast<View*>(self);
  return PyBuffer_FillInfo(buffer, self, view->data, static_cast<Py_ssize_t>(view->bytes), view->is_read_only ? 1 : 0,
                           flags);
}

PyType_Slot view_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_view)},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                            {Py_tp_doc, const_cast<char*>("The memory of a tensor. It keeps its batch.")},
                            {0, nullptr}};
PyType_Spec view_spec = {"feedlane._core.View", sizeof(View), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         view_slots};

// ---- capsules ----

template <typename Managed>
constexpr const char* name_of = "dltensor";
template <>
constexpr const char* name_of<DLManagedTensorVersioned> = "dltensor_versioned";

template <typename Managed>
void free_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, name_of<Managed>) == 0) return;  // it was consumed
  auto* const tensor = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name_of<Managed>));
  if (tensor->deleter != nullptr) tensor->deleter(tensor);
}

template <typename Managed>
Ref capsule_as(feedlane_loader* loader, std::uint64_t token, std::int32_t number, std::int32_t flags) {
  void* exported = nullptr;
  if (!check(feedlane_batch_dlpack(loader, token, number, flags, &exported, error_room()))) return {};
  auto* const tensor = static_cast<Managed*>(exported);
  Ref capsule(PyCapsule_New(tensor, name_of<Managed>, free_capsule<Managed>));
  if (!capsule) tensor->deleter(tensor);
  return capsule;
}

}  // namespace

Ref numpy_type(const feedlane_dtype& type) {
  const Ref key(PyLong_FromLong(type.lanes == 1 ? type.code << 8 | type.bits : -1));
  return key ? Ref::borrow(PyDict_GetItemWithError(types.dtypes, key.get())) : Ref();
}

Ref view_of(feedlane_loader* loader, std::uint64_t token, const feedlane_tensor& tensor, bool is_read_only) {
  if (const std::int32_t s = feedlane_batch_retain(loader, token); s != FEEDLANE_OK) return Ref(raise(s, ""));
  auto* const view = new_object<View>(view_type);
  if (view == nullptr) {
    (void)feedlane_batch_release(loader, token);
    return {};
  }
  view->loader = loader;
  view->token = token;
  view->data = tensor.data;
  view->bytes = tensor.bytes;
  view->is_read_only = is_read_only;
  return Ref(reinterpret_cast<PyObject*>(view));
}

Ref array_of(feedlane_loader* loader, std::uint64_t token, const feedlane_tensor& tensor, bool is_read_only) {
  const Ref dtype = numpy_type(tensor.dtype);
  if (!dtype) return {};
  const Ref memory = view_of(loader, token, tensor, is_read_only);
  const Ref shape = memory ? shape_of(tensor.shape, tensor.ndim) : Ref();
  if (!shape) return {};
  return Ref(PyObject_CallFunctionObjArgs(types.ndarray, shape.get(), dtype.get(), memory.get(), nullptr));
}

Ref capsule_of(feedlane_loader* loader, std::uint64_t token, std::int32_t number, bool is_versioned) {
  return is_versioned ? capsule_as<DLManagedTensorVersioned>(loader, token, number, 0)
                      : capsule_as<DLManagedTensor>(loader, token, number, FEEDLANE_DLPACK_LEGACY);
}

bool add_view(PyObject* module) {
  view_type = add_type(module, view_spec);
  return view_type != nullptr;
}

}  // namespace feedlane::python
