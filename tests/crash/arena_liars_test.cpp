// SPDX-License-Identifier: Apache-2.0
// Members of an arena that write into their segments past the library: each lie by a process of its own. Who sends an
// invalid request, or writes an impossible position, is named and cut off. Others get what they have put, and when the
// liar has ended, nothing of it is left.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ring/spsc.hpp"
#include "semantics/arena.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

using namespace feedlane::test;
using namespace feedlane::test::arenas;
namespace shm = feedlane::shm;

namespace {

constexpr std::uint64_t arena_bytes = mib;

std::set<std::byte*> mapped(const char* name) {
  std::set<std::byte*> found;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  for (char line[512]; maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr;)
    if (std::strstr(line, name) != nullptr)
      found.insert(reinterpret_cast<std::byte*>(std::strtoull(line, nullptr, 16)));
  if (maps != nullptr) (void)std::fclose(maps);
  return found;
}

// What a member's process can write, found without asking the library.
struct Inside {
  // `inherited`: what was mapped before this process joined.
  explicit Inside(const std::set<std::byte*>& inherited) {
    std::byte* member = only(shm::arena_member_name, inherited);
    std::byte* control = only(shm::arena_control_name, inherited);
    std::byte* answers = only("feedlane-arena-answers", inherited);
    if (member == nullptr || control == nullptr || answers == nullptr) ::_exit(99);
    feedlane::Error error;
    if (shm::make_arena_plan(*reinterpret_cast<shm::ArenaGeometry*>(control + sizeof(shm::SegmentHeader)), plan,
                             error) != FEEDLANE_OK)
      ::_exit(98);
    words = reinterpret_cast<const shm::ArenaAnswers*>(answers + plan.answers);
    row = reinterpret_cast<shm::ArenaMemberRow*>(member + plan.row);
    leases = reinterpret_cast<shm::Word64*>(member + plan.leases);
    uses = reinterpret_cast<shm::Word64*>(member + plan.uses);
    requests = feedlane::ring::Producer(
        {member + plan.request_cells, shm::arena_request_cell, shm::arena_ring_capacity}, 0, &words->request_position);
  }
  static std::byte* only(const char* name, const std::set<std::byte*>& inherited) {
    std::byte* own = nullptr;
    for (std::byte* at : mapped(name))
      if (inherited.count(at) == 0) own = at;
    return own;
  }
  // Waits for room; once this member is cut off there is none.
  void send(const shm::ArenaRequest& request) {
    while (requests.reserve(1) == 0) {
      if (words->is_cut_off.load(std::memory_order_relaxed) != 0) return;
      ring();
    }
    std::memcpy(requests.message(0), &request, sizeof request);
    requests.commit(1);
  }
  // Rings every bell that this process has.
  static void ring() {
    for (int fd = 3; fd < 100; fd++) {
      char target[64] = {};
      (void)!::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
      const std::uint64_t one = 1;
      if (std::strstr(target, "[eventfd]") != nullptr) (void)!::write(fd, &one, sizeof one);
    }
  }

  shm::ArenaPlan plan;
  const shm::ArenaAnswers* words = nullptr;
  shm::ArenaMemberRow* row = nullptr;
  shm::Word64* leases = nullptr;
  shm::Word64* uses = nullptr;
  feedlane::ring::Producer requests;
};

using Kind = shm::ArenaRequestKind;

shm::ArenaRequest request(Kind kind, std::uint64_t offset = 0, std::uint64_t bytes = 0, std::uint64_t key_bytes = 0) {
  shm::ArenaRequest r{};
  r.kind = static_cast<std::uint32_t>(kind);
  r.ticket = 1;
  r.offset = offset;
  r.bytes = bytes;
  r.key_bytes = key_bytes;
  return r;
}

struct Lie {
  const char* what;
  void (*tell)(Inside&);
  bool is_cut_off = true;
};

constexpr std::uint64_t top = UINT64_MAX;
const Lie lies[] = {
    {"kind 0", [](Inside& in) { in.send({}); }},
    {"kind 99", [](Inside& in) { in.send(request(static_cast<Kind>(99))); }},
    {"publishes memory that was not granted", [](Inside& in) { in.send(request(Kind::publish, 0, 4096)); }},
    {"publishes 0 bytes", [](Inside& in) { in.send(request(Kind::publish, 0, 0)); }},
    {"publishes 100 bytes", [](Inside& in) { in.send(request(Kind::publish, 0, 100)); }},
    {"publishes at offset 100", [](Inside& in) { in.send(request(Kind::publish, 100, 256)); }},
    {"publishes beyond its segment", [](Inside& in) { in.send(request(Kind::publish, in.plan.payload_bytes, 256)); }},
    {"publishes at an offset that overflows", [](Inside& in) { in.send(request(Kind::publish, top - 255, 512)); }},
    {"publishes more than a third", [](Inside& in) { in.send(request(Kind::publish, 0, arena_bytes / 2)); }},
    {"publishes under a key of 65 bytes", [](Inside& in) { in.send(request(Kind::publish, 0, 256, 65)); }},
    {"publishes under a key of 2^63 bytes", [](Inside& in) { in.send(request(Kind::publish, 0, 256, top / 2)); }},
    {"gives back memory that was not granted", [](Inside& in) { in.send(request(Kind::give_back, 0, 4096)); }},
    {"gives back 0 bytes", [](Inside& in) { in.send(request(Kind::give_back, 0, 0)); }},
    {"gives a grant back twice",
     [](Inside& in) {
       in.send(request(Kind::want_memory, 0, 4096));
       in.send(request(Kind::give_back, 0, 4096));
       in.send(request(Kind::give_back, 0, 4096));
     }},
    {"publishes a grant twice",
     [](Inside& in) {
       in.send(request(Kind::want_memory, 0, 4096));
       in.send(request(Kind::publish, 0, 4096));
       in.send(request(Kind::publish, 0, 4096));
     }},
    {"wants 0 bytes", [](Inside& in) { in.send(request(Kind::want_memory, 0, 0)); }},
    {"wants 100 bytes", [](Inside& in) { in.send(request(Kind::want_memory, 0, 100)); }},
    {"would rather have 100 bytes more",
     [](Inside& in) {
       shm::ArenaRequest r = request(Kind::want_memory, 0, 256);
       r.more = 100;
       in.send(r);
     }},
    {"wants more than a third", [](Inside& in) { in.send(request(Kind::want_memory, 0, arena_bytes)); }, false},
    {"wants a key of 0 bytes", [](Inside& in) { in.send(request(Kind::want_key)); }},
    {"wants a key of 65 bytes", [](Inside& in) { in.send(request(Kind::want_key, 0, 0, 65)); }},
    {"waits for more keys than its ring has cells",
     [](Inside& in) {
       for (int i = 0; i < 3; i++) {
         for (std::uint32_t k = 0; k < shm::arena_ring_capacity; k++) {
           shm::ArenaRequest r = request(Kind::want_key, 0, 0, 8);
           std::memcpy(r.key, &k, sizeof k);
           std::memcpy(r.key + 4, &i, sizeof i);
           in.send(r);
         }
         Inside::ring();
         ::usleep(2000);
       }
     }},
    {"drops a key of 0 bytes", [](Inside& in) { in.send(request(Kind::drop_key)); }},
    {"drops a key of 65 bytes", [](Inside& in) { in.send(request(Kind::drop_key, 0, 0, 65)); }},
    {"cancels what it has not asked for",
     [](Inside& in) {
       in.send(request(Kind::cancel_memory));
       in.send(request(Kind::cancel_key));
     },
     false},
    {"has taken a delivery that it was not sent", [](Inside& in) { in.row->delivery_position.store(5); }},
    {"has taken deliveries beyond all", [](Inside& in) { in.row->delivery_position.store(top); }},
    {"has read an answer that it was not sent",
     [](Inside& in) {
       in.row->answer_position.store(top / 2);
       in.send(request(Kind::want_memory, 0, 256));
       in.send(request(Kind::want_memory, 0, 256));
     },
     false},
    {"has more leases than there are", [](Inside& in) { in.row->leases_in_use.store(top); }, false},
    {"leases what there is not",
     [](Inside& in) {
       in.row->leases_in_use.store(64);
       for (std::uint64_t i = 0; i < 64; i++) in.leases[i].store(top - i);
     },
     false},
    {"has used entries in the future", [](Inside& in) { in.uses[0].store(top); }, false},
    {"breaks its ring's sequence numbers",
     [](Inside& in) {
       for (std::uint64_t i = 0; i < shm::arena_ring_capacity; i++)
         feedlane::ring::Cells::sequence_of(in.requests.message(0)).store(top);
     },
     false},
};

}  // namespace

// promise: arena-liars, arena-harmless-lies
TEST_CASE("a member that lies is cut off and named, or harms nobody; nothing of it is left") {
  for (const Lie& lie : lies) {
    CAPTURE(std::string(lie.what));
    auto config = config_of(arena_bytes, FEEDLANE_FULL_WAIT);
    const Arena a = create(config);
    const Serving serving(a.get());
    REQUIRE(put(a.get(), "good", 1) == FEEDLANE_OK);
    const std::int32_t fd = offer(a.get());
    Child liar({fd}, [&](Findings& f) {
      const auto inherited = mapped("feedlane-arena");
      feedlane_arena* m = nullptr;
      Error e;
      EXPECT(f, feedlane_arena_join(fd, nullptr, patience_ns, &m, &e) == FEEDLANE_OK);
      Inside in(inherited);
      lie.tell(in);
      Inside::ring();
      feedlane_batch batch;
      feedlane_init(&batch, sizeof batch);
      if (lie.is_cut_off) {
        const std::int32_t s = feedlane_arena_receive(m, patience_ns, &batch, &e);
        EXPECT(f, s == FEEDLANE_E_CORRUPT);
        EXPECT(f, e.says("cut this member off"));
      } else {
        EXPECT(f, feedlane_arena_receive(m, 20'000'000, &batch, &e) == FEEDLANE_TIMEOUT);
      }
      (void)::raise(SIGKILL);
    });
    (void)::close(fd);
    Member good(a.get(), [](feedlane_arena* m, Findings& f) {
      for (std::int64_t k = 0; k < 20; k++) {
        EXPECT(f, put(m, "other", k, 100 + k) == FEEDLANE_OK);
        EXPECT(f, look(m, "other") == k);
        EXPECT(f, look(m, "good") == 1);
      }
    });
    CHECK(good.finish() == "");
    const std::string found = liar.finish();
    CHECK_MESSAGE(found.find("line") == std::string::npos, found);
    CHECK(eventually([&] { return stats_of(a.get()).members == 1; }));
    bool is_named = false;
    auto event = fresh<feedlane_event>();
    while (feedlane_loader_event(a.get(), &event) == FEEDLANE_OK)
      is_named = is_named || (event.kind == FEEDLANE_EVENT_CONSUMER_EVICTED &&
                              std::strstr(event.what.text, "member 1 (process ") != nullptr);
    CHECK(is_named == lie.is_cut_off);
    CHECK(look(a.get(), "good") == 1);
    for (const char* key : {"good", "other"})
      REQUIRE(feedlane_arena_drop(a.get(), key, std::strlen(key), patience_ns, nullptr) == FEEDLANE_OK);
    auto batch = fresh<feedlane_batch>();  // what a liar has sent before its lie
    while (feedlane_arena_receive(a.get(), 0, &batch, nullptr) == FEEDLANE_OK)
      REQUIRE(feedlane_batch_release(a.get(), batch.token) == FEEDLANE_OK);
    CHECK(eventually([&] { return stats_of(a.get()).entries == 0; }));
    const feedlane_arena_stats stats = stats_of(a.get());
    CHECK(stats.used_bytes == 0);
    CHECK(stats.leased == 0);
    CHECK(stats.waiting == 0);
  }
}

namespace {

feedlane_arena_config narrow_config(std::uint64_t bytes, std::uint32_t entries) {
  auto config = config_of(bytes, FEEDLANE_FULL_WAIT);
  config.entries = entries;
  config.members = 2;
  return config;
}

// A member in a forked process, which does `run` and then lives until the end of the object.
class Liar {
 public:
  Liar(feedlane_arena* owner, void (*run)(Inside&))
      : fd_(offer(owner)), child_({fd_, said_.fds[1], done_.fds[0]}, [&](Findings& f) {
          const auto inherited = mapped("feedlane-arena");
          feedlane_arena* m = nullptr;
          EXPECT(f, feedlane_arena_join(fd_, nullptr, patience_ns, &m, nullptr) == FEEDLANE_OK);
          Inside in(inherited);
          run(in);
          EXPECT(f, ::write(said_.fds[1], "x", 1) == 1);
          char byte;
          (void)!::read(done_.fds[0], &byte, 1);
          (void)::raise(SIGKILL);
        }) {
    (void)::close(fd_);
  }
  // The owner serves until `run` has returned, and then until nothing of it is pending.
  bool await(feedlane_arena* owner) {
    char byte;
    std::thread reader([&] { (void)!::read(said_.fds[0], &byte, 1), (void)feedlane_loader_interrupt(owner); });
    (void)feedlane_arena_receive(owner, patience_ns, nullptr, nullptr);
    reader.join();
    return comes_to_rest(owner);
  }
  void end() {
    (void)!::write(done_.fds[1], "x", 1);
    (void)child_.finish();
  }
  static bool comes_to_rest(feedlane_arena* owner) {
    for (int looks = 0; looks < 1000; looks++) {
      (void)feedlane_arena_receive(owner, 0, nullptr, nullptr);
      if (feedlane_arena_arm(owner, nullptr) == FEEDLANE_OK) return true;
    }
    return false;
  }

 private:
  Pipe said_, done_;
  int fd_;
  Child child_;
};

}  // namespace

// promise: arena-liars
TEST_CASE("a member that is cut off while its request waits for a free entry does not keep the owner awake") {
  const Arena a = create(narrow_config(mib, 2));
  for (const char* key : {"0", "1"}) REQUIRE(put(a.get(), key, 1) == FEEDLANE_OK);
  Liar liar(a.get(), [](Inside& in) {
    in.send(request(Kind::want_memory, 0, 4096));
    in.send(request(Kind::publish, 0, 4096));
    in.row->delivery_position.store(5);
    Inside::ring();
  });
  CHECK(liar.await(a.get()));
  CHECK(stats_of(a.get()).entries == 2);
  REQUIRE(feedlane_arena_drop(a.get(), "0", 1, patience_ns, nullptr) == FEEDLANE_OK);
  CHECK(Liar::comes_to_rest(a.get()));
  liar.end();
  CHECK(eventually([&] { return stats_of(a.get()).members == 1; }));
  CHECK(stats_of(a.get()).entries == 1);
}

// promise: arena-liars
TEST_CASE("a member that splits its memory into too many parts leaves others room, and none in use") {
  const Arena a = create(narrow_config(16 * mib, 4));
  REQUIRE(put(a.get(), "good", 1) == FEEDLANE_OK);
  Liar liar(a.get(), [](Inside& in) {
    constexpr std::uint64_t part = 5 * mib, unit = 256;
    for (int i = 0; i < 3; i++) in.send(request(Kind::want_memory, 0, part));
    for (std::uint64_t offset = 0; offset < 3 * part; offset += 2 * unit) {
      in.send(request(Kind::give_back, offset, unit));
    }
    Inside::ring();
  });
  CHECK(liar.await(a.get()));
  CHECK(put(a.get(), "good", 2, 16, 0) == FEEDLANE_OK);
  CHECK(look(a.get(), "good") == 2);
  liar.end();
  CHECK(eventually([&] { return stats_of(a.get()).members == 1; }));
  CHECK(look(a.get(), "good") == 2);
}
