// SPDX-License-Identifier: Apache-2.0
// The owner of a small arena and eight members, which do everything with it at random, while members are killed, stopped and
// continued at random, those that are stopped too. Every entry is whole and stays so while it is held, belongs to its key and is not
// older than one that was complete; streams come in order, once, without a gap; what is pinned stays; waits end; a key has one
// maker at a time. In the end nothing is left, and nothing has grown.
// promise: arena-random
#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "arena_actor.hpp"
#include "arenas.hpp"
#include "footprint.hpp"
#include "forked.hpp"
#include "sharing.hpp"

namespace {

using actor::board;
using actor::Content;
using actor::Kind;
using actor::ms;
using actor::places;
using arenas::expect;
using arenas::expect_ok;
using stress::read;

// ---- the owner ----

class Owner {
 public:
  explicit Owner(const std::string& path) {
    sharing::end_with_parent();
    auto config = feedlane::test::fresh<feedlane_arena_config>();
    config.bytes = 1 << 20;
    config.members = places + 1;
    config.entries = 40;
    config.leases = actor::most_held + 1;
    config.path = path.c_str();
    feedlane::test::Error e;
    expect_ok("create", feedlane_arena_create(&config, &a_, &e), e);
    first_ = stress::footprint();
    first_shared_kib_ = stress::shared_kib();
  }

  int run() {
    std::thread server([this] { serve(); });
    std::thread other([this] { actor::Actor("", places, 0, true, a_).run(); });
    board->is_ready.store(true, std::memory_order_seq_cst);
    other.join();
    while (!board->members_have_ended.load(std::memory_order_seq_cst)) chaos::nap(ms);
    arenas::await(a_, "the end of all members", [](const feedlane_arena_stats& s) { return s.members == 1; });
    for (std::uint64_t life = 1; life <= read(board->lives); life++) {
      const actor::Life& l = board->of[life];
      arenas::await(a_, "entries that a member had sent",
                    [&](const feedlane_arena_stats&) { return read(received_[life]) >= read(l.sent); });
      if (read(received_[life]) > read(l.sent_begun))
        stress::die("entries of a member", read(received_[life]), read(l.sent_begun));
      for (std::uint64_t key = 0; key < actor::own_keys; key++) drop({Kind::own, key, life, 0});
      drop({Kind::pinned, 0, life, 0});
    }
    for (std::uint64_t key = 0; key < actor::free_keys; key++) drop({Kind::free, key, 0, 0});
    for (std::uint64_t key = 0; key < actor::made_keys; key++) drop({Kind::made, key, 0, 0});
    arenas::expect_empty(a_);
    is_over_.store(true, std::memory_order_relaxed);
    (void)feedlane_loader_interrupt(a_);
    server.join();
    check_growth();
    print();
    expect("destroy", feedlane_arena_destroy(&a_), FEEDLANE_OK);
    return 0;
  }

 private:
  // Receives what members send.
  void serve() {
    auto batch = feedlane::test::fresh<feedlane_batch>();
    feedlane::test::Error e;
    while (!is_over_.load(std::memory_order_relaxed)) {
      const std::int32_t s = feedlane_arena_receive(a_, FEEDLANE_FOREVER, &batch, &e);
      if (s == FEEDLANE_INTERRUPTED || s == FEEDLANE_SLOTS_HELD) continue;
      expect_ok("receive", s, e);
      const Content c = actor::content_of(batch);
      expect("the kind of an entry from a member", static_cast<std::int64_t>(c.kind),
             static_cast<std::int64_t>(Kind::sent));
      expect("the next entry of a member", static_cast<std::int64_t>(c.version),
             static_cast<std::int64_t>(read(received_[c.life]) + 1));
      stress::count(received_[c.life]);
      stress::count(received_total_);
      arenas::expect_released(a_, batch.token);
    }
  }
  void drop(const Content& key) { arenas::drop(a_, key.name()); }

  // All members are gone, and so is what there was of them. Mappings of their segments are kept for the next ones.
  void check_growth() const {
    const stress::Footprint now = stress::footprint();
    stress::check_growth(first_, now, {.resident_kib = 8192, .descriptors = 4, .mappings = 256});
    const std::uint64_t kib = stress::shared_kib();
    std::printf(
        "owner: resident %llu -> %llu KiB, shared %llu -> %llu KiB, descriptors %llu -> %llu, mappings %llu -> %llu\n",
        number(first_.resident_kib), number(now.resident_kib), number(first_shared_kib_), number(kib),
        number(first_.descriptors), number(now.descriptors), number(first_.mappings), number(now.mappings));
    if (kib > first_shared_kib_ + 1024)
      stress::die("shared memory, KiB", kib, first_shared_kib_);  // free memory is kept
  }
  static unsigned long long number(std::uint64_t n) { return n; }
  void print() const {
    const feedlane_arena_stats s = arenas::stats_of(a_);
    const actor::Board& b = *board;
    std::printf(
        "%llu entries put (%llu pinned), %llu evicted, %llu abandoned; %llu gets, %llu misses; %llu made, %llu given "
        "up; "
        "%llu received by the owner, %llu by members; %llu joins; longest wait after its timeout %.0f ms\n",
        number(s.published), number(read(b.pinned)), number(s.evicted), number(read(b.abandoned)), number(read(b.gets)),
        number(read(b.misses)), number(read(b.made)), number(read(b.given_up)), number(read(received_total_)),
        number(read(b.received_by_members)), number(read(b.joins)), static_cast<double>(read(b.longest_ns)) / 1e6);
    for (const std::uint64_t some : {s.evicted, read(b.pinned), read(b.made), read(b.given_up), read(received_total_),
                                     read(b.received_by_members), read(b.abandoned)})
      if (some == 0) stress::die("of everything, some", 0, 1);
  }

  feedlane_arena* a_ = nullptr;
  stress::Footprint first_;
  std::uint64_t first_shared_kib_ = 0;
  std::vector<stress::Count> received_ = std::vector<stress::Count>(actor::most_lives);  // of each life
  stress::Count received_total_{0};
  std::atomic<bool> is_over_{false};
};

// ---- what happens to the members ----

class Chaos {
 public:
  Chaos(const std::string& path, std::uint64_t seed) : path_(path), random_{seed * 2 + 1} {
    owner_.start([&] { return Owner(path_).run(); });
    while (!board->is_ready.load(std::memory_order_seq_cst)) {
      stress::Forked::expect_none_ended();
      chaos::nap(ms);
    }
    for (std::size_t place = 0; place < places; place++) start(place);
  }

  void run(std::int64_t ns) {
    const std::int64_t begin = chaos::now_ns();
    for (std::int64_t now = begin; now < begin + ns; now = chaos::now_ns()) {
      stress::Forked::expect_none_ended();
      for (stress::Forked& m : members_) m.wake(now);
      act(now);
      chaos::nap(static_cast<std::int64_t>(random_(60)) * ms);
    }
    board->should_end.store(true, std::memory_order_seq_cst);
    for (stress::Forked& m : members_) m.wake(INT64_MAX);
    for (const stress::Forked& m : members_) m.await();
    board->members_have_ended.store(true, std::memory_order_seq_cst);
    owner_.await();
    std::printf("%d members killed, %d of them stopped; %d stopped\n", kills_, stopped_kills_, stops_);
    if (kills_ == 0 || stops_ == 0) stress::die("kills and stops", 0, 1);
  }

 private:
  // The first member is never killed, and never leaves.
  void start(std::size_t place) {
    numbers_[place] = ++last_number_;
    if (last_number_ == actor::most_lives) stress::die("processes", last_number_, actor::most_lives);
    members_[place].start([&] {
      sharing::end_with_parent();
      actor::Actor(path_, place, numbers_[place], place == 0).run();
      return 0;
    });
  }
  void act(std::int64_t now) {
    const std::uint64_t what = random_(6), place = random_(places);
    stress::Forked& m = members_[place];
    if (what < 2 && place != 0) {
      // Who gets its right to make an entry knows that it may.
      board->is_killed[numbers_[place]].store(true, std::memory_order_seq_cst);
      stopped_kills_ += m.is_stopped() ? 1 : 0;
      m.kill();
      kills_++;
      start(place);
    } else if (what < 4 && m.stop(now + static_cast<std::int64_t>(random_(random_(4) == 0 ? 900 : 60)) * ms + 1)) {
      stops_++;
    }
  }

  std::string path_;
  stress::Random random_;
  stress::Forked owner_;
  std::array<stress::Forked, places> members_;
  std::array<std::uint64_t, places> numbers_{};  // of the process at each place
  std::uint64_t last_number_ = 0;
  int kills_ = 0, stopped_kills_ = 0, stops_ = 0;
};

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const char* const seconds = std::getenv("FEEDLANE_SECONDS");
  const std::uint64_t length = seconds != nullptr ? std::strtoull(seconds, nullptr, 10) : stress::length(10, 600);
  char folder[] = "/tmp/feedlane-chaos.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  board = stress::make_shared_object<actor::Board>();
  Chaos(std::string(folder) + "/arena", static_cast<std::uint64_t>(chaos::now_ns()))
      .run(static_cast<std::int64_t>(length) * 1'000 * ms);
  (void)::rmdir(folder);
  return 0;
}
