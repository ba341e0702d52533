// SPDX-License-Identifier: Apache-2.0
// Grows the window as long as this shortens the trainer's waits.
#include "loader/prefetch.hpp"

#include <algorithm>

namespace feedlane::loader {
namespace {

constexpr std::uint32_t least_period = 32;     // batches
constexpr std::uint32_t windows_a_period = 4;  // or this many windows, if that is more
constexpr std::uint32_t first_rest = 4;        // periods to rest after a useless growth; doubled each time, up to
constexpr std::uint32_t longest_rest = 64;     // this limit, because the bottleneck may change

// Whether the waits of a period are more than 1 % of it. Shorter waits are not worth a larger window.
bool is_worth_it(std::uint64_t waited_ns, std::uint64_t elapsed_ns) { return waited_ns > elapsed_ns / 100; }

// Shorter by at least a tenth; a smaller difference may be chance.
bool is_shorter(std::uint64_t wait_ns, std::uint64_t before_ns) { return wait_ns <= before_ns - before_ns / 10; }

}  // namespace

void Prefetch::use(std::uint32_t workers, std::uint32_t start, std::uint32_t limit, shm::Word64& told) {
  workers_ = workers;
  limit_ = limit;
  is_chosen_ = start < limit;
  told_ = &told;
  next_rest_ = first_rest;
  set(start);
}

void Prefetch::set(std::uint32_t per_worker) {
  per_worker_ = per_worker;
  settling_ = window();
  told_->store(per_worker, std::memory_order_relaxed);  // only a monitor reads it
}

void Prefetch::on_yield(const Stamps::Exposure& exposure) {
  if (!is_chosen_) return;
  const std::int64_t since = last_ns_;
  last_ns_ = exposure.yielded_ns;
  if (exposure.is_first) {
    settling_ = std::max(settling_, workers_);  // all workers begin at once
    return;
  }
  if (settling_ != 0) {
    settling_--;
    return;
  }
  waited_ns_ += exposure.waited_ns;
  elapsed_ns_ += static_cast<std::uint64_t>(std::max<std::int64_t>(exposure.yielded_ns - since, 0));
  batches_++;
  if (batches_ < std::max(least_period, windows_a_period * window())) return;
  judge(waited_ns_ / batches_);
  waited_ns_ = elapsed_ns_ = batches_ = 0;
}

// Called at the end of a period. `wait_ns`: the trainer's average wait for a batch.
void Prefetch::judge(std::uint64_t wait_ns) {
  if (is_on_trial_) {
    is_on_trial_ = false;
    if (!is_shorter(wait_ns, wait_before_ns_)) {
      set(before_);
      rest_ = next_rest_;
      next_rest_ = std::min(2 * next_rest_, longest_rest);
      return;
    }
    next_rest_ = first_rest;
  }
  if (rest_ != 0) {
    rest_--;
    return;
  }
  if (per_worker_ >= limit_ || !is_worth_it(waited_ns_, elapsed_ns_)) return;
  before_ = per_worker_;
  wait_before_ns_ = wait_ns;
  is_on_trial_ = true;
  set(std::min(limit_, 2 * per_worker_));
}

}  // namespace feedlane::loader
