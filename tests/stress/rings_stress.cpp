// SPDX-License-Identifier: Apache-2.0
// Standalone rings through the C API, between processes: a billion messages over one lane (fewer in a check); and lanes
// whose senders are killed all the time and replaced by offers, with nothing lost, doubled or torn, and no commit in part.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <vector>

#include "feedlane.h"
#include "shared.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

void check(feedlane_error& err, std::int32_t status) {
  if (status != FEEDLANE_OK) stress::die(status < 0 ? err.text : feedlane_status_name(status), 0, 0);
}

// Sends `next`, next + 1, ... below `end`, with `lane` beside each; ends or is killed.
[[noreturn]] void send(std::int32_t fd, std::uint64_t next, std::uint64_t end, std::uint64_t lane) {
  feedlane_error err;
  feedlane_init(&err, sizeof err);
  feedlane_tx* tx = nullptr;
  check(err, feedlane_tx_attach(fd, nullptr, FEEDLANE_FOREVER, &tx, nullptr, &err));
  while (next < end) {
    feedlane_span span;
    const auto want = static_cast<std::uint32_t>(std::min<std::uint64_t>(32, end - next));
    check(err, feedlane_tx_reserve(tx, want, FEEDLANE_FOREVER, &span, &err));
    for (std::uint32_t k = 0; k < span.count; k++, next++) {
      const std::uint64_t left = span.count - 1 - k;  // of this commit
      const std::uint64_t words[7] = {next, left << 32 | lane, ~next, next * 5, next * 7, next * 11, next * 13};
      std::memcpy(static_cast<std::byte*>(span.data) + k * span.stride, words, sizeof words);
    }
    check(err, feedlane_tx_commit(tx, span.count, &err));
  }
  (void)feedlane_tx_destroy(&tx);
  std::_Exit(0);
}

struct Ring {
  explicit Ring(std::uint32_t lanes, std::uint32_t capacity) : expected(lanes), pids(lanes), left(lanes) {
    feedlane_init(&err, sizeof err);
    feedlane_ring_config config;
    feedlane_init(&config, sizeof config);
    config.message_bytes = 56;
    config.capacity = capacity;
    config.lanes = lanes;
    check(err, feedlane_rx_create(&config, &rx, &err));
  }
  ~Ring() { (void)feedlane_rx_destroy(&rx); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void start(std::uint64_t stream, std::uint64_t end) {
    std::int32_t fd = -1;
    check(err, feedlane_rx_offer(rx, &fd, &err));
    const pid_t child = ::fork();
    if (child < 0) stress::die("fork", 0, 1);
    if (child == 0) send(fd, expected[stream], end, stream);
    (void)::close(fd);
    pids[stream] = child;
  }
  // Takes what is there; false at the end.
  bool take() {
    feedlane_span span;
    const std::int32_t s = feedlane_rx_peek(rx, 64, FEEDLANE_FOREVER, &span, &err);
    if (s == FEEDLANE_END) return false;
    check(err, s);
    for (std::uint32_t k = 0; k < span.count; k++) {
      std::uint64_t w[7];
      std::memcpy(w, static_cast<std::byte*>(span.data) + k * span.stride, sizeof w);
      const std::uint64_t stream = w[1] & UINT32_MAX;
      if (stream >= expected.size()) stress::die("stream", stream, expected.size());
      left[stream] = w[1] >> 32;
      const std::uint64_t v = expected[stream]++;
      if (w[0] != v) stress::die("a message out of order", w[0], v);
      if (w[2] != ~v || w[3] != v * 5 || w[4] != v * 7 || w[5] != v * 11 || w[6] != v * 13)
        stress::die("a message torn", w[2], ~v);
    }
    taken += span.count;
    check(err, feedlane_rx_release(rx, span.lane, span.count, &err));
    return true;
  }

  // Kills a stream's sender and starts its successor where the committed messages end. The lane is free once the death is
  // seen and the lane is empty; the others go on sending meanwhile.
  void replace(std::uint64_t stream) {
    (void)::kill(pids[stream], SIGKILL);
    (void)::waitpid(pids[stream], nullptr, 0);
    std::int32_t fd = -1;
    std::int32_t s = FEEDLANE_E_LIMIT;
    while ((s = feedlane_rx_offer(rx, &fd, &err)) == FEEDLANE_E_LIMIT) (void)take();
    check(err, s);
    if (left[stream] != 0) stress::die("a commit in part, messages left of it", left[stream], 0);
    const pid_t child = ::fork();
    if (child == 0) send(fd, expected[stream], UINT64_MAX, stream);
    (void)::close(fd);
    pids[stream] = child;
  }
  void end() {
    for (const pid_t pid : pids) {
      (void)::kill(pid, SIGKILL);
      (void)::waitpid(pid, nullptr, 0);
    }
    while (take()) {
    }
  }

  feedlane_error err{};
  feedlane_rx* rx = nullptr;
  std::vector<std::uint64_t> expected;
  std::vector<pid_t> pids;
  std::vector<std::uint64_t> left;  // by its last message, of its last commit
  std::uint64_t taken = 0;
};

void one_lane(std::uint64_t count) {
  Ring ring(1, 1024);
  const auto began = Clock::now();
  ring.start(0, count);
  while (ring.take()) {
  }
  if (ring.taken != count) stress::die("messages", ring.taken, count);
  int status = -1;
  (void)::waitpid(ring.pids[0], &status, 0);
  if (status != 0) stress::die("the sender's exit status", static_cast<std::uint64_t>(status), 0);
  std::printf("%llu messages through one lane, %.1f million/s\n", static_cast<unsigned long long>(count),
              static_cast<double>(count) / since(began) / 1e6);
}

void killed_senders(std::uint32_t lanes, std::uint64_t kills) {
  Ring ring(lanes, 256);
  const auto began = Clock::now();
  for (std::uint32_t i = 0; i < lanes; i++) ring.start(i, UINT64_MAX);
  stress::Random random{lanes};
  for (std::uint64_t k = 0; k < kills; k++) {
    for (const std::uint64_t until = ring.taken + random(20'000); ring.taken < until;) (void)ring.take();
    const std::uint64_t victim = random(lanes);
    ring.replace(victim);
  }
  ring.end();
  std::printf("%u senders: %llu messages, %llu kills, %.1f s\n", lanes, static_cast<unsigned long long>(ring.taken),
              static_cast<unsigned long long>(kills), since(began));
}

// The promise's own pace: a sender killed every second.
void killed_every_second(std::uint64_t seconds) {
  Ring ring(2, 256);
  for (std::uint32_t i = 0; i < 2; i++) ring.start(i, UINT64_MAX);
  for (std::uint64_t k = 0; k < seconds; k++) {
    for (const auto began = Clock::now(); since(began) < 1;) (void)ring.take();
    const std::uint64_t victim = k % 2;
    ring.replace(victim);
  }
  ring.end();
  std::printf("a sender killed every second for %llu s: %llu messages\n", static_cast<unsigned long long>(seconds),
              static_cast<unsigned long long>(ring.taken));
}

}  // namespace

int main() {
  one_lane(stress::length(20'000'000, 1'000'000'000));
  for (const std::uint32_t lanes : {1u, 2u, 8u}) killed_senders(lanes, stress::length(100, 5'000));
  killed_every_second(stress::length(2, 60));
  return 0;
}
