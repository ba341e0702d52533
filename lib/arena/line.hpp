// SPDX-License-Identifier: Apache-2.0
// A member's line to its owner: the rings between them, the socket, and how the threads of this process wait.
//
// Everything but `interrupt` and `close` is called under the lock, which belongs to this process. Of the threads that
// wait, one, the leader, sleeps on descriptors without the lock, and handles what comes; the others wait for it. In the
// owner's process the leader serves the members.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "arena/owner.hpp"
#include "base/error.hpp"
#include "greeting/arena.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/socket.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "ring/waiter.hpp"
#include "shm/arena_layout.hpp"
#include "shm/segment.hpp"

namespace feedlane::arena {

// What a thread waits for.
enum class Need { answer, cell, delivery, settlement, service, count };

class Line {
 public:
  static constexpr Status not_yet = INT32_MIN;  // no status of the interface
  using Lock = std::unique_lock<std::mutex>;

  // `owner`: that of this process, or nullptr.
  explicit Line(Owner* owner) : is_of_owner_(owner != nullptr), owner_(owner) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line();

  // ---- joining ----

  // Takes what the welcome has brought.
  Status take(os::Received& received, const shm::SegmentPair& pair, const shm::SegmentPair& control,
              const shm::ArenaPlan& plan, Error& error);
  // Attaches to the owner. Owns the socket from here on.
  Status open(os::Fd socket, bool wants_pidfd, os::Deadline deadline, Error& error);
  [[nodiscard]] bool is_open() const { return static_cast<bool>(socket_); }
  // Called once after `close`, without the lock. Ends the owner of this process, if it has one.
  void leave(std::unique_ptr<Owner>& owner) noexcept;
  // Asks for another member's segment. AGAIN: it is gone. E_HUNG.
  Status get_segment(std::uint32_t segment, std::uint32_t generation, os::Fd& fd, Error& error);

  // ---- waiting ----

  [[nodiscard]] Lock lock();
  // Any thread, without the lock, and `interrupt` in any signal handler.
  void interrupt();
  void close();

  // Repeats `try_it` until it returns something other than not_yet, or the deadline has passed.
  template <class Try>
  Status wait_for(Lock& lock, Need need, os::Deadline deadline, Try&& try_it, Error& error) {
    for (bool is_last = false;; is_last = deadline.remaining_ns() == 0) {  // ends even if the owner rings without end
      pump();
      Status s = try_it();
      if (s == not_yet) s = obstacle(error);
      if (s != not_yet) return s;
      if (is_last) return FEEDLANE_TIMEOUT;
      s = sleep(lock, need, deadline, error);
      if (s != FEEDLANE_OK && s != FEEDLANE_TIMEOUT) return s;
    }
  }
  // Takes what has come.
  void pump();
  // The reason why a wait ends without success. not_yet: there is none.
  Status obstacle(Error& error);
  Status arm(Error& error);
  [[nodiscard]] int wait_fd() { return waiter().fd(); }
  [[nodiscard]] Owner* owner() { return owner_; }
  // Any thread, without the lock.
  [[nodiscard]] bool is_of_owner() const { return is_of_owner_; }
  // Whether a thread sleeps on the descriptors.
  [[nodiscard]] bool is_asleep() const { return leader_.has_value(); }
  // A lease has ended: the owner may be short of memory. Any thread, without the lock.
  void ring() const { (void)bell_.ring(); }

  // ---- messages ----

  // False: the ring has no room.
  bool try_send(const shm::ArenaRequest& request);
  // Sends the request now, or as soon as the ring has room.
  void send_later(const shm::ArenaRequest& request);
  Status send(Lock& lock, const shm::ArenaRequest& request, os::Deadline deadline, Error& error);
  // Sends a request and waits until it is answered. If that fails, sends `cancel` for it.
  Status ask(Lock& lock, shm::ArenaRequest& request, shm::ArenaRequestKind cancel, os::Deadline deadline,
             shm::ArenaAnswer& answer, Error& error);
  // Any thread, without the lock: whether the owner has handled every request that changes an entry.
  [[nodiscard]] bool is_settled() const {
    // Relaxed: a thread that has published itself sees its own store. Acquire: pairs with the release in ring::Consumer:
    // the owner has changed the index before it passes the request.
    const std::uint64_t changed = changed_through_.load(std::memory_order_relaxed);
    return changed == 0 || words_->request_position.load(std::memory_order_acquire) >= changed;
  }
  // The request that was sent last changes an entry.
  void note_change() { changed_through_.store(requests_.position(), std::memory_order_relaxed); }
  std::uint64_t next_ticket() { return ++last_ticket_; }
  // An answer for which no thread waits. False: there is none.
  bool take_late(shm::ArenaAnswer& answer);
  [[nodiscard]] ring::Consumer& deliveries() { return deliveries_; }

 private:
  // A request that a thread waits for.
  struct Pending {
    std::uint64_t ticket = 0;
    bool is_answered = false;
    shm::ArenaAnswer answer{};
    Pending* next = nullptr;
  };
  // Counts a thread that waits, and makes it the leader if there is none; serving may throw.
  class Waiting {
   public:
    Waiting(Line& line, Need need);
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting();

   private:
    Line& line_;
    Need need_;
    bool leads_;
  };
  Status sleep(Lock& lock, Need need, os::Deadline deadline, Error& error);
  [[nodiscard]] bool needs(Need need) const { return needs_[static_cast<std::size_t>(need)] != 0; }
  [[nodiscard]] bool has_news(Need own);
  void take_answer(const shm::ArenaAnswer& answer);
  void handle(const os::Poller::Event& event);
  void flush();
  [[nodiscard]] ring::Waiter& waiter() { return owner_ != nullptr ? owner_->waiter() : waiter_; }

  struct {
    std::mutex mutex;
    std::atomic<std::uint32_t> wanted{0};  // threads that wait for it
  } lock_;
  const bool is_of_owner_;
  Owner* owner_;  // nullptr after its end too
  os::Fd socket_;
  struct Descriptors {
    os::Fd own_event;
    os::Fd owner_event;
    os::Fd owner;  // pidfd
    os::Fd wake_event;
  } fds_;
  const shm::ArenaAnswers* words_ = nullptr;
  ring::Waiter waiter_;
  ring::SleepFlag* sleeping_ = nullptr;
  ring::Producer requests_;
  ring::Consumer answers_;
  ring::Consumer deliveries_;
  ring::Doorbell bell_;
  std::condition_variable changed_;
  std::optional<Need> leader_;  // what the leader waits for, while there is one
  std::array<std::uint32_t, static_cast<std::size_t>(Need::count)> needs_{};  // threads that wait for each
  bool is_owner_gone_ = false;
  Pending* pending_ = nullptr;
  std::vector<shm::ArenaAnswer> late_;
  std::vector<shm::ArenaRequest> unsent_;  // for which the ring had no room
  std::uint64_t last_ticket_ = 0;
  std::uint32_t outstanding_ = 0;  // requests of threads that wait
  std::int64_t polled_ns_ = 0;
  std::atomic<std::uint64_t> changed_through_{0};
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace feedlane::arena
