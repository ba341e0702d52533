// SPDX-License-Identifier: Apache-2.0
// A feeder, its workers and four consumers under kills and stops; consumers leave, are evicted and join again; the feeder is
// killed and started again. Each consumer gets each batch once, in order, whole, from where it joined. Share deal: who joins a
// place goes on with the batch after the last one that its former consumer had. Nothing grows.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string>
#include <vector>

#include "footprint.hpp"
#include "forked.hpp"
#include "sharing.hpp"
#include "support/api.hpp"

namespace {

using sharing::compare;
using stress::Count;
using stress::count;
using stress::raise_to;
using stress::read;

constexpr std::int64_t ms = 1'000'000;
constexpr std::int32_t places = 4;
constexpr std::int64_t evict_after_ns = 150 * ms;

sharing::Terms terms_of(std::int32_t share, const std::string& path) {
  sharing::Terms t;
  t.share = share;
  t.consumers = places;
  t.batches = 100 * t.stride();
  t.path = path;
  t.workers = 3;
  t.task_timeout_ns = 300 * ms;
  return t;
}

// ---- what all of them see ----

// What a place has had. Share deal: its next consumer goes on from there.
struct Place {
  Count feeder;     // of which one
  Count had;        // batches, counted through the epochs
  Count uncertain;  // so many more, at most: of consumers that were killed in next
};

struct Board {
  std::atomic<bool> should_end;
  Count feeder;  // how many there were
  std::array<Place, places> has_had;
  Count batches, missed, joins, leaves, evictions, feeder_deaths, longest_ns, worker_kills, worker_stops, epochs;
};
Board* board = nullptr;

// ---- a consumer ----

class Consumer {
 public:
  Consumer(const sharing::Terms& terms, std::int32_t place)
      : terms_(terms),
        place_(place),
        mine_(board->has_had[static_cast<std::size_t>(place)]),
        random_{static_cast<std::uint64_t>(chaos::now_ns()) * 2 + 1} {
    lag_ = place < 2 ? FEEDLANE_LAG_BLOCK : FEEDLANE_LAG_EVICT;
    if (place == 3 && !terms.deals()) lag_ = FEEDLANE_LAG_OBSERVE;
  }

  int run() {
    sharing::end_with_parent();
    for (int joins = 0; !board->should_end.load(std::memory_order_seq_cst);) {
      if (!join()) continue;
      take();
      if (++joins == 3) first_ = stress::footprint();
      if (joins > 3) stress::check_growth(first_, stress::footprint(), {.resident_kib = 4096});
    }
    return 0;
  }

 private:
  // False: not this time. There is no feeder, or it hasn't noticed yet that the place's former consumer has gone.
  bool join() {
    feedlane_consumer_config c;
    feedlane_init(&c, sizeof c);
    c.id = terms_.deals() ? place_ : -1;
    c.lag = lag_;
    c.evict_after_ns = evict_after_ns;
    const std::uint64_t feeder = read(board->feeder);
    e_ = sharing::make_error();
    const std::int32_t s = feedlane_loader_join(-1, terms_.path.c_str(), &c, chaos::patience_ns, &l_, &e_);
    if (s == FEEDLANE_E_PEER_DEAD || s == FEEDLANE_E_LIMIT || s == FEEDLANE_E_ARGUMENT) {
      chaos::nap(2 * ms);
      return false;
    }
    if (s != FEEDLANE_OK) chaos::die("join", e_);
    if (read(board->feeder) != feeder) {  // which of the two it has joined can't be told
      leave();
      return false;
    }
    feeder_ = feeder;
    if (read(mine_.feeder) != feeder_) {
      mine_.had.store(0, std::memory_order_seq_cst);
      mine_.uncertain.store(0, std::memory_order_seq_cst);
      mine_.feeder.store(feeder_, std::memory_order_seq_cst);
    }
    uncertain_ = read(mine_.uncertain);
    count(board->joins);
    return true;
  }
  void leave() { compare("destroy", feedlane_loader_destroy(&l_), FEEDLANE_OK); }

  // Until it leaves, or has to.
  void take() {
    sharing::Hold hold(l_, 2);
    next_ = -1;
    const std::uint64_t most = random_(8) == 0 ? random_(20) : 50 + random_(1500);
    std::uint64_t taken = 0;
    bool stays = true;
    while (stays && !board->should_end.load(std::memory_order_seq_cst)) {
      std::int64_t epoch = -1;
      compare("next_epoch", feedlane::test::next_epoch_of(l_, &epoch), FEEDLANE_OK);
      if (feedlane_loader_begin(l_, epoch, &e_) != FEEDLANE_OK) chaos::die("begin", e_);
      while ((stays = taken++ < most) && next(epoch, hold)) continue;
      stays = stays && !is_over_;
      hold.release_all();
    }
    if (!is_over_) count(board->leaves);
    is_over_ = false;
    leave();
  }

  // One batch. False: the epoch is over; with is_over_, this consumer's time too.
  bool next(std::int64_t epoch, sharing::Hold& hold) {
    feedlane_batch batch;
    feedlane_init(&batch, sizeof batch);
    mine_.uncertain.store(uncertain_ + 1, std::memory_order_seq_cst);
    const std::int64_t before = chaos::now_ns();
    const std::int32_t s = feedlane_loader_next(l_, 2 * chaos::patience_ns, &batch, &e_);
    raise_to(board->longest_ns, static_cast<std::uint64_t>(chaos::now_ns() - before));
    if (s == FEEDLANE_OK) {
      account(batch);
      hold.take(batch);
      if (random_(400) == 0) chaos::nap(static_cast<std::int64_t>(random_(20)) * ms);
      return true;
    }
    mine_.uncertain.store(uncertain_, std::memory_order_seq_cst);
    if (s == FEEDLANE_SLOTS_HELD) hold.release_all();
    if (s == FEEDLANE_SLOTS_HELD || s == FEEDLANE_INTERRUPTED) return true;
    if (s == FEEDLANE_END) return check_end(epoch);
    if (s == FEEDLANE_E_STATE) return find_epoch(epoch);
    is_over_ = true;
    if (s == FEEDLANE_E_HUNG && lag_ == FEEDLANE_LAG_EVICT) count(board->evictions);
    else if (s == FEEDLANE_E_PEER_DEAD) count(board->feeder_deaths);
    else chaos::die(feedlane_status_name(s), e_);
    return false;
  }

  // Whether it is the batch that follows, in this process or after the place's former one.
  void account(const feedlane_batch& b) {
    const std::int64_t in_epoch = terms_.batches_of_each();
    const std::int64_t number = b.epoch * in_epoch + b.batch / terms_.stride();
    const auto missed = static_cast<std::int64_t>(b.missed);
    if (lag_ != FEEDLANE_LAG_OBSERVE) compare("batches that were missed", missed, 0);
    if (terms_.deals()) compare("the batch's place", b.batch % places, place_);
    if (next_ >= 0 && lag_ != FEEDLANE_LAG_OBSERVE) compare("the batch that follows", number, next_);
    else if (next_ >= 0 && number != next_ + missed && b.batch != missed)
      stress::die("the batch that follows", static_cast<std::uint64_t>(number),
                  static_cast<std::uint64_t>(next_ + missed));
    if (next_ < 0 && terms_.deals()) {
      const auto had = static_cast<std::int64_t>(read(mine_.had));
      if (number < had || number > had + static_cast<std::int64_t>(uncertain_))
        stress::die("the first batch of a replacement", static_cast<std::uint64_t>(number),
                    static_cast<std::uint64_t>(had));
    }
    next_ = number + 1;
    mine_.had.store(static_cast<std::uint64_t>(next_), std::memory_order_seq_cst);
    mine_.uncertain.store(uncertain_ = 0, std::memory_order_seq_cst);
    count(board->batches);
    count(board->missed, b.missed);
  }
  bool check_end(std::int64_t epoch) const {
    const std::int64_t all = terms_.batches_of_each() * (epoch + 1);
    if (next_ >= 0 && lag_ != FEEDLANE_LAG_OBSERVE) compare("batches in the epoch", next_, all);
    return false;
  }
  // The feeder was told to end; or an observer has missed an epoch's end.
  bool find_epoch(std::int64_t epoch) {
    if (std::string(e_.text).find("stopped") != std::string::npos) is_over_ = true;
    else if (lag_ != FEEDLANE_LAG_OBSERVE || e_.needed <= epoch) chaos::die("another end of an epoch", e_);
    return false;
  }

  const sharing::Terms& terms_;
  std::int32_t place_;
  std::int32_t lag_;
  Place& mine_;
  stress::Random random_;
  std::uint64_t uncertain_ = 0;
  std::uint64_t feeder_ = 0;
  std::int64_t next_ = -1;  // the number of the next batch; -1: any
  bool is_over_ = false;
  feedlane_loader* l_ = nullptr;
  feedlane_error e_{};
  stress::Footprint first_;
};

// ---- the feeder ----

// A consumer has eight descriptors here, two memfds of some 40 KiB; as many more that were evicted or have left may
// hold batches yet.
class Growth {
 public:
  void look(std::uint64_t ends) {
    const stress::Footprint now = stress::footprint();
    const std::uint64_t shared = stress::shared_kib();
    if (ends < 15) return;
    if (!has_first_) {
      first_ = now;
      first_shared_ = shared;
      has_first_ = true;
    }
    stress::check_growth(first_, now, {.resident_kib = 6144, .descriptors = 16 * places, .mappings = 4 * places});
    if (shared > first_shared_ + 100 * 2 * places) stress::die("shared memory, KiB", shared, first_shared_);
    last_ = now;
  }
  void print(std::uint64_t ends) const {
    if (has_first_)
      std::printf(
          "  feeder: %llu consumers ended; resident %llu -> %llu KiB, descriptors %llu -> %llu, mappings %llu -> "
          "%llu\n",
          static_cast<unsigned long long>(ends), static_cast<unsigned long long>(first_.resident_kib),
          static_cast<unsigned long long>(last_.resident_kib), static_cast<unsigned long long>(first_.descriptors),
          static_cast<unsigned long long>(last_.descriptors), static_cast<unsigned long long>(first_.mappings),
          static_cast<unsigned long long>(last_.mappings));
  }

 private:
  bool has_first_ = false;
  stress::Footprint first_, last_;
  std::uint64_t first_shared_ = 0;
};

int feed(const sharing::Terms& terms) {
  sharing::end_with_parent();
  sharing::Feeder feeder(terms);
  Growth growth;
  {
    const chaos::Disturber disturber(feeder.get(), static_cast<std::uint64_t>(chaos::now_ns()));
    std::uint64_t kills = 0, stops = 0;
    feeder.run([&] {
      growth.look(feeder.ends());
      count(board->epochs);
      count(board->worker_kills, disturber.kills() - kills);
      count(board->worker_stops, disturber.stops() - stops);
      kills = disturber.kills();
      stops = disturber.stops();
    });
  }
  feeder.finish();
  growth.print(feeder.ends());
  return 0;
}

// ---- what happens to them ----

class Chaos {
 public:
  Chaos(const sharing::Terms& terms, std::uint64_t seed) : terms_(terms), random_{seed * 2 + 1} {
    start_feeder();
    for (std::int32_t p = 0; p < places; p++) start_consumer(p);
  }

  void run(std::int64_t ns) {
    const std::int64_t begin = chaos::now_ns();
    const std::int64_t calm = begin + ns / 2;  // from here on the feeder lives, so that one gets old
    std::int64_t feeder_dies = begin + ns / 8;
    for (std::int64_t now = begin; now < begin + ns; now = chaos::now_ns()) {
      stress::Forked::expect_none_ended();
      wake(now);
      act(now);
      if (now > feeder_dies && now < calm) {
        kill_feeder();
        feeder_dies = now + std::min<std::int64_t>(ns / 8, 20'000 * ms);
      }
      chaos::nap(static_cast<std::int64_t>(5 + random_(60)) * ms);
    }
    finish();
  }
  void print() const {
    const auto number = [](const Count& c) { return static_cast<unsigned long long>(read(c)); };
    std::printf(
        "share %s: %llu batches, each once, in order, whole (%llu missed by an observer), %llu epochs; %d consumers "
        "killed, "
        "%d stopped, %llu evictions, %llu joins, %llu left; %d feeders killed, known to %llu consumers; %llu workers "
        "killed, "
        "%llu stopped; longest wait %.0f ms\n",
        terms_.deals() ? "deal" : "every", number(board->batches), number(board->missed), number(board->epochs), kills_,
        stops_, number(board->evictions), number(board->joins), number(board->leaves), feeder_kills_,
        number(board->feeder_deaths), number(board->worker_kills), number(board->worker_stops),
        static_cast<double>(read(board->longest_ns)) / 1e6);
    if (read(board->batches) == 0 || kills_ == 0 || stops_ == 0 || feeder_kills_ == 0 || read(board->leaves) == 0)
      stress::die("batches, kills, stops and leaves", 0, 1);
  }

 private:
  void start_feeder() {
    count(board->feeder);
    feeder_.start([&] { return feed(terms_); });
  }
  void start_consumer(std::int32_t place) {
    consumers_[static_cast<std::size_t>(place)].start([&] { return Consumer(terms_, place).run(); });
  }
  void wake(std::int64_t now) {
    for (stress::Forked& c : consumers_) c.wake(now);
  }
  void act(std::int64_t now) {
    const std::uint64_t what = random_(6), whom = random_(places);
    stress::Forked& c = consumers_[whom];
    if (what < 2) {  // one that is stopped as well
      c.kill();
      kills_++;
      start_consumer(static_cast<std::int32_t>(whom));
    } else if (what < 4 && c.stop(now + static_cast<std::int64_t>(random_(whom < 2 ? 80 : 900)) * ms + 1)) {
      stops_++;
    }
  }
  void kill_feeder() {
    feeder_.kill();
    feeder_kills_++;
    start_feeder();
  }
  void finish() {
    board->should_end.store(true, std::memory_order_seq_cst);
    wake(INT64_MAX);
    (void)::kill(feeder_.pid(), SIGTERM);
    for (stress::Forked& c : consumers_) c.await();
    feeder_.await();
  }

  const sharing::Terms& terms_;
  stress::Random random_;
  stress::Forked feeder_;
  std::array<stress::Forked, places> consumers_;
  int kills_ = 0, stops_ = 0, feeder_kills_ = 0;
};

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) return sharing::work(fd);
  const char* const seconds = std::getenv("FEEDLANE_SECONDS");
  const std::uint64_t length = seconds != nullptr ? std::strtoull(seconds, nullptr, 10) : stress::length(16, 180);
  char folder[] = "/tmp/feedlane-chaos.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  const std::string path = std::string(folder) + "/feeder";
  for (const std::int32_t share : {FEEDLANE_SHARE_EVERY, FEEDLANE_SHARE_DEAL}) {
    board = stress::make_shared_object<Board>();
    const sharing::Terms terms = terms_of(share, path);
    Chaos chaos(terms, static_cast<std::uint64_t>(chaos::now_ns()));
    chaos.run(static_cast<std::int64_t>(length) * 1'000 * ms / 2);
    chaos.print();
  }
  (void)::rmdir(folder);
  return 0;
}
