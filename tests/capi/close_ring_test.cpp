// SPDX-License-Identifier: Apache-2.0
// Ring ends closed from another thread, and their references.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "support/events.hpp"
#include "support/process.hpp"

using namespace feedlane::test;

namespace {

// Both ends in this process; four messages fit.
struct Ends {
  Ends() {
    auto config = fresh<feedlane_ring_config>();
    config.message_bytes = 8;
    config.capacity = 4;
    REQUIRE(feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
    std::int32_t fd = -1;
    REQUIRE(feedlane_rx_offer(rx, &fd, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_tx_attach(fd, nullptr, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() {
    (void)feedlane_tx_destroy(&tx);
    (void)feedlane_rx_destroy(&rx);
  }
  void fill() {
    feedlane_span room{};
    REQUIRE(feedlane_tx_reserve(tx, 4, 0, &room, nullptr) == FEEDLANE_OK);
    REQUIRE(room.count == 4);
    REQUIRE(feedlane_tx_commit(tx, 4, nullptr) == FEEDLANE_OK);
  }
  feedlane_rx* rx = nullptr;
  feedlane_tx* tx = nullptr;
};

// What a call answers that sleeps when it is ended by `end`.
std::int32_t answer_to(const std::function<std::int32_t()>& call, const std::function<void()>& end) {
  std::atomic<pid_t> id{0};
  std::int32_t answer = -1000;
  std::thread waiting([&] {
    id = ::gettid();
    answer = call();
  });
  while (id == 0) std::this_thread::yield();
  CHECK(eventually([&] { return is_asleep(id); }));
  end();
  waiting.join();
  return answer;
}

std::int32_t peek(feedlane_rx* rx, std::int64_t timeout_ns = FEEDLANE_FOREVER) {
  feedlane_span got{};
  return feedlane_rx_peek(rx, 1, timeout_ns, &got, nullptr);
}

std::int32_t reserve(feedlane_tx* tx, std::int64_t timeout_ns = FEEDLANE_FOREVER) {
  feedlane_span room{};
  return feedlane_tx_reserve(tx, 1, timeout_ns, &room, nullptr);
}

}  // namespace

TEST_CASE("closing a receiver ends another thread's wait with E_STATE, and later calls fail too, even with messages") {
  Ends e;
  CHECK(answer_to([&] { return peek(e.rx); }, [&] { CHECK(feedlane_rx_close(e.rx) == FEEDLANE_OK); }) ==
        FEEDLANE_E_STATE);
  e.fill();
  std::int32_t fd = -1;
  CHECK(peek(e.rx, 0) == FEEDLANE_E_STATE);
  CHECK(feedlane_rx_release(e.rx, 0, 0, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_rx_arm(e.rx, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_rx_offer(e.rx, &fd, nullptr) == FEEDLANE_E_STATE);
  CHECK(wait_fd_of(e.rx, &fd) == FEEDLANE_E_STATE);
}

TEST_CASE("close wakes a receiver that sleeps in a foreign event loop") {
  Ends e;
  std::int32_t fd = -1;
  REQUIRE(wait_fd_of(e.rx, &fd) == FEEDLANE_OK);
  while (feedlane_rx_arm(e.rx, nullptr) == FEEDLANE_AGAIN) (void)peek(e.rx, 0);
  CHECK_FALSE(wait_readable(fd, 0));
  CHECK(feedlane_rx_close(e.rx) == FEEDLANE_OK);
  CHECK(wait_readable(fd));
}

TEST_CASE("closing a sender ends another thread's wait for room with E_STATE, and committed messages are received") {
  Ends e;
  e.fill();
  CHECK(answer_to([&] { return reserve(e.tx); }, [&] { CHECK(feedlane_tx_close(e.tx) == FEEDLANE_OK); }) ==
        FEEDLANE_E_STATE);
  CHECK(reserve(e.tx, 0) == FEEDLANE_E_STATE);
  CHECK(feedlane_tx_commit(e.tx, 0, nullptr) == FEEDLANE_E_STATE);
  CHECK(feedlane_tx_destroy(&e.tx) == FEEDLANE_OK);
  feedlane_span got{};
  REQUIRE(feedlane_rx_peek(e.rx, 4, patience_ns, &got, nullptr) == FEEDLANE_OK);
  CHECK(feedlane_rx_release(e.rx, got.lane, got.count, nullptr) == FEEDLANE_OK);
  CHECK(got.count == 4);
  CHECK(peek(e.rx) == FEEDLANE_END);
}

TEST_CASE("destroying an end of a ring ends another thread's wait with E_STATE and then frees the end") {
  Ends e;
  CHECK(answer_to([rx = e.rx] { return peek(rx); }, [&] { CHECK(feedlane_rx_destroy(&e.rx) == FEEDLANE_OK); }) ==
        FEEDLANE_E_STATE);
  CHECK(e.rx == nullptr);
  Ends f;
  f.fill();
  CHECK(answer_to([tx = f.tx] { return reserve(tx); }, [&] { CHECK(feedlane_tx_destroy(&f.tx) == FEEDLANE_OK); }) ==
        FEEDLANE_E_STATE);
  CHECK(f.tx == nullptr);
}

TEST_CASE("a ring accepts messages while its receiver is closed, and ends when the receiver is destroyed") {
  Ends e;
  CHECK(feedlane_rx_close(e.rx) == FEEDLANE_OK);
  e.fill();
  CHECK(reserve(e.tx, 0) == FEEDLANE_TIMEOUT);
  CHECK(feedlane_rx_destroy(&e.rx) == FEEDLANE_OK);
  CHECK(reserve(e.tx, patience_ns) == FEEDLANE_E_PEER_DEAD);
}
