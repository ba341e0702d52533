// SPDX-License-Identifier: Apache-2.0
// Batches on their way from slots to registered buffers, where the arena itself isn't registered. The loader's thread says
// what is to be copied, in the order in which batches are yielded; one thread of the host copies.
//
// A buffer is free; or queued, copied, ready, for a slot; or held: its batch is in the trainer's hands, and whether it has come
// back is asked of the slot table. One mutex guards it all; copies are made without it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "arena/slot.hpp"
#include "arena/slot_table.hpp"
#include "base/error.hpp"
#include "pinned/pool.hpp"

namespace feedlane::loader {

class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  // Takes `count` of the pool's buffers, without waiting. E_LIMIT: it hasn't so many left.
  Status open(pinned::Pool& pool, std::uint32_t count, Error& error);

  // ---- the loader's thread ----

  // A slot's batch has a buffer and is being copied, or was. Its tensors point into the buffer from then on.
  [[nodiscard]] bool is_begun(std::uint32_t slot) const;
  [[nodiscard]] bool is_ready(std::uint32_t slot) const;
  // False: no buffer is free. E_SAMPLE: the batch is larger than one. Inline: `now`, by this thread.
  Status begin(std::uint32_t slot, arena::Made& made, const arena::SlotTable& slots, bool now, bool& has_buffer,
               Error& error);
  // Its batch has gone to the trainer.
  void hand_out(std::uint32_t slot, std::uint64_t token);
  // Nobody wants it: waits for a copy that is being made.
  void drop(std::uint32_t slot);
  // Whether a thread is there to copy.
  [[nodiscard]] bool has_copier() const;
  // Whether the trainer has every buffer in its hands.
  [[nodiscard]] bool all_held(const arena::SlotTable& slots) const;

  // ---- the thread that copies ----

  // Until `close`. `wake` is called after each copy. E_STATE: another one is here.
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
  Buffer* find_free(const arena::SlotTable& slots);
  Status enter(Error& error);
  // The next buffer to copy; nullptr: closed.
  Buffer* wait_for_work();
  void finish(Buffer& buffer);

  pinned::Pool* pool_ = nullptr;
  std::vector<Buffer> buffers_;

  mutable std::mutex mutex_;
  std::condition_variable work_;      // queued, or closed
  std::condition_variable finished_;  // a copy was made
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
