// SPDX-License-Identifier: Apache-2.0
// Buffers and registrations of a pool.
#include "pinned/pool.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "base/versioned.hpp"
#include "os/event.hpp"
#include "os/poller.hpp"

namespace feedlane::pinned {
namespace {

constexpr std::uint32_t max_buffers = 65'536;
constexpr std::uint64_t max_buffer_bytes = std::uint64_t{1} << 40;
// A backend gets less than 512 GiB at once, and otherwise parts. CUDA's driver can register no more (R580): its table for
// one registration, 16 bytes for each 4 KiB, may have at most 2^31 - 1.
constexpr std::uint64_t too_large_bytes = std::uint64_t{1} << 39;
constexpr std::uint64_t max_part_bytes = std::uint64_t{1} << 38;
constexpr std::chrono::microseconds callback_pause{50};

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

Status make_backend(const feedlane_pool_config& c, std::unique_ptr<Backend>& out, Error& error) {
  if (c.custom != nullptr) {
    if (c.backend != nullptr)
      return refuse_pointer(error, "config.backend", true, "must be NULL if config.custom is set");
    return make_custom(c.custom, out, error);
  }
  return make_named(c.backend == nullptr ? "none" : first(64, c.backend), c.device, out, error);
}

}  // namespace

Status Pool::create(const feedlane_pool_config* config, std::unique_ptr<Pool>& out, Error& error) {
  feedlane_pool_config c;
  if (const Status s = read_versioned(config, c, "config", error); s != FEEDLANE_OK) return s;
  if (c.buffers > max_buffers) return refuse(error, "config.buffers", c.buffers, max_buffers, "must be at most 65536");
  const auto shown = static_cast<std::int64_t>(std::min<std::uint64_t>(c.buffer_bytes, INT64_MAX));
  if (c.buffers == 0 && c.buffer_bytes != 0)
    return refuse(error, "config.buffer_bytes", shown, 0, "must be 0 if config.buffers is 0");
  if (c.buffers != 0 && (c.buffer_bytes == 0 || c.buffer_bytes > max_buffer_bytes))
    return refuse(error, "config.buffer_bytes", shown, c.buffer_bytes == 0 ? 1 : std::int64_t{max_buffer_bytes},
                  "must be 1 to 2^40");
  std::unique_ptr<Pool> pool(new Pool);
  if (c.budget_bytes != 0) pool->budget_ = c.budget_bytes;
  Status s = os::create_event(pool->returned_, error, EFD_SEMAPHORE);
  if (s == FEEDLANE_OK) s = make_backend(c, pool->backend_, error);
  if (s == FEEDLANE_OK && c.buffers != 0) s = pool->make_buffers(c, error);
  if (s == FEEDLANE_OK) out = std::move(pool);
  return s;
}

Status Pool::make_buffers(const feedlane_pool_config& c, Error& error) {
  buffer_bytes_ = round_up(c.buffer_bytes, page_bytes());
  const std::uint64_t bytes = c.buffers * buffer_bytes_;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    const int reason = errno;
    (void)error.refuse(FEEDLANE_E_MEMORY, "config.buffer_bytes", 0, bytes, "cannot allocate {} bytes for {} buffers",
                       bytes, c.buffers);
    error.os_errno = reason;
    return error.code;
  }
  memory_ = static_cast<std::byte*>(memory);
  buffers_.resize(c.buffers);
  free_.reserve(c.buffers);
  for (std::uint32_t i = c.buffers; i-- > 0;) {
    buffers_[i].pool = this;
    buffers_[i].passed = {on_passed, &buffers_[i]};
    free_.push_back(i);
  }
  // After a fork, copy-on-write could leave the device with a page that isn't the parent's.
  (void)::madvise(memory, bytes, MADV_DONTFORK);
  return register_memory(memory, bytes, Owner::pool, error);
}

Pool::~Pool() {
  clean_up();
  for (const auto& [address, stretch] : registered_) give_up_parts(address, stretch, stretch.bytes);
  if (memory_ != nullptr) (void)::munmap(memory_, buffers_.size() * buffer_bytes_);
}

// ---- buffers ----

Status Pool::acquire(os::Deadline deadline, feedlane_buffer& out, Error& error) {
  if (buffers_.empty())
    return error.refuse(FEEDLANE_E_STATE, "config.buffers", 0, 1, "the pool has no buffers: set config.buffers");
  clean_up();
  for (bool was_awake = true;; was_awake = false) {
    {
      const std::lock_guard lock(mutex_);
      if (!was_awake) sleepers_--;
      if (failed_) {
        failed_ = false;
        // The event that this thread has drained may also have announced a free buffer: wake another thread.
        if (!free_.empty()) wake_sleeper();
        return error.fail(FEEDLANE_E_DEVICE, "a stream failed while the release of a buffer was queued on it");
      }
      if (!free_.empty()) {
        const std::uint32_t index = free_.back();
        free_.pop_back();
        Buffer& b = buffers_[index];
        b.state = State::held;
        counters_.in_use++;
        counters_.acquired++;
        out = {sizeof out, std::uint64_t{b.generation} << 32 | (index + 1), memory_ + index * buffer_bytes_,
               buffer_bytes_};
        return FEEDLANE_OK;
      }
      if (deadline.remaining_ns() == 0) return FEEDLANE_TIMEOUT;
      sleepers_++;
    }
    const std::int64_t before = os::now_ns();
    const Status s = os::wait_readable(returned_.get(), deadline, error);
    if (s == FEEDLANE_OK) os::drain_event(returned_.get());  // another thread may take the buffer first
    const std::lock_guard lock(mutex_);
    counters_.waited_ns += static_cast<std::uint64_t>(os::now_ns() - before);
    if (s == FEEDLANE_OK || s == FEEDLANE_TIMEOUT) continue;
    sleepers_--;
    return s;
  }
}

Pool::Buffer* Pool::find(std::uint64_t token) {
  const std::uint64_t number = token & UINT32_MAX;
  if (number == 0 || number > buffers_.size()) return nullptr;
  Buffer& b = buffers_[number - 1];
  return b.state == State::held && b.generation == token >> 32 ? &b : nullptr;
}

void Pool::wake_sleeper() {
  if (sleepers_ != 0) os::signal_event(returned_.get());
}

void Pool::put_back(std::uint32_t index) {
  Buffer& b = buffers_[index];
  b.state = State::free;
  b.generation++;
  free_.push_back(index);
  wake_sleeper();
}

Status Pool::release(std::uint64_t token, void* stream, Error& error) {
  Buffer* b = nullptr;
  {
    const std::lock_guard lock(mutex_);
    b = find(token);
    if (b == nullptr) return error.fail(FEEDLANE_E_STALE, "the token is invalid, or its buffer was already released");
    counters_.in_use--;
    if (stream == FEEDLANE_NO_STREAM) {
      put_back(static_cast<std::uint32_t>(b - buffers_.data()));
      return FEEDLANE_OK;
    }
    b->state = State::pending;
    counters_.pending++;
  }
  const Status s = backend_->when_passed(stream, b->passed, error);
  if (s == FEEDLANE_OK) return s;
  const std::lock_guard lock(mutex_);
  b->state = State::held;
  counters_.in_use++;
  counters_.pending--;
  return s;
}

void Pool::on_passed(void* cookie, std::int32_t status) {
  const auto* b = static_cast<Buffer*>(cookie);
  Pool& pool = *b->pool;
  const std::lock_guard lock(pool.mutex_);
  pool.counters_.pending--;
  if (status != FEEDLANE_OK) {
    pool.counters_.failures++;
    pool.failed_ = true;
  }
  pool.put_back(static_cast<std::uint32_t>(b - pool.buffers_.data()));
}

// CUDA refuses a copy whose host memory spans two registrations.
Status Pool::copy(void* device_memory, const void* host, std::uint64_t bytes, void* stream, Error& error) {
  auto* to = static_cast<std::byte*>(device_memory);
  const auto* from = static_cast<const std::byte*>(host);
  while (bytes != 0) {
    const std::uint64_t count = std::min(bytes, left_of_part(from));
    if (const Status s = backend_->copy(to, from, count, stream, error); s != FEEDLANE_OK) return s;
    to += count, from += count, bytes -= count;
  }
  return FEEDLANE_OK;
}

// ---- registrations ----

Status Pool::register_memory(void* address, std::uint64_t bytes, Owner owner, Error& error, Access access) {
  clean_up();
  const std::uint64_t page = page_bytes();
  const auto given = reinterpret_cast<std::uintptr_t>(address);
  const auto shown = static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, INT64_MAX));
  if (bytes == 0 || bytes > UINTPTR_MAX - given - page)
    return refuse(error, "bytes", shown, 1,
                  bytes == 0 ? "nothing to register" : "the range extends past the end of the address space");
  const std::uintptr_t first = given / page * page;
  const std::uint64_t whole = round_up(given + bytes, page) - first;
  // No buffer of the pool lies in two parts, unless it is larger than one.
  const std::uint64_t unit = owner == Owner::pool ? std::min(buffer_bytes_, max_part_bytes) : page;
  const std::uint64_t part = whole < too_large_bytes ? whole : max_part_bytes / unit * unit;
  const Stretch stretch{whole, part, owner, false};
  {
    const std::lock_guard lock(mutex_);
    const auto after = registered_.lower_bound(first);
    const bool next_overlaps = after != registered_.end() && after->first < first + whole;
    const bool last_overlaps =
        after != registered_.begin() && std::prev(after)->first + std::prev(after)->second.bytes > first;
    if (next_overlaps || last_overlaps)
      return error.fail(FEEDLANE_E_STATE, "some pages of these {} bytes are already registered", bytes);
    if (whole > budget_ - counters_.registered_bytes)
      return error.refuse(FEEDLANE_E_LIMIT, "config.budget_bytes", budget_, counters_.registered_bytes + whole,
                          "{} bytes are registered, and {} more would exceed config.budget_bytes, {}",
                          counters_.registered_bytes, whole, budget_);
    registered_.emplace(first, stretch);  // from here on, no other thread can register it
    counters_.registered_bytes += whole;
  }
  const Status s = register_parts(first, stretch, access, error);
  const std::lock_guard lock(mutex_);
  if (s == FEEDLANE_OK) registered_.find(first)->second.is_settled = true;
  else set_bytes(first, 0);
  return s;
}

Status Pool::register_parts(std::uintptr_t first, const Stretch& stretch, Access access, Error& error) {
  for (std::uint64_t done = 0; done < stretch.bytes; done += stretch.part) {
    const std::uint64_t count = std::min(stretch.part, stretch.bytes - done);
    const Status s = backend_->register_memory(reinterpret_cast<void*>(first + done), count, access, error);
    if (s == FEEDLANE_OK) continue;
    give_up_parts(first, stretch, done);
    return s;
  }
  return FEEDLANE_OK;
}

// Unregisters the parts in the first `bytes` bytes. Nobody can try again, so an error leaves out only its part.
void Pool::give_up_parts(std::uintptr_t first, const Stretch& stretch, std::uint64_t bytes) {
  Error unheard;
  for (std::uint64_t done = 0; done < bytes; done += stretch.part)
    (void)backend_->unregister_memory(reinterpret_cast<void*>(first + done), std::min(stretch.part, bytes - done),
                                      unheard);
}

Status Pool::unregister_parts(std::uintptr_t first, const Stretch& stretch, std::uint64_t& left, Error& error) {
  for (left = stretch.bytes; left != 0;) {
    const std::uint64_t begin = (left - 1) / stretch.part * stretch.part;
    if (const Status s = backend_->unregister_memory(reinterpret_cast<void*>(first + begin), left - begin, error);
        s != FEEDLANE_OK)
      return s;
    left = begin;
  }
  return FEEDLANE_OK;
}

Status Pool::unregister_memory(void* address, Owner owner, Error& error) {
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(address) / page_bytes() * page_bytes();
  Stretch stretch{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = registered_.find(first);
    if (found == registered_.end() || !found->second.is_settled || found->second.owner != owner)
      return error.refuse(FEEDLANE_E_ARGUMENT, "address", 0, 0, "no memory is registered at this address");
    found->second.is_settled = false;
    stretch = found->second;
  }
  std::uint64_t left = 0;
  const Status s = unregister_parts(first, stretch, left, error);
  const std::lock_guard lock(mutex_);
  set_bytes(first, left);
  return s;
}

void Pool::set_bytes(std::uintptr_t first, std::uint64_t bytes) {
  const auto found = registered_.find(first);
  counters_.registered_bytes -= found->second.bytes - bytes;
  found->second.bytes = bytes;
  found->second.is_settled = true;
  if (bytes == 0) registered_.erase(found);
}

// The registration that begins at or before this address; the end: there is none.
std::map<std::uintptr_t, Pool::Stretch>::const_iterator Pool::find_before(std::uintptr_t at) const {
  const auto after = registered_.upper_bound(at);
  return after == registered_.begin() ? registered_.end() : std::prev(after);
}

// The bytes from this address to the end of its part; UINT64_MAX: it isn't registered.
std::uint64_t Pool::left_of_part(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  const auto found = find_before(at);
  if (found == registered_.end()) return UINT64_MAX;
  const auto& [first, stretch] = *found;
  const std::uint64_t offset = at - first;
  if (offset >= stretch.bytes) return UINT64_MAX;
  return std::min(stretch.part - offset % stretch.part, stretch.bytes - offset);
}

bool Pool::covers(const void* address, std::uint64_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  const auto found = find_before(at);
  if (found == registered_.end()) return false;
  const auto& [first, stretch] = *found;
  const std::uint64_t offset = at - first;
  return stretch.is_settled && offset <= stretch.bytes && bytes <= stretch.bytes - offset &&
         bytes <= stretch.part - offset % stretch.part;
}

feedlane_pool_stats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  feedlane_pool_stats s = counters_;
  s.size = sizeof s;
  s.buffers = buffers_.size();
  return s;
}

// ---- destruction ----

void Pool::defer(Deferred& object) {
  const std::lock_guard lock(mutex_);
  object.next = deferred_;
  deferred_ = &object;
}

void Pool::clean_up() {
  Deferred* list = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::swap(list, deferred_);
  }
  while (list != nullptr) {
    const std::unique_ptr<Deferred> one(list);
    list = list->next;
  }
}

Status Pool::check_idle(Error& error) {
  // Acquire: pairs with the release in ~Callback. Sleeps: a caller with a realtime priority would keep a callback on
  // its processor from ending.
  while (callbacks_.load(std::memory_order_acquire) != 0) std::this_thread::sleep_for(callback_pause);
  clean_up();
  // Acquire: pairs with the release in remove_user.
  if (const std::uint32_t users = users_.load(std::memory_order_acquire); users != 0)
    return error.refuse(FEEDLANE_E_STATE, "p", users, 0, "the pool is in use by {} loaders", users);
  const std::lock_guard lock(mutex_);
  if (const std::uint64_t busy = counters_.in_use + counters_.pending; busy != 0)
    return error.refuse(FEEDLANE_E_STATE, "p", busy, 0, "{} buffers of the pool are in use", busy);
  return FEEDLANE_OK;
}

}  // namespace feedlane::pinned
