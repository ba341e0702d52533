// SPDX-License-Identifier: Apache-2.0
// A consumer of a shared loader that goes wild: writes noise over its returns segment and its eventfds, sends noise over its
// socket, pretends to make progress, tries to write what it may only read. The two consumers beside it get each batch once,
// in order, whole; the feeder neither crashes nor hangs, frees every slot in the end, and doesn't grow.
//
// FEEDLANE_SEED=n repeats a run's choices (their timing can't be repeated); FEEDLANE_STRESS=full runs for ten minutes,
// FEEDLANE_SECONDS=n for n seconds.
// promise: consumer-random
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "crash/hostile.hpp"
#include "crash/noise.hpp"
#include "feedlane.h"
#include "greeting/share.hpp"
#include "shm/share_layout.hpp"
#include "stress/footprint.hpp"
#include "stress/sharing.hpp"
#include "support/api.hpp"

namespace {

namespace shm = feedlane::shm;
using feedlane::test::send_over;
using feedlane::test::spoil;
using sharing::compare;

constexpr std::int64_t ms = 1'000'000;
constexpr std::int32_t places = 3;
constexpr std::int32_t wild_place = 2;
constexpr std::int64_t evict_after_ns = 50 * ms;

sharing::Terms terms_of(std::int32_t share, const std::string& path) {
  sharing::Terms t;
  t.share = share;
  t.consumers = places;
  t.batches = 50 * t.stride();
  t.path = path;
  return t;
}

struct Board {
  std::atomic<std::uint64_t> batches, misdeeds, longest_ns, writes_refused;
};
Board* board = nullptr;

// ---- the one that goes wild ----

// What its process holds of the feeder, found without asking the library.
struct Inside {
  std::byte* returns = nullptr;
  std::uint64_t returns_bytes = 0;
  std::vector<std::byte*> readable;
  std::vector<int> events;
  int socket = -1;

  Inside() {
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    for (char line[512]; maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr;) {
      if (std::strstr(line, "memfd:feedlane") == nullptr) continue;
      char* rest = nullptr;
      auto* const from = reinterpret_cast<std::byte*>(std::strtoull(line, &rest, 16));
      if (std::strstr(line, "feedlane-returns") == nullptr) {
        readable.push_back(from);
      } else {
        returns = from;
        returns_bytes = std::strtoull(rest + 1, nullptr, 16) - reinterpret_cast<std::uint64_t>(from);
      }
    }
    if (maps != nullptr) (void)std::fclose(maps);
    std::vector<int> sockets;
    feedlane::test::find_descriptors(events, sockets);
    if (!sockets.empty()) socket = sockets.back();
    if (returns == nullptr || socket < 0 || events.empty()) stress::die("what a consumer has", events.size(), 1);
    shm::SharePlan plan;
    feedlane::Error error;
    (void)shm::make_share_plan({1, 1}, plan, error);  // where the row is doesn't depend on it
    row = reinterpret_cast<shm::ConsumerRow*>(returns + plan.row);
    returned = reinterpret_cast<shm::Word64*>(returns + plan.returned);
  }
  shm::ConsumerRow* row = nullptr;
  shm::Word64* returned = nullptr;
};

constexpr std::uint64_t deeds = 10;
constexpr std::uint64_t deed_progress = 3;
constexpr std::int64_t life_ns(std::uint64_t deed) { return deed == deed_progress ? 2'000 * ms : 250 * ms; }

class Wild {
 public:
  Wild(const sharing::Terms& terms, std::uint64_t seed) : terms_(terms), random_{seed * 2 + 1} {
    for (int i = 0; i < 8; i++) (void)random_(2);
  }

  // Works as it should for some batches, then doesn't. It may well crash.
  int run(std::uint64_t deed) {
    sharing::end_with_parent();
    feedlane_error e = sharing::make_error();
    feedlane_loader* l = sharing::join(terms_, wild_place, FEEDLANE_LAG_EVICT, evict_after_ns);
    const Inside in;
    const auto most = static_cast<std::int64_t>(random_(40));
    std::int64_t epoch = -1;
    (void)feedlane::test::next_epoch_of(l, &epoch);
    (void)feedlane_loader_begin(l, epoch, &e);
    const std::int64_t end = chaos::now_ns() + life_ns(deed) - static_cast<std::int64_t>(random_(100)) * ms;
    for (std::int64_t n = 0; chaos::now_ns() < end; n++) {
      if (n > most) do_wrong(deed, in);
      if (n > most && deed == deed_progress) continue;
      feedlane_batch b;
      feedlane_init(&b, sizeof b);
      const std::int32_t s = feedlane_loader_next(l, 5 * ms, &b, &e);
      if (s == FEEDLANE_OK && random_(8) != 0) (void)feedlane_batch_release(l, b.token);
      if (s == FEEDLANE_END || s == FEEDLANE_E_STATE) (void)feedlane_loader_begin(l, ++epoch, &e);
    }
    if (random_(2) == 0) (void)feedlane_loader_destroy(&l);
    return 0;
  }

 private:
  // A little before or after what is there.
  void push(shm::Word64& w) { w.fetch_add(random_(80) - 40, std::memory_order_relaxed); }
  void set(shm::Word64& w) {
    if (random_(2) == 0) w.store(wild::any_word(random_), std::memory_order_relaxed);
    else push(w);
  }
  void do_wrong(std::uint64_t deed, const Inside& in) {
    board->misdeeds.fetch_add(1, std::memory_order_relaxed);
    switch (deed) {
      case 0: return set(in.row->taken);
      case 1: return set(in.row->position);
      case 2: return set(in.row->skip_before);
      case deed_progress:
        for (int i = 0; i < 200; i++) in.row->returns.fetch_add(1, std::memory_order_relaxed), chaos::nap(ms / 2);
        return;
      case 4:  // returns of slots that it may never have had, of rounds that may be or not
        for (std::uint64_t slot = 0; slot < 8; slot++) {
          const std::uint64_t round = in.row->taken.load(std::memory_order_relaxed) + random_(20) - 10;
          in.returned[slot].store(random_(3) == 0 ? wild::any_word(random_) : round, std::memory_order_relaxed);
        }
        return push(in.row->returns);
      case 5:
        in.row->sleeping.store(static_cast<std::uint32_t>(wild::any_word(random_)), std::memory_order_relaxed);
        return;
      case 6: {
        std::uint64_t seed = random_(UINT64_MAX) | 1;
        const std::uint64_t from = random_(in.returns_bytes);
        return spoil(in.returns + from, 1 + random_(in.returns_bytes - from), seed);
      }
      case 7: return wild::break_events(in.events, random_);
      case 8: return write_what_is_not_its(in);
      default: return send_noise(in);
    }
  }
  static void write_what_is_not_its(const Inside& in) {
    for (std::byte* at : in.readable) {
      if (::mprotect(at, 4096, PROT_READ | PROT_WRITE) == 0) ::_exit(wild::exit_writable);
      board->writes_refused.fetch_add(1, std::memory_order_relaxed);
    }
  }
  void send_noise(const Inside& in) {
    constexpr std::uint64_t magics[] = {feedlane::sharing::asking_magic,    feedlane::sharing::attached_magic,
                                        feedlane::sharing::request_magic,   feedlane::sharing::leaving_magic,
                                        feedlane::greeting::accepted_magic, feedlane::sharing::left_magic};
    for (std::uint64_t i = 1 + random_(20); i-- > 0;) {
      std::byte bytes[600];
      std::uint64_t seed = random_(UINT64_MAX) | 1;
      spoil(bytes, sizeof bytes, seed);
      const std::uint64_t magic = magics[random_(6)];
      if (random_(4) != 0) std::memcpy(bytes, &magic, sizeof magic);
      const std::uint64_t near = in.row->taken.load(std::memory_order_relaxed) + random_(9) - 4;
      if (random_(2) == 0) std::memcpy(bytes + 8, &near, sizeof near);
      const std::size_t sizes[] = {0, 8, 16, 24, 400, 1 + random_(sizeof bytes - 1)};
      std::vector<int> fds;
      if (random_(4) == 0) fds.assign(1 + random_(40), in.events[0]);
      (void)send_over(in.socket, bytes, sizes[random_(6)], fds);
    }
  }

  const sharing::Terms& terms_;
  stress::Random random_;
};

// ---- the others ----

int be_beside(const sharing::Terms& terms, std::int32_t place) {
  sharing::end_with_parent();
  feedlane_loader* l = sharing::join(terms, place);
  sharing::Order order(terms, place, 0);
  sharing::Hold hold(l, 2);
  std::int64_t last = chaos::now_ns();
  sharing::take_until_stopped(l, order, hold, [&] {
    const auto waited = static_cast<std::uint64_t>(chaos::now_ns() - last);
    if (waited > board->longest_ns.load(std::memory_order_relaxed))
      board->longest_ns.store(waited, std::memory_order_relaxed);
    last = chaos::now_ns();
  });
  board->batches.fetch_add(order.count(), std::memory_order_relaxed);
  return 0;
}

int feed(const sharing::Terms& terms) {
  sharing::end_with_parent();
  sharing::Feeder feeder(terms);
  // The wild one may join before these two, which get each batch from the first one on.
  for (std::int32_t place = 0; place < wild_place; place++)
    while (!sharing::is_attached(feeder.get(), place)) sharing::await_something(feeder.get());
  stress::Footprint first;
  bool has_first = false;
  feeder.run([&] {
    const stress::Footprint now = stress::footprint();
    if (!has_first && feeder.ends() >= 10) first = now, has_first = true;
    if (has_first) stress::check_growth(first, now, {.resident_kib = 16384, .descriptors = 30, .mappings = 8});
  });
  feeder.finish();
  std::printf("feeder: %llu epochs, %llu consumers ended, %llu of them evicted; resident %llu KiB after 10\n",
              static_cast<unsigned long long>(feeder.epochs()), static_cast<unsigned long long>(feeder.ends()),
              static_cast<unsigned long long>(feeder.evictions()), static_cast<unsigned long long>(first.resident_kib));
  return 0;
}

template <class F>
pid_t start(F&& run) {
  const pid_t pid = ::fork();
  if (pid < 0) stress::die("fork", static_cast<std::uint64_t>(errno), 0);
  if (pid != 0) return pid;
  const int status = run();
  (void)std::fflush(stdout);
  ::_exit(status);
}

// It may crash, or hang in its own words.
void run_wild(const sharing::Terms& terms, std::uint64_t seed, std::uint64_t deed) {
  const pid_t wild = start([&] {
    (void)!::freopen("/dev/null", "w", stderr);
    return Wild(terms, seed).run(deed);
  });
  chaos::nap(life_ns(deed));
  (void)::kill(wild, SIGKILL);
  int status = 0;
  (void)::waitpid(wild, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == wild::exit_writable)
    stress::die("a mapping of a consumer's that can be made writable", 1, 0);
}

void run(const sharing::Terms& terms, std::uint64_t seed, std::int64_t ns) {
  const unsigned patience_s = 40 * static_cast<unsigned>(feedlane::test::slowness());
  std::vector<pid_t> others{start([&] { return feed(terms); })};
  for (int i = 0; ::access(terms.path.c_str(), F_OK) != 0 && i < 10'000; i++) chaos::nap(ms);
  for (std::int32_t place = 0; place < wild_place; place++)
    others.push_back(start([&] { return be_beside(terms, place); }));
  std::uint64_t lives = 0;
  for (const std::int64_t end = chaos::now_ns() + ns; chaos::now_ns() < end; lives++) {
    (void)::alarm(patience_s);
    run_wild(terms, seed + lives, lives % deeds);
    int status = -1;
    if (const pid_t pid = ::waitpid(-1, &status, WNOHANG); pid != 0)
      stress::die(pid == others[0] ? "the feeder's status" : "a consumer's status", static_cast<std::uint64_t>(status),
                  0);
  }
  (void)::alarm(patience_s);
  (void)::kill(others[0], SIGTERM);
  for (const pid_t pid : others) {
    int status = -1;
    if (::waitpid(pid, &status, 0) != pid || status != 0)
      stress::die("the end of a process", static_cast<std::uint64_t>(status), 0);
  }
  (void)::alarm(0);
  std::printf(
      "share %s: %llu lives, %llu misdeeds, %llu writes refused; the others had %llu batches, longest wait %.0f ms\n",
      terms.deals() ? "deal" : "every", static_cast<unsigned long long>(lives),
      static_cast<unsigned long long>(board->misdeeds.load()),
      static_cast<unsigned long long>(board->writes_refused.load()),
      static_cast<unsigned long long>(board->batches.load()), static_cast<double>(board->longest_ns.load()) / 1e6);
  if (board->batches.load() == 0) stress::die("batches", 0, 1);
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) return sharing::work(fd);
  const char* const given = std::getenv("FEEDLANE_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : static_cast<std::uint64_t>(chaos::now_ns()) % 1'000'000'000;
  std::printf("FEEDLANE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  const char* const seconds = std::getenv("FEEDLANE_SECONDS");
  const std::uint64_t length = seconds != nullptr ? std::strtoull(seconds, nullptr, 10) : stress::length(12, 600);
  char folder[] = "/tmp/feedlane-wild.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  const std::string path = std::string(folder) + "/feeder";
  for (const std::int32_t share : {FEEDLANE_SHARE_EVERY, FEEDLANE_SHARE_DEAL}) {
    board = stress::make_shared_object<Board>();
    const sharing::Terms terms = terms_of(share, path);
    run(terms, seed, static_cast<std::int64_t>(length) * 1'000 * ms / 2);
  }
  (void)::rmdir(folder);
  return 0;
}
