// SPDX-License-Identifier: Apache-2.0
#include "external_workers.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "handles.hpp"

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

int fail(const char* what, int os_errno) {
  std::fprintf(stderr, "digits_trainer: %s: %s\n", what, std::strerror(os_errno));
  return FEEDLANE_E_OS;
}

}  // namespace

ExternalWorkers::~ExternalWorkers() {
  for (const pid_t process : processes_) {
    while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

int32_t ExternalWorkers::start_missing(feedlane_loader* loader) {
  for (;;) {
    auto error = initialised<feedlane_error>();
    int32_t id = -1;  // any
    int32_t fd = -1;
    int32_t status = feedlane_loader_open_worker(loader, &id, &fd, &error);
    if (status == FEEDLANE_END) return FEEDLANE_OK;
    if (status < 0) return complain("open_worker", status, error);
    status = start(fd);
    close(fd);  // the child has its own; ours would hide its end from the loader
    if (status < 0) return status;
  }
}

int32_t ExternalWorkers::start(int32_t fd) {
  if (static_cast<int64_t>(processes_.size()) >= most_starts_) {
    std::fprintf(stderr, "digits_trainer: %lld workers were started already: they end too soon\n",
                 static_cast<long long>(most_starts_));
    return FEEDLANE_E_RESTARTS;
  }
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
  if (failed != 0) return fail("a worker can't be started", failed);
  processes_.push_back(process);
  return FEEDLANE_OK;
}

}  // namespace digits
