// SPDX-License-Identifier: Apache-2.0
// Devices as the tests of registered memory need them: something to copy to, and streams.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/api.hpp"

namespace feedlane::test {

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;
  // What makes a pool for it, without buffers.
  virtual feedlane_pool_config config() = 0;
  virtual void* allocate(std::uint64_t bytes) = 0;
  virtual void free(void* memory) = 0;
  virtual void* stream() = 0;
  // Until all that was enqueued there is done.
  virtual void wait(void* stream) = 0;
  virtual std::string read(const void* memory, std::uint64_t bytes) = 0;
};

// "none" and "mlock": this process's memory, streams that are always done.
class HostDevice final : public Device {
 public:
  explicit HostDevice(const char* backend) : backend_(backend) {}
  feedlane_pool_config config() override {
    auto c = fresh<feedlane_pool_config>();
    c.backend = backend_;
    return c;
  }
  void* allocate(std::uint64_t bytes) override { return ::operator new(bytes); }
  void free(void* memory) override { ::operator delete(memory); }
  void* stream() override { return nullptr; }
  void wait(void*) override {}
  std::string read(const void* memory, std::uint64_t bytes) override {
    return {static_cast<const char*>(memory), bytes};
  }

 private:
  const char* backend_;
};

// A table of the user's own: each stream is a thread that does one thing after the other, and can be held up or fail.
class ThreadDevice final : public Device {
 public:
  class Stream {
   public:
    Stream() : thread_([this] { run(); }) {}
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream();
    void enqueue(std::function<void(bool failed)> work);
    void hold();
    void go_on();
    // From here on nothing is done, and who waits for it is told so.
    void fail();
    void wait();

   private:
    void run();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void(bool)>> queue_;
    bool is_held_ = false, has_failed_ = false, is_busy_ = false, ends_ = false;
    std::thread thread_;
  };

  feedlane_pool_config config() override;
  void* allocate(std::uint64_t bytes) override { return ::operator new(bytes); }
  void free(void* memory) override { ::operator delete(memory); }
  void* stream() override { return &stream_; }
  void wait(void* stream) override { static_cast<Stream*>(stream)->wait(); }
  std::string read(const void* memory, std::uint64_t bytes) override {
    return {static_cast<const char*>(memory), bytes};
  }

  feedlane_backend table{};
  Stream& only_stream() { return stream_; }
  // Registered now, in bytes, by address.
  std::map<std::uintptr_t, std::uint64_t> registered();
  // The next so many registrations succeed, and then none.
  void refuse_after(int count) { refuse_after_ = count; }

 private:
  static std::int32_t add(void* self, void* address, std::uint64_t bytes, feedlane_error* err);
  static std::int32_t remove(void* self, void* address, std::uint64_t bytes, feedlane_error* err);
  static std::int32_t copy(void* self, void* device, const void* host, std::uint64_t bytes, void* stream,
                           feedlane_error* err);
  static std::int32_t when_passed(void* self, void* stream, void (*notify)(void*, std::int32_t), void* cookie,
                                  feedlane_error* err);

  std::mutex mutex_;
  std::map<std::uintptr_t, std::uint64_t> registered_;
  int refuse_after_ = -1;
  Stream stream_;
};

}  // namespace feedlane::test
