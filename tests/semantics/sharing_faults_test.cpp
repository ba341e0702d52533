// SPDX-License-Identifier: Apache-2.0
// Shared loaders: consumers, workers and feeders that die. Nobody else loses anything, nothing comes twice.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>

#include "semantics/sharing.hpp"
#include "semantics/states.hpp"
#include "support/events.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

// Takes and notes so many batches, then dies with the last one in its hands, and those before it if `holds`.
Trainer dies_after(int count, bool holds, OverFork<Notes>& notes) {
  return [=, &notes](feedlane_loader* l, Findings& f) {
    begin(l, 0);
    for (int i = 1;; i++) {
      auto b = fresh<feedlane_batch>();
      EXPECT(f, feedlane_loader_next(l, patience_ns, &b, nullptr) == FEEDLANE_OK);
      notes->add(b.batch);
      if (i == count) (void)::raise(SIGKILL);
      if (!holds) EXPECT(f, feedlane_batch_release(l, b.token) == FEEDLANE_OK);
    }
  };
}

// Takes the rest of the epoch and notes it.
Trainer takes_all(OverFork<Notes>& notes) {
  return [&notes](feedlane_loader* l, Findings& f) {
    std::int64_t epoch = -1;
    EXPECT(f, next_epoch_of(l, &epoch) == FEEDLANE_OK);
    begin(l, epoch);
    Taken t;
    while ((t = take(l)).status == FEEDLANE_OK) notes->add(t.batch);
    EXPECT(f, t.status == FEEDLANE_END);
  };
}

std::vector<std::int64_t> every_nth(std::int64_t first, std::int64_t step, std::int64_t end) {
  std::vector<std::int64_t> all;
  for (std::int64_t k = first; k < end; k += step) all.push_back(k);
  return all;
}

bool has_consumer(feedlane_loader* feeder, std::int32_t id) {
  auto stats = fresh<feedlane_consumer_stats>();
  for (std::int32_t n = 0; feedlane_loader_get_consumer(feeder, n, &stats) == FEEDLANE_OK; n++)
    if (stats.id == id && stats.state != FEEDLANE_CONSUMER_NONE) return true;
  return false;
}

void check_killed(Consumer& c) {
  (void)c.finish();
  CHECK(WIFSIGNALED(c.wait_status()));
  CHECK(WTERMSIG(c.wait_status()) == SIGKILL);
}

// A feeder in a process of its own, at a path, with workers that report their starts. It waits for the test before it begins.
// A child of it, which has all its descriptors, outlives it.
struct OtherFeeder {
  explicit OtherFeeder(std::int32_t share = FEEDLANE_SHARE_EVERY)
      : child({start.fd(), there.fd(), over.fd(), reports.fd()}, [&, share](Findings& f) {
          Setup s(3000, 3);
          s.workers(2).fields({field("index", int64_type), field("noise", uint8_type, {99})});
          s.config.share_path = path.c_str();
          s.plan.report_fd = reports.fd();
          const Loader feeder = shared(s, share, 2).create();
          if (::fork() == 0) {
            (void)wait_readable(over.fd());
            ::_exit(0);
          }
          there.open();
          EXPECT(f, poll_until(feeder.get(), [&] { return wait_readable(start.fd(), 0); }));
          EXPECT(f, feedlane_loader_begin(feeder.get(), 0, nullptr) == FEEDLANE_OK);
          EXPECT(f, serve(feeder.get()) == FEEDLANE_END);
        }) {
    REQUIRE(wait_readable(there.fd()));
  }
  OtherFeeder(const OtherFeeder&) = delete;
  OtherFeeder& operator=(const OtherFeeder&) = delete;
  ~OtherFeeder() {
    over.open();
    (void)::unlink(path.c_str());
  }

  [[nodiscard]] Loader join() const {
    feedlane_loader* l = nullptr;
    Error e;
    const std::int32_t s = feedlane_loader_join(-1, path.c_str(), nullptr, patience_ns, &l, &e);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
    return Loader(l);
  }
  void kill() const {
    REQUIRE(::kill(child.pid(), SIGKILL) == 0);
    REQUIRE(eventually([&] { return !is_running(child.pid()); }));
  }

  const std::string path = "/tmp/feedlane-share-" + std::to_string(::getpid());
  const Gate start, there, over;
  const Reports reports;
  Child child;
};

}  // namespace

// promise: share-death-is-free, consumer-dies
TEST_CASE("every: a killed consumer is detected, the others get all batches, and its held slots are free again") {
  for (const bool holds : {false, true}) {
    CAPTURE(holds);
    Shuffled s(300);
    const Epochs expected = plain_epochs(s, 2);
    const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 3).create();
    OverFork<Notes> notes;
    Consumer dying(feeder.get(), dies_after(3, holds, notes));
    std::vector<std::unique_ptr<Consumer>> others;
    for (int i = 0; i < 2; i++)
      others.push_back(std::make_unique<Consumer>(
          feeder.get(), [&](feedlane_loader* l, Findings& f) { expect_epochs(l, expected, f); }));
    serve_epochs(feeder.get(), 2);
    finish(feeder.get(), others);
    check_killed(dying);
    CHECK(notes->all() == std::vector<std::int64_t>{0, 1, 2});
    bool is_told = false;
    for (const feedlane_event& e : events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_LEFT))
      is_told =
          is_told || std::string(e.what.text) == "consumer 0 (process " + std::to_string(dying.pid()) + ") has ended";
    CHECK(is_told);
  }
}

// promise: consumer-last-ends
TEST_CASE("when the last consumer ends during an epoch, serve fails with E_PEER_DEAD, and the next one gets the rest") {
  for (const bool is_killed : {false, true}) {
    CAPTURE(is_killed);
    Shuffled s(300);
    const std::vector<Taken> expected = plain_epochs(s, 1)[0];
    const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
    Consumer last(feeder.get(), [&](feedlane_loader* l, Findings& f) {
      begin(l, 0);
      EXPECT(f, take(l).batch == 0);
      if (is_killed) (void)::raise(SIGKILL);
    });
    begin(feeder.get(), 0);
    Error e;
    for (int i = 0; i < 2; i++) CHECK(serve(feeder.get(), &e) == FEEDLANE_E_PEER_DEAD);
    CHECK(std::string(e.text) == "no consumer is connected: call feedlane_loader_open_consumer");
    if (is_killed) check_killed(last);
    else CHECK(last.finish() == "");
    const Loader next = join_here(feeder.get());
    begin(next.get(), 0);
    Serving serving(feeder.get(), 0);
    const std::vector<Taken> rest = take_rest(next.get());
    REQUIRE(rest.size() < expected.size());
    // Every slot was delivered to the last one at most, and one of them, which it returned, again.
    CHECK(rest.size() >= expected.size() - stats_of(feeder.get()).slots - 1);
    check_same(rest, {expected.end() - static_cast<std::ptrdiff_t>(rest.size()), expected.end()});
  }
}

// promise: share-death-is-free, consumer-child-has-descriptors
TEST_CASE("a killed consumer is detected although its child process has all its descriptors") {
  Shuffled s(300);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Gate gate;
  OverFork<Notes> notes;
  Consumer dying(feeder.get(),
                 [&](feedlane_loader* l, Findings&) {
                   begin(l, 0);
                   if (take(l).status != FEEDLANE_OK) return;
                   const pid_t child = ::fork();
                   if (child == 0) {
                     (void)wait_readable(gate.fd());
                     ::_exit(0);
                   }
                   notes->add(child);
                   (void)::raise(SIGKILL);
                 },
                 {gate.fd()});
  begin(feeder.get(), 0);
  CHECK(serve(feeder.get()) == FEEDLANE_E_PEER_DEAD);
  CHECK(count_consumers(feeder.get()) == 0);
  CHECK(is_running(static_cast<pid_t>(notes->all().at(0))));
  gate.open();
  check_killed(dying);
}

// promise: share-replacement, consumer-deal-killed
TEST_CASE("deal: the replacement of a killed consumer gets exactly the batches that the killed one had not taken") {
  for (const int after : {1, 2, 7})
    for (const bool holds : {false, true}) {
      CAPTURE(after);
      CAPTURE(holds);
      Shuffled s(120);  // 40 batches
      const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
      OverFork<Notes> notes[2];
      Consumer dying(feeder.get(), dies_after(after, holds, notes[0]), {}, place(FEEDLANE_LAG_BLOCK, 0));
      Consumer other(feeder.get(), takes_all(notes[1]), {}, place(FEEDLANE_LAG_BLOCK, 1));
      begin(feeder.get(), 0);
      Error e;
      CHECK(serve(feeder.get(), &e) == FEEDLANE_E_PEER_DEAD);
      CHECK(e.says("place 0"));
      CHECK(serve(feeder.get()) == FEEDLANE_E_PEER_DEAD);
      check_killed(dying);
      CHECK(notes[0]->all() == every_nth(0, 2, 2 * after));
      Consumer replacement(feeder.get(), takes_all(notes[0]));
      CHECK(replacement.id() == 0);
      CHECK(serve(feeder.get()) == FEEDLANE_END);
      CHECK(serve(feeder.get()) == FEEDLANE_END);
      CHECK(replacement.finish() == "");
      CHECK(other.finish() == "");
      CHECK(notes[0]->all() == every_nth(0, 2, 40));
      CHECK(notes[1]->all() == every_nth(1, 2, 40));
      check_all_returned(feeder.get());
    }
}

// promise: share-replacement
TEST_CASE("deal: if consumers are killed again and again, every batch is taken exactly once") {
  Shuffled s(180);  // 60 batches
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  OverFork<Notes> notes[2];
  begin(feeder.get(), 0);
  int deaths = 0;
  std::vector<std::unique_ptr<Consumer>> all;
  for (int id = 0; id < 2; id++)
    all.push_back(std::make_unique<Consumer>(feeder.get(), dies_after(2 + id, id == 1, notes[id]), std::vector<int>{},
                                             place(FEEDLANE_LAG_BLOCK, id)));
  for (std::int32_t status = FEEDLANE_E_PEER_DEAD; (status = serve(feeder.get())) != FEEDLANE_END;) {
    REQUIRE(status == FEEDLANE_E_PEER_DEAD);
    deaths++;
    for (int id = 0; id < 2; id++)
      if (!has_consumer(feeder.get(), id))
        all.push_back(std::make_unique<Consumer>(
            feeder.get(), deaths < 8 ? dies_after(1 + deaths % 3, deaths % 2 == 0, notes[id]) : takes_all(notes[id]),
            std::vector<int>{}, place(FEEDLANE_LAG_BLOCK, id)));
  }
  CHECK(deaths >= 8);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  for (auto& c : all) (void)c->finish();
  for (int id = 0; id < 2; id++) CHECK(notes[id]->all() == every_nth(id, 2, 60));
  check_all_returned(feeder.get());
}

// promise: share-replacement
TEST_CASE("deal: the untaken batches of a consumer that left or never joined go to the next consumer at its place") {
  Shuffled s(60);  // 20 batches
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 1).create();
  begin(feeder.get(), 0);
  (void)Place(feeder.get());  // opened, then closed
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_NONE; }));
  for (std::size_t taken = 0; taken < 20; taken += 4) {
    const Loader l = join_here(feeder.get());
    begin(l.get(), 0);
    for (std::size_t i = 0; i < 4; i++) CHECK(difference(polled(feeder.get(), l.get()), expected[taken + i]) == "");
    if (taken == 16) CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_END);
  }
}

// promise: share-worker-dies
TEST_CASE("every consumer gets all batches although a worker is killed") {
  Setup s(60, 3);
  s.workers(2);
  s.plan.end_index = 20;
  s.plan.end_attempts = 1;
  s.plan.end_signal = SIGKILL;
  const Epochs expected = plain_epochs(s, 1);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  std::vector<std::unique_ptr<Consumer>> all;
  for (int i = 0; i < 2; i++)
    all.push_back(std::make_unique<Consumer>(feeder.get(),
                                             [&](feedlane_loader* l, Findings& f) { expect_epochs(l, expected, f); }));
  serve_epochs(feeder.get(), 1);
  finish(feeder.get(), all);
  CHECK(stats_of(feeder.get()).restarts == 1);
}

// promise: share-feeder-dies, feeder-killed-delivered
TEST_CASE("when the feeder is killed, consumers get the delivered batches, then E_PEER_DEAD, and its workers exit") {
  const OtherFeeder feeder;
  const Loader l = feeder.join(), idle = feeder.join();
  begin(l.get(), 0);
  begin(idle.get(), 0);
  feeder.start.open();
  std::set<std::int64_t> workers;
  while (workers.size() < 2) {
    const auto opened = feeder.reports.wait_for(Report::opened);
    REQUIRE(opened);
    workers.insert(opened->pid);
  }
  auto held = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &held, nullptr) == FEEDLANE_OK);
  const Taken before = copy_of(held);
  CHECK(take(l.get()).batch == 1);
  feeder.kill();
  std::vector<Taken> rest[2];
  for (int i = 0; i < 2; i++) {
    const Loader& of = i == 0 ? l : idle;
    Error e;
    Taken t;
    while ((t = take(of.get(), &e)).status == FEEDLANE_OK) rest[i].push_back(t);
    CHECK(t.status == FEEDLANE_E_PEER_DEAD);
    CHECK(take(of.get()).status == FEEDLANE_E_PEER_DEAD);
    CHECK(feedlane_loader_arm(of.get(), nullptr) == FEEDLANE_AGAIN);
    CHECK(feedlane_loader_poll(of.get(), nullptr) == FEEDLANE_AGAIN);
  }
  // A round goes to one after the other, and the feeder may have been killed in between.
  const std::size_t more = rest[0].size() + 2 - rest[1].size();
  REQUIRE(more <= 1);
  for (std::size_t i = 0; i < rest[1].size(); i++) CHECK(rest[1][i].batch == static_cast<std::int64_t>(i));
  rest[0].resize(rest[0].size() - std::min(more, rest[0].size()));
  if (rest[1].size() >= 2) check_same(rest[0], {rest[1].begin() + 2, rest[1].end()});
  CHECK(difference(copy_of(held), before) == "");
  std::uint64_t bytes = 0;
  CHECK(feedlane_loader_state(l.get(), 0, nullptr, 0, &bytes, nullptr) == FEEDLANE_E_PEER_DEAD);
  CHECK(feedlane_batch_release(l.get(), held.token) == FEEDLANE_OK);
  for (const std::int64_t pid : workers) CHECK(eventually([&] { return !is_running(static_cast<pid_t>(pid)); }));
}

// promise: share-feeder-dies, feeder-killed-asleep
TEST_CASE("when the feeder is killed, next of a sleeping consumer and a later join fail with E_PEER_DEAD") {
  const OtherFeeder feeder;
  const Loader l = feeder.join();
  begin(l.get(), 0);
  std::atomic<pid_t> sleeper{0};
  std::int32_t status = FEEDLANE_OK;
  std::thread thread([&] {
    sleeper = ::gettid();
    status = take(l.get()).status;
  });
  CHECK(eventually([&] { return sleeper != 0 && is_asleep(sleeper); }));
  feeder.kill();
  thread.join();
  CHECK(status == FEEDLANE_E_PEER_DEAD);
  feedlane_loader* other = nullptr;
  CHECK(feedlane_loader_join(-1, feeder.path.c_str(), nullptr, patience_ns, &other, nullptr) == FEEDLANE_E_PEER_DEAD);
}

// promise: share-feeder-dies, feeder-destroys
TEST_CASE("when the feeder is destroyed, consumers get the delivered batches, then E_PEER_DEAD") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).waiting >= 3; }));
  const std::uint64_t delivered = consumer_of(feeder.get(), 0).delivered;
  feeder.reset();
  std::vector<Taken> taken;
  Taken t;
  while ((t = take(l.get())).status == FEEDLANE_OK) taken.push_back(t);
  CHECK(t.status != FEEDLANE_TIMEOUT);
  CHECK(taken.size() >= delivered);
  check_same(taken, {expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(taken.size())});
  for (int i = 0; i < 2 && t.status != FEEDLANE_E_PEER_DEAD; i++) {
    begin(l.get(), i + 1);
    t = take(l.get());
  }
  CHECK(t.status == FEEDLANE_E_PEER_DEAD);
}
