// SPDX-License-Identifier: Apache-2.0
// feedlane_tx_send and feedlane_rx_receive: copies of messages, one or many in a call.
#include <doctest/doctest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <random>
#include <thread>
#include <vector>

#include "support/api.hpp"
#include "support/events.hpp"
#include "support/process.hpp"

using namespace feedlane::test;

namespace {

// A ring, and senders in this process.
struct Ends {
  explicit Ends(std::uint32_t bytes = 8, std::uint32_t capacity = 4, std::uint32_t senders = 1) : tx(senders) {
    auto config = fresh<feedlane_ring_config>();
    config.message_bytes = bytes;
    config.capacity = capacity;
    config.lanes = senders;
    REQUIRE(feedlane_rx_create(&config, &rx, nullptr) == FEEDLANE_OK);
    for (feedlane_tx*& one : tx) {
      std::uint32_t told = 0;
      REQUIRE(feedlane_tx_attach(offer(), nullptr, patience_ns, &one, &told, nullptr) == FEEDLANE_OK);
      CHECK(told == bytes);
      REQUIRE(feedlane_rx_arm(rx, nullptr) == FEEDLANE_OK);  // accepts it
    }
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() {
    for (feedlane_tx*& one : tx) (void)feedlane_tx_destroy(&one);
    (void)feedlane_rx_destroy(&rx);
  }
  [[nodiscard]] std::int32_t offer() const {
    std::int32_t fd = -1;
    REQUIRE(feedlane_rx_offer(rx, &fd, nullptr) == FEEDLANE_OK);
    return fd;
  }

  feedlane_rx* rx = nullptr;
  std::vector<feedlane_tx*> tx;
};

using Words = std::vector<std::uint64_t>;

Words numbers(std::uint64_t first, std::uint64_t count) {
  Words words(count);
  for (std::uint64_t& w : words) w = first++;
  return words;
}

struct Outcome {
  std::int32_t status;
  std::uint32_t count;

  bool operator==(const Outcome&) const = default;
};
doctest::String toString(const Outcome& o) {
  return (std::string(feedlane_status_name(o.status)) + " after " + std::to_string(o.count)).c_str();
}

Outcome send(feedlane_tx* tx, const Words& words, std::int64_t timeout_ns = 0) {
  std::uint32_t sent = 77;
  const std::int32_t s =
      feedlane_tx_send(tx, words.data(), static_cast<std::uint32_t>(words.size()), timeout_ns, &sent, nullptr);
  return {s, sent};
}

// What one call received, and of which lane; of another outcome than OK nothing.
struct Receipt {
  Words words;
  std::uint32_t lane = 77;
  std::int32_t status = FEEDLANE_OK;
};
Receipt receive(feedlane_rx* rx, std::uint32_t want, std::int64_t timeout_ns = 0) {
  Receipt r{Words(want)};
  std::uint32_t got = 77;
  r.status = feedlane_rx_receive(rx, r.words.data(), want, timeout_ns, &got, &r.lane, nullptr);
  CHECK((r.status == FEEDLANE_OK) == (got != 0));
  r.words.resize(got);
  return r;
}
Words words_of(feedlane_rx* rx, std::uint32_t want) { return receive(rx, want, patience_ns).words; }

// Byte `i` of message `n`.
std::byte byte_of(std::uint64_t n, std::size_t i) { return static_cast<std::byte>(n * 131 + i * 7 + 1); }

// Sends and receives by random numbers of messages; no byte besides the messages is written.
void exchange(std::uint32_t bytes, std::uint32_t capacity) {
  CAPTURE(bytes);
  const Ends e(bytes, capacity);
  std::mt19937_64 random(bytes);
  std::uint64_t sent = 0, received = 0;
  constexpr std::byte guard{0xee};
  while (received < 40ULL * capacity) {
    const std::uint32_t count = static_cast<std::uint32_t>(random() % (capacity + 2)) + 1;
    std::vector<std::byte> out(std::size_t{count} * bytes);
    for (std::size_t i = 0; i < out.size(); i++) out[i] = byte_of(sent + i / bytes, i % bytes);
    const std::uint64_t room = capacity - (sent - received);
    std::uint32_t done = 77;
    const std::int32_t s = feedlane_tx_send(e.tx[0], out.data(), count, 0, &done, nullptr);
    REQUIRE(Outcome{s, done} == Outcome{count <= room ? FEEDLANE_OK : FEEDLANE_TIMEOUT,
                                        static_cast<std::uint32_t>(std::min<std::uint64_t>(count, room))});
    sent += done;

    const std::uint32_t want = static_cast<std::uint32_t>(random() % (capacity + 2)) + 1;
    std::vector<std::byte> in(std::size_t{want} * bytes + 64, guard);
    std::uint32_t got = 77;
    const std::int32_t r = feedlane_rx_receive(e.rx, in.data(), want, 0, &got, nullptr, nullptr);
    REQUIRE(r == (sent == received ? FEEDLANE_TIMEOUT : FEEDLANE_OK));
    const auto until_end = static_cast<std::uint32_t>(capacity - received % capacity);
    REQUIRE(got == std::min({std::uint64_t{want}, sent - received, std::uint64_t{until_end}}));
    for (std::size_t i = 0; i < in.size(); i++) {
      const bool is_message = i < std::size_t{got} * bytes;
      REQUIRE(in[i] == (is_message ? byte_of(received + i / bytes, i % bytes) : guard));
    }
    received += got;
  }
}

// What a call answers that sleeps until `end(its thread)`.
std::int32_t answer_to(const std::function<std::int32_t()>& call, const std::function<void(pthread_t)>& end) {
  std::atomic<pid_t> id{0};
  std::int32_t answer = -1000;
  std::thread waiting([&] {
    id = ::gettid();
    answer = call();
  });
  while (id == 0) std::this_thread::yield();
  CHECK(eventually([&] { return is_asleep(id); }));
  end(waiting.native_handle());
  waiting.join();
  return answer;
}

}  // namespace

TEST_CASE("send and receive copy each message whole, once and in order, across the lane's end, and no byte more") {
  const std::initializer_list<std::uint32_t> sizes{1,  2,  3,  4,  7,  8,  9,  15,  16,  17,  24, 31,
                                                   32, 33, 48, 55, 56, 57, 64, 100, 120, 121, 500};
  for (const std::uint32_t bytes : sizes) exchange(bytes, 8);
  exchange(56, 1);
}

TEST_CASE("send publishes as many messages as there is room for and returns their number, and another call continues") {
  const Ends e;
  CHECK(send(e.tx[0], numbers(0, 6)) == Outcome{FEEDLANE_TIMEOUT, 4});
  CHECK(send(e.tx[0], numbers(4, 1), 1'000'000) == Outcome{FEEDLANE_TIMEOUT, 0});
  CHECK(words_of(e.rx, 2) == numbers(0, 2));
  CHECK(send(e.tx[0], numbers(4, 2)) == Outcome{FEEDLANE_OK, 2});
  CHECK(words_of(e.rx, 9) == numbers(2, 2));
  CHECK(words_of(e.rx, 9) == numbers(4, 2));
  const Words words = numbers(6, 6);
  CHECK(feedlane_tx_send(e.tx[0], words.data(), 6, 0, nullptr, nullptr) == FEEDLANE_TIMEOUT);
  CHECK(words_of(e.rx, 9) == numbers(6, 2));
  CHECK(words_of(e.rx, 9) == numbers(8, 2));
}

TEST_CASE("one send waits for room and delivers more messages than a lane holds") {
  const Ends e;
  constexpr std::uint64_t count = 3000;
  std::thread sender([&] { CHECK(send(e.tx[0], numbers(0, count), patience_ns) == Outcome{FEEDLANE_OK, count}); });
  Words all;
  while (all.size() < count) {
    const Receipt r = receive(e.rx, 3, patience_ns);
    REQUIRE(r.status == FEEDLANE_OK);
    all.insert(all.end(), r.words.begin(), r.words.end());
  }
  sender.join();
  CHECK(all == numbers(0, count));
}

TEST_CASE("send accepts NULL for `sent`, and receive accepts NULL for `lane`") {
  const Ends e;
  const Words words = numbers(5, 2);
  CHECK(feedlane_tx_send(e.tx[0], words.data(), 2, 0, nullptr, nullptr) == FEEDLANE_OK);
  Words got(2);
  std::uint32_t count = 0;
  CHECK(feedlane_rx_receive(e.rx, got.data(), 2, patience_ns, &count, nullptr, nullptr) == FEEDLANE_OK);
  CHECK(count == 2);
  CHECK(got == words);
}

TEST_CASE("send replaces a reservation that was not committed") {
  const Ends e;
  feedlane_span span{};
  REQUIRE(feedlane_tx_reserve(e.tx[0], 3, 0, &span, nullptr) == FEEDLANE_OK);
  *static_cast<std::uint64_t*>(span.data) = 99;
  CHECK(send(e.tx[0], numbers(1, 1)) == Outcome{FEEDLANE_OK, 1});
  CHECK(feedlane_tx_commit(e.tx[0], 1, nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(words_of(e.rx, 9) == numbers(1, 1));
  CHECK(receive(e.rx, 9).status == FEEDLANE_TIMEOUT);
}

TEST_CASE("receive keeps its timeout, and returns END and frees the lane after the last message of the last sender") {
  Ends e;
  CHECK(receive(e.rx, 1).status == FEEDLANE_TIMEOUT);
  CHECK(receive(e.rx, 1, 1'000'000).status == FEEDLANE_TIMEOUT);
  CHECK(send(e.tx[0], numbers(0, 3)) == Outcome{FEEDLANE_OK, 3});
  REQUIRE(feedlane_tx_destroy(&e.tx[0]) == FEEDLANE_OK);
  CHECK(feedlane_rx_arm(e.rx, nullptr) == FEEDLANE_AGAIN);  // knows of its end
  CHECK(words_of(e.rx, 2) == numbers(0, 2));
  CHECK(words_of(e.rx, 2) == numbers(2, 1));
  REQUIRE(::close(e.offer()) == 0);  // the lane is free before END is told
  for (int i = 0; i < 2; i++) {
    const Receipt r = receive(e.rx, 2, patience_ns);
    CHECK(r.status == FEEDLANE_END);
    CHECK(r.lane == 77);
  }
}

TEST_CASE("receive serves lanes in round-robin order and returns the lane's number") {
  const Ends e(8, 4, 2);
  CHECK(send(e.tx[0], numbers(0, 3)) == Outcome{FEEDLANE_OK, 3});
  CHECK(send(e.tx[1], numbers(10, 3)) == Outcome{FEEDLANE_OK, 3});
  for (const std::uint64_t first : {0ULL, 10ULL, 2ULL, 12ULL}) {
    const Receipt r = receive(e.rx, 2, patience_ns);
    CHECK(r.lane == first / 10);
    CHECK(r.words == numbers(first, first % 10 == 0 ? 2 : 1));
  }
}

TEST_CASE("receive cancels an unreleased peek: its messages are received and can't be released any more") {
  const Ends e(8, 8);
  feedlane_span span{};
  CHECK(send(e.tx[0], numbers(0, 4)) == Outcome{FEEDLANE_OK, 4});
  REQUIRE(feedlane_rx_peek(e.rx, 3, patience_ns, &span, nullptr) == FEEDLANE_OK);
  CHECK(span.count == 3);
  CHECK(words_of(e.rx, 1) == numbers(0, 1));
  CHECK(feedlane_rx_release(e.rx, 0, 1, nullptr) == FEEDLANE_E_ARGUMENT);
  CHECK(words_of(e.rx, 8) == numbers(1, 3));
  CHECK(send(e.tx[0], numbers(4, 4)) == Outcome{FEEDLANE_OK, 4});
  REQUIRE(feedlane_rx_peek(e.rx, 3, patience_ns, &span, nullptr) == FEEDLANE_OK);
  REQUIRE(feedlane_rx_release(e.rx, 0, 2, nullptr) == FEEDLANE_OK);
  CHECK(words_of(e.rx, 8) == numbers(6, 2));
}

TEST_CASE("a lane whose peeked messages are received is free after its sender has ended") {
  Ends e(8, 4, 2);
  feedlane_span span{};
  for (feedlane_tx* tx : e.tx) CHECK(send(tx, numbers(0, 4)) == Outcome{FEEDLANE_OK, 4});
  for (int i = 0; i < 2; i++) REQUIRE(feedlane_rx_peek(e.rx, 2, patience_ns, &span, nullptr) == FEEDLANE_OK);
  for (feedlane_tx*& tx : e.tx) REQUIRE(feedlane_tx_destroy(&tx) == FEEDLANE_OK);
  CHECK(feedlane_rx_arm(e.rx, nullptr) == FEEDLANE_AGAIN);
  for (int i = 0; i < 2; i++) {
    CHECK(words_of(e.rx, 1) == numbers(0, 1));
    CHECK(words_of(e.rx, 1) == numbers(0, 1));
    CHECK(words_of(e.rx, 3) == numbers(1, 3));
    CHECK(words_of(e.rx, 3) == numbers(1, 3));
    if (i == 1) break;
    const std::int32_t first = e.offer(), second = e.offer();
    for (feedlane_tx*& tx : e.tx)
      REQUIRE(feedlane_tx_attach(&tx == e.tx.data() ? first : second, nullptr, patience_ns, &tx, nullptr, nullptr) ==
              FEEDLANE_OK);
    (void)feedlane_rx_arm(e.rx, nullptr);  // accepts them
    for (feedlane_tx* tx : e.tx) CHECK(send(tx, numbers(0, 4)) == Outcome{FEEDLANE_OK, 4});
  }
}

TEST_CASE("send reports that the receiver is gone and how much it published before") {
  Ends e;
  Outcome outcome{};
  const auto call = [&] {
    outcome = send(e.tx[0], numbers(0, 9), FEEDLANE_FOREVER);
    return outcome.status;
  };
  CHECK(answer_to(call, [&](pthread_t) { CHECK(feedlane_rx_destroy(&e.rx) == FEEDLANE_OK); }) == FEEDLANE_E_PEER_DEAD);
  CHECK(outcome == Outcome{FEEDLANE_E_PEER_DEAD, 4});
  CHECK(send(e.tx[0], numbers(0, 1), patience_ns) == Outcome{FEEDLANE_E_PEER_DEAD, 0});
}

TEST_CASE("a signal ends send and receive with INTERRUPTED, and send reports how much it published before") {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  const auto interrupt = [](pthread_t thread) { CHECK(::pthread_kill(thread, SIGUSR1) == 0); };
  const Ends e;
  CHECK(answer_to([&] { return receive(e.rx, 1, FEEDLANE_FOREVER).status; }, interrupt) == FEEDLANE_INTERRUPTED);
  Outcome outcome{};
  const auto call = [&] {
    outcome = send(e.tx[0], numbers(0, 9), FEEDLANE_FOREVER);
    return outcome.status;
  };
  CHECK(answer_to(call, interrupt) == FEEDLANE_INTERRUPTED);
  CHECK(outcome.count == 4);
  CHECK(words_of(e.rx, 9) == numbers(0, 4));
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
}

TEST_CASE("arm returns the same descriptor whether it returns OK or AGAIN, and no descriptor after close") {
  const Ends e;
  std::int32_t asleep = -1, awake = -1, none = -7;
  CHECK(feedlane_rx_arm(e.rx, &asleep) == FEEDLANE_OK);
  CHECK(asleep >= 0);
  CHECK(send(e.tx[0], numbers(0, 1)) == Outcome{FEEDLANE_OK, 1});
  CHECK(feedlane_rx_arm(e.rx, &awake) == FEEDLANE_AGAIN);
  CHECK(awake == asleep);
  CHECK(feedlane_rx_close(e.rx) == FEEDLANE_OK);
  CHECK(feedlane_rx_arm(e.rx, &none) == FEEDLANE_E_STATE);
  CHECK(none == -7);
}

TEST_CASE("close ends send and receive with E_STATE, and later calls return E_STATE") {
  const Ends e;
  Outcome outcome{};
  const auto call = [&] {
    outcome = send(e.tx[0], numbers(0, 9), FEEDLANE_FOREVER);
    return outcome.status;
  };
  CHECK(answer_to(call, [&](pthread_t) { CHECK(feedlane_tx_close(e.tx[0]) == FEEDLANE_OK); }) == FEEDLANE_E_STATE);
  CHECK(outcome.count == 4);
  CHECK(send(e.tx[0], numbers(0, 1)) == Outcome{FEEDLANE_E_STATE, 0});
  CHECK(words_of(e.rx, 9) == numbers(0, 4));
  CHECK(answer_to([&] { return receive(e.rx, 1, FEEDLANE_FOREVER).status; },
                  [&](pthread_t) { CHECK(feedlane_rx_close(e.rx) == FEEDLANE_OK); }) == FEEDLANE_E_STATE);
  CHECK(receive(e.rx, 1).status == FEEDLANE_E_STATE);
}

// ---- counts ----

TEST_CASE("a monitor counts the messages the receiver has taken, and a sender that ends does not add any") {
  Ends ends(8, 4, 1);
  feedlane_tx*& tx = ends.tx[0];
  auto ring = fresh<feedlane_ring_info>();
  for (std::uint64_t sender = 1; sender <= 4; sender++) {
    CAPTURE(sender);
    if (tx == nullptr)
      REQUIRE(feedlane_tx_attach(ends.offer(), nullptr, patience_ns, &tx, nullptr, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_rx_arm(ends.rx, nullptr) >= 0);  // accepts it
    Words words = numbers(1, 2);
    std::uint32_t n = 0;
    REQUIRE(feedlane_tx_send(tx, words.data(), 2, patience_ns, &n, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_rx_receive(ends.rx, words.data(), 2, patience_ns, &n, nullptr, nullptr) == FEEDLANE_OK);
    REQUIRE(n == 2);
    REQUIRE(feedlane_monitor_ring(::getpid(), 0, &ring, nullptr) == FEEDLANE_OK);
    CHECK(ring.received == 2 * sender);
    REQUIRE(feedlane_tx_destroy(&tx) == FEEDLANE_OK);
    CHECK(feedlane_rx_receive(ends.rx, words.data(), 2, 0, &n, nullptr, nullptr) == FEEDLANE_END);
    REQUIRE(feedlane_monitor_ring(::getpid(), 0, &ring, nullptr) == FEEDLANE_OK);
    CHECK(ring.received == 2 * sender);
  }
}
