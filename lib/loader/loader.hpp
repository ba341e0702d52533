// SPDX-License-Identifier: Apache-2.0
// The trainer's side. One thread at a time drives it; it has no thread of its own, so deaths are found and workers are
// replaced inside next, poll, begin and stop.
//
//   loader.cpp    the life of a handle: create, begin, next, stop
//   dispatch.cpp  sampler -> ledger -> task rings
//   resume.cpp    states: how far an epoch has come, and going on from there
//   results.cpp   result lanes -> ledger -> the trainer
//   recovery.cpp  workers: start, hear, lose, replace
//   waiting.cpp   how the trainer sleeps, and what wakes it
//   deadlines.cpp workers that don't attach or don't get on
//   ending.cpp    workers: ask to end, kill, wait for
//   conduct.cpp   workers that say what can't be
//   inline.cpp    no workers: the data set runs in next
//   device.cpp    registered memory: the arena, or buffers that batches are copied to; what dead workers left of slots
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "arena/slot_table.hpp"
#include "base/error.hpp"
#include "loader/config.hpp"
#include "loader/events.hpp"
#include "loader/ledger.hpp"
#include "loader/slot_memory.hpp"
#include "loader/staging.hpp"
#include "loader/state.hpp"
#include "loader/stats.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "ring/doorbell.hpp"
#include "ring/lanes.hpp"
#include "ring/spin.hpp"
#include "shm/segment.hpp"
#include "shm/words.hpp"
#include "worker/dataset.hpp"
#include "worker/peer.hpp"
#include "worker/task.hpp"

namespace feedlane::loader {

// What isn't a worker's in the trainer's poller.
constexpr std::uint64_t wake_tag = UINT64_MAX;
constexpr std::uint64_t timer_tag = UINT64_MAX - 1;

// How long a process may take to go after SIGKILL before what it had goes on elsewhere, and before `stop` gives up waiting.
constexpr std::int64_t patience_with_death_ns = 1'000'000'000;
constexpr std::int64_t longest_death_ns = 10'000'000'000;

// An iterable data set's share of one worker, as far as results have come. `progress_` has it as of the batches yielded.
struct Shard {
  bool fresh = true;       // its next task starts it over, or goes on behind `taken`
  bool exhausted = false;  // its next task needs no worker: there is nothing left
  std::uint64_t taken = 0;
  Blob state;
  bool lost_state = false;  // what was saved is behind: the batch since then failed, and saved nothing
  Error loss;               // its worker died and it can't be opened again: told once
};

// What a forked worker runs: attaches by `fd`, works with the data set, in its parent's view of data, `inherited`. Returns the
// exit status.
using ForkedMain = int (*)(int fd, const feedlane_dataset& dataset, shm::Segments& inherited);

class Loader {
 public:
  // `pool` is what config->pinned stands for.
  static Status create(const feedlane_loader_config* config, const Sampler* sampler, pinned::Pool* pool,
                       ForkedMain forked_main, const os::SystemFiles& files, std::unique_ptr<Loader>& out,
                       Error& error);

  Status begin(std::int64_t epoch, Error& error);
  // Of the epoch, as of the batch of `token`; 0: of the newest one yielded.
  Status state(std::uint64_t token, std::vector<std::byte>& out, Error& error);
  Status next(std::int64_t timeout_ns, feedlane_batch& out, Error& error);
  Status poll(Error& error);
  Status arm(Error& error);
  [[nodiscard]] int wait_fd() const { return poller_.fd(); }
  void interrupt();  // any thread, any signal handler
  Status stop(Error& error);
  // Any thread: from here on every wait of this loader ends with INTERRUPTED, but those of stop_for_good, and a thread that
  // copies returns. Nothing is waited for.
  void close();
  // In the loader's thread: the workers are asked to end, and none is waited for.
  void ask_workers_to_end() noexcept;
  // What `stop` does, though the loader was closed.
  Status stop_for_good(Error& error);
  // Without a wait: workers that are still there are killed, those that can't be are asked to end. For who frees the loader.
  void abandon() noexcept;
  Status open_worker(std::int32_t& id, os::Fd& fd, Error& error);
  // Thread mode, any thread: the socket of a worker that is missing. END: none is.
  Status take_offer(os::Fd& fd, Error& error);
  [[nodiscard]] const shm::Segments& segments() const { return segments_; }
  [[nodiscard]] const feedlane_dataset* dataset() const { return config_.has_dataset ? &config_.table : nullptr; }
  bool next_event(feedlane_event& out) { return events_.pop(out); }

  // Any thread. After the last stop too, as long as the loader exists.
  Status retain(std::uint64_t token) { return slots_.retain(token); }
  Status release(std::uint64_t token, arena::SlotTable::Left& left);
  [[nodiscard]] std::uint32_t held() const { return slots_.held(); }
  // Of a batch whose reference the caller has; they stay as they are until its last release.
  [[nodiscard]] const std::vector<feedlane_tensor>& tensors(std::uint64_t token) const;

  [[nodiscard]] pinned::Pool* pool() const { return slot_memory_.pool(); }
  [[nodiscard]] const arena::SlotTable& slots() const { return slots_; }
  // A stream uses a batch to which the caller has a reference: its slot is kept until end_release. E_STALE, E_LIMIT.
  Status begin_use(std::uint64_t token, Error& error);
  // The end of a use that a stream is to come to: `next` waits for it. Begun before it is enqueued; ended by any thread, with
  // what became of the stream, which is told as an event if it is an error.
  void begin_release() { pending_releases_.fetch_add(1, std::memory_order_relaxed); }
  arena::SlotTable::Left end_release(std::uint64_t token, const Error& stream);
  // The thread that copies, until close_staging.
  Status run_stager(Error& error);
  void close_staging();

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] feedlane_stats stats() const;
  Status worker_stats(std::int32_t worker, feedlane_worker_stats& out) const {
    return read_worker_stats(segments_, worker, out);
  }

 private:
  Loader() = default;

  // loader.cpp
  Status set_up(const os::SystemFiles& files, bool is_pinned, Error& error);
  Status set_up_workers(const os::SystemFiles& files, Error& error);
  Status plan_segments(const os::SystemFiles& files, bool may_fill_slots, Error& error);
  Status create_segments(const shm::Geometry& g, const os::SystemFiles& files, Error& error);
  Status fit_budget(shm::Geometry& geometry, Error& error);
  void expect_batches();
  Status start_order(std::int64_t epoch, Error& error);
  Status finish_epoch(os::Deadline deadline, Error& error);
  // What keeps `next` from ever yielding, if anything does: SLOTS_HELD, E_PEER_DEAD, a failure of the loader.
  Status obstacle(Error& error);
  Status next_made(os::Deadline deadline, feedlane_batch& out, Error& error);
  [[nodiscard]] bool is_out_of_slots() const;
  [[nodiscard]] bool is_cut_short() const {  // relaxed: the descriptor is what wakes, the flag only says why
    return closed_.load(std::memory_order_relaxed) && !ends_for_good_;
  }
  [[nodiscard]] bool sampler_has_failed() const {  // and nothing is left to be yielded before it
    return sampler_error_.code != FEEDLANE_OK && ledger_.in_flight() == 0;
  }

  // waiting.cpp
  Status wait(os::Deadline deadline, Error& error);
  Status take_news(Error& error);
  Status listen_now_and_then(Error& error);
  [[nodiscard]] bool something_to_do() const;
  [[nodiscard]] bool next_has_news();
  void sleeper_cancel();

  // resume.cpp
  Status read_resume(Error& error);
  Status resume(Error& error);

  // dispatch.cpp
  Status pull(Error& error);
  Status draw(Error& error);
  void drop_drawn();
  Status save_sampler(Blob& out, Error& error);
  Status dispatch(Error& error);
  void feed();
  [[nodiscard]] bool can_pull() const;
  [[nodiscard]] bool has_slot_to_spare() const;
  Record& add_task();
  [[nodiscard]] bool next_shard(std::uint32_t& shard);
  void assign_pending();
  bool settle_without_worker(std::uint32_t slot);
  bool take_back_queued();
  bool take_back_from(std::uint32_t worker);
  [[nodiscard]] bool can_take(const worker::Peer& peer) const;
  [[nodiscard]] worker::Peer* choose_worker(const Record& record);
  [[nodiscard]] shm::TaskMessage message_for(Record& record, std::uint64_t id, std::uint32_t slot);
  void abandon_epoch();

  // results.cpp
  void sweep();
  void take_result(std::uint32_t worker, const shm::ResultMessage& result);
  void refuse_result(std::uint32_t worker, const shm::ResultMessage& result, Record* record);
  Status read_result(Record& record, std::uint32_t slot, const shm::ResultMessage& result, Error& error);
  Status check_records(const std::vector<shm::SampleRecord>& records, Error& error) const;
  Status read_made(Record& record, std::uint32_t slot, const shm::ResultMessage& result, Error& error);
  Status read_failed(Record& record, std::uint32_t slot, const shm::ResultMessage& result, Error& error);
  // Of a batch whose rows are in the record: what the trainer's own thread or a worker made.
  void take_from_shard(Record& record, std::uint64_t taken, const arena::Made* made);
  [[nodiscard]] bool front_is_done();
  void settle_front();
  void check_skip_budget(Record& record, std::uint32_t slot);
  void make_room(Record& record);
  Status yield(feedlane_batch& out, Error& error);
  Status hand_out(std::uint32_t slot, feedlane_batch& out);
  void permit_tensors(const Record& record, std::uint32_t slot) const;
  void tell_records(const Record& record, std::uint32_t slot);
  void leave_out_skipped(std::uint32_t slot, feedlane_batch& out);
  void advance(Record& record);
  [[nodiscard]] std::int32_t maker_of(const Record& record) const {  // -1: inline
    return config_.workers == 0 ? -1 : static_cast<std::int32_t>(record.worker);
  }

  // recovery.cpp
  Status start_missing(Error& error);
  Status start(std::uint32_t worker, Error& error);
  Status start_again(std::uint32_t worker, Error& error);
  Status start_forked(std::uint32_t worker, os::Fd theirs, Error& error);
  Status open_channel(std::uint32_t worker, os::Fd& theirs, Error& error);
  void handle(const os::Poller::Event& event);
  worker::Peer::Heard listen(std::uint32_t worker, Error& error);
  void hear(std::uint32_t worker);
  void drain_lane(std::uint32_t worker);
  void hear_last_words(std::uint32_t worker);
  void lose(std::uint32_t worker);
  // Returns the batch that the worker had in hand, -1: none.
  std::int64_t take_back_tasks(std::uint32_t worker);
  void quarantine(std::uint32_t worker, std::uint32_t slot);
  void recover_shard(std::uint32_t worker, const char* how, pid_t pid);
  void tell_of_death(std::uint32_t worker, const char* how, pid_t pid, std::int64_t batch);
  void want_another(std::uint32_t worker, pid_t pid);
  void replace(std::uint32_t worker, bool had_attached, const char* how, pid_t pid);
  void replace_at_last(std::uint32_t worker);
  void start_later(std::uint32_t worker, Error& error);
  void tell_of_starts(std::uint32_t worker, const char* how, pid_t pid, Error& error) const;
  [[nodiscard]] bool is_work_left() const;
  void fail(const Error& error);
  [[nodiscard]] bool any_there() const;
  [[nodiscard]] bool any_ending() const;
  [[nodiscard]] bool others_go_on(std::uint32_t worker) const;
  void give_up_place(std::uint32_t worker, const char* how, pid_t pid);

  // ending.cpp
  void ask_all_to_end();
  Status end_workers(std::int64_t death_ns, Error& error);
  Status wait_for_undead(std::int64_t death_ns, Error& error);
  void wait_for_tracers();
  Status wait_for_ends(os::Deadline deadline, bool interruptible, Error& error);

  // deadlines.cpp
  [[nodiscard]] os::Deadline next_deadline() const;
  void check_deadlines();
  [[nodiscard]] std::int64_t open_deadline_ns() const;
  void give_up_start(std::uint32_t worker);
  [[nodiscard]] bool has_task_deadline(const worker::Peer& peer) const;
  [[nodiscard]] std::int64_t task_deadline_ns(const worker::Peer& peer) const;
  [[nodiscard]] std::int64_t look_every_ns() const;
  [[nodiscard]] os::Deadline next_look() const;
  void look();
  void excuse(worker::Peer& peer, std::int64_t absence_ns);
  void give_up_task(std::uint32_t worker);
  void fence(std::uint32_t worker);
  void unfence(std::uint32_t worker);
  void fence_undead(std::uint32_t worker);
  [[nodiscard]] std::uint32_t kept_by_fenced() const;
  void lose_hung_shard(std::uint32_t worker);
  void rescue_stranded();
  [[nodiscard]] bool rescue(std::uint32_t slot);
  Status hung_obstacle(Error& error) const;
  [[nodiscard]] bool is_left_to_fenced() const;

  // conduct.cpp
  void watch_workers();
  void watch_worker(std::uint32_t worker, std::int64_t now);
  void disown(std::uint32_t worker, Record* blamed);

  // device.cpp
  Status set_up_device(pinned::Pool* pool, Error& error);
  void restore_free_slots();
  void wake();
  void stage_ahead();
  [[nodiscard]] bool any_release_pending() const;
  [[nodiscard]] bool is_out_of_buffers() const;
  Status staging_obstacle(Error& error);
  [[nodiscard]] bool staging_gets_on() const;

  // inline.cpp
  Status begin_inline(Error& error);
  Status next_inline(os::Deadline deadline, feedlane_batch& out, Error& error);
  Status wait_for_release(os::Deadline deadline, Error& error);
  Status start_inline(Error& error);
  void finish_inline(Status made, Error& error);
  void drop_inline();

  Config config_;
  std::int64_t length_ = 0;  // batches an epoch; -1: unknown
  shm::Segments segments_;
  SlotMemory slot_memory_;            // of the segments
  std::unique_ptr<Staging> staging_;  // none: batches stay where they are
  std::atomic<std::uint32_t> pending_releases_{0};
  os::Deadline copier_deadline_ = os::Deadline::never();  // for a thread that copies to come
  arena::SlotTable slots_;
  Ledger ledger_;
  shm::LoaderCounters* counters_ = nullptr;  // in control
  EventQueue events_;
  ForkedMain forked_main_ = nullptr;

  // the epoch
  bool begun_ = false;
  bool exhausted_ = false;  // the sampler has no more
  bool stopping_ = false;
  std::int64_t epoch_ = 0;
  std::int64_t epoch_batches_ = 0;  // in this epoch; -1: unknown
  std::int64_t next_batch_ = 0;
  std::int64_t next_position_ = 0;
  // The batch to come, with the slot that it gets: kept when the sampler fails before all of it is known.
  struct Drawn {
    bool has_slot = false;
    bool is_last = false;
    std::uint32_t slot = 0;
    std::uint32_t rows = 0;  // 0: no indices yet
    Blob sampler_state;
  };
  Drawn drawn_;
  Error sampler_error_;  // not told yet
  Sampler::Place place_;
  Progress progress_;                 // as of the newest batch that was yielded
  std::optional<SavedState> resume_;  // not begun with yet
  std::vector<Shard> shards_;
  std::vector<std::int64_t> left_out_;  // see leave_out_skipped
  std::uint32_t next_shard_ = 0;
  std::uint32_t pending_ = 0;  // records in state pending
  std::uint32_t abandoned_ = 0;
  bool any_stranded_ = false;             // in the hands of one that is fenced, and no slot was free to go on in
  std::uint32_t free_when_stranded_ = 0;  // slots, at the last try
  std::uint32_t fenced_ = 0;              // workers
  bool failure_told_ = false;
  Error failure_;      // of the loader, told by every next until begin; code OK: none
  Error start_error_;  // why no worker is there, told by one next; code OK: none
  Error slot_error_;   // why a task can't be sent with its slot, likewise

  // workers
  std::vector<worker::Peer> peers_;
  std::vector<bool> to_ring_;
  std::vector<std::uint64_t> oldest_;                            // see watch_workers
  std::vector<std::pair<std::uint64_t, std::uint32_t>> queued_;  // see take_back_queued
  std::vector<std::uint64_t> queued_ids_;
  std::size_t last_chosen_ = 0;
  ring::Lanes lanes_;
  ring::Sleeper sleeper_;
  ring::Spin spin_;
  std::uint64_t listened_at_ = 0;  // the next task's id then: see listen_now_and_then
  bool should_listen_ = false;
  os::Poller poller_;
  os::Fd wake_event_;              // interrupt and releases
  os::Fd timer_;                   // the next deadline, for those who sleep in a loop of their own
  std::int64_t last_look_ns_ = 0;  // deadlines are judged by this time
  os::Fd self_;                    // pidfd of this process
  std::mutex offers_mutex_;
  std::vector<os::Fd> offers_;  // thread mode: sockets that no thread has taken yet
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> closed_{false};
  bool ends_for_good_ = false;
  Error unheard_;  // where errors go that have been acted on

  // inline
  worker::Task inline_task_;
  worker::Progress inline_progress_;
  std::uint32_t inline_slot_ = 0;
};

}  // namespace feedlane::loader
