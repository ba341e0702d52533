// SPDX-License-Identifier: Apache-2.0
// feedlane/arena.h: owners and members of arenas.
#include "feedlane/arena.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>
#include <utility>

#include "arena/member.hpp"
#include "arena/owner.hpp"
#include "handle.hpp"
#include "loader.hpp"
#include "os/socket.hpp"

using namespace feedlane;
using namespace feedlane::capi;

// An arena in the place of a loader.
struct feedlane::capi::ArenaSource final : loader::Source {
  Status begin(std::int64_t, Error& error) override { return refuse(error); }
  Status next(std::int64_t timeout_ns, feedlane_batch& out, Error& error) override {
    return member->receive(os::Deadline::after(timeout_ns), out, error);
  }
  Status poll(Error& error) override { return member->poll(error); }
  Status arm(Error& error) override { return member->arm(error); }
  [[nodiscard]] int wait_fd() const override { return member->wait_fd(); }
  Status state(std::uint64_t, std::vector<std::byte>&, Error& error) override { return refuse(error); }
  Status stop(bool for_good, Error& error) override {
    if (!for_good) return refuse(error);
    // Their waits have ended, but each thread must still run to return. Acquire: pairs with the release in Call.
    for (timespec nap{0, 50'000}; calls.load(std::memory_order_acquire) != 0;) (void)::nanosleep(&nap, nullptr);
    abandon();
    return FEEDLANE_OK;
  }
  void abandon() noexcept override { member->leave(owner); }
  void ask_to_end() noexcept override {}
  void interrupt() override { member->interrupt(); }
  void close() override { member->close(); }
  [[nodiscard]] lending::Leases& leases() override { return member->leases(); }
  bool next_event(feedlane_event& out) override { return events.pop(out); }
  // Those of loaders. An arena has feedlane_arena_get_stats.
  [[nodiscard]] feedlane_stats stats() const override { return zeros<feedlane_stats>(); }
  [[nodiscard]] feedlane_loader_info info() const override { return zeros<feedlane_loader_info>(); }

  template <class T>
  static T zeros() {
    T object{};
    object.size = sizeof object;
    return object;
  }
  static Status refuse(Error& error) { return error.fail(FEEDLANE_E_STATE, "not available on an arena"); }

  std::atomic<std::uint32_t> calls{0};
  monitor::EventQueue events;
  std::unique_ptr<arena::Owner> owner;  // nullptr: a member in another process
  std::unique_ptr<arena::Member> member;
};

namespace {

// A call of any thread. It keeps the handle, and destroy waits until it does not touch the caller's memory any more.
class Call {
 public:
  explicit Call(feedlane_arena& a) : hold_(a), source_(a.arena) {
    // Relaxed: a call that begins while the arena ends finds it closed.
    if (source_ != nullptr) source_->calls.fetch_add(1, std::memory_order_relaxed);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { end(); }
  // The batch that was yielded keeps the handle from now on. Nothing may follow.
  void pass_on() {
    end();
    (void)hold_.pass_on();
  }

 private:
  void end() {
    if (source_ != nullptr) std::exchange(source_, nullptr)->calls.fetch_sub(1, std::memory_order_release);
  }
  lending::Hold hold_;
  ArenaSource* source_;
};

// For a function that any thread may call at any time.
template <class F>
int32_t call_arena(feedlane_arena* a, feedlane_error* err, F&& f) noexcept {
  std::optional<Call> current;  // until `err` was written
  if (a != nullptr) current.emplace(*a);
  return call_any(a, "a", err, [&](Error& error) {
    if (a->arena == nullptr) return error.fail(FEEDLANE_E_STATE, "the handle is not of an arena");
    const Status s = f(*a->arena->member, *current, error);
    return s == FEEDLANE_INTERRUPTED && a->is_closed() ? refuse_closed(*a, error) : s;
  });
}

// For a function that yields a batch, which has the call's hold on the handle from then on.
template <class F>
int32_t call_batch(feedlane_arena* a, int64_t timeout_ns, feedlane_batch* out, feedlane_error* err, F&& f) noexcept {
  return call_arena(a, err, [&](arena::Member& member, Call& current, Error& error) {
    Status s = check_batch(out, error);
    if (s == FEEDLANE_OK) s = check_timeout(timeout_ns, error);
    if (s != FEEDLANE_OK) return s;
    feedlane_batch batch;
    s = f(member, os::Deadline::after(timeout_ns), batch, error);
    if (s != FEEDLANE_OK) return s;
    write_versioned(out, batch);
    current.pass_on();
    return s;
  });
}

// Gives the caller a handle of this arena.
Status hand_out(std::unique_ptr<ArenaSource> source, feedlane_arena** out, Error& error) {
  auto handle = std::make_unique<feedlane_loader>();
  if (const Status s = handle->stamp.take(error); s != FEEDLANE_OK) return s;
  handle->arena = source.get();
  handle->source = std::move(source);
  handle->source->leases().use(*handle);
  *out = handle.release();
  return FEEDLANE_OK;
}

Status check_key(const void* key, uint64_t key_bytes, Error& error) {
  if (key == nullptr) return refuse_null(error, "key");
  if (key_bytes >= 1 && key_bytes <= FEEDLANE_MAX_KEY_BYTES) return FEEDLANE_OK;
  return error.refuse(FEEDLANE_E_ARGUMENT, "key_bytes", key_bytes, key_bytes == 0 ? 1 : FEEDLANE_MAX_KEY_BYTES,
                      "key_bytes is {}: must be 1 to {}", key_bytes, FEEDLANE_MAX_KEY_BYTES);
}

Status check_put(const feedlane_put& put, Error& error) {
  if (put.reserved != 0)
    return error.refuse(FEEDLANE_E_ARGUMENT, "put.reserved", put.reserved, 0, "put.reserved must be zero");
  if (put.key == nullptr && put.key_bytes != 0) return refuse_null(error, "put.key");
  if (put.key != nullptr)
    if (const Status s = check_key(put.key, put.key_bytes, error); s != FEEDLANE_OK) return s;
  if (put.field_count != 0 && put.fields == nullptr) return refuse_null(error, "put.fields");
  if (put.metadata_bytes != 0 && put.metadata == nullptr) return refuse_null(error, "put.metadata");
  if (put.metadata_bytes > shm::max_arena_bytes)
    return error.refuse(FEEDLANE_E_LIMIT, "put.metadata_bytes", put.metadata_bytes, shm::max_arena_bytes,
                        "put.metadata_bytes is {}: must be at most {}", put.metadata_bytes, shm::max_arena_bytes);
  if (put.pinned < 0 || put.pinned > 1)
    return error.refuse(FEEDLANE_E_ARGUMENT, "put.pinned", put.pinned, 1, "put.pinned is {}: must be 0 or 1",
                        put.pinned);
  if (put.pinned == 1 && put.key == nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, "put.pinned", 1, 0,
                        "put.pinned is 1, but the entry has no key, so it is not stored");
  return FEEDLANE_OK;
}

Status plan_of(const feedlane_arena_config& c, shm::ArenaPlan& plan, Error& error) {
  shm::ArenaGeometry g{};
  if (c.members > shm::max_arena_members - 1)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.members", c.members, shm::max_arena_members - 1,
                        "config.members is {}: must be at most {}", c.members, shm::max_arena_members - 1);
  if (c.when_full < FEEDLANE_FULL_EVICT || c.when_full > FEEDLANE_FULL_FAIL)
    return error.refuse(FEEDLANE_E_ARGUMENT, "config.when_full", c.when_full, FEEDLANE_FULL_FAIL,
                        "config.when_full is {}: must be one of FEEDLANE_FULL_...", c.when_full);
  constexpr std::uint64_t per_entry = 64 * 1024;
  g.bytes = c.bytes;
  g.entries = c.entries;
  if (g.entries == 0)
    g.entries =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(c.bytes / per_entry, 1024, shm::max_arena_entries));
  g.buckets = std::bit_ceil(std::min(g.entries, shm::max_arena_entries));
  g.members = (c.members == 0 ? 16 : c.members) + 1;
  g.segments = 4 * g.members + 16;
  g.leases = c.leases == 0 ? 1024 : c.leases;
  return shm::make_arena_plan(g, plan, error);
}

}  // namespace

extern "C" {

int32_t feedlane_arena_create(const feedlane_arena_config* config, feedlane_arena** out, feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    if (out == nullptr) return refuse_null(error, "out");
    feedlane_arena_config c;
    Status s = read_versioned(config, c, "config", error);
    if (s == FEEDLANE_OK && c.path != nullptr) s = check_path(c.path, "config.path", error);
    shm::ArenaPlan plan;
    if (s == FEEDLANE_OK) s = plan_of(c, plan, error);
    if (s != FEEDLANE_OK) return s;
    auto source = std::make_unique<ArenaSource>();
    os::Fd socket;
    s = arena::Owner::create(plan, c.when_full, c.path == nullptr ? "" : c.path, os::SystemFiles{}, source->events,
                             source->owner, error);
    if (s == FEEDLANE_OK) s = source->owner->offer(false, socket, error);
    if (s == FEEDLANE_OK)
      s = arena::Member::join(std::move(socket), source->owner.get(), source->events, os::Deadline::never(),
                              source->member, error);
    return s == FEEDLANE_OK ? hand_out(std::move(source), out, error) : s;
  });
}

int32_t feedlane_arena_offer(feedlane_arena* a, int32_t* fd, feedlane_error* err) {
  return call_arena(a, err, [&](arena::Member& member, Call&, Error& error) {
    if (fd == nullptr) return refuse_null(error, "fd");
    os::Fd theirs;
    const Status s = member.offer(theirs, error);
    if (s == FEEDLANE_OK) *fd = theirs.release();
    return s;
  });
}

int32_t feedlane_arena_join(int32_t fd, const char* path, int64_t timeout_ns, feedlane_arena** out,
                            feedlane_error* err) {
  if (out != nullptr) *out = nullptr;
  return call(err, [&](Error& error) -> Status {
    os::Fd socket;
    Status s = take_descriptor_or(path, "path", fd, socket, error);
    if (s != FEEDLANE_OK) return s;
    if (out == nullptr) return refuse_null(error, "out");
    s = check_timeout(timeout_ns, error);
    if (s == FEEDLANE_OK && path != nullptr) s = check_path(path, "path", error);
    if (s != FEEDLANE_OK) return s;
    const os::Deadline deadline = os::Deadline::after(timeout_ns);
    if (path != nullptr) s = os::connect_to(path, deadline, socket, error);
    if (s != FEEDLANE_OK) return s;
    auto source = std::make_unique<ArenaSource>();
    s = arena::Member::join(std::move(socket), nullptr, source->events, deadline, source->member, error);
    return s == FEEDLANE_OK ? hand_out(std::move(source), out, error) : s;
  });
}

int32_t feedlane_arena_reserve(feedlane_arena* a, const feedlane_put* put, int64_t timeout_ns, feedlane_batch* out,
                               feedlane_error* err) {
  return call_batch(a, timeout_ns, out, err,
                    [&](arena::Member& member, os::Deadline deadline, feedlane_batch& batch, Error& error) {
                      feedlane_put p;
                      Status s = read_versioned(put, p, "put", error);
                      if (s == FEEDLANE_OK) s = check_put(p, error);
                      return s == FEEDLANE_OK ? member.reserve(p, deadline, batch, error) : s;
                    });
}

int32_t feedlane_arena_publish(feedlane_arena* a, uint64_t token, int64_t timeout_ns, feedlane_error* err) {
  return call_arena(a, err, [&](arena::Member& member, Call&, Error& error) {
    const Status s = check_timeout(timeout_ns, error);
    return s == FEEDLANE_OK ? member.publish(token, os::Deadline::after(timeout_ns), error) : s;
  });
}

int32_t feedlane_arena_get(feedlane_arena* a, const void* key, uint64_t key_bytes, int32_t flags, int64_t timeout_ns,
                           feedlane_batch* out, feedlane_error* err) {
  return call_batch(
      a, timeout_ns, out, err, [&](arena::Member& member, os::Deadline deadline, feedlane_batch& batch, Error& error) {
        const Status s = check_key(key, key_bytes, error);
        if (s != FEEDLANE_OK) return s;
        if ((flags & ~FEEDLANE_GET_MAKE) != 0)
          return refuse(error, "flags", flags, FEEDLANE_GET_MAKE, "must be 0 or FEEDLANE_GET_MAKE");
        return member.get(arena::Key(key, key_bytes), (flags & FEEDLANE_GET_MAKE) != 0, deadline, batch, error);
      });
}

int32_t feedlane_arena_receive(feedlane_arena* a, int64_t timeout_ns, feedlane_batch* out, feedlane_error* err) {
  const auto receive = [](arena::Member& member, os::Deadline deadline, feedlane_batch& batch, Error& error) {
    return member.receive(deadline, batch, error);
  };
  if (out != nullptr) return call_batch(a, timeout_ns, out, err, receive);
  return call_arena(a, err, [&](arena::Member& member, Call&, Error& error) {
    const Status s = check_timeout(timeout_ns, error);
    return s == FEEDLANE_OK ? member.serve(os::Deadline::after(timeout_ns), error) : s;
  });
}

int32_t feedlane_arena_drop(feedlane_arena* a, const void* key, uint64_t key_bytes, int64_t timeout_ns,
                            feedlane_error* err) {
  return call_arena(a, err, [&](arena::Member& member, Call&, Error& error) {
    Status s = check_key(key, key_bytes, error);
    if (s == FEEDLANE_OK) s = check_timeout(timeout_ns, error);
    return s == FEEDLANE_OK ? member.drop(arena::Key(key, key_bytes), os::Deadline::after(timeout_ns), error) : s;
  });
}

int32_t feedlane_arena_arm(feedlane_arena* a, int32_t* fd) {
  return call_arena(a, nullptr, [&](arena::Member& member, Call&, Error& error) {
    if (fd != nullptr) *fd = member.wait_fd();
    return member.arm(error);
  });
}

int32_t feedlane_arena_get_stats(feedlane_arena* a, feedlane_arena_stats* out) {
  return call_arena(a, nullptr, [&](arena::Member& member, Call&, Error& error) {
    const Status s = check_output(out, "out", error);
    if (s != FEEDLANE_OK) return s;
    feedlane_arena_stats stats{};
    member.fill_in(stats);
    write_versioned(out, stats);
    return s;
  });
}

int32_t feedlane_arena_destroy(feedlane_arena** a) { return feedlane_loader_destroy(a); }

}  // extern "C"
