// SPDX-License-Identifier: Apache-2.0
// tensors::tensor_of: what callers see of a field.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "shm/layout.hpp"
#include "tensors/fields.hpp"

using feedlane::Error;
using feedlane::tensors::Fields;
using feedlane::tensors::tensor_of;

namespace {

Fields two_fields(std::int32_t ndim, std::int64_t extent, std::int64_t max_rows) {
  feedlane_field fields[2] = {};
  for (feedlane_field& f : fields) {
    f.size = sizeof f;
    f.name = &f == fields ? "before" : "x";
    f.dtype = {2, 16, 1};
    f.ndim = ndim;
    for (std::int32_t d = 0; d < ndim; d++) f.shape[d] = extent + d;
  }
  Fields result;
  Error error;
  REQUIRE(result.declare(fields, 2, max_rows, error) == FEEDLANE_OK);
  return result;
}

}  // namespace

TEST_CASE("a tensor with any number of dimensions is row-major and begins at its field's offset") {
  std::array<std::byte, 1> payload{};
  for (std::int32_t ndim = 0; ndim < FEEDLANE_MAX_NDIM; ndim++) {
    CAPTURE(ndim);
    const Fields fields = two_fields(ndim, 2, 5);
    const Fields::Field& field = fields.all()[1];
    const feedlane_tensor t = tensor_of(field, 4, payload.data(), 8192);
    CHECK(std::string(t.name) == "x");
    CHECK(t.ndim == ndim + 1);
    CHECK(t.shape[0] == 4);
    std::int64_t elements = 1;
    for (std::int32_t d = ndim; d >= 0; d--) {
      CHECK(t.strides[d] == elements);
      elements *= t.shape[d];
      if (d > 0) CHECK(t.shape[d] == 2 + d - 1);
    }
    for (std::int32_t d = ndim + 1; d < FEEDLANE_MAX_NDIM; d++) {
      CHECK(t.shape[d] == 0);
      CHECK(t.strides[d] == 0);
    }
    CHECK(t.bytes == static_cast<std::uint64_t>(elements) * 2);
    CHECK(t.offset == 8192 + field.offset);
    CHECK(t.offset % feedlane::shm::tensor_alignment == 0);
    CHECK(t.data == payload.data() + field.offset);
    CHECK(t.dtype.bits == 16);
  }
}

TEST_CASE("a tensor with fewer rows has the same offset and strides") {
  std::array<std::byte, 1> payload{};
  const Fields fields = two_fields(2, 3, 100);
  const feedlane_tensor all = tensor_of(fields.all()[1], 100, payload.data(), 0);
  const feedlane_tensor few = tensor_of(fields.all()[1], 1, payload.data(), 0);
  CHECK(few.data == all.data);
  CHECK(few.offset == all.offset);
  CHECK(few.strides[0] == all.strides[0]);
  CHECK(few.bytes * 100 == all.bytes);
}

TEST_CASE("a tensor with a dimension of 0 has 0 bytes, and its strides count that dimension as 1") {
  std::array<std::byte, 1> payload{};
  const Fields fields = two_fields(2, 0, 4);
  const feedlane_tensor t = tensor_of(fields.all()[1], 4, payload.data(), 4096);
  CHECK(t.bytes == 0);
  CHECK(t.shape[1] == 0);
  CHECK(t.shape[2] == 1);
  CHECK(t.strides[2] == 1);
  CHECK(t.strides[1] == 1);
  CHECK_MESSAGE(t.strides[0] == 1, "as torch has it: an empty dimension counts as 1");
  CHECK(t.data == payload.data());
}
