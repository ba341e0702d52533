// SPDX-License-Identifier: Apache-2.0
// What `feedlane doctor` reads of /proc, /sys and cgroups.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace observe {

constexpr std::uint64_t unlimited = UINT64_MAX;

// The files of the system, and the process whose limits count.
struct System {
  std::string root;              // before /proc and /sys; empty but in tests
  std::string process = "self";  // its folder in /proc

  [[nodiscard]] std::string proc(const std::string& name) const { return root + "/proc/" + name; }
  [[nodiscard]] std::string of_process(const std::string& name) const { return proc(process + "/" + name); }
  [[nodiscard]] std::string cgroups() const { return root + "/sys/fs/cgroup"; }
};

// ---- files ----

// The first line; nullopt if there is no such file.
std::optional<std::string> line_of(const std::string& path);
// The number in a file; nullopt if there is no such file, or it holds no number, as "max".
std::optional<std::uint64_t> number_in(const std::string& path);
// The first number in the line that begins with `name`.
std::optional<std::uint64_t> number_after(const std::string& path, std::string_view name);
// The words after `name` in the line that begins with it.
std::string words_after(const std::string& path, std::string_view name);
// The word in brackets: "never" of "always advise [never]"; empty if there is none.
std::string chosen_word(const std::string& path);
// How many entries a folder has.
std::uint64_t entries_of(const std::string& folder);

// ---- limits ----

struct Limit {
  std::uint64_t soft = unlimited;
  std::uint64_t hard = unlimited;
};
// A resource limit of the process, as /proc/PID/limits names it: "Max open files".
Limit limit_of(const System& system, std::string_view name);
// Whether the process has a capability (CAP_*), by its number.
bool has_capability(const System& system, int number);
// Threads of all processes of this process's real user, of which RLIMIT_NPROC allows so many.
std::uint64_t threads_of_user(const System& system);

// A limit of a cgroup, or of one of its ancestors.
struct GroupLimit {
  std::string group;  // its path
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  [[nodiscard]] std::uint64_t left() const { return limit - (used < limit ? used : limit); }
};
// Of all memory limits on the path of the process's cgroup the one that leaves least. The cache of files doesn't count as used.
std::optional<GroupLimit> memory_limit(const System& system);
// The same for tasks: processes and threads.
std::optional<GroupLimit> task_limit(const System& system);
// Processes that the OOM killer has ended in the process's cgroup.
std::uint64_t killed_for_memory(const System& system);

// The smallest processor quota on the path.
struct Quota {
  std::string group;
  double processors = 0;
};
std::optional<Quota> processor_quota(const System& system);
// For how long the cgroup's quota has kept its processes from running, in all.
std::uint64_t throttled_ns(const System& system);
// Processors that the process may use, without quotas. `pid` 0: this one.
int allowed_processors(std::int64_t pid);

// ---- processes ----

// What the kernel says of a process.
struct ProcessState {
  char state = 0;    // R, S, D, T, t, Z, X; 0: it has ended
  std::string wait;  // the kernel's function in which it sleeps, or empty
  std::int64_t tracer = 0;
};
ProcessState state_of(std::int64_t pid);
// "stopped", of T.
const char* state_words(char state);

// The numbers, in this PID namespace, of processes by the numbers that `trainer` has for them.
class ProcessNumbers {
 public:
  // Reads /proc once, if the trainer is in another namespace.
  explicit ProcessNumbers(std::int64_t trainer);
  // 0: there is no such process.
  [[nodiscard]] std::int64_t here(std::int64_t pid) const;

 private:
  bool are_same_ = true;
  std::map<std::int64_t, std::int64_t> numbers_;
};

// Whether the process runs Python.
bool runs_python(std::int64_t pid);
// A command that shows the stacks of a process, with sudo where ptrace_scope asks for it.
std::string stack_command(std::int64_t pid, char state);

}  // namespace observe
