// SPDX-License-Identifier: Apache-2.0
// Requests that come at any time, answered by worker processes in batches: reads numbers from standard input, one per line,
// and prints the smallest prime factor of each. A batch is closed when it is full, or 5 ms after its first request.
// Usage: requests [WORKERS]
#include <sys/timerfd.h>
#include <unistd.h>

#include <feedlane/feedlane.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>

namespace {

constexpr size_t most = 8;  // requests in a batch
constexpr std::chrono::nanoseconds patience = std::chrono::milliseconds(5);
constexpr std::chrono::nanoseconds at_once{1};

/// Requests that wait for a batch. Any thread adds them; the loader's thread takes them.
class Requests {
 public:
  Requests() : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    if (timer_ < 0) throw std::system_error(errno, std::system_category(), "timerfd_create");
  }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() { ::close(timer_); }

  void add(int64_t number) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(number);
    if (waiting_.size() == 1) wake_in(patience);
    if (waiting_.size() >= most) wake_in(at_once);
  }
  /// No more requests come.
  void end() {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    wake_in(at_once);
  }

  /// A batch, 0 at the end, or nullopt: no batch is due now. What happens after this look makes the timer expire again.
  std::optional<size_t> next(std::span<int64_t> batch) {
    const std::lock_guard lock(mutex_);
    uint64_t expirations = 0;
    const bool is_due = ::read(timer_, &expirations, sizeof expirations) == sizeof expirations;
    if (!is_due && waiting_.size() < most && !has_ended_) return std::nullopt;
    const size_t count = std::min(batch.size(), waiting_.size());
    std::copy_n(waiting_.begin(), count, batch.begin());
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
    if (!waiting_.empty()) wake_in(waiting_.size() < most ? patience : at_once);
    if (count == 0 && !has_ended_) return std::nullopt;
    return count;
  }
  [[nodiscard]] int wake_fd() const { return timer_; }

 private:
  void wake_in(std::chrono::nanoseconds delay) const {
    const itimerspec time{{}, {0, delay.count()}};
    (void)::timerfd_settime(timer_, 0, &time, nullptr);
  }
  const int timer_;
  std::mutex mutex_;
  std::deque<int64_t> waiting_;
  bool has_ended_ = false;
};

/// The sampler. Copies of it share the requests.
struct Order {
  std::shared_ptr<Requests> requests;
  std::optional<size_t> next(std::span<int64_t> batch) { return requests->next(batch); }
  [[nodiscard]] int wake_fd() const { return requests->wake_fd(); }
  [[nodiscard]] int64_t batch_rows() const { return most; }
};

/// Answers one request in a worker. Its index is the request: any 64 bits, such as a number or the key of an arena's entry.
struct Factors {
  void get(const feedlane::Row& row) const {
    int64_t factor = 2;
    while (factor * factor <= row.index() && row.index() % factor != 0) factor++;
    row.field<int64_t>(0)[0] = factor * factor <= row.index() ? factor : row.index();
  }
};

void answer(int workers) {
  const auto requests = std::make_shared<Requests>();
  const feedlane::Sampler order = feedlane::Sampler::custom(Order{requests});
  Factors factors;
  const feedlane_dataset dataset = feedlane::dataset_of(factors);
  feedlane::Loader loader({.sampler = &order,
                           .fields = {feedlane::field<int64_t>("factor")},
                           .dataset = &dataset,
                           .workers = workers,
                           .start = feedlane::Start::fork});
  loader.start_epoch(0);
  std::thread reader([&] {  // started after the workers were forked
    for (int64_t number = 0; std::cin >> number;) requests->add(number);
    requests->end();
  });
  try {
    while (const std::optional<feedlane::Batch> batch = loader.next()) {
      const std::span<const int64_t> found = (*batch)["factor"].as<int64_t>();
      for (size_t i = 0; i < found.size(); i++)
        std::printf("%" PRId64 ": %" PRId64 "\n", batch->indices()[i], found[i]);
      std::fflush(stdout);
    }
  } catch (...) {
    reader.join();
    throw;
  }
  reader.join();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    answer(argc > 1 ? std::atoi(argv[1]) : 2);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "requests: %s\n", error.what());
    return 1;
  }
}
