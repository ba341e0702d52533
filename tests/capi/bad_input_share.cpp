// SPDX-License-Identifier: Apache-2.0
// Bad input: shared loaders, their feeder and their consumers.
#include <sys/socket.h>

#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

struct F {
  F() = default;
  F(const F&) = delete;
  F& operator=(const F&) = delete;
  ~F() {
    if (token != 0) (void)feedlane_batch_release(held_by, token);
  }
  // Two places; no worker runs until the first epoch.
  feedlane_loader* l(std::int32_t share = FEEDLANE_SHARE_DEAL) {
    if (feeder == nullptr) {
      setup.external(1).config.share = share;
      setup.config.consumers = 2;
      feeder = setup.create();
    }
    return feeder.get();
  }
  feedlane_monitor* of_consumer() {
    local = monitor_of(c());
    return local.get();
  }
  feedlane_loader* plain() {
    if (other == nullptr) other = Setup(2).create();
    return other.get();
  }
  feedlane_loader* full() {
    (void)opened();
    (void)opened();
    return l();
  }
  feedlane_loader* with_first() {
    (void)opened();
    return l();
  }
  // Closed by the fixture, or by the call that owns it.
  std::int32_t opened() {
    Number fd;
    REQUIRE(feedlane_loader_open_consumer(l(), nullptr, &id, &fd.value, nullptr) == FEEDLANE_OK);
    std::int32_t copy = ::dup(fd.value);
    std::swap(copy, places[id].value);
    if (copy >= 0) (void)::close(copy);
    return places[id].value;
  }
  std::int32_t place() {
    const std::int32_t fd = opened();
    places[id].value = -1;
    return fd;
  }
  feedlane_loader* c() {
    if (consumer == nullptr) {
      feedlane_loader* joined = nullptr;
      REQUIRE(feedlane_loader_join(place(), nullptr, nullptr, patience_ns, &joined, nullptr) == FEEDLANE_OK);
      consumer.reset(joined);
    }
    return consumer.get();
  }
  feedlane_loader* begun() {
    REQUIRE(feedlane_loader_begin(c(), 3, nullptr) == FEEDLANE_OK);
    return c();
  }
  feedlane_loader* begun_feeder() {
    REQUIRE(feedlane_loader_begin(l(), 3, nullptr) == FEEDLANE_OK);
    return l();
  }
  feedlane_loader* closed() {
    REQUIRE(feedlane_loader_close(l()) == FEEDLANE_OK);
    return l();
  }
  // A socket of another kind.
  std::int32_t worker_socket() {
    Setup s(2);
    s.external(1);
    other = s.create();
    std::int32_t any = -1, fd = -1;
    REQUIRE(feedlane_loader_open_worker(other.get(), &any, &fd, nullptr) == FEEDLANE_OK);
    return fd;
  }
  // The other end says a word that no feeder says, or nothing; or it is closed.
  std::int32_t pair_end(const char* word, bool closes = false) {
    int pair[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    if (word != nullptr) REQUIRE(::send(pair[1], word, std::strlen(word), 0) > 0);
    peer.value = pair[1];
    if (closes) {
      (void)::close(pair[1]);
      peer.value = -1;
    }
    return pair[0];
  }
  std::int32_t pipe_end() {
    const Pipe pipe;
    return ::dup(pipe.fds[0]);
  }
  feedlane_consumer_config* as(std::int32_t wanted, std::int32_t lag = FEEDLANE_LAG_BLOCK,
                               std::int64_t evict_after_ns = 0) {
    config.known.id = wanted;
    config.known.lag = lag;
    config.known.evict_after_ns = evict_after_ns;
    return &config.known;
  }
  feedlane_consumer_config* pinned() {
    config.known.id = -1;
    config.known.pinned = reinterpret_cast<feedlane_pool*>(&id);  // never dereferenced
    return &config.known;
  }
  feedlane_consumer_config* of_size(std::size_t size) {
    config.known.size = size;
    return &config.known;
  }
  feedlane_consumer_stats* stats_of(std::size_t size) { return &(stats = sized<feedlane_consumer_stats>(size)); }
  feedlane_batch* room() { return &(batch = fresh<feedlane_batch>()); }
  [[nodiscard]] bool is_clean() const { return !out.is_poisoned(); }

  Setup setup{6, 2};
  Loader feeder, consumer, other;
  feedlane_loader* held_by = nullptr;
  std::uint64_t token = 0, bytes = 0;
  Later<feedlane_consumer_config> config{fresh<feedlane_consumer_config>()};
  feedlane_consumer_stats stats = fresh<feedlane_consumer_stats>();
  feedlane_worker_stats worker = fresh<feedlane_worker_stats>();
  feedlane_loader_info info = fresh<feedlane_loader_info>();
  feedlane_timings timings = fresh<feedlane_timings>();
  feedlane_batch_record record = fresh<feedlane_batch_record>();
  feedlane_error_record error = fresh<feedlane_error_record>();
  feedlane_diagnosis diagnosis = fresh<feedlane_diagnosis>();
  feedlane_batch batch = fresh<feedlane_batch>();
  MonitorHandle local;
  Number places[2], peer, got;
  Out<feedlane_loader> out;
  std::int32_t id = -1;
};

constexpr std::size_t config_bytes = sizeof(feedlane_consumer_config);
constexpr const char* nowhere = "/nonexistent/feedlane";

#define OPEN(what, status, argument, found, needed, feeder, config) \
  REFUSES(feedlane_loader_open_consumer, what, status, argument, found, needed, feeder, config, &f.id, &f.got.value, e)
#define JOIN(what, status, argument, found, needed, fd)                                                   \
  REFUSES(feedlane_loader_join, what, status, argument, found, needed, fd, nullptr, nullptr, patience_ns, \
          f.out.place(), e)
#define JOIN_PATH(what, status, argument, found, needed, path, config) \
  REFUSES(feedlane_loader_join, what, status, argument, found, needed, -1, path, config, patience_ns, f.out.place(), e)

const Row<F> rows[] = {
    OPEN("l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, nullptr),
    REFUSES(feedlane_loader_open_consumer, "id NULL", FEEDLANE_E_ARGUMENT, "id", 0, 1, f.l(), nullptr, nullptr,
            &f.got.value, e),
    REFUSES(feedlane_loader_open_consumer, "fd NULL", FEEDLANE_E_ARGUMENT, "fd", 0, 1, f.l(), nullptr, &f.id, nullptr,
            e),
    OPEN("size 0", FEEDLANE_E_ABI, "config", 0, config_bytes, f.l(), f.of_size(0)),
    OPEN("size 7", FEEDLANE_E_ABI, "config", 7, config_bytes, f.l(), f.of_size(7)),
    OPEN("the largest size", FEEDLANE_E_ABI, "config", -1, config_bytes, f.l(), f.of_size(SIZE_MAX)),
    OPEN("a tail", FEEDLANE_E_ABI, "config", config_bytes + 8, config_bytes, f.l(), f.of_size(config_bytes + 8)),
    OPEN("id -2", FEEDLANE_E_ARGUMENT, "config.id", -2, -1, f.l(), f.as(-2)),
    OPEN("the least id", FEEDLANE_E_ARGUMENT, "config.id", INT32_MIN, -1, f.l(), f.as(INT32_MIN)),
    OPEN("one past the last id", FEEDLANE_E_ARGUMENT, "config.id", 2, 1, f.l(), f.as(2)),
    OPEN("the largest id", FEEDLANE_E_ARGUMENT, "config.id", INT32_MAX, 1, f.l(), f.as(INT32_MAX)),
    OPEN("an id that has a consumer", FEEDLANE_E_ARGUMENT, "config.id", 0, -1, f.with_first(), f.as(0)),
    OPEN("lag -1", FEEDLANE_E_ARGUMENT, "config.lag", -1, 2, f.l(), f.as(-1, -1)),
    OPEN("lag 3", FEEDLANE_E_ARGUMENT, "config.lag", 3, 2, f.l(), f.as(-1, 3)),
    OPEN("deal, observe", FEEDLANE_E_ARGUMENT, "config.lag", 2, 1, f.l(), f.as(-1, FEEDLANE_LAG_OBSERVE)),
    OPEN("evict_after_ns -1", FEEDLANE_E_ARGUMENT, "config.evict_after_ns", -1, 0, f.l(), f.as(-1, 1, -1)),
    OPEN("the least evict_after_ns", FEEDLANE_E_ARGUMENT, "config.evict_after_ns", INT64_MIN, 0, f.l(),
         f.as(-1, 1, INT64_MIN)),
    OPEN("pinned", FEEDLANE_E_ARGUMENT, "config.pinned", 1, 0, f.l(), f.pinned()),
    OPEN("full", FEEDLANE_E_LIMIT, "config.consumers", 2, 3, f.full(), nullptr),
    OPEN("not shared", FEEDLANE_E_STATE, "config.share", 0, 1, f.plain(), nullptr),
    OPEN("a consumer", FEEDLANE_E_STATE, nullptr, 0, 0, f.c(), nullptr),
    OPEN("closed", FEEDLANE_E_STATE, "", 0, 0, f.closed(), nullptr),

    REFUSES(feedlane_loader_serve, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, 0, e),
    REFUSES(feedlane_loader_serve, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.l(), -1, e),
    REFUSES(feedlane_loader_serve, "the least timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", INT64_MIN, 0, f.l(),
            INT64_MIN, e),
    REFUSES(feedlane_loader_serve, "not shared", FEEDLANE_E_STATE, "config.share", 0, 1, f.plain(), 0, e),
    ANSWERS(feedlane_loader_serve, "a consumer", FEEDLANE_E_STATE, f.c(), 0, e),
    REFUSES(feedlane_loader_serve, "closed", FEEDLANE_E_STATE, "", 0, 0, f.closed(), 0, e),
    ANSWERS(feedlane_loader_serve, "no epoch, no consumer", FEEDLANE_TIMEOUT, f.l(), 0, e),

    JOIN("fd -1", FEEDLANE_E_ARGUMENT, "fd", -1, 0, -1),
    JOIN("fd that isn't open", FEEDLANE_E_ARGUMENT, "fd", 1000000, 0, 1000000),
    JOIN("the least fd", FEEDLANE_E_ARGUMENT, "fd", INT32_MIN, 0, INT32_MIN),
    REFUSES(feedlane_loader_join, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.place(), nullptr, nullptr, 0, nullptr,
            e),
    REFUSES(feedlane_loader_join, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.place(), nullptr, nullptr,
            -1, f.out.place(), e),
    JOIN("a pipe", some_error, nullptr, 0, 0, f.pipe_end()),
    JOIN("a worker's socket", FEEDLANE_E_CORRUPT, nullptr, 0, 0, f.worker_socket()),
    JOIN("a socket that says something else", FEEDLANE_E_CORRUPT, nullptr, 0, 0, f.pair_end("hello")),
    JOIN("a socket whose other end is closed", FEEDLANE_E_PEER_DEAD, nullptr, 0, 0, f.pair_end(nullptr, true)),
    ANSWERS(feedlane_loader_join, "a socket that says nothing", FEEDLANE_TIMEOUT, f.pair_end(nullptr), nullptr, nullptr,
            0, f.out.place(), e),

    JOIN_PATH("fd -1, no path", FEEDLANE_E_ARGUMENT, "fd", -1, 0, nullptr, nullptr),
    REFUSES(feedlane_loader_join, "both", FEEDLANE_E_ARGUMENT, "path", 1, 0, f.place(), nowhere, nullptr, 0,
            f.out.place(), e),
    REFUSES(feedlane_loader_join, "an id without a path", FEEDLANE_E_ARGUMENT, "config.id", 1, 0, f.place(), nullptr,
            f.as(1), 0, f.out.place(), e),
    REFUSES(feedlane_loader_join, "a lag without a path", FEEDLANE_E_ARGUMENT, "config.lag", 1, 0, f.place(), nullptr,
            f.as(-1, 1), 0, f.out.place(), e),
    REFUSES(feedlane_loader_join, "evict_after_ns without a path", FEEDLANE_E_ARGUMENT, "config.evict_after_ns", 1, 0,
            f.place(), nullptr, f.as(-1, 0, 1), 0, f.out.place(), e),
    REFUSES(feedlane_loader_join, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, -1, nowhere, nullptr, 0, nullptr, e),
    REFUSES(feedlane_loader_join, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, -1, nowhere, nullptr, -1,
            f.out.place(), e),
    JOIN_PATH("size 0", FEEDLANE_E_ABI, "config", 0, config_bytes, nowhere, f.of_size(0)),
    JOIN_PATH("a tail", FEEDLANE_E_ABI, "config", config_bytes + 8, config_bytes, nowhere, f.of_size(config_bytes + 8)),
    JOIN_PATH("an empty path", some_error, nullptr, 0, 0, "", nullptr),
    JOIN_PATH("too long a path", some_error, nullptr, 0, 0, std::string(200, 'x').c_str(), nullptr),
    JOIN_PATH("nothing there", FEEDLANE_E_PEER_DEAD, nullptr, 0, 0, nowhere, nullptr),
    JOIN_PATH("a folder", some_error, nullptr, 0, 0, "/tmp", nullptr),

    ANSWERS(feedlane_loader_get_consumer, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, 0, &f.stats),
    ANSWERS(feedlane_loader_get_consumer, "out NULL", FEEDLANE_E_ARGUMENT, f.l(), 0, nullptr),
    ANSWERS(feedlane_loader_get_consumer, "out of size 0", FEEDLANE_E_ABI, f.l(), 0, f.stats_of(0)),
    ANSWERS(feedlane_loader_get_consumer, "size only", FEEDLANE_OK, f.l(), 0, f.stats_of(8)),
    ANSWERS(feedlane_loader_get_consumer, "past the last place", FEEDLANE_END, f.l(), 2, &f.stats),
    ANSWERS(feedlane_loader_get_consumer, "the largest nth", FEEDLANE_END, f.l(), INT32_MAX, &f.stats),
    ANSWERS(feedlane_loader_get_consumer, "the nth -1", FEEDLANE_E_ARGUMENT, f.l(), -1, &f.stats),
    ANSWERS(feedlane_loader_get_consumer, "the least nth", FEEDLANE_E_ARGUMENT, f.l(), INT32_MIN, &f.stats),
    ANSWERS(feedlane_loader_get_consumer, "not shared", FEEDLANE_E_STATE, f.plain(), 0, &f.stats),
    ANSWERS(feedlane_loader_get_consumer, "a consumer", FEEDLANE_E_STATE, f.c(), 0, &f.stats),
};

// What is the feeder's, asked of a consumer, and the other way round; epochs and tokens that aren't there.
const Row<F> wrong_side[] = {
    REFUSES(feedlane_loader_next, "a feeder", FEEDLANE_E_STATE, "config.share", 2, 0, f.begun_feeder(), 0, f.room(), e),
    REFUSES(feedlane_loader_begin, "epoch -1", FEEDLANE_E_ARGUMENT, "epoch", -1, 0, f.c(), -1, e),
    REFUSES(feedlane_loader_begin, "the epoch once more", FEEDLANE_E_STATE, "epoch", 3, 4, f.begun(), 3, e),
    REFUSES(feedlane_loader_begin, "the feeder's epoch once more", FEEDLANE_E_STATE, "epoch", 3, 4, f.begun_feeder(), 3,
            e),
    ANSWERS(feedlane_loader_next, "no begin", FEEDLANE_E_STATE, f.c(), 0, f.room(), e),
    ANSWERS(feedlane_loader_next, "a batch of size 0", FEEDLANE_E_ABI, f.begun(), 0,
            &(f.batch = sized<feedlane_batch>(0)), e),
    REFUSES(feedlane_loader_next, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.begun(), -1, f.room(), e),
    ANSWERS(feedlane_loader_state, "nothing of an epoch yet", FEEDLANE_E_STATE, f.begun(), 0, nullptr, 0, &f.bytes, e),
    REFUSES(feedlane_loader_state, "no such token", FEEDLANE_E_STALE, "token", 12345, 0, f.begun(), 12345, nullptr, 0,
            &f.bytes, e),
    ANSWERS(feedlane_batch_release, "no such token", FEEDLANE_E_STALE, f.begun(), 12345),
    ANSWERS(feedlane_batch_retain, "the largest token", FEEDLANE_E_STALE, f.begun(), UINT64_MAX),
    ANSWERS(feedlane_batch_release_on, "a consumer", FEEDLANE_E_STATE, f.begun(), 12345, nullptr, e),
    ANSWERS(feedlane_batch_record_stream, "a consumer", FEEDLANE_E_STATE, f.begun(), 12345, nullptr, e),
    ANSWERS(feedlane_loader_open_worker, "a consumer", FEEDLANE_E_STATE, f.c(), &f.id, &f.got.value, e),
    ANSWERS(feedlane_worker_run, "a consumer", FEEDLANE_E_STATE, -1, f.c(), nullptr, e),
    ANSWERS(feedlane_loader_run_stager, "a consumer", FEEDLANE_E_STATE, f.c(), e),
    ANSWERS(feedlane_monitor_get_worker_stats, "a consumer", FEEDLANE_E_STATE, f.of_consumer(), 0, &f.worker),
    ANSWERS(feedlane_monitor_get_info, "a consumer", FEEDLANE_OK, f.of_consumer(), &f.info),
    ANSWERS(feedlane_monitor_get_timings, "a consumer", FEEDLANE_E_STATE, f.of_consumer(), -1, &f.timings),
    ANSWERS(feedlane_monitor_get_trace, "a consumer", FEEDLANE_E_STATE, f.of_consumer(), 0, &f.record, 1, &f.bytes),
    ANSWERS(feedlane_monitor_get_error, "a consumer", FEEDLANE_E_STATE, f.of_consumer(), 0, &f.error),
    ANSWERS(feedlane_monitor_diagnose, "a consumer", FEEDLANE_E_STATE, f.of_consumer(), &f.diagnosis),
    ANSWERS(feedlane_monitor_report, "a consumer", FEEDLANE_E_STATE, f.of_consumer(), nullptr, 0, &f.bytes, e),
};

#define FORKED(function, ...) ANSWERS(function, "forked", FEEDLANE_E_FORKED, __VA_ARGS__)
const Row<F> forked_rows[] = {
    FORKED(feedlane_loader_open_consumer, f.feeder.get(), nullptr, &f.id, &f.got.value, e),
    FORKED(feedlane_loader_serve, f.feeder.get(), 0, e),
    FORKED(feedlane_loader_get_consumer, f.feeder.get(), 0, &f.stats),
    FORKED(feedlane_loader_begin, f.consumer.get(), 4, e),
    FORKED(feedlane_loader_next, f.consumer.get(), 0, f.room(), e),
    FORKED(feedlane_loader_state, f.consumer.get(), 0, nullptr, 0, &f.bytes, e),
    FORKED(feedlane_loader_stop, f.consumer.get(), e),
};

const Counted counted{rows}, counted_wrong{wrong_side}, counted_forked{forked_rows};

feedlane_loader_config* with(Setup& s, void (*change)(feedlane_loader_config&)) {
  s.external(1);
  s.connect();
  change(s.config);
  return &s.config;
}

}  // namespace

// promise: share-refused
TEST_CASE("bad input: shared loaders") { check_rows(rows); }

// promise: share-refused
TEST_CASE("bad input: a consumer is asked for a feeder's functions, or a feeder for a consumer's") {
  check_rows(wrong_side);
}

// promise: share-fork
TEST_CASE("bad input: shared loaders in a forked child") {
  F f;
  (void)f.begun();
  check_forked(f, forked_rows);
  std::int64_t epoch = -1;
  CHECK(next_epoch_of(f.c(), &epoch) == FEEDLANE_OK);
  CHECK(epoch == 4);
  CHECK(feedlane_loader_get_consumer(f.l(), 0, &f.stats) == FEEDLANE_OK);
}

// promise: share-refused
TEST_CASE("bad input: configuration members of a shared loader") {
  struct Bad {
    const char* argument;
    std::int64_t found;
    void (*change)(feedlane_loader_config& c);
  };
  const Bad all[] = {
      {"config.share", 3, [](feedlane_loader_config& c) { c.share = 3; }},
      {"config.share", -1, [](feedlane_loader_config& c) { c.share = -1; }},
      {"config.consumers", -1, [](feedlane_loader_config& c) { c.share = 1, c.consumers = -1; }},
      {"config.consumers", 1025, [](feedlane_loader_config& c) { c.share = 1, c.consumers = 1025; }},
      {"config.consumers", 2, [](feedlane_loader_config& c) { c.consumers = 2; }},
      {"config.share_path", 1, [](feedlane_loader_config& c) { c.share_path = nowhere; }},
      {"config.share_path", 0, [](feedlane_loader_config& c) { c.share = 1, c.share_path = ""; }},
      {"config.share_tail", 2, [](feedlane_loader_config& c) { c.share = 2, c.share_tail = 2; }},
      {"config.share_tail", 1, [](feedlane_loader_config& c) { c.share = 1, c.share_tail = 1; }},
      {"config.share_reserved", 1, [](feedlane_loader_config& c) { c.share = 1, c.share_reserved = 1; }},
      {"config.workers", 0, [](feedlane_loader_config& c) { c.share = 1, c.workers = 0, c.start = 0; }},
  };
  for (const Bad& bad : all) {
    CAPTURE(std::string(bad.argument));
    CAPTURE(bad.found);
    Setup s(6, 2);
    Out<feedlane_loader> out;
    Error e;
    CHECK(feedlane_loader_create(with(s, bad.change), out.place(), &e) == FEEDLANE_E_ARGUMENT);
    CHECK(std::string(e.argument) == bad.argument);
    CHECK(e.found == bad.found);
    CHECK(out.handle == nullptr);
  }
}
