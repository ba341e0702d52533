// SPDX-License-Identifier: Apache-2.0
// What several of these tests need: a forked child, a folder, signals for as long as something lasts.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "os/fd.hpp"

namespace feedlane::test {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  os::Fd read, write;
};

// Forks a child that runs `f` and then ends without a word to the test framework.
template <class F>
pid_t fork_child(F&& f) {
  std::cout.flush();  // or the child might say it again
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    std::forward<F>(f)();
    ::_exit(0);
  }
  return pid;
}

// The status of waitpid.
inline int wait_for_end(pid_t pid) {
  int status = 0;
  pid_t ended = 0;
  do ended = ::waitpid(pid, &status, 0);
  while (ended < 0 && errno == EINTR);
  REQUIRE(ended == pid);
  return status;
}

// What `f` returns when a forked child runs it, so that limits, signals and ties to a lifeline stay there.
template <class F>
auto in_child(F&& f) {
  using T = std::invoke_result_t<F>;
  static_assert(std::is_trivially_copyable_v<T>);
  Pipe answer;
  const pid_t pid = fork_child([&] {
    const T value = f();
    if (::write(answer.write.get(), &value, sizeof value) != sizeof value) ::_exit(1);
  });
  answer.write.reset();
  T value{};
  const ssize_t got = ::read(answer.read.get(), &value, sizeof value);
  CHECK(wait_for_end(pid) == 0);
  REQUIRE(got == static_cast<ssize_t>(sizeof value));
  return value;
}

// A folder that is gone at the end.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "feedlane-test-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }

 private:
  std::filesystem::path path_;
};

// SIGUSR1, caught and without SA_RESTART, for the thread that made this, again and again until it is gone or has had
// `most`.
class Signals {
 public:
  explicit Signals(int most) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    (void)::sigaction(SIGUSR1, &action, &before_);
    sender_ = std::thread([this, most, target = ::pthread_self()] {
      for (int i = 0; i < most && !stop_.load(std::memory_order_relaxed); i++) {
        (void)::pthread_kill(target, SIGUSR1);
        std::this_thread::yield();
      }
    });
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() {
    stop_.store(true, std::memory_order_relaxed);
    sender_.join();
    (void)::sigaction(SIGUSR1, &before_, nullptr);
  }

 private:
  struct sigaction before_ {};
  std::atomic<bool> stop_{false};
  std::thread sender_;
};

}  // namespace feedlane::test
