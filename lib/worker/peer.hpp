// SPDX-License-Identifier: Apache-2.0
// One worker as the trainer sees it: its process, its socket, its doorbells, its task ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"
#include "ring/doorbell.hpp"
#include "ring/spsc.hpp"
#include "shm/segment.hpp"
#include "worker/hello.hpp"

namespace feedlane::worker {

// Generations follow each other in the same place: none -> starting -> opening -> ready -> stopping -> none.
enum class State : std::int32_t {
  none = FEEDLANE_WORKER_NONE,
  starting = FEEDLANE_WORKER_STARTING,
  opening = FEEDLANE_WORKER_OPENING,
  ready = FEEDLANE_WORKER_READY,
  stopping = FEEDLANE_WORKER_STOPPING,
  failed = FEEDLANE_WORKER_FAILED,
};

// What a member of the trainer's poller is. The generation tells late events of a predecessor apart.
struct Tag {
  enum Kind : std::uint32_t { doorbell, process, socket };
  std::uint32_t worker;
  std::uint32_t generation;
  Kind kind;
  [[nodiscard]] std::uint64_t pack() const { return std::uint64_t{generation} << 32 | worker << 2 | kind; }
  static Tag unpack(std::uint64_t tag) {
    return {static_cast<std::uint32_t>(tag) >> 2, static_cast<std::uint32_t>(tag >> 32), static_cast<Kind>(tag & 3)};
  }
};

class Peer {
 public:
  void init(std::uint32_t id, const shm::Segments& segments);

  // Opens a channel for a new generation; what the worker needs lies in `theirs` afterwards. `tied`: the trainer's
  // death kills it. state: starting.
  Status open(const shm::Segments& segments, std::uint64_t result_start, std::int64_t epoch, bool tied,
              int trainer_pidfd, std::int64_t start_deadline_ns, os::Poller& poller, os::Fd& theirs, Error& error);
  // Starts a process with `theirs`; it watches the process from here on.
  Status spawn(os::SpawnRequest request, os::Fd theirs, os::Poller& poller, Error& error);

  // A forked child of this process with `theirs`: 0 in the parent, which watches it from here on; in the child
  // `is_child` is set, and everything that is the trainer's alone should be closed by close_in_child, of all peers.
  Status fork(os::Poller& poller, bool& is_child, Error& error);
  void close_in_child();
  // A thread of this process: its end can't be seen but by its word, and it can't be killed.
  void expect_local() {
    local_ = true;
    untied_.reset();
  }
  // A process of somebody else's.
  void expect_external() { untied_.reset(); }
  [[nodiscard]] bool is_local() const { return local_; }

  enum class Heard { nothing, attached, ready, cannot_open, left, hung_up, lost, nonsense };
  // The next thing that the worker said over the socket. `error` explains cannot_open, lost (it couldn't be received) and
  // nonsense.
  Heard listen(os::Poller& poller, Error& error);

  // Tasks. The caller's ledger knows that the ring has room, if nothing was revoked.
  void send(const shm::TaskMessage& message);
  [[nodiscard]] bool has_room() const { return unfinished + revoked_.size() < capacity_; }
  // Takes tasks back that it hasn't begun: `ids` were sent in this order. Returns how many of the first it keeps; for the
  // others it will answer ABANDONED, and not touch their slots. `oldest` is the first of all its tasks that it hasn't
  // answered.
  std::size_t revoke(const std::vector<std::uint64_t>& ids, std::uint64_t oldest);
  // How many revoked tasks it hasn't answered for.
  [[nodiscard]] std::size_t revoked() const { return revoked_.size(); }
  // It has answered for a task that was revoked. False: it wasn't.
  bool forget_revoked(std::uint64_t id);
  // It may have seen the revocation of a task that the trainer thought it had begun.
  [[nodiscard]] bool may_decline(std::uint64_t id) const { return id >= revoked_from_ && id < revoked_until_; }
  void ring_doorbell() const { (void)bell_.ring(); }

  // The done-event.
  void ask_to_end();
  void kill(int signal);
  // When it was sent SIGKILL; 0: it wasn't. From then on it runs no more of its own code, but may be stuck in the kernel.
  [[nodiscard]] std::int64_t killed_ns() const { return killed_ns_; }
  // Of one that we started: SIGKILL, and nobody here will see its end. It is reaped by os::reap_abandoned.
  void abandon();
  // The socket's end without a word: whatever the process is doing now, it mustn't go on. Its pidfd tells when it's gone.
  void cut_off(os::Poller& poller);
  void close_socket(os::Poller& poller);
  // It has said that it leaves, and gets no more tasks; its process is given this long to end by itself.
  void let_leave(os::Deadline until, os::Poller& poller);
  // It is gone, or was never more than an offer: descriptors closed, state none.
  void close(os::Poller& poller);
  // Only those that we started: others are their own parents' to wait for. What a worker's group leaves behind goes too.
  [[nodiscard]] os::Ending reap();
  // Whether the end of its process will be seen, and has to be waited for.
  [[nodiscard]] bool has_socket() const { return static_cast<bool>(socket_); }
  [[nodiscard]] bool has_process() const { return static_cast<bool>(process_); }

  // In control, where any thread and any monitor may look at them: relaxed, numbers to look at. Written here alone.
  [[nodiscard]] State state() const {
    return State{static_cast<std::int32_t>(trainer_row_->state.load(std::memory_order_relaxed))};
  }
  void set_state(State state) {
    trainer_row_->state.store(static_cast<std::uint32_t>(state), std::memory_order_relaxed);
  }
  [[nodiscard]] pid_t pid() const { return static_cast<pid_t>(trainer_row_->pid.load(std::memory_order_relaxed)); }
  [[nodiscard]] std::uint32_t generation() const { return trainer_row_->generation.load(std::memory_order_relaxed); }

  // Expected to end: whatever comes now is no failure.
  [[nodiscard]] bool is_ending() const { return state() == State::stopping || state() == State::failed; }
  [[nodiscard]] bool is_live() const {
    return !cut_off_ && (state() == State::starting || state() == State::opening || state() == State::ready);
  }
  [[nodiscard]] bool has_attached() const { return attached_; }
  [[nodiscard]] bool is_spawned() const { return spawned_; }
  [[nodiscard]] bool was_cut_off() const { return cut_off_; }
  // A process that is still there long after SIGKILL. It keeps its place, its rings and the slot of what it had in hand;
  // its pidfd tells when it is gone.
  [[nodiscard]] bool is_undead() const { return is_fenced && !local_; }
  // Nothing can be made by whoever is in this place, or by a replacement, as long as nothing happens.
  [[nodiscard]] bool is_lost() const { return is_fenced || was_given_up; }
  // It has detached by itself. Nothing was wrong with it; its process may live on.
  [[nodiscard]] bool has_left() const { return said_leaving_; }
  // Why it can't attach, in its own words; empty: it hasn't said.
  [[nodiscard]] const char* why_not_attached() const { return why_not_attached_; }
  // For its next step: to attach, then to open its data set.
  [[nodiscard]] std::int64_t start_deadline_ns() const { return start_deadline_ns_; }
  void set_start_deadline_ns(std::int64_t at) { start_deadline_ns_ = at; }
  [[nodiscard]] bool is_on_its_way() const {
    return !cut_off_ && (state() == State::starting || state() == State::opening);
  }
  // Of one that leaves; of others never.
  [[nodiscard]] os::Deadline end_deadline() const { return end_deadline_; }
  // When that has passed: SIGTERM, and SIGKILL after another `grace_ns`.
  void hurry(std::int64_t grace_ns);
  // The task that its row says it has in hand: a hint, written by the worker.
  [[nodiscard]] std::uint64_t started_task() const { return row_->started_task.load(std::memory_order_relaxed); }

  // Everything up to this id has been begun, and will be answered unless the worker dies.
  [[nodiscard]] std::uint64_t begun_through() const { return row_->begun_through.load(std::memory_order_relaxed); }
  // Both, for who holds them against what is in its lane: Loader::watch_workers.
  struct Marks {
    std::uint64_t begun;
    std::uint64_t in_hand;  // the same, 0, or one that it begins at this moment

    // Whose results are in the lane by now.
    [[nodiscard]] std::uint64_t answered() const { return in_hand == 0 || begun == 0 ? begun : begun - 1; }
  };
  [[nodiscard]] Marks marks() const {
    // Acquire, in this order: pairs with the release stores in Worker::take_task and Worker::send_result.
    const std::uint64_t begun = row_->begun_through.load(std::memory_order_acquire);
    return {begun, row_->started_task.load(std::memory_order_acquire)};
  }
  // Samples that it left out of its shard, because they were delivered before: a number to look at.
  [[nodiscard]] std::uint64_t passed_over() const { return row_->passed_over.load(std::memory_order_relaxed); }
  // The newest task that it was sent.
  [[nodiscard]] std::uint64_t last_sent() const { return last_sent_; }

  std::uint32_t unfinished = 0;      // tasks sent to this generation and not answered
  std::uint64_t refused_task = 0;    // to blame for what it was cut off for; 0: it wasn't
  std::uint32_t start_failures = 0;  // generations in a row that ended before they attached
  bool was_late = false;             // one was given up before its data set was open, and none has been ready since
  Error refusal;                     // why the last of them wasn't let in; code OK: it wasn't refused
  bool died = false;                 // the generation before, unexpectedly
  bool was_unheard = false;          // its word that it attached couldn't be received
  std::int64_t start_again_ns = 0;   // when to try again to replace it; 0: not
  std::int64_t progress_ns = 0;      // when it was last seen to get on
  std::uint32_t excused = 0;         // how often its time began anew since then, because the trainer was away
  std::uint64_t seen_task = 0;       // up to where it was last seen to have begun
  std::uint64_t seen_passed_over = 0;
  bool is_fenced = false;  // a thread that hangs, or a process that SIGKILL doesn't end: whatever it has is lost to it
  bool was_given_up = false;  // its starts have failed too often: the place stays empty until the next epoch

 private:
  void set_pid(pid_t pid) { trainer_row_->pid.store(static_cast<std::uint64_t>(pid), std::memory_order_relaxed); }
  void ring_done();
  void set_revoked(std::uint64_t from, std::uint64_t until);
  Status watch(os::Poller& poller, Error& error);
  Heard hear_attached(os::Received& received, os::Poller& poller, Error& error);
  Heard hear_ready(const Ready& ready, Error& error);

  std::uint32_t id_ = 0;
  std::uint32_t capacity_ = 0;
  std::vector<std::uint64_t> revoked_;  // not answered yet
  std::uint64_t revoked_from_ = 0;
  std::uint64_t revoked_until_ = 0;
  std::uint64_t last_sent_ = 0;
  bool ever_opened_ = false;
  bool attached_ = false;
  bool spawned_ = false;
  bool cut_off_ = false;
  bool local_ = false;
  bool said_ready_ = false;
  bool said_leaving_ = false;
  std::int64_t start_deadline_ns_ = 0;
  os::Deadline end_deadline_ = os::Deadline::never();
  bool was_hurried_ = false;
  std::int64_t killed_ns_ = 0;
  bool is_kept_ = false;  // it has ended, and a tracer has it: it is reaped when that lets go
  os::Fd socket_;
  os::Fd process_;  // pidfd
  os::Fd worker_event_;
  os::Fd trainer_event_;
  os::Lifeline lifeline_;  // cutting it kills the worker
  os::Fd untied_;          // its other end, until the process to be tied to it is there
  char why_not_attached_[shm::text_bytes] = {};
  shm::TrainerRow* trainer_row_ = nullptr;
  shm::WorkerRow* row_ = nullptr;
  ring::Producer tasks_;
  ring::Doorbell bell_;
};

}  // namespace feedlane::worker
