// SPDX-License-Identifier: Apache-2.0
// Copies batches from slots to registered buffers if the arena itself isn't registered. The loader's thread queues
// copies in the order in which batches are yielded; one thread of the host makes them.
//
// A buffer is free; or queued, copied or ready for a slot; or held, while the trainer holds its batch. The slot table
// says whether the batch was released. One mutex guards everything; it is not held during a copy.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/error.hpp"
#include "pinned/pool.hpp"
#include "tensors/slot.hpp"
#include "tensors/slot_table.hpp"

namespace feedlane::loader {

class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  // Takes `count` of the pool's buffers, without waiting. E_LIMIT: the pool has fewer left.
  Status open(pinned::Pool& pool, std::uint32_t count, Error& error);

  // ---- the loader's thread ----

  // Whether a slot's batch has a buffer. From then on, the batch's tensors point into the buffer.
  [[nodiscard]] bool is_begun(std::uint32_t slot) const;
  [[nodiscard]] bool is_ready(std::uint32_t slot) const;
  // Queues the copy of a slot's batch. `has_buffer`: false if no buffer is free. E_SAMPLE: the batch is larger than a
  // buffer. `now`: this thread copies at once (inline).
  Status begin(std::uint32_t slot, tensors::Made& made, const tensors::SlotTable& slots, bool now, bool& has_buffer,
               Error& error);
  // The slot's batch was yielded to the trainer.
  void hand_out(std::uint32_t slot, std::uint64_t token);
  // The slot's batch is no longer needed. Waits for a copy in progress.
  void drop(std::uint32_t slot);
  // Whether a thread is in `run`.
  [[nodiscard]] bool has_copier() const;
  // Whether the trainer holds every buffer.
  [[nodiscard]] bool all_held(const tensors::SlotTable& slots) const;

  // ---- the thread that copies ----

  // Copies until `close`. Calls `wake` after each copy. E_STATE: another thread is in `run`.
  template <class Wake>
  Status run(Wake&& wake, Error& error);
  void close();

 private:
  struct Part {
    std::byte* to;
    const std::byte* from;
    std::uint64_t bytes;
  };
  enum class State { free, queued, copied, ready, held };
  struct Buffer {
    feedlane_buffer memory{};
    State state = State::free;
    std::uint32_t slot = 0;
    std::uint64_t token = 0;
    std::vector<Part> parts;
  };

  static void copy(const Buffer& buffer);
  [[nodiscard]] Buffer* find(std::uint32_t slot);
  [[nodiscard]] const Buffer* find(std::uint32_t slot) const;
  Buffer* find_free(const tensors::SlotTable& slots);
  Status enter(Error& error);
  // The next buffer to copy; nullptr: closed.
  Buffer* wait_for_work();
  void finish(Buffer& buffer);

  pinned::Pool* pool_ = nullptr;
  std::vector<Buffer> buffers_;

  mutable std::mutex mutex_;
  std::condition_variable work_;      // queued, or closed
  std::condition_variable finished_;  // a copy is complete
  std::deque<Buffer*> queue_;
  bool has_copier_ = false;
  bool closed_ = false;
};

template <class Wake>
Status Staging::run(Wake&& wake, Error& error) {
  if (const Status s = enter(error); s != FEEDLANE_OK) return s;
  while (Buffer* buffer = wait_for_work()) {
    copy(*buffer);
    finish(*buffer);
    wake();
  }
  return FEEDLANE_OK;
}

}  // namespace feedlane::loader
