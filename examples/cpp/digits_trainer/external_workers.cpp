// SPDX-License-Identifier: Apache-2.0
// Starts this program again as workers and waits for their ends.
#include "external_workers.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>

namespace digits {
namespace {

constexpr const char* variable = "FEEDLANE_WORKER_FD=";

/// This process's environment with FEEDLANE_WORKER_FD in it. The pointers borrow from `environ` and `assignment`.
std::vector<char*> worker_environment(std::string& assignment) {
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; entry++) {
    if (std::strncmp(*entry, variable, std::strlen(variable)) != 0) environment.push_back(*entry);
  }
  environment.push_back(assignment.data());
  environment.push_back(nullptr);
  return environment;
}

}  // namespace

ExternalWorkers::~ExternalWorkers() {
  for (const pid_t process : processes_) {
    while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

void ExternalWorkers::start_missing(feedlane::Loader& loader) {
  for (;;) {
    int32_t id = -1;  // any
    const std::optional<int> fd = loader.open_worker(id);
    if (!fd) return;
    const bool enough = static_cast<int64_t>(processes_.size()) >= most_starts_;
    const int failed = enough ? 0 : start(*fd);
    close(*fd);  // the child has its own; ours would hide its end from the loader
    if (enough) {
      throw std::runtime_error(std::to_string(most_starts_) + " workers were started already: they end too soon");
    }
    if (failed != 0) throw std::system_error(failed, std::generic_category(), "a worker can't be started");
  }
}

/// 0 or what errno calls it.
int ExternalWorkers::start(int fd) {
  std::string assignment = variable + std::to_string(fd);
  const std::vector<char*> environment = worker_environment(assignment);
  char name[] = "digits_trainer";
  char* const arguments[] = {name, nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Onto itself: this clears close-on-exec in the child, and in the child only.
  posix_spawn_file_actions_adddup2(&actions, fd, fd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A process group of its own, so that Ctrl-C in the terminal reaches the trainer alone, which decides.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t process = 0;
  const int failed = posix_spawn(&process, "/proc/self/exe", &actions, &attributes, arguments, environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == 0) processes_.push_back(process);
  return failed;
}

}  // namespace digits
