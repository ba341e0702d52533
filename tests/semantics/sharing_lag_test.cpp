// SPDX-License-Identifier: Apache-2.0
// Shared loaders: consumers that lag, hold their batches, leave in mid-epoch or skip what is left of one.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <string>

#include "semantics/sharing.hpp"
#include "support/events.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

// Batches in a consumer's hands, until they are released.
struct Held {
  explicit Held(feedlane_loader* consumer) : l(consumer) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { release_all(); }

  // Takes what there is, while this thread polls the feeder. Returns next's last outcome.
  std::int32_t take_all(feedlane_loader* feeder, feedlane_error* err = nullptr) {
    std::int32_t status = FEEDLANE_TIMEOUT;
    CHECK(poll_until(feeder, [&] {
      auto b = fresh<feedlane_batch>();
      status = feedlane_loader_next(l, 0, &b, err);
      if (status == FEEDLANE_OK) batches.push_back(b);
      return status != FEEDLANE_OK && status != FEEDLANE_TIMEOUT;
    }));
    return status;
  }
  void release_one() {
    CHECK(feedlane_batch_release(l, batches.front().token) == FEEDLANE_OK);
    batches.erase(batches.begin());
  }
  void release_all() {
    while (!batches.empty()) release_one();
  }
  [[nodiscard]] std::vector<Taken> copies() const {
    std::vector<Taken> all;
    for (const feedlane_batch& b : batches) all.push_back(copy_of(b));
    return all;
  }

  feedlane_loader* l;
  std::vector<feedlane_batch> batches;
};

// The feeder has delivered all that it can while nothing comes back.
bool fill(feedlane_loader* feeder) {
  return poll_until(feeder, [&] { return stats_of(feeder).slots_free == 0; });
}

std::vector<Taken> part(const std::vector<Taken>& all, std::size_t from) {
  return {all.begin() + static_cast<std::ptrdiff_t>(from), all.end()};
}

// What is left of the epoch, while this thread polls the feeder.
std::vector<Taken> polled_rest(feedlane_loader* feeder, feedlane_loader* l) {
  std::vector<Taken> all;
  for (;;) {
    Taken t = polled(feeder, l);
    if (t.status == FEEDLANE_END) return all;
    REQUIRE(t.status == FEEDLANE_OK);
    all.push_back(std::move(t));
  }
}

}  // namespace

// promise: share-block, consumer-holds-all
TEST_CASE(
    "the consumer that holds most slots gets SLOTS_HELD when no slot is free, and each release lets it continue") {
  Shuffled s(200);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader l = join_here(feeder.get()), other = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  begin(other.get(), 0);
  Held held(l.get());
  std::size_t others = 0;
  Error e;
  std::int32_t status = FEEDLANE_TIMEOUT;
  CHECK(poll_until(feeder.get(), [&] {
    others += take(other.get(), nullptr, 0).status == FEEDLANE_OK ? 1 : 0;
    auto b = fresh<feedlane_batch>();
    status = feedlane_loader_next(l.get(), 0, &b, &e);
    if (status == FEEDLANE_OK) held.batches.push_back(b);
    return status != FEEDLANE_OK && status != FEEDLANE_TIMEOUT;
  }));
  CHECK(status == FEEDLANE_SLOTS_HELD);
  CHECK(e.found == static_cast<std::int64_t>(held.batches.size()));
  CHECK(held.batches.size() == stats_of(feeder.get()).slots);
  CHECK(take(other.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);  // it holds none
  CHECK(others == held.batches.size());
  for (int round = 0; round < 5; round++) {
    held.release_one();
    const feedlane_batch b = polled_batch(feeder.get(), l.get());
    held.batches.push_back(b);
    CHECK(difference(copy_of(b), expected[others]) == "");
    CHECK(polled(feeder.get(), other.get()).batch == b.batch);
    others++;
  }
}

// promise: share-block
TEST_CASE("a consumer that has taken every delivered batch while the feeder lacks slots gets SLOTS_HELD") {
  Shuffled s(200);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  Serving serving(feeder.get());
  begin(l.get(), 0);
  Held held(l.get());
  auto b = fresh<feedlane_batch>();
  while (held.batches.size() + 1 < stats_of(feeder.get()).slots) {
    REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
    held.batches.push_back(b);
  }
  CHECK(eventually([&] { return !events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_LAGS).empty(); }));
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  held.batches.push_back(b);
  CHECK(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_SLOTS_HELD);
  held.release_all();
  (void)take_rest(l.get());
  CHECK(serving.finish() == FEEDLANE_END);
}

// promise: share-evict
TEST_CASE("evict: the time limit of a consumer starts when it joins") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Place place_of_late(feeder.get(), place(FEEDLANE_LAG_EVICT, 0, 1'000'000'000));
  begin(feeder.get(), 0);
  CHECK(fill(feeder.get()));
  CHECK(feedlane_loader_serve(feeder.get(), 1'100'000'000, nullptr) == FEEDLANE_TIMEOUT);
  const Loader late = join(place_of_late.release());
  begin(late.get(), 0);
  check_same(polled_rest(feeder.get(), late.get()), expected);
}

// promise: share-block, consumer-lags-block
TEST_CASE("block: the feeder waits for a slow consumer, and an event has its number, its process and its batches") {
  Shuffled s(100);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader slow = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 1));
  const Loader other = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 0));
  begin(feeder.get(), 0);
  begin(slow.get(), 0);
  begin(other.get(), 0);
  const feedlane_batch first = polled_batch(feeder.get(), slow.get());
  Held ahead(other.get());
  std::vector<feedlane_event> lags;
  std::vector<Taken> taken;
  CHECK(poll_until(feeder.get(), [&] {
    Taken t = take(other.get(), nullptr, 0);
    if (t.status == FEEDLANE_OK) taken.push_back(std::move(t));
    lags = events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_LAGS);
    return !lags.empty();
  }));
  const std::uint64_t slots = stats_of(feeder.get()).slots;
  CHECK(taken.size() == slots);
  REQUIRE(lags.size() == 1);
  const std::string text = lags[0].what.text;
  CHECK(text.find("consumer 1 (process " + std::to_string(::getpid()) + ") holds 1 batches and has not taken " +
                  std::to_string(slots - 1) + " more") != std::string::npos);
  CHECK(consumer_of(feeder.get(), 0).held == 1);
  CHECK(consumer_of(feeder.get(), 0).waiting == slots - 1);
  CHECK(feedlane_batch_release(slow.get(), first.token) == FEEDLANE_OK);
  Serving serving(feeder.get(), 0);  // no epoch is begun: the one in progress goes on
  std::vector<Taken> late;
  std::thread thread([&] { late = take_rest(slow.get()); });
  const std::vector<Taken> rest = take_rest(other.get());
  thread.join();
  check_same(rest, part(expected, slots));
  check_same(late, part(expected, 1));
}

// promise: share-evict
TEST_CASE("evict: a consumer without progress gets E_HUNG, the feeder gets an event, and held batches stay valid") {
  Shuffled s(100);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  Loader slow = join_here(feeder.get(), place(FEEDLANE_LAG_EVICT, 1, 1'000'000));
  const Loader other = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(slow.get(), 0);
  begin(other.get(), 0);
  Held held(slow.get());
  for (int i = 0; i < 2; i++) held.batches.push_back(polled_batch(feeder.get(), slow.get()));
  check_same(polled_rest(feeder.get(), other.get()), expected);

  const std::vector<feedlane_event> events = events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED);
  REQUIRE(events.size() == 1);
  CHECK(events[0].what.code == FEEDLANE_E_HUNG);
  CHECK(std::string(events[0].what.text).find("consumer 1 (process " + std::to_string(::getpid()) + ")") !=
        std::string::npos);
  CHECK(consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_EVICTED);
  CHECK(consumer_of(feeder.get(), 0).held == 2);
  CHECK(consumer_of(feeder.get(), 0).waiting == 0);
  CHECK(consumer_of(feeder.get(), 0).taken_back == stats_of(feeder.get()).slots - 2);
  for (int i = 0; i < 2; i++) {
    Error e;
    CHECK(take(slow.get(), &e).status == FEEDLANE_E_HUNG);
    CHECK(e.says("place 1"));
  }
  check_same(held.copies(), {expected[0], expected[1]});
  held.release_all();
  slow.reset();
  CHECK(poll_until(feeder.get(), [&] { return count_consumers(feeder.get()) == 1; }));
  check_all_returned(feeder.get());
}

// promise: share-evict
TEST_CASE("evict: a consumer that makes progress, however slow, is not evicted") {
  Shuffled s(60);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get(), place(FEEDLANE_LAG_EVICT, -1, 30'000'000'000));
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  REQUIRE(fill(feeder.get()));
  check_same(polled_rest(feeder.get(), l.get()), expected);
  CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED).empty());
}

// promise: share-evict
TEST_CASE("evict: a consumer that has taken all batches and holds few is not evicted for the lag of another consumer") {
  Shuffled s(200);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader slow = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 0));
  const Loader quick = join_here(feeder.get(), place(FEEDLANE_LAG_EVICT, 1, 20'000'000));
  begin(feeder.get(), 0);
  begin(slow.get(), 0);
  begin(quick.get(), 0);
  Held slows(slow.get()), quicks(quick.get());
  std::size_t taken = 0;
  CHECK(poll_until(feeder.get(), [&] {
    auto b = fresh<feedlane_batch>();
    if (feedlane_loader_next(quick.get(), 0, &b, nullptr) == FEEDLANE_OK) {
      quicks.release_all();
      quicks.batches.push_back(b);
      taken++;
    }
    const std::int32_t status = feedlane_loader_next(slow.get(), 0, &b, nullptr);
    if (status == FEEDLANE_OK) slows.batches.push_back(b);
    return status == FEEDLANE_SLOTS_HELD && taken == slows.batches.size();
  }));
  CHECK(feedlane_loader_serve(feeder.get(), 200'000'000, nullptr) == FEEDLANE_TIMEOUT);  // ten times as long as it may
  CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED).empty());
  slows.release_all();
  quicks.release_all();
  std::vector<Taken> rest;
  CHECK(poll_until(feeder.get(), [&] {
    (void)take(slow.get(), nullptr, 0);
    Taken t = take(quick.get(), nullptr, 0);
    if (t.status == FEEDLANE_OK) rest.push_back(std::move(t));
    return t.status == FEEDLANE_END;
  }));
  check_same(rest, part(expected, taken));
}

// promise: share-evict
TEST_CASE("after an epoch serve does not wait for an evicted consumer without batches whose process is alive") {
  Shuffled s(100);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  Consumer stopped(
      feeder.get(), [](feedlane_loader*, Findings& f) { EXPECT(f, ::raise(SIGSTOP) == 0); }, {},
      place(FEEDLANE_LAG_EVICT, -1, 1'000'000));
  Loader l = join_here(feeder.get());
  CHECK(serve(feeder.get()) == FEEDLANE_END);  // both have joined
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  check_same(polled_rest(feeder.get(), l.get()), expected);
  CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED).size() == 1);
  CHECK(count_consumers(feeder.get()) == 1);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  l.reset();
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  CHECK(is_running(stopped.pid()));
  CHECK(::kill(stopped.pid(), SIGCONT) == 0);
  CHECK(stopped.finish() == "");
}

// promise: share-evict, consumer-lags-evict
TEST_CASE("evict: a stopped process is evicted and named; when continued it gets E_HUNG, and its batch is intact") {
  const Gate gate;  // before batch 1: until then no slot is lacking
  Setup s(100, 3);
  s.workers(2).plan.gate_fd = gate.fd();
  s.plan.gate_index = 3;
  gate.open();
  const Epochs expected = plain_epochs(s, 1);
  gate.shut();
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  Consumer stopped(
      feeder.get(),
      [&](feedlane_loader* l, Findings& f) {
        begin(l, 0);
        auto b = fresh<feedlane_batch>();
        EXPECT(f, feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
        (void)::raise(SIGSTOP);
        EXPECT(f, difference(copy_of(b), expected[0][0]).empty());
        EXPECT(f, take(l).status == FEEDLANE_E_HUNG);
        EXPECT(f, feedlane_batch_release(l, b.token) == FEEDLANE_OK);
      },
      {}, place(FEEDLANE_LAG_EVICT, -1, 1'000'000));
  std::vector<std::unique_ptr<Consumer>> others;
  others.push_back(std::make_unique<Consumer>(feeder.get(),
                                              [&](feedlane_loader* l, Findings& f) { expect_epochs(l, expected, f); }));
  begin(feeder.get(), 0);
  REQUIRE(poll_until(feeder.get(), [&] { return state_of(stopped.pid()) == 'T'; }));
  gate.open();
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  CHECK(others[0]->finish() == "");
  const std::vector<feedlane_event> events = events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED);
  REQUIRE(events.size() == 1);
  CHECK(std::string(events[0].what.text).find("(process " + std::to_string(stopped.pid()) + ")") != std::string::npos);
  CHECK(consumer_of(feeder.get(), 0).held == 1);
  CHECK(::kill(stopped.pid(), SIGCONT) == 0);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  CHECK(stopped.finish() == "");
  check_all_returned(feeder.get());
}

// promise: share-evict, consumer-evicted-keeps
TEST_CASE("while an evicted consumer holds all slots, calls of the feeder fail with E_HUNG and the consumer's name") {
  Shuffled s(100);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader slow = join_here(feeder.get(), place(FEEDLANE_LAG_EVICT, 1, 1'000'000));
  const Loader other = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(slow.get(), 0);
  begin(other.get(), 0);
  Held held(slow.get());
  std::vector<Taken> taken;
  Error e;
  std::int32_t status = FEEDLANE_OK;
  CHECK(eventually([&] {
    Error now;
    status = feedlane_loader_poll(feeder.get(), &now);
    if (status == FEEDLANE_E_HUNG) CHECK(now.says("consumer 1 (process " + std::to_string(::getpid()) + ")"));
    auto b = fresh<feedlane_batch>();
    if (feedlane_loader_next(slow.get(), 0, &b, nullptr) == FEEDLANE_OK) held.batches.push_back(b);
    Taken t = take(other.get(), nullptr, 0);
    if (t.status == FEEDLANE_OK) taken.push_back(std::move(t));
    return status == FEEDLANE_E_HUNG;
  }));
  CHECK(held.batches.size() == stats_of(feeder.get()).slots);
  CHECK(serve(feeder.get()) == FEEDLANE_E_HUNG);
  CHECK(taken.size() == held.batches.size());
  held.release_one();
  check_same(polled_rest(feeder.get(), other.get()), part(expected, taken.size()));
}

// promise: share-observe, consumer-lags-observe
TEST_CASE("observe: the feeder never waits, and missed plus yielded batches are all batches that were delivered") {
  Shuffled s(300);
  const Epochs expected = plain_epochs(s, 2);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader watcher = join_here(feeder.get(), place(FEEDLANE_LAG_OBSERVE));
  const Loader other = join_here(feeder.get());
  begin(watcher.get(), 0);
  begin(feeder.get(), 0);
  begin(other.get(), 0);
  // Every now and then one, held until the next; the other goes on between.
  std::uint64_t yielded = 0, missed = 0;
  Held held(watcher.get());
  const auto watch = [&] {
    auto b = fresh<feedlane_batch>();
    if (feedlane_loader_next(watcher.get(), 0, &b, nullptr) != FEEDLANE_OK) return false;
    yielded++;
    missed += b.missed;
    CHECK(b.batch == static_cast<std::int64_t>(yielded + missed) - 1);
    CHECK(difference(copy_of(b), expected[0][static_cast<std::size_t>(b.batch)]) == "");
    held.release_all();
    held.batches.push_back(b);
    return true;
  };
  for (std::size_t i = 0; i < expected[0].size(); i++) {
    CHECK(difference(polled(feeder.get(), other.get()), expected[0][i]) == "");
    if (i % 40 == 39) (void)watch();
  }
  CHECK(polled(feeder.get(), other.get()).status == FEEDLANE_END);
  while (watch()) {
  }
  CHECK(yielded >= 1);
  CHECK(missed >= 10);
  CHECK(yielded + missed == expected[0].size());
  CHECK(consumer_of(feeder.get(), 0).taken_back == missed);
  CHECK(take(watcher.get(), nullptr, 0).status == FEEDLANE_END);
  CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED).empty());
}

// promise: share-observe
TEST_CASE("observe: a consumer that missed the end of an epoch gets END nevertheless, then the next epoch") {
  for (const std::int64_t batches : {20, 100}) {  // that fit into the delivery ring, and that don't
    CAPTURE(batches);
    Shuffled s(3 * batches);
    const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
    const Loader watcher = join_here(feeder.get(), place(FEEDLANE_LAG_OBSERVE));
    const Loader other = join_here(feeder.get());
    begin(watcher.get(), 0);
    Serving serving(feeder.get(), 2);
    CHECK(take_epoch(other.get(), 0).size() == static_cast<std::size_t>(batches));
    begin(other.get(), 1);
    for (int i = 0; i < 15; i++) CHECK(take(other.get()).status == FEEDLANE_OK);
    Taken t;
    while ((t = take(watcher.get())).status == FEEDLANE_OK) CHECK(t.epoch == 0);
    CHECK(t.status == FEEDLANE_END);
    begin(watcher.get(), 1);
    CHECK(take_rest(other.get()).size() == static_cast<std::size_t>(batches) - 15);
    while ((t = take(watcher.get())).status == FEEDLANE_OK) CHECK(t.epoch == 1);
    CHECK(t.status == FEEDLANE_END);
    CHECK(serving.finish() == FEEDLANE_END);
  }
}

// promise: share-leave, consumer-leaves
TEST_CASE("when a consumer leaves in mid-epoch, others continue, its place is free and its held batches stay valid") {
  Shuffled s(100);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  feedlane_loader* leaving = join_here(feeder.get()).release();
  const Loader other = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(leaving, 0);
  begin(other.get(), 0);
  Held held(leaving);
  for (int i = 0; i < 3; i++) held.batches.push_back(polled_batch(feeder.get(), leaving));
  feedlane_loader* handle = leaving;
  CHECK(feedlane_loader_destroy(&handle) == FEEDLANE_OK);
  check_same(polled_rest(feeder.get(), other.get()), expected);
  CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_LEFT).size() == 1);
  CHECK(consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_LEFT);
  CHECK(consumer_of(feeder.get(), 0).held == 3);
  check_same(held.copies(), {expected[0], expected[1], expected[2]});
  const Loader next = join_here(feeder.get());
  held.release_all();
  CHECK(poll_until(feeder.get(), [&] { return count_consumers(feeder.get()) == 2; }));
  check_all_returned(feeder.get());
}

// promise: share-epochs, consumer-skips-epoch
TEST_CASE("a consumer may skip the rest of an epoch by stop or by the next begin, and delays no other consumer") {
  for (const bool stops : {false, true}) {
    CAPTURE(stops);
    Shuffled s(100);
    const Epochs expected = plain_epochs(s, 2);
    const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
    const Loader l = join_here(feeder.get()), other = join_here(feeder.get());
    Serving serving(feeder.get(), 2);
    begin(l.get(), 0);
    for (int i = 0; i < 3; i++) CHECK(take(l.get()).status == FEEDLANE_OK);
    if (stops) {
      CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
      CHECK(take(l.get()).status == FEEDLANE_E_STATE);
    } else {
      begin(l.get(), 1);
    }
    check_same(take_epoch(other.get(), 0), expected[0]);
    if (stops) begin(l.get(), 1);
    std::vector<Taken> found;
    std::thread thread([&] { found = take_rest(l.get()); });
    check_same(take_epoch(other.get(), 1), expected[1]);
    thread.join();
    check_same(found, expected[1]);
    CHECK(serving.finish() == FEEDLANE_END);
  }
}

// promise: share-epochs
TEST_CASE("deal: the batches of a rank that skips an epoch are dropped, and the other ranks get theirs") {
  Shuffled s(100);
  const Epochs expected = plain_epochs(s, 2);
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  const Loader l = join_here(feeder.get()), other = join_here(feeder.get());
  begin(l.get(), 1);
  Serving serving(feeder.get(), 2);
  check_same(take_epoch(other.get(), 0), dealt(expected[0], 1, 2));
  std::vector<Taken> found;
  std::thread thread([&] { found = take_rest(l.get()); });
  check_same(take_epoch(other.get(), 1), dealt(expected[1], 1, 2));
  thread.join();
  check_same(found, dealt(expected[1], 0, 2));
  CHECK(serving.finish() == FEEDLANE_END);
}

// promise: share-observe
TEST_CASE("observe: no batch is taken back from a consumer while another consumer keeps the same slots") {
  Shuffled s(100);
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader watcher = join_here(feeder.get(), place(FEEDLANE_LAG_OBSERVE, 0));
  const Loader other = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 1));
  begin(feeder.get(), 0);
  begin(watcher.get(), 0);
  begin(other.get(), 0);
  const std::uint64_t slots = stats_of(feeder.get()).slots;
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 1).waiting == slots; }));
  CHECK(feedlane_loader_poll(feeder.get(), nullptr) == FEEDLANE_OK);
  CHECK(consumer_of(feeder.get(), 0).taken_back == 0);
  for (std::size_t i = 0; i < slots; i++) CHECK(difference(take(watcher.get(), nullptr, 0), expected[i]) == "");
}
