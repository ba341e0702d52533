// SPDX-License-Identifier: Apache-2.0
// Bad input: arenas.
#include "bad_input.hpp"

#include <sys/un.h>

using namespace feedlane::test;

namespace {

struct F {
  F() {
    config.known.bytes = 1 << 20;
    config.known.members = 1;
    config.known.when_full = FEEDLANE_FULL_FAIL;
    put.known.key = "key";
    put.known.key_bytes = 3;
  }
  ~F() {
    if (token != 0) (void)feedlane_batch_release(owner, token);
    (void)feedlane_arena_destroy(&owner);
  }
  F(const F&) = delete;
  F& operator=(const F&) = delete;
  feedlane_arena* a() {
    if (owner == nullptr) REQUIRE(feedlane_arena_create(&config.known, &owner, nullptr) == FEEDLANE_OK);
    return owner;
  }
  feedlane_arena* full_house() {
    REQUIRE(feedlane_arena_offer(a(), &fd.value, nullptr) == FEEDLANE_OK);
    return owner;
  }
  feedlane_arena* reserved() {
    feedlane_batch made = fresh<feedlane_batch>();
    REQUIRE(feedlane_arena_reserve(a(), &put.known, 0, &made, nullptr) == FEEDLANE_OK);
    token = made.token;
    return owner;
  }
  feedlane_arena* one_lease() {
    config.known.leases = 1;
    return reserved();
  }
  feedlane_loader* loader() {
    if (other == nullptr) other = Setup(2).create();
    return other.get();
  }
  feedlane_arena_config* of(std::uint64_t bytes, std::uint32_t members = 0, std::uint32_t entries = 0,
                            std::uint32_t leases = 0, std::int32_t when_full = 0) {
    config.known.bytes = bytes;
    config.known.members = members;
    config.known.entries = entries;
    config.known.leases = leases;
    config.known.when_full = when_full;
    return &config.known;
  }
  feedlane_arena_config* config_of(std::size_t size) {
    config.known.size = size;
    return &config.known;
  }
  feedlane_arena_config* at(const char* path) {
    config.known.path = path;
    return &config.known;
  }
  feedlane_put* with_key(const char* key, std::uint64_t bytes) {
    put.known.key = key;
    put.known.key_bytes = bytes;
    return &put.known;
  }
  feedlane_put* with_field(std::uint64_t count, std::int64_t length = 1, std::int32_t ndim = 1,
                           const char* name = "x") {
    field = fresh<feedlane_field>();
    field.name = name;
    field.dtype = {1, 8, 1};
    field.ndim = ndim;
    field.shape[0] = length;
    put.known.fields = &field;
    put.known.field_count = count;
    return &put.known;
  }
  feedlane_put* with_metadata(const void* data, std::uint64_t bytes) {
    put.known.metadata = data;
    put.known.metadata_bytes = bytes;
    return &put.known;
  }
  feedlane_put* pinned(std::int32_t pinned, std::int32_t reserved = 0) {
    put.known.pinned = pinned;
    put.known.reserved = reserved;
    return &put.known;
  }
  feedlane_put* put_of(std::size_t size) {
    put.known.size = size;
    return &put.known;
  }
  feedlane_put* sent_pinned() {
    put.known.key = nullptr;
    put.known.key_bytes = 0;
    return pinned(1);
  }
  feedlane_batch* out(std::size_t size = sizeof(feedlane_batch)) {
    batch.size = size;
    return &batch;
  }
  feedlane_arena_stats* stats_of(std::size_t size) {
    stats.size = size;
    return &stats;
  }
  [[nodiscard]] bool is_clean() const { return !arena_out.is_poisoned(); }

  Later<feedlane_arena_config> config{fresh<feedlane_arena_config>()};
  Later<feedlane_put> put{fresh<feedlane_put>()};
  feedlane_field field{};
  feedlane_arena* owner = nullptr;
  feedlane_arena* none = nullptr;
  std::uint64_t token = 0;
  Loader other;
  Out<feedlane_arena> arena_out;
  feedlane_batch batch = fresh<feedlane_batch>();
  feedlane_arena_stats stats = fresh<feedlane_arena_stats>();
  Number fd;
  std::int32_t borrowed = -1;
};

const std::string long_path(sizeof(sockaddr_un::sun_path), 'p');
constexpr std::size_t config_bytes = sizeof(feedlane_arena_config);
constexpr std::size_t put_bytes = sizeof(feedlane_put);
constexpr std::size_t batch_bytes = sizeof(feedlane_batch);
constexpr std::int64_t path_bytes = sizeof(sockaddr_un::sun_path) - 1;

#define CREATE(what, status, argument, found, needed, config) \
  REFUSES(feedlane_arena_create, what, status, argument, found, needed, config, f.arena_out.place(), e)
#define JOIN(what, status, argument, found, needed, fd, path, timeout_ns) \
  REFUSES(feedlane_arena_join, what, status, argument, found, needed, fd, path, timeout_ns, f.arena_out.place(), e)
#define RESERVE(what, status, argument, found, needed, arena, put) \
  REFUSES(feedlane_arena_reserve, what, status, argument, found, needed, arena, put, 0, f.out(), e)
#define GET(what, status, argument, found, needed, arena, key, key_bytes, flags, timeout_ns, batch) \
  REFUSES(feedlane_arena_get, what, status, argument, found, needed, arena, key, key_bytes, flags, timeout_ns, batch, e)

const Row<F> begin_rows[] = {
    REFUSES(feedlane_arena_create, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.of(1 << 20), nullptr, e),
    CREATE("config NULL", FEEDLANE_E_ARGUMENT, "config", 0, 1, nullptr),
    CREATE("size 0", FEEDLANE_E_ABI, "config", 0, config_bytes, f.config_of(0)),
    CREATE("a tail", FEEDLANE_E_ABI, "config", config_bytes + 8, config_bytes, f.config_of(config_bytes + 8)),
    CREATE("no bytes", FEEDLANE_E_ARGUMENT, "config.bytes", 0, 65536, f.of(0)),
    CREATE("too many bytes", FEEDLANE_E_ARGUMENT, "config.bytes", (INT64_C(1) << 40) + 1, INT64_C(1) << 40,
           f.of((UINT64_C(1) << 40) + 1)),
    CREATE("too many members", FEEDLANE_E_ARGUMENT, "config.members", 256, 255, f.of(1 << 20, 256)),
    CREATE("too many entries", FEEDLANE_E_ARGUMENT, "config.entries", (1 << 20) + 1, 1 << 20,
           f.of(1 << 20, 1, (1 << 20) + 1)),
    CREATE("too many leases", FEEDLANE_E_ARGUMENT, "config.leases", 65537, 65536, f.of(1 << 20, 1, 1, 65537)),
    CREATE("no such policy", FEEDLANE_E_ARGUMENT, "config.when_full", 3, 2, f.of(1 << 20, 1, 1, 1, 3)),
    CREATE("a negative policy", FEEDLANE_E_ARGUMENT, "config.when_full", -1, 2, f.of(1 << 20, 1, 1, 1, -1)),
    CREATE("no such folder", FEEDLANE_E_OS, "", 0, 0, f.at("/nonexistent/arena")),
    CREATE("an empty path", FEEDLANE_E_ARGUMENT, "config.path", 0, path_bytes, f.at("")),
    CREATE("too long a path", FEEDLANE_E_ARGUMENT, "config.path", path_bytes + 1, path_bytes, f.at(long_path.c_str())),
    REFUSES(feedlane_arena_offer, "a NULL", FEEDLANE_E_ARGUMENT, "a", 0, 1, nullptr, &f.borrowed, e),
    REFUSES(feedlane_arena_offer, "a loader", FEEDLANE_E_STATE, "", 0, 0, f.loader(), &f.borrowed, e),
    REFUSES(feedlane_arena_offer, "fd NULL", FEEDLANE_E_ARGUMENT, "fd", 0, 1, f.a(), nullptr, e),
    REFUSES(feedlane_arena_offer, "every place taken", FEEDLANE_E_LIMIT, "config.members", 1, 2, f.full_house(),
            &f.borrowed, e),
    REFUSES(feedlane_arena_join, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, -1, "/nonexistent", 0, nullptr, e),
    JOIN("neither", FEEDLANE_E_ARGUMENT, "fd", -1, 0, -1, nullptr, 0),
    JOIN("no descriptor", FEEDLANE_E_ARGUMENT, "fd", 1'000'000, 0, 1'000'000, nullptr, 0),
    JOIN("a negative timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, -1, "/nonexistent", -1),
    JOIN("nobody there", FEEDLANE_E_PEER_DEAD, "", 0, 0, -1, "/nonexistent", 0),
    JOIN("too long a path", FEEDLANE_E_ARGUMENT, "path", path_bytes + 1, path_bytes, -1, long_path.c_str(), 0),
};

const Row<F> entry_rows[] = {
    RESERVE("a NULL", FEEDLANE_E_ARGUMENT, "a", 0, 1, nullptr, f.with_field(1)),
    RESERVE("a loader", FEEDLANE_E_STATE, "", 0, 0, f.loader(), f.with_field(1)),
    RESERVE("put NULL", FEEDLANE_E_ARGUMENT, "put", 0, 1, f.a(), nullptr),
    RESERVE("size 0", FEEDLANE_E_ABI, "put", 0, put_bytes, f.a(), f.put_of(0)),
    RESERVE("a tail", FEEDLANE_E_ABI, "put", put_bytes + 8, put_bytes, f.a(), f.put_of(put_bytes + 8)),
    RESERVE("an empty key", FEEDLANE_E_ARGUMENT, "key_bytes", 0, 1, f.a(), f.with_key("", 0)),
    RESERVE("a long key", FEEDLANE_E_ARGUMENT, "key_bytes", 65, 64, f.a(), f.with_key(long_path.c_str(), 65)),
    RESERVE("a key of nothing", FEEDLANE_E_ARGUMENT, "put.key", 0, 1, f.a(), f.with_key(nullptr, 3)),
    RESERVE("fields NULL", FEEDLANE_E_ARGUMENT, "put.fields", 0, 1, f.a(),
            ((f.put.known.field_count = 1), &f.put.known)),
    RESERVE("too many fields", FEEDLANE_E_ARGUMENT, nullptr, 0, 0, f.a(), f.with_field(65)),
    RESERVE("a negative length", FEEDLANE_E_ARGUMENT, nullptr, 0, 0, f.a(), f.with_field(1, -1)),
    RESERVE("too many dimensions", FEEDLANE_E_ARGUMENT, nullptr, 0, 0, f.a(), f.with_field(1, 1, 8)),
    RESERVE("a name of nothing", FEEDLANE_E_ARGUMENT, nullptr, 0, 0, f.a(), f.with_field(1, 1, 1, "")),
    RESERVE("too large", FEEDLANE_E_LIMIT, "put", (1 << 20) / 3, (1 << 20) + 256, f.a(), f.with_field(1, 1 << 20)),
    RESERVE("metadata NULL", FEEDLANE_E_ARGUMENT, "put.metadata", 0, 1, f.a(), f.with_metadata(nullptr, 1)),
    RESERVE("much metadata", FEEDLANE_E_LIMIT, "put.metadata_bytes", -1, INT64_C(1) << 40, f.a(),
            f.with_metadata("", UINT64_MAX)),
    RESERVE("pinned 2", FEEDLANE_E_ARGUMENT, "put.pinned", 2, 1, f.a(), f.pinned(2)),
    RESERVE("pinned and sent", FEEDLANE_E_ARGUMENT, "put.pinned", 1, 0, f.a(), f.sent_pinned()),
    RESERVE("reserved 1", FEEDLANE_E_ARGUMENT, "put.reserved", 1, 0, f.a(), f.pinned(0, 1)),
    RESERVE("one too many", FEEDLANE_SLOTS_HELD, "config.leases", 1, 2, f.one_lease(), &f.put.known),
    REFUSES(feedlane_arena_reserve, "a negative timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.a(),
            f.with_field(1), -1, f.out(), e),
    REFUSES(feedlane_arena_reserve, "out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.a(), f.with_field(1), 0, nullptr,
            e),
    REFUSES(feedlane_arena_reserve, "no room for the token", FEEDLANE_E_ABI, "out", 8, 16, f.a(), f.with_field(1), 0,
            f.out(8), e),
    REFUSES(feedlane_arena_publish, "a NULL", FEEDLANE_E_ARGUMENT, "a", 0, 1, nullptr, 1, 0, e),
    REFUSES(feedlane_arena_publish, "a negative timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.reserved(),
            f.token, -1, e),
    REFUSES(feedlane_arena_publish, "no reservation", FEEDLANE_E_STALE, "token", 0, 0, f.a(), 0, 0, e),
    GET("a NULL", FEEDLANE_E_ARGUMENT, "a", 0, 1, nullptr, "key", 3, 0, 0, f.out()),
    GET("a loader", FEEDLANE_E_STATE, "", 0, 0, f.loader(), "key", 3, 0, 0, f.out()),
    GET("key NULL", FEEDLANE_E_ARGUMENT, "key", 0, 1, f.a(), nullptr, 3, 0, 0, f.out()),
    GET("an empty key", FEEDLANE_E_ARGUMENT, "key_bytes", 0, 1, f.a(), "key", 0, 0, 0, f.out()),
    GET("a long key", FEEDLANE_E_ARGUMENT, "key_bytes", 65, 64, f.a(), long_path.c_str(), 65, 0, 0, f.out()),
    GET("an unknown flag", FEEDLANE_E_ARGUMENT, "flags", 2, 1, f.a(), "key", 3, 2, 0, f.out()),
    GET("a negative timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.a(), "key", 3, 0, -1, f.out()),
    GET("out NULL", FEEDLANE_E_ARGUMENT, "out", 0, 1, f.a(), "key", 3, 0, 0, nullptr),
    GET("out of no size", FEEDLANE_E_ABI, "out", 0, batch_bytes, f.a(), "key", 3, 0, 0, f.out(0)),
    GET("nothing there", FEEDLANE_TIMEOUT, nullptr, 0, 0, f.a(), "key", 3, 0, 0, f.out()),
    REFUSES(feedlane_arena_receive, "a NULL", FEEDLANE_E_ARGUMENT, "a", 0, 1, nullptr, 0, f.out(), e),
    REFUSES(feedlane_arena_receive, "a negative timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.a(), -1, f.out(),
            e),
    REFUSES(feedlane_arena_receive, "a negative timeout to serve", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.a(), -1,
            nullptr, e),
    REFUSES(feedlane_arena_drop, "a NULL", FEEDLANE_E_ARGUMENT, "a", 0, 1, nullptr, "key", 3, 0, e),
    REFUSES(feedlane_arena_drop, "key NULL", FEEDLANE_E_ARGUMENT, "key", 0, 1, f.a(), nullptr, 3, 0, e),
    REFUSES(feedlane_arena_drop, "a negative timeout", FEEDLANE_E_ARGUMENT, "timeout_ns", -1, 0, f.a(), "key", 3, -1,
            e),
    ANSWERS(feedlane_arena_arm, "a NULL", FEEDLANE_E_ARGUMENT, nullptr, &f.borrowed),
    ANSWERS(feedlane_arena_arm, "fd NULL", FEEDLANE_OK, f.a(), nullptr),
    ANSWERS(feedlane_arena_get_stats, "a NULL", FEEDLANE_E_ARGUMENT, nullptr, &f.stats),
    ANSWERS(feedlane_arena_get_stats, "out NULL", FEEDLANE_E_ARGUMENT, f.a(), nullptr),
    ANSWERS(feedlane_arena_get_stats, "out of no size", FEEDLANE_E_ABI, f.a(), f.stats_of(0)),
    ANSWERS(feedlane_loader_close, "a NULL", FEEDLANE_E_ARGUMENT, nullptr),
    ANSWERS(feedlane_arena_destroy, "NULL", FEEDLANE_OK, nullptr),
    ANSWERS(feedlane_arena_destroy, "of NULL", FEEDLANE_OK, &f.none),
    REFUSES(feedlane_loader_begin, "an arena", FEEDLANE_E_STATE, "", 0, 0, f.a(), 0, e),
    REFUSES(feedlane_loader_stop, "an arena", FEEDLANE_E_STATE, "", 0, 0, f.a(), e),
    REFUSES(feedlane_loader_serve, "an arena", FEEDLANE_E_STATE, "config.share", 0, 1, f.a(), 0, e),
    REFUSES(feedlane_loader_run_stager, "an arena", FEEDLANE_E_STATE, "", 0, 0, f.a(), e),
};

const Counted beginnings{begin_rows}, entries{entry_rows};

}  // namespace

TEST_CASE("bad input: the beginning of an arena") { check_rows(begin_rows); }
TEST_CASE("bad input: entries of an arena") { check_rows(entry_rows); }
