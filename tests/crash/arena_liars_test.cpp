// SPDX-License-Identifier: Apache-2.0
// Members of an arena that write into their segments past the library: each lie by a process of its own. Who sends an
// invalid request, or writes an impossible position, is named and cut off. Others get what they have put, and when the
// liar has ended, nothing of it is left.
#include <doctest/doctest.h>

#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "crash/arena_inside.hpp"
#include "greeting/arena.hpp"
#include "ring/spsc.hpp"
#include "semantics/arena.hpp"
#include "shm/arena_layout.hpp"

using namespace feedlane::test;
using namespace feedlane::test::arenas;
namespace arena = feedlane::arena;
namespace shm = feedlane::shm;

namespace {

constexpr std::uint64_t arena_bytes = mib;

// Sends requests past the library.
struct LiarInside : MemberInside {
  explicit LiarInside(const std::vector<Mapping>& inherited)
      : MemberInside(inherited), requests(request_cells(), 0, &words->request_position) {}
  // Waits for room; once this member is cut off there is none.
  void send(const shm::ArenaRequest& request) {
    while (requests.reserve(1) == 0) {
      if (words->is_cut_off.load(std::memory_order_relaxed) != 0) return;
      ring();
    }
    std::memcpy(requests.message(0), &request, sizeof request);
    requests.commit(1);
  }

  feedlane::ring::Producer requests;
};

template <class T>
std::string text_of(const T& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

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

// After this, 4096 bytes at offset 0 are granted.
LiarInside& granted(LiarInside& in) {
  in.send(request(Kind::want_memory, 0, 4096));
  return in;
}

struct MemberLie {
  const char* what;
  void (*tell)(LiarInside&);
  // Of the liar's next wait. E_CORRUPT: it is cut off. TIMEOUT: it is not. E_PEER_DEAD: its socket is closed.
  std::int32_t status = FEEDLANE_E_CORRUPT;
};

constexpr std::uint64_t top = UINT64_MAX;
const MemberLie lies[] = {
    {"kind 0", [](LiarInside& in) { in.send({}); }},
    {"kind 99", [](LiarInside& in) { in.send(request(static_cast<Kind>(99))); }},
    {"publishes memory that was not granted", [](LiarInside& in) { in.send(request(Kind::publish, 0, 4096)); }},
    {"publishes 0 bytes", [](LiarInside& in) { granted(in).send(request(Kind::publish, 0, 0)); }},
    {"publishes 100 bytes", [](LiarInside& in) { granted(in).send(request(Kind::publish, 0, 100)); }},
    {"publishes at offset 100", [](LiarInside& in) { granted(in).send(request(Kind::publish, 100, 256)); }},
    {"publishes beyond its segment",
     [](LiarInside& in) { in.send(request(Kind::publish, in.plan.payload_bytes, 256)); }},
    {"publishes at an offset that overflows", [](LiarInside& in) { in.send(request(Kind::publish, top - 255, 512)); }},
    {"publishes more than a third", [](LiarInside& in) { in.send(request(Kind::publish, 0, arena_bytes / 2)); }},
    {"publishes under a key of 65 bytes", [](LiarInside& in) { granted(in).send(request(Kind::publish, 0, 256, 65)); }},
    {"publishes under a key of 2^63 bytes",
     [](LiarInside& in) { granted(in).send(request(Kind::publish, 0, 256, top / 2)); }},
    {"gives back memory that was not granted", [](LiarInside& in) { in.send(request(Kind::give_back, 0, 4096)); }},
    {"gives back 0 bytes", [](LiarInside& in) { granted(in).send(request(Kind::give_back, 0, 0)); }},
    {"gives back 100 bytes", [](LiarInside& in) { granted(in).send(request(Kind::give_back, 0, 100)); }},
    {"gives back from offset 100", [](LiarInside& in) { granted(in).send(request(Kind::give_back, 100, 256)); }},
    {"publishes more than its grant", [](LiarInside& in) { granted(in).send(request(Kind::publish, 0, 8192)); }},
    {"publishes parts of its grant",
     [](LiarInside& in) {
       granted(in).send(request(Kind::publish, 0, 256));
       in.send(request(Kind::publish, 1024, 3072));
     },
     FEEDLANE_TIMEOUT},
    {"gives a grant back twice",
     [](LiarInside& in) {
       granted(in).send(request(Kind::give_back, 0, 4096));
       in.send(request(Kind::give_back, 0, 4096));
     }},
    {"publishes a grant twice",
     [](LiarInside& in) {
       granted(in).send(request(Kind::publish, 0, 4096));
       in.send(request(Kind::publish, 0, 4096));
     }},
    {"wants 0 bytes", [](LiarInside& in) { in.send(request(Kind::want_memory, 0, 0)); }},
    {"wants 100 bytes", [](LiarInside& in) { in.send(request(Kind::want_memory, 0, 100)); }},
    {"would rather have 100 bytes more",
     [](LiarInside& in) {
       shm::ArenaRequest r = request(Kind::want_memory, 0, 256);
       r.more = 100;
       in.send(r);
     }},
    {"wants more than a third", [](LiarInside& in) { in.send(request(Kind::want_memory, 0, arena_bytes)); },
     FEEDLANE_TIMEOUT},
    {"wants a key of 0 bytes", [](LiarInside& in) { in.send(request(Kind::want_key)); }},
    {"wants a key of 65 bytes", [](LiarInside& in) { in.send(request(Kind::want_key, 0, 0, 65)); }},
    {"waits for more keys than its ring has cells",
     [](LiarInside& in) {
       for (int i = 0; i < 3; i++) {
         for (std::uint32_t k = 0; k < shm::arena_ring_capacity; k++) {
           shm::ArenaRequest r = request(Kind::want_key, 0, 0, 8);
           std::memcpy(r.key, &k, sizeof k);
           std::memcpy(r.key + 4, &i, sizeof i);
           in.send(r);
         }
       }
     }},
    {"drops a key of 0 bytes", [](LiarInside& in) { in.send(request(Kind::drop_key)); }},
    {"drops a key of 65 bytes", [](LiarInside& in) { in.send(request(Kind::drop_key, 0, 0, 65)); }},
    {"publishes two grants as one entry",
     [](LiarInside& in) {
       for (int i = 0; i < 2; i++) in.send(request(Kind::want_memory, 0, 4096));
       in.send(request(Kind::publish, 0, 8192));
     }},
    {"waits for more memory than its ring has cells",
     [](LiarInside& in) {
       for (std::uint32_t i = 0; i < 2 * shm::arena_ring_capacity; i++)
         in.send(request(Kind::want_memory, 0, arena_bytes / 4));
     }},
    {"cancels the requests of others",
     [](LiarInside& in) {
       for (std::uint64_t i = 0; i < 100; i++)
         for (const Kind kind : {Kind::cancel_memory, Kind::cancel_key}) {
           shm::ArenaRequest r = request(kind);
           r.ticket = i;
           in.send(r);
         }
     },
     FEEDLANE_TIMEOUT},
    {"cancels what it has not asked for",
     [](LiarInside& in) {
       in.send(request(Kind::cancel_memory));
       in.send(request(Kind::cancel_key));
     },
     FEEDLANE_TIMEOUT},
    {"has taken a delivery that it was not sent", [](LiarInside& in) { in.row->delivery_position.store(5); }},
    {"has taken deliveries beyond all", [](LiarInside& in) { in.row->delivery_position.store(top); }},
    {"has read an answer that it was not sent",
     [](LiarInside& in) {
       in.row->answer_position.store(top / 2);
       in.send(request(Kind::want_memory, 0, 256));
       in.send(request(Kind::want_memory, 0, 256));
     },
     FEEDLANE_TIMEOUT},
    {"has more leases than there are", [](LiarInside& in) { in.row->leases_in_use.store(top); }, FEEDLANE_TIMEOUT},
    {"leases what there is not",
     [](LiarInside& in) {
       in.row->leases_in_use.store(64);
       for (std::uint64_t i = 0; i < 64; i++) in.leases[i].store(top - i);
     },
     FEEDLANE_TIMEOUT},
    {"writes impossible counts, and that it sleeps",
     [](LiarInside& in) {
       in.row->sleeping.store(UINT32_MAX);
       in.row->hits.store(top);
       in.row->misses.store(top);
     },
     FEEDLANE_TIMEOUT},
    {"has used entries in the future", [](LiarInside& in) { in.uses[0].store(top); }, FEEDLANE_TIMEOUT},
    {"breaks its ring's sequence numbers",
     [](LiarInside& in) {
       for (std::uint64_t i = 0; i < shm::arena_ring_capacity; i++) in.request_cells().sequence(i).store(top);
     },
     FEEDLANE_TIMEOUT},
    {"sends an empty message", [](LiarInside& in) { in.say({}); }, FEEDLANE_E_PEER_DEAD},
    {"sends an unknown message", [](LiarInside& in) { in.say("nonsense"); }, FEEDLANE_E_PEER_DEAD},
    {"attaches twice", [](LiarInside& in) { in.say(text_of(arena::attached_magic)); }, FEEDLANE_E_PEER_DEAD},
    {"asks for a segment in too long a message",
     [](LiarInside& in) { in.say(text_of(arena::segment_request_magic) + std::string(100, 'x')); },
     FEEDLANE_E_PEER_DEAD},
    {"asks for a segment that there is not",
     [](LiarInside& in) {
       in.say(text_of(arena::SegmentRequest{arena::segment_request_magic, 1u << 31, 7}));
     },
     FEEDLANE_TIMEOUT},
    {"sends descriptors that nobody wants",
     [](LiarInside& in) {
       const std::vector<int> fds(100, in.socket);
       in.say(text_of(arena::SegmentRequest{arena::segment_request_magic, 0, 1}), fds);
     },
     FEEDLANE_TIMEOUT},
    {"says that it has left, and stays", [](LiarInside& in) { in.say(text_of(arena::left_magic)); },
     FEEDLANE_E_PEER_DEAD},
    {"fills its doorbells, and lets them block",
     [](LiarInside& in) {
       for (const int event : in.events) {
         const std::uint64_t most = top - 1;
         (void)!::write(event, &most, sizeof most);
         (void)::fcntl(event, F_SETFL, 0);
       }
       in.send(request(Kind::want_memory, 0, 256));
     },
     FEEDLANE_TIMEOUT},
};

}  // namespace

// promise: arena-liars, arena-harmless-lies, arena-invalid-message
TEST_CASE("a member that lies is cut off and named, or harms nobody; nothing of it is left") {
  for (const MemberLie& lie : lies) {
    CAPTURE(std::string(lie.what));
    auto config = config_of(arena_bytes, FEEDLANE_FULL_WAIT);
    const Arena a = create(config);
    const Serving serving(a.get());
    REQUIRE(put(a.get(), "good", 1) == FEEDLANE_OK);
    const std::int32_t fd = offer(a.get());
    Child liar({fd}, [&](Findings& f) {
      const auto inherited = mappings();
      feedlane_arena* m = nullptr;
      Error e;
      EXPECT(f, feedlane_arena_join(fd, nullptr, patience_ns, &m, &e) == FEEDLANE_OK);
      LiarInside in(inherited);
      lie.tell(in);
      in.ring();
      feedlane_batch batch;
      feedlane_init(&batch, sizeof batch);
      const std::int64_t timeout_ns = lie.status == FEEDLANE_TIMEOUT ? 20'000'000 : patience_ns;
      EXPECT(f, feedlane_arena_receive(m, timeout_ns, &batch, &e) == lie.status);
      EXPECT(f, e.says("cut this member off") == (lie.status == FEEDLANE_E_CORRUPT));
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
    CHECK(liar.finish() == "");
    CHECK(eventually([&] { return stats_of(a.get()).members == 1; }));
    bool is_named = false;
    auto event = fresh<feedlane_event>();
    while (feedlane_loader_event(a.get(), &event) == FEEDLANE_OK)
      is_named = is_named || (event.kind == FEEDLANE_EVENT_CONSUMER_EVICTED &&
                              std::strstr(event.what.text, "member 1 (process ") != nullptr);
    CHECK(is_named == (lie.status == FEEDLANE_E_CORRUPT));
    CHECK(look(a.get(), "good") == 1);
    for (const char* key : {"good", "other"})
      REQUIRE(feedlane_arena_drop(a.get(), key, std::strlen(key), patience_ns, nullptr) == FEEDLANE_OK);
    auto batch = fresh<feedlane_batch>();  // what a liar has sent before its lie has no description
    for (std::int32_t s; (s = feedlane_arena_receive(a.get(), 0, &batch, nullptr)) != FEEDLANE_TIMEOUT;)
      REQUIRE(s == FEEDLANE_E_CORRUPT);
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
  Liar(feedlane_arena* owner, void (*run)(LiarInside&))
      : fd_(offer(owner)), child_({fd_, said_.fds[1], done_.fds[0]}, [&](Findings& f) {
          const auto inherited = mappings();
          feedlane_arena* m = nullptr;
          EXPECT(f, feedlane_arena_join(fd_, nullptr, patience_ns, &m, nullptr) == FEEDLANE_OK);
          LiarInside in(inherited);
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
  Liar liar(a.get(), [](LiarInside& in) {
    granted(in).send(request(Kind::publish, 0, 4096));
    in.row->delivery_position.store(5);
    in.ring();
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
  Liar liar(a.get(), [](LiarInside& in) {
    constexpr std::uint64_t part = 5 * mib, unit = 256;
    for (int i = 0; i < 3; i++) in.send(request(Kind::want_memory, 0, part));
    for (std::uint64_t offset = 0; offset < 3 * part; offset += 2 * unit) {
      in.send(request(Kind::give_back, offset, unit));
    }
    in.ring();
  });
  CHECK(liar.await(a.get()));
  CHECK(put(a.get(), "good", 2, 16, 0) == FEEDLANE_OK);
  CHECK(look(a.get(), "good") == 2);
  liar.end();
  CHECK(eventually([&] { return stats_of(a.get()).members == 1; }));
  CHECK(look(a.get(), "good") == 2);
}

// promise: arena-invalid-message
TEST_CASE("what a member holds stays after it has sent an invalid message, until its process ends") {
  const Arena a = create(narrow_config(mib, 4));
  REQUIRE(put(a.get(), "good", 1) == FEEDLANE_OK);
  Liar liar(a.get(), [](LiarInside& in) {
    const auto& entry = *reinterpret_cast<const shm::ArenaEntry*>(in.control + in.plan.entries);
    in.leases[0].store(entry.state.load() >> 8 << shm::arena_entry_bits);
    in.row->leases_in_use.store(1);
    in.say("nonsense");
  });
  CHECK(liar.await(a.get()));
  REQUIRE(feedlane_arena_drop(a.get(), "good", 4, patience_ns, nullptr) == FEEDLANE_OK);
  CHECK(Liar::comes_to_rest(a.get()));
  CHECK(stats_of(a.get()).members == 2);
  CHECK(stats_of(a.get()).entries == 1);
  liar.end();
  CHECK(eventually([&] { return stats_of(a.get()).members == 1; }));
  CHECK(Liar::comes_to_rest(a.get()));
  CHECK(stats_of(a.get()).entries == 0);
}
