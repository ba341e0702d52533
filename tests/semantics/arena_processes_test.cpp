// SPDX-License-Identifier: Apache-2.0
// Arenas: processes that die or write what they like, threads, and observers.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "semantics/arena.hpp"
#include "support/succession.hpp"

using namespace feedlane::test;
using namespace feedlane::test::arenas;

// ---- deaths ----

// promise: arena-owner-death
TEST_CASE("after the owner's end, members know it, keep what they hold, and find what is there") {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  char path[] = "/tmp/feedlane-arena-XXXXXX";
  REQUIRE(::mkdtemp(path) != nullptr);
  const std::string socket = std::string(path) + "/socket";
  Child owner([&](Findings& f) {
    auto c = config_of(mib);
    c.path = socket.c_str();
    feedlane_arena* a = nullptr;
    EXPECT(f, feedlane_arena_create(&c, &a, nullptr) == FEEDLANE_OK);
    EXPECT(f, put(a, "held", 1) == FEEDLANE_OK);
    EXPECT(f, put(a, "there", 2) == FEEDLANE_OK);
    EXPECT(f, ::write(ready[1], "x", 1) == 1);
    (void)feedlane_arena_receive(a, patience_ns, nullptr, nullptr);
  });
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  feedlane_arena* m = nullptr;
  Error e;
  REQUIRE_MESSAGE(feedlane_arena_join(-1, socket.c_str(), patience_ns, &m, &e) == FEEDLANE_OK, e.text);
  const Arena member(m);
  feedlane_batch held, batch;
  REQUIRE(get(m, "held", held) == FEEDLANE_OK);
  REQUIRE(::kill(owner.pid(), SIGKILL) == 0);
  CHECK(get(m, "missing", batch, patience_ns, &e) == FEEDLANE_E_PEER_DEAD);
  CHECK(put(m, "new", 3, quarter, patience_ns, &e) == FEEDLANE_E_PEER_DEAD);
  CHECK(feedlane_arena_receive(m, patience_ns, &batch, &e) == FEEDLANE_E_PEER_DEAD);
  CHECK(first_of(held) == 1);
  CHECK(look(m, "there", 0) == 2);
  CHECK(feedlane_batch_release(m, held.token) == FEEDLANE_OK);
  (void)owner.finish();
  (void)::unlink(socket.c_str());
  (void)::rmdir(path);
  for (const int fd : ready) (void)::close(fd);
}

// promise: arena-successor
TEST_CASE("a killed member's place goes to one that connects before the owner sees its end") {
  const std::string path = "/tmp/feedlane-arena-" + std::to_string(::getpid());
  auto config = config_of(mib);
  config.members = 1;
  config.path = path.c_str();
  const Arena owner = create(config);
  const auto join = [&](Findings& f, const auto& then) {
    feedlane_arena* a = nullptr;
    Error e;
    f.expect(feedlane_arena_join(-1, path.c_str(), patience_ns, &a, &e) == FEEDLANE_OK, e.text, __LINE__);
    then();
    EXPECT(f, feedlane_arena_destroy(&a) == FEEDLANE_OK);
  };
  check_succession(join, [&] {
    CHECK(feedlane_arena_receive(owner.get(), 0, nullptr, nullptr) == FEEDLANE_TIMEOUT);
    return feedlane_arena_arm(owner.get(), nullptr) == FEEDLANE_OK;
  });
}

// promise: arena-deaths
TEST_CASE("members that are killed leave no memory, no wait and no lease behind") {
  const Arena a = create(mib);
  const Serving serving(a.get());
  REQUIRE(put(a.get(), "shared", 9, quarter, patience_ns, nullptr, true) == FEEDLANE_OK);
  const OverFork<std::atomic<int>> actions;
  for (int round = 0; round < 50; round++) {
    *actions = 0;
    Member member(a.get(), [&](feedlane_arena* m, Findings&) {
      feedlane_batch batch;
      (void)get(m, "shared", batch);
      const std::string key = std::to_string(round % 3);
      for (std::int64_t k = 0;; k++, ++*actions) {
        (void)put(m, key, k, 1 + k * 37 % 5000);
        (void)put(m, "", k, 100);
        (void)get(m, "absent", batch, 0, nullptr, FEEDLANE_GET_MAKE);
      }
    });
    REQUIRE(eventually([&] { return *actions >= round % 7; }));
    REQUIRE(::kill(member.pid(), SIGKILL) == 0);
    (void)member.finish();
    auto batch = fresh<feedlane_batch>();
    while (feedlane_arena_receive(a.get(), 0, &batch, nullptr) == FEEDLANE_OK)
      REQUIRE(feedlane_batch_release(a.get(), batch.token) == FEEDLANE_OK);
    REQUIRE(look(a.get(), "shared") == 9);
  }
  CHECK(eventually([&] { return stats_of(a.get()).members == 1; }));
  auto batch = fresh<feedlane_batch>();
  while (feedlane_arena_receive(a.get(), 0, &batch, nullptr) == FEEDLANE_OK)
    REQUIRE(feedlane_batch_release(a.get(), batch.token) == FEEDLANE_OK);
  for (const char* key : {"0", "1", "2", "shared"})
    REQUIRE(feedlane_arena_drop(a.get(), key, std::strlen(key), patience_ns, nullptr) == FEEDLANE_OK);
  CHECK(eventually([&] { return stats_of(a.get()).entries == 0; }));
  const feedlane_arena_stats stats = stats_of(a.get());
  CHECK(stats.used_bytes == 0);
  CHECK(stats.leased == 0);
  CHECK(stats.waiting == 0);
}

// ---- threads ----

// promise: arena-threads
TEST_CASE("one thread of the owner's process serves, others put, get and ask for statistics") {
  const Arena a = create(mib);
  const Serving serving(a.get());
  std::atomic<bool> is_over{false};
  std::thread reader([&] {
    while (!is_over) (void)stats_of(a.get());
  });
  std::thread getter([&] {
    for (std::int64_t k = 0; !is_over; k++) {
      CHECK(put(a.get(), "own", k, 50) == FEEDLANE_OK);
      CHECK(look(a.get(), "own") >= k);
    }
  });
  Member member(a.get(), [](feedlane_arena* m, Findings& f) {
    for (std::int64_t k = 0; k < 500; k++) {
      EXPECT(f, put(m, "key", k, 1 + k % 2000) == FEEDLANE_OK);
      EXPECT(f, look(m, "key") == k);
    }
  });
  CHECK(member.finish() == "");
  is_over = true;
  reader.join();
  getter.join();
}

// promise: arena-destroy-waits
TEST_CASE("after destroy no other thread writes to what it has passed to a call") {
  constexpr std::uint64_t threads = 8;
  static_assert(threads * sizeof(feedlane_error) <= 8192);
  for (int round = 0; round < 50; round++) {
    feedlane_arena* a = create().release();
    void* const memory = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    auto* const errors = static_cast<feedlane_error*>(memory);
    std::vector<std::thread> all;
    for (std::uint64_t i = 0; i < threads; i++)
      all.emplace_back([i, mine = a, e = &errors[i]] {
        feedlane_init(e, sizeof *e);
        feedlane_batch batch;
        CHECK(get(mine, std::to_string(i), batch, patience_ns, e) == FEEDLANE_E_STATE);
      });
    CHECK(eventually([&] { return stats_of(a).waiting == threads; }));
    CHECK(feedlane_arena_destroy(&a) == FEEDLANE_OK);
    CHECK(::mprotect(memory, 8192, PROT_READ) == 0);  // a write would end this program
    for (std::thread& t : all) t.join();
    for (std::uint64_t i = 0; i < threads; i++) CHECK(std::string(errors[i].text) == "the arena was closed");
    (void)::munmap(memory, 8192);
  }
}

// ---- faulty members ----

// promise: arena-faulty-member
TEST_CASE("a member that overwrites its entry is named, and others' entries stay") {
  const Arena a = create(mib);
  const Serving serving(a.get());
  REQUIRE(put(a.get(), "good", 3) == FEEDLANE_OK);
  int done[2];
  REQUIRE(::pipe(done) == 0);
  const std::int32_t fd = offer(a.get());
  Child child({fd, done[0]}, [&](Findings& f) {
    feedlane_arena* m = nullptr;
    EXPECT(f, feedlane_arena_join(fd, nullptr, patience_ns, &m, nullptr) == FEEDLANE_OK);
    const feedlane_field x = field("x", {1, 8, 1}, {4096});
    auto what = fresh<feedlane_put>();
    what.key = "bad";
    what.key_bytes = 3;
    what.fields = &x;
    what.field_count = 1;
    auto batch = fresh<feedlane_batch>();
    EXPECT(f, feedlane_arena_reserve(m, &what, patience_ns, &batch, nullptr) == FEEDLANE_OK);
    auto* memory = static_cast<unsigned char*>(batch.tensors[0].data);
    EXPECT(f, feedlane_arena_publish(m, batch.token, patience_ns, nullptr) == FEEDLANE_OK);
    EXPECT(f, look(m, "bad", patience_ns) == -1);
    std::memset(memory - 256, 0xff, 256);  // the description lies before the first tensor
    EXPECT(f, put(m, "spoiled", 0) == FEEDLANE_OK);
    char byte;
    (void)::read(done[0], &byte, 1);
  });
  (void)::close(fd);
  CHECK(look(a.get(), "spoiled") == 0);
  feedlane_batch batch;
  Error e;
  CHECK(get(a.get(), "bad", batch, patience_ns, &e) == FEEDLANE_E_CORRUPT);
  CHECK(e.says("member 1 has spoiled its entry"));
  CHECK(look(a.get(), "good") == 3);
  CHECK(::write(done[1], "x", 1) == 1);
  CHECK(child.finish() == "");
  (void)::close(done[0]);
  (void)::close(done[1]);
}

// ---- observers ----

// promise: arena-observed
TEST_CASE("another process reads what the owner sees: entries, members, what they hold, who waits") {
  const Arena a = create();
  const Serving serving(a.get());
  int told[2], done[2];
  REQUIRE(::pipe(told) == 0);
  REQUIRE(::pipe(done) == 0);
  const std::int32_t fd = offer(a.get());
  Child member({fd, told[1], done[0]}, [&](Findings& f) {
    feedlane_arena* m = nullptr;
    EXPECT(f, feedlane_arena_join(fd, nullptr, patience_ns, &m, nullptr) == FEEDLANE_OK);
    EXPECT(f, put(m, "key", 1) == FEEDLANE_OK);
    feedlane_batch held;
    EXPECT(f, get(m, "key", held) == FEEDLANE_OK);
    EXPECT(f, ::write(told[1], "x", 1) == 1);
    feedlane_batch batch;
    EXPECT(f, get(m, "missing", batch) == FEEDLANE_OK);
    char byte;
    (void)::read(done[0], &byte, 1);
    EXPECT(f, feedlane_arena_destroy(&m) == FEEDLANE_OK);
  });
  (void)::close(fd);
  char byte;
  REQUIRE(::read(told[0], &byte, 1) == 1);
  auto stats = fresh<feedlane_arena_stats>();
  feedlane_arena_member members[3];
  for (feedlane_arena_member& m : members) m = fresh<feedlane_arena_member>();
  std::uint64_t count = 0;
  Error e;
  const auto look_from_outside = [&] {
    return feedlane_monitor_arena(::getpid(), 0, &stats, members, 3, &count, &e) == FEEDLANE_OK;
  };
  CHECK(eventually([&] { return look_from_outside() && stats.waiting == 1; }));
  CHECK_MESSAGE(look_from_outside(), e.text);
  CHECK(stats.owner == ::getpid());
  CHECK(stats.bytes == 4 * mib);
  CHECK(stats.entries == 1);
  CHECK(stats.used_bytes != 0);
  CHECK(stats.used_bytes + stats.free_bytes == stats.bytes);
  CHECK(stats.members == 2);
  CHECK(stats.leased == 1);
  CHECK(stats.published == 1);
  CHECK(stats.hits == 1);
  CHECK(stats.misses == 1);
  REQUIRE(count == 2);
  CHECK(members[0].number == 0);
  CHECK(members[0].pid == ::getpid());
  CHECK(members[0].held == 0);
  CHECK(members[1].number == 1);
  CHECK(members[1].pid == member.pid());
  CHECK(members[1].held == 1);
  CHECK(members[1].waiting == 1);
  CHECK(members[1].hits == 1);
  CHECK(members[1].cut_off == 0);
  CHECK(feedlane_monitor_arena(::getpid(), 0, &stats, nullptr, 0, &count, &e) == FEEDLANE_OK);
  CHECK(count == 2);
  CHECK(feedlane_monitor_arena(::getpid(), 1, &stats, nullptr, 0, &count, &e) == FEEDLANE_END);
  REQUIRE(put(a.get(), "missing", 2) == FEEDLANE_OK);
  CHECK(::write(done[1], "x", 1) == 1);
  CHECK(member.finish() == "");
  CHECK(eventually([&] { return look_from_outside() && stats.members == 1 && stats.leased == 0; }));
  CHECK(stats.hits == 2);  // those of members that have ended too
  for (const int pipe : {told[0], told[1], done[0], done[1]}) (void)::close(pipe);
}
