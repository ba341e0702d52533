// SPDX-License-Identifier: Apache-2.0
// Starting workers: one launcher per start mode. It starts a worker in a place that was opened, and states the
// properties of such workers. A new start mode needs a new launcher.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.hpp"
#include "os/fd.hpp"
#include "os/poller.hpp"
#include "supervisor/peer.hpp"
#include "supervisor/settings.hpp"

namespace feedlane::supervisor {

// Runs in a forked child, with the child's end of the socket. Closes the trainer's descriptors, works, and never
// returns.
using ChildMain = std::function<void(int fd)>;

// Return E_STATE: the call is not for this start mode, or the loader has no workers.
Status refuse_host(std::int32_t mode, Error& error);
Status refuse_offer(std::int32_t mode, Error& error);

class Launcher {
 public:
  explicit Launcher(std::int32_t mode) : mode_(mode) {}
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  virtual ~Launcher() = default;

  // Called once, when the loader is created.
  virtual Status set_up(Error&) { return FEEDLANE_OK; }
  // Starts a worker for a place that was opened. `theirs`: the worker's end of the socket.
  virtual Status start(Peer& peer, os::Fd theirs, os::Poller& poller, Error& error) = 0;

  // Whether the library starts workers, at the first begin and in place of dead ones. Otherwise the host starts them.
  [[nodiscard]] virtual bool starts_workers() const { return true; }
  // Whether workers are started when the loader is created, because they may attach before the first epoch.
  [[nodiscard]] virtual bool starts_early() const { return false; }
  // Whether a worker exists as soon as its place is open, so that tasks may wait for it to attach.
  [[nodiscard]] virtual bool starts_at_once() const { return true; }
  // Whether workers are processes that the library starts. If such workers can't be started, the loader fails.
  [[nodiscard]] virtual bool owns_processes() const { return true; }
  // Whether SIGKILL ends workers.
  [[nodiscard]] virtual bool can_kill() const { return true; }
  // Whether workers have to attach within the start timeout.
  [[nodiscard]] virtual bool has_start_deadline() const { return true; }
  // Descriptors of this process that this many workers need: five each (a socket, two eventfds, a lifeline, a pidfd),
  // and `when_starting` more while the last one starts.
  [[nodiscard]] virtual std::uint64_t descriptors(std::uint64_t workers) const { return 5 * workers + when_starting(); }
  // The argument that an error names if every worker is stuck.
  [[nodiscard]] virtual const char* blamed_argument() const { return "worker"; }

  // Whether the host may ask for the socket of a worker that it starts. E_STATE: it may not.
  virtual Status open_for_host(Error& error) { return refuse_host(mode_, error); }
  // The socket for a thread that is to work. END: no worker is missing. E_STATE: workers are not threads. Thread
  // safety: any thread.
  virtual Status take_offer(os::Fd&, Error& error) { return refuse_offer(mode_, error); }
  // Withdraws the offers that no thread took.
  virtual void withdraw_offers() {}

 protected:
  // The other ends of the socket and of the lifeline, less the pidfd, which is opened after them.
  [[nodiscard]] virtual std::uint64_t when_starting() const { return 1; }

 private:
  std::int32_t mode_;
};

// Makes the launcher for settings.start. `child_main` is for forked workers.
std::unique_ptr<Launcher> make_launcher(const Settings& settings, ChildMain child_main);

}  // namespace feedlane::supervisor
