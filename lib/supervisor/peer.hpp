// SPDX-License-Identifier: Apache-2.0
// One worker as the trainer sees it: its process, its socket, its descriptors, and its task ring.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "feedlane/monitor.h"
#include "os/clock.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"
#include "shm/segment.hpp"
#include "supervisor/task_ring.hpp"
#include "worker/greeting.hpp"

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

  // Opens a channel for a new generation; what the worker needs lies in `theirs` afterwards. `tied`: the trainer's death kills
  // it. state: starting.
  Status open(const shm::Segments& segments, std::uint64_t result_start, std::int64_t epoch, bool tied,
              int trainer_pidfd, os::Poller& poller, os::Fd& theirs, Error& error);
  // Starts a process with `theirs`, and watches it from here on.
  Status spawn(os::SpawnRequest request, os::Fd theirs, os::Poller& poller, Error& error);
  // Forks this process. In the parent, which watches the child from here on, `is_child` is false. The child closes what is the
  // trainer's alone by close_in_child, of all peers.
  Status fork(const os::NumberSet* cpus, os::Poller& poller, bool& is_child, Error& error);
  void close_in_child();
  // Who works in this place.
  enum class Kind {
    offered,   // nobody yet
    child,     // a process that this one started
    thread,    // a thread of this process: only its own word says that it ends, and it cannot be killed
    external,  // a process of another parent
  };
  void expect(Kind kind) {
    kind_ = kind;
    untied_.reset();
  }
  [[nodiscard]] bool is_child() const { return kind_ == Kind::child; }
  [[nodiscard]] bool is_thread() const { return kind_ == Kind::thread; }

  enum class Message { nothing, attached, ready, cannot_open, left, hung_up, lost, nonsense };
  // The next thing that the worker said over the socket. `error` explains cannot_open, lost (it could not be received) and
  // nonsense.
  Message receive(os::Poller& poller, Error& error);

  [[nodiscard]] TaskRing& tasks() { return tasks_; }
  [[nodiscard]] const TaskRing& tasks() const { return tasks_; }

  // ---- its end ----

  void ask_to_end();
  void kill(int signal);
  // When it was sent SIGKILL; 0: it was not. From then on it runs no more of its own code, but may be stuck in the kernel.
  [[nodiscard]] std::int64_t killed_ns() const { return killed_ns_; }
  // Of a child: SIGKILL, and its end is not waited for here. os::reap_abandoned reaps it.
  void abandon();
  // The end of its socket without a word: whatever the process does now, it must not continue. Its pidfd tells when it is gone.
  void cut_off(os::Poller& poller);
  void close_socket(os::Poller& poller);
  // It has said that it leaves, and gets no more tasks. Its process is given some time to end by itself.
  void let_leave(os::Poller& poller);
  // That time is over: SIGTERM, and the next time SIGKILL. Returns whether there is a next time.
  bool escalate();
  // It is gone, or was never more than an offer: descriptors closed, state none.
  void close(os::Poller& poller);
  // Of a child: others are for their own parents to wait for. What it left in its process group ends too.
  os::Ending reap();

  // ---- what is known of it ----

  // In control, where any thread and any monitor may look at it: relaxed, a number to look at. Written by this class alone.
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
  // It is there, and tasks may be sent to it.
  [[nodiscard]] bool is_live() const {
    return ending_ == Ending::none &&
           (state() == State::starting || state() == State::opening || state() == State::ready);
  }
  // It has still to attach, or to open its data set.
  [[nodiscard]] bool is_on_its_way() const { return is_live() && state() != State::ready; }
  // It was asked to end, or has failed: whatever comes now is no failure.
  [[nodiscard]] bool is_ending() const { return state() == State::stopping || state() == State::failed; }
  [[nodiscard]] bool was_cut_off() const { return ending_ != Ending::none; }
  [[nodiscard]] bool has_attached() const { return said_.attached; }
  // It has detached by itself, and nothing was wrong with it. Its process may live on.
  [[nodiscard]] bool has_left() const { return said_.leaving; }
  // Why it cannot attach, in its own words; empty: it has not said.
  [[nodiscard]] const char* why_not_attached() const { return why_not_attached_; }
  [[nodiscard]] bool has_socket() const { return static_cast<bool>(socket_); }
  // Whether the end of its process will be seen, and has to be waited for.
  [[nodiscard]] bool has_process() const { return static_cast<bool>(process_); }

 private:
  // What this generation said over its socket.
  struct Said {
    bool attached = false;
    bool ready = false;  // or that it cannot be
    bool leaving = false;
  };
  // How the end of this generation came about. From `leaving` on it gets no more tasks.
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
  bool is_kept_ = false;  // it has ended, but a tracer (a debugger, a sanitizer) still has it
  std::int64_t killed_ns_ = 0;
  os::Fd socket_;
  os::Fd process_;  // pidfd
  os::Fd worker_event_;
  os::Fd trainer_event_;
  os::Lifeline lifeline_;  // cutting it kills the worker
  os::Fd untied_;          // its other end, until the process to be tied to it is there
  char why_not_attached_[shm::text_bytes] = {};
  shm::TrainerRow* trainer_row_ = nullptr;
  TaskRing tasks_;
};

}  // namespace feedlane::supervisor
