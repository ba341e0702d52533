// SPDX-License-Identifier: Apache-2.0
// What a batch shows of what its data set did.
#include "tensors/dlpack_abi.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <feedlane/feedlane.hpp>
#include <string>
#include <vector>

struct Own {
  float re, im;
};
template <>
struct feedlane::Dtype<Own> {
  static constexpr feedlane_dtype value{5, 64, 1};
};

namespace {

using feedlane::Batch;
using feedlane::Loader;
using feedlane::LoaderOptions;

/// Shapes one tensor, adds another and sends a word along; its last sample is left out.
struct Shaping {
  explicit Shaping(const feedlane::WorkerInfo&) {}
  void fetch(const feedlane::Task& task) {
    const auto rows = static_cast<std::int64_t>(task.count()) - 1;
    (void)task.sample_failed({.position = task.count() - 1, .text = "not today"});  // throws without skip_budget
    task.rows(static_cast<std::size_t>(rows));
    for (std::int32_t& x : task.tensor<std::int32_t>(0, {rows, 3})) x = 7;
    for (float& x : task.tensor<float>(1, {rows}, "weight")) x = 0.5f;
    task.metadata(std::as_bytes(std::span("word", 4)));
  }
};

}  // namespace

TEST_CASE("a data set's own shapes, metadata and records reach the batch") {
  const feedlane::Sampler order = feedlane::Sampler::sequential(4);
  const feedlane_dataset dataset = feedlane::dataset_of<Shaping>();
  Loader loader({.sampler = &order,
                 .fields = {feedlane::field<std::int32_t>("x", {2})},
                 .batch_size = 4,
                 .dataset = &dataset,
                 .skip_budget = 1});
  loader.start_epoch(0);
  const std::optional<Batch> batch = loader.next();
  REQUIRE(batch);
  CHECK(batch->rows() == 3);
  REQUIRE(batch->skipped().size() == 1);
  CHECK(batch->skipped()[0] == 3);
  CHECK(batch->size() == 2);
  CHECK((*batch)["x"].as<std::int32_t>().size() == 9);
  CHECK((*batch)["weight"].as<float>()[2] == 0.5f);
  CHECK(std::memcmp(batch->metadata().data(), "word", 4) == 0);
  CHECK(loader.monitor().stats().skipped == 1);
}

TEST_CASE("row() fails with E_ARGUMENT for a row that the tensor doesn't have and for a tensor without dimensions") {
  struct Ragged {
    explicit Ragged(const feedlane::WorkerInfo&) {}
    void fetch(const feedlane::Task& task) {
      (void)task.tensor<float>(0, {0, 4});
      (void)task.tensor<float>(1, {3, 2}, "three");
      task.tensor<float>(2, {}, "scalar")[0] = 1;
    }
  };
  const feedlane::Sampler order = feedlane::Sampler::sequential(4);
  const feedlane_dataset dataset = feedlane::dataset_of<Ragged>();
  Loader loader(
      {.sampler = &order, .fields = {feedlane::field<float>("none", {4})}, .batch_size = 4, .dataset = &dataset});
  loader.start_epoch(0);
  const std::optional<Batch> batch = loader.next();
  REQUIRE(batch);
  feedlane::Error error;
  CHECK((*batch)["none"].row<float>(0, error).empty());
  CHECK(error.code() == FEEDLANE_E_ARGUMENT);
  CHECK(error.argument() == "row");
  CHECK(error.found() == 0);
  CHECK(error.needed() == 0);
  CHECK_THROWS_AS((void)(*batch)["none"].row<float>(0), feedlane::Error);
  CHECK((*batch)["three"].row<float>(2).size() == 2);
  CHECK((*batch)["three"].row<float>(3, error).empty());
  CHECK(error.found() == 3);
  CHECK(error.needed() == 3);
  CHECK((*batch)["scalar"].row<float>(0, error).empty());
  CHECK(error.text() == "tensor 'scalar' has no dimensions, so it has no row 0");
  CHECK((*batch)["scalar"].as<float>()[0] == 1);
}

TEST_CASE("16-bit floats, std::byte and a user-defined type have dtypes") {
  CHECK(feedlane::field<feedlane::Half>("x").dtype.code == 2);
  CHECK(feedlane::field<feedlane::BFloat16>("x").dtype.code == 4);
  CHECK(feedlane::field<const std::byte>("x").dtype.code == 1);
  const feedlane_dtype own = feedlane::dtype_of<Own>();
  CHECK(own.code == 5);
  CHECK(own.bits == 64);
}

TEST_CASE("a skipped sample without a skip budget fails its batch with E_SAMPLE") {
  const feedlane::Sampler order = feedlane::Sampler::sequential(4);
  const feedlane_dataset dataset = feedlane::dataset_of<Shaping>();
  Loader loader(
      {.sampler = &order, .fields = {feedlane::field<std::int32_t>("x", {2})}, .batch_size = 4, .dataset = &dataset});
  loader.start_epoch(0);
  feedlane::Error error;
  CHECK_FALSE(loader.next(std::chrono::nanoseconds::max(), error));
  CHECK(error.code() == FEEDLANE_E_SAMPLE);
}

TEST_CASE("without a batch_size it is 1 or the batch sampler's, `unbatched` removes the dimension, and 0 is refused") {
  struct Index {
    explicit Index(const feedlane::WorkerInfo&) {}
    void get(const feedlane::Row& row) { row.field<std::int64_t>(0)[0] = row.index(); }
  };
  const feedlane::Sampler order = feedlane::Sampler::sequential(6);
  const feedlane::Sampler batches = feedlane::Sampler::batch(order, 4);
  const feedlane_dataset dataset = feedlane::dataset_of<Index>();
  LoaderOptions options{.sampler = &order, .fields = {feedlane::field<std::int64_t>("index")}, .dataset = &dataset};
  const auto shapes = [&] {
    std::vector<std::vector<std::int64_t>> all;
    Loader loader(options);
    for (Batch& batch : loader) {
      const auto shape = batch[0].shape();
      all.emplace_back(shape.begin(), shape.end());
    }
    return all;
  };
  CHECK(shapes() == std::vector<std::vector<std::int64_t>>(6, {1}));
  options.batch_size = feedlane::unbatched;
  CHECK(shapes() == std::vector<std::vector<std::int64_t>>(6, std::vector<std::int64_t>{}));
  options.batch_size = 0;
  feedlane::Error error;
  const Loader refused(options, error);
  CHECK(error.argument() == "batch_size");
  options.batch_size.reset();
  options.sampler = &batches;
  CHECK(shapes() == std::vector<std::vector<std::int64_t>>{{4}, {2}});
}

TEST_CASE("a tensor exported by DLPack holds the slot of its batch until the tensor is deleted") {
  const feedlane::Sampler order = feedlane::Sampler::sequential(4);
  const feedlane_dataset dataset = feedlane::dataset_of<Shaping>();
  Loader loader({.sampler = &order,
                 .fields = {feedlane::field<std::int32_t>("x", {2})},
                 .batch_size = 4,
                 .dataset = &dataset,
                 .skip_budget = 1});
  loader.start_epoch(0);
  std::optional<Batch> batch = loader.next();
  REQUIRE(batch);
  CHECK_THROWS_AS((void)batch->dlpack(2), feedlane::Error);
  CHECK_THROWS_AS((void)batch->dlpack(SIZE_MAX), feedlane::Error);
  DLManagedTensorVersioned* weight = batch->dlpack(1);
  batch.reset();
  CHECK(loader.monitor().stats().slots_held == 1);
  CHECK(static_cast<const float*>(weight->dl_tensor.data)[2] == 0.5f);
  weight->deleter(weight);
  CHECK(loader.monitor().stats().slots_held == 0);
}
