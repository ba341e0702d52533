// SPDX-License-Identifier: Apache-2.0
// A device without hardware: its streams are threads.
#include "device.hpp"

#include <cstdio>
#include <utility>

namespace feedlane::test {

// ---- a stream ----

ThreadDevice::Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    is_held_ = false;
    changed_.notify_all();
  }
  thread_.join();
}

void ThreadDevice::Stream::enqueue(std::function<void(bool)> work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

void ThreadDevice::Stream::hold() {
  const std::lock_guard lock(mutex_);
  is_held_ = true;
}

void ThreadDevice::Stream::go_on() {
  const std::lock_guard lock(mutex_);
  is_held_ = false;
  changed_.notify_all();
}

void ThreadDevice::Stream::fail() {
  const std::lock_guard lock(mutex_);
  has_failed_ = true;
  is_held_ = false;
  changed_.notify_all();
}

void ThreadDevice::Stream::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !is_busy_; });
}

void ThreadDevice::Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return (!queue_.empty() && !is_held_) || (ends_ && queue_.empty()); });
    if (queue_.empty()) return;
    const std::function<void(bool)> work = std::move(queue_.front());
    queue_.pop_front();
    is_busy_ = true;
    const bool failed = has_failed_;
    lock.unlock();
    work(failed);
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

// ---- the table ----

feedlane_pool_config ThreadDevice::config() {
  feedlane_init(&table, sizeof table);
  table.user_data = this;
  table.register_memory = add;
  table.unregister_memory = remove;
  table.register_read_only = add;
  table.copy = copy;
  table.when_passed = when_passed;
  auto c = fresh<feedlane_pool_config>();
  c.custom = &table;
  return c;
}

std::map<std::uintptr_t, std::uint64_t> ThreadDevice::registered() {
  const std::lock_guard lock(mutex_);
  return registered_;
}

std::int32_t ThreadDevice::add(void* self, void* address, std::uint64_t bytes, feedlane_error* err) {
  auto& d = *static_cast<ThreadDevice*>(self);
  const std::lock_guard lock(d.mutex_);
  if (d.refuse_after_ == 0) {
    (void)std::snprintf(err->text, sizeof err->text, "no room in the device's tables");
    return FEEDLANE_E_DEVICE;
  }
  if (d.refuse_after_ > 0) d.refuse_after_--;
  d.registered_[reinterpret_cast<std::uintptr_t>(address)] = bytes;
  return FEEDLANE_OK;
}

std::int32_t ThreadDevice::remove(void* self, void* address, std::uint64_t bytes, feedlane_error*) {
  auto& d = *static_cast<ThreadDevice*>(self);
  const std::lock_guard lock(d.mutex_);
  const auto found = d.registered_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == d.registered_.end() || found->second != bytes) return FEEDLANE_E_DEVICE;
  d.registered_.erase(found);
  return FEEDLANE_OK;
}

std::int32_t ThreadDevice::copy(void*, void* device, const void* host, std::uint64_t bytes, void* stream,
                                feedlane_error*) {
  static_cast<Stream*>(stream)->enqueue([=](bool failed) {
    if (!failed) std::memcpy(device, host, bytes);
  });
  return FEEDLANE_OK;
}

std::int32_t ThreadDevice::when_passed(void*, void* stream, void (*notify)(void*, std::int32_t), void* cookie,
                                       feedlane_error* err) {
  if (stream == nullptr) {
    (void)std::snprintf(err->text, sizeof err->text, "no such stream");
    return FEEDLANE_E_DEVICE;
  }
  static_cast<Stream*>(stream)->enqueue([=](bool failed) { notify(cookie, failed ? FEEDLANE_E_DEVICE : FEEDLANE_OK); });
  return FEEDLANE_OK;
}

}  // namespace feedlane::test
