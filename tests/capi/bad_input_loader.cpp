// SPDX-License-Identifier: Apache-2.0
// Bad input: the trainer's side. What a configuration may not say is refusal_test.cpp's.
#include <fcntl.h>

#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

struct F {
  ~F() {
    if (token != 0) (void)feedlane_batch_release(held_by, token);
  }
  // Loaders of each kind; inline but for the others.
  feedlane_loader* l() {
    return made([](Setup&) {});
  }
  feedlane_loader* spawn() {
    return made([](Setup& s) { s.workers(1); });
  }
  feedlane_loader* external() {
    return made([](Setup& s) { s.external(1); });
  }
  feedlane_loader* threads() {
    return made([](Setup& s) { s.external(1).config.start = FEEDLANE_START_THREAD; });
  }
  feedlane_loader* begun(feedlane_loader* of) {
    REQUIRE(feedlane_loader_begin(of, 0, nullptr) == FEEDLANE_OK);
    return of;
  }
  feedlane_loader* stopped() {
    REQUIRE(feedlane_loader_stop(begun(l()), nullptr) == FEEDLANE_OK);
    return l();
  }
  feedlane_loader* ended() {
    (void)begun(l());
    while (take(l()).status == FEEDLANE_OK) continue;
    return l();
  }
  // "none" with two buffers.
  feedlane_pool* p() {
    if (pool != nullptr) return pool.get();
    auto c = fresh<feedlane_pool_config>();
    c.buffers = 2;
    c.buffer_bytes = 4096;
    feedlane_pool* made = nullptr;
    REQUIRE(feedlane_pool_create(&c, &made, nullptr) == FEEDLANE_OK);
    pool.reset(made);
    return made;
  }
  // With a batch of 16 bytes a tensor in hand.
  feedlane_loader* pinned() {
    (void)made([this](Setup& s) { s.config.pinned = p(); });
    return holding();
  }
  std::uint64_t pinned_token() {
    (void)pinned();
    return token;
  }
  feedlane_loader* staged() {
    return made([this](Setup& s) {
      s.config.pinned = p();
      s.config.staged = 2;
    });
  }
  // With a batch in hand.
  feedlane_loader* holding() {
    if (token != 0) return held_by;
    auto taken = fresh<feedlane_batch>();
    REQUIRE(feedlane_loader_next(begun(l()), patience_ns, &taken, nullptr) == FEEDLANE_OK);
    token = taken.token;
    return held_by = l();
  }
  // Destroyed while a batch is in hand.
  feedlane_loader* gone() {
    REQUIRE(feedlane_loader_destroy(copy(holding())) == FEEDLANE_OK);
    return held_by;
  }
  std::uint64_t held_token() {
    (void)holding();
    return token;
  }
  std::uint64_t stale_token() {
    const std::uint64_t stale = held_token();
    token = 0;
    REQUIRE(feedlane_batch_release(l(), stale) == FEEDLANE_OK);
    return stale;
  }
  feedlane_loader* offered() {
    std::int32_t any = -1;
    REQUIRE(feedlane_loader_open_worker(external(), &any, &fd.value, nullptr) == FEEDLANE_OK);
    return external();
  }
  feedlane_loader* joined() {
    feedlane_worker* w = nullptr;
    REQUIRE(feedlane_worker_attach(-1, threads(), FEEDLANE_FOREVER, &w, nullptr) == FEEDLANE_OK);
    worker.reset(w);
    return threads();
  }
  feedlane_loader** copy(feedlane_loader* of) {
    handle = of;
    if (loader.get() == of) (void)loader.release();
    return &handle;
  }
  static std::int32_t descriptor() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
  std::int32_t* number(std::int32_t wanted) { return &(id = wanted); }
  feedlane_batch* batch_of(std::size_t size) { return &(batch = sized<feedlane_batch>(size)); }
  feedlane_loader_config* config_of(std::size_t size) {
    setup.connect();
    config.known = setup.config;
    config.known.size = size;
    return &config.known;
  }
  [[nodiscard]] bool is_clean() const { return !out.is_poisoned() && !worker_out.is_poisoned(); }

  Setup setup{6, 2};
  std::unique_ptr<feedlane_pool, DestroyAny> pool;  // outlives the loader
  Loader loader;
  Worker worker;  // leaves before the loader is destroyed
  feedlane_loader* handle = nullptr;
  feedlane_loader* held_by = nullptr;
  std::uint64_t token = 0;
  feedlane_batch batch = fresh<feedlane_batch>();
  feedlane_state_info info = fresh<feedlane_state_info>();
  char room[600] = {};
  std::uint64_t got = 0;
  void* dlpack = nullptr;
  feedlane_event event = fresh<feedlane_event>();
  Later<feedlane_loader_config> config{fresh<feedlane_loader_config>()};
  Out<feedlane_loader> out;
  Out<feedlane_worker> worker_out;
  std::int32_t id = -1;
  Number fd;
  std::int32_t borrowed = -1;

 private:
  template <class Change>
  feedlane_loader* made(Change&& change) {
    if (loader == nullptr) {
      change(setup);
      loader = setup.create();
    }
    return loader.get();
  }
};

template <class T>
T* of_size(T& object, std::size_t size) {
  object.size = size;
  return &object;
}

constexpr std::size_t config_bytes = sizeof(feedlane_loader_config);
constexpr std::size_t batch_bytes = sizeof(feedlane_batch);

const Row<F> life_rows[] = {
    REFUSES(feedlane_loader_create, "config NULL", FEEDLANE_E_ARGUMENT, "config", 0, 1, nullptr, f.out.place(), e),
    REFUSES(feedlane_loader_create, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.config_of(config_bytes), nullptr,
            e),
    REFUSES(feedlane_loader_create, "size 0", FEEDLANE_E_ABI, "config", 0, config_bytes, f.config_of(0), f.out.place(),
            e),
    REFUSES(feedlane_loader_create, "size 7", FEEDLANE_E_ABI, "config", 7, config_bytes, f.config_of(7), f.out.place(),
            e),
    REFUSES(feedlane_loader_create, "size only", FEEDLANE_E_ARGUMENT, "config.sampler", 0, 1, f.config_of(8),
            f.out.place(), e),
    REFUSES(feedlane_loader_create, "the largest size", FEEDLANE_E_ABI, "config", -1, config_bytes,
            f.config_of(SIZE_MAX), f.out.place(), e),
    REFUSES(feedlane_loader_create, "a tail that says something", FEEDLANE_E_ABI, "config", config_bytes + 8,
            config_bytes, f.config_of(config_bytes + 8), f.out.place(), e),
    ANSWERS(feedlane_loader_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_loader_destroy, "a NULL handle", FEEDLANE_OK, &f.handle),
    ANSWERS(feedlane_loader_destroy, "a second time, by a copy", FEEDLANE_E_STATE, f.copy(f.gone())),
    ANSWERS(feedlane_loader_close, "NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_loader_ref, "NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_loader_unref, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_loader_close, "destroyed", FEEDLANE_E_STATE, f.gone()),
    ANSWERS(feedlane_loader_ref, "destroyed", FEEDLANE_E_STATE, f.gone()),
    ANSWERS(feedlane_loader_unref, "destroyed", FEEDLANE_E_STATE, f.gone()),
    REFUSES(feedlane_loader_begin, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, 0, e),
    REFUSES(feedlane_loader_begin, "epoch -1", FEEDLANE_E_ARGUMENT, "epoch", -1, 0, f.l(), -1, e),
    REFUSES(feedlane_loader_begin, "the least epoch", FEEDLANE_E_ARGUMENT, "epoch", INT64_MIN, 0, f.l(), INT64_MIN, e),
    REFUSES(feedlane_loader_begin, "destroyed", FEEDLANE_E_STATE, "", 0, 0, f.gone(), 0, e),
    REFUSES(feedlane_loader_stop, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, e),
    REFUSES(feedlane_loader_stop, "never begun", FEEDLANE_OK, "", 0, 0, f.spawn(), e),
    REFUSES(feedlane_loader_stop, "twice", FEEDLANE_OK, "", 0, 0, f.stopped(), e),
    REFUSES(feedlane_loader_stop, "destroyed", FEEDLANE_E_STATE, "", 0, 0, f.gone(), e),
    ANSWERS(feedlane_loader_interrupt, "l NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_loader_interrupt, "destroyed", FEEDLANE_E_STATE, f.gone()),
    ANSWERS(feedlane_loader_arm, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, nullptr),
    ANSWERS(feedlane_loader_arm, "destroyed", FEEDLANE_E_STATE, f.gone(), nullptr),
    REFUSES(feedlane_loader_poll, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, e),
    REFUSES(feedlane_loader_poll, "never begun", FEEDLANE_OK, "", 0, 0, f.spawn(), e),
    REFUSES(feedlane_loader_poll, "destroyed", FEEDLANE_E_STATE, "", 0, 0, f.gone(), e),
};

#define DLPACK(flags)                                                                                                \
  REFUSES(feedlane_batch_dlpack, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, 1, 0, flags, &f.dlpack, e),      \
      REFUSES(feedlane_batch_dlpack, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.holding(), f.held_token(), 0,   \
              flags, nullptr, e),                                                                                    \
      REFUSES(feedlane_batch_dlpack, "tensor -1", FEEDLANE_E_ARGUMENT, "tensor", -1, 2, f.holding(), f.held_token(), \
              -1, flags, &f.dlpack, e),                                                                              \
      REFUSES(feedlane_batch_dlpack, "tensor past the last", FEEDLANE_E_ARGUMENT, "tensor", 2, 2, f.holding(),       \
              f.held_token(), 2, flags, &f.dlpack, e),                                                               \
      REFUSES(feedlane_batch_dlpack, "unknown flags", FEEDLANE_E_ARGUMENT, "flags", 4 | (flags), 3, f.holding(),     \
              f.held_token(), 0, 4 | (flags), &f.dlpack, e),                                                         \
      REFUSES(feedlane_batch_dlpack, "not registered", FEEDLANE_E_STATE, "", 0, 0, f.holding(), f.held_token(), 0,   \
              FEEDLANE_DLPACK_PINNED | (flags), &f.dlpack, e),                                                    \
      REFUSES(feedlane_batch_dlpack, "token 0", FEEDLANE_E_STALE, "", 0, 0, f.holding(), 0, 0, flags, &f.dlpack, e), \
      REFUSES(feedlane_batch_dlpack, "released", FEEDLANE_E_STALE, "", 0, 0, f.l(), f.stale_token(), 0, flags,       \
              &f.dlpack, e)

const Row<F> batch_rows[] = {
    REFUSES(feedlane_loader_next, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, 0, &f.batch, e),
    REFUSES(feedlane_loader_next, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.begun(f.l()), 0, nullptr, e),
    REFUSES(feedlane_loader_next, "out of size 0", FEEDLANE_E_ABI, "out", 0, batch_bytes, f.begun(f.l()), 0,
            f.batch_of(0), e),
    REFUSES(feedlane_loader_next, "no room for the token", FEEDLANE_E_ABI, "out", 8, 16, f.begun(f.l()), 0,
            f.batch_of(8), e),
    REFUSES(feedlane_loader_next, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.begun(f.l()), -1, &f.batch,
            e),
    REFUSES(feedlane_loader_next, "the least timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", INT64_MIN, 0, f.begun(f.l()),
            INT64_MIN, &f.batch, e),
    REFUSES(feedlane_loader_next, "before begin", FEEDLANE_E_STATE, "", 0, 0, f.l(), FEEDLANE_FOREVER, &f.batch, e),
    REFUSES(feedlane_loader_next, "before begin, with workers", FEEDLANE_E_STATE, "", 0, 0, f.spawn(), FEEDLANE_FOREVER,
            &f.batch, e),
    REFUSES(feedlane_loader_next, "after stop", FEEDLANE_E_STATE, "", 0, 0, f.stopped(), 0, &f.batch, e),
    REFUSES(feedlane_loader_next, "after the end", FEEDLANE_END, "", 0, 0, f.ended(), FEEDLANE_FOREVER, &f.batch, e),
    REFUSES(feedlane_loader_next, "nobody there", FEEDLANE_E_PEER_DEAD, "workers", 0, 1, f.begun(f.external()),
            FEEDLANE_FOREVER, &f.batch, e),
    REFUSES(feedlane_loader_next, "destroyed", FEEDLANE_E_STATE, "", 0, 0, f.gone(), 0, &f.batch, e),
    ANSWERS(feedlane_batch_retain, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, 1),
    ANSWERS(feedlane_batch_retain, "token 0", FEEDLANE_E_STALE, f.holding(), 0),
    ANSWERS(feedlane_batch_retain, "a slot that isn't", FEEDLANE_E_STALE, f.holding(), UINT64_MAX),
    ANSWERS(feedlane_batch_retain, "a generation to come", FEEDLANE_E_STALE, f.holding(),
            f.held_token() + (UINT64_C(1) << 40)),
    ANSWERS(feedlane_batch_retain, "released", FEEDLANE_E_STALE, f.l(), f.stale_token()),
    ANSWERS(feedlane_batch_release, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, 1),
    ANSWERS(feedlane_batch_release, "token 0", FEEDLANE_E_STALE, f.holding(), 0),
    ANSWERS(feedlane_batch_release, "a slot that isn't", FEEDLANE_E_STALE, f.holding(), UINT64_MAX),
    ANSWERS(feedlane_batch_release, "a free slot's", FEEDLANE_E_STALE, f.holding(), f.held_token() ^ 1),
    ANSWERS(feedlane_batch_release, "twice", FEEDLANE_E_STALE, f.l(), f.stale_token()),
    DLPACK(0),
    DLPACK(FEEDLANE_DLPACK_LEGACY),
    REFUSES(feedlane_batch_release_on, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, 1, nullptr, e),
    REFUSES(feedlane_batch_release_on, "no pool", FEEDLANE_E_STATE, "config.pinned", 0, 1, f.holding(), f.held_token(),
            nullptr, e),
    REFUSES(feedlane_batch_release_on, "token 0", FEEDLANE_E_STALE, "", 0, 0, f.pinned(), 0, nullptr, e),
    REFUSES(feedlane_batch_release_on, "a generation to come", FEEDLANE_E_STALE, "", 0, 0, f.pinned(),
            f.pinned_token() + (UINT64_C(1) << 40), nullptr, e),
    REFUSES(feedlane_batch_record_stream, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, 1, nullptr, e),
    REFUSES(feedlane_batch_record_stream, "no pool", FEEDLANE_E_STATE, "config.pinned", 0, 1, f.holding(),
            f.held_token(), nullptr, e),
    REFUSES(feedlane_batch_record_stream, "token 0", FEEDLANE_E_STALE, "", 0, 0, f.pinned(), 0, nullptr, e),
    REFUSES(feedlane_batch_record_stream, "a generation to come", FEEDLANE_E_STALE, "", 0, 0, f.pinned(),
            f.pinned_token() + (UINT64_C(1) << 40), nullptr, e),
    REFUSES(feedlane_loader_run_stager, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, e),
    REFUSES(feedlane_loader_run_stager, "not staged", FEEDLANE_E_STATE, "config.staged", 0, 1, f.l(), e),
    REFUSES(feedlane_loader_run_stager, "inline", FEEDLANE_E_STATE, "config.workers", 0, 1, f.staged(), e),
    REFUSES(feedlane_loader_run_stager, "destroyed", FEEDLANE_E_STATE, "", 0, 0, f.gone(), e),
    REFUSES(feedlane_loader_state, "l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, 0, f.room, sizeof f.room, &f.got,
            e),
    REFUSES(feedlane_loader_state, "bytes NULL", FEEDLANE_E_ARGUMENT, "bytes", 0, 1, f.holding(), 0, f.room,
            sizeof f.room, nullptr, e),
    REFUSES(feedlane_loader_state, "buffer NULL", FEEDLANE_E_ARGUMENT, "buffer", 0, 1, f.holding(), 0, nullptr, 1,
            &f.got, e),
    REFUSES(feedlane_loader_state, "before begin", FEEDLANE_E_STATE, "", 0, 0, f.l(), 0, f.room, sizeof f.room, &f.got,
            e),
    ANSWERS(feedlane_loader_state, "no room", FEEDLANE_E_LIMIT, f.holding(), 0, f.room, 1, &f.got, e),
    ANSWERS(feedlane_loader_state, "a stale token", FEEDLANE_E_STALE, f.l(), f.stale_token(), f.room, sizeof f.room,
            &f.got, e),
    ANSWERS(feedlane_loader_state, "no token", FEEDLANE_E_STALE, f.holding(), UINT64_MAX, f.room, sizeof f.room, &f.got,
            e),
    ANSWERS(feedlane_loader_state, "destroyed", FEEDLANE_E_STATE, f.gone(), 0, f.room, sizeof f.room, &f.got, e),
    REFUSES(feedlane_state_read, "state NULL", FEEDLANE_E_ARGUMENT, "state", 0, 1, nullptr, 1, &f.info, e),
    REFUSES(feedlane_state_read, "no bytes", FEEDLANE_E_CORRUPT, "state", 0, 24, f.room, 0, &f.info, e),
    REFUSES(feedlane_state_read, "zeroes", FEEDLANE_E_CORRUPT, "state", 600, 24, f.room, sizeof f.room, &f.info, e),
    REFUSES(feedlane_state_read, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.room, 1, nullptr, e),
    ANSWERS(feedlane_state_read, "out of size 7", FEEDLANE_E_ABI, f.room, 1, of_size(f.info, 7), e),
    ANSWERS(feedlane_loader_event, "l NULL", FEEDLANE_E_ARGUMENT, nullptr, &f.event),
    ANSWERS(feedlane_loader_event, "out NULL", FEEDLANE_E_ARGUMENT, f.l(), nullptr),
    ANSWERS(feedlane_loader_event, "out of size 0", FEEDLANE_E_ABI, f.l(), of_size(f.event, 0)),
    ANSWERS(feedlane_loader_event, "destroyed", FEEDLANE_E_STATE, f.gone(), &f.event),
};

#define OPEN(what, status, argument, found, needed, loader, wanted) \
  REFUSES(feedlane_loader_open_worker, what, status, argument, found, needed, loader, f.number(wanted), &f.borrowed, e)

const Row<F> worker_rows[] = {
    REFUSES(feedlane_loader_open_worker, "id NULL", FEEDLANE_E_ARGUMENT, "id", 0, 1, f.external(), nullptr, &f.borrowed,
            e),
    REFUSES(feedlane_loader_open_worker, "fd NULL", FEEDLANE_E_ARGUMENT, "fd", 0, 1, f.external(), f.number(-1),
            nullptr, e),
    OPEN("l NULL", FEEDLANE_E_ARGUMENT, "l", 0, 1, nullptr, -1),
    OPEN("inline", FEEDLANE_E_STATE, "config.start", 0, FEEDLANE_START_EXTERNAL, f.l(), -1),
    OPEN("spawn", FEEDLANE_E_STATE, "config.start", 0, FEEDLANE_START_EXTERNAL, f.spawn(), -1),
    OPEN("thread", FEEDLANE_E_STATE, "config.start", 2, FEEDLANE_START_EXTERNAL, f.threads(), -1),
    OPEN("worker -2", FEEDLANE_E_ARGUMENT, "id", -2, 0, f.external(), -2),
    OPEN("the least worker", FEEDLANE_E_ARGUMENT, "id", INT32_MIN, 0, f.external(), INT32_MIN),
    OPEN("one past the last", FEEDLANE_E_ARGUMENT, "id", 1, 0, f.external(), 1),
    OPEN("the largest worker", FEEDLANE_E_ARGUMENT, "id", INT32_MAX, 0, f.external(), INT32_MAX),
    OPEN("there already", FEEDLANE_E_STATE, "id", 0, -1, f.offered(), 0),
    OPEN("none missing", FEEDLANE_END, "", 0, 0, f.offered(), -1),
    OPEN("destroyed", FEEDLANE_E_STATE, "", 0, 0, f.gone(), -1),
    REFUSES(feedlane_worker_attach, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, -1, f.threads(), FEEDLANE_FOREVER,
            nullptr, e),
    REFUSES(feedlane_worker_attach, "inline", FEEDLANE_E_STATE, "config.start", 0, FEEDLANE_START_THREAD, -1, f.l(),
            FEEDLANE_FOREVER, f.worker_out.place(), e),
    REFUSES(feedlane_worker_attach, "spawn", FEEDLANE_E_STATE, "config.start", 0, FEEDLANE_START_THREAD, -1, f.spawn(),
            FEEDLANE_FOREVER, f.worker_out.place(), e),
    REFUSES(feedlane_worker_attach, "external", FEEDLANE_E_STATE, "config.start", 3, FEEDLANE_START_THREAD, -1,
            f.external(), FEEDLANE_FOREVER, f.worker_out.place(), e),
    REFUSES(feedlane_worker_attach, "none missing", FEEDLANE_END, "", 0, 0, -1, f.joined(), FEEDLANE_FOREVER,
            f.worker_out.place(), e),
    REFUSES(feedlane_worker_attach, "destroyed", FEEDLANE_E_STATE, "", 0, 0, -1, f.gone(), FEEDLANE_FOREVER,
            f.worker_out.place(), e),
    REFUSES(feedlane_worker_attach, "fd and l", FEEDLANE_E_ARGUMENT, "l", 1, 0, f.descriptor(), f.threads(),
            FEEDLANE_FOREVER, f.worker_out.place(), e),
    REFUSES(feedlane_worker_run, "fd and l", FEEDLANE_E_ARGUMENT, "l", 1, 0, f.descriptor(), f.threads(), nullptr, e),
    REFUSES(feedlane_worker_run, "no data set", FEEDLANE_E_STATE, "config.dataset", 0, 1, -1, f.threads(), nullptr, e),
    REFUSES(feedlane_worker_run, "spawn", FEEDLANE_E_STATE, "config.dataset", 0, 1, -1, f.spawn(), nullptr, e),
    REFUSES(feedlane_worker_run, "inline", FEEDLANE_E_STATE, "config.start", 0, FEEDLANE_START_THREAD, -1, f.l(),
            nullptr, e),
    REFUSES(feedlane_worker_run, "destroyed", FEEDLANE_E_STATE, "", 0, 0, -1, f.gone(), nullptr, e),
};

#define FORKED(function, ...) REFUSES(function, "forked", FEEDLANE_E_FORKED, "", 0, 0, __VA_ARGS__, e)
#define FORKED_ANSWER(function, ...) ANSWERS(function, "forked", FEEDLANE_E_FORKED, __VA_ARGS__)

const Row<F> forked_rows[] = {
    FORKED(feedlane_loader_begin, f.held_by, 0),
    FORKED(feedlane_loader_next, f.held_by, FEEDLANE_FOREVER, &f.batch),
    FORKED(feedlane_loader_poll, f.held_by),
    FORKED(feedlane_loader_stop, f.held_by),
    FORKED(feedlane_loader_open_worker, f.held_by, &f.id, &f.borrowed),
    FORKED(feedlane_worker_attach, -1, f.held_by, FEEDLANE_FOREVER, f.worker_out.place()),
    FORKED(feedlane_worker_run, -1, f.held_by, nullptr),
    FORKED_ANSWER(feedlane_loader_arm, f.held_by, nullptr),
    FORKED_ANSWER(feedlane_loader_interrupt, f.held_by),
    FORKED_ANSWER(feedlane_batch_retain, f.held_by, f.token),
    FORKED_ANSWER(feedlane_batch_release, f.held_by, f.token),
    FORKED(feedlane_batch_release_on, f.held_by, f.token, nullptr),
    FORKED(feedlane_batch_record_stream, f.held_by, f.token, nullptr),
    FORKED(feedlane_loader_run_stager, f.held_by),
    FORKED(feedlane_batch_dlpack, f.held_by, f.token, 0, 0, &f.dlpack),
    FORKED_ANSWER(feedlane_loader_state, f.held_by, 0, f.room, sizeof f.room, &f.got, nullptr),
    FORKED_ANSWER(feedlane_loader_event, f.held_by, &f.event),
    FORKED_ANSWER(feedlane_loader_close, f.held_by),
    FORKED_ANSWER(feedlane_loader_ref, f.held_by),
    FORKED_ANSWER(feedlane_loader_unref, f.held_by),
    ANSWERS(feedlane_loader_destroy, "forked", FEEDLANE_OK, f.copy(f.held_by)),
};

const Counted life{life_rows}, batches{batch_rows}, workers{worker_rows}, forked{forked_rows};

}  // namespace

TEST_CASE("bad input: creating, starting and stopping a loader") { check_rows(life_rows); }

TEST_CASE("bad input: batches and counters") { check_rows(batch_rows); }

TEST_CASE("bad input: a loader's workers") { check_rows(worker_rows); }

TEST_CASE("bad input: a loader in a forked child") {
  F f;
  (void)f.holding();
  check_forked(f, forked_rows);
  CHECK(feedlane_batch_retain(f.held_by, f.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(f.held_by, f.token) == FEEDLANE_OK);
}
