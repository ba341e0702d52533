// SPDX-License-Identifier: Apache-2.0
// What a process has open and mapped, and parts of a test that run in a forked child.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace feedlane::test {

// What was found wrong in a child, where doctest doesn't reach.
class Findings {
 public:
  void expect(bool holds, const char* what, int line) {
    if (!holds) text_ += "line " + std::to_string(line) + ": " + what + "\n";
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};
#define EXPECT(findings, condition) (findings).expect((condition), #condition, __LINE__)

// A forked child. Ends with _exit: no destructor and no exit handler of this program runs there.
class Child {
 public:
  explicit Child(const std::function<void(Findings&)>& run);
  // All descriptors but these and the standard ones are closed there, so that it keeps nothing of its parent's alive.
  Child(const std::vector<int>& keep, const std::function<void(Findings&)>& run);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  // Waits for its end: "" if all went well, else what was found, or that it didn't come to its end.
  std::string finish();
  [[nodiscard]] pid_t pid() const { return pid_; }
  // waitpid's status; -1 if somebody else has reaped it.
  [[nodiscard]] int wait_status() const { return wait_status_; }

 private:
  void start(const std::vector<int>* keep, const std::function<void(Findings&)>& run);
  pid_t pid_ = -1;
  int read_ = -1;
  int wait_status_ = -1;
};

std::string in_child(const std::function<void(Findings&)>& run);

// A program started by fork and exec with the worker's descriptor `fd`, as a host of external workers does.
class Process {
 public:
  Process(const char* program, const char* form, int fd);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();
  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const;
  // waitpid's status; -1 if it was reaped by somebody else.
  int wait();

 private:
  pid_t pid_ = -1;
  bool waited_ = false;
};

std::vector<int> open_descriptors();
// Lines of /proc/self/maps with `name` in them.
std::size_t mappings_of(const std::string& name);
// Memory of this process that is there, by the kernel's account.
std::uint64_t resident_bytes();
// One message with descriptors along; whether it was taken.
bool send_descriptors(int socket, std::string_view words, const std::vector<int>& descriptors);
// Waits for such a message of one byte; -1: no descriptor came. The caller closes it.
int receive_descriptor(int socket);
// Whether this process has any child, running or not.
bool has_children();
// The kernel's letter for what a process does, 'T' if it is stopped; 'X' if there is none of this number.
char state_of(pid_t pid);
// Whether there is a process of this number that isn't a zombie.
bool is_running(pid_t pid);

// Whether a thread of this process is in a system call that waits.
bool is_asleep(pid_t thread);
// Whether `holds` is true before patience ends. For states that nothing tells of.
bool eventually(const std::function<bool()>& holds);

// What this process has used of processors.
std::int64_t cpu_ns();

// A pipe, closed on exec.
struct Pipe {
  Pipe() { (void)!::pipe2(fds, O_CLOEXEC); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    (void)::close(fds[0]);
    (void)::close(fds[1]);
  }
  int fds[2] = {-1, -1};
};

}  // namespace feedlane::test
