// SPDX-License-Identifier: Apache-2.0
// Arenas: entries with a key, and entries that are sent.
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>

#include "semantics/arena.hpp"
#include "support/sandbox.hpp"
#include "support/sanitizers.hpp"
#include "support/skip.hpp"

using namespace feedlane::test;
using namespace feedlane::test::arenas;

// promise: arena-put-get
TEST_CASE("an entry is got as it was put, until it is replaced or dropped") {
  const Arena a = create();
  CHECK(look(a.get(), "key", 0) == nothing);
  const feedlane_field fields[] = {field("pixels", {1, 8, 1}, {2, 3}), field("label", {2, 32, 1}, {}),
                                   field("empty", {0, 64, 1}, {0, 5})};
  auto what = fresh<feedlane_put>();
  what.key = "key";
  what.key_bytes = 3;
  what.fields = fields;
  what.field_count = 3;
  what.metadata = "meta";
  what.metadata_bytes = 4;
  auto made = fresh<feedlane_batch>();
  Error e;
  REQUIRE(feedlane_arena_reserve(a.get(), &what, 0, &made, &e) == FEEDLANE_OK);
  REQUIRE(made.tensor_count == 3);
  std::memcpy(made.tensors[0].data, "abcdef", 6);
  *static_cast<float*>(made.tensors[1].data) = 2.5F;
  CHECK(look(a.get(), "key", 0) == nothing);  // not before it is published
  REQUIRE(feedlane_arena_publish(a.get(), made.token, 0, &e) == FEEDLANE_OK);
  CHECK(feedlane_arena_publish(a.get(), made.token, 0, &e) == FEEDLANE_E_STALE);
  CHECK(feedlane_batch_release(a.get(), made.token) == FEEDLANE_E_STALE);
  feedlane_batch got;
  REQUIRE(get(a.get(), "key", got, 0) == FEEDLANE_OK);
  REQUIRE(got.tensor_count == 3);
  CHECK(std::string(got.tensors[0].name) == "pixels");
  CHECK(got.tensors[0].ndim == 2);
  CHECK(got.tensors[0].shape[1] == 3);
  CHECK(std::memcmp(got.tensors[0].data, "abcdef", 6) == 0);
  CHECK(*static_cast<float*>(got.tensors[1].data) == 2.5F);
  CHECK(got.tensors[2].bytes == 0);
  CHECK(std::string(static_cast<const char*>(got.metadata), got.metadata_bytes) == "meta");
  REQUIRE(put(a.get(), "key", 7) == FEEDLANE_OK);
  CHECK(look(a.get(), "key", 0) == 7);
  CHECK(std::memcmp(got.tensors[0].data, "abcdef", 6) == 0);  // what is held stays
  REQUIRE(feedlane_arena_drop(a.get(), "key", 3, 0, &e) == FEEDLANE_OK);
  CHECK(look(a.get(), "key", 0) == nothing);
  CHECK(std::memcmp(got.tensors[0].data, "abcdef", 6) == 0);
  CHECK(stats_of(a.get()).entries == 1);
  CHECK(feedlane_batch_release(a.get(), got.token) == FEEDLANE_OK);
  CHECK(feedlane_batch_release(a.get(), got.token) == FEEDLANE_E_STALE);
  REQUIRE(put(a.get(), "other", 1) == FEEDLANE_OK);
}

// promise: arena-put-get
TEST_CASE("a reservation that is released gives its memory back") {
  const Arena a = create(mib);
  const feedlane_field f = field("x", {1, 8, 1}, {300'000});
  auto what = fresh<feedlane_put>();
  what.fields = &f;
  what.field_count = 1;
  for (int i = 0; i < 100; i++) {
    auto made = fresh<feedlane_batch>();
    Error e;
    const std::int32_t s = feedlane_arena_reserve(a.get(), &what, 0, &made, &e);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
    REQUIRE(feedlane_batch_release(a.get(), made.token) == FEEDLANE_OK);
  }
  CHECK(stats_of(a.get()).used_bytes == 0);
}

// promise: arena-members
TEST_CASE("a member gets what others have put, and what it has put stays after its end") {
  const Arena a = create();
  REQUIRE(put(a.get(), "owner's", 1) == FEEDLANE_OK);
  Member member(a.get(), [](feedlane_arena* m, Findings& f) {
    EXPECT(f, look(m, "owner's") == 1);
    EXPECT(f, put(m, "member's", 2) == FEEDLANE_OK);
    EXPECT(f, look(m, "member's") == 2);
    EXPECT(f, look(m, "late") == 3);
  });
  CHECK(look(a.get(), "member's") == 2);
  REQUIRE(put(a.get(), "late", 3) == FEEDLANE_OK);
  {
    const Serving serving(a.get());
    CHECK(member.finish() == "");
  }
  CHECK(
      eventually([&] { return feedlane_arena_receive(a.get(), 0, nullptr, nullptr), stats_of(a.get()).members == 1; }));
  CHECK(look(a.get(), "member's") == 2);
}

// promise: arena-zero-copy
TEST_CASE("every get of an entry is of the same memory, which cannot be written") {
  const Arena a = create();
  REQUIRE(put(a.get(), "key", 5) == FEEDLANE_OK);
  feedlane_batch one, two;
  REQUIRE(get(a.get(), "key", one) == FEEDLANE_OK);
  REQUIRE(get(a.get(), "key", two) == FEEDLANE_OK);
  CHECK(one.tensors[0].data == two.tensors[0].data);
  CHECK(
      ::mprotect(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(one.tensors[0].data) & ~std::uintptr_t{4095}),
                 4096, PROT_READ | PROT_WRITE) != 0);
  CHECK(feedlane_batch_release(a.get(), one.token) == FEEDLANE_OK);
  CHECK(first_of(two) == 5);
  CHECK(feedlane_batch_release(a.get(), two.token) == FEEDLANE_OK);
}

// promise: arena-zero-copy
TEST_CASE("a get that finds its entry makes no system call") {
  if (FEEDLANE_TEST_SANITIZED) return skip("sanitizers make system calls of their own");
  const Arena a = create();
  const Serving serving(a.get());
  REQUIRE(put(a.get(), "small", 5) == FEEDLANE_OK);
  REQUIRE(put(a.get(), "large", 7, 20'000) == FEEDLANE_OK);
  const OverFork<bool> has_filter;
  const std::int32_t fd = offer(a.get());
  Child member({fd}, [&](Findings& f) {
    feedlane_arena* m = nullptr;
    EXPECT(f, feedlane_arena_join(fd, nullptr, patience_ns, &m, nullptr) == FEEDLANE_OK);
    EXPECT(f, look(m, "small") == 5);  // maps the owner's memory
    *has_filter = filter_system_calls({SYS_write, SYS_exit_group}, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
    bool is_right = true;
    for (int k = 0; k < 10'000; k++) is_right = is_right && look(m, "small") == 5 && look(m, "large") == 7;
    EXPECT(f, is_right);
  });
  (void)::close(fd);
  CHECK(member.finish() == "");
  if (!*has_filter) skip("system calls can't be filtered here");
}

// ---- a full arena ----

// promise: arena-evict
TEST_CASE("a full arena evicts the least recently used, but nothing that is leased or pinned") {
  const Arena a = create(mib);
  REQUIRE(put(a.get(), "pinned", 0, quarter, 0, nullptr, true) == FEEDLANE_OK);
  REQUIRE(put(a.get(), "leased", 1, quarter, 0) == FEEDLANE_OK);
  REQUIRE(put(a.get(), "old", 2, quarter, 0) == FEEDLANE_OK);
  REQUIRE(put(a.get(), "used", 3, quarter, 0) == FEEDLANE_OK);
  feedlane_batch leased;
  REQUIRE(get(a.get(), "leased", leased) == FEEDLANE_OK);
  CHECK(look(a.get(), "old", 0) == 2);
  CHECK(look(a.get(), "used", 0) == 3);
  REQUIRE(put(a.get(), "new", 4, quarter, 0) == FEEDLANE_OK);
  CHECK(look(a.get(), "old", 0) == nothing);
  for (int i = 0; i < 20; i++) {
    REQUIRE(put(a.get(), "new" + std::to_string(i), i, quarter, 0) == FEEDLANE_OK);
    CHECK(look(a.get(), "pinned", 0) == 0);
    CHECK(first_of(leased) == 1);
  }
  CHECK(look(a.get(), "leased", 0) == 1);
  CHECK(look(a.get(), "used", 0) == nothing);
  const feedlane_arena_stats stats = stats_of(a.get());
  CHECK(stats.evicted == 21);
  CHECK(stats.leased == 1);
  CHECK(feedlane_batch_release(a.get(), leased.token) == FEEDLANE_OK);
}

// promise: arena-evict
TEST_CASE("entries of any number of members that have ended keep no other from joining, but those that must stay do") {
  auto config = config_of(4 * mib);
  config.members = 1;
  const Arena a = create(config);
  const auto put_by_another = [&](const std::string& key, bool is_pinned) {
    Member member(a.get(), [&](feedlane_arena* m, Findings& f) {
      EXPECT(f, put(m, key, 1, 16, patience_ns, nullptr, is_pinned) == FEEDLANE_OK);
    });
    const Serving serving(a.get());
    REQUIRE(member.finish() == "");
    REQUIRE(eventually([&] { return stats_of(a.get()).members == 1; }));
  };
  put_by_another("held", false);
  feedlane_batch held;
  REQUIRE(get(a.get(), "held", held) == FEEDLANE_OK);
  for (int i = 0; i < 100; i++) put_by_another(std::to_string(i), false);
  CHECK(look(a.get(), "99", 0) == 1);
  CHECK(look(a.get(), "held", 0) == 1);
  CHECK(feedlane_batch_release(a.get(), held.token) == FEEDLANE_OK);
  std::int32_t fd = -1, pinned = 0;
  Error e;
  for (std::int32_t s = FEEDLANE_OK; pinned < 100; pinned++) {
    if ((s = feedlane_arena_offer(a.get(), &fd, &e)) != FEEDLANE_OK) {
      CHECK(s == FEEDLANE_E_LIMIT);
      break;
    }
    (void)::close(fd);  // nobody joins
    REQUIRE(eventually(
        [&] { return feedlane_arena_receive(a.get(), 0, nullptr, nullptr), stats_of(a.get()).members == 1; }));
    put_by_another("pinned" + std::to_string(pinned), true);
  }
  CHECK(pinned < 100);
  CHECK(e.says("may not be evicted"));
  CHECK(look(a.get(), "pinned0", 0) == 1);
}

// promise: arena-full
TEST_CASE("a put into a full arena waits, or fails with both numbers") {
  Error e;
  {
    const Arena a = create(mib, FEEDLANE_FULL_WAIT);
    for (int i = 0; i < 4; i++) REQUIRE(put(a.get(), std::to_string(i), i, quarter, 0) == FEEDLANE_OK);
    CHECK(put(a.get(), "more", 4, quarter, 1'000'000, &e) == FEEDLANE_TIMEOUT);
    std::thread dropper([&] {
      (void)eventually([&] { return stats_of(a.get()).waiting != 0; });
      CHECK(feedlane_arena_drop(a.get(), "2", 1, patience_ns, nullptr) == FEEDLANE_OK);
    });
    CHECK(put(a.get(), "more", 4, quarter, FEEDLANE_FOREVER, &e) == FEEDLANE_OK);  // the watchdog ends a hang
    dropper.join();
    CHECK(look(a.get(), "more", 0) == 4);
  }
  const Arena a = create(mib, FEEDLANE_FULL_FAIL);
  for (int i = 0; i < 4; i++) REQUIRE(put(a.get(), std::to_string(i), i, quarter, 0) == FEEDLANE_OK);
  CHECK(put(a.get(), "more", 4, quarter, patience_ns, &e) == FEEDLANE_E_LIMIT);
  CHECK(e.needed > quarter * 8);
  CHECK(e.found < e.needed);
  CHECK(put(a.get(), "large", 4, static_cast<std::int64_t>(mib) / 8, 0, &e) == FEEDLANE_E_LIMIT);
  CHECK(e.found == mib / 3);
}

// promise: arena-full
TEST_CASE("a put that may not wait gets the free memory of another member") {
  const Arena a = create(mib, FEEDLANE_FULL_FAIL);
  const Serving serving(a.get());
  Pipe done;
  const std::int32_t fd = offer(a.get());
  Child member({fd, done.fds[0]}, [&](Findings& f) {
    feedlane_arena* m = nullptr;
    EXPECT(f, feedlane_arena_join(fd, nullptr, patience_ns, &m, nullptr) == FEEDLANE_OK);
    EXPECT(f, put(m, "member's", 1, quarter) == FEEDLANE_OK);
    EXPECT(f, put(m, "put", 1) == FEEDLANE_OK);
    char byte;
    EXPECT(f, ::read(done.fds[0], &byte, 1) == 1);
  });
  (void)::close(fd);
  CHECK(look(a.get(), "put") == 1);
  REQUIRE(feedlane_arena_drop(a.get(), "member's", 8, patience_ns, nullptr) == FEEDLANE_OK);
  for (const char* key : {"0", "1", "2", "3"}) CHECK(put(a.get(), key, 1, quarter, 0) == FEEDLANE_OK);
  CHECK(::write(done.fds[1], "x", 1) == 1);
  CHECK(member.finish() == "");
}

// promise: arena-full
TEST_CASE("a put that waits for memory gets it when another process releases a batch") {
  const Arena a = create(mib, FEEDLANE_FULL_WAIT);
  for (int i = 0; i < 4; i++) REQUIRE(put(a.get(), std::to_string(i), i, quarter, 0) == FEEDLANE_OK);
  const Serving serving(a.get());
  int go[2];
  REQUIRE(::pipe(go) == 0);
  const std::int32_t fd = offer(a.get());
  Child member({fd, go[0]}, [&](Findings& f) {
    feedlane_arena* m = nullptr;
    EXPECT(f, feedlane_arena_join(fd, nullptr, patience_ns, &m, nullptr) == FEEDLANE_OK);
    feedlane_batch batch;
    EXPECT(f, get(m, "0", batch) == FEEDLANE_OK);
    char byte;
    EXPECT(f, ::read(go[0], &byte, 1) == 1);
    EXPECT(f, feedlane_batch_release(m, batch.token) == FEEDLANE_OK);
    EXPECT(f, look(m, "more") == 4);
  });
  (void)::close(fd);
  CHECK(eventually([&] { return stats_of(a.get()).leased == 1; }));
  CHECK(feedlane_arena_drop(a.get(), "0", 1, patience_ns, nullptr) == FEEDLANE_OK);
  std::thread releaser([&] {
    (void)eventually([&] { return stats_of(a.get()).waiting != 0; });
    CHECK(::write(go[1], "x", 1) == 1);
  });
  CHECK(put(a.get(), "more", 4, quarter, FEEDLANE_FOREVER) == FEEDLANE_OK);
  releaser.join();
  CHECK(member.finish() == "");
  (void)::close(go[0]);
  (void)::close(go[1]);
}

// promise: arena-memory-moves
TEST_CASE("a member that waits for its own memory gets that of another if its own does not come back") {
  const Arena a = create(mib, FEEDLANE_FULL_WAIT);
  const Serving serving(a.get());
  REQUIRE(put(a.get(), "first", 1, quarter) == FEEDLANE_OK);
  REQUIRE(put(a.get(), "second", 2, quarter) == FEEDLANE_OK);
  Member member(a.get(), [](feedlane_arena* m, Findings& f) {
    EXPECT(f, put(m, "third", 3, quarter) == FEEDLANE_OK);
    EXPECT(f, put(m, "fourth", 4, quarter) == FEEDLANE_OK);
    EXPECT(f, put(m, "fifth", 5, quarter) == FEEDLANE_OK);
  });
  CHECK(eventually([&] { return stats_of(a.get()).waiting == 1; }));
  REQUIRE(feedlane_arena_drop(a.get(), "first", 5, patience_ns, nullptr) == FEEDLANE_OK);
  CHECK(member.finish() == "");
  CHECK(look(a.get(), "fifth", 0) == 5);
}

// ---- a missing key ----

// promise: arena-single-flight
TEST_CASE("one process makes a missing entry, and the next one if it ends or gives up") {
  const Arena a = create();
  const Serving serving(a.get());
  const OverFork<std::atomic<int>> makers;
  std::vector<std::unique_ptr<Member>> all;
  for (int i = 0; i < 6; i++)
    all.push_back(std::make_unique<Member>(a.get(), [&](feedlane_arena* m, Findings& f) {
      feedlane_batch batch;
      Error e;
      const std::int32_t s = get(m, "key", batch, patience_ns, &e, FEEDLANE_GET_MAKE);
      if (s == FEEDLANE_OK) return EXPECT(f, first_of(batch) == 8), (void)feedlane_batch_release(m, batch.token);
      if (s != FEEDLANE_ABSENT) return f.expect(false, e.text, __LINE__);
      switch (makers->fetch_add(1)) {
        case 0: (void)::raise(SIGKILL); break;
        case 1: EXPECT(f, feedlane_arena_drop(m, "key", 3, patience_ns, &e) == FEEDLANE_OK); break;
        default: EXPECT(f, put(m, "key", 8) == FEEDLANE_OK);
      }
    }));
  std::size_t good = 0;
  for (const auto& member : all) good += member->finish().empty() ? 1 : 0;
  CHECK(good == 5);
  CHECK(makers->load() == 3);
  CHECK(look(a.get(), "key", 0) == 8);
  CHECK(stats_of(a.get()).waiting == 0);
}

// promise: arena-right-kept
TEST_CASE("who gives up the right to make an entry does not drop the entry that another process has put") {
  const Arena a = create();
  const Serving serving(a.get());
  Member member(a.get(), [&](feedlane_arena* m, Findings& f) {
    feedlane_batch batch;
    EXPECT(f, get(m, "key", batch, patience_ns, nullptr, FEEDLANE_GET_MAKE) == FEEDLANE_ABSENT);
    EXPECT(f, put(m, "has right", 1) == FEEDLANE_OK);
    EXPECT(f, look(m, "was put") == 3);
    EXPECT(f, feedlane_arena_drop(m, "key", 3, patience_ns, nullptr) == FEEDLANE_OK);
    EXPECT(f, look(m, "key") == 2);
    EXPECT(f, feedlane_arena_drop(m, "key", 3, patience_ns, nullptr) == FEEDLANE_OK);  // without a right: the entry
    EXPECT(f, look(m, "key", 0) == nothing);
  });
  CHECK(look(a.get(), "has right") == 1);
  REQUIRE(put(a.get(), "key", 2) == FEEDLANE_OK);
  REQUIRE(put(a.get(), "was put", 3) == FEEDLANE_OK);
  CHECK(member.finish() == "");
}

// promise: arena-waits-end
TEST_CASE("a wait for a missing entry ends by its timeout, an interruption or close") {
  const Arena a = create();
  feedlane_batch batch;
  Error e;
  CHECK(get(a.get(), "key", batch, 1'000'000, &e) == FEEDLANE_TIMEOUT);
  CHECK(stats_of(a.get()).waiting == 0);
  CHECK(feedlane_loader_interrupt(a.get()) == FEEDLANE_OK);
  CHECK(get(a.get(), "key", batch, patience_ns, &e) == FEEDLANE_INTERRUPTED);
  std::thread closer([&] {
    (void)eventually([&] { return stats_of(a.get()).waiting != 0; });
    CHECK(feedlane_loader_close(a.get()) == FEEDLANE_OK);
  });
  CHECK(get(a.get(), "key", batch, patience_ns, &e) == FEEDLANE_E_STATE);
  closer.join();
}

// ---- streams ----

// promise: arena-streams
TEST_CASE("the owner receives what members send, each member's in order") {
  const Arena a = create();
  constexpr int members = 3, entries = 2000;
  std::vector<std::unique_ptr<Member>> all;
  for (int i = 0; i < members; i++)
    all.push_back(std::make_unique<Member>(a.get(), [i](feedlane_arena* m, Findings& f) {
      for (int k = 0; k < entries; k++) EXPECT(f, put(m, "", i * 1'000'000 + k, 1 + k % 500) == FEEDLANE_OK);
    }));
  std::map<std::int32_t, std::int64_t> next;
  for (int k = 0; k < members * entries; k++) {
    auto batch = fresh<feedlane_batch>();
    Error e;
    const std::int32_t s = feedlane_arena_receive(a.get(), patience_ns, &batch, &e);
    REQUIRE_MESSAGE(s == FEEDLANE_OK, e.text);
    REQUIRE(first_of(batch) % 1'000'000 == next[batch.worker]++);
    REQUIRE(feedlane_batch_release(a.get(), batch.token) == FEEDLANE_OK);
  }
  const Serving serving(a.get());
  for (const auto& member : all) CHECK(member->finish() == "");
}

// promise: arena-streams
TEST_CASE("every member receives what the owner sends, in order") {
  const Arena a = create();
  constexpr int members = 3, entries = 2000;
  std::vector<std::unique_ptr<Member>> all;
  for (int i = 0; i < members; i++)
    all.push_back(std::make_unique<Member>(a.get(), [](feedlane_arena* m, Findings& f) {
      for (int k = 0; k < entries; k++) {
        auto batch = fresh<feedlane_batch>();
        EXPECT(f, feedlane_arena_receive(m, patience_ns, &batch, nullptr) == FEEDLANE_OK);
        EXPECT(f, first_of(batch) == k);
        EXPECT(f, feedlane_batch_release(m, batch.token) == FEEDLANE_OK);
      }
    }));
  for (int k = 0; k < entries; k++) REQUIRE(put(a.get(), "", k, 1 + k % 500) == FEEDLANE_OK);
  const Serving serving(a.get());
  for (const auto& member : all) CHECK(member->finish() == "");
  CHECK(eventually([&] { return stats_of(a.get()).entries == 0; }));
}
