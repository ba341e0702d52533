// SPDX-License-Identifier: Apache-2.0
// A member of an arena that goes wild: writes noise over its words, its ring, its leases and its entries, sends noise over its
// socket, breaks its doorbells, tries to write what it may only read. The owner and two other members put, get and send
// meanwhile: what they get of each other is whole and in order, and after each wild process's end they can put again. In
// the end nothing is in use, and the owner has not grown.
//
// FEEDLANE_SEED=n repeats a run's choices (their timing can't be repeated); FEEDLANE_STRESS=full runs for ten minutes,
// FEEDLANE_SECONDS=n for n seconds.
// promise: arena-noise
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "crash/arena_inside.hpp"
#include "crash/noise.hpp"
#include "feedlane.h"
#include "greeting/arena.hpp"
#include "stress/arenas.hpp"
#include "stress/footprint.hpp"
#include "stress/forked.hpp"
#include "stress/sharing.hpp"
#include "support/arena_entries.hpp"
#include "support/arena_numbers.hpp"

namespace {

namespace entries = feedlane::test::arenas;
namespace shm = feedlane::shm;
using feedlane::test::fresh;
using feedlane::test::send_over;
using feedlane::test::spoil;

constexpr std::int64_t ms = 1'000'000;
constexpr std::uint64_t arena_bytes = std::uint64_t{4} << 20;
constexpr std::uint32_t good_members = 2;  // numbers 1 and 2; the owner is 0
const std::array<std::string, 6> keys{"a", "b", "c", "d", "e", std::string(shm::arena_key_bytes, 'k')};

struct Board {
  std::atomic<std::uint32_t> joined, is_over;
  std::array<std::atomic<std::uint64_t>, good_members + 1> puts;  // of the owner and the good members
  std::atomic<std::uint64_t> gets, received, spoiled, misdeeds, writes_refused, cut_off;
};
Board* board = nullptr;

// ---- the one that goes wild ----

constexpr std::uint64_t deeds = 9;
constexpr std::int64_t life_ns = 150 * ms;

class Wild {
 public:
  Wild(feedlane_arena* a, std::uint64_t seed) : a_(a), random_{seed * 2 + 1} {
    for (int i = 0; i < 8; i++) (void)random_(2);
  }

  // Follows the rules for a while, then doesn't. It may well crash.
  void run(std::uint64_t deed) {
    const auto most = static_cast<std::int64_t>(random_(40));
    for (std::int64_t n = 0;; n++) {
      if (n > most) do_wrong(deed);
      const std::string key = random_(4) == 0 ? "" : keys[random_(keys.size())];
      (void)entries::put(a_, key, n, 1 + static_cast<std::int64_t>(random_(20'000)), ms, nullptr,
                         !key.empty() && random_(8) == 0);
      feedlane_batch batch;
      const std::int32_t s =
          entries::get(a_, keys[random_(keys.size())], batch, ms, nullptr, random_(4) == 0 ? FEEDLANE_GET_MAKE : 0);
      if (s == FEEDLANE_OK && random_(8) != 0) (void)feedlane_batch_release(a_, batch.token);
    }
  }

 private:
  std::uint64_t word() { return wild::any_word(random_); }
  void set(shm::Word64& w) {
    if (random_(2) == 0) w.store(word(), std::memory_order_relaxed);
    else w.fetch_add(random_(600) - 300, std::memory_order_relaxed);
  }
  void do_wrong(std::uint64_t deed) {
    board->misdeeds.fetch_add(1, std::memory_order_relaxed);
    switch (deed) {
      case 0: return set(in_.row->answer_position);
      case 1: return set(in_.row->delivery_position);
      case 2: return lease();
      case 3: return spoil_part(in_.member, in_.member.bytes);
      case 4: return spoil_part(in_.payload, in_.payload.bytes / 4);
      case 5: return send_requests();
      case 6: return send_noise();
      case 7: return wild::break_events(in_.events, random_);
      default: return write_what_is_not_its();
    }
  }
  // Entries that exist or not, used in the future.
  void lease() {
    const auto* all = reinterpret_cast<const shm::ArenaEntry*>(in_.control + in_.plan.entries);
    in_.row->leases_in_use.store(word(), std::memory_order_relaxed);
    for (int i = 0; i < 20; i++) {
      const std::uint64_t number = random_(in_.plan.geometry.entries);
      const std::uint64_t state = all[number].state.load(std::memory_order_relaxed);
      in_.leases[random_(in_.plan.geometry.leases)].store(
          random_(2) == 0 ? word() : state >> 8 << shm::arena_entry_bits | number, std::memory_order_relaxed);
      in_.uses[number].store(word(), std::memory_order_relaxed);
    }
  }
  void spoil_part(const entries::Mapping& m, std::uint64_t bytes) {
    std::uint64_t seed = random_(UINT64_MAX) | 1;
    const std::uint64_t from = random_(bytes);
    spoil(m.at + from, 1 + random_(std::min<std::uint64_t>(bytes - from, 100'000)), seed);
  }
  // Into the cells that the owner reads next, with the sequence numbers that it expects.
  void send_requests() {
    const std::uint64_t at = in_.words->request_position.load(std::memory_order_relaxed);
    const feedlane::ring::Cells cells = in_.request_cells();
    for (std::uint64_t i = 0; i < 1 + random_(8); i++) {
      shm::ArenaRequest r{};
      r.kind = static_cast<std::uint32_t>(1 + random_(7 + random_(2)));
      r.flags = static_cast<std::uint32_t>(random_(8));
      r.ticket = random_(8);
      r.offset = random_(3) == 0 ? word() : random_(1024) * 256;
      r.bytes = random_(8) == 0 ? word() : (1 + random_(64)) * 256;
      const std::string& key = keys[random_(keys.size())];
      r.key_bytes = random_(8) == 0 ? word() : key.size();
      std::memcpy(r.key, key.data(), key.size());
      std::memcpy(cells.message(at + i), &r, sizeof r);
      cells.sequence(at + i).store(at + i + 1, std::memory_order_release);
    }
    in_.ring();
  }
  void send_noise() {
    namespace arena = feedlane::arena;
    constexpr std::uint64_t magics[] = {arena::asking_magic,          arena::attached_magic, arena::leaving_magic,
                                        arena::segment_request_magic, arena::welcome_magic,  arena::left_magic};
    for (std::uint64_t i = 1 + random_(20); i-- > 0;) {
      std::byte bytes[64];
      std::uint64_t seed = random_(UINT64_MAX) | 1;
      spoil(bytes, sizeof bytes, seed);
      const std::uint64_t magic = magics[random_(random_(64) == 0 ? 6 : 4)];
      if (random_(4) != 0) std::memcpy(bytes, &magic, sizeof magic);
      const std::size_t sizes[] = {0, 8, 16, 24, 1 + random_(sizeof bytes - 1)};
      std::vector<int> fds;
      if (random_(4) == 0) fds.assign(1 + random_(40), in_.events[0]);
      (void)send_over(in_.socket, bytes, sizes[random_(5)], fds);
    }
  }
  static void write_what_is_not_its() {
    for (const entries::Mapping& m : entries::mappings()) {
      if (m.is_writable) continue;
      if (::mprotect(m.at, 4096, PROT_READ | PROT_WRITE) == 0) ::_exit(wild::exit_writable);
      board->writes_refused.fetch_add(1, std::memory_order_relaxed);
    }
  }

  feedlane_arena* a_;
  stress::Random random_;
  entries::MemberInside in_;
};

// ---- the others ----

// Puts and gets, and checks all that comes from a process that follows the rules: entries of consecutive numbers, of which
// the first says who has put the entry, and when.
class Good {
 public:
  Good(feedlane_arena* a, std::uint32_t number, std::uint64_t seed)
      : a_(a), number_(number), random_{seed * 16 + number + 1} {}
  Good(const Good&) = delete;
  Good& operator=(const Good&) = delete;
  ~Good() {
    while (!held_.empty()) release();
  }

  void put_one() {
    const std::string key = number_ != 0 && random_(4) == 0 ? "" : keys[random_(keys.size())];
    const std::int64_t first = std::int64_t{number_} << 48 | next_++ << 20;
    const std::int32_t s = entries::put(a_, key, first, 1 + static_cast<std::int64_t>(random_(20'000)), 5 * ms);
    if (s == FEEDLANE_OK) board->puts[number_].fetch_add(1, std::memory_order_relaxed);
    else if (s != FEEDLANE_TIMEOUT) stress::die("status of a put", static_cast<std::uint64_t>(-s), 0);
  }
  void get_one() {
    feedlane_batch batch;
    feedlane::test::Error e;
    const std::int32_t s = entries::get(a_, keys[random_(keys.size())], batch, random_(4) == 0 ? ms : 0, &e);
    if (keep(s, batch, e)) board->gets.fetch_add(1, std::memory_order_relaxed);
  }
  void receive() {
    auto batch = fresh<feedlane_batch>();
    feedlane::test::Error e;
    if (!keep(feedlane_arena_receive(a_, 5 * ms, &batch, &e), batch, e)) return;
    const auto maker = static_cast<std::uint32_t>(batch.worker);
    if (maker > good_members) return;
    const std::int64_t first = entries::first_of(batch);
    if (first <= last_[maker]) stress::die("the order of what was sent", static_cast<std::uint64_t>(first), 0);
    last_[maker] = first;
    board->received.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  bool keep(std::int32_t s, const feedlane_batch& batch, const feedlane::test::Error& e) {
    if (s == FEEDLANE_TIMEOUT) return false;
    if (s == FEEDLANE_E_CORRUPT && e.says("has spoiled its entry")) {
      for (std::uint32_t good = 0; good <= good_members; good++)
        if (e.says("member " + std::to_string(good) + " ")) chaos::die("the entry of another", e);
      board->spoiled.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    if (s != FEEDLANE_OK) chaos::die("status of a get", e);
    check(batch);
    held_.push_back(batch);
    if (held_.size() > 3) release();
    return true;
  }
  void release() {
    check(held_.front());  // nobody has written it since
    if (feedlane_batch_release(a_, held_.front().token) != FEEDLANE_OK) stress::die("release", 0, 1);
    held_.pop_front();
  }
  static void check(const feedlane_batch& b) {
    const auto maker = static_cast<std::uint32_t>(b.worker);
    if (maker > good_members) return;
    const std::int64_t first = entries::first_of(b);
    if (first < 0 || first >> 48 != maker)
      stress::die("what was put", static_cast<std::uint64_t>(first), std::uint64_t{maker} << 48);
  }

  feedlane_arena* a_;
  std::uint32_t number_;
  stress::Random random_;
  std::int64_t next_ = 1;
  std::array<std::int64_t, good_members + 1> last_{};
  std::deque<feedlane_batch> held_;
};

int be_beside(const std::string& path, std::uint32_t number, std::uint64_t seed) {
  while (board->joined.load() != number - 1) chaos::nap(ms);  // so that the number is this one
  sharing::end_with_parent();
  feedlane_arena* a = arenas::join(path);
  board->joined.fetch_add(1);
  {
    Good good(a, number, seed);
    while (board->is_over.load() == 0) good.put_one(), good.get_one();
  }
  return feedlane_arena_destroy(&a) == FEEDLANE_OK ? 0 : 1;
}

void take_events(feedlane_arena* a) {
  auto event = fresh<feedlane_event>();
  while (feedlane_loader_event(a, &event) == FEEDLANE_OK) {
    if (event.kind != FEEDLANE_EVENT_CONSUMER_EVICTED) continue;
    for (std::uint32_t good = 0; good <= good_members; good++)
      if (std::strstr(event.what.text, ("member " + std::to_string(good) + " (").c_str()) != nullptr)
        stress::die(event.what.text, 1, 0);
    board->cut_off.fetch_add(1, std::memory_order_relaxed);
  }
}

int own(const std::string& path, std::uint64_t seed) {
  sharing::end_with_parent();
  auto config = fresh<feedlane_arena_config>();
  config.bytes = arena_bytes;
  config.path = path.c_str();
  feedlane_arena* a = nullptr;
  feedlane::test::Error e;
  if (feedlane_arena_create(&config, &a, &e) != FEEDLANE_OK) chaos::die("create", e);
  const entries::MemberInside in;
  const auto drop = [&](std::uint64_t from_maker) {
    if (!entries::drop_entries(a, in.control, in.plan, from_maker)) stress::die("drop of the owner", 0, 1);
  };
  stress::Footprint first;
  {
    Good good(a, 0, seed);
    for (std::uint64_t n = 0; board->is_over.load() == 0; n++) {
      good.receive();
      if (n % 8 == 0) good.put_one(), good.get_one();
      take_events(a);
      if (n % 100 != 0) continue;
      drop(good_members + 1);  // pinned entries of the wild ones would stay
      const stress::Footprint now = stress::footprint();
      if (n == 1000) first = now;
      if (n > 1000) stress::check_growth(first, now, {.resident_kib = 32768, .descriptors = 60, .mappings = 60});
    }
    while (arenas::stats_of(a).members != 1) good.receive(), drop(0);
  }
  while (arenas::stats_of(a).entries != 0) Good(a, 0, seed).receive(), drop(0);
  take_events(a);
  arenas::expect_empty(a);
  return feedlane_arena_destroy(&a) == FEEDLANE_OK ? 0 : 1;
}

// ---- processes ----

// It may crash, or hang in its own words.
void run_wild(const std::string& path, std::uint64_t seed, std::uint64_t deed) {
  stress::Forked forked;
  forked.start([&] {
    (void)!::freopen("/dev/null", "w", stderr);
    sharing::end_with_parent();
    Wild(arenas::join(path), seed).run(deed);
    return 0;
  });
  chaos::nap(life_ns);
  (void)::kill(forked.pid(), SIGKILL);
  int status = 0;
  (void)::waitpid(forked.pid(), &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == wild::exit_writable)
    stress::die("a mapping of a member's that can be made writable", 1, 0);
}

// The owner and the good members put again.
void await_puts() {
  for (const auto& puts : board->puts)
    for (const std::uint64_t before = puts.load(); puts.load() == before; chaos::nap(ms))
      stress::Forked::expect_none_ended();
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const char* const given = std::getenv("FEEDLANE_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : static_cast<std::uint64_t>(chaos::now_ns()) % 1'000'000'000;
  std::printf("FEEDLANE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  const char* const seconds = std::getenv("FEEDLANE_SECONDS");
  const std::uint64_t length = seconds != nullptr ? std::strtoull(seconds, nullptr, 10) : stress::length(12, 600);
  const unsigned patience_s = 40 * static_cast<unsigned>(feedlane::test::slowness());
  char folder[] = "/tmp/feedlane-wild.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  const std::string path = std::string(folder) + "/arena";
  board = stress::make_shared_object<Board>();
  (void)::alarm(patience_s);
  std::array<stress::Forked, 1 + good_members> others;
  others[0].start([&] { return own(path, seed); });
  for (; ::access(path.c_str(), F_OK) != 0; chaos::nap(ms)) stress::Forked::expect_none_ended();
  for (std::uint32_t number = 1; number <= good_members; number++)
    others[number].start([&] { return be_beside(path, number, seed); });
  await_puts();
  std::uint64_t lives = 0;
  const std::int64_t end = chaos::now_ns() + static_cast<std::int64_t>(length) * 1'000 * ms;
  for (; chaos::now_ns() < end; lives++) {
    (void)::alarm(patience_s);
    run_wild(path, seed + lives, lives % deeds);
    await_puts();
  }
  (void)::alarm(patience_s);
  board->is_over = 1;
  for (const stress::Forked& other : others) other.await();
  const auto count = [](const std::atomic<std::uint64_t>& n) { return static_cast<unsigned long long>(n.load()); };
  std::printf(
      "%llu lives, %llu misdeeds, %llu cut off, %llu writes refused; the others put %llu, %llu and %llu entries, got "
      "%llu, received %llu, and found %llu spoiled\n",
      static_cast<unsigned long long>(lives), count(board->misdeeds), count(board->cut_off),
      count(board->writes_refused), count(board->puts[0]), count(board->puts[1]), count(board->puts[2]),
      count(board->gets), count(board->received), count(board->spoiled));
  for (const auto* n : {&board->gets, &board->received, &board->cut_off})
    if (n->load() == 0) stress::die("gets, entries received or members cut off", 0, 1);
  (void)::rmdir(folder);
  return 0;
}
