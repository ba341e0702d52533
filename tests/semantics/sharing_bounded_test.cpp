// SPDX-License-Identifier: Apache-2.0
// Shared loaders: what a feeder keeps for consumers that read nothing, never come or never go has a bound.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "semantics/sharing.hpp"
#include "support/events.hpp"
#include "support/few_descriptors.hpp"

using namespace feedlane::test;
using namespace feedlane::test::sharing;

namespace {

// A connection to a feeder that says nothing.
int connect_silently(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Eventfds of this process: a feeder has two for each consumer.
std::size_t count_events() {
  std::size_t count = 0;
  for (const int fd : open_descriptors()) {
    char target[64] = {};
    (void)!::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
    if (std::string(target) == "anon_inode:[eventfd]") count++;
  }
  return count;
}

}  // namespace

// promise: share-bounded, consumer-stopped-epochs
TEST_CASE("observe: a consumer that reads nothing for many epochs gets END of each of them, then the next epoch") {
  constexpr std::int64_t epochs = 120;  // more messages than a delivery ring has cells, many times
  Shuffled s(6);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 2).create();
  const Loader watcher = join_here(feeder.get(), place(FEEDLANE_LAG_OBSERVE));
  const Loader other = join_here(feeder.get());
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    begin(feeder.get(), epoch);
    begin(other.get(), epoch);
    while (polled(feeder.get(), other.get()).status == FEEDLANE_OK) {
    }
  }
  std::int64_t with_batches = 0;
  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {
    CAPTURE(epoch);
    begin(watcher.get(), epoch);
    Taken t = polled(feeder.get(), watcher.get());
    if (t.status == FEEDLANE_OK) with_batches++;
    for (; t.status == FEEDLANE_OK; t = polled(feeder.get(), watcher.get())) CHECK(t.epoch == epoch);
    CHECK(t.status == FEEDLANE_END);
    CHECK(take(watcher.get(), nullptr, 0).status == FEEDLANE_END);
  }
  CHECK(with_batches < epochs);
  begin(feeder.get(), epochs);  // only now: batches that find the watcher's ring full are missed
  begin(other.get(), epochs);
  begin(watcher.get(), epochs);
  Taken t;
  std::uint64_t batches = 0;
  for (; (t = polled(feeder.get(), watcher.get())).status == FEEDLANE_OK; batches++) {
    CHECK(t.epoch == epochs);
    CHECK(polled(feeder.get(), other.get()).status == FEEDLANE_OK);
  }
  CHECK(t.status == FEEDLANE_END);
  CHECK(batches == 2);
}

// promise: share-bounded, consumer-missing-deal
TEST_CASE("deal: begin fails with E_PEER_DEAD while more than 2^14 messages wait for a place without a consumer") {
  Setup s(8);
  s.external(1);  // makes nothing
  const Loader feeder = shared(s, FEEDLANE_SHARE_DEAL, 2).create();
  const Loader l = join_here(feeder.get(), place(FEEDLANE_LAG_BLOCK, 0));
  Error e;
  std::int64_t epoch = 0;
  while (epoch < (1 << 15) && feedlane_loader_begin(feeder.get(), epoch, &e) == FEEDLANE_OK) epoch++;
  CHECK(e.code == FEEDLANE_E_PEER_DEAD);
  CHECK(std::string(e.argument) == "config.consumers");
  CHECK(e.needed == 1 << 14);
  CHECK(epoch == (1 << 14) + 1);
  CHECK(feedlane_loader_poll(feeder.get(), nullptr) == FEEDLANE_E_PEER_DEAD);
  const Place missing(feeder.get(), place(FEEDLANE_LAG_BLOCK, 1));
  CHECK(feedlane_loader_begin(feeder.get(), epoch, &e) == FEEDLANE_OK);
}

// promise: share-bounded, consumer-never-ends
TEST_CASE("evicted consumers that never exit use a bounded number of the feeder's descriptors") {
  Setup s(300, 1);
  s.workers(1);
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  const Gate over;
  std::vector<std::unique_ptr<Consumer>> all;
  std::vector<std::size_t> events;
  begin(feeder.get(), 0);
  for (int i = 0; i < 6; i++) {
    all.push_back(std::make_unique<Consumer>(
        feeder.get(), [&](feedlane_loader*, Findings&) { (void)wait_readable(over.fd()); }, std::vector<int>{over.fd()},
        place(FEEDLANE_LAG_EVICT, -1, 1'000'000)));
    CHECK(serve(feeder.get()) == FEEDLANE_E_PEER_DEAD);
    CHECK(events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_EVICTED).size() == 1);
    events.push_back(count_events());
  }
  CHECK(events.back() == events[2]);
  over.open();
  for (const std::unique_ptr<Consumer>& c : all) CHECK(c->finish() == "");
}

// promise: share-bounded, consumer-asks-nothing
TEST_CASE("if too many connections send no request, the oldest is refused with a message, and a consumer can join") {
  const std::string path = "/tmp/feedlane-silent-" + std::to_string(::getpid());
  Setup s(8);
  s.external(1);
  s.config.share_path = path.c_str();
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  std::vector<int> silent;
  for (int i = 0; i < 65; i++) silent.push_back(connect_silently(path));
  CHECK(poll_until(feeder.get(), [&] { return wait_readable(silent[0], 0); }));
  char message[512] = {};
  CHECK(::recv(silent[0], message, sizeof message, 0) == 480);
  CHECK(std::string(message + 96).find("connect again") != std::string::npos);
  CHECK(::recv(silent[0], message, sizeof message, 0) == 0);
  CHECK_FALSE(wait_readable(silent[1], 0));
  feedlane_loader* l = nullptr;
  std::thread joining([&] { (void)feedlane_loader_join(-1, path.c_str(), nullptr, patience_ns, &l, nullptr); });
  CHECK(poll_until(feeder.get(), [&] { return count_consumers(feeder.get()) == 1; }));
  joining.join();
  CHECK(l != nullptr);
  (void)feedlane_loader_destroy(&l);
  for (const int fd : silent) (void)::close(fd);
}

// promise: descriptors-elsewhere, consumer-few-descriptors
TEST_CASE(
    "a consumer that connects by path without enough descriptors causes a warning, and joins when there are enough") {
  const std::string path = "/tmp/feedlane-scarce-" + std::to_string(::getpid());
  Setup s(8);
  s.external(1);
  s.config.share_path = path.c_str();
  const Loader feeder = shared(s, FEEDLANE_SHARE_EVERY, 1).create();
  Child consumer({}, [&](Findings& f) {
    feedlane_loader* l = nullptr;
    EXPECT(f, feedlane_loader_join(-1, path.c_str(), nullptr, patience_ns, &l, nullptr) == FEEDLANE_OK);
    (void)feedlane_loader_destroy(&l);
  });
  for (const std::size_t more : {0u, 1u, 3u}) {  // to accept it, for its two segments, for its two events
    CAPTURE(more);
    const FewDescriptors few(more);
    std::vector<feedlane_event> warnings;
    CHECK(poll_until(feeder.get(), [&] {
      warnings = events_of(feeder.get(), FEEDLANE_EVENT_WARNING);
      return !warnings.empty();
    }));
    CHECK(warnings.at(0).what.os_errno == EMFILE);
    CHECK(count_consumers(feeder.get()) == 0);
  }
  CHECK(poll_until(feeder.get(), [&] { return !events_of(feeder.get(), FEEDLANE_EVENT_CONSUMER_LEFT).empty(); }));
  CHECK(consumer.finish() == "");
}
