// SPDX-License-Identifier: Apache-2.0
// Two processes, one ring, a billion messages (fewer in a check): every one arrives once, in order, whole. Batches of
// random sizes; both sides sleep by the doorbell whenever they find nothing to do, with no timeout anywhere, so that a lost
// wake-up hangs the run. The position wraps at 2^64 on the way.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "shared.hpp"

namespace {

using namespace feedlane::ring;

constexpr std::uint32_t capacity = 1024;
constexpr std::uint64_t start = std::uint64_t{0} - 5'000'000;

struct Shared {
  alignas(128) Sequence position{0};
  alignas(128) SleepFlag producer_asleep{0};
  alignas(128) SleepFlag consumer_asleep{0};
  alignas(128) std::byte cells[64 * capacity];
};

void produce(Shared& shared, int own_event, int peer_event, std::uint64_t count) {
  Producer producer({shared.cells, 64, capacity}, start, &shared.position);
  Sleeper sleeper(&shared.producer_asleep);
  stress::Bell own_bell(own_event);
  const Doorbell bell(&shared.consumer_asleep, peer_event);
  stress::Random random{12345};
  for (std::uint64_t i = 0; i < count;) {
    const auto want = static_cast<std::uint32_t>(std::min<std::uint64_t>(1 + random(64), count - i));
    std::uint32_t room = producer.reserve(want);
    if (room == 0) {
      sleeper.prepare();
      room = producer.reserve(want);
      if (room == 0) own_bell.wait();
      sleeper.cancel();
      continue;
    }
    for (std::uint32_t k = 0; k < room; k++) {
      const std::uint64_t v = i + k;
      const std::uint64_t words[7] = {v, ~v, v * 3, v ^ 0x5555555555555555, v + 1, v << 7, v * v};
      std::memcpy(producer.message(k), words, sizeof words);
    }
    producer.commit(room);
    (void)bell.ring();
    i += room;
  }
  if (producer.broken()) stress::die("the consumer's position", 0, 1);
}

void consume(Shared& shared, int own_event, int peer_event, std::uint64_t count) {
  Consumer consumer({shared.cells, 64, capacity}, start, &shared.position);
  Sleeper sleeper(&shared.consumer_asleep);
  stress::Bell own_bell(own_event);
  const Doorbell bell(&shared.producer_asleep, peer_event);
  stress::Random random{54321};
  for (std::uint64_t i = 0; i < count;) {
    const auto want = static_cast<std::uint32_t>(1 + random(96));
    const std::uint32_t got = consumer.peek(want);
    if (got == 0) {
      sleeper.prepare();
      if (consumer.peek(1) == 0) own_bell.wait();
      sleeper.cancel();
      continue;
    }
    for (std::uint32_t k = 0; k < got; k++) {
      std::uint64_t words[7];
      std::memcpy(words, consumer.message(k), sizeof words);
      const std::uint64_t v = i + k;
      if (words[0] != v) stress::die("message out of order", words[0], v);
      if (words[1] != ~v || words[2] != v * 3 || words[3] != (v ^ 0x5555555555555555) || words[4] != v + 1 ||
          words[5] != v << 7 || words[6] != v * v)
        stress::die("message torn", words[6], v * v);
    }
    consumer.release(got);
    (void)bell.ring();
    i += got;
  }
  if (consumer.peek(1) != 0) stress::die("a message too many", count + 1, count);
}

}  // namespace

int main() {
  const std::uint64_t count = stress::length(20'000'000, 1'000'000'000);
  auto* shared = stress::make_shared_object<Shared>();
  Cells{shared->cells, 64, capacity}.format(start);
  shared->position.store(start, std::memory_order_relaxed);
  const auto producer_event = stress::make_event();
  const auto consumer_event = stress::make_event();
  const auto before = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    produce(*shared, producer_event.get(), consumer_event.get(), count);
    std::_Exit(0);
  }
  consume(*shared, consumer_event.get(), producer_event.get(), count);
  int status = -1;
  (void)::waitpid(child, &status, 0);
  if (status != 0) stress::die("the producer's exit status", static_cast<std::uint64_t>(status), 0);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  std::printf("%llu messages, each once, in order, whole: %.1f s, %.1f million/s\n",
              static_cast<unsigned long long>(count), seconds, static_cast<double>(count) / seconds / 1e6);
  return 0;
}
