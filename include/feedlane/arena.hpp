// SPDX-License-Identifier: Apache-2.0
/** @file arena.hpp Arenas: tensors in shared memory that all processes of a machine can put and get. See arena.h. */
#pragma once

#include "language.hpp"
#if FEEDLANE_CXX20

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "error.hpp"
#include "tensor.hpp"

namespace feedlane {
inline namespace v1 {

/** What a put does if there is no free memory. */
enum class Full : std::int32_t {
  evict = FEEDLANE_FULL_EVICT, /**< evict entries with a key, least recently used first; if there are none, wait */
  wait = FEEDLANE_FULL_WAIT,   /**< wait until memory is released */
  fail = FEEDLANE_FULL_FAIL    /**< fail with E_LIMIT */
};

/** An aggregate for designated initialisers. The defaults are those of feedlane_arena_config. */
struct ArenaOptions {
  std::uint64_t bytes = 0;      /**< memory for entries, at least 64 KiB; an entry may take a third of it */
  std::uint32_t members = 0;    /**< processes besides the owner at the same time; 0: 16 */
  std::uint32_t entries = 0;    /**< entries at the same time; 0: one per 64 KiB, at least 1024 */
  std::uint32_t leases = 0;     /**< batches that one process may hold; 0: 1024 */
  Full when_full = Full::evict; /**< what a put does if there is no free memory */
  std::string path{};           /**< a Unix socket to create, where members may join; empty: none */
};

/** An entry to put. */
struct Put {
  std::string_view key{};                /**< 1 to 64 bytes; empty: the entry is sent, not stored */
  std::vector<Field> fields{};           /**< name, type and complete shape of each tensor */
  std::span<const std::byte> metadata{}; /**< copied */
  bool pinned = false;                   /**< never evicted, only dropped */
};

/** The owner's or a member's end of an arena. Move-only. Thread safety: any thread. */
class Arena {
 public:
  /** Creates an arena and its owner. Throws. */
  explicit Arena(const ArenaOptions& o) {
    detail::or_raise([&](Error& error) { create(o, error); });
  }
  /** Non-throwing form. Check `error`: after a failure every call fails. */
  Arena(const ArenaOptions& o, Error& error) noexcept { create(o, error); }
  /** Takes ownership of a handle of the C interface. */
  explicit Arena(feedlane_arena* handle) noexcept : handle_(handle) {}
  /** Becomes a member through the descriptor of an offer, which it takes over. Throws. */
  static Arena join(int fd, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    return detail::or_raise([&](Error& error) { return join(fd, timeout, error); });
  }
  /** Non-throwing form. Check `error`: after a failure every call fails. */
  static Arena join(int fd, std::chrono::nanoseconds timeout, Error& error) noexcept {
    return join(fd, nullptr, timeout, error);
  }
  /** Becomes a member through the socket at `path`. Throws. */
  static Arena join(const std::string& path, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    return detail::or_raise([&](Error& error) { return join(path, timeout, error); });
  }
  /** Non-throwing form. Check `error`: after a failure every call fails. */
  static Arena join(const std::string& path, std::chrono::nanoseconds timeout, Error& error) noexcept {
    return join(-1, path.c_str(), timeout, error);
  }
  /** Every later call of `other` fails. */
  Arena(Arena&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  /** Swaps the two objects. */
  Arena& operator=(Arena&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  /** Leaves the arena; the owner ends it. Batches that are held stay valid. */
  ~Arena() { (void)feedlane_arena_destroy(&handle_); }

  /** Returns a connected socket for one member, which the caller owns; -1: an error. */
  [[nodiscard]] int offer(Error& error) noexcept {
    std::int32_t fd = -1;
    detail::checked(error, [&](feedlane_error* e) { return feedlane_arena_offer(handle_, &fd, e); });
    return fd;
  }
  /** Throwing form of the above. */
  [[nodiscard]] int offer() {
    return detail::or_raise([&](Error& error) { return offer(error); });
  }
  /** Reserves memory for an entry, whose tensors the caller fills. Pass the batch to publish, or drop it. nullopt: there
   *  was no memory in time, or this process holds too many batches (E_LIMIT and SLOTS_HELD in `error`). */
  [[nodiscard]] std::optional<Batch> reserve(const Put& put, std::chrono::nanoseconds timeout, Error& error) {
    const std::vector<feedlane_field> fields = detail::c_fields(put.fields);
    auto c = detail::sized<feedlane_put>();
    c.key = put.key.empty() ? nullptr : put.key.data();
    c.key_bytes = put.key.size();
    c.fields = fields.empty() ? nullptr : fields.data();
    c.field_count = fields.size();
    c.metadata = put.metadata.empty() ? nullptr : put.metadata.data();
    c.metadata_bytes = put.metadata.size();
    c.pinned = put.pinned ? 1 : 0;
    return yielded(error, [&](feedlane_batch* batch, feedlane_error* e) {
      return feedlane_arena_reserve(handle_, &c, timeout.count(), batch, e);
    });
  }
  /** Throwing form of the above, by default without a timeout. */
  [[nodiscard]] std::optional<Batch> reserve(const Put& put,
                                             std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return reserve(put, timeout, error); });
  }
  /** Publishes a reservation, complete or not at all. False: the owner has not taken earlier requests in time, and the
   *  reservation stays. Otherwise `batch` is empty afterwards. */
  bool publish(Batch&& batch, std::chrono::nanoseconds timeout, Error& error) noexcept {
    const std::int32_t s = detail::checked(
        error, [&](feedlane_error* e) { return feedlane_arena_publish(handle_, batch.token(), timeout.count(), e); });
    if (s == FEEDLANE_OK) batch.forget();
    return s == FEEDLANE_OK;
  }
  /** Throwing form of the above, by default without a timeout. */
  bool publish(Batch&& batch, std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return publish(std::move(batch), timeout, error); });
  }
  /** Gets the entry with this key, and waits for it if there is none. nullopt: there was none in time. */
  [[nodiscard]] std::optional<Batch> get(std::string_view key, std::chrono::nanoseconds timeout,
                                         Error& error) noexcept {
    std::int32_t unused = FEEDLANE_OK;
    return get(key, 0, timeout, unused, error);
  }
  /** Throwing form of the above. By default it does not wait. */
  [[nodiscard]] std::optional<Batch> get(std::string_view key,
                                         std::chrono::nanoseconds timeout = std::chrono::nanoseconds(0)) {
    return detail::or_raise([&](Error& error) { return get(key, timeout, error); });
  }
  /** Gets the entry with this key. If there is none, one process at a time may make it: then this returns nullopt and
   *  sets `may_make`. Put the entry, or give the right back by drop. Others wait for the entry, or for the right. */
  [[nodiscard]] std::optional<Batch> get_or_make(std::string_view key, bool& may_make, std::chrono::nanoseconds timeout,
                                                 Error& error) noexcept {
    std::int32_t status = FEEDLANE_OK;
    std::optional<Batch> batch = get(key, FEEDLANE_GET_MAKE, timeout, status, error);
    may_make = status == FEEDLANE_ABSENT;
    return batch;
  }
  /** Throwing form of the above, by default without a timeout. */
  [[nodiscard]] std::optional<Batch> get_or_make(std::string_view key, bool& may_make,
                                                 std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return get_or_make(key, may_make, timeout, error); });
  }
  /** Receives the next entry without a key that was sent to this process. nullopt: none came in time, or a signal or
   *  interrupt() ended the wait. */
  [[nodiscard]] std::optional<Batch> receive(std::chrono::nanoseconds timeout, Error& error) noexcept {
    return yielded(error, [&](feedlane_batch* batch, feedlane_error* e) {
      return feedlane_arena_receive(handle_, timeout.count(), batch, e);
    });
  }
  /** Throwing form of the above, by default without a timeout. */
  [[nodiscard]] std::optional<Batch> receive(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max()) {
    return detail::or_raise([&](Error& error) { return receive(timeout, error); });
  }
  /** The owner: serves members until the timeout, or until interrupt() or close(). */
  void serve(std::chrono::nanoseconds timeout, Error& error) noexcept {
    detail::checked(error,
                    [&](feedlane_error* e) { return feedlane_arena_receive(handle_, timeout.count(), nullptr, e); });
  }
  /** Throwing form of the above. */
  void serve(std::chrono::nanoseconds timeout) {
    detail::or_raise([&](Error& error) { serve(timeout, error); });
  }
  /** Drops the entry with this key, or gives the right to make it back. */
  void drop(std::string_view key, Error& error, std::chrono::nanoseconds timeout = std::chrono::seconds(60)) noexcept {
    detail::checked(error, [&](feedlane_error* e) {
      return feedlane_arena_drop(handle_, key.data(), key.size(), timeout.count(), e);
    });
  }
  /** Throwing form of the above. */
  void drop(std::string_view key) {
    detail::or_raise([&](Error& error) { drop(key, error); });
  }
  /** Prepares to sleep in an event loop. Returns the descriptor to poll for reading, which the arena owns; nullopt: call
   *  receive or serve now. */
  [[nodiscard]] std::optional<int> arm(Error& error) noexcept {
    std::int32_t fd = -1;
    const std::int32_t status =
        detail::checked(error, [&](feedlane_error*) { return feedlane_arena_arm(handle_, &fd); });
    if (status != FEEDLANE_OK) return std::nullopt;
    return fd;
  }
  /** Throwing form of the above. */
  [[nodiscard]] std::optional<int> arm() {
    return detail::or_raise([&](Error& error) { return arm(error); });
  }
  /** The state of the arena, and of this process in it. */
  [[nodiscard]] feedlane_arena_stats stats() const noexcept {
    auto stats = detail::sized<feedlane_arena_stats>();
    (void)feedlane_arena_get_stats(handle_, &stats);
    return stats;
  }
  /** The oldest unread event: members that ended or were cut off; nullopt: there is none. */
  std::optional<feedlane_event> event() noexcept {
    auto e = detail::sized<feedlane_event>();
    if (feedlane_loader_event(handle_, &e) != FEEDLANE_OK) return std::nullopt;
    return e;
  }
  /** Ends one wait. Also in signal handlers. */
  void interrupt() noexcept { (void)feedlane_loader_interrupt(handle_); }
  /** Ends all waits with E_STATE; later calls fail. */
  void close() noexcept { (void)feedlane_loader_close(handle_); }
  /** The handle for the C interface; this object still owns it. */
  [[nodiscard]] feedlane_arena* c() const noexcept { return handle_; }

 private:
  Arena() noexcept = default;
  void create(const ArenaOptions& o, Error& error) noexcept {
    auto c = detail::sized<feedlane_arena_config>();
    c.bytes = o.bytes;
    c.members = o.members;
    c.entries = o.entries;
    c.leases = o.leases;
    c.when_full = static_cast<std::int32_t>(o.when_full);
    c.path = o.path.empty() ? nullptr : o.path.c_str();
    detail::checked(error, [&](feedlane_error* e) { return feedlane_arena_create(&c, &handle_, e); });
  }
  static Arena join(int fd, const char* path, std::chrono::nanoseconds timeout, Error& error) noexcept {
    Arena arena;
    detail::checked(
        error, [&](feedlane_error* e) { return feedlane_arena_join(fd, path, timeout.count(), &arena.handle_, e); });
    return arena;
  }
  std::optional<Batch> get(std::string_view key, std::int32_t flags, std::chrono::nanoseconds timeout,
                           std::int32_t& status, Error& error) noexcept {
    return yielded(error, [&](feedlane_batch* batch, feedlane_error* e) {
      return status = feedlane_arena_get(handle_, key.data(), key.size(), flags, timeout.count(), batch, e);
    });
  }
  template <class Call>
  std::optional<Batch> yielded(Error& error, Call&& call) noexcept {
    auto batch = detail::sized<feedlane_batch>();
    const std::int32_t s = detail::checked(error, [&](feedlane_error* e) { return call(&batch, e); });
    if (s != FEEDLANE_OK) return std::nullopt;
    return Batch(handle_, batch);
  }

  feedlane_arena* handle_ = nullptr;
};

}  // namespace v1
}  // namespace feedlane

#endif
