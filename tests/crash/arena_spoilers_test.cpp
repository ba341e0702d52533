// SPDX-License-Identifier: Apache-2.0
// A member of an arena that changes the description of an entry after it has published it, each field in turn. Readers
// refuse the entry and name the member, or read within the entry; entries of others stay as they are.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "semantics/arena.hpp"
#include "shm/arena_layout.hpp"

using namespace feedlane::test;
using namespace feedlane::test::arenas;
namespace shm = feedlane::shm;

namespace {

struct Description {
  shm::ArenaContents head;
  shm::TensorRecord tensor;
};

struct Change {
  const char* what;
  void (*make)(Description&);
  bool is_refused = true;
};

constexpr std::uint64_t top = UINT64_MAX;
const Change changes[] = {
    {"magic", [](Description& d) { d.head.magic++; }},
    {"no tensor", [](Description& d) { d.head.tensor_count = 0; }, false},
    {"more tensors than there are", [](Description& d) { d.head.tensor_count = 2; }},
    {"more tensors than allowed", [](Description& d) { d.head.tensor_count = FEEDLANE_MAX_TENSORS + 1; }},
    {"tensors that overflow", [](Description& d) { d.head.tensor_count = top / sizeof(shm::TensorRecord) + 2; }},
    {"metadata behind the entry", [](Description& d) { d.head.metadata_offset = 1 << 20; }},
    {"metadata over the entry's end", [](Description& d) { d.head.metadata_bytes = 1 << 20; }},
    {"metadata that overflow", [](Description& d) { d.head.metadata_offset = 256, d.head.metadata_bytes = top - 255; }},
    {"other metadata in the entry", [](Description& d) { d.head.metadata_offset = 0; }, false},
    {"reserved words", [](Description& d) { std::memset(d.head.reserved, 0xff, sizeof d.head.reserved); }, false},
    {"a name without an end", [](Description& d) { std::memset(d.tensor.name, 'x', sizeof d.tensor.name); }, false},
    {"type", [](Description& d) { d.tensor.code = 99; }},
    {"0 bits", [](Description& d) { d.tensor.bits = 0; }},
    {"bits", [](Description& d) { d.tensor.bits = 128; }},
    {"lanes", [](Description& d) { d.tensor.lanes = 2; }},
    {"dimensions", [](Description& d) { d.tensor.ndim = FEEDLANE_MAX_NDIM + 1; }},
    {"dimensions below 0", [](Description& d) { d.tensor.ndim = -1; }},
    {"no dimension", [](Description& d) { d.tensor.ndim = 0; }},
    {"shape", [](Description& d) { d.tensor.shape[0]++; }},
    {"shape below 0", [](Description& d) { d.tensor.shape[0] = -16; }},
    {"shape that overflows",
     [](Description& d) { d.tensor.ndim = 2, d.tensor.shape[0] = d.tensor.shape[1] = 1L << 40; }},
    {"strides", [](Description& d) { d.tensor.strides[0] = 1L << 40; }, false},
    {"offset behind the entry", [](Description& d) { d.tensor.offset = 1 << 20; }},
    {"offset over the entry's end", [](Description& d) { d.tensor.offset += 512; }},
    {"offset that overflows", [](Description& d) { d.tensor.offset = top - 255; }},
    {"offset without alignment", [](Description& d) { d.tensor.offset -= 8; }},
    {"bytes", [](Description& d) { d.tensor.bytes++; }},
    {"bytes that overflow", [](Description& d) { d.tensor.bytes = top; }},
    {"shape and bytes over the entry's end",
     [](Description& d) { d.tensor.shape[0] = 1 << 16, d.tensor.bytes = 8 << 16; }},
};

// Puts an entry under the key, and returns its description.
Description* put_open(feedlane_arena* m, const std::string& key, Findings& f) {
  const feedlane_field x = field("numbers", {0, 64, 1}, {16});
  auto what = fresh<feedlane_put>();
  what.key = key.data();
  what.key_bytes = key.size();
  what.fields = &x;
  what.field_count = 1;
  what.metadata = "metadata";
  what.metadata_bytes = 8;
  auto batch = fresh<feedlane_batch>();
  EXPECT(f, feedlane_arena_reserve(m, &what, patience_ns, &batch, nullptr) == FEEDLANE_OK);
  auto* const first = static_cast<std::byte*>(batch.tensors[0].data);
  EXPECT(f, feedlane_arena_publish(m, batch.token, patience_ns, nullptr) == FEEDLANE_OK);
  return reinterpret_cast<Description*>(first - sizeof(Description));  // the head and the record take 256 bytes
}

// Reads all that a batch says it has.
std::uint64_t sum_of(const feedlane_batch& batch) {
  std::uint64_t sum =
      batch.metadata_bytes == 0 ? 0 : static_cast<const std::uint8_t*>(batch.metadata)[batch.metadata_bytes - 1];
  for (std::uint64_t i = 0; i < batch.tensor_count; i++) {
    const feedlane_tensor& t = batch.tensors[i];
    CHECK(std::strlen(t.name) < shm::name_bytes);
    for (std::uint64_t k = 0; k < t.bytes; k++) sum += static_cast<const std::uint8_t*>(t.data)[k];
  }
  return sum;
}

}  // namespace

static_assert(sizeof(Description) == 256);

// promise: arena-spoiled
TEST_CASE(
    "whatever a member changes in an entry's description, readers refuse it and name the member, or read within it") {
  const Arena a = create(4 * mib);
  const Serving serving(a.get());
  REQUIRE(put(a.get(), "good", 1) == FEEDLANE_OK);
  Member spoiler(a.get(), [](feedlane_arena* m, Findings& f) {
    for (const Change& change : changes) change.make(*put_open(m, change.what, f));
    EXPECT(f, put(m, "all are spoiled", 1) == FEEDLANE_OK);
  });
  REQUIRE(look(a.get(), "all are spoiled") == 1);
  for (const Change& change : changes) {
    CAPTURE(std::string(change.what));
    feedlane_batch batch;
    Error e;
    const std::int32_t s = get(a.get(), change.what, batch, 0, &e);
    CHECK(s == (change.is_refused ? FEEDLANE_E_CORRUPT : FEEDLANE_OK));
    CHECK(e.says("member 1 has spoiled its entry") == change.is_refused);
    if (s != FEEDLANE_OK) continue;
    (void)sum_of(batch);
    CHECK(feedlane_batch_release(a.get(), batch.token) == FEEDLANE_OK);
  }
  CHECK(look(a.get(), "good") == 1);
  CHECK(stats_of(a.get()).leased == 0);
  CHECK(spoiler.finish() == "");
}
