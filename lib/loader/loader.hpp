// SPDX-License-Identifier: Apache-2.0
// The trainer's side. One thread at a time drives it; it has no thread of its own, so deaths are found and workers are
// replaced inside next, poll, begin and stop.
//
//   loader.cpp    the life of a handle: create, begin, next, stop
//   dispatch.cpp  sampler -> ledger -> task rings; result lanes -> ledger
//   recovery.cpp  workers: start, hear, lose, replace, end
//   inline.cpp    no workers: the data set runs in next
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "arena/slot_table.hpp"
#include "base/error.hpp"
#include "loader/config.hpp"
#include "loader/events.hpp"
#include "loader/ledger.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "ring/doorbell.hpp"
#include "ring/lanes.hpp"
#include "shm/segment.hpp"
#include "worker/peer.hpp"
#include "worker/task.hpp"

namespace feedlane::loader {

// What isn't a worker's in the trainer's poller.
constexpr std::uint64_t wake_tag = UINT64_MAX;
constexpr std::uint64_t timer_tag = UINT64_MAX - 1;

// Read from any thread while one adds: relaxed, numbers to look at.
struct Counters {
  std::atomic<std::uint64_t> batches{0}, samples{0}, bytes{0}, epochs{0}, wait_ns{0}, restarts{0}, redispatched{0},
      quarantined{0}, invalid_results{0}, late_results{0};
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount = 1) {
    counter.fetch_add(amount, std::memory_order_relaxed);
  }
};

// What a forked worker runs: attaches by `fd`, works with the data set. Returns the exit status.
using ForkedMain = int (*)(int fd, const feedlane_dataset& dataset);

class Loader {
 public:
  static Status create(const feedlane_loader_config* config, const Sampler* sampler, ForkedMain forked_main,
                       const os::SystemFiles& files, std::unique_ptr<Loader>& out, Error& error);

  Status begin(std::int64_t epoch, Error& error);
  Status next(std::int64_t timeout_ns, feedlane_batch& out, Error& error);
  Status poll(Error& error);
  Status arm(Error& error);
  [[nodiscard]] int wait_fd() const { return poller_.fd(); }
  void interrupt();  // any thread, any signal handler
  Status stop(Error& error);
  Status open_worker(std::int32_t& id, os::Fd& fd, Error& error);
  // Thread mode, any thread: the socket of a worker that is missing. END: none is.
  Status take_offer(os::Fd& fd, Error& error);
  [[nodiscard]] const shm::Segments& segments() const { return segments_; }
  [[nodiscard]] const feedlane_dataset* dataset() const { return config_.has_dataset ? &config_.table : nullptr; }
  bool next_event(feedlane_event& out) { return events_.pop(out); }

  // Any thread. After the last stop too, as long as the loader exists.
  Status retain(std::uint64_t token) { return slots_.retain(token); }
  // `freed` is set when this was the last reference.
  Status release(std::uint64_t token, bool& freed);
  [[nodiscard]] std::uint32_t held() const { return slots_.held(); }

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] feedlane_stats stats() const;
  Status worker_stats(std::int32_t worker, feedlane_worker_stats& out) const;

 private:
  Loader() = default;

  // loader.cpp
  Status set_up(const os::SystemFiles& files, Error& error);
  Status set_up_workers(const os::SystemFiles& files, Error& error);
  Status yield(feedlane_batch& out, Error& error);
  Status hand_out(std::uint32_t slot, std::int32_t worker, feedlane_batch& out);
  Status finish_epoch(os::Deadline deadline, Error& error);
  [[nodiscard]] bool front_is_done();
  // What keeps `next` from ever yielding, if anything does: SLOTS_HELD, E_PEER_DEAD, a failure of the loader.
  Status obstacle(Error& error);
  Status wait(os::Deadline deadline, Error& error);
  Status take_news(Error& error);
  [[nodiscard]] bool something_to_do() const;
  [[nodiscard]] bool next_has_news();
  void sleeper_cancel();
  [[nodiscard]] arena::Slot slot(std::uint32_t slot) const;

  // dispatch.cpp
  Status pull(std::uint32_t slot, std::uint32_t& rows, Error& error);
  Status dispatch(Error& error);
  [[nodiscard]] bool can_pull() const;
  void assign_pending();
  [[nodiscard]] worker::Peer* choose_worker();
  void sweep();
  void take_result(std::uint32_t worker, const shm::ResultMessage& result);
  Status read_result(Record& record, std::uint32_t slot, const shm::ResultMessage& result, Error& error);
  void abandon_epoch();

  // recovery.cpp
  Status start_missing(Error& error);
  Status start(std::uint32_t worker, Error& error);
  Status start_forked(std::uint32_t worker, os::Fd theirs, Error& error);
  Status open_channel(std::uint32_t worker, os::Fd& theirs, Error& error);
  void handle(const os::Poller::Event& event);
  void hear(std::uint32_t worker);
  void drain_lane(std::uint32_t worker);
  void hear_last_words(std::uint32_t worker);
  void lose(std::uint32_t worker);
  // Returns the batch that the worker had in hand, -1: none.
  std::int64_t take_back_tasks(std::uint32_t worker);
  void tell_of_death(std::uint32_t worker, const char* how, pid_t pid, std::int64_t batch);
  void replace(std::uint32_t worker, bool had_attached, const char* how, pid_t pid);
  void fail(const Error& error);
  void check_start_deadlines();
  [[nodiscard]] os::Deadline next_start_deadline() const;
  [[nodiscard]] bool any_there() const;
  [[nodiscard]] bool any_ending() const;
  void ask_all_to_end();
  Status end_workers(Error& error);
  Status wait_for_ends(os::Deadline deadline, bool interruptible, Error& error);

  // inline.cpp
  Status begin_inline(Error& error);
  Status next_inline(os::Deadline deadline, feedlane_batch& out, Error& error);
  void drop_inline();

  Config config_;
  std::int64_t length_ = 0;  // batches an epoch
  shm::Segments segments_;
  arena::SlotTable slots_;
  Ledger ledger_;
  Counters counters_;
  EventQueue events_;
  ForkedMain forked_main_ = nullptr;

  // the epoch
  bool begun_ = false;
  bool exhausted_ = false;  // the sampler has no more
  bool stopping_ = false;
  std::int64_t epoch_ = 0;
  std::int64_t next_batch_ = 0;
  std::int64_t next_position_ = 0;
  std::uint32_t pending_ = 0;  // records in state pending
  std::uint32_t abandoned_ = 0;
  bool failure_told_ = false;
  Error failure_;  // of the loader, told by every next until begin; code OK: none

  // workers
  std::vector<worker::Peer> peers_;
  std::vector<bool> to_ring_;
  std::size_t last_chosen_ = 0;
  ring::Lanes lanes_;
  ring::Sleeper sleeper_;
  os::Poller poller_;
  os::Fd wake_event_;  // interrupt and releases
  os::Fd timer_;       // the next start deadline, for those who sleep in a loop of their own
  os::Fd self_;        // pidfd of this process
  std::mutex offers_mutex_;
  std::vector<os::Fd> offers_;  // thread mode: sockets that no thread has taken yet
  std::atomic<bool> interrupted_{false};
  Error unheard_;  // where errors go that have been acted on

  // inline
  worker::Task inline_task_;
  std::uint32_t inline_slot_ = 0;
  std::uint64_t inline_row_ = 0;
};

}  // namespace feedlane::loader
