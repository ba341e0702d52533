// SPDX-License-Identifier: Apache-2.0
// Shared loaders: how consumers come, by a descriptor or by a path, early or late, and which epochs they may begin.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string>

#include "semantics/sharing.hpp"
#include "support/succession.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

// A path for a socket, in a folder of its own.
struct SocketPath {
  SocketPath() {
    REQUIRE(::mkdtemp(folder) != nullptr);
    path = std::string(folder) + "/feeder";
  }
  SocketPath(const SocketPath&) = delete;
  SocketPath& operator=(const SocketPath&) = delete;
  ~SocketPath() {
    (void)::unlink(path.c_str());
    (void)::rmdir(folder);
  }
  [[nodiscard]] bool exists() const {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0;
  }
  char folder[32] = "/tmp/feedlane-share-XXXXXX";
  std::string path;
};

struct Joined {
  std::int32_t status = FEEDLANE_OK;
  std::string argument;
  Loader loader;
};

// Joins by the path in a thread, while this one polls the feeder.
Joined join_path(feedlane_loader* feeder, const std::string& path, const feedlane_consumer_config* config) {
  Joined joined;
  std::atomic<bool> is_done{false};
  std::thread thread([&] {
    feedlane_loader* l = nullptr;
    Error e;
    joined.status = feedlane_loader_join(-1, path.c_str(), config, patience_ns, &l, &e);
    joined.argument = e.argument;
    joined.loader.reset(l);
    is_done = true;
  });
  CHECK(poll_until(feeder, [&] { return is_done.load(); }));
  thread.join();
  return joined;
}

std::int64_t next_epoch_of(feedlane_loader* l) {
  std::int64_t epoch = -1;
  CHECK(feedlane::test::next_epoch_of(l, &epoch) == FEEDLANE_OK);
  return epoch;
}

void check_begin_refused(feedlane_loader* l, std::int64_t epoch, std::int64_t needed) {
  Error e;
  CHECK(feedlane_loader_begin(l, epoch, &e) == FEEDLANE_E_STATE);
  CHECK(std::string(e.argument) == "epoch");
  CHECK(e.found == epoch);
  CHECK(e.needed == needed);
}

}  // namespace

// promise: share-join
TEST_CASE("a process may join by the feeder's path, and gets the place that it asks for") {
  const SocketPath at;
  Shuffled s;
  const Epochs expected = plain_epochs(s, 1);
  s.config.share_path = at.path.c_str();
  Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  CHECK(at.exists());
  std::vector<std::unique_ptr<Child>> all;
  for (const std::size_t id : {1U, 0U})
    all.push_back(std::make_unique<Child>(std::vector<int>{}, [&, id](Findings& f) {
      const feedlane_consumer_config config = place(FEEDLANE_LAG_BLOCK, static_cast<std::int32_t>(id));
      feedlane_loader* l = nullptr;
      EXPECT(f, feedlane_loader_join(-1, at.path.c_str(), &config, patience_ns, &l, nullptr) == FEEDLANE_OK);
      expect_epochs(l, {dealt(expected[0], id, 2)}, f);
      EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
    }));
  CHECK(poll_until(feeder.get(), [&] {
    auto stats = fresh<feedlane_consumer_stats>();
    int attached = 0;
    for (std::int32_t n = 0; feedlane_loader_get_consumer(feeder.get(), n, &stats) == FEEDLANE_OK; n++)
      attached += stats.state == FEEDLANE_CONSUMER_ATTACHED ? 1 : 0;
    return attached == 2;
  }));
  serve_epochs(feeder.get(), 1);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  for (const auto& c : all) CHECK(c->finish() == "");
  feeder.reset();
  CHECK_FALSE(at.exists());
}

// promise: consumer-successor
TEST_CASE("a killed consumer's place goes to one that connects before the feeder sees its end") {
  const SocketPath at;
  Shuffled s;
  s.config.share_path = at.path.c_str();
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 1).create();
  const auto join = [&](Findings& f, const auto& then) {
    const feedlane_consumer_config config = place(FEEDLANE_LAG_BLOCK, 0);
    feedlane_loader* l = nullptr;
    Error e;
    f.expect(feedlane_loader_join(-1, at.path.c_str(), &config, patience_ns, &l, &e) == FEEDLANE_OK, e.text, __LINE__);
    then();
    EXPECT(f, feedlane_loader_destroy(&l) == FEEDLANE_OK);
  };
  check_succession(join, [&] {
    (void)feedlane_loader_poll(feeder.get(), nullptr);
    return feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_OK;
  });
}

// promise: share-join
TEST_CASE("a join by path that gets no place fails with the reason, and without a feeder with E_PEER_DEAD") {
  const SocketPath at;
  Shuffled s;
  s.config.share_path = at.path.c_str();
  Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  const Joined first = join_path(feeder.get(), at.path, nullptr);
  CHECK(first.status == FEEDLANE_OK);
  const std::pair<feedlane_consumer_config, const char*> bad[] = {{place(FEEDLANE_LAG_BLOCK, 0), "config.id"},
                                                                  {place(FEEDLANE_LAG_BLOCK, 2), "config.id"},
                                                                  {place(FEEDLANE_LAG_OBSERVE), "config.lag"},
                                                                  {place(3), "config.lag"},
                                                                  {place(1, -1, -1), "config.evict_after_ns"}};
  for (const auto& one : bad) {
    const feedlane_consumer_config& config = one.first;
    const char* const argument = one.second;
    CAPTURE(std::string(argument));
    const Joined refused = join_path(feeder.get(), at.path, &config);
    CHECK(refused.status == FEEDLANE_E_ARGUMENT);
    CHECK(refused.argument == argument);
    CHECK(refused.loader == nullptr);
  }
  const Joined second = join_path(feeder.get(), at.path, nullptr);
  CHECK(second.status == FEEDLANE_OK);
  CHECK(join_path(feeder.get(), at.path, nullptr).status == FEEDLANE_E_LIMIT);
  std::int32_t id = -1, fd = -1;
  CHECK(feedlane_loader_open_consumer(feeder.get(), nullptr, &id, &fd, nullptr) == FEEDLANE_E_LIMIT);
  feeder.reset();
  feedlane_loader* l = nullptr;
  CHECK(feedlane_loader_join(-1, at.path.c_str(), nullptr, patience_ns, &l, nullptr) == FEEDLANE_E_PEER_DEAD);
  CHECK(l == nullptr);
}

// promise: share-late-join
TEST_CASE("every: a consumer that joins in mid-epoch starts with the next batch that is delivered") {
  Shuffled s;
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader first = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(first.get(), 0);
  for (std::size_t i = 0; i < 5; i++) CHECK(difference(polled(feeder.get(), first.get()), expected[i]) == "");
  const Loader late = join_here(feeder.get());
  const std::uint64_t delivered = consumer_of(feeder.get(), 0).delivered;
  REQUIRE(delivered < expected.size());
  CHECK(next_epoch_of(late.get()) == 0);
  begin(late.get(), 0);
  for (std::size_t i = 5; i < expected.size(); i++) {
    CHECK(difference(polled(feeder.get(), first.get()), expected[i]) == "");
    if (i < delivered) continue;
    CHECK(difference(polled(feeder.get(), late.get()), expected[i]) == "");
  }
  CHECK(polled(feeder.get(), first.get()).status == FEEDLANE_END);
  CHECK(polled(feeder.get(), late.get()).status == FEEDLANE_END);
}

// promise: share-late-join
TEST_CASE("a consumer that joins late at a place gets every batch since open_consumer") {
  for (const std::int32_t share : {FEEDLANE_SHARE_EVERY, FEEDLANE_SHARE_DEAL}) {
    CAPTURE(share);
    Shuffled s(20);
    const std::vector<Taken> expected = plain_epochs(s, 1)[0];
    const Loader feeder = shared(s, share, 1).create();
    Place late(feeder.get());
    begin(feeder.get(), 0);
    CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).waiting >= 3; }));
    CHECK(consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_OFFERED);
    CHECK(consumer_of(feeder.get(), 0).pid == 0);
    const Loader l = join(late.release());
    begin(l.get(), 0);
    std::vector<Taken> taken;
    for (Taken t = polled(feeder.get(), l.get()); t.status == FEEDLANE_OK; t = polled(feeder.get(), l.get()))
      taken.push_back(t);
    check_same(taken, expected);
    CHECK(consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_ATTACHED);
  }
}

// promise: share-late-join, consumer-never-joins
TEST_CASE("a place that no consumer joins within start_timeout_ns is closed when the feeder lacks its slots") {
  Shuffled s;
  s.config.start_timeout_ns = 2'000'000'000;  // the worker's start has to fit in, too
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  Place nobody(feeder.get());
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  for (const Taken& e : expected) CHECK(difference(polled(feeder.get(), l.get()), e) == "");
  CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_END);
  CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED).size() == 1);
  CHECK(count_consumers(feeder.get()) == 1);
  feedlane_loader* late = nullptr;
  Error e;
  CHECK(feedlane_loader_join(nobody.release(), nullptr, nullptr, patience_ns, &late, &e) == FEEDLANE_E_HUNG);
  CHECK(e.says("the feeder has closed place 0"));
}

// promise: share-join
TEST_CASE("a join that the feeder does not answer in time returns TIMEOUT, and its place is free again") {
  Shuffled s(60);  // 20 batches
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 1).create();
  begin(feeder.get(), 0);
  Place place(feeder.get());
  CHECK(Child({place.fd}, [fd = place.fd](Findings& f) {
          feedlane_loader* l = nullptr;
          EXPECT(f, feedlane_loader_join(fd, nullptr, nullptr, 1'000'000, &l, nullptr) == FEEDLANE_TIMEOUT);
          EXPECT(f, l == nullptr);
        }).finish() == "");
  (void)::close(place.release());
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).state == FEEDLANE_CONSUMER_NONE; }));
  const Loader l = join_here(feeder.get());
  begin(l.get(), 0);
  std::vector<Taken> taken;
  for (Taken t = polled(feeder.get(), l.get()); t.status == FEEDLANE_OK; t = polled(feeder.get(), l.get()))
    taken.push_back(t);
  check_same(taken, expected);
}

// promise: share-join
TEST_CASE("a place takes one consumer, and a join by a descriptor that leads to no feeder fails with E_CORRUPT") {
  Shuffled s;
  Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  Place place(feeder.get());
  const int copy = ::dup(place.fd);
  const Loader l = join(place.release());
  feedlane_loader* other = nullptr;
  CHECK(feedlane_loader_join(copy, nullptr, nullptr, 1'000'000, &other, nullptr) == FEEDLANE_TIMEOUT);
  CHECK(other == nullptr);
  CHECK(::fcntl(copy, F_GETFD) == -1);

  int pair[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  REQUIRE(::send(pair[1], "hello", 5, 0) == 5);
  CHECK(feedlane_loader_join(pair[0], nullptr, nullptr, patience_ns, &other, nullptr) == FEEDLANE_E_CORRUPT);
  CHECK(::fcntl(pair[0], F_GETFD) == -1);
  (void)::close(pair[1]);

  Place nobody(feeder.get());
  const int fd = nobody.release();
  feeder.reset();
  CHECK(feedlane_loader_join(fd, nullptr, nullptr, patience_ns, &other, nullptr) == FEEDLANE_E_PEER_DEAD);
  CHECK(other == nullptr);
}

// promise: share-epochs
TEST_CASE(
    "a consumer can begin each epoch only once and not before the feeder begins it, and its next() skips earlier "
    "epochs") {
  Shuffled s(15);
  const Epochs expected = plain_epochs(s, 8);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader other = join_here(feeder.get());
  begin(other.get(), 100);  // takes nothing, and holds nobody up
  serve_epochs(feeder.get(), 3);
  begin(feeder.get(), 3);
  const Loader l = join_here(feeder.get());
  CHECK(next_epoch_of(l.get()) == 3);
  check_begin_refused(l.get(), 2, 3);
  begin(l.get(), 5);
  CHECK(next_epoch_of(l.get()) == 6);
  check_begin_refused(l.get(), 5, 6);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  serve_epochs(feeder.get(), 1, 4);
  CHECK(take(l.get(), nullptr, 0).status == FEEDLANE_TIMEOUT);
  Serving serving(feeder.get(), 3, 5);
  check_same(take_rest(l.get()), expected[5]);
  check_same(take_epoch(l.get(), 6), expected[6]);
  check_same(take_epoch(l.get(), 7), expected[7]);
  CHECK(serving.finish() == FEEDLANE_END);
}

// promise: share-later-epoch, feeder-begins-early
TEST_CASE(
    "when the feeder begins a later epoch, next fails with E_STATE and that epoch, which the consumer gets complete") {
  Shuffled s;
  const Epochs expected = plain_epochs(s, 2);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(polled(feeder.get(), l.get()).status == FEEDLANE_OK);
  begin(feeder.get(), 1);
  for (int i = 0; i < 2; i++) {
    Error e;
    Taken t;
    while ((t = polled(feeder.get(), l.get(), &e)).status == FEEDLANE_OK) CHECK(t.epoch == 0);
    CHECK(t.status == FEEDLANE_E_STATE);
    CHECK(std::string(e.argument) == "epoch");
    CHECK(e.needed == 1);
  }
  begin(l.get(), 1);
  std::vector<Taken> taken;
  for (Taken t = polled(feeder.get(), l.get()); t.status == FEEDLANE_OK; t = polled(feeder.get(), l.get()))
    taken.push_back(t);
  check_same(taken, expected[1]);
}

// promise: share-later-epoch, feeder-stops-epoch
TEST_CASE(
    "when the feeder stops an epoch, next fails with E_STATE after the delivered batches; a later epoch is complete") {
  Shuffled s;
  const Epochs expected = plain_epochs(s, 2);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(poll_until(feeder.get(), [&] { return consumer_of(feeder.get(), 0).waiting >= 3; }));
  CHECK(feedlane_loader_stop(feeder.get(), nullptr) == FEEDLANE_OK);
  const std::uint64_t delivered = consumer_of(feeder.get(), 0).delivered;
  for (std::size_t i = 0; i < delivered; i++) CHECK(difference(take(l.get()), expected[0][i]) == "");
  Error e;
  CHECK(take(l.get(), &e).status == FEEDLANE_E_STATE);
  CHECK(e.says("stopped"));
  Serving serving(feeder.get(), 1, 1);
  check_same(take_epoch(l.get(), 1), expected[1]);
  CHECK(serving.finish() == FEEDLANE_END);
}

// promise: share-repeats-end
TEST_CASE(
    "after END, a consumer's next() returns END until the consumer calls begin(), whatever epoch the feeder is in") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Loader l = join_here(feeder.get());
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  while (polled(feeder.get(), l.get()).status == FEEDLANE_OK) {
  }
  CHECK(take(l.get()).status == FEEDLANE_END);
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  begin(feeder.get(), 1);
  CHECK(take(l.get()).status == FEEDLANE_END);
}

// promise: share-places-listed
TEST_CASE("serve waits for the first consumer, and fails with E_PEER_DEAD while an epoch has no consumer") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  CHECK(feedlane_loader_serve(feeder.get(), 1'000'000, nullptr) == FEEDLANE_TIMEOUT);
  Loader l = join_here(feeder.get());
  CHECK(serve(feeder.get()) == FEEDLANE_END);
  l.reset();
  begin(feeder.get(), 0);
  for (int i = 0; i < 2; i++) CHECK(serve(feeder.get()) == FEEDLANE_E_PEER_DEAD);
  CHECK(eventually([&] {
    CHECK(feedlane_loader_poll(feeder.get(), nullptr) == FEEDLANE_E_PEER_DEAD);
    return feedlane_loader_arm(feeder.get(), nullptr) == FEEDLANE_OK;  // its workers may be making batches still
  }));
  l = join_here(feeder.get());
  begin(l.get(), 0);
  CHECK(polled(feeder.get(), l.get()).batch == 0);
}

// promise: share-places-listed
TEST_CASE("deal: the statistics of a place without a consumer have the number of batches that wait for it") {
  Shuffled s;
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  CHECK(consumer_of(feeder.get(), 1).state == FEEDLANE_CONSUMER_NONE);
  const Loader l = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 1));
  begin(feeder.get(), 0);
  begin(l.get(), 0);
  CHECK(polled(feeder.get(), l.get()).batch == 1);
  const feedlane_consumer_stats there = consumer_of(feeder.get(), 0), missing = consumer_of(feeder.get(), 1);
  CHECK(there.id == 1);
  CHECK(there.state == FEEDLANE_CONSUMER_ATTACHED);
  CHECK(there.pid == ::getpid());
  CHECK(there.delivered >= 1);
  CHECK(missing.id == 0);
  CHECK(missing.state == FEEDLANE_CONSUMER_NONE);
  CHECK(missing.waiting == there.delivered);
  auto stats = fresh<feedlane_consumer_stats>();
  CHECK(feedlane_loader_get_consumer(feeder.get(), 2, &stats) == FEEDLANE_END);
}

// promise: share-late-join
TEST_CASE("deal: a consumer gets all batches that were kept for its place, also more than fit into a delivery ring") {
  auto failing = fresh<feedlane_dataset>();  // failed batches hold no slots, so that any number can wait
  failing.get = [](void*, const feedlane_row*, feedlane_error*) -> std::int32_t { return FEEDLANE_E_SAMPLE; };
  Setup s(400, 1);
  s.forked(1, failing).fields({field("index", int64_type)});
  const std::vector<Taken> expected = plain_epochs(s, 1)[0];
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  const Loader first = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 0));
  begin(feeder.get(), 0);
  const auto take_epoch = [&](feedlane_loader* l) {
    begin(l, 0);
    std::vector<Taken> all;
    for (;;) {
      Error e;
      Taken t = polled(feeder.get(), l, &e);
      if (t.status == FEEDLANE_END) return all;
      t.epoch = e.epoch;
      t.batch = e.batch;
      t.sample = e.sample;
      all.push_back(std::move(t));
    }
  };
  check_same(take_epoch(first.get()), dealt(expected, 0, 2));
  const Loader second = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 1));
  check_same(take_epoch(second.get()), dealt(expected, 1, 2));
}
