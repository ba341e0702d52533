// SPDX-License-Identifier: Apache-2.0
// The objects of the stand-in for CUDA's driver: streams, events, graphs, memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace feedlane::test::stand_in {

using Work = std::function<void()>;

// In the driver's numbers.
enum Result : int {
  ok = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  invalid_handle = 400,
  already_registered = 712,
  not_registered = 713,
  not_permitted = 800,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_unmatched = 903,
  capture_wrong_thread = 908,
};

// Copies and fills in the order in which they were captured.
struct Graph {
  std::vector<Work> works;
};

struct Capture {
  Graph graph;
  int mode = 0;
  std::thread::id thread;
  std::atomic<bool> is_invalid{false};
};

// What is enqueued is done by a thread, one thing after the other.
class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();
  void enqueue(Work work);
  void wait();

  std::unique_ptr<Capture> capture;  // by one thread at a time, as it is with streams that are captured

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool is_busy_ = false, ends_ = false;
  std::thread thread_;
};

// Counts its records: a wait is for the newest one at the time of the call.
class Event {
 public:
  std::uint64_t record();
  void pass(std::uint64_t number);
  std::uint64_t newest();
  void wait_for(std::uint64_t number);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t recorded_ = 0, passed_ = 0;
};

// Stretches of memory by their start.
class Stretches {
 public:
  bool add(const void* start, std::size_t bytes);  // false: a part is there already
  bool remove(const void* start);
  bool contains(const void* start, std::size_t bytes);

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> all_;
};

}  // namespace feedlane::test::stand_in
