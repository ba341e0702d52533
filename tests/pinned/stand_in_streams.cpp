// SPDX-License-Identifier: Apache-2.0
// Streams, events and stretches of memory of the stand-in for CUDA's driver.
#include "stand_in_cuda.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace feedlane::test::stand_in {

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::enqueue(Work work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !is_busy_; });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || ends_; });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front());
    queue_.pop_front();
    is_busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

std::uint64_t Event::record() {
  const std::lock_guard lock(mutex_);
  return ++recorded_;
}

void Event::pass(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  passed_ = std::max(passed_, number);
  changed_.notify_all();
}

std::uint64_t Event::newest() {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

void Event::wait_for(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return passed_ >= number; });
}

bool Stretches::add(const void* start, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  const auto after = all_.lower_bound(first);
  if (after != all_.end() && after->first < first + bytes) return false;
  if (after != all_.begin() && std::prev(after)->first + std::prev(after)->second > first) return false;
  all_[first] = bytes;
  return true;
}

bool Stretches::remove(const void* start) {
  const std::lock_guard lock(mutex_);
  return all_.erase(reinterpret_cast<std::uintptr_t>(start)) != 0;
}

bool Stretches::contains(const void* start, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  const auto after = all_.upper_bound(first);
  if (after == all_.begin()) return false;
  const auto& [begin, length] = *std::prev(after);
  return first + bytes <= begin + length;
}

}  // namespace feedlane::test::stand_in
