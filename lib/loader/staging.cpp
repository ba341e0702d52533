// SPDX-License-Identifier: Apache-2.0
// Copies batches to registered buffers: the queue between the loader's thread and the copying thread.
#include "loader/staging.hpp"

#include <algorithm>
#include <cstring>

#include "tensors/fields.hpp"

namespace feedlane::loader {

Status Staging::open(pinned::Pool& pool, std::uint32_t count, Error& error) {
  pool_ = &pool;
  buffers_.reserve(count);
  for (std::uint32_t i = 0; i < count; i++) {
    Buffer b;
    const Status s = pool.acquire(os::Deadline::after(0), b.memory, error);
    if (s == FEEDLANE_TIMEOUT)
      return error.refuse(FEEDLANE_E_LIMIT, "config.staged", i, count,
                          "config.staged is {}, but the pool has only {} free buffers of {}", count, i, pool.buffers());
    if (s != FEEDLANE_OK) return s;
    buffers_.push_back(std::move(b));
  }
  return FEEDLANE_OK;
}

Staging::~Staging() {
  Error none;
  for (const Buffer& b : buffers_) (void)pool_->release(b.memory.token, FEEDLANE_NO_STREAM, none);
}

// ---- the loader's thread ----
// The copying thread changes `state` from queued to copied to ready. Everything else belongs to this thread.

Staging::Buffer* Staging::find(std::uint32_t slot) {
  for (Buffer& b : buffers_)
    if (b.slot == slot && b.state != State::free && b.state != State::held) return &b;
  return nullptr;
}

const Staging::Buffer* Staging::find(std::uint32_t slot) const { return const_cast<Staging*>(this)->find(slot); }

bool Staging::is_begun(std::uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  return find(slot) != nullptr;
}

bool Staging::is_ready(std::uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  const Buffer* b = find(slot);
  return b != nullptr && b->state == State::ready;
}

Staging::Buffer* Staging::find_free(const tensors::SlotTable& slots) {
  for (Buffer& b : buffers_) {
    if (b.state == State::held && !slots.is_in_use(b.token)) b.state = State::free;
    if (b.state == State::free) return &b;
  }
  return nullptr;
}

Status Staging::begin(std::uint32_t slot, tensors::Made& made, const tensors::SlotTable& slots, bool now,
                      bool& has_buffer, Error& error) {
  std::vector<feedlane_tensor>& tensors = made.tensors;
  std::uint64_t needed = 0;
  for (const feedlane_tensor& t : tensors) needed = tensors::align_tensor(needed) + t.bytes;
  if (needed > pool_->buffer_bytes())
    return error.refuse(FEEDLANE_E_SAMPLE, "pool.buffer_bytes", pool_->buffer_bytes(), needed,
                        "the batch takes {} bytes, but the pool's buffers have only {}", needed, pool_->buffer_bytes());
  const std::lock_guard lock(mutex_);
  Buffer* b = find_free(slots);
  has_buffer = b != nullptr;
  if (b == nullptr) return FEEDLANE_OK;
  b->parts.clear();
  b->parts.reserve(tensors.size());
  if (!now) queue_.push_back(b);  // from here on nothing can fail
  made.rows_as_declared = -1;     // they lie elsewhere now
  std::uint64_t at = 0;
  for (feedlane_tensor& t : tensors) {
    at = tensors::align_tensor(at);
    std::byte* const to = static_cast<std::byte*>(b->memory.data) + at;
    b->parts.push_back({to, static_cast<const std::byte*>(t.data), t.bytes});
    t.data = to;
    t.offset = at;
    at += t.bytes;
  }
  b->slot = slot;
  b->state = State::queued;
  if (now) {
    copy(*b);
    b->state = State::ready;
  } else {
    work_.notify_one();
  }
  return FEEDLANE_OK;
}

void Staging::hand_out(std::uint32_t slot, std::uint64_t token) {
  const std::lock_guard lock(mutex_);
  Buffer& b = *find(slot);  // only what `is_ready` is handed out
  b.token = token;
  b.state = State::held;
}

void Staging::drop(std::uint32_t slot) {
  std::unique_lock lock(mutex_);
  Buffer* b = find(slot);
  if (b == nullptr) return;
  if (b->state == State::queued) std::erase(queue_, b);
  else finished_.wait(lock, [&] { return b->state != State::copied; });
  b->state = State::free;
}

bool Staging::has_copier() const {
  const std::lock_guard lock(mutex_);
  return has_copier_;
}

bool Staging::all_held(const tensors::SlotTable& slots) const {
  const std::lock_guard lock(mutex_);
  return std::all_of(buffers_.begin(), buffers_.end(),
                     [&](const Buffer& b) { return b.state == State::held && slots.is_in_use(b.token); });
}

// ---- the thread that copies ----

void Staging::copy(const Buffer& buffer) {
  for (const Part& p : buffer.parts)
    if (p.bytes != 0) std::memcpy(p.to, p.from, p.bytes);
}

Status Staging::enter(Error& error) {
  const std::lock_guard lock(mutex_);
  if (has_copier_)
    return error.fail(FEEDLANE_E_STATE, "another thread already runs feedlane_loader_run_stager for this loader");
  has_copier_ = true;
  return FEEDLANE_OK;
}

Staging::Buffer* Staging::wait_for_work() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return closed_ || !queue_.empty(); });
  if (closed_) return nullptr;
  Buffer* b = queue_.front();
  queue_.pop_front();
  b->state = State::copied;
  return b;
}

void Staging::finish(Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  buffer.state = State::ready;
  finished_.notify_all();
}

void Staging::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  work_.notify_all();
}

}  // namespace feedlane::loader
