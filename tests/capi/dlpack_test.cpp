// SPDX-License-Identifier: Apache-2.0
// A batch's tensors as DLPack shows them, and who keeps the batch meanwhile.
#include "tensors/dlpack_abi.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "semantics/sharing.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

struct Delete {
  template <class Managed>
  void operator()(Managed* m) const {
    m->deleter(m);
  }
};
using Versioned = std::unique_ptr<DLManagedTensorVersioned, Delete>;
using Legacy = std::unique_ptr<DLManagedTensor, Delete>;

feedlane_batch next(feedlane_loader* l) {
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
  return b;
}

Versioned exported(feedlane_loader* l, std::uint64_t token, std::int32_t tensor = 0) {
  void* out = nullptr;
  REQUIRE(feedlane_batch_dlpack(l, token, tensor, 0, &out, nullptr) == FEEDLANE_OK);
  return Versioned(static_cast<DLManagedTensorVersioned*>(out));
}

void check_same(const DLTensor& shown, const feedlane_tensor& tensor) {
  CHECK(shown.data == tensor.data);
  CHECK(shown.byte_offset == 0);
  CHECK(shown.device.device_type == 1);
  CHECK(shown.device.device_id == 0);
  REQUIRE(shown.ndim == tensor.ndim);
  CHECK(shown.dtype.code == tensor.dtype.code);
  CHECK(shown.dtype.bits == tensor.dtype.bits);
  CHECK(shown.dtype.lanes == 1);
  for (std::int32_t i = 0; i < tensor.ndim; i++) {
    CHECK(shown.shape[i] == tensor.shape[i]);
    CHECK(shown.strides[i] == tensor.strides[i]);
  }
}

}  // namespace

// promise: loader-dlpack
TEST_CASE("dlpack: both forms export the tensor in place") {
  Setup s(6, 3);
  const Loader l = s.workers(1).create();
  begin(l.get(), 0);
  const feedlane_batch b = next(l.get());
  REQUIRE(b.tensor_count == 2);
  for (std::int32_t i = 0; i < 2; i++) {
    const Versioned now = exported(l.get(), b.token, i);
    CHECK(now->version.major == 1);
    CHECK(now->flags == 0);
    check_same(now->dl_tensor, b.tensors[i]);
    void* out = nullptr;
    REQUIRE(feedlane_batch_dlpack(l.get(), b.token, i, FEEDLANE_DLPACK_LEGACY, &out, nullptr) == FEEDLANE_OK);
    const Legacy before(static_cast<DLManagedTensor*>(out));
    check_same(before->dl_tensor, b.tensors[i]);
  }
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
}

// promise: loader-dlpack
TEST_CASE("dlpack: each export holds one reference to its batch") {
  Setup s(6);
  s.config.held = 2;
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_batch b = next(l.get());
  Versioned first = exported(l.get(), b.token), second = exported(l.get(), b.token, 1);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(*static_cast<const std::int64_t*>(first->dl_tensor.data) == 0);
  CHECK(stats_of(l.get()).slots_held == 1);
  first.reset();
  CHECK(stats_of(l.get()).slots_held == 1);
  second.reset();
  CHECK(stats_of(l.get()).slots_held == 0);
  void* out = nullptr;
  CHECK(feedlane_batch_dlpack(l.get(), b.token, 0, 0, &out, nullptr) == FEEDLANE_E_STALE);
  CHECK_MESSAGE(take(l.get()).batch == 1, "what was refused held nothing");
}

// promise: loader-dlpack
TEST_CASE("dlpack: exports outlive the loader, and are deleted on any thread in any order") {
  const std::vector<int> before = open_descriptors();
  std::vector<Versioned> kept;
  {
    Setup s(24);
    s.config.held = 8;
    const Loader l = s.workers(2).create();
    begin(l.get(), 0);
    for (int i = 0; i < 8; i++) {
      const feedlane_batch b = next(l.get());
      for (int twice = 0; twice < 2; twice++) kept.push_back(exported(l.get(), b.token));
      CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
    }
  }
  CHECK(mappings_of("feedlane-data") == 1);
  std::shuffle(kept.begin(), kept.end(), std::mt19937(1));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; t++)
    threads.emplace_back([&kept, t] {
      for (std::size_t i = t; i < kept.size(); i += 4) kept[i].reset();
    });
  for (std::thread& t : threads) t.join();
  CHECK(mappings_of("feedlane-") == 0);
  CHECK(open_descriptors() == before);
}

TEST_CASE("dlpack: a held batch can still be exported after destroy") {
  Setup s(2);
  feedlane_loader* l = s.create().release();
  begin(l, 0);
  const feedlane_batch b = next(l);
  feedlane_loader* copy = l;
  REQUIRE(feedlane_loader_destroy(&l) == FEEDLANE_OK);
  const Versioned late = exported(copy, b.token);
  CHECK(feedlane_batch_release(copy, b.token) == FEEDLANE_OK);
  CHECK(*static_cast<const std::int64_t*>(late->dl_tensor.data) == 0);
}

TEST_CASE("dlpack: a deleter called in a forked child releases nothing") {
  Setup s(2);
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_batch b = next(l.get());
  Versioned tensor = exported(l.get(), b.token);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(in_child([&](Findings&) { tensor.reset(); }) == "");
  CHECK(stats_of(l.get()).slots_held == 1);
  CHECK(*static_cast<const std::int64_t*>(tensor->dl_tensor.data) == 0);
  tensor.reset();
  CHECK(stats_of(l.get()).slots_held == 0);
}

TEST_CASE("dlpack: an empty tensor has a NULL address and keeps its shape") {
  Setup s(1);
  feedlane_dataset table = s.dataset;
  table.get = nullptr;
  table.fetch = [](void*, const feedlane_task* task, feedlane_error* err) -> std::int32_t {
    auto full = fresh<feedlane_field>();
    full.dtype = {2, 32, 1};
    full.name = "empty";
    full.ndim = 3;
    full.shape[0] = 1;
    full.shape[1] = 0;
    full.shape[2] = 7;
    return feedlane_task_tensor(task, static_cast<std::int32_t>(task->tensor_count), &full, nullptr, err);
  };
  s.forked(0, table);
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_batch b = next(l.get());
  REQUIRE(b.tensor_count == 3);
  const Versioned empty = exported(l.get(), b.token, 2);
  CHECK(empty->dl_tensor.data == nullptr);
  REQUIRE(empty->dl_tensor.ndim == 3);
  CHECK(empty->dl_tensor.shape[1] == 0);
  CHECK(empty->dl_tensor.shape[2] == 7);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
}

// promise: share-threads
TEST_CASE("dlpack: a consumer's tensors are exported as read-only, and an export keeps its slot") {
  sharing::Shuffled s;
  const Loader feeder = sharing::shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Loader l = sharing::join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  const feedlane_batch b = sharing::polled_batch(feeder.get(), l.get());
  const std::string content(static_cast<const char*>(b.tensors[1].data), b.tensors[1].bytes);
  Versioned shown = exported(l.get(), b.token, 1);
  CHECK((shown->flags & 1) == 1);  // DLPACK_FLAG_BITMASK_READ_ONLY
  CHECK(shown->dl_tensor.data == b.tensors[1].data);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  l.reset();
  REQUIRE(sharing::poll_until(feeder.get(),
                              [&] { return sharing::consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_LEFT; }));
  CHECK(sharing::consumer_of(feeder.get(), 0).held == 1);
  CHECK(std::string(static_cast<const char*>(shown->dl_tensor.data), content.size()) == content);
  shown.reset();
  CHECK(sharing::poll_until(feeder.get(), [&] { return sharing::count_consumers(feeder.get()) == 0; }));
}
