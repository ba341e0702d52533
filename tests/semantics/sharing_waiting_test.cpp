// SPDX-License-Identifier: Apache-2.0
// Shared loaders: timeouts, interruptions, signals, closed handles, and event loops, on both sides.
#include <doctest/doctest.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <ctime>

#include "semantics/sharing.hpp"
#include "support/events.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

// A thread in next, asleep.
class Waiting {
 public:
  explicit Waiting(feedlane_loader* l)
      : thread_([this, l] {
          number_ = ::gettid();
          status_ = feedlane_loader_next(l, patience_ns, &batch_, nullptr);
        }) {
    CHECK(eventually([&] { return number_ != 0 && is_asleep(number_); }));
  }
  std::int32_t finish() {
    thread_.join();
    return status_;
  }
  [[nodiscard]] pthread_t handle() { return thread_.native_handle(); }
  [[nodiscard]] const feedlane_batch& batch() const { return batch_; }

 private:
  std::atomic<pid_t> number_{0};
  std::int32_t status_ = FEEDLANE_OK;
  feedlane_batch batch_ = fresh<feedlane_batch>();
  std::thread thread_;
};

void ignore(int) {}

int fd_of(feedlane_loader* l) {
  std::int32_t fd = -1;
  CHECK(wait_fd_of(l, &fd) == FEEDLANE_OK);
  return fd;
}

// Polls until the host may sleep: workers may be making batches still.
bool sleeps(feedlane_loader* feeder) {
  return eventually([&] {
    CHECK(feedlane_loader_poll(feeder, nullptr) == FEEDLANE_OK);
    return feedlane_loader_arm(feeder, nullptr) == FEEDLANE_OK;
  });
}

}  // namespace

// promise: share-waits-end
TEST_CASE("a consumer's next and the feeder's serve return TIMEOUT in time, and no batch is lost") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(l.get(), 0);
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  CHECK(take(l.get(), nullptr, 2'000'000).status == FEEDLANE_TIMEOUT);
  begin(feeder.get(), 0);
  std::int32_t status = FEEDLANE_OK;
  while ((status = feedlane_loader_serve(feeder.get(), 1'000'000, nullptr)) == FEEDLANE_TIMEOUT)
    if (stats_of(feeder.get()).slots_free == 0) break;
  CHECK(status == FEEDLANE_TIMEOUT);
  CHECK(feedlane_loader_serve(feeder.get(), 0, nullptr) == FEEDLANE_TIMEOUT);
  Serving serving(feeder.get(), 0);
  check_same(take_rest(l.get()), expected);
}

// promise: share-waits-end
TEST_CASE("an interrupt from another thread ends a consumer's next or the feeder's serve once, and no batch is lost") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(l.get(), 0);
  Waiting waiting(l.get());
  CHECK(feedlane_loader_interrupt(l.get()) == FEEDLANE_OK);
  CHECK(waiting.finish() == FEEDLANE_INTERRUPTED);
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  CHECK(feedlane_loader_interrupt(feeder.get()) == FEEDLANE_OK);
  begin(feeder.get(), 0);
  CHECK(serve(feeder.get()) == FEEDLANE_INTERRUPTED);
  CHECK(polled(feeder.get(), l.get()).batch == 0);
  CHECK(feedlane_loader_interrupt(l.get()) == FEEDLANE_OK);
  CHECK(take(l.get()).status == FEEDLANE_INTERRUPTED);
  Serving serving(feeder.get(), 0);
  check_same(take_rest(l.get()), {expected.begin() + 1, expected.end()});
}

// promise: share-waits-end
TEST_CASE("a signal to a consumer's waiting thread ends the wait with INTERRUPTED") {
  struct sigaction action {
  }, before{};
  action.sa_handler = ignore;
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(l.get(), 0);
  Waiting waiting(l.get());
  CHECK(::pthread_kill(waiting.handle(), SIGUSR1) == 0);
  CHECK(waiting.finish() == FEEDLANE_INTERRUPTED);
  (void)::sigaction(SIGUSR1, &before, nullptr);
  begin(feeder.get(), 0);
  CHECK(polled(feeder.get(), l.get()).batch == 0);
}

// promise: share-waits-end
TEST_CASE(
    "close from another thread ends a consumer's wait with E_STATE, frees its place and keeps held batches valid") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  const feedlane_batch b = polled_batch(feeder.get(), l.get());
  while (take(l.get(), nullptr, 0).status == FEEDLANE_OK) {
  }
  Waiting waiting(l.get());
  CHECK(feedlane_loader_close(l.get()) == FEEDLANE_OK);
  CHECK(waiting.finish() == FEEDLANE_E_STATE);
  CHECK(take(l.get()).status == FEEDLANE_E_STATE);
  CHECK(feedlane_loader_begin(l.get(), 1, nullptr) == FEEDLANE_E_STATE);
  CHECK(difference(copy_of(b), expected[0]) == "");
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_LEFT; }));
  const Loader next = join_here(feeder.get());
  CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  begin(next.get(), 0);
  CHECK(polled(feeder.get(), next.get()).status == FEEDLANE_OK);
}

// promise: share-leave
TEST_CASE("a consumer that is freed with its last reference leaves its place without waiting") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  feedlane_loader* l = join_here(feeder.get()).release();
  CHECK(feedlane_loader_ref(l) == FEEDLANE_OK);
  CHECK(feedlane_loader_unref(l) == FEEDLANE_OK);
  CHECK(count_consumers(feeder.get()) == 1);
  CHECK(feedlane_loader_unref(l) == FEEDLANE_OK);
  CHECK(poll_until(feeder.get(), [&] { return count_consumers(feeder.get()) == 0; }));
}

// promise: share-event-loops
TEST_CASE("consumer and feeder can run in event loops with poll, arm and the descriptor until END") {
  Shuffled s;
  const Epochs expected = plain_epochs(s, 2);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Consumer c(feeder.get(), [&](feedlane_loader* l, Findings& f) {
    const int fd = fd_of(l);
    for (std::int64_t epoch = 0; epoch < 2; epoch++) {
      begin(l, epoch);
      std::vector<Taken> taken;
      for (;;) {
        const std::int32_t ready = feedlane_loader_poll(l, nullptr);
        if (ready == FEEDLANE_AGAIN) {
          Taken t = take(l, nullptr, 0);
          if (t.status == FEEDLANE_END) break;
          EXPECT(f, t.status == FEEDLANE_OK || t.status == FEEDLANE_TIMEOUT);
          if (t.status == FEEDLANE_OK) taken.push_back(std::move(t));
          continue;
        }
        EXPECT(f, ready == FEEDLANE_OK);
        if (feedlane_loader_arm(l, nullptr) == FEEDLANE_OK && !wait_readable(fd))
          return f.expect(false, "nothing came", __LINE__);
      }
      EXPECT(f, feedlane_loader_poll(l, nullptr) == FEEDLANE_AGAIN);  // END once more
      EXPECT(f, feedlane_loader_arm(l, nullptr) == FEEDLANE_AGAIN);
      expect_same(taken, expected[static_cast<std::size_t>(epoch)], f);
    }
  });
  const int fd = fd_of(feeder.get());
  for (std::int64_t epoch = 0; epoch < 2; epoch++) {
    begin(feeder.get(), epoch);
    for (;;) {
      const std::int32_t s2 = feedlane_loader_poll(feeder.get(), nullptr);
      if (s2 == FEEDLANE_AGAIN) break;
      REQUIRE(s2 == FEEDLANE_OK);
      if (feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_OK) REQUIRE(wait_readable(fd));
    }
    CHECK(feedlane_loader_serve(feeder.get(), 0, nullptr) == FEEDLANE_END);
  }
  while (count_consumers(feeder.get()) != 0) {
    CHECK(feedlane_loader_poll(feeder.get(), nullptr) >= 0);
    if (feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_OK) REQUIRE(wait_readable(fd));
  }
  CHECK(c.finish() == "");
}

// promise: share-event-loops
TEST_CASE("after an epoch a feeder in an event loop sleeps until a consumer leaves") {
  Shuffled s;
  s.config.keep_workers = 0;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const int feeder_fd = fd_of(feeder.get());
  Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  while (polled(feeder.get(), l.get()).status == FEEDLANE_OK) continue;
  CHECK(feedlane_loader_serve(feeder.get(), 0, nullptr) == FEEDLANE_END);
  const auto sleep = [&] { return sleeps(feeder.get()); };
  // Workers of an epoch that is over end.
  const std::int64_t before = cpu_ns();
  constexpr std::int64_t wait_ns = 300'000'000;
  REQUIRE(sleep());
  while (wait_readable(feeder_fd, wait_ns)) REQUIRE(sleep());
  CHECK(cpu_ns() - before < wait_ns / 10);
  l.reset();
  CHECK(wait_readable(feeder_fd));
  CHECK(poll_until(feeder.get(), [&] { return count_consumers(feeder.get()) == 0; }));
}

// promise: share-event-loops
TEST_CASE("a consumer's message between a feeder's poll and arm makes arm return AGAIN") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Place place_of_late(feeder.get());
  CHECK(sleeps(feeder.get()));
  const Loader l = join(place_of_late.release());
  CHECK(feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_ATTACHED; }));
}

// promise: share-event-loops
TEST_CASE("arm returns AGAIN once if another call of the feeder handled a message since poll") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  Place first(feeder.get()), second(feeder.get());
  const auto sleep = [&] { return sleeps(feeder.get()); };
  CHECK(sleep());
  const Loader l = join(first.release());
  CHECK(consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_ATTACHED);
  CHECK(feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(sleep());
  const Loader other = join(second.release());
  std::int32_t third = -1, third_fd = -1;
  CHECK(feedlane_loader_open_consumer(feeder.get(), nullptr, &third, &third_fd, nullptr) == FEEDLANE_E_LIMIT);
  CHECK(feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_AGAIN);
  CHECK(sleep());
  begin(feeder.get(), 0);
  CHECK(feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_AGAIN);
}

// promise: share-event-loops
TEST_CASE("serve sleeps while it waits, also right after begin or open_consumer") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  constexpr std::int64_t wait_ns = 300'000'000;
  const auto serves_asleep = [&] {
    const std::int64_t before = cpu_ns();
    CHECK(feedlane_loader_serve(feeder.get(), wait_ns, nullptr) == FEEDLANE_TIMEOUT);
    return cpu_ns() - before < wait_ns / 3;
  };
  Place first(feeder.get());
  const Place second(feeder.get());
  CHECK(serves_asleep());
  const Loader l = join(first.release());
  begin(feeder.get(), 0);
  CHECK(serves_asleep());
}

// promise: share-event-loops
TEST_CASE("the feeder's descriptor becomes readable if another call handles a message while the host sleeps") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const int feeder_fd = fd_of(feeder.get());
  Place place_of_late(feeder.get());
  CHECK(sleeps(feeder.get()));
  const Loader l = join(place_of_late.release());
  CHECK(consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_ATTACHED);
  CHECK(wait_readable(feeder_fd, 0));
}

// promise: share-event-loops
TEST_CASE("a feeder's list of consumers is a snapshot, renewed only when the list is next read from its start") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader first = join_here(feeder.get());
  const Loader second = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(first.get(), 0);
  const feedlane_batch b = polled_batch(feeder.get(), first.get());
  CHECK(feedlane_loader_close(first.get()) == FEEDLANE_OK);
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_LEFT; }));
  // With its last batch it is gone, and the second one is number 0.
  CHECK(feedlane_batch_release(first.get(), b.token) == FEEDLANE_OK);
  CHECK(consumer_of(feeder.get(), 1).id == 1);
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).id == 1; }));
  CHECK(count_consumers(feeder.get()) == 1);
}

// promise: share-event-loops
TEST_CASE("a feeder whose serve failed because no consumer is attached sleeps until one joins") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const std::string path = "/tmp/feedlane-waiting-" + std::to_string(::getpid());
  s.config.share_path = path.c_str();
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const int feeder_fd = fd_of(feeder.get());
  begin(feeder.get(), 0);
  CHECK(serve(feeder.get()) == FEEDLANE_E_PEER_DEAD);
  REQUIRE(eventually([&] {  // workers are starting
    CHECK(feedlane_loader_poll(feeder.get(), nullptr) == FEEDLANE_E_PEER_DEAD);
    return feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_OK && !wait_readable(feeder_fd, 50'000'000);
  }));
  std::vector<Taken> taken;
  std::thread joining([&] {
    feedlane_loader* l = nullptr;
    if (feedlane_loader_join(-1, path.c_str(), nullptr, patience_ns, &l, nullptr) != FEEDLANE_OK) return;
    taken = take_epoch(l, 0);
    (void)feedlane_loader_destroy(&l);
  });
  bool is_told = wait_readable(feeder_fd);
  CHECK(is_told);
  std::int32_t status = FEEDLANE_E_PEER_DEAD;
  while (is_told && (status = serve(feeder.get())) == FEEDLANE_E_PEER_DEAD)
    is_told = feedlane_loader_arm(feeder.get(), nullptr) != FEEDLANE_OK || wait_readable(feeder_fd);
  CHECK(status == FEEDLANE_END);
  joining.join();
  check_same(taken, expected);
}

// promise: share-event-loops
TEST_CASE("a feeder that lacked slots before sleeps while it waits for a slow worker") {
  Setup s(300, 3);
  const Gate gate;
  s.workers(1);
  s.plan.gate_fd = gate.fd();
  s.plan.gate_index = 3 * 20;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const auto slots = static_cast<std::size_t>(stats_of(feeder.get()).slots);
  REQUIRE(slots <= 20);
  const Loader l = join_here(feeder.get(), place(FEEDLANE_LAG_EVICT, 0, 500'000'000));
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  for (std::size_t i = slots; i < 20; i++) CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_OK);
  std::vector<feedlane_batch> held;
  while (held.size() < slots) held.push_back(polled_batch(feeder.get(), l.get()));
  CHECK(feedlane_loader_poll(feeder.get(), nullptr) == FEEDLANE_OK);
  // The worker begins the batch that waits for the gate.
  for (const feedlane_batch& b : held) CHECK(feedlane_batch_release(l.get(), b.token) == FEEDLANE_OK);
  const std::int64_t before = cpu_ns();
  constexpr std::int64_t wait_ns = 1'500'000'000;
  CHECK(feedlane_loader_serve(feeder.get(), wait_ns, nullptr) == FEEDLANE_TIMEOUT);
  CHECK(cpu_ns() - before < wait_ns / 10);
  CHECK(consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_ATTACHED);
  gate.open();
  for (int i = 0; i < 80; i++) CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_OK);
  CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_END);
}

// promise: share-event-loops
TEST_CASE("a consumer that waits for its feeder sleeps, and so does a feeder that waits for its consumer") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(l.get(), 0);
  const std::int64_t wait_ns = 300'000'000;
  std::int64_t before = cpu_ns();
  CHECK(take(l.get(), nullptr, wait_ns).status == FEEDLANE_TIMEOUT);
  CHECK(cpu_ns() - before < wait_ns / 10);
  begin(feeder.get(), 0);
  CHECK(poll_until(feeder.get(), [&] { return stats_of(feeder.get()).slots_free == 0; }));
  before = cpu_ns();
  CHECK(feedlane_loader_serve(feeder.get(), wait_ns, nullptr) == FEEDLANE_TIMEOUT);
  CHECK(cpu_ns() - before < wait_ns / 10);
}

// promise: share-event-loops
TEST_CASE("a feeder in an event loop that lacks a free slot is woken when a slot is returned") {
  Shuffled s(200);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const int feeder_fd = fd_of(feeder.get());
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(feedlane_loader_serve(feeder.get(), 0, nullptr) == FEEDLANE_TIMEOUT);  // it waits for workers, not for returns
  CHECK(poll_until(feeder.get(), [&] {
    const feedlane_stats stats = stats_of(feeder.get());
    // All are made, too: a result that is still to come would wake it.
    return stats.slots_free == 0 && worker_of(feeder.get(), 0).tasks + worker_of(feeder.get(), 1).tasks == stats.slots;
  }));
  auto batch = fresh<feedlane_batch>();
  REQUIRE(feedlane_loader_next(l.get(), patience_ns, &batch, nullptr) == FEEDLANE_OK);
  REQUIRE(sleeps(feeder.get()));
  CHECK(!wait_readable(feeder_fd, 0));
  CHECK(feedlane_batch_release(l.get(), batch.token) == FEEDLANE_OK);
  CHECK(wait_readable(feeder_fd));
}

// promise: share-event-loops
TEST_CASE("a feeder in an event loop is woken when a consumer's time limit expires, and evicts the consumer") {
  Shuffled s(200);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const int feeder_fd = fd_of(feeder.get());
  const Loader l = join_here(feeder.get(), place(FEEDLANE_LAG_EVICT, -1, 200'000'000));
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(poll_until(feeder.get(), [&] { return stats_of(feeder.get()).slots_free == 0; }));
  while (events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED).empty()) {
    if (feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_OK) REQUIRE(wait_readable(feeder_fd));
    (void)feedlane_loader_poll(feeder.get(), nullptr);  // E_PEER_DEAD once it is gone
  }
}
