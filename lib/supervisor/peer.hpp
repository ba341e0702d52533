// SPDX-License-Identifier: Apache-2.0
// The trainer's view of one worker: its process, its socket, its descriptors, and its task ring.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "feedlane/monitor.h"
#include "greeting/worker.hpp"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"
#include "shm/segment.hpp"
#include "supervisor/task_ring.hpp"

namespace feedlane::supervisor {

// Generations follow each other in the same place: none -> starting -> opening -> ready -> stopping -> none.
enum class State : std::int32_t {
  none = FEEDLANE_WORKER_NONE,
  starting = FEEDLANE_WORKER_STARTING,
  opening = FEEDLANE_WORKER_OPENING,
  ready = FEEDLANE_WORKER_READY,
  stopping = FEEDLANE_WORKER_STOPPING,
  failed = FEEDLANE_WORKER_FAILED,
};

// Identifies a member of the trainer's poller. The generation distinguishes late events of a predecessor.
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

  // Opens a channel for a new generation. `theirs` becomes the worker's end of the socket, in which the welcome waits.
  // `tied`: the trainer's death kills the worker. Sets state starting.
  Status open(const shm::Segments& segments, std::uint64_t result_start, std::int64_t epoch, bool tied,
              int trainer_pidfd, os::Poller& poller, os::Fd& theirs, Error& error);
  // Starts a process that inherits `theirs`, and watches it from then on.
  Status spawn(os::SpawnRequest request, os::Fd theirs, os::Poller& poller, Error& error);
  // Forks this process. In the parent, which watches the child from then on, `is_child` is false. The child closes the
  // trainer's descriptors by calling close_in_child of all peers.
  Status fork(const os::NumberSet* cpus, os::Poller& poller, bool& is_child, Error& error);
  void close_in_child();
  // What works in this place.
  enum class Kind {
    offered,   // nothing yet
    child,     // a process that this process started
    thread,    // a thread of this process: can't be killed, and only its Leaving message reports its end
    external,  // a process that another process started
  };
  void expect(Kind kind) {
    kind_ = kind;
    untied_.reset();
  }
  [[nodiscard]] bool is_child() const { return kind_ == Kind::child; }
  [[nodiscard]] bool is_thread() const { return kind_ == Kind::thread; }

  enum class Message { nothing, attached, ready, cannot_open, left, hung_up, lost, nonsense };
  // The worker's next message on the socket. `error` explains cannot_open, lost (the message could not be received) and
  // nonsense.
  Message receive(os::Poller& poller, Error& error);

  [[nodiscard]] TaskRing& tasks() { return tasks_; }
  [[nodiscard]] const TaskRing& tasks() const { return tasks_; }

  // ---- ending ----

  void ask_to_end();
  void kill(int signal);
  // When it was sent SIGKILL; 0: it was not. From then on it runs no more user code, but may be stuck in the kernel.
  [[nodiscard]] std::int64_t killed_ns() const { return killed_ns_; }
  // Kills a child and leaves it to os::reap_abandoned. Doesn't wait for its end.
  void abandon();
  // Kills a process and closes its socket; its pidfd reports its end. Asks a thread to end, and keeps its socket open
  // for Leaving.
  void cut_off(os::Poller& poller);
  void close_socket(os::Poller& poller);
  // It has sent Leaving: it gets no more tasks, and its process has some time to end by itself.
  void let_leave(os::Poller& poller);
  // That time is over. The first call sends SIGTERM and returns true, the second sends SIGKILL and returns false.
  bool escalate();
  // It is gone, or nothing took the offer: closes the descriptors and sets state none.
  void close(os::Poller& poller);
  // Reaps a child and kills the rest of its process group. Other workers are reaped by their own parents, and this looks
  // how they have ended.
  os::Ending reap();

  // ---- state ----

  // In control, where any thread and any monitor may read it. Only this class writes it. Relaxed: no other data depends
  // on it.
  [[nodiscard]] State state() const {
    return State{static_cast<std::int32_t>(trainer_row_->state.load(std::memory_order_relaxed))};
  }
  void set_state(State state) {
    trainer_row_->state_since_ns.store(static_cast<std::uint64_t>(os::now_ns()), std::memory_order_relaxed);
    trainer_row_->state.store(static_cast<std::uint32_t>(state), std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t id() const { return id_; }
  [[nodiscard]] pid_t pid() const { return static_cast<pid_t>(trainer_row_->pid.load(std::memory_order_relaxed)); }
  [[nodiscard]] std::uint32_t generation() const { return trainer_row_->generation.load(std::memory_order_relaxed); }
  // It exists, and tasks may be sent to it.
  [[nodiscard]] bool is_live() const {
    return ending_ == Ending::none &&
           (state() == State::starting || state() == State::opening || state() == State::ready);
  }
  // It has yet to attach, or to open its data set.
  [[nodiscard]] bool is_on_its_way() const { return is_live() && state() != State::ready; }
  // It was asked to end or has failed, so its end is expected.
  [[nodiscard]] bool is_ending() const { return state() == State::stopping || state() == State::failed; }
  [[nodiscard]] bool was_cut_off() const { return ending_ != Ending::none; }
  [[nodiscard]] bool has_attached() const { return said_.attached; }
  // It has sent Leaving: it has detached by itself, without an error. Its process may continue to run.
  [[nodiscard]] bool has_left() const { return said_.leaving; }
  // The worker's reason why it can't attach; empty: it sent none.
  [[nodiscard]] const char* why_not_attached() const { return why_not_attached_; }
  [[nodiscard]] bool has_socket() const { return static_cast<bool>(socket_); }
  // Whether the trainer has a pidfd of its process, so that it observes its end and must wait for it.
  [[nodiscard]] bool has_process() const { return static_cast<bool>(process_); }

 private:
  // Which messages of this generation were received.
  struct Said {
    bool attached = false;
    bool ready = false;  // Ready, with success or an error
    bool leaving = false;
  };
  // How far the end of this generation has come. From `leaving` on it gets no more tasks.
  enum class Ending { none, leaving, terminated, cut_off };

  void set_pid(pid_t pid) { trainer_row_->pid.store(static_cast<std::uint64_t>(pid), std::memory_order_relaxed); }
  Status send_welcome(const shm::Segments& segments, std::uint64_t result_start, std::int64_t epoch, bool tied,
                      int trainer_pidfd, int lifeline, Error& error);
  Status watch(os::Poller& poller, Error& error);
  Message read_attached(os::Received& received, os::Poller& poller, Error& error);
  Message read_ready(const worker::Ready& ready, Error& error);

  std::uint32_t id_ = 0;
  bool was_opened_ = false;  // generations count from 0
  Kind kind_ = Kind::offered;
  Said said_;
  Ending ending_ = Ending::none;
  bool is_kept_ = false;  // it has ended, but a tracer (a debugger, a sanitizer) still holds it
  std::int64_t killed_ns_ = 0;
  os::Fd socket_;
  os::Fd process_;  // pidfd
  os::Fd worker_event_;
  os::Fd trainer_event_;
  os::Lifeline lifeline_;  // cutting it kills the worker
  os::Fd untied_;          // the lifeline's read end, until the process is tied to it
  char why_not_attached_[shm::text_bytes] = {};
  shm::TrainerRow* trainer_row_ = nullptr;
  TaskRing tasks_;
};

}  // namespace feedlane::supervisor
