// SPDX-License-Identifier: Apache-2.0
// What holds with registered memory as it does without. What registered memory itself promises: tests/pinned.
#include <doctest/doctest.h>

#include <csignal>
#include <cstring>
#include <set>
#include <thread>

#include "support/events.hpp"
#include "support/process.hpp"
#include "support/trainer.hpp"

using namespace feedlane::test;

namespace {

// A pool on "none", and the thread that copies where there is one to be.
struct Pinned {
  explicit Pinned(std::int32_t staged_buffers) : staged(staged_buffers) {
    auto c = fresh<feedlane_pool_config>();
    c.buffers = static_cast<std::uint32_t>(staged);
    c.buffer_bytes = staged == 0 ? 0 : 4096;
    REQUIRE(feedlane_pool_create(&c, &pool, nullptr) == FEEDLANE_OK);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    loader.reset();
    if (copier.joinable()) copier.join();
    CHECK(feedlane_pool_destroy(&pool) == FEEDLANE_OK);
  }
  feedlane_loader* create(Setup& s, bool with_copier = true) {
    s.config.pinned = pool;
    s.config.staged = staged;
    loader = s.create();
    if (with_copier && staged != 0 && s.config.workers != 0) start_copier();
    return loader.get();
  }
  void start_copier() {
    copier = std::thread([l = loader.get()] { (void)feedlane_loader_run_stager(l, nullptr); });
  }

  std::int32_t staged;
  feedlane_pool* pool = nullptr;
  Loader loader;
  std::thread copier;
};

}  // namespace

// promise: torch-pinned-exit
TEST_CASE("with pinned memory a destroyed loader leaves no descriptor and no mapping, whatever fault came before") {
  for (const std::int32_t staged : {0, 3})
    for (const std::int32_t workers : {0, 2})
      for (const char* fault : {"nothing", "the loop is left", "a sample fails", "a worker is killed"}) {
        const std::string what = fault;
        if (what == "a worker is killed" && workers == 0) continue;
        CAPTURE(staged);
        CAPTURE(workers);
        CAPTURE(what);
        const std::vector<int> before = open_descriptors();
        {
          Pinned p(staged);
          Setup s(40, 2);
          if (workers != 0) s.workers(workers);
          if (what == "a sample fails") s.plan.fail_index = 11;
          if (what == "a worker is killed") {
            s.plan.end_index = 11;
            s.plan.end_signal = SIGKILL;
            s.plan.end_attempts = 1;
          }
          feedlane_loader* l = p.create(s);
          begin(l, 0);
          if (what == "the loop is left") {
            for (int i = 0; i < 10; i++) CHECK(take(l).batch == i);
          } else {
            const std::vector<Taken> all = take_outcomes(l);
            REQUIRE(all.size() == 20);
            for (std::size_t i = 0; i < all.size(); i++)
              CHECK(all[i].status == (what == "a sample fails" && i == 5 ? FEEDLANE_E_SAMPLE : FEEDLANE_OK));
          }
        }
        CHECK(open_descriptors() == before);
        CHECK(mappings_of("feedlane-") == 0);
      }
}

// promise: torch-registered-buffers
TEST_CASE("next returns TIMEOUT until the copying thread starts, and then yields every batch") {
  Pinned p(3);
  Setup s(8, 2);
  s.workers(1);
  feedlane_loader* l = p.create(s, false);
  begin(l, 0);
  auto b = fresh<feedlane_batch>();
  for (int i = 0; i < 3; i++) CHECK(feedlane_loader_next(l, 20'000'000, &b, nullptr) == FEEDLANE_TIMEOUT);
  p.start_copier();
  for (int i = 0; i < 4; i++) CHECK(take(l).batch == i);
  CHECK(take(l).status == FEEDLANE_END);
}

// promise: torch-registered-buffers
TEST_CASE("a buffer of the pool may be exactly as large as a batch, and a smaller buffer is refused") {
  for (const std::int64_t bytes : {2048, 2049}) {  // of a sample; a buffer has 4096
    CAPTURE(bytes);
    Pinned p(3);
    Setup s(8, 2);
    s.fields({field("noise", uint8_type, {bytes})});
    s.config.pinned = p.pool;
    s.config.staged = 3;
    auto error = fresh<feedlane_error>();
    const std::int32_t status = s.try_create(p.loader, &error);
    if (bytes == 2048) {
      REQUIRE_MESSAGE(status == FEEDLANE_OK, error.text);
      begin(p.loader.get(), 0);
      CHECK(take(p.loader.get()).bytes[0].size() == 4096);
    } else {
      CHECK(status == FEEDLANE_E_LIMIT);
      CHECK(std::string(error.argument) == "config.pinned");
      CHECK(error.found == 4096);
      CHECK(error.needed == 4352);
    }
  }
}

// promise: torch-pinned-exit
TEST_CASE("an abandoned epoch leaves no batch in a buffer of the pool") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Pinned p(3);
    Setup s(40, 2);
    s.fields({field("epoch", int64_type), field("index", int64_type)});
    if (workers != 0) s.workers(workers);
    feedlane_loader* l = p.create(s);
    std::set<const void*> places;
    for (std::int64_t epoch = 0; epoch < 8; epoch++) {
      begin(l, epoch);
      for (std::int64_t i = 0; i < 1 + epoch % 3; i++) {
        auto b = fresh<feedlane_batch>();
        REQUIRE(feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
        CHECK(b.batch == i);
        places.insert(b.tensors[0].data);
        const Taken t = copy_of(b);
        CHECK(t.value("epoch") == epoch);
        CHECK(t.value("index") == t.indices[0]);
        CHECK(feedlane_batch_release(l, b.token) == FEEDLANE_OK);
      }
    }
    CHECK_MESSAGE(places.size() <= 3, "all of them were in the buffers");
  }
}

// promise: torch-pinned-timeout
TEST_CASE("with pinned memory next keeps its timeout, and no batch is lost") {
  for (const std::int32_t staged : {0, 3}) {
    CAPTURE(staged);
    Pinned p(staged);
    Gate gate;
    Setup s(8, 2);
    s.workers(1);
    s.plan.gate_fd = gate.fd();
    s.plan.gate_index = 4;
    feedlane_loader* l = p.create(s);
    begin(l, 0);
    for (int i = 0; i < 2; i++) CHECK(take(l).batch == i);
    auto b = fresh<feedlane_batch>();
    for (int i = 0; i < 3; i++) CHECK(feedlane_loader_next(l, 20'000'000, &b, nullptr) == FEEDLANE_TIMEOUT);
    gate.open();
    for (int i = 2; i < 4; i++) CHECK(take(l).batch == i);
    CHECK(take(l).status == FEEDLANE_END);
  }
}

// promise: torch-pinned-exit
TEST_CASE("a batch whose samples are all skipped, or that exceeds the skip budget, keeps no buffer of the pool") {
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Pinned p(2);
    Setup s(32);
    if (workers != 0) s.workers(workers);
    s.plan.fail_index = 3;
    s.config.skip_budget = -1;
    feedlane_loader* l = p.create(s);
    begin(l, 0);
    for (const Taken& t : take_rest(l)) CHECK(t.count == (t.batch == 3 ? 0 : 1));
  }
  // Of each batch one sample of two.
  auto table = fresh<feedlane_dataset>();
  table.get = [](void*, const feedlane_row* row, feedlane_error*) -> std::int32_t {
    std::memcpy(row->fields[0], &row->index, sizeof row->index);
    return row->index % 2 == 0 ? FEEDLANE_OK : FEEDLANE_E_OS;
  };
  for (const std::int32_t workers : {0, 2}) {
    CAPTURE(workers);
    Pinned p(2);
    Setup s(32, 2);
    s.forked(workers, table).fields({field("index", int64_type)});
    s.config.skip_budget = 1;
    feedlane_loader* l = p.create(s);
    for (std::int64_t epoch = 0; epoch < 4; epoch++) {
      begin(l, epoch);
      const std::vector<Taken> all = take_outcomes(l);
      REQUIRE(all.size() == 16);
      CHECK(all[0].status == FEEDLANE_OK);
      CHECK(all[0].value("index") == 0);
      for (std::size_t i = 1; i < all.size(); i++) CHECK(all[i].status == FEEDLANE_E_SAMPLE);
    }
  }
}

// promise: torch-pinned-timeout
TEST_CASE("a staged loader needs no copying thread until there is a batch to copy") {
  Pinned p(2);
  Gate gate;
  Setup s(4);
  s.workers(1);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 0;
  s.config.start_timeout_ns = 250'000'000;  // the time that a thread that copies has too
  feedlane_loader* l = p.create(s, false);
  begin(l, 0);
  wait_until_ready(l, 1);
  CHECK(take(l, nullptr, 300'000'000).status == FEEDLANE_TIMEOUT);
  CHECK_MESSAGE(take(l, nullptr, 0).status == FEEDLANE_TIMEOUT, "not E_PEER_DEAD");
  gate.open();
  p.start_copier();
  check_sequence(take_rest(l), 4, 1);
}
