// SPDX-License-Identifier: Apache-2.0
// A loader without workers: what is in a batch, and which batches there are.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "support/trainer.hpp"

using namespace feedlane::test;

// promise: loader-batch-size-zero
TEST_CASE("batch_size 0 means 1") {
  Setup s(3, 0);
  const Loader l = s.create();
  check_sequence(take_epoch(l.get(), 0), 3, 1);
}

// promise: loader-drop-last, sampler-length
TEST_CASE("the last batch has the remaining samples or, with drop_last, is dropped and not counted in the length") {
  for (const std::int64_t samples : {0, 1, 3, 4, 5, 8, 9})
    for (const bool drop_last : {false, true}) {
      CAPTURE(samples);
      CAPTURE(drop_last);
      Setup s(samples, 4);
      s.config.drop_last = drop_last ? 1 : 0;
      const Loader l = s.create();
      std::int64_t length = -1;
      REQUIRE(length_of(l.get(), &length) == FEEDLANE_OK);
      const std::vector<Taken> taken = take_epoch(l.get(), 0);
      CHECK(length == (drop_last ? samples / 4 : (samples + 3) / 4));
      CHECK(static_cast<std::int64_t>(taken.size()) == length);
      check_sequence(taken, drop_last ? samples / 4 * 4 : samples, 4);
    }
}

// promise: end-repeated
TEST_CASE("END is repeated until a new epoch begins") {
  Setup s(4, 2);
  const Loader l = s.create();
  for (std::int64_t epoch = 0; epoch < 3; epoch++) {
    const std::vector<Taken> taken = take_epoch(l.get(), epoch);
    check_sequence(taken, 4, 2);
    for (const Taken& t : taken) CHECK(t.epoch == epoch);
    for (int i = 0; i < 3; i++) CHECK(take(l.get()).status == FEEDLANE_END);
  }
  CHECK(stats_of(l.get()).epochs == 3);
}

TEST_CASE("next returns END even if the trainer holds every slot") {
  for (const std::int32_t workers : {0, 2})
    for (const std::int64_t max_batches : {0, 1}) {
      CAPTURE(workers);
      CAPTURE(max_batches);
      std::int64_t slots = 1;
      for (const bool is_known : {false, true}) {
        Setup s(max_batches == 0 ? slots : slots + 1);
        if (workers != 0) s.workers(workers);
        s.config.held = 2;
        if (max_batches != 0) s.config.max_batches = slots;
        const Loader l = s.create();
        slots = static_cast<std::int64_t>(stats_of(l.get()).slots);
        if (!is_known) continue;
        begin(l.get(), 0);
        std::vector<std::uint64_t> tokens;
        for (std::int64_t i = 0; i < slots; i++) {
          auto b = fresh<feedlane_batch>();
          REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
          tokens.push_back(b.token);
        }
        CHECK(stats_of(l.get()).slots_free == 0);
        CHECK(take(l.get()).status == FEEDLANE_END);
        for (const std::uint64_t token : tokens) CHECK(feedlane_batch_release(l.get(), token) == FEEDLANE_OK);
      }
    }
}

TEST_CASE("begin during an epoch starts the new epoch at its beginning") {
  Setup s(10, 2);
  s.sampler = shuffled(10, 4);
  const Loader l = s.create();
  const std::vector<Taken> whole = take_epoch(l.get(), 1);
  begin(l.get(), 0);
  (void)take(l.get());
  (void)take(l.get());
  const std::vector<Taken> again = take_epoch(l.get(), 1);
  REQUIRE(again.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); i++) {
    CHECK(again[i].indices == whole[i].indices);
    CHECK(again[i].bytes == whole[i].bytes);
    CHECK(again[i].batch == static_cast<std::int64_t>(i));
  }
}

TEST_CASE("next before begin fails with E_STATE; a negative epoch is refused, and the current epoch continues") {
  Setup s(4, 2);
  const Loader l = s.create();
  Error e;
  auto b = fresh<feedlane_batch>();
  CHECK(feedlane_loader_next(l.get(), 0, &b, &e) == FEEDLANE_E_STATE);
  CHECK(e.says("feedlane_loader_begin"));
  begin(l.get(), 2);
  CHECK(take(l.get()).batch == 0);
  CHECK(feedlane_loader_begin(l.get(), -1, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "epoch");
  CHECK(e.found == -1);
  CHECK(e.needed == 0);
  const Taken second = take(l.get());
  CHECK(second.epoch == 2);
  CHECK(second.batch == 1);
  CHECK(feedlane_loader_next(l.get(), -1, &b, &e) == FEEDLANE_E_ARGUMENT);
  CHECK(std::string(e.argument) == "timeout_ns");
  CHECK(e.found == -1);
  CHECK(take(l.get()).status == FEEDLANE_END);
}

TEST_CASE("stop ends the epoch, and begin starts again") {
  Setup s(4, 2);
  const Loader l = s.create();
  CHECK_MESSAGE(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK, "before anything began");
  begin(l.get(), 0);
  (void)take(l.get());
  CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  CHECK(take(l.get()).status == FEEDLANE_E_STATE);
  check_sequence(take_epoch(l.get(), 1), 4, 2);
}

// promise: seed-per-sample
TEST_CASE("each row's seed is feedlane_row_seed of its position in the epoch's order") {
  Setup s(7, 3);
  s.sampler = shuffled(7, 5);
  const Loader l = s.create();
  for (const std::int64_t epoch : {0, 3}) {
    std::int64_t position = 0;
    for (const Taken& t : take_epoch(l.get(), epoch))
      for (std::size_t row = 0; row < t.indices.size(); row++, position++) {
        CHECK(t.value("index", row) == t.indices[row]);
        CHECK(t.seed(row) == feedlane_row_seed(99, epoch, position));
      }
    CHECK(position == 7);
  }
}

// promise: seed-base
TEST_CASE("without a configured seed each loader draws its own seed; seed 0 is used if has_seed is set") {
  const auto first_seed = [](std::int32_t has_seed, std::uint64_t seed) {
    Setup s(1);
    s.config.has_seed = has_seed;
    s.config.seed = seed;
    const Loader l = s.create();
    begin(l.get(), 0);
    return take(l.get()).seed();
  };
  CHECK(first_seed(0, 0) != first_seed(0, 0));
  CHECK(first_seed(1, 0) == feedlane_row_seed(0, 0, 0));
  CHECK(first_seed(0, 7) == feedlane_row_seed(7, 0, 0));
}

// promise: loader-no-copy
TEST_CASE("a tensor is row-major, aligned and in place, and has the declared shape, strides and dtype") {
  Setup s(5, 4);
  s.fields({field("a", uint8_type, {3}), field("b", float32_type, {2, 5}), field("c", {5, 64, 2}),
            field("d", uint8_type, {0}), field("e", {6, 8, 0}, {1, 2, 3, 1, 2, 1, 1})});
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_stats stats = stats_of(l.get());
  for (const std::int64_t rows : {4, 1}) {
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    REQUIRE(b.tensor_count == 5);
    CHECK(b.count == static_cast<std::uint64_t>(rows));
    const auto* base = static_cast<const std::byte*>(b.tensors[0].data) - b.tensors[0].offset;
    const std::uint64_t row_bytes[] = {3, 40, 16, 0, 12};
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < 5; i++) {
      const feedlane_tensor& t = b.tensors[i];
      CHECK(std::string(t.name) == std::string(1, static_cast<char>('a' + i)));
      CHECK(t.bytes == row_bytes[i] * static_cast<std::uint64_t>(rows));
      CHECK(t.shape[0] == rows);
      CHECK(reinterpret_cast<std::uintptr_t>(t.data) % 256 == 0);
      CHECK(t.offset % 256 == 0);
      CHECK_MESSAGE(static_cast<const std::byte*>(t.data) == base + t.offset, "one segment");
      CHECK_MESSAGE(t.offset >= end, "no overlap");
      end = t.offset + t.bytes;
      std::int64_t stride = 1;
      for (int d = t.ndim - 1; d >= 0; d--) {
        CHECK(t.strides[d] == stride);
        stride *= std::max<std::int64_t>(t.shape[d], 1);
      }
      for (int d = t.ndim; d < FEEDLANE_MAX_NDIM; d++) CHECK(t.shape[d] == 0);
    }
    CHECK(end <= stats.data_bytes);
    CHECK(b.tensors[0].ndim == 2);
    CHECK(b.tensors[1].ndim == 3);
    CHECK(b.tensors[1].shape[2] == 5);
    CHECK(b.tensors[1].dtype.code == 2);
    CHECK(b.tensors[1].dtype.bits == 32);
    CHECK(b.tensors[1].dtype.lanes == 1);
    CHECK(b.tensors[2].ndim == 1);
    CHECK(b.tensors[2].dtype.lanes == 2);
    CHECK_MESSAGE(b.tensors[4].dtype.lanes == 1, "0 means 1");
    CHECK(b.tensors[4].ndim == 8);
    REQUIRE(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  }
}

TEST_CASE("statistics count the batches and samples that were delivered") {
  Setup s(5, 2);
  s.config.held = 3;
  const Loader l = s.create();
  feedlane_stats stats = stats_of(l.get());
  CHECK(stats.slots == stats.slots_free);
  CHECK(stats.slots >= 3);
  CHECK(stats.batches == 0);
  CHECK(stats.control_bytes > 0);
  CHECK(stats.data_bytes >= stats.slots * 2 * 16);
  (void)take_epoch(l.get(), 0);
  begin(l.get(), 1);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  stats = stats_of(l.get());
  CHECK(stats.batches == 4);
  CHECK(stats.samples == 7);
  CHECK(stats.bytes == 7 * 16);
  CHECK(stats.epochs == 2);
  CHECK(stats.slots_held == 1);
  CHECK(stats.slots_free == stats.slots - 1);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(stats_of(l.get()).slots_held == 0);
  auto worker = fresh<feedlane_worker_stats>();
  CHECK_MESSAGE(observe(l.get(), feedlane_monitor_get_worker_stats, 0, &worker) == FEEDLANE_END,
                "there are no workers");
  CHECK(observe(l.get(), feedlane_monitor_get_worker_stats, -1, &worker) == FEEDLANE_E_ARGUMENT);
}

TEST_CASE("poll, arm and open_worker have a defined result without workers") {
  Setup s(1);
  const Loader l = s.create();
  int fd = -1;
  CHECK(feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_OK);
  CHECK(feedlane_loader_arm(l.get(), nullptr) == FEEDLANE_OK);
  begin(l.get(), 0);
  CHECK_MESSAGE(feedlane_loader_poll(l.get(), nullptr) == FEEDLANE_AGAIN, "next makes a batch whenever it is called");
  CHECK(feedlane_loader_arm(l.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(wait_fd_of(l.get(), &fd) == FEEDLANE_OK);
  CHECK(fd >= 0);
  std::int32_t id = -1;
  Error e;
  CHECK(feedlane_loader_open_worker(l.get(), &id, &fd, &e) == FEEDLANE_E_STATE);
  CHECK(std::string(e.argument) == "config.start");
}
