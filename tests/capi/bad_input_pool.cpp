// SPDX-License-Identifier: Apache-2.0
// Bad input: pools of registered memory.
#include "bad_input.hpp"

using namespace feedlane::test;

namespace {

std::int32_t accept(void*, void*, std::uint64_t, feedlane_error*) { return FEEDLANE_OK; }

struct F {
  F() {
    table.register_memory = accept;
    table.unregister_memory = accept;
  }
  ~F() {
    if (token != 0) (void)feedlane_pool_release(p(), token, FEEDLANE_NO_STREAM, nullptr);
  }
  feedlane_pool* p() {
    if (pool != nullptr) return pool.get();
    config.buffers = 1;
    config.buffer_bytes = 4096;
    REQUIRE(feedlane_pool_create(&config, &handle, nullptr) == FEEDLANE_OK);
    pool.reset(handle);
    return handle;
  }
  feedlane_pool* without_buffers() {
    feedlane_pool* made = nullptr;
    REQUIRE(feedlane_pool_create(&config, &made, nullptr) == FEEDLANE_OK);
    pool.reset(made);
    return made;
  }
  // A table that can only register.
  feedlane_pool* poor() {
    config.custom = &table;
    return p();
  }
  std::uint64_t poor_token() {
    (void)holding(poor());
    return token;
  }
  feedlane_pool* holding() { return holding(p()); }
  feedlane_pool* holding(feedlane_pool* of) {
    if (token != 0) return of;
    auto b = fresh<feedlane_buffer>();
    REQUIRE(feedlane_pool_acquire(of, 0, &b, nullptr) == FEEDLANE_OK);
    token = b.token;
    buffer = b;
    return of;
  }
  std::uint64_t held() {
    (void)holding(p());
    return token;
  }
  void* data() {
    (void)held();
    return buffer.data;
  }
  void* poor_data() {
    (void)holding(poor());
    return buffer.data;
  }
  std::uint64_t stale() {
    const std::uint64_t old = held();
    token = 0;
    REQUIRE(feedlane_pool_release(p(), old, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
    return old;
  }
  feedlane_pool** copy() {
    handle = p();
    if (token == 0) (void)pool.release();
    return &handle;
  }
  template <class Change>
  feedlane_pool_config* with(Change&& change) {
    change(config);
    return &config;
  }
  feedlane_pool_config* longer() {
    later.known = config;
    later.known.size = sizeof later;
    return &later.known;
  }
  feedlane_buffer* buffer_of(std::size_t size) { return &(buffer = sized<feedlane_buffer>(size)); }
  [[nodiscard]] bool is_clean() const { return !out.is_poisoned(); }

  feedlane_backend table = fresh<feedlane_backend>();
  feedlane_pool_config config = fresh<feedlane_pool_config>();
  Later<feedlane_pool_config> later{fresh<feedlane_pool_config>()};
  std::unique_ptr<feedlane_pool, DestroyAny> pool;
  feedlane_pool* handle = nullptr;
  std::uint64_t token = 0;
  feedlane_buffer buffer = fresh<feedlane_buffer>();
  feedlane_pool_stats stats = fresh<feedlane_pool_stats>();
  char room[16] = {};
  Out<feedlane_pool> out;
};

#define CREATE(what, status, argument, found, needed, change) \
  REFUSES(feedlane_pool_create, what, status, argument, found, needed, f.with([&](auto& c) change), f.out.place(), e)

const Row<F> create_rows[] = {
    REFUSES(feedlane_pool_create, "config NULL", FEEDLANE_E_ARGUMENT, "config", 0, 1, nullptr, f.out.place(), e),
    REFUSES(feedlane_pool_create, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, &f.config, nullptr, e),
    CREATE("config of size 0", FEEDLANE_E_ABI, "config", 0, sizeof(feedlane_pool_config), { c.size = 0; }),
    REFUSES(feedlane_pool_create, "a longer config with something in it", FEEDLANE_E_ABI, "config",
            sizeof(Later<feedlane_pool_config>), sizeof(feedlane_pool_config), f.longer(), f.out.place(), e),
    CREATE("no such backend", FEEDLANE_E_UNSUPPORTED, "config.backend", 0, 0, { c.backend = "opencl"; }),
    CREATE("an empty name", FEEDLANE_E_UNSUPPORTED, "config.backend", 0, 0, { c.backend = ""; }),
    CREATE("two backends", FEEDLANE_E_ARGUMENT, "config.backend", 1, 0,
           {
             c.backend = "none";
             c.custom = &f.table;
           }),
    CREATE("a device that none has", FEEDLANE_E_ARGUMENT, "config.device", 1, 0, { c.device = 1; }),
    CREATE("mlock's device", FEEDLANE_E_ARGUMENT, "config.device", -1, 0,
           {
             c.backend = "mlock";
             c.device = -1;
           }),
    CREATE("CUDA's device -1", FEEDLANE_E_ARGUMENT, "config.device", -1, 0,
           {
             c.backend = "cuda";
             c.device = -1;
           }),
    CREATE("a table of size 0", FEEDLANE_E_ABI, "config.custom", 0, sizeof(feedlane_backend),
           {
             f.table.size = 0;
             c.custom = &f.table;
           }),
    CREATE("a table that can't register", FEEDLANE_E_ARGUMENT, "config.custom.register_memory", 0, 1,
           {
             f.table.register_memory = nullptr;
             c.custom = &f.table;
           }),
    CREATE("a table that can't unregister", FEEDLANE_E_ARGUMENT, "config.custom.unregister_memory", 0, 1,
           {
             f.table.unregister_memory = nullptr;
             c.custom = &f.table;
           }),
    CREATE("too many buffers", FEEDLANE_E_ARGUMENT, "config.buffers", 65'537, 65'536, { c.buffers = 65'537; }),
    CREATE("buffers of no bytes", FEEDLANE_E_ARGUMENT, "config.buffer_bytes", 0, 1, { c.buffers = 1; }),
    CREATE("bytes of no buffers", FEEDLANE_E_ARGUMENT, "config.buffer_bytes", 1, 0, { c.buffer_bytes = 1; }),
    CREATE("the largest bytes", FEEDLANE_E_ARGUMENT, "config.buffer_bytes", INT64_MAX, INT64_C(1) << 40,
           {
             c.buffers = 1;
             c.buffer_bytes = UINT64_MAX;
           }),
    CREATE("beyond the address space", FEEDLANE_E_MEMORY, "config.buffer_bytes", 0, INT64_C(1) << 56,
           {
             c.buffers = 65'536;
             c.buffer_bytes = UINT64_C(1) << 40;
           }),
    CREATE("beyond the budget", FEEDLANE_E_LIMIT, "config.budget_bytes", 4096, 8192,
           {
             c.buffers = 2;
             c.buffer_bytes = 1;
             c.budget_bytes = 4096;
           }),
};

const Row<F> rows[] = {
    REFUSES(feedlane_pool_acquire, "p NULL", FEEDLANE_E_ARGUMENT, "p", 0, 1, nullptr, 0, &f.buffer, e),
    REFUSES(feedlane_pool_acquire, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.p(), 0, nullptr, e),
    REFUSES(feedlane_pool_acquire, "out of size 0", FEEDLANE_E_ABI, "out", 0, sizeof(feedlane_buffer), f.p(), 0,
            f.buffer_of(0), e),
    REFUSES(feedlane_pool_acquire, "no room for the address", FEEDLANE_E_ABI, "out", 16, 24, f.p(), 0, f.buffer_of(16),
            e),
    REFUSES(feedlane_pool_acquire, "timeout -1", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.p(), -1, &f.buffer, e),
    REFUSES(feedlane_pool_acquire, "no buffers", FEEDLANE_E_STATE, "config.buffers", 0, 1, f.without_buffers(),
            FEEDLANE_FOREVER, &f.buffer, e),
    REFUSES(feedlane_pool_acquire, "none left", FEEDLANE_TIMEOUT, "", 0, 0, f.holding(), 0, &f.buffer, e),
    ANSWERS(feedlane_pool_release, "p NULL", FEEDLANE_E_ARGUMENT, nullptr, 1, FEEDLANE_NO_STREAM, nullptr),
    ANSWERS(feedlane_pool_release, "token 0", FEEDLANE_E_STALE, f.holding(), 0, FEEDLANE_NO_STREAM, nullptr),
    ANSWERS(feedlane_pool_release, "no such buffer", FEEDLANE_E_STALE, f.holding(), f.held() + 1, FEEDLANE_NO_STREAM,
            nullptr),
    ANSWERS(feedlane_pool_release, "a generation to come", FEEDLANE_E_STALE, f.holding(),
            f.held() + (UINT64_C(1) << 32), FEEDLANE_NO_STREAM, nullptr),
    ANSWERS(feedlane_pool_release, "any number", FEEDLANE_E_STALE, f.holding(), UINT64_MAX, FEEDLANE_NO_STREAM,
            nullptr),
    ANSWERS(feedlane_pool_release, "twice", FEEDLANE_E_STALE, f.holding(), f.stale(), FEEDLANE_NO_STREAM, nullptr),
    REFUSES(feedlane_pool_release, "p NULL", FEEDLANE_E_ARGUMENT, "p", 0, 1, nullptr, 1, nullptr, e),
    REFUSES(feedlane_pool_release, "token 0", FEEDLANE_E_STALE, "", 0, 0, f.holding(), 0, nullptr, e),
    REFUSES(feedlane_pool_release, "released", FEEDLANE_E_STALE, "", 0, 0, f.holding(), f.stale(), nullptr, e),
    REFUSES(feedlane_pool_release, "not in the table", FEEDLANE_E_UNSUPPORTED, "", 0, 0, f.holding(f.poor()),
            f.poor_token(), nullptr, e),
    REFUSES(feedlane_pool_copy, "p NULL", FEEDLANE_E_ARGUMENT, "p", 0, 1, nullptr, f.room, f.room, 1, nullptr, e),
    REFUSES(feedlane_pool_copy, "device_memory NULL", FEEDLANE_E_ARGUMENT, "device_memory", 0, 1, f.holding(), nullptr,
            f.data(), 1, nullptr, e),
    REFUSES(feedlane_pool_copy, "host NULL", FEEDLANE_E_ARGUMENT, "host", 0, 1, f.holding(), f.room, nullptr, 1,
            nullptr, e),
    REFUSES(feedlane_pool_copy, "no stream", FEEDLANE_E_ARGUMENT, "stream", -1, 0, f.holding(), f.room, f.data(), 1,
            FEEDLANE_NO_STREAM, e),
    REFUSES(feedlane_pool_copy, "not in the table", FEEDLANE_E_UNSUPPORTED, "", 0, 0, f.poor(), f.room, f.poor_data(),
            1, nullptr, e),
    REFUSES(feedlane_pool_register, "p NULL", FEEDLANE_E_ARGUMENT, "p", 0, 1, nullptr, f.room, 1, e),
    REFUSES(feedlane_pool_register, "address NULL", FEEDLANE_E_ARGUMENT, "address", 0, 1, f.p(), nullptr, 1, e),
    REFUSES(feedlane_pool_register, "no bytes", FEEDLANE_E_ARGUMENT, "bytes", 0, 1, f.p(), f.room, 0, e),
    REFUSES(feedlane_pool_register, "beyond the end", FEEDLANE_E_ARGUMENT, "bytes", INT64_MAX, 1, f.p(), f.room,
            UINT64_MAX, e),
    REFUSES(feedlane_pool_unregister, "p NULL", FEEDLANE_E_ARGUMENT, "p", 0, 1, nullptr, f.room, e),
    REFUSES(feedlane_pool_unregister, "address NULL", FEEDLANE_E_ARGUMENT, "address", 0, 1, f.p(), nullptr, e),
    REFUSES(feedlane_pool_unregister, "never registered", FEEDLANE_E_ARGUMENT, "address", 0, 0, f.p(), f.room, e),
    ANSWERS(feedlane_pool_get_stats, "p NULL", FEEDLANE_E_ARGUMENT, nullptr, &f.stats),
    ANSWERS(feedlane_pool_get_stats, "out NULL", FEEDLANE_E_ARGUMENT, f.p(), nullptr),
    ANSWERS(feedlane_pool_get_stats, "out of size 7", FEEDLANE_E_ABI, f.p(),
            &(f.stats = sized<feedlane_pool_stats>(7))),
    ANSWERS(feedlane_pool_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_pool_destroy, "a pointer to NULL", FEEDLANE_OK, &f.handle),
    ANSWERS(feedlane_pool_destroy, "a buffer is out", FEEDLANE_E_STATE, (f.holding(), f.copy())),
    ANSWERS(feedlane_pool_destroy, "once", FEEDLANE_OK, f.copy()),
};

const Row<F> forked_rows[] = {
    REFUSES(feedlane_pool_acquire, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.pool.get(), FEEDLANE_FOREVER, &f.buffer, e),
    ANSWERS(feedlane_pool_release, "forked", FEEDLANE_E_FORKED, f.pool.get(), f.token, FEEDLANE_NO_STREAM, nullptr),
    REFUSES(feedlane_pool_release, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.pool.get(), f.token, nullptr, e),
    REFUSES(feedlane_pool_copy, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.pool.get(), f.room, f.room, 1, nullptr, e),
    REFUSES(feedlane_pool_register, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.pool.get(), f.room, 1, e),
    REFUSES(feedlane_pool_unregister, "forked", FEEDLANE_E_FORKED, "", 0, 0, f.pool.get(), f.room, e),
    ANSWERS(feedlane_pool_get_stats, "forked", FEEDLANE_E_FORKED, f.pool.get(), &f.stats),
    ANSWERS(feedlane_pool_destroy, "forked", FEEDLANE_OK, &(f.handle = f.pool.get())),
};

const Counted creation{create_rows}, use{rows}, forked{forked_rows};

}  // namespace

TEST_CASE("bad input: making a pool") { check_rows(create_rows); }

TEST_CASE("bad input: a pool and its buffers") { check_rows(rows); }

TEST_CASE("bad input: a pool in a forked child") {
  F f;
  (void)f.holding();
  check_forked(f, forked_rows);
  CHECK(feedlane_pool_release(f.p(), f.token, FEEDLANE_NO_STREAM, nullptr) == FEEDLANE_OK);
  f.token = 0;
}
