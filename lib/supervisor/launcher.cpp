// SPDX-License-Identifier: Apache-2.0
// The start modes: spawn, fork, thread, external.
#include "supervisor/launcher.hpp"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace feedlane::supervisor {
namespace {

class SpawnLauncher final : public Launcher {
 public:
  explicit SpawnLauncher(const Settings& settings) : Launcher(settings.start), settings_(settings) {}
  // Saves the working directory and the files that PATH leads to, because both may change before workers are started. A
  // process may be in a directory that it may not open. Then workers start in the working directory of that time.
  Status set_up(Error&) override {
    os::open_working_directory(directory_);
    if (!settings_.is_own_program) files_ = os::find_program(settings_.argv[0]);
    return FEEDLANE_OK;
  }
  Status start(Peer& peer, os::Fd theirs, os::Poller& poller, Error& error) override {
    if (settings_.is_own_program) files_ = {os::file_of_this_program()};
    return peer.spawn({.argv = settings_.argv,
                       .environment = settings_.environment,
                       .cpus = settings_.cpus_of(peer.id()),
                       .directory = directory_.get(),
                       .files = files_},
                      std::move(theirs), poller, error);
  }

 protected:
  [[nodiscard]] std::uint64_t when_starting() const override { return 3; }  // also the pipe of os::spawn

 private:
  const Settings& settings_;
  os::Fd directory_;                // in which the loader was created
  std::vector<std::string> files_;  // candidates for the program
};

class ForkLauncher final : public Launcher {
 public:
  ForkLauncher(const Settings& settings, ChildMain child_main)
      : Launcher(settings.start), settings_(settings), child_main_(std::move(child_main)) {}
  Status start(Peer& peer, os::Fd theirs, os::Poller& poller, Error& error) override {
    bool is_child = false;
    const Status s = peer.fork(settings_.cpus_of(peer.id()), poller, is_child, error);
    if (is_child) child_main_(theirs.release());  // does not return
    return s;
  }

 protected:
  // Also the pidfd and, if processors are set, the pipe of os::CpusReport.
  [[nodiscard]] std::uint64_t when_starting() const override { return settings_.cpus.empty() ? 2 : 4; }

 private:
  const Settings& settings_;
  ChildMain child_main_;
};

// Workers are threads of this process, which attach when they like.
class ThreadLauncher final : public Launcher {
 public:
  ThreadLauncher() : Launcher(FEEDLANE_START_THREAD) {}
  Status start(Peer& peer, os::Fd theirs, os::Poller&, Error&) override {
    peer.expect(Peer::Kind::thread);
    const std::lock_guard lock(mutex_);
    offers_.push_back(std::move(theirs));
    return FEEDLANE_OK;
  }
  [[nodiscard]] bool starts_early() const override { return true; }
  [[nodiscard]] bool starts_at_once() const override { return false; }
  [[nodiscard]] bool owns_processes() const override { return false; }
  [[nodiscard]] bool can_kill() const override { return false; }
  // No pidfd, but the worker's side is in this process too: six descriptors, and both segments during the attach. All
  // workers may attach at once.
  [[nodiscard]] std::uint64_t descriptors(std::uint64_t workers) const override { return 11 * workers + 1; }
  [[nodiscard]] bool has_start_deadline() const override { return false; }
  [[nodiscard]] const char* blamed_argument() const override { return "config.task_timeout_ns"; }
  Status take_offer(os::Fd& fd, Error&) override {
    const std::lock_guard lock(mutex_);
    if (offers_.empty()) return FEEDLANE_END;
    fd = std::move(offers_.front());
    offers_.erase(offers_.begin());
    return FEEDLANE_OK;
  }
  void withdraw_offers() override {
    const std::lock_guard lock(mutex_);
    offers_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<os::Fd> offers_;  // sockets that no thread has taken yet
};

// Workers are processes that the host starts. The host asks for each socket by open_worker.
class ExternalLauncher final : public Launcher {
 public:
  explicit ExternalLauncher(std::int32_t mode) : Launcher(mode), mode_(mode) {}
  Status start(Peer& peer, os::Fd, os::Poller&, Error&) override {
    peer.expect(Peer::Kind::external);
    return FEEDLANE_OK;
  }
  [[nodiscard]] bool starts_workers() const override { return false; }
  [[nodiscard]] bool starts_at_once() const override { return mode_ == FEEDLANE_START_HOST; }
  [[nodiscard]] bool owns_processes() const override { return false; }
  Status open_for_host(Error&) override { return FEEDLANE_OK; }

 private:
  std::int32_t mode_;
};

}  // namespace

Status refuse_host(std::int32_t mode, Error& error) {
  return error.refuse(FEEDLANE_E_STATE, "config.start", mode, FEEDLANE_START_EXTERNAL,
                      "this call needs a loader with FEEDLANE_START_EXTERNAL or FEEDLANE_START_HOST");
}

Status refuse_offer(std::int32_t mode, Error& error) {
  return error.refuse(FEEDLANE_E_STATE, "config.start", mode, FEEDLANE_START_THREAD,
                      "this call needs a loader with FEEDLANE_START_THREAD");
}

std::unique_ptr<Launcher> make_launcher(const Settings& settings, ChildMain child_main) {
  switch (settings.start) {
    case FEEDLANE_START_FORK: return std::make_unique<ForkLauncher>(settings, std::move(child_main));
    case FEEDLANE_START_THREAD: return std::make_unique<ThreadLauncher>();
    case FEEDLANE_START_EXTERNAL:
    case FEEDLANE_START_HOST: return std::make_unique<ExternalLauncher>(settings.start);
    default: return std::make_unique<SpawnLauncher>(settings);
  }
}

}  // namespace feedlane::supervisor
