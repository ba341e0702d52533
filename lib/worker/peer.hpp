// SPDX-License-Identifier: Apache-2.0
// One worker as the trainer sees it: its process, its socket, its doorbells, its task ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/process.hpp"
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

  // Opens a channel for a new generation; what the worker needs lies in `theirs` afterwards. state: starting.
  Status open(const shm::Segments& segments, std::uint64_t result_start, int trainer_pidfd,
              std::int64_t start_deadline_ns, os::Poller& poller, os::Fd& theirs, Error& error);
  // Starts a process with `theirs`; it watches the process from here on.
  Status spawn(os::SpawnRequest request, os::Fd theirs, os::Poller& poller, Error& error);

  // A forked child of this process with `theirs`: 0 in the parent, which watches it from here on; in the child
  // `is_child` is set, and everything that is the trainer's alone should be closed by close_in_child, of all peers.
  Status fork(os::Poller& poller, bool& is_child, Error& error);
  void close_in_child();
  // A thread of this process: its end can't be seen but by its word, and it can't be killed.
  void expect_local() { local_ = true; }
  [[nodiscard]] bool is_local() const { return local_; }

  enum class Heard { nothing, attached, ready, cannot_open, left, hung_up, nonsense };
  // The next thing that the worker said over the socket. `error` explains cannot_open and nonsense.
  Heard listen(os::Poller& poller, Error& error);

  // Tasks. The caller's ledger knows that the ring has room.
  void send(const shm::TaskMessage& message);
  void ring_doorbell() const { (void)bell_.ring(); }
  void drain_doorbell() const;

  // The done-event.
  void ask_to_end();
  void kill(int signal) const;
  // The socket's end without a word: whatever the process is doing now, it mustn't go on. Its pidfd tells when it's gone.
  void cut_off(os::Poller& poller);
  void close_socket(os::Poller& poller);
  // It is gone, or was never more than an offer: descriptors closed, state none.
  void close(os::Poller& poller);
  // Only those that we started: others are their own parents' to wait for. What a worker's group leaves behind goes too.
  [[nodiscard]] os::Ending reap() const;
  // Whether the end of its process will be seen, and has to be waited for.
  [[nodiscard]] bool has_socket() const { return static_cast<bool>(socket_); }
  [[nodiscard]] bool has_process() const { return static_cast<bool>(process_); }

  // What others may look at from any thread: relaxed, numbers to look at.
  [[nodiscard]] State state() const { return state_.load(std::memory_order_relaxed); }
  void set_state(State state) { state_.store(state, std::memory_order_relaxed); }
  [[nodiscard]] pid_t pid() const { return pid_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t generation() const { return generation_.load(std::memory_order_relaxed); }

  // Expected to end: whatever comes now is no failure.
  [[nodiscard]] bool is_ending() const { return state() == State::stopping || state() == State::failed; }
  [[nodiscard]] bool is_live() const {
    return !cut_off_ && (state() == State::starting || state() == State::opening || state() == State::ready);
  }
  [[nodiscard]] bool has_attached() const { return attached_; }
  [[nodiscard]] bool is_spawned() const { return spawned_; }
  [[nodiscard]] bool was_cut_off() const { return cut_off_; }
  [[nodiscard]] std::int64_t start_deadline_ns() const { return start_deadline_ns_; }
  // The task that its row says it has in hand: a hint, written by the worker.
  [[nodiscard]] std::uint64_t started_task() const { return row_->started_task.load(std::memory_order_relaxed); }

  std::uint32_t unfinished = 0;      // tasks sent to this generation and not answered
  std::uint64_t refused_task = 0;    // whose result was refused, so that the worker was cut off; 0: none
  std::uint32_t start_failures = 0;  // generations in a row that ended before they attached
  bool died = false;                 // the generation before, unexpectedly

 private:
  void ring_done();
  Status watch(os::Poller& poller, Error& error);
  Heard hear_attached(os::Fd pidfd, pid_t sender, os::Poller& poller, Error& error);
  Heard hear_ready(const Ready& ready, Error& error);

  std::uint32_t id_ = 0;
  std::atomic<State> state_{State::none};
  std::atomic<pid_t> pid_{0};
  std::atomic<std::uint32_t> generation_{0};
  bool ever_opened_ = false;
  bool attached_ = false;
  bool spawned_ = false;
  bool cut_off_ = false;
  bool local_ = false;
  bool said_ready_ = false;
  std::int64_t start_deadline_ns_ = 0;
  os::Fd socket_;
  os::Fd process_;  // pidfd
  os::Fd worker_event_;
  os::Fd trainer_event_;
  os::Lifeline lifeline_;  // cutting it kills the worker
  shm::TrainerRow* trainer_row_ = nullptr;
  shm::WorkerRow* row_ = nullptr;
  ring::Producer tasks_;
  ring::Doorbell bell_;
};

}  // namespace feedlane::worker
