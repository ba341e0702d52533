// SPDX-License-Identifier: Apache-2.0
// One consumer, 1, 2 and 8 producer processes that are killed at random instructions and replaced all the time: each
// lane's stream goes on without a gap, a repeat or a torn message. A successor is told by the consumer what comes next,
// as a loader's ledger does.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <vector>

#include "ring/doorbell.hpp"
#include "ring/lanes.hpp"
#include "shared.hpp"

namespace {

using namespace feedlane::ring;

constexpr std::uint32_t capacity = 64;
constexpr std::uint32_t most_lanes = 8;

struct Shared {
  alignas(128) SleepFlag consumer_asleep{0};
  struct Lane {
    alignas(128) Sequence position{0};
    alignas(128) SleepFlag producer_asleep{0};
    alignas(128) std::byte cells[64 * capacity];
  } lanes[most_lanes];
};

// Runs until it is killed.
[[noreturn]] void produce(Shared& shared, std::uint32_t lane, std::uint64_t start, std::uint64_t next, int own_event,
                          int peer_event) {
  Shared::Lane& l = shared.lanes[lane];
  Producer producer({l.cells, 64, capacity}, start, &l.position);
  Sleeper sleeper(&l.producer_asleep);
  stress::Bell own_bell(own_event);
  const Doorbell bell(&shared.consumer_asleep, peer_event);
  stress::Random random{start * 31 + lane + 1};
  for (;;) {
    const auto want = static_cast<std::uint32_t>(1 + random(16));
    const std::uint32_t room = producer.reserve(want);
    if (room == 0) {
      sleeper.prepare();
      if (producer.reserve(1) == 0) own_bell.wait();
      sleeper.cancel();
      continue;
    }
    for (std::uint32_t k = 0; k < room; k++, next++) {
      const std::uint64_t words[7] = {next, lane, ~next, next * 5, next * 7, next * 11, next * 13};
      std::memcpy(producer.message(k), words, sizeof words);
    }
    producer.commit(room);
    (void)bell.ring();
  }
}

struct Run {
  Shared* shared = stress::make_shared_object<Shared>();
  Lanes lanes;
  feedlane::os::Fd consumer_event = stress::make_event();
  stress::Bell bell{consumer_event.get()};
  std::vector<feedlane::os::Fd> producer_events;
  std::vector<pid_t> pids;
  std::vector<std::uint64_t> expected;
  std::uint64_t taken = 0;
  std::uint64_t kills = 0;

  void start(std::uint32_t lane) {
    const std::uint64_t start_position = lanes.open(lane);
    // A dead predecessor may have died asleep; rung for nothing at worst.
    const pid_t child = ::fork();
    if (child < 0) stress::die("fork", 0, 1);
    if (child == 0) {
      shared->lanes[lane].producer_asleep.store(0, std::memory_order_relaxed);
      produce(*shared, lane, start_position, expected[lane], producer_events[lane].get(), consumer_event.get());
    }
    pids[lane] = child;
  }

  void take(const Lanes::Message& m) {
    std::uint64_t w[7];
    std::memcpy(w, m.data, sizeof w);
    const std::uint64_t v = expected[m.lane];
    if (w[0] != v) stress::die("a lane's message out of order", w[0], v);
    if (w[1] != m.lane || w[2] != ~v || w[3] != v * 5 || w[4] != v * 7 || w[5] != v * 11 || w[6] != v * 13)
      stress::die("a lane's message torn", w[1], m.lane);
    lanes.release(m.lane);
    expected[m.lane]++;
    taken++;
  }

  void kill(std::uint32_t lane) {
    (void)::kill(pids[lane], SIGKILL);
    int status = 0;
    (void)::waitpid(pids[lane], &status, 0);
    for (auto m = lanes.peek_lane(lane); m.data != nullptr; m = lanes.peek_lane(lane)) take(m);
    lanes.close(lane);
    kills++;
  }

  void sweep_once(Sleeper& sleeper) {
    Lanes::Message m = lanes.peek();
    if (m.data == nullptr) {
      sleeper.prepare();
      if (!lanes.any()) bell.wait();
      sleeper.cancel();
      return;
    }
    std::uint32_t touched = 0;
    for (std::uint32_t i = 0; i < 32 && m.data != nullptr; i++, m = lanes.peek()) {
      touched |= 1u << m.lane;
      take(m);
    }
    for (std::uint32_t lane = 0; lane < lanes.size(); lane++)
      if ((touched & 1u << lane) != 0)
        (void)Doorbell(&shared->lanes[lane].producer_asleep, producer_events[lane].get()).ring();
  }
};

void run(std::uint32_t producers, std::uint64_t kills) {
  Run r;
  for (std::uint32_t lane = 0; lane < producers; lane++) {
    Shared::Lane& l = r.shared->lanes[lane];
    (void)r.lanes.add({l.cells, 64, capacity}, 0, &l.position);
    r.producer_events.push_back(stress::make_event());
  }
  r.pids.resize(producers);
  r.expected.resize(producers);
  for (std::uint32_t lane = 0; lane < producers; lane++) r.start(lane);
  Sleeper sleeper(&r.shared->consumer_asleep);
  stress::Random random{producers * 7919};
  const auto before = std::chrono::steady_clock::now();
  while (r.kills < kills) {
    const std::uint64_t until = r.taken + random(20'000);
    while (r.taken < until) r.sweep_once(sleeper);
    const auto victim = static_cast<std::uint32_t>(random(producers));
    r.kill(victim);
    r.start(victim);
  }
  for (std::uint32_t lane = 0; lane < producers; lane++) r.kill(lane);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  std::printf("%u producers: %llu messages, %llu kills, %.1f s\n", producers, static_cast<unsigned long long>(r.taken),
              static_cast<unsigned long long>(r.kills), seconds);
  (void)::munmap(r.shared, sizeof *r.shared);
}

}  // namespace

int main() {
  for (const std::uint32_t producers : {1u, 2u, 8u}) run(producers, stress::length(200, 4'000));
  return 0;
}
