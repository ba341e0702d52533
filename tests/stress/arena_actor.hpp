// SPDX-License-Identifier: Apache-2.0
// A process of an arena that does everything with it at random, and checks what it gets. What all processes must know to
// check each other lies on a board in shared memory.
//
// A life is one membership, and has a number. Only it writes its own keys, so the versions of such an entry ascend. Every
// process writes the free keys. A made key is written only by who has the right to make it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>

#include "arenas.hpp"
#include "footprint.hpp"
#include "support/arena_numbers.hpp"

namespace actor {

using arenas::expect;
using chaos::patience_ns;
using stress::Count;
using stress::count;
using stress::read;

constexpr std::int64_t ms = 1'000'000;
constexpr std::size_t places = 8;  // of members; the owner's own actor has the place behind them
constexpr std::size_t most_lives = 1 << 15;
constexpr std::uint64_t own_keys = 2, free_keys = 4, made_keys = 3;
constexpr std::size_t most_held = 4;
constexpr std::uint64_t most_lag = 16;  // entries that the owner has sent and a member has not received

// ---- what all of them see ----

struct Life {
  std::array<Count, own_keys> begun, known;  // newest versions: that may be there, whose publication is known complete
  Count pinned_begun, pinned;                // likewise; 0: none
  Count sent_begun, sent;                    // entries to the owner
  Count process;                             // number of the process
  std::atomic<bool> drops_pinned;
};
struct Board {
  std::atomic<bool> is_ready, should_end, members_have_ended;
  Count lives;                          // that have begun
  std::array<Count, places + 1> at;     // which one is at each place; 0: none yet
  std::array<Count, places> received;   // of the owner's entries, by the member at each place
  Count sent_begun, sent;               // by the owner
  std::array<Count, made_keys> makers;  // the life that makes each key now; 0: none
  std::array<Life, most_lives> of;
  std::array<std::atomic<bool>, most_lives> is_killed;  // each process; stored before it is killed
  Count entries, abandoned, gets, misses, received_by_members, made, given_up, pinned, joins, longest_ns;
};
inline Board* board = nullptr;

// ---- entries ----

enum class Kind : std::uint8_t { own = 1, pinned, free, made, sent, owners };

// What the numbers of an entry begin with.
struct Content {
  Kind kind = Kind::own;
  std::uint64_t key = 0;
  std::uint64_t life = 0;
  std::uint64_t version = 0;

  [[nodiscard]] std::int64_t first() const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(kind) << 59 | key << 55 | life << 40 | version << 16);
  }
  static Content of(std::int64_t first) {
    const auto word = static_cast<std::uint64_t>(first);
    return {static_cast<Kind>(word >> 59), word >> 55 & 15, word >> 40 & (most_lives - 1), word >> 16 & 0xff'ffff};
  }
  // Some entries that are kept or sent are small, so that all of them fit into the arena at once.
  [[nodiscard]] std::int64_t length() const {
    const std::uint64_t scattered = static_cast<std::uint64_t>(first()) * 0x9e3779b97f4a7c15 >> 32;
    if (kind == Kind::pinned || kind == Kind::sent || kind == Kind::owners)
      return 1 + static_cast<std::int64_t>(scattered % 500);
    return 1 + static_cast<std::int64_t>(scattered / 8 % (scattered % 8 == 0 ? 40'000 : 1500));
  }
  // Empty: it is sent.
  [[nodiscard]] std::string name() const {
    if (kind == Kind::sent || kind == Kind::owners) return "";
    const bool is_shared = kind == Kind::free || kind == Kind::made;
    return std::to_string(static_cast<int>(kind)) + "." + std::to_string(key) + "." +
           std::to_string(is_shared ? 0 : life);
  }
};

// The content of an entry, which must be whole.
inline Content content_of(const feedlane_batch& batch) {
  const std::int64_t first = feedlane::test::arenas::first_of(batch);
  const Content c = Content::of(first);
  if (first < 0 || c.first() != first)
    stress::die("numbers of an entry that is whole", static_cast<std::uint64_t>(first), 0);
  expect("numbers of an entry", batch.tensors[0].shape[0], c.length());
  return c;
}

// ---- a process ----

class Actor {
 public:
  // A member at `place`, which joins, leaves and joins again; or, with `a`, one in the owner's process. `process`: its
  // number. `stays`: it joins once.
  Actor(const std::string& path, std::size_t place, std::uint64_t process, bool stays, feedlane_arena* a = nullptr)
      : path_(path),
        place_(place),
        process_(process),
        stays_(stays),
        is_owner_(a != nullptr),
        a_(a),
        random_{static_cast<std::uint64_t>(chaos::now_ns()) * 2 + 1} {}

  void run() {
    for (int joins = 1; !should_end(); joins++) {
      begin_life();
      const bool stays =
          stays_ || life_ > most_lives / 4 * 3;  // the rest is for the successors of members that are killed
      const std::uint64_t leaves = 1 + random_(2000);
      for (std::uint64_t acts = 1; (acts != leaves || stays) && !should_end(); acts++) {
        act();
        // It maps what others write, and the owner has descriptors of each member and of memory that ended ones have left.
        if (stays && acts % 2000 == 0)
          check_growth(acts == 2000, {.resident_kib = 8192, .descriptors = is_owner_ ? 250u : 0, .mappings = 250});
      }
      end_life();
      if (joins >= 3 && !stays) check_growth(joins == 3, {.resident_kib = 4096});
    }
  }

 private:
  struct Held {
    feedlane_batch batch;
    std::int64_t first;
  };

  [[nodiscard]] static bool should_end() { return board->should_end.load(std::memory_order_seq_cst); }
  [[nodiscard]] Life& mine() const { return board->of[life_]; }

  // ---- lives ----

  void begin_life() {
    const std::uint64_t former = read(board->at[place_]);
    life_ = board->lives.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (life_ >= most_lives) stress::die("lives", life_, most_lives);
    mine().process.store(process_, std::memory_order_seq_cst);
    version_ = next_ = 0;
    if (!is_owner_) join();
    board->at[place_].store(life_, std::memory_order_seq_cst);
    if (former == 0 || is_owner_) return;
    check_pinned(former);
    drop_pinned(former);
  }
  // E_LIMIT: the owner has not noticed yet that the place's former member has gone, or has not evicted what such have put.
  void join() {
    for (const std::int64_t end = chaos::now_ns() + patience_ns;;) {
      const std::int32_t s =
          timed(patience_ns, [&] { return feedlane_arena_join(-1, path_.c_str(), patience_ns, &a_, &e_); });
      if (s == FEEDLANE_OK) break;
      if ((s != FEEDLANE_E_LIMIT && s != FEEDLANE_INTERRUPTED) || chaos::now_ns() > end) chaos::die("join", e_);
      chaos::nap(ms);
    }
    joined_at_ = read(board->sent_begun);
    board->received[place_].store(joined_at_, std::memory_order_seq_cst);
    count(board->joins);
  }
  void end_life() {
    if (random_(2) == 0 || is_owner_) drop_pinned(life_);
    release_all();
    if (!is_owner_) expect("destroy", feedlane_arena_destroy(&a_), FEEDLANE_OK);
  }

  void check_growth(bool is_first, const stress::Footprint& slack) {
    if (is_first) first_ = stress::footprint();
    else stress::check_growth(first_, stress::footprint(), slack);
  }

  // ---- waits ----

  // Calls `f`, which waits until the timeout at most.
  template <class F>
  static std::int32_t timed(std::int64_t timeout_ns, F&& f) {
    const std::int64_t before = chaos::now_ns();
    const std::int32_t s = f();
    const std::int64_t over = chaos::now_ns() - before - timeout_ns;
    if (over > patience_ns) stress::die("ns after its timeout, a wait's end", static_cast<std::uint64_t>(over), 0);
    if (over > 0) stress::raise_to(board->longest_ns, static_cast<std::uint64_t>(over));
    return s;
  }
  // A wait of `patience_ns` comes to its end, because nobody holds anything while he waits for so long.
  std::int64_t draw_timeout() {
    switch (random_(3)) {
      case 0: return 0;
      case 1: return static_cast<std::int64_t>(random_(20)) * ms;
      default: release_all(); return patience_ns;
    }
  }
  // True: it succeeded. False: not this time, for a reason that is allowed.
  bool check(const char* what, std::int32_t s, std::int64_t timeout_ns) {
    if (s == FEEDLANE_OK) return true;
    const bool is_late = s == FEEDLANE_TIMEOUT && timeout_ns == patience_ns;
    if (s == FEEDLANE_SLOTS_HELD) release_all();
    else if ((s != FEEDLANE_TIMEOUT && s != FEEDLANE_INTERRUPTED) || is_late)
      chaos::die((std::string(what) + ": " + feedlane_status_name(s)).c_str(), e_);
    return false;
  }

  // ---- puts and gets ----

  bool put(const Content& c, std::int64_t timeout_ns) {
    const std::int32_t s = timed(2 * timeout_ns, [&] {
      return feedlane::test::arenas::put(a_, c.name(), c.first(), c.length(), timeout_ns, &e_, c.kind == Kind::pinned);
    });
    if (!check("put", s, timeout_ns)) return false;
    count(board->entries);
    return true;
  }
  // The status; what is found is of the key.
  std::int32_t get(const Content& key, std::int64_t timeout_ns, Content& found, std::int32_t flags = 0) {
    feedlane_batch batch;
    const std::int32_t s =
        timed(timeout_ns, [&] { return feedlane::test::arenas::get(a_, key.name(), batch, timeout_ns, &e_, flags); });
    if (s == FEEDLANE_TIMEOUT) count(board->misses);
    if (s != FEEDLANE_OK) return s;
    count(board->gets);
    found = hold(batch);
    if (found.name() != key.name())
      chaos::die(("an entry of " + found.name() + " is that of " + key.name()).c_str(), e_);
    return s;
  }
  Content hold(const feedlane_batch& batch) {
    const Content c = content_of(batch);
    held_.push_back({batch, c.first()});
    while (held_.size() > most_held || (!held_.empty() && random_(3) == 0)) release();
    return c;
  }
  void release() {
    const std::size_t which = random_(held_.size());
    const Held h = held_[which];
    expect("what is held", content_of(h.batch).first(), h.first);
    arenas::expect_released(a_, h.batch.token);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  void release_all() {
    while (!held_.empty()) release();
  }
  void drop(const std::string& key) {
    std::int32_t s = FEEDLANE_OK;
    do s = timed(patience_ns, [&] { return feedlane_arena_drop(a_, key.data(), key.size(), patience_ns, &e_); });
    while (s == FEEDLANE_INTERRUPTED);
    if (s != FEEDLANE_OK) chaos::die("drop", e_);
  }

  // ---- what it does ----

  void act() {
    switch (random_(12)) {
      case 0: return put_own();
      case 1:
      case 2: return look_at_own();
      case 3: return put_pinned();
      case 4: return check_pinned(read(board->at[random_(places + 1)]));
      case 5: return put_free();
      case 6: return look_at_free();
      case 7: return abandon();
      case 8: return is_owner_ ? send_to_members() : send_to_owner();
      case 9: return is_owner_ ? release_all() : receive();
      default: return make();
    }
  }

  // A process finds what it has put itself, so a version that it finds is complete for all. The wait for that, which
  // holds nothing up, is limited: then nothing is known.
  void put_own() {
    const Content c{Kind::own, random_(own_keys), life_, ++version_};
    mine().begun[c.key].store(c.version, std::memory_order_seq_cst);
    if (!put(c, draw_timeout()) || random_(2) == 0) return;
    release_all();
    const std::int64_t before = chaos::now_ns();
    Content found;
    if (!check("get", get(c, 0, found), 0) || chaos::now_ns() - before > 4'000 * ms) return;
    expect("the version that it has put", static_cast<std::int64_t>(found.version),
           static_cast<std::int64_t>(c.version));
    mine().known[c.key].store(c.version, std::memory_order_seq_cst);
  }
  void look_at_own() {
    const Content key{Kind::own, random_(own_keys), read(board->at[random_(places + 1)]), 0};
    const Life& life = board->of[key.life];
    const std::uint64_t known = read(life.known[key.key]);
    const std::int64_t timeout = static_cast<std::int64_t>(random_(3)) * ms;
    Content found;
    if (!check("get", get(key, timeout, found), timeout)) return;
    if (found.version < known) stress::die("an entry that is older than a complete one", found.version, known);
    if (found.version > read(life.begun[key.key])) stress::die("an entry that was not put", found.version, 0);
  }

  void put_pinned() {
    const Content c{Kind::pinned, 0, life_, ++version_};
    release_all();
    mine().pinned_begun.store(c.version, std::memory_order_seq_cst);
    if (!put(c, patience_ns)) return;
    count(board->pinned);
    release_all();
    Content found;
    const std::int64_t before = chaos::now_ns();
    if (!check("get", get(c, patience_ns, found), patience_ns) || chaos::now_ns() - before > 4'000 * ms) return;
    expect("the version of what is pinned", static_cast<std::int64_t>(found.version),
           static_cast<std::int64_t>(c.version));
    mine().pinned.store(c.version, std::memory_order_seq_cst);
  }
  // It is there until it is dropped.
  void check_pinned(std::uint64_t of) {
    const Life& life = board->of[of];
    const std::uint64_t known = read(life.pinned);
    if (known == 0) return;
    const Content key{Kind::pinned, 0, of, 0};
    for (const std::int64_t end = chaos::now_ns() + patience_ns;;) {
      Content found;
      if (check("get", get(key, 20 * ms, found), 20 * ms)) {
        if (found.version < known) stress::die("an older pinned entry", found.version, known);
        return;
      }
      if (life.drops_pinned.load(std::memory_order_seq_cst)) return;
      if (chaos::now_ns() > end) stress::die("pinned entries that were lost", 1, 0);
    }
  }
  void drop_pinned(std::uint64_t of) {
    if (read(board->of[of].pinned_begun) == 0) return;
    board->of[of].drops_pinned.store(true, std::memory_order_seq_cst);
    drop(Content{Kind::pinned, 0, of, 0}.name());
  }

  void put_free() {
    const Content c{Kind::free, random_(free_keys), life_, ++version_};
    if (random_(4) == 0) drop(c.name());
    else (void)put(c, draw_timeout());
  }
  void look_at_free() {
    const std::int64_t timeout = static_cast<std::int64_t>(random_(20)) * ms;
    Content found;
    (void)check("get", get({Kind::free, random_(free_keys), 0, 0}, timeout, found), timeout);
  }
  void abandon() {
    const Content c{Kind::free, random_(free_keys), life_, ++version_};
    const std::int64_t timeout = draw_timeout();
    feedlane_batch batch;
    const std::int32_t s = timed(timeout, [&] {
      return feedlane::test::arenas::reserve(a_, c.name(), c.first(), c.length(), timeout, batch, &e_);
    });
    if (!check("reserve", s, timeout)) return;
    count(board->abandoned);
    arenas::expect_released(a_, batch.token);
  }

  void send_to_owner() {
    const std::uint64_t next = read(mine().sent) + 1;
    mine().sent_begun.store(next, std::memory_order_seq_cst);
    if (put({Kind::sent, 0, life_, next}, draw_timeout())) mine().sent.store(next, std::memory_order_seq_cst);
  }
  void send_to_members() {
    const std::uint64_t next = read(board->sent) + 1;
    for (const Count& received : board->received)
      if (read(received) + most_lag < next) return;
    board->sent_begun.store(next, std::memory_order_seq_cst);
    if (put({Kind::owners, 0, life_, next}, draw_timeout())) board->sent.store(next, std::memory_order_seq_cst);
  }
  void receive() {
    const std::int64_t timeout = static_cast<std::int64_t>(random_(3)) * ms;
    auto batch = feedlane::test::fresh<feedlane_batch>();
    const std::int32_t s = timed(timeout, [&] { return feedlane_arena_receive(a_, timeout, &batch, &e_); });
    if (!check("receive", s, timeout)) return;
    const Content c = hold(batch);
    if (c.kind != Kind::owners)
      stress::die("the kind of an entry from the owner", static_cast<std::uint64_t>(c.kind), 0);
    if (next_ == 0 && c.version > joined_at_ + 1) stress::die("the first entry", c.version, joined_at_ + 1);
    if (next_ != 0)
      expect("the entry that follows", static_cast<std::int64_t>(c.version), static_cast<std::int64_t>(next_));
    next_ = c.version + 1;
    board->received[place_].store(c.version, std::memory_order_seq_cst);
    count(board->received_by_members);
  }

  // The key's entry, or the right to make it, which nobody else has.
  void make() {
    const Content key{Kind::made, random_(made_keys), life_, ++version_};
    const std::int64_t timeout = draw_timeout();
    Content found;
    const std::int32_t s = get(key, timeout, found, FEEDLANE_GET_MAKE);
    if (s == FEEDLANE_OK && random_(3) == 0) drop(key.name());
    if (s != FEEDLANE_ABSENT) return (void)check("make", s, timeout);
    Count& maker = board->makers[key.key];
    const std::uint64_t former = maker.exchange(life_, std::memory_order_seq_cst);
    if (former != 0 && !board->is_killed[read(board->of[former].process)].load(std::memory_order_seq_cst))
      stress::die("makers of one key at a time", 2, 1);
    release_all();
    feedlane_batch batch;
    const std::int32_t reserved = timed(patience_ns, [&] {
      return feedlane::test::arenas::reserve(a_, key.name(), key.first(), key.length(), patience_ns, batch, &e_);
    });
    const bool is_ready = check("reserve", reserved, patience_ns);
    if (const std::uint64_t now = maker.exchange(0, std::memory_order_seq_cst); now != life_)
      stress::die("the maker of a key", now, life_);
    if (is_ready && random_(4) != 0) {
      const std::int32_t published =
          timed(patience_ns, [&] { return feedlane_arena_publish(a_, batch.token, patience_ns, &e_); });
      if (check("publish", published, patience_ns)) return count(board->made);
    }
    if (is_ready) arenas::expect_released(a_, batch.token);
    drop(key.name());
    count(board->given_up);
  }

  std::string path_;
  std::size_t place_;
  std::uint64_t process_;
  bool stays_, is_owner_;
  feedlane_arena* a_;
  stress::Random random_;
  feedlane::test::Error e_;
  std::uint64_t life_ = 0, version_ = 0;
  std::uint64_t next_ = 0;       // the entry of the owner that follows; 0: any up to joined_at_ + 1
  std::uint64_t joined_at_ = 0;  // entries that the owner had begun to send
  std::deque<Held> held_;
  stress::Footprint first_;
};

}  // namespace actor
