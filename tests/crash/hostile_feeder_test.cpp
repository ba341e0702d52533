// SPDX-License-Identifier: Apache-2.0
// A feeder that goes wild: a thread of it writes noise over what it has for its consumers, the catalogue, the delivery rings and the
// batches themselves, over its eventfds and its sockets, while it feeds. It may well crash. Its consumers do not: each call of
// theirs answers within its time with a status, all of a batch can be read, what they hold they can release, and they leave.
//
// FEEDLANE_SEED=n repeats a run's choices (their timing can't be repeated); FEEDLANE_STRESS=full runs for ten minutes.
// promise: feeder-noise-memory
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "crash/hostile.hpp"
#include "crash/noise.hpp"
#include "feedlane.h"
#include "greeting/share.hpp"
#include "stress/sharing.hpp"
#include "support/api.hpp"

namespace {

using feedlane::test::send_over;
using feedlane::test::spoil;

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t life_ns = 400 * ms;
// Of a call with a timeout of 5 ms, on a machine that is busy.
const std::int64_t longest_call_ns = 2'000 * ms * feedlane::test::slowness();

struct Board {
  std::atomic<std::uint64_t> batches, misdeeds, errors, longest_ns;
};
Board* board = nullptr;

// ---- the feeder ----

// What it has for its consumers.
struct Inside {
  struct Area {
    std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Area> catalogues, deliveries, data;
  std::vector<int> events, sockets;

  void look() {
    catalogues.clear(), deliveries.clear(), data.clear(), events.clear(), sockets.clear();
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    for (char line[512]; maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr;) {
      char* rest = nullptr;
      const std::uint64_t from = std::strtoull(line, &rest, 16), to = std::strtoull(rest + 1, &rest, 16);
      if (rest[2] != 'w') continue;
      const Area area{reinterpret_cast<std::byte*>(from), to - from};
      if (std::strstr(line, "feedlane-catalogue") != nullptr) catalogues.push_back(area);
      if (std::strstr(line, "feedlane-delivery") != nullptr) deliveries.push_back(area);
      if (std::strstr(line, "feedlane-data") != nullptr) data.push_back(area);
    }
    if (maps != nullptr) (void)std::fclose(maps);
    feedlane::test::find_descriptors(events, sockets);
  }
};

class Vandal {
 public:
  explicit Vandal(std::uint64_t seed) : random_{seed * 2 + 1} {
    for (int i = 0; i < 8; i++) (void)random_(2);
  }
  void run(std::uint64_t deed) {
    Inside in;
    for (;;) {
      if (random_(20) == 0 || in.catalogues.empty()) in.look();
      do_wrong(deed, in);
      board->misdeeds.fetch_add(1, std::memory_order_relaxed);
      chaos::nap(static_cast<std::int64_t>(random_(300)) * 1'000);
    }
  }
  static constexpr std::uint64_t deeds = 7;

 private:
  void do_wrong(std::uint64_t deed, const Inside& in) {
    switch (deed) {
      case 0: return change_words(in.catalogues);
      case 1: return change_words(in.deliveries);
      case 2: return spoil_some(in.catalogues);
      case 3: return spoil_some(in.deliveries);
      case 4: return spoil_some(in.data);
      case 5: return wild::break_events(in.events, random_);
      default: return send_noise(in);
    }
  }
  // A word here and there, a little more or less than it was, or anything.
  void change_words(const std::vector<Inside::Area>& areas) {
    if (areas.empty()) return;
    const Inside::Area& area = areas[random_(areas.size())];
    for (int i = 0; i < 20; i++) {
      auto* const word = reinterpret_cast<std::uint64_t*>(area.from) + 8 + random_(area.bytes / 8 - 8);
      const std::uint64_t near = __atomic_load_n(word, __ATOMIC_RELAXED) + random_(17) - 8;
      __atomic_store_n(word, random_(3) == 0 ? random_(UINT64_MAX) : near, __ATOMIC_RELAXED);
    }
  }
  void spoil_some(const std::vector<Inside::Area>& areas) {
    if (areas.empty()) return;
    const Inside::Area& area = areas[random_(areas.size())];
    std::uint64_t seed = random_(UINT64_MAX) | 1;
    const std::size_t from = 64 + random_(area.bytes - 64);
    spoil(area.from + from, 1 + random_(area.bytes - from), seed);
  }
  void send_noise(const Inside& in) {
    constexpr std::uint64_t magics[] = {feedlane::sharing::welcome_magic, feedlane::greeting::refused_magic,
                                        feedlane::sharing::reply_magic, feedlane::greeting::accepted_magic};
    for (const int socket : in.sockets) {
      std::byte bytes[600];
      std::uint64_t seed = random_(UINT64_MAX) | 1;
      spoil(bytes, sizeof bytes, seed);
      const std::uint64_t magic = magics[random_(4)];
      if (random_(4) != 0) std::memcpy(bytes, &magic, sizeof magic);
      const std::size_t sizes[] = {8, sizeof(feedlane::greeting::Refused), sizeof(feedlane::sharing::Reply),
                                   1 + random_(sizeof bytes - 1)};
      std::vector<int> fds;
      if (random_(4) == 0 && !in.events.empty()) fds.assign(1 + random_(8), in.events[0]);
      (void)send_over(socket, bytes, sizes[random_(4)], fds);
    }
  }

  stress::Random random_;
};

int feed(const sharing::Terms& terms, std::uint64_t seed, std::uint64_t deed, int ready) {
  sharing::end_with_parent();
  sharing::Feeder feeder(terms);
  if (::write(ready, "r", 1) != 1) stress::die("write", 0, 1);
  while (sharing::attached(feeder.get()) != terms.consumers) sharing::await_something(feeder.get());
  std::thread([=] { Vandal(seed).run(deed); }).detach();
  feeder.run([] {});
  return 0;
}

// ---- a consumer ----

// Reads all of it.
void look_at(const feedlane_batch& b) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < b.tensor_count; i++) {
    const feedlane_tensor& t = b.tensors[i];
    if (t.ndim < 0 || t.ndim > FEEDLANE_MAX_NDIM)
      stress::die("dimensions", static_cast<std::uint64_t>(t.ndim), FEEDLANE_MAX_NDIM);
    sum += std::strlen(t.name);
    for (std::uint64_t k = 0; k < t.bytes; k++) sum += static_cast<const unsigned char*>(t.data)[k];
  }
  for (std::uint64_t k = 0; k < b.metadata_bytes; k++) sum += static_cast<const unsigned char*>(b.metadata)[k];
  for (std::uint64_t k = 0; b.indices != nullptr && k < b.count; k++) sum += static_cast<std::uint64_t>(b.indices[k]);
  for (std::uint64_t k = 0; b.skipped != nullptr && k < b.skipped_count; k++)
    sum += static_cast<std::uint64_t>(b.skipped[k]);
  static volatile std::uint64_t seen = 0;
  seen = sum;
  (void)seen;
}

template <class F>
std::int32_t within_time(const char* what, F&& call) {
  const std::int64_t before = chaos::now_ns();
  const std::int32_t s = call();
  const auto took = static_cast<std::uint64_t>(chaos::now_ns() - before);
  if (took > board->longest_ns.load(std::memory_order_relaxed))
    board->longest_ns.store(took, std::memory_order_relaxed);
  if (took > static_cast<std::uint64_t>(longest_call_ns))
    stress::die(what, took, static_cast<std::uint64_t>(longest_call_ns));
  return s;
}

int consume(const sharing::Terms& terms, std::int32_t place) {
  sharing::end_with_parent();
  feedlane_loader* l = sharing::join(terms, place);
  feedlane_error e = sharing::make_error();
  std::vector<std::uint64_t> held;
  std::int64_t epoch = 0;
  const auto begin = [&] {
    (void)feedlane::test::next_epoch_of(l, &epoch);
    return feedlane_loader_begin(l, epoch, &e) == FEEDLANE_OK;
  };
  (void)begin();
  for (const std::int64_t end = chaos::now_ns() + life_ns; chaos::now_ns() < end;) {
    feedlane_batch b;
    feedlane_init(&b, sizeof b);
    const std::int32_t s = within_time("next, ns", [&] { return feedlane_loader_next(l, 5 * ms, &b, &e); });
    if (s == FEEDLANE_OK) {
      look_at(b);
      held.push_back(b.token);
      board->batches.fetch_add(1, std::memory_order_relaxed);
    }
    if (s < 0) board->errors.fetch_add(1, std::memory_order_relaxed);
    while (held.size() > (s == FEEDLANE_OK ? 2U : 0U)) {
      sharing::compare("release", feedlane_batch_release(l, held.front()), FEEDLANE_OK);
      held.erase(held.begin());
    }
    if (s == FEEDLANE_E_PEER_DEAD || s == FEEDLANE_E_HUNG) break;
    // Its messages may name any epoch.
    if ((s == FEEDLANE_END || s < 0) && !begin()) break;
  }
  for (const std::uint64_t token : held) sharing::compare("release", feedlane_batch_release(l, token), FEEDLANE_OK);
  sharing::compare("destroy", within_time("destroy, ns", [&] { return feedlane_loader_destroy(&l); }), FEEDLANE_OK);
  return 0;
}

// ---- who starts them ----

template <class F>
pid_t start(F&& run) {
  const pid_t pid = ::fork();
  if (pid < 0) stress::die("fork", static_cast<std::uint64_t>(errno), 0);
  if (pid != 0) return pid;
  const int status = run();
  (void)std::fflush(stdout);
  ::_exit(status);
}

void live(const sharing::Terms& terms, std::uint64_t seed, std::uint64_t deed) {
  (void)::alarm(40 * static_cast<unsigned>(feedlane::test::slowness()));
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) stress::die("pipe", static_cast<std::uint64_t>(errno), 0);
  const pid_t feeder = start([&] {
    (void)!::freopen("/dev/null", "w", stderr);
    return feed(terms, seed, deed, ready[1]);
  });
  char byte = 0;
  (void)::close(ready[1]);
  if (::read(ready[0], &byte, 1) != 1) stress::die("a feeder that is ready", 0, 1);
  (void)::close(ready[0]);
  std::vector<pid_t> consumers;
  for (std::int32_t place = 0; place < terms.consumers; place++)
    consumers.push_back(start([&] { return consume(terms, place); }));
  for (const pid_t pid : consumers) {
    int status = -1;
    if (::waitpid(pid, &status, 0) != pid || status != 0)
      stress::die("a consumer's status", static_cast<std::uint64_t>(status), 0);
  }
  (void)::kill(feeder, SIGKILL);
  int status = 0;
  (void)::waitpid(feeder, &status, 0);
  (void)::unlink(terms.path.c_str());
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) return sharing::work(fd);
  const char* const given = std::getenv("FEEDLANE_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : static_cast<std::uint64_t>(chaos::now_ns()) % 1'000'000'000;
  std::printf("FEEDLANE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  char folder[] = "/tmp/feedlane-wild.XXXXXX";
  if (::mkdtemp(folder) == nullptr) stress::die("mkdtemp", static_cast<std::uint64_t>(errno), 0);
  const auto length = static_cast<std::int64_t>(stress::length(10, 600)) * 1'000 * ms;
  for (const std::int32_t share : {FEEDLANE_SHARE_EVERY, FEEDLANE_SHARE_DEAL}) {
    board = stress::make_shared_object<Board>();
    sharing::Terms terms;
    terms.share = share;
    terms.batches = 50 * terms.stride();
    terms.path = std::string(folder) + "/feeder";
    std::uint64_t lives = 0;
    for (const std::int64_t end = chaos::now_ns() + length / 2; chaos::now_ns() < end; lives++)
      live(terms, seed + lives, lives % Vandal::deeds);
    (void)::alarm(0);
    std::printf(
        "share %s: %llu lives, %llu misdeeds; consumers had %llu batches and %llu errors, longest call %.0f ms\n",
        terms.deals() ? "deal" : "every", static_cast<unsigned long long>(lives),
        static_cast<unsigned long long>(board->misdeeds.load()), static_cast<unsigned long long>(board->batches.load()),
        static_cast<unsigned long long>(board->errors.load()), static_cast<double>(board->longest_ns.load()) / 1e6);
    if (board->batches.load() == 0) stress::die("batches", 0, 1);
  }
  (void)::rmdir(folder);
  return 0;
}
