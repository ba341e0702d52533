// SPDX-License-Identifier: Apache-2.0
// Shared loaders: every consumer gets every batch, in whatever form the loader yields it.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "semantics/sharing.hpp"
#include "support/events.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

// Consumers in processes compare what they get with what a plain loader yields.
void check_every(Setup& s, std::int32_t consumers, std::int64_t epochs = 2) {
  CAPTURE(consumers);
  const Epochs expected = plain_epochs(s, epochs);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, consumers).create();
  std::vector<std::unique_ptr<Consumer>> all;
  for (std::int32_t i = 0; i < consumers; i++)
    all.push_back(std::make_unique<Consumer>(feeder.get(),
                                             [&](feedlane_loader* l, Findings& f) { expect_epochs(l, expected, f); }));
  serve_epochs(feeder.get(), epochs);
  finish(feeder.get(), all);
  CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_LEFT).size() == static_cast<std::size_t>(consumers));
}

std::size_t count_of(const std::vector<Taken>& epoch, std::int32_t status) {
  return static_cast<std::size_t>(
      std::count_if(epoch.begin(), epoch.end(), [&](const Taken& t) { return t.status == status; }));
}

// A batch's own shape, a tensor more in every other one, and metadata in all but each third.
std::int32_t fetch_shaped(void*, const feedlane_task* task, feedlane_error* err) {
  std::memcpy(task->tensors[0].data, task->indices, task->count * sizeof(std::int64_t));
  const feedlane_field own = field("own", uint8_type, {static_cast<std::int64_t>(task->count), 1 + task->batch % 5});
  auto t = fresh<feedlane_tensor>();
  if (const std::int32_t s = feedlane_task_tensor(task, 1, &own, &t, err); s != FEEDLANE_OK) return s;
  std::memset(t.data, 'a' + static_cast<int>(task->batch), t.bytes);
  if (task->batch % 2 == 1) {
    const feedlane_field more = field("more", float32_type, {2, 2});
    if (const std::int32_t s = feedlane_task_tensor(task, 2, &more, &t, err); s != FEEDLANE_OK) return s;
    std::memset(t.data, static_cast<int>(task->batch), t.bytes);
  }
  if (task->batch % 3 == 0) return FEEDLANE_OK;
  const std::string words = "batch " + std::to_string(task->batch);
  return feedlane_task_store(task, FEEDLANE_STORE_METADATA, words.data(), words.size(), err);
}

bool is_broken(std::int64_t index) { return index % 7 == 3; }

std::int32_t get_unbroken(void*, const feedlane_row* row, feedlane_error* err) {
  if (is_broken(row->index)) {
    (void)std::snprintf(err->text, sizeof err->text, "sample is broken");
    return FEEDLANE_E_CORRUPT;
  }
  std::memcpy(row->fields[0], &row->index, sizeof row->index);
  std::memcpy(row->fields[1], &row->seed, sizeof row->seed);
  return FEEDLANE_OK;
}

std::int32_t substitute_next(void*, std::int64_t failed, std::uint64_t, std::uint32_t, std::int64_t* other,
                             feedlane_error*) {
  *other = failed + 1;
  return FEEDLANE_OK;
}

feedlane_dataset broken_dataset() {
  auto table = fresh<feedlane_dataset>();
  table.get = get_unbroken;
  table.substitute = substitute_next;
  return table;
}

}  // namespace

// promise: share-every
TEST_CASE("every consumer gets every batch of every epoch once, in order and whole, with 1, 2 and 4 consumers") {
  for (const std::int32_t consumers : {1, 2, 4}) {
    Shuffled s;
    check_every(s, consumers, 3);
  }
}

// promise: share-any-data-set
TEST_CASE("every consumer gets tensors with shapes of one batch, added tensors and metadata") {
  auto table = fresh<feedlane_dataset>();
  table.fetch = fetch_shaped;
  Setup s(26, 3);
  s.forked(2, table).fields({field("index", int64_type), field("own", uint8_type, {5})});
  s.config.slot_bytes = 1 << 16;
  check_every(s, 2);
}

// promise: share-any-data-set
TEST_CASE("skipped and substituted samples are the same on every consumer") {
  for (const std::int32_t substitute : {0, 1}) {
    CAPTURE(substitute);
    Setup s(40, 3);
    s.forked(2, broken_dataset());
    s.config.substitute = substitute;
    s.config.skip_budget = -1;
    check_every(s, 2);
  }
}

// promise: share-failed-batch, feeder-failed-batch
TEST_CASE("every consumer gets E_SAMPLE for a batch that fails and E_QUARANTINED for a batch that kills its workers") {
  Setup s(30, 3);
  s.workers(2);
  s.plan.fail_index = 10;
  s.plan.end_index = 22;
  s.plan.end_signal = SIGKILL;
  s.plan.end_attempts = 100;
  const std::vector<Taken> epoch = plain_epochs(s, 1)[0];
  CHECK(count_of(epoch, FEEDLANE_E_SAMPLE) == 1);
  CHECK(count_of(epoch, FEEDLANE_E_QUARANTINED) == 1);
  check_every(s, 2);
}

// promise: share-any-data-set
TEST_CASE("every consumer gets all batches of an iterable data set") {
  for (const std::int64_t batch_size : {std::int64_t{3}, std::int64_t{FEEDLANE_UNBATCHED}}) {
    CAPTURE(batch_size);
    Setup s(0, batch_size);
    s.workers(2, "shard");
    s.config.iterable = 1;
    s.config.deterministic = 1;
    check_every(s, 2);
  }
}

// promise: share-out-of-order
TEST_CASE("with out_of_order all consumers get all batches in the same order, the order of arrival") {
  const Gate gate;
  OverFork<Notes> notes[2];
  Setup s(24, 2);
  s.workers(2);
  s.config.out_of_order = 1;
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 0;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  std::vector<std::unique_ptr<Consumer>> all;
  for (auto& n : notes)
    all.push_back(std::make_unique<Consumer>(
        feeder.get(),
        [&](feedlane_loader* l, Findings& f) {
          begin(l, 0);
          Taken t;
          while ((t = take(l)).status == FEEDLANE_OK) {
            n->add(t.batch);
            EXPECT(f, t.value("index") == 2 * t.batch);
            gate.open();
          }
          EXPECT(f, t.status == FEEDLANE_END);
        },
        std::vector<int>{gate.fd()}));
  serve_epochs(feeder.get(), 1);
  finish(feeder.get(), all);
  const std::vector<std::int64_t> order = notes[0]->all();
  CHECK(order == notes[1]->all());
  CHECK(order.size() == 12);
  CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 12);
  CHECK(order.at(0) != 0);
}

// promise: share-length
TEST_CASE("a consumer reports the epoch's length, and the batches and samples that it took") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  std::int64_t length = -2;
  CHECK(length_of(l.get(), &length) == FEEDLANE_OK);
  CHECK(length == 16);
  Serving serving(feeder.get(), 2);
  CHECK(take_epoch(l.get(), 0).size() == 16);
  CHECK(take_epoch(l.get(), 1).size() == 16);
  CHECK(serving.finish() == FEEDLANE_END);
  const feedlane_stats stats = stats_of(l.get());
  CHECK(stats.batches == 32);
  CHECK(stats.samples == 94);
  CHECK(stats.epochs == 2);
  CHECK(stats.slots == stats_of(feeder.get()).slots);
}

// promise: share-threads
TEST_CASE("a consumer may be a thread of the feeder's own process") {
  Shuffled s;
  const Epochs expected = plain_epochs(s, 2);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 3).create();
  std::vector<std::unique_ptr<Consumer>> others;
  others.push_back(std::make_unique<Consumer>(feeder.get(),
                                              [&](feedlane_loader* l, Findings& f) { expect_epochs(l, expected, f); }));
  Findings found[2];
  std::thread threads[2];
  for (int i = 0; i < 2; i++)
    threads[i] = std::thread([&, i, fd = Place(feeder.get()).release()] {
      feedlane_loader* l = nullptr;
      EXPECT(found[i], feedlane_loader_join(fd, nullptr, nullptr, patience_ns, &l, nullptr) == FEEDLANE_OK);
      expect_epochs(l, expected, found[i]);
      EXPECT(found[i], feedlane_loader_destroy(&l) == FEEDLANE_OK);
    });
  serve_epochs(feeder.get(), 2);
  finish(feeder.get(), others);
  for (int i = 0; i < 2; i++) {
    threads[i].join();
    CHECK(found[i].text() == "");
  }
}

// promise: share-threads
TEST_CASE("any thread of a consumer may retain and release its batches") {
  Shuffled s(300, 3);
  const Epochs expected = plain_epochs(s, 1);
  s.config.held = 2;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  Serving serving(feeder.get());
  begin(l.get(), 0);
  std::atomic<int> wrong{0};
  for (const Taken& e : expected[0]) {
    auto b = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++) REQUIRE(feedlane_batch_retain(l.get(), b.token) == FEEDLANE_OK);
    for (int i = 0; i < 3; i++)
      threads.emplace_back([&] {
        if (copy_of(b).bytes != e.bytes) wrong++;
        if (feedlane_batch_release(l.get(), b.token) != FEEDLANE_OK) wrong++;
      });
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
    for (std::thread& t : threads) t.join();
    CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_E_STALE);
    CHECK(feedlane_batch_retain(l.get(), b.token) == FEEDLANE_E_STALE);
  }
  CHECK(take(l.get()).status == FEEDLANE_END);
  CHECK(wrong == 0);
  CHECK(serving.finish() == FEEDLANE_END);
}

// promise: share-fork
TEST_CASE("calls with a consumer's handle fail with E_FORKED in a forked child, and the consumer continues") {
  Shuffled s;
  const Epochs expected = plain_epochs(s, 1);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  std::vector<std::unique_ptr<Consumer>> all;
  all.push_back(std::make_unique<Consumer>(feeder.get(), [&](feedlane_loader* l, Findings& f) {
    begin(l, 0);
    auto b = fresh<feedlane_batch>();
    EXPECT(f, feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
    EXPECT(f, in_child([&](Findings& g) {
                feedlane_loader* copy = l;
                std::int64_t epoch = 0;
                EXPECT(g, feedlane_loader_begin(copy, 1, nullptr) == FEEDLANE_E_FORKED);
                EXPECT(g, feedlane_loader_next(copy, 0, &b, nullptr) == FEEDLANE_E_FORKED);
                EXPECT(g, next_epoch_of(copy, &epoch) == FEEDLANE_E_FORKED);
                EXPECT(g, feedlane_batch_release(copy, b.token) == FEEDLANE_E_FORKED);
                EXPECT(g, feedlane_loader_destroy(&copy) == FEEDLANE_OK);
                EXPECT(g, copy == nullptr);
              }).empty());
    EXPECT(f, difference(copy_of(b), expected[0][0]).empty());
    EXPECT(f, feedlane_batch_release(l, b.token) == FEEDLANE_OK);
    std::vector<Taken> rest = take_outcomes(l);
    rest.insert(rest.begin(), expected[0][0]);
    expect_same(rest, expected[0], f);
  }));
  serve_epochs(feeder.get(), 1);
  finish(feeder.get(), all);
}
