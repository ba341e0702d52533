// SPDX-License-Identifier: Apache-2.0
// How workers come to be: one launcher for each start mode. It starts a worker in an opened place, and says what may be expected
// of such a worker. A new start mode is a new launcher.
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

// Runs in a forked child, with its end of the socket: closes what is the trainer's alone, works, and never returns.
using ChildMain = std::function<void(int fd)>;

// E_STATE: this start mode, or a loader without workers, has no use for such a call.
Status refuse_host(std::int32_t mode, Error& error);
Status refuse_offer(std::int32_t mode, Error& error);

class Launcher {
 public:
  explicit Launcher(std::int32_t mode) : mode_(mode) {}
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  virtual ~Launcher() = default;

  // Once, when the loader is created.
  virtual Status set_up(Error&) { return FEEDLANE_OK; }
  // Starts a worker for a place that was opened, with its end of the socket.
  virtual Status start(Peer& peer, os::Fd theirs, os::Poller& poller, Error& error) = 0;

  // The library starts workers by itself, at the first begin and in place of those that died. Else the host brings them.
  [[nodiscard]] virtual bool starts_workers() const { return true; }
  // They are started when the loader is created, since they may attach before the first epoch.
  [[nodiscard]] virtual bool starts_early() const { return false; }
  // Workers are processes of this library: a start that fails every time is a failure of the loader.
  [[nodiscard]] virtual bool owns_processes() const { return true; }
  // SIGKILL ends them.
  [[nodiscard]] virtual bool can_kill() const { return true; }
  // They have to attach within the start timeout.
  [[nodiscard]] virtual bool has_start_deadline() const { return true; }
  // Descriptors of this process that so many workers take: five each (a socket, two eventfds, a lifeline, a pidfd), and
  // `when_starting` more while the last one comes to be.
  [[nodiscard]] virtual std::uint64_t descriptors(std::uint64_t workers) const { return 5 * workers + when_starting(); }
  // The argument that a hopeless worker is blamed on.
  [[nodiscard]] virtual const char* blamed_argument() const { return "worker"; }

  // Whether the host may ask for the socket of a worker that it brings. E_STATE.
  virtual Status open_for_host(Error& error) { return refuse_host(mode_, error); }
  // The socket for a thread that comes to work. END: none is missing. E_STATE where workers are no threads. Thread-safe.
  virtual Status take_offer(os::Fd&, Error& error) { return refuse_offer(mode_, error); }
  // Offers that nobody took are withdrawn.
  virtual void withdraw_offers() {}

 protected:
  // The socket's other end, which is open before the pidfd, and the lifeline's.
  [[nodiscard]] virtual std::uint64_t when_starting() const { return 1; }

 private:
  std::int32_t mode_;
};

// The launcher of settings.start. `child_main` is for forked workers.
std::unique_ptr<Launcher> make_launcher(const Settings& settings, ChildMain child_main);

}  // namespace feedlane::supervisor
