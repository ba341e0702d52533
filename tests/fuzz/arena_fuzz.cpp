// SPDX-License-Identifier: Apache-2.0
// What the owner of an arena reads of a member that writes its ring, its words, its entries and its messages as it likes, at
// any time: calls return a status, entries of other members keep their contents, the owner comes to rest, and once the
// faulty member has ended, nothing of it is in use and all memory can be put again.
// promise: arena-noise
#include <unistd.h>

#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "arena_rogue.hpp"
#include "feedlane.h"
#include "input.hpp"
#include "support/arena_entries.hpp"
#include "support/arena_numbers.hpp"

using namespace feedlane;
namespace arenas = feedlane::test::arenas;
using feedlane::test::field;
using feedlane::test::fresh;
using CallError = feedlane::test::Error;

namespace {

constexpr std::uint64_t arena_bytes = 192 * 1024;
constexpr std::uint64_t largest = arena_bytes / 3;
constexpr std::uint32_t entries = 16;
constexpr std::uint32_t leases = 8;
using fuzz::arena_keys;

// ---- processes that follow the rules ----

// Puts entries, and checks what it gets. Entries of these contain consecutive numbers, of which the first is unique.
class Honest {
 public:
  explicit Honest(feedlane_arena* a) : a_(a) {}
  Honest(const Honest&) = delete;
  Honest& operator=(const Honest&) = delete;
  ~Honest() {
    while (!held_.empty()) release();
  }
  // Members of these numbers may have spoiled their entries.
  static std::set<std::uint32_t> rogues;

  void put_one(fuzz::Input& in) {
    const std::string key = in.pick(4) == 3 ? "" : arena_keys[in.pick(8)];
    put(key, !key.empty() && in.pick(8) == 7);
  }
  void put(const std::string& key, bool is_pinned = false) {
    static std::int64_t next = 1;
    const std::int64_t first = next++ << 20;
    const std::int32_t s = arenas::put(a_, key, first, count_of(first), 0, nullptr, is_pinned);
    PROMISE(s == FEEDLANE_OK || s == FEEDLANE_TIMEOUT || s == FEEDLANE_E_LIMIT || s == FEEDLANE_SLOTS_HELD);
  }
  void get_one(fuzz::Input& in) {
    feedlane_batch batch;
    CallError e;
    keep(arenas::get(a_, arena_keys[in.pick(8)], batch, 0, &e), batch, e);
  }
  // False: there was nothing.
  bool receive() {
    auto batch = fresh<feedlane_batch>();
    CallError e;
    const std::int32_t s = feedlane_arena_receive(a_, 0, &batch, &e);
    keep(s, batch, e);
    return s != FEEDLANE_TIMEOUT;
  }
  void release() {
    if (held_.empty()) return;
    check(held_.front());
    PROMISE(feedlane_batch_release(a_, held_.front().token) == FEEDLANE_OK);
    held_.pop_front();
  }

 private:
  // A quarter of the arena at most.
  static std::int64_t count_of(std::int64_t first) { return 1 + (first >> 20) * 37 % 6000; }
  void keep(std::int32_t s, const feedlane_batch& batch, const CallError& e) {
    PROMISE(s == FEEDLANE_OK || s == FEEDLANE_TIMEOUT || s == FEEDLANE_SLOTS_HELD ||
            (s == FEEDLANE_E_CORRUPT && is_of_rogue(e)));
    if (s != FEEDLANE_OK) return;
    held_.push_back(batch);
    check(batch);
    if (held_.size() > 3) release();
  }
  static bool is_of_rogue(const CallError& e) {
    for (const std::uint32_t rogue : rogues)
      if (e.says("member " + std::to_string(rogue) + " has spoiled its entry")) return true;
    return false;
  }
  static void check(const feedlane_batch& b) {
    if (!rogues.contains(static_cast<std::uint32_t>(b.worker))) {
      const std::int64_t first = arenas::first_of(b);
      PROMISE(first > 0 && b.tensors[0].shape[0] == count_of(first));
      return;
    }
    fuzz::read_all(b);
  }

  feedlane_arena* a_;
  std::deque<feedlane_batch> held_;
};
std::set<std::uint32_t> Honest::rogues;

// ---- the owner; it lives as long as the process ----

class Bench {
 public:
  explicit Bench(std::int32_t when_full) {
    auto c = fresh<feedlane_arena_config>();
    c.bytes = arena_bytes;
    c.members = 3;
    c.entries = entries;
    c.leases = leases;
    c.when_full = when_full;
    PROMISE(feedlane_arena_create(&c, &owner_, nullptr) == FEEDLANE_OK);
    const fuzz::Welcomed watching = offered();
    watch_ = std::make_unique<fuzz::Mapped>(watching.received.fds[arena::welcome_control], PROT_READ);
    Error error;
    PROMISE(shm::make_arena_plan(*watch_->at<shm::ArenaGeometry>(sizeof(shm::SegmentHeader)), plan_, error) ==
            FEEDLANE_OK);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void start(bool is_full) {
    Honest::rogues.clear();
    own_ = std::make_unique<Honest>(owner_);
    for (int i = 0; is_full && i < 8; i++) own_->put(arena_keys[i]);
    const std::int32_t fd = offer();
    ask_.reset(::dup(fd));
    PROMISE(feedlane_arena_join(fd, nullptr, 0, &member_, nullptr) == FEEDLANE_OK);
    other_ = std::make_unique<Honest>(member_);
    come(true);
  }
  void step(fuzz::Input& in) {
    switch (in.pick(12)) {
      case 0: return come(in.pick(8) != 7);
      case 1: return use(in, *own_);
      case 2: return use(in, *other_);
      case 3: return own_->release();
      case 4: return other_->release();
      case 5: return rest();
      case 6: return drop(in);
      default:
        rogue_->step(in);
        if (in.flag()) serve();
    }
  }

  // The faulty member ends, then all members. Nothing of them is in use, and the owner can put as much as the arena holds.
  void finish() {
    rogue_.reset();
    rest();
    other_.reset();
    own_.reset();
    PROMISE(feedlane_arena_destroy(&member_) == FEEDLANE_OK);
    ask_.reset();
    Honest last(owner_);
    for (int looks = 0; !is_empty(); looks++) {
      PROMISE(looks < 100);
      while (last.receive()) last.release();
      drop_all();
      serve();
    }
    for (const std::string& key : arena_keys) {
      feedlane_batch batch;
      PROMISE(arenas::get(owner_, key, batch, 0, nullptr, FEEDLANE_GET_MAKE) == FEEDLANE_ABSENT);
      PROMISE(feedlane_arena_drop(owner_, key.data(), key.size(), 0, nullptr) == FEEDLANE_OK);
    }
    for (int i = 0; i < 3; i++)
      PROMISE(arenas::put(owner_, arena_keys[i], 1, (largest - 256) / 8, feedlane::test::patience_ns, nullptr, true) ==
              FEEDLANE_OK);
    drop_all();
    serve();
    PROMISE(is_empty());
  }

 private:
  [[nodiscard]] std::int32_t offer() {
    std::int32_t fd = -1;
    PROMISE(feedlane_arena_offer(owner_, &fd, nullptr) == FEEDLANE_OK);
    return fd;
  }
  [[nodiscard]] fuzz::Welcomed offered() { return fuzz::Welcomed(os::Fd(offer())); }
  void come(bool attaches) {
    rogue_.reset();
    for (int looks = 0; stats().members > 2; looks++) {
      PROMISE(looks < 100);
      serve_some();
    }
    rogue_ = std::make_unique<fuzz::Rogue>(offered());
    Honest::rogues.insert(rogue_->number());
    if (attaches) rogue_->attach();
    serve();
  }
  feedlane_arena_stats stats() {
    auto s = fresh<feedlane_arena_stats>();
    PROMISE(feedlane_arena_get_stats(owner_, &s) == FEEDLANE_OK);
    PROMISE(s.used_bytes + s.free_bytes == arena_bytes && s.entries <= entries);
    return s;
  }
  bool is_empty() {
    const feedlane_arena_stats s = stats();
    return s.members == 1 && s.entries == 0 && s.used_bytes == 0 && s.leased == 0 && s.waiting == 0;
  }
  void serve() {
    const std::int32_t s = feedlane_arena_receive(owner_, 0, nullptr, nullptr);
    PROMISE(s == FEEDLANE_TIMEOUT);
    auto event = fresh<feedlane_event>();
    while (feedlane_loader_event(owner_, &event) == FEEDLANE_OK) {
      bool is_rogue = event.kind != FEEDLANE_EVENT_CONSUMER_EVICTED;
      for (const std::uint32_t rogue : Honest::rogues)
        is_rogue =
            is_rogue || std::strstr(event.what.text, ("member " + std::to_string(rogue) + " (").c_str()) != nullptr;
      PROMISE(is_rogue);
    }
  }
  // A member that has ended may wait for room for its last entries.
  void serve_some() {
    Honest last(owner_);
    while (last.receive()) last.release();
    drop_all();
    serve();
  }
  // While nobody does anything, the owner comes to rest.
  void rest() {
    Honest last(owner_);
    for (int looks = 0;; looks++) {
      PROMISE(looks < 1000);
      serve();
      while (last.receive()) last.release();
      if (feedlane_arena_arm(owner_, nullptr) == FEEDLANE_OK) return;
    }
  }
  [[nodiscard]] const std::byte* control() const { return watch_->at<std::byte>(0); }
  void drop_all() { PROMISE(arenas::drop_entries(owner_, control(), plan_)); }
  void drop(fuzz::Input& in) {
    const std::string& key = arena_keys[in.pick(8)];
    PROMISE(feedlane_arena_drop(owner_, key.data(), key.size(), 0, nullptr) == FEEDLANE_OK);
    serve();
  }
  // The member can't wait for the owner, which is in its thread, so it is sent each segment before it asks.
  void send_segments() {
    std::set<std::uint64_t> segments;
    arenas::for_each_entry(control(), plan_, [&](const shm::ArenaEntry& e, shm::ArenaEntryState) {
      segments.insert(e.segment.load(std::memory_order_relaxed));
    });
    for (const std::uint64_t segment : segments) {
      const arena::SegmentRequest ask{arena::segment_request_magic, static_cast<std::uint32_t>(segment),
                                      static_cast<std::uint32_t>(segment >> 32)};
      Error error;
      PROMISE(os::send_message(ask_.get(), std::as_bytes(std::span(&ask, 1)), {}, error) == FEEDLANE_OK);
    }
    rest();
  }
  void use(fuzz::Input& in, Honest& honest) {
    serve();
    std::uint32_t count = 0;
    arenas::for_each_entry(control(), plan_, [&](const shm::ArenaEntry&, shm::ArenaEntryState) { count++; });
    if (count + 2 > entries) return;  // a put could wait for an entry, and the next get for that put
    if (&honest == other_.get()) send_segments();
    if (in.flag()) honest.put_one(in);
    else if (in.pick(4) == 3) (void)honest.receive();
    else honest.get_one(in);
    os::discard_messages(ask_.get());
    serve();
  }

  feedlane_arena* owner_ = nullptr;
  feedlane_arena* member_ = nullptr;
  std::unique_ptr<Honest> own_, other_;
  std::unique_ptr<fuzz::Rogue> rogue_;
  std::unique_ptr<fuzz::Mapped> watch_;  // control
  shm::ArenaPlan plan_;
  os::Fd ask_;  // the member's socket
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  static Bench evict(FEEDLANE_FULL_EVICT), wait(FEEDLANE_FULL_WAIT), fail(FEEDLANE_FULL_FAIL);
  Bench* const benches[] = {&evict, &wait, &fail};
  Bench& bench = *benches[in.pick(3)];
  bench.start(in.flag());
  for (int i = 0; i < 200 && in.any(); i++) bench.step(in);
  bench.finish();
  return 0;
}
