// SPDX-License-Identifier: Apache-2.0
// Errors of the C++ interface: what they say, what they cost, and both forms of what can fail.
#include <doctest/doctest.h>

#include <cstring>
#include <feedlane/feedlane.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "support/allocation.hpp"

namespace {

using feedlane::Batch;
using feedlane::Error;
using feedlane::Loader;

static_assert(std::is_nothrow_copy_constructible_v<Error> && std::is_nothrow_copy_assignable_v<Error>);
static_assert(std::is_nothrow_default_constructible_v<Error> && std::is_nothrow_move_constructible_v<Error>);
static_assert(std::is_base_of_v<Error, Loader::Interrupted>);

struct Index {
  explicit Index(const feedlane::WorkerInfo&) {}
  void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = row.index(); }
};

struct Inline {
  feedlane::Sampler order = feedlane::Sampler::sequential(8);
  feedlane_dataset dataset = feedlane::dataset_of<Index>();
  Loader loader{
      {.sampler = &order, .fields = {feedlane::field<std::int64_t>("index")}, .batch_size = 4, .dataset = &dataset}};
};

// One form returns the failure in `error`, the other form throws it.
template <class Throwing, class Telling>
void check_both(std::int32_t code, Throwing&& throwing, Telling&& telling) {
  Error error;
  telling(error);
  CHECK(error.code() == code);
  Error thrown;
  try {
    throwing();
  } catch (const Error& e) {
    thrown = e;
  }
  CHECK(thrown.code() == code);
  CHECK(std::string(thrown.what()) == error.what());
  CHECK(std::string(error.what()).find(error.name()) == 0);
}

}  // namespace

TEST_CASE("copies of an error share its traceback, and stay valid after the error is destroyed") {
  Error copy;
  {
    feedlane_error said = feedlane::detail::no_error;
    said.code = FEEDLANE_E_SAMPLE;
    said.sample = 7;
    std::strcpy(said.text, "bad");
    char traceback[] = "line 1\nline 2";
    said.detail = traceback;
    said.detail_cap = 6;  // of 13 bytes
    said.detail_len = 13;
    const Error error(said);
    copy = error;
    CHECK(copy.traceback().data() == error.traceback().data());
  }
  CHECK(copy.code() == FEEDLANE_E_SAMPLE);
  CHECK(copy.sample() == 7);
  CHECK(copy.worker() == -1);
  CHECK(copy.traceback() == "line 1");
  CHECK(std::string(copy.what()) == "E_SAMPLE: bad");
  copy.clear();
  CHECK_FALSE(copy);
  CHECK(copy.text().empty());
  CHECK(copy.traceback().empty());
  CHECK(copy.sample() == -1);
}

TEST_CASE("successful accesses to tensors and rows allocate no memory") {
  Inline in;
  in.loader.start_epoch(0);
  std::optional<Batch> batch = in.loader.next();
  REQUIRE(batch);
  Error error;
  const std::int64_t before = feedlane::test::all_allocations();
  for (int i = 0; i < 100; i++) {
    CHECK((*batch)[0].as<std::int64_t>()[3] == 3);
    CHECK((*batch)["index"].as<std::int64_t>(error)[3] == 3);
    CHECK((*batch)[0].row<std::int64_t>(3)[0] == 3);
    CHECK((*batch)[0].row<std::int64_t>(3, error)[0] == 3);
  }
  CHECK(feedlane::test::all_allocations() == before);
}

TEST_CASE("the throwing and the non-throwing form of a call give the same error: tensors and batches") {
  Inline in;
  in.loader.start_epoch(0);
  std::optional<Batch> batch = in.loader.next();
  REQUIRE(batch);
  const Batch& b = *batch;
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { (void)b[1]; }, [&](Error& e) { (void)b.at(1, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { (void)b["x"]; }, [&](Error& e) { CHECK(b.at("x", e).bytes().empty()); });
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { (void)b[0].as<float>(); }, [&](Error& e) { (void)b[0].as<float>(e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { (void)b[0].row<float>(0); }, [&](Error& e) { (void)b[0].row<float>(0, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { (void)b.dlpack(1); }, [&](Error& e) { CHECK(b.dlpack(1, e) == nullptr); });
  check_both(
      FEEDLANE_E_STATE, [&] { b.record_stream(nullptr); }, [&](Error& e) { b.record_stream(nullptr, e); });
  check_both(
      FEEDLANE_E_STATE, [&] { batch->release_on(nullptr); }, [&](Error& e) { batch->release_on(nullptr, e); });
  CHECK(batch->held());
}

TEST_CASE("the throwing and the non-throwing form of a call give the same error: samplers, states, pools, loaders") {
  using feedlane::Sampler;
  const std::vector<std::byte> none(100);
  check_both(
      FEEDLANE_E_ARGUMENT, [] { (void)Sampler::sequential(-1); }, [](Error& e) { (void)Sampler::sequential(-1, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [] { (void)Sampler::random(0, 1); },
      [](Error& e) { (void)Sampler::random({.length = 0}, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [] { (void)Sampler::weighted({}); }, [](Error& e) { (void)Sampler::weighted({}, {}, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [] { (void)Sampler::distributed({.length = -1, .world = 1}); },
      [](Error& e) { (void)Sampler::distributed({.length = -1, .world = 1}, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [] { (void)Sampler::tokens({}, {.max_tokens = 0}); },
      [](Error& e) { (void)Sampler::tokens({}, {.max_tokens = 0}, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [] { (void)Sampler::mixture({}, {}); },
      [](Error& e) { (void)Sampler::mixture({}, {}, {}, e); });
  Sampler order = Sampler::sequential(3);
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { (void)Sampler::batch(order, 0); },
      [&](Error& e) { (void)Sampler::batch(order, 0, false, e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { order.restart(-1); }, [&](Error& e) { order.restart(-1, e); });
  check_both(
      FEEDLANE_E_CORRUPT, [&] { order.load(none); }, [&](Error& e) { order.load(none, e); });
  check_both(
      FEEDLANE_E_CORRUPT, [&] { (void)feedlane::read_state(none); },
      [&](Error& e) { (void)feedlane::read_state(none, e); });
  check_both(
      FEEDLANE_E_UNSUPPORTED, [] { (void)feedlane::Pool({.backend = "none of them"}); },
      [](Error& e) { (void)feedlane::Pool({.backend = "none of them"}, e); });
  feedlane::Pool pool({});
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { pool.copy(nullptr, none, nullptr); },
      [&](Error& e) { pool.copy(nullptr, none, nullptr, e); });
  check_both(
      FEEDLANE_E_STATE, [&] { (void)pool.acquire(); },
      [&](Error& e) { (void)pool.acquire(std::chrono::nanoseconds(0), e); });
  Inline in;
  check_both(
      FEEDLANE_E_STATE, [&] { (void)in.loader.next(); },
      [&](Error& e) { (void)in.loader.next(std::chrono::nanoseconds(0), e); });
  check_both(
      FEEDLANE_E_ARGUMENT, [&] { in.loader.start_epoch(-1); }, [&](Error& e) { in.loader.start_epoch(-1, e); });
  check_both(
      FEEDLANE_E_STATE, [&] { in.loader.run_stager(); }, [&](Error& e) { in.loader.run_stager(e); });
}

TEST_CASE("an access with a wrong type fails with an error that names both types") {
  Inline in;
  in.loader.start_epoch(0);
  std::optional<Batch> batch = in.loader.next();
  REQUIRE(batch);
  Error error;
  (void)(*batch)[0].as<feedlane::BFloat16>(error);
  CHECK(error.text() == "tensor 'index' has type int64, not bfloat16");
  (void)(*batch)[0].as<bool>(error);
  CHECK(error.text() == "tensor 'index' has type int64, not bool");
}

TEST_CASE("a batch that was released or moved from is empty, and its calls fail with E_STATE") {
  Inline in;
  in.loader.start_epoch(0);
  std::optional<Batch> batch = in.loader.next();
  REQUIRE(batch);
  Batch other = std::move(*batch);
  for (Batch* b : {&*batch, &other}) {
    b->release();
    CHECK_FALSE(b->held());
    CHECK(b->size() == 0);
    CHECK(b->rows() == 0);
    CHECK(b->indices().empty());
    CHECK(b->token() == 0);
    CHECK(b->index() == 0);
    check_both(
        FEEDLANE_E_STATE, [&] { (void)(*b)[0]; }, [&](Error& e) { (void)b->at(0, e); });
    check_both(
        FEEDLANE_E_STATE, [&] { (void)b->dlpack(0); }, [&](Error& e) { (void)b->dlpack(0, e); });
    check_both(
        FEEDLANE_E_STATE, [&] { (void)in.loader.state(*b); }, [&](Error& e) { (void)in.loader.state(*b, e); });
  }
  CHECK(in.loader.monitor().stats().slots_held == 0);
}
