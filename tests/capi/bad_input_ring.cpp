// SPDX-License-Identifier: Apache-2.0
// Bad input: standalone rings.
#include "bad_input.hpp"

#include <sys/un.h>

using namespace feedlane::test;

namespace {

// Two lanes of four messages of eight bytes.
struct F {
  F() {
    config.known.message_bytes = 8;
    config.known.capacity = 4;
    config.known.lanes = 2;
  }
  ~F() {
    (void)feedlane_tx_destroy(&sender);
    (void)feedlane_rx_destroy(&receiver);
  }
  F(const F&) = delete;
  F& operator=(const F&) = delete;
  feedlane_rx* rx() {
    if (receiver == nullptr) REQUIRE(feedlane_rx_create(&config.known, &receiver, nullptr) == FEEDLANE_OK);
    return receiver;
  }
  feedlane_rx* full_house() {
    config.known.lanes = 1;
    REQUIRE(feedlane_rx_offer(rx(), &fd.value, nullptr) == FEEDLANE_OK);
    return rx();
  }
  feedlane_tx* tx() {
    if (sender != nullptr) return sender;
    std::int32_t offer = -1;
    REQUIRE(feedlane_rx_offer(rx(), &offer, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_tx_attach(offer, nullptr, patience_ns, &sender, nullptr, nullptr) == FEEDLANE_OK);
    return sender;
  }
  feedlane_tx* reserved() {
    REQUIRE(feedlane_tx_reserve(tx(), 2, 0, &span, nullptr) == FEEDLANE_OK);
    return sender;
  }
  feedlane_tx* full() {
    REQUIRE(feedlane_tx_reserve(tx(), 4, 0, &span, nullptr) == FEEDLANE_OK);
    REQUIRE(feedlane_tx_commit(sender, span.count, nullptr) == FEEDLANE_OK);
    return sender;
  }
  feedlane_tx* alone() {
    (void)full();
    REQUIRE(feedlane_rx_destroy(&receiver) == FEEDLANE_OK);
    return sender;
  }
  feedlane_tx* committed() {
    REQUIRE(feedlane_tx_commit(reserved(), 2, nullptr) == FEEDLANE_OK);
    return sender;
  }
  // Two messages of lane 0 are peeked at.
  feedlane_rx* peeked() {
    (void)committed();
    REQUIRE(feedlane_rx_peek(rx(), 2, patience_ns, &span, nullptr) == FEEDLANE_OK);
    return rx();
  }
  feedlane_rx* released() {
    REQUIRE(feedlane_rx_release(peeked(), 0, 2, nullptr) == FEEDLANE_OK);
    return rx();
  }
  feedlane_ring_config* ring(std::uint32_t bytes, std::uint32_t capacity, std::uint32_t lanes) {
    config.known.message_bytes = bytes;
    config.known.capacity = capacity;
    config.known.lanes = lanes;
    return &config.known;
  }
  feedlane_ring_config* config_of(std::size_t size) {
    config.known.size = size;
    return &config.known;
  }
  feedlane_ring_config* at(const char* path) {
    config.known.path = path;
    return &config.known;
  }
  feedlane_ring_config* reserved_1() {
    config.known.reserved = 1;
    return &config.known;
  }
  [[nodiscard]] bool is_clean() const { return !rx_out.is_poisoned() && !tx_out.is_poisoned(); }

  Later<feedlane_ring_config> config{fresh<feedlane_ring_config>()};
  feedlane_rx* receiver = nullptr;
  feedlane_tx* sender = nullptr;
  feedlane_rx* no_rx = nullptr;
  feedlane_tx* no_tx = nullptr;
  Out<feedlane_rx> rx_out;
  Out<feedlane_tx> tx_out;
  feedlane_span span{};
  Number fd;
  std::int32_t borrowed = -1;
  std::uint64_t words[5] = {};
  std::uint32_t count = 0;
};

const std::string long_path(sizeof(sockaddr_un::sun_path), 'p');
constexpr std::size_t config_bytes = sizeof(feedlane_ring_config);
constexpr std::int64_t path_bytes = sizeof(sockaddr_un::sun_path) - 1;

#define CREATE(what, status, argument, found, needed, config) \
  REFUSES(feedlane_rx_create, what, status, argument, found, needed, config, f.rx_out.place(), e)
#define WAIT(function, what, status, argument, found, needed, handle, want, timeout_ns, got) \
  REFUSES(function, what, status, argument, found, needed, handle, want, timeout_ns, got, e)
#define RECEIVE(what, status, argument, found, needed, handle, messages, want, timeout_ns, got)                \
  REFUSES(feedlane_rx_receive, what, status, argument, found, needed, handle, messages, want, timeout_ns, got, \
          nullptr, e)
#define SEND(what, status, argument, found, needed, handle, messages, number, timeout_ns) \
  REFUSES(feedlane_tx_send, what, status, argument, found, needed, handle, messages, number, timeout_ns, &f.count, e)

const Row<F> receiver_rows[] = {
    REFUSES(feedlane_rx_create, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.ring(8, 4, 1), nullptr, e),
    CREATE("config NULL", FEEDLANE_E_ARGUMENT, "config", 0, 1, nullptr),
    CREATE("size 0", FEEDLANE_E_ABI, "config", 0, config_bytes, f.config_of(0)),
    CREATE("size 7", FEEDLANE_E_ABI, "config", 7, config_bytes, f.config_of(7)),
    CREATE("size only", FEEDLANE_E_ARGUMENT, "config.message_bytes", 0, 1, f.config_of(8)),
    CREATE("the largest size", FEEDLANE_E_ABI, "config", -1, config_bytes, f.config_of(SIZE_MAX)),
    CREATE("a tail", FEEDLANE_E_ABI, "config", config_bytes + 8, config_bytes, f.config_of(config_bytes + 8)),
    CREATE("no bytes", FEEDLANE_E_ARGUMENT, "config.message_bytes", 0, 1, f.ring(0, 4, 1)),
    CREATE("a byte too many", FEEDLANE_E_ARGUMENT, "config.message_bytes", (1 << 20) + 1, 1 << 20,
           f.ring((1 << 20) + 1, 4, 1)),
    CREATE("all bytes", FEEDLANE_E_ARGUMENT, "config.message_bytes", UINT32_MAX, 1 << 20, f.ring(UINT32_MAX, 4, 1)),
    CREATE("no capacity", FEEDLANE_E_ARGUMENT, "config.capacity", 0, 1, f.ring(8, 0, 1)),
    CREATE("no power of two", FEEDLANE_E_ARGUMENT, "config.capacity", 5, 8, f.ring(8, 5, 1)),
    CREATE("too large a capacity", FEEDLANE_E_ARGUMENT, "config.capacity", 1 << 25, 1 << 24, f.ring(8, 1 << 25, 1)),
    CREATE("too many lanes", FEEDLANE_E_ARGUMENT, "config.lanes", 4097, 4096, f.ring(8, 4, 4097)),
    CREATE("too much of all", FEEDLANE_E_ARGUMENT, nullptr, 0, 0, f.ring(1 << 20, 1 << 24, 4096)),
    CREATE("more than there is", FEEDLANE_E_MEMORY, nullptr, 0, 0, f.ring(1 << 20, 1 << 24, 3)),
    CREATE("reserved 1", FEEDLANE_E_ARGUMENT, "config.reserved", 1, 0, f.reserved_1()),
    CREATE("no such folder", FEEDLANE_E_OS, "", 0, 0, f.at("/nonexistent/ring")),
    CREATE("a path of something else", FEEDLANE_E_OS, "", 0, 0, f.at("/dev/null")),
    REFUSES(feedlane_rx_offer, "rx NULL", FEEDLANE_E_ARGUMENT, "rx", 0, 1, nullptr, &f.borrowed, e),
    REFUSES(feedlane_rx_offer, "fd NULL", FEEDLANE_E_ARGUMENT, "fd", 0, 1, f.rx(), nullptr, e),
    REFUSES(feedlane_rx_offer, "every lane taken", FEEDLANE_E_LIMIT, "config.lanes", 1, 2, f.full_house(), &f.borrowed,
            e),
    WAIT(feedlane_rx_peek, "rx NULL", FEEDLANE_E_ARGUMENT, "rx", 0, 1, nullptr, 1, 0, &f.span),
    WAIT(feedlane_rx_peek, "got NULL", FEEDLANE_E_ARGUMENT, "got", 0, 1, f.rx(), 1, 0, nullptr),
    WAIT(feedlane_rx_peek, "want 0", FEEDLANE_E_ARGUMENT, "want", 0, 1, f.rx(), 0, 0, &f.span),
    WAIT(feedlane_rx_peek, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.rx(), 1, -1, &f.span),
    WAIT(feedlane_rx_peek, "the least timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", INT64_MIN, 0, f.rx(), 1, INT64_MIN,
         &f.span),
    WAIT(feedlane_rx_peek, "nobody there", FEEDLANE_TIMEOUT, "", 0, 0, f.rx(), UINT32_MAX, 0, &f.span),
    WAIT(feedlane_rx_peek, "more than there can be", FEEDLANE_OK, "", 0, 0, f.peeked(), UINT32_MAX, 0, &f.span),
    RECEIVE("rx NULL", FEEDLANE_E_ARGUMENT, "rx", 0, 1, nullptr, f.words, 1, 0, &f.count),
    RECEIVE("messages NULL", FEEDLANE_E_ARGUMENT, "messages", 0, 1, f.rx(), nullptr, 1, 0, &f.count),
    RECEIVE("got NULL", FEEDLANE_E_ARGUMENT, "got", 0, 1, f.rx(), f.words, 1, 0, nullptr),
    RECEIVE("want 0", FEEDLANE_E_ARGUMENT, "want", 0, 1, f.rx(), f.words, 0, 0, &f.count),
    RECEIVE("timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.rx(), f.words, 1, -1, &f.count),
    RECEIVE("nobody there", FEEDLANE_TIMEOUT, "", 0, 0, f.rx(), f.words, UINT32_MAX, 0, &f.count),
    RECEIVE("more than there can be", FEEDLANE_OK, "", 0, 0, f.peeked(), f.words, UINT32_MAX, 0, &f.count),
    REFUSES(feedlane_rx_release, "rx NULL", FEEDLANE_E_ARGUMENT, "rx", 0, 1, nullptr, 0, 0, e),
    REFUSES(feedlane_rx_release, "before a peek", FEEDLANE_E_ARGUMENT, "count", 1, 0, f.rx(), 0, 1, e),
    REFUSES(feedlane_rx_release, "beyond the peek", FEEDLANE_E_ARGUMENT, "count", 3, 2, f.peeked(), 0, 3, e),
    REFUSES(feedlane_rx_release, "all there can be", FEEDLANE_E_ARGUMENT, "count", UINT32_MAX, 2, f.peeked(), 0,
            UINT32_MAX, e),
    REFUSES(feedlane_rx_release, "another lane", FEEDLANE_E_ARGUMENT, "lane", 1, 0, f.peeked(), 1, 1, e),
    REFUSES(feedlane_rx_release, "no lane", FEEDLANE_E_ARGUMENT, "lane", UINT32_MAX, 0, f.peeked(), UINT32_MAX, 1, e),
    REFUSES(feedlane_rx_release, "twice", FEEDLANE_E_ARGUMENT, "count", 1, 0, f.released(), 0, 1, e),
    REFUSES(feedlane_rx_release, "none", FEEDLANE_OK, "", 0, 0, f.rx(), 0, 0, e),
    ANSWERS(feedlane_rx_arm, "rx NULL", FEEDLANE_E_ARGUMENT, nullptr, nullptr),
    ANSWERS(feedlane_rx_arm, "nobody there", FEEDLANE_OK, f.rx(), nullptr),
    ANSWERS(feedlane_rx_close, "NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_rx_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_rx_destroy, "a NULL handle", FEEDLANE_OK, &f.no_rx),
    HOLDS(feedlane_rx_destroy, "twice",
          f.peeked() != nullptr && feedlane_rx_destroy(&f.receiver) == FEEDLANE_OK && f.receiver == nullptr &&
              feedlane_rx_destroy(&f.receiver) == FEEDLANE_OK),
};

const Row<F> long_path_rows[] = {
    CREATE("too long a path", FEEDLANE_E_ARGUMENT, "config.path", path_bytes + 1, path_bytes, f.at(long_path.c_str())),
};

const Row<F> empty_path_rows[] = {
    CREATE("an empty path", FEEDLANE_E_ARGUMENT, "config.path", 0, path_bytes, f.at("")),
};

const Row<F> sender_rows[] = {
    WAIT(feedlane_tx_reserve, "tx NULL", FEEDLANE_E_ARGUMENT, "tx", 0, 1, nullptr, 1, 0, &f.span),
    WAIT(feedlane_tx_reserve, "got NULL", FEEDLANE_E_ARGUMENT, "got", 0, 1, f.tx(), 1, 0, nullptr),
    WAIT(feedlane_tx_reserve, "want 0", FEEDLANE_E_ARGUMENT, "want", 0, 1, f.tx(), 0, 0, &f.span),
    WAIT(feedlane_tx_reserve, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.tx(), 1, -1, &f.span),
    WAIT(feedlane_tx_reserve, "more than there can be", FEEDLANE_OK, "", 0, 0, f.tx(), UINT32_MAX, 0, &f.span),
    WAIT(feedlane_tx_reserve, "full", FEEDLANE_TIMEOUT, "", 0, 0, f.full(), 1, 0, &f.span),
    WAIT(feedlane_tx_reserve, "full, alone", FEEDLANE_E_PEER_DEAD, "", 0, 0, f.alone(), 1, patience_ns, &f.span),
    SEND("tx NULL", FEEDLANE_E_ARGUMENT, "tx", 0, 1, nullptr, f.words, 1, 0),
    SEND("messages NULL", FEEDLANE_E_ARGUMENT, "messages", 0, 1, f.tx(), nullptr, 1, 0),
    SEND("count 0", FEEDLANE_E_ARGUMENT, "count", 0, 1, f.tx(), f.words, 0, 0),
    SEND("timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.tx(), f.words, 1, -1),
    SEND("the least timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", INT64_MIN, 0, f.tx(), f.words, 1, INT64_MIN),
    SEND("full", FEEDLANE_TIMEOUT, "", 0, 0, f.full(), f.words, 1, 0),
    SEND("more than fits", FEEDLANE_TIMEOUT, "", 0, 0, f.tx(), f.words, 5, 0),
    SEND("full, alone", FEEDLANE_E_PEER_DEAD, "", 0, 0, f.alone(), f.words, 1, patience_ns),
    REFUSES(feedlane_tx_commit, "tx NULL", FEEDLANE_E_ARGUMENT, "tx", 0, 1, nullptr, 0, e),
    REFUSES(feedlane_tx_commit, "nothing reserved", FEEDLANE_E_ARGUMENT, "count", 1, 0, f.tx(), 1, e),
    REFUSES(feedlane_tx_commit, "beyond the reservation", FEEDLANE_E_ARGUMENT, "count", 3, 2, f.reserved(), 3, e),
    REFUSES(feedlane_tx_commit, "all there can be", FEEDLANE_E_ARGUMENT, "count", UINT32_MAX, 2, f.reserved(),
            UINT32_MAX, e),
    REFUSES(feedlane_tx_commit, "twice", FEEDLANE_E_ARGUMENT, "count", 2, 0, f.committed(), 2, e),
    ANSWERS(feedlane_tx_close, "NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_tx_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_tx_destroy, "a NULL handle", FEEDLANE_OK, &f.no_tx),
    HOLDS(feedlane_tx_destroy, "twice, reserved",
          f.reserved() != nullptr && feedlane_tx_destroy(&f.sender) == 0 && f.sender == nullptr &&
              feedlane_tx_destroy(&f.sender) == 0),
};

#define FORKED(function, ...) REFUSES(function, "forked", FEEDLANE_E_FORKED, "", 0, 0, __VA_ARGS__, e)

const Row<F> forked_rows[] = {
    FORKED(feedlane_rx_offer, f.receiver, &f.borrowed),
    FORKED(feedlane_rx_peek, f.receiver, 1, FEEDLANE_FOREVER, &f.span),
    FORKED(feedlane_rx_receive, f.receiver, f.words, 1, FEEDLANE_FOREVER, &f.count, nullptr),
    FORKED(feedlane_rx_release, f.receiver, 0, 1),
    FORKED(feedlane_tx_reserve, f.sender, 1, FEEDLANE_FOREVER, &f.span),
    FORKED(feedlane_tx_commit, f.sender, 1),
    FORKED(feedlane_tx_send, f.sender, f.words, 1, FEEDLANE_FOREVER, &f.count),
    ANSWERS(feedlane_rx_arm, "forked", FEEDLANE_E_FORKED, f.receiver, nullptr),
    ANSWERS(feedlane_rx_close, "forked", FEEDLANE_E_FORKED, f.receiver),
    ANSWERS(feedlane_tx_close, "forked", FEEDLANE_E_FORKED, f.sender),
    ANSWERS(feedlane_rx_destroy, "forked", FEEDLANE_OK, &f.receiver),
    ANSWERS(feedlane_tx_destroy, "forked", FEEDLANE_OK, &f.sender),
};

const Counted receivers{receiver_rows}, long_paths{long_path_rows}, empty_paths{empty_path_rows}, senders{sender_rows},
    forked{forked_rows};

}  // namespace

TEST_CASE("bad input: a ring's receiver") { check_rows(receiver_rows); }

TEST_CASE("bad input: a path too long for a ring is refused with argument config.path") { check_rows(long_path_rows); }

TEST_CASE("bad input: an empty path is refused for a ring") { check_rows(empty_path_rows); }

TEST_CASE("bad input: a ring's sender") { check_rows(sender_rows); }

TEST_CASE("bad input: a ring in a forked child") {
  F f;
  (void)f.peeked();
  check_forked(f, forked_rows);
  CHECK(feedlane_rx_release(f.receiver, 0, 2, nullptr) == FEEDLANE_OK);
}
