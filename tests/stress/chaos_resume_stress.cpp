// SPDX-License-Identifier: Apache-2.0
// 7. Faults: the trainer itself is killed at random moments, while its workers are, and goes on from its last state: every
// batch once, in order, with the right bytes; its workers and their memory are gone soon after it.
// promise: fault-trainer-killed, trainer-killed-resumed
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <vector>

#include "chaos.hpp"

namespace {

using State = std::vector<unsigned char>;

struct Head {
  std::int64_t epoch, batch;
  std::uint64_t state_bytes;
};

void write_whole(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t put = ::write(fd, at, bytes);
    if (put <= 0) ::_exit(1);
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

bool read_whole(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes != 0) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

[[noreturn]] void train(int to, const State& state, std::uint64_t seed) {
  feedlane_error e;
  feedlane_init(&e, sizeof e);
  feedlane_loader* loader = chaos::create(state.empty() ? nullptr : state.data(), state.size());
  feedlane_state_info info;
  feedlane_init(&info, sizeof info);
  if (!state.empty() && feedlane_state_read(state.data(), state.size(), &info, &e) != FEEDLANE_OK)
    chaos::die("state", e);
  const chaos::Disturber disturber(loader, seed);
  for (std::int64_t epoch = info.epoch;; epoch++) {
    if (feedlane_loader_begin(loader, epoch, &e) != FEEDLANE_OK) chaos::die("begin", e);
    for (;;) {
      feedlane_batch batch;
      feedlane_init(&batch, sizeof batch);
      const std::int32_t s = feedlane_loader_next(loader, chaos::patience_ns, &batch, &e);
      if (s == FEEDLANE_END) break;
      if (s != FEEDLANE_OK) chaos::die("next", e);
      chaos::check(batch, epoch);
      State now(4096);
      std::uint64_t bytes = 0;
      if (feedlane_loader_state(loader, batch.token, now.data(), now.size(), &bytes, &e) != FEEDLANE_OK)
        chaos::die("state", e);
      (void)feedlane_batch_release(loader, batch.token);
      const Head head{epoch, batch.batch, bytes};
      write_whole(to, &head, sizeof head);
      write_whole(to, now.data(), bytes);
    }
  }
}

// Until no process is left that the trainer, or anybody for it, has started. The trainer itself must have ended by our
// SIGKILL: one that has failed a check of its own ends by exit before or instead. Its workers end in any way.
double reap_all(pid_t trainer) {
  const std::int64_t before = chaos::now_ns();
  int status = 0;
  pid_t found = 0;
  do found = ::waitpid(trainer, &status, 0);
  while (found < 0 && errno == EINTR);
  if (found != trainer || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
    stress::die("the status of a trainer that was to be killed", static_cast<std::uint64_t>(status), SIGKILL);
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) continue;
  return static_cast<double>(chaos::now_ns() - before) / 1e6;
}

}  // namespace

int main() {
  if (const std::int32_t fd = feedlane_worker_fd(); fd >= 0) {
    const feedlane_dataset d = chaos::dataset();
    return feedlane_worker_run(fd, nullptr, &d, nullptr) == FEEDLANE_OK ? 0 : 1;
  }
  const std::uint64_t lives = stress::length(20, 150);
  (void)::prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphaned workers come to us
  stress::Random random{static_cast<std::uint64_t>(chaos::now_ns()) | 1};
  State state;
  Head last{0, -1, 0};
  std::uint64_t batches = 0, empty = 0;
  double slowest = 0;
  for (std::uint64_t life = 0; life < lives; life++) {
    int ends[2];
    if (::pipe(ends) != 0) stress::die("pipe", 0, 1);
    const std::uint64_t seed = random(UINT64_MAX);
    const pid_t trainer = ::fork();
    if (trainer == 0) {
      (void)::close(ends[0]);
      train(ends[1], state, seed);
    }
    (void)::close(ends[1]);
    std::thread killer([&] {
      chaos::nap(static_cast<std::int64_t>(20 + random(300)) * 1'000'000);
      (void)::kill(trainer, SIGKILL);  // our child, not reaped yet
    });
    bool any = false;
    for (Head head{}; read_whole(ends[0], &head, sizeof head);) {
      State next(head.state_bytes);
      if (!read_whole(ends[0], next.data(), next.size())) break;
      const bool follows = head.epoch == last.epoch ? head.batch == last.batch + 1
                                                    : head.epoch == last.epoch + 1 && head.batch == 0 &&
                                                          last.batch + 1 == chaos::samples / chaos::batch_size;
      if (!follows)
        stress::die("the batch after the state's", static_cast<std::uint64_t>(head.batch),
                    static_cast<std::uint64_t>(last.batch + 1));
      last = head;
      state = std::move(next);
      batches++;
      any = true;
    }
    killer.join();
    (void)::close(ends[0]);
    slowest = std::max(slowest, reap_all(trainer));
    empty += any ? 0 : 1;
  }
  std::printf(
      "%llu trainers killed: %llu batches, each once, in order, whole, up to batch %lld of epoch %lld; %llu lives too "
      "short for one; all workers gone within %.1f ms\n",
      static_cast<unsigned long long>(lives), static_cast<unsigned long long>(batches),
      static_cast<long long>(last.batch), static_cast<long long>(last.epoch), static_cast<unsigned long long>(empty),
      slowest);
  if (empty == lives) stress::die("lives without a batch", empty, 0);
  return 0;
}
