// SPDX-License-Identifier: Apache-2.0
// Batches in the trainer's hands: tokens, references, and what lives on after the loader.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

feedlane_batch next(feedlane_loader* l) {
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
  return b;
}

std::int64_t index_of(const feedlane_batch& b) { return *static_cast<const std::int64_t*>(b.tensors[0].data); }

}  // namespace

TEST_CASE("releasing a batch too often fails with E_STALE, also while its slot holds another batch") {
  Setup s(6);
  s.config.held = 1;
  const Loader l = s.create();
  begin(l.get(), 0);
  std::vector<std::uint64_t> old;
  for (int i = 0; i < 6; i++) {
    const feedlane_batch b = next(l.get());
    for (const std::uint64_t token : old) {
      CHECK(token != b.token);
      CHECK(feedlane_batch_release(l.get(), token) == FEEDLANE_E_STALE);
      CHECK(feedlane_batch_retain(l.get(), token) == FEEDLANE_E_STALE);
    }
    CHECK_MESSAGE(index_of(b) == i, "a stale token has done no harm");
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_E_STALE);
    CHECK(feedlane_batch_retain(l.get(), b.token) == FEEDLANE_E_STALE);
    old.push_back(b.token);
  }
  CHECK(stats_of(l.get()).slots_free == stats_of(l.get()).slots);
}

TEST_CASE("a token that was never issued fails with E_STALE") {
  Setup s(2);
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_batch b = next(l.get());
  for (const std::uint64_t token : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX, b.token + 1, b.token + (1U << 24),
                                    b.token ^ (std::uint64_t{1} << 63)}) {
    CAPTURE(token);
    CHECK(feedlane_batch_retain(l.get(), token) == FEEDLANE_E_STALE);
    CHECK(feedlane_batch_release(l.get(), token) == FEEDLANE_E_STALE);
  }
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_retain(nullptr, b.token) == FEEDLANE_E_ARGUMENT);
  CHECK(feedlane_batch_release(nullptr, b.token) == FEEDLANE_E_ARGUMENT);
}

TEST_CASE("a batch stays until its last reference is released, in any order of batches") {
  Setup s(4);
  s.config.held = 3;
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_batch first = next(l.get());
  const feedlane_batch second = next(l.get());
  const feedlane_batch third = next(l.get());
  CHECK(stats_of(l.get()).slots_held == 3);
  REQUIRE(feedlane_batch_retain(l.get(), second.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l.get(), second.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l.get(), third.token) == FEEDLANE_OK);
  CHECK(stats_of(l.get()).slots_held == 2);
  CHECK(index_of(first) == 0);
  CHECK(index_of(second) == 1);
  CHECK(first.indices[0] == 0);
  CHECK(feedlane_batch_release(l.get(), second.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l.get(), second.token) == FEEDLANE_E_STALE);
  CHECK(feedlane_batch_release(l.get(), first.token) == FEEDLANE_OK);
  CHECK(stats_of(l.get()).slots_held == 0);
}

TEST_CASE("several threads can take and release references at once") {
  constexpr int threads = 4;
  constexpr int rounds = 20000;
  Setup s(2);
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_batch b = next(l.get());
  std::atomic<int> failed{0};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; t++)
    all.emplace_back([&] {
      for (int i = 0; i < rounds; i++) {
        if (feedlane_batch_retain(l.get(), b.token) != FEEDLANE_OK) failed++;
        if (index_of(b) != 0) failed++;
        if (feedlane_batch_release(l.get(), b.token) != FEEDLANE_OK) failed++;
      }
    });
  for (std::thread& t : all) t.join();
  CHECK(failed == 0);
  CHECK(stats_of(l.get()).slots_held == 1);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_E_STALE);
}

TEST_CASE("if many threads release the same reference, one of them succeeds") {
  Setup s(200);
  const Loader l = s.create();
  begin(l.get(), 0);
  for (int round = 0; round < 200; round++) {
    const feedlane_batch b = next(l.get());
    std::atomic<int> done{0};
    std::atomic<int> stale{0};
    const auto release = [&] { (feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK ? done : stale)++; };
    std::thread other(release);
    release();
    other.join();
    REQUIRE(done == 1);
    REQUIRE(stale == 1);
  }
}

// promise: next-slots-held
TEST_CASE(
    "when the trainer holds every slot, next returns SLOTS_HELD with the numbers, and continues after a release") {
  for (const std::int32_t held : {1, 3}) {
    CAPTURE(held);
    Setup s(10);
    s.config.held = held;
    const Loader l = s.create();
    begin(l.get(), 0);
    std::vector<feedlane_batch> batches;
    auto b = fresh<feedlane_batch>();
    Error e;
    std::int32_t status = FEEDLANE_OK;
    while ((status = feedlane_loader_next(l.get(), FEEDLANE_FOREVER, &b, &e)) == FEEDLANE_OK) batches.push_back(b);
    CHECK_MESSAGE(status == FEEDLANE_SLOTS_HELD, "it doesn't wait for ever");
    CHECK(e.code == FEEDLANE_SLOTS_HELD);
    CHECK(std::string(e.argument) == "config.held");
    CHECK(e.found == static_cast<std::int64_t>(batches.size()));
    CHECK(e.says(std::to_string(batches.size())));
    CHECK_MESSAGE(batches.size() >= static_cast<std::size_t>(held), "as many as were asked for can be held");
    CHECK(stats_of(l.get()).slots_free == 0);
    CHECK(feedlane_loader_next(l.get(), 0, &b, nullptr) == FEEDLANE_SLOTS_HELD);
    CHECK(feedlane_batch_release(l.get(), batches[0].token) == FEEDLANE_OK);
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    CHECK(index_of(b) == static_cast<std::int64_t>(batches.size()));
    batches[0] = b;
    for (std::size_t i = 1; i < batches.size(); i++) CHECK(index_of(batches[i]) == static_cast<std::int64_t>(i));
    for (const feedlane_batch& held_one : batches)
      CHECK(feedlane_batch_release(l.get(), held_one.token) == FEEDLANE_OK);
    CHECK(take_rest(l.get()).size() == 10 - batches.size() - 1);
  }
}

TEST_CASE("a batch stays valid after the end of its epoch, after stop, and after a begin") {
  Setup s(4);
  const Loader l = s.create();
  begin(l.get(), 0);
  const feedlane_batch b = next(l.get());
  CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  CHECK(index_of(b) == 0);
  check_sequence(take_epoch(l.get(), 1), 4, 1);
  CHECK(index_of(b) == 0);
  CHECK(b.indices[0] == 0);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
}

namespace {

// A destroyed loader whose batches are still held, and a copy of its handle.
struct Orphans {
  explicit Orphans(int count) {
    Setup s(count);
    s.config.held = count;
    feedlane_loader* l = s.create().release();
    copy = l;
    begin(l, 0);
    for (int i = 0; i < count; i++) batches.push_back(next(l));
    REQUIRE(feedlane_loader_destroy(&l) == FEEDLANE_OK);
    REQUIRE(l == nullptr);
  }
  feedlane_loader* copy;
  std::vector<feedlane_batch> batches;
};

}  // namespace

// promise: end-held-batch
TEST_CASE("batches that are held outlive the loader and are released through a copy of its handle") {
  const std::vector<int> before = open_descriptors();
  {
    Orphans o(3);
    CHECK(mappings_of("feedlane-data") == 1);
    REQUIRE(feedlane_batch_retain(o.copy, o.batches[1].token) == FEEDLANE_OK);
    CHECK(feedlane_batch_release(o.copy, o.batches[2].token) == FEEDLANE_OK);
    CHECK(feedlane_batch_release(o.copy, o.batches[2].token) == FEEDLANE_E_STALE);
    CHECK(feedlane_batch_release(o.copy, o.batches[1].token) == FEEDLANE_OK);
    CHECK(index_of(o.batches[0]) == 0);
    CHECK(index_of(o.batches[1]) == 1);
    std::thread other([&] { (void)feedlane_batch_release(o.copy, o.batches[0].token); });
    other.join();
    CHECK(mappings_of("feedlane-data") == 1);
    CHECK(feedlane_batch_release(o.copy, o.batches[1].token) == FEEDLANE_OK);
  }
  CHECK_MESSAGE(mappings_of("feedlane-") == 0, "the last release frees the memory");
  CHECK(open_descriptors() == before);
}

TEST_CASE("every other call on a destroyed loader with held batches returns E_STATE") {
  Orphans o(1);
  auto b = fresh<feedlane_batch>();
  auto stats = fresh<feedlane_stats>();
  auto worker = fresh<feedlane_worker_stats>();
  std::int32_t number = -1;
  std::int64_t length = 0;
  Error e;
  CHECK(feedlane_loader_begin(o.copy, 0, &e) == FEEDLANE_E_STATE);
  CHECK(e.code == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_next(o.copy, 0, &b, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_poll(o.copy, nullptr) == FEEDLANE_E_STATE);
  CHECK(wait_fd_of(o.copy, &number) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_arm(o.copy, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_interrupt(o.copy) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_stop(o.copy, nullptr) == FEEDLANE_E_STATE);
  CHECK(length_of(o.copy, &length) == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_open_worker(o.copy, &number, &number, nullptr) == FEEDLANE_E_STATE);
  CHECK(observe(o.copy, feedlane_monitor_get_stats, &stats) == FEEDLANE_E_STATE);
  CHECK(observe(o.copy, feedlane_monitor_get_worker_stats, 0, &worker) == FEEDLANE_E_STATE);
  feedlane_loader* again = o.copy;
  CHECK(feedlane_loader_destroy(&again) == FEEDLANE_E_STATE);
  CHECK(feedlane_batch_release(o.copy, o.batches[0].token) == FEEDLANE_OK);
}

TEST_CASE("destroying a loader clears the pointer; destroying it twice or destroying NULL is allowed") {
  Setup s(1);
  feedlane_loader* l = s.create().release();
  CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
  CHECK(l == nullptr);
  CHECK(feedlane_loader_destroy(&l) == FEEDLANE_OK);
  CHECK(feedlane_loader_destroy(nullptr) == FEEDLANE_OK);
}
