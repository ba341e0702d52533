// SPDX-License-Identifier: Apache-2.0
// Shared loaders: batches that are dealt to consumers, and the states that they ask for.
#include <doctest/doctest.h>

#include <csignal>
#include <map>
#include <string>

#include "semantics/sharing.hpp"
#include "semantics/states.hpp"
#include "support/events.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;
using states::State;

namespace {

// The state after the `after` batches that this consumer has had, asked for by the token of the last one; what follows it is
// taken.
State state_after(feedlane_loader* l, std::size_t after, std::vector<Taken>& taken) {
  begin(l, 0);
  State state;
  for (std::size_t k = 1;; k++) {
    auto b = fresh<feedlane_batch>();
    const std::int32_t s = feedlane_loader_next(l, patience_ns, &b, nullptr);
    if (s == FEEDLANE_END) return state;
    REQUIRE(s == FEEDLANE_OK);
    taken.push_back(copy_of(b));
    if (k == after) state = states::state_of(l, b.token);
    REQUIRE(feedlane_batch_release(l, b.token) == FEEDLANE_OK);
  }
}

// Each consumer's part of a shared epoch, all in this process; by the order in which the places were opened.
std::vector<std::vector<Taken>> shared_epoch(Setup& s, std::int32_t share, std::int32_t consumers) {
  const Loader feeder = shared(s, share, consumers).create();
  std::vector<Loader> all;
  for (std::int32_t i = 0; i < consumers; i++) all.push_back(join_here(feeder.get()));
  Serving serving(feeder.get());
  std::vector<std::vector<Taken>> taken(all.size());
  for (const Loader& l : all) begin(l.get(), 0);
  for (bool is_over = false; !is_over;)  // a consumer that takes nothing would keep the feeder waiting
    for (std::size_t i = 0; i < all.size(); i++) {
      Taken t = take(all[i].get());
      is_over = t.status == FEEDLANE_END;
      if (is_over) continue;
      REQUIRE(t.status == FEEDLANE_OK);
      taken[i].push_back(std::move(t));
    }
  CHECK(serving.finish() == FEEDLANE_END);
  return taken;
}

}  // namespace

// promise: share-deal
TEST_CASE("deal: batch k goes to consumer k mod N, and all consumers get equally many batches, without the tail") {
  for (const std::size_t consumers : {1U, 2U, 3U, 5U}) {
    CAPTURE(consumers);
    Shuffled s;  // 16 batches
    const Epochs expected = plain_epochs(s, 3);
    const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, static_cast<std::int32_t>(consumers)).create();
    std::vector<std::unique_ptr<Consumer>> all;
    for (std::size_t i = 0; i < consumers; i++) {
      Epochs part;
      for (const std::vector<Taken>& epoch : expected) part.push_back(dealt(epoch, i, consumers));
      all.push_back(std::make_unique<Consumer>(feeder.get(), [=](feedlane_loader* l, Findings& f) {
        std::int64_t length = 0;
        EXPECT(f, length_of(l, &length) == FEEDLANE_OK);
        EXPECT(f, length == static_cast<std::int64_t>(16 / consumers));
        expect_epochs(l, part, f);
      }));
      CHECK(all.back()->id() == static_cast<std::int32_t>(i));
    }
    serve_epochs(feeder.get(), 3);
    std::int64_t length = 0;
    CHECK(length_of(feeder.get(), &length) == FEEDLANE_OK);
    CHECK(length == 16);
    CHECK(serve(feeder.get()) == FEEDLANE_END);
    for (const auto& c : all) CHECK(c->finish() == "");
    check_all_returned(feeder.get());
  }
}

// promise: share-deal
TEST_CASE("deal: with share_tail the remaining batches go to the first consumers, and no batch is left out") {
  Shuffled s;  // 16 batches
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = [&] {
    s.config.share_tail = 1;
    return shared(s, FEEDLANE_SHARE_DEAL, 5).create();
  }();
  std::vector<std::unique_ptr<Consumer>> all;
  for (std::size_t i = 0; i < 5; i++) {
    std::vector<Taken> part = dealt(expected, i, 5);
    if (i == 0) part.push_back(expected[15]);
    all.push_back(std::make_unique<Consumer>(feeder.get(), [=](feedlane_loader* l, Findings& f) {
      std::int64_t length = 0;
      EXPECT(f, length_of(l, &length) == FEEDLANE_OK);
      EXPECT(f, length == (i == 0 ? 4 : 3));
      expect_epochs(l, {part}, f);
    }));
  }
  serve_epochs(feeder.get(), 1);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  for (const auto& c : all) CHECK(c->finish() == "");
  check_all_returned(feeder.get());
}

// promise: share-deal
TEST_CASE("deal: the number of a place is the consumer's rank, and a rank that is taken is refused") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 3).create();
  Loader ranks[3];
  for (const std::int32_t id : {2, 0, 1}) ranks[id] = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, id));
  for (const std::int32_t id : {0, 2}) {
    const feedlane_consumer_config again = place(FEEDLANE_LAG_BLOCK, id);
    std::int32_t got = -1, fd = -1;
    Error e;
    CHECK(feedlane_loader_open_consumer(feeder.get(), &again, &got, &fd, &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == "config.id");
  }
  begin(feeder.get(), 0);
  for (std::size_t id = 0; id < 3; id++) {
    begin(ranks[id].get(), 0);
    CHECK(polled(feeder.get(), ranks[id].get()).batch == expected[id].batch);
  }
}

// promise: share-failed-batch
TEST_CASE("deal: a batch that fails counts for its consumer, and all consumers get END after equally many outcomes") {
  Setup s(30, 3);
  s.workers(2);
  s.plan.fail_index = 10;  // in batch 3
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  std::vector<std::unique_ptr<Consumer>> all;
  for (std::size_t i = 0; i < 2; i++)
    all.push_back(std::make_unique<Consumer>(feeder.get(), [=](feedlane_loader* l, Findings& f) {
      begin(l, 0);
      const std::vector<Taken> taken = take_outcomes(l);
      expect_same(taken, dealt(expected, i, 2), f);
      EXPECT(f, taken.size() == 5);
      EXPECT(f, (taken[1].status == FEEDLANE_E_SAMPLE) == (i == 1));
    }));
  serve_epochs(feeder.get(), 1);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  for (const auto& c : all) CHECK(c->finish() == "");
}

// promise: share-state
TEST_CASE("every: the state after a batch is the same on every consumer, and resumes a plain and a shared loader") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  for (const std::size_t after : {1U, 7U, 15U}) {
    CAPTURE(after);
    Shuffled again;
    const Loader feeder = shared(again, FEEDLANE_SHARE_EVERY, 2).create();
    const Loader one = join_here(feeder.get()), two = join_here(feeder.get());
    Serving serving(feeder.get());
    std::vector<Taken> taken, others;
    State other;
    std::thread second([&] { other = state_after(two.get(), after, others); });
    const State state = state_after(one.get(), after, taken);
    second.join();
    CHECK(serving.finish() == FEEDLANE_END);
    CHECK(state == other);
    CHECK(states::info_of(state).batch == static_cast<std::int64_t>(after));

    const std::vector<Taken> rest(expected.begin() + static_cast<std::ptrdiff_t>(after), expected.end());
    Shuffled plain, resumed;
    const Loader l = states::go_on(plain, state).create();
    check_same(take_epoch(l.get(), 0), rest);
    for (const std::vector<Taken>& part : shared_epoch(states::go_on(resumed, state), FEEDLANE_SHARE_EVERY, 3))
      check_same(part, rest);
  }
}

// promise: share-state
TEST_CASE(
    "deal: the state saved after a batch equals the state after the batch's whole round, and is the same on every "
    "consumer") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  for (const std::size_t after : {1U, 3U, 5U}) {  // of 5 batches a consumer
    CAPTURE(after);
    Shuffled again;
    const Loader feeder = shared(again, FEEDLANE_SHARE_DEAL, 3).create();
    Loader ranks[3];
    for (Loader& l : ranks) l = join_here(feeder.get());
    Serving serving(feeder.get());
    State states[3];
    std::vector<Taken> taken[3];
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; i++)
      threads.emplace_back([&, i] { states[i] = state_after(ranks[i].get(), after, taken[i]); });
    for (std::thread& t : threads) t.join();
    CHECK(serving.finish() == FEEDLANE_END);
    CHECK(states[0] == states[1]);
    CHECK(states[0] == states[2]);
    CHECK(states::info_of(states[0]).batch == static_cast<std::int64_t>(3 * after));

    Shuffled plain;
    const Loader l = states::go_on(plain, states[0]).create();
    check_same(take_epoch(l.get(), 0), {expected.begin() + static_cast<std::ptrdiff_t>(3 * after), expected.end()});
    Shuffled two;
    const auto parts = shared_epoch(states::go_on(two, states[0]), FEEDLANE_SHARE_DEAL, 2);
    for (std::size_t i = 0; i < 2; i++) check_same(parts[i], dealt(expected, i, 2, 3 * after));
  }
}

// promise: share-state
TEST_CASE("a consumer's state without a token is that of the newest batch, and after END that of an ended epoch") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  std::uint64_t bytes = 0;
  CHECK(feedlane_loader_state(l.get(), 0, nullptr, 0, &bytes, nullptr) == FEEDLANE_E_STATE);
  Serving serving(feeder.get());
  begin(l.get(), 0);
  auto b = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &b, nullptr) == FEEDLANE_OK);
  CHECK(take(l.get()).status == FEEDLANE_OK);
  CHECK(states::info_of(states::state_of(l.get(), b.token)).batch == 1);
  CHECK(states::info_of(states::state_of(l.get())).batch == 2);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  Error e;
  CHECK(feedlane_loader_state(l.get(), b.token, nullptr, 0, &bytes, &e) == FEEDLANE_E_STALE);
  CHECK(take_rest(l.get()).size() == 14);
  const feedlane_state_info info = states::info_of(states::state_of(l.get()));
  CHECK(info.ended == 1);
  CHECK(info.epoch == 0);
  CHECK(serving.finish() == FEEDLANE_END);
}

// promise: share-state
TEST_CASE("the state of a held batch is available however many batches were delivered after it") {
  Shuffled s(2400);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  Serving serving(feeder.get());
  begin(l.get(), 0);
  auto first = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &first, nullptr) == FEEDLANE_OK);
  const State expected = states::state_of(l.get(), first.token);
  auto second = fresh<feedlane_batch>();
  for (int i = 0; i < 500; i++) {
    CHECK(take(l.get()).status == FEEDLANE_OK);
    if (i == 250) REQUIRE(feedlane_loader_next(l.get(), patience_ns, &second, nullptr) == FEEDLANE_OK);
  }
  CHECK(states::state_of(l.get(), first.token) == expected);
  CHECK(states::info_of(states::state_of(l.get(), second.token)).batch == 253);
  CHECK(states::info_of(states::state_of(l.get())).batch == 502);
  CHECK(feedlane_batch_release(l.get(), first.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(l.get(), second.token) == FEEDLANE_OK);
  CHECK(take_rest(l.get()).size() == 298);
  CHECK(serving.finish() == FEEDLANE_END);
}

// promise: share-state
TEST_CASE("a consumer that skips the rest of an epoch has the state of the newest batch that it took") {
  Shuffled s(90);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader l = join_here(feeder.get()), other = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  begin(other.get(), 0);
  for (int i = 0; i < 2; i++) CHECK(polled(feeder.get(), l.get()).batch == i);
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).waiting != 0; }));
  CHECK(feedlane_loader_stop(l.get(), nullptr) == FEEDLANE_OK);
  while (polled(feeder.get(), other.get()).status == FEEDLANE_OK) continue;
  std::atomic<bool> is_told = false;
  std::thread asking([&] {
    CHECK(states::info_of(states::state_of(l.get())).batch == 2);
    is_told = true;
  });
  CHECK(poll_until(feeder.get(), [&] { return is_told.load(); }));
  asking.join();
}

// promise: share-state
TEST_CASE("deal: feeder and consumer of an epoch stopped within a round have the state after the previous round") {
  Setup s(60, 3);
  const Gate gate;
  s.workers(1);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 9;  // the second batch of the second round
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  const Loader a = join_here(feeder.get()), b = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(a.get(), 0);
  begin(b.get(), 0);
  CHECK(polled(feeder.get(), a.get()).batch == 0);
  CHECK(polled(feeder.get(), b.get()).batch == 1);
  CHECK(poll_until(feeder.get(), [&] { return stats_of(feeder.get()).batches == 3; }));
  CHECK(states::info_of(states::state_of(feeder.get())).batch == 2);
  gate.open();
  CHECK(feedlane_loader_stop(feeder.get(), nullptr) == FEEDLANE_OK);
  CHECK(polled(feeder.get(), a.get()).status == FEEDLANE_E_STATE);
  std::atomic<bool> is_told = false;
  std::thread asking([&] {
    CHECK(states::info_of(states::state_of(a.get())).batch == 2);
    is_told = true;
  });
  CHECK(poll_until(feeder.get(), [&] { return is_told.load(); }));
  asking.join();
}

// promise: share-state
TEST_CASE("the state of a feeder is that after the newest round that it has delivered") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  const feedlane_batch b = polled_batch(feeder.get(), l.get());
  std::uint64_t bytes = 0;
  CHECK(feedlane_loader_state(feeder.get(), b.token, nullptr, 0, &bytes, nullptr) == FEEDLANE_E_STATE);
  CHECK(states::info_of(states::state_of(feeder.get())).batch >= 1);
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
}
