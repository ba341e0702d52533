// SPDX-License-Identifier: Apache-2.0
// Iterable data sets as classes.
#include <doctest/doctest.h>

#include <cstring>
#include <feedlane/feedlane.hpp>
#include <vector>

namespace {

/// 10 * epoch, ... 10 * epoch + 4; each of n shards has every n-th.
struct Counting {
  explicit Counting(const feedlane::WorkerInfo& info) : step_(info.shards()), first_(info.shard()) {
    CHECK(info.iterable());
    CHECK(info.id() == -1);
    CHECK(info.rank() == info.shard());
    CHECK(info.world() == info.shards());
  }
  void restart(std::int64_t epoch) {
    epoch_ = epoch;
    at_ = first_;
  }
  bool next(const feedlane::Row& row) {
    if (at_ >= 5) return false;
    row.field<std::int64_t>(0)[0] = 10 * epoch_ + at_;
    at_ += step_;
    return true;
  }
  [[nodiscard]] std::vector<std::byte> save() const {
    std::vector<std::byte> bytes(sizeof at_);
    std::memcpy(bytes.data(), &at_, sizeof at_);
    return bytes;
  }
  void load(std::span<const std::byte> state) { std::memcpy(&at_, state.data(), sizeof at_); }

 private:
  std::int64_t step_;
  std::int64_t first_;
  std::int64_t epoch_ = 0;
  std::int64_t at_ = 0;
};

/// Whole batches of one number, three of them.
struct Batches {
  explicit Batches(const feedlane::WorkerInfo&) {}
  bool fetch(const feedlane::Task& task) {
    if (made_ == 3) return false;
    task[0].as<std::int64_t>()[0] = made_++;
    task.rows(1);
    return true;
  }

 private:
  std::int64_t made_ = 0;
};

template <class T>
std::vector<std::vector<std::int64_t>> epochs_of(int epochs, int world = 0, int rank = 0, int max_batches = 0) {
  const feedlane_dataset dataset = feedlane::dataset_of<T>();
  feedlane::Loader loader({.fields = {feedlane::field<std::int64_t>("x")},
                           .batch_size = 2,
                           .dataset = &dataset,
                           .iterable = true,
                           .deterministic = true,
                           .iterable_length = 5,
                           .world = world,
                           .rank = rank,
                           .max_batches = max_batches});
  std::vector<std::vector<std::int64_t>> all;
  for (int epoch = 0; epoch < epochs; epoch++) {
    all.emplace_back();
    for (feedlane::Batch& batch : loader) {
      CHECK(batch.indices().empty());
      for (const std::int64_t x : batch[0].template as<std::int64_t>()) all.back().push_back(x);
    }
  }
  return all;
}

}  // namespace

// promise: loader-iterable-callbacks
TEST_CASE("a shard ends when next() returns false, and restart() begins it again for the next epoch") {
  CHECK(epochs_of<Counting>(2) == std::vector<std::vector<std::int64_t>>{{0, 1, 2, 3, 4}, {10, 11, 12, 13, 14}});
}

TEST_CASE("each rank reads its own shard, and max_batches ends an epoch") {
  using Epochs = std::vector<std::vector<std::int64_t>>;
  CHECK(epochs_of<Counting>(2, 2, 0) == Epochs{{0, 2, 4}, {10, 12, 14}});
  CHECK(epochs_of<Counting>(2, 2, 1) == Epochs{{1, 3}, {11, 13}});
  CHECK(epochs_of<Counting>(2, 2, 0, 1) == Epochs{{0, 2}, {10, 12}});
}

TEST_CASE("a shard ends when fetch() returns false, and without restart() each epoch has a new object") {
  CHECK(epochs_of<Batches>(2) == std::vector<std::vector<std::int64_t>>{{0, 1, 2}, {0, 1, 2}});
}

// promise: loader-iterable-callbacks
TEST_CASE("the callback table has a class's optional members, and NULL for members that the class doesn't have") {
  const feedlane_dataset counting = feedlane::dataset_of<Counting>();
  CHECK(bool{counting.next != nullptr});
  CHECK(bool{counting.restart != nullptr});
  CHECK(bool{counting.save != nullptr});
  CHECK(bool{counting.load != nullptr});
  CHECK(bool{counting.get == nullptr});
  CHECK(bool{counting.fetch == nullptr});
  CHECK(bool{counting.substitute == nullptr});
  CHECK(bool{feedlane::dataset_of<Batches>().save == nullptr});
}
