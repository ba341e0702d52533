// SPDX-License-Identifier: Apache-2.0
// Processes through pidfds: starting, signals, ends, lifelines.
#include "os/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "os/cpus_report.hpp"
#include "os/fork_stamp.hpp"
#include "os/signals.hpp"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace feedlane::os {

Status open_pidfd(pid_t pid, Fd& out, Error& error) {
  out.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return out ? FEEDLANE_OK : error.os(errno, "pidfd_open of process {}", pid);
}

namespace {

// The pid that /proc shows for the process of a pidfd: -1 if the process was reaped, 0 if the descriptor is not a pidfd
// or the process is not in /proc's PID namespace.
Status number_in_proc(int pidfd, pid_t& pid, Error& error) {
  pid = 0;
  // fdinfo of another kind of descriptor may contain anything, so ask the kernel whether this is a pidfd.
  if (::syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) != 0 && (errno == EBADF || errno == EINVAL))
    return FEEDLANE_OK;
  char path[64];
  (void)format_to(path, "/proc/self/fdinfo/{}", pidfd);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
  if (!file) return error.os(errno, "opening {}", path);
  char line[128];
  while (std::fgets(line, sizeof line, file.get()) != nullptr)
    if (std::sscanf(line, "Pid: %d", &pid) == 1) break;
  return FEEDLANE_OK;
}

}  // namespace

Status is_same_process(int pidfd, int other, bool& is_same, Error& error) {
  pid_t one = 0;
  pid_t two = 0;
  Status s = number_in_proc(pidfd, one, error);
  if (s == FEEDLANE_OK) s = number_in_proc(other, two, error);
  is_same = s == FEEDLANE_OK && one > 0 && one == two;
  return s;
}

bool has_ended(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

void wait_for_end(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
}

bool is_this_process(int pidfd) {
  pid_t pid = 0;
  Error unknown;
  char self[16] = {};  // the pid as /proc shows it, like number_in_proc
  return number_in_proc(pidfd, pid, unknown) == FEEDLANE_OK && pid > 0 &&
         ::readlink("/proc/self", self, sizeof self - 1) > 0 && std::atoi(self) == pid;
}

void send_signal(int pidfd, int signal) {
  if (!is_this_process(pidfd)) (void)::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

void send_signal_to_group(int pidfd, pid_t leader, int signal) {
  // WNOWAIT does not reap, so the pid and the group's id stay reserved. waitid fails if it is not a child or was reaped
  // already.
  siginfo_t info{};
  if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      leader > 0 && leader != ::getpgid(0))
    (void)::kill(-leader, signal);
}

namespace {

// For a child without a pidfd.
void kill_and_reap(pid_t pid) {
  (void)::kill(pid, SIGKILL);
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Opens a pidfd of a child. If that fails, it kills the child.
Status watch_child(pid_t pid, Fd& pidfd, Error& error) {
  const Status s = open_pidfd(pid, pidfd, error);
  if (s == FEEDLANE_OK) return s;
  // ESRCH: the host ignores SIGCHLD, so the kernel reaps its children, and this one has ended already.
  if (error.os_errno == ESRCH)
    return error.fail(FEEDLANE_E_PEER_DEAD, "process {} ended immediately after its start", pid);
  kill_and_reap(pid);
  return s;
}

}  // namespace

// The kernel shows a traced zombie only to its tracer, until the tracer has waited for it, detaches or ends.
Ending reap(int pidfd) {
  siginfo_t info{};
  if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG) != 0) return {};
  if (info.si_pid == 0) return {.is_kept = has_ended(pidfd)};
  return {.known = true, .signaled = info.si_code != CLD_EXITED, .code = info.si_status};
}

// Field 52 of /proc/PID/stat has the status in wait's form, of a zombie and for its user. It is 0 for other users.
Ending look_at_zombie(int pidfd) {
  pid_t pid = 0;
  pid_t after = 0;
  Error unknown;
  if (number_in_proc(pidfd, pid, unknown) != FEEDLANE_OK || pid <= 0) return {};
  char path[64];
  (void)format_to(path, "/proc/{}/stat", pid);
  char text[1024] = {};
  {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), &std::fclose);
    if (!file || std::fread(text, 1, sizeof text - 1, file.get()) == 0) return {};
  }
  const char* field = std::strrchr(text, ')');  // the end of field 2, a name with any characters
  if (field == nullptr || std::strncmp(field, ") Z", 3) != 0) return {};
  for (int number = 2; number < 52 && field != nullptr; number++) field = std::strchr(field + 1, ' ');
  const int status = field != nullptr ? std::atoi(field) : 0;
  // Not reaped meanwhile: what was read is of this process, not of one that got its pid.
  if (status == 0 || number_in_proc(pidfd, after, unknown) != FEEDLANE_OK || after != pid) return {};
  return {.known = true,
          .signaled = WIFSIGNALED(status),
          .code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)};
}

namespace {

// Never destroyed: loaders may still exist while the process exits.
struct Abandoned {
  std::mutex mutex;
  std::vector<Fd> children;
};
Abandoned& abandoned() {
  static auto* const all = new Abandoned;
  return *all;
}

}  // namespace

void abandon_child(Fd pidfd) noexcept {
  try {
    Abandoned& all = abandoned();
    const std::lock_guard lock(all.mutex);
    all.children.push_back(std::move(pidfd));
  } catch (const std::exception&) {  // it stays a zombie until this process ends
  }
}

bool reap_abandoned() noexcept {
  bool any_kept = false;
  try {
    Abandoned& all = abandoned();
    // The lock fails if another thread is reaping, or was reaping when this process was forked.
    const std::unique_lock lock(all.mutex, std::try_to_lock);
    if (!lock.owns_lock()) return true;
    std::erase_if(all.children, [&](const Fd& child) {
      if (!has_ended(child.get())) return false;
      const bool is_kept = reap(child.get()).is_kept;
      any_kept = any_kept || is_kept;
      return !is_kept;
    });
  } catch (const std::exception&) {  // the next call tries again
  }
  return !any_kept;
}

namespace {

// Makes only system calls, because a child between vfork and exec calls it. Returns 0, or errno.
int arm_lifeline(int read_end, pid_t pid) {
  if (::fcntl(read_end, F_SETOWN, pid) != 0 || ::fcntl(read_end, F_SETSIG, SIGKILL) != 0) return errno;
  const int flags = ::fcntl(read_end, F_GETFL);
  return flags >= 0 && ::fcntl(read_end, F_SETFL, flags | O_ASYNC) == 0 ? 0 : errno;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));  // exec doesn't write through it
  result.push_back(nullptr);
  return result;
}

}  // namespace

void open_working_directory(Fd& out) { out.reset(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)); }

std::vector<std::string> find_program(const std::string& program) {
  if (program.empty() || program.find('/') != std::string::npos) return {program};
  const char* const path = ::secure_getenv("PATH");  // a privileged program does not trust its user's PATH
  const std::string folders = path == nullptr ? "/bin:/usr/bin" : path;
  std::vector<std::string> files;
  for (std::size_t at = 0; at <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    files.push_back(end == at ? program : folders.substr(at, end - at) + "/" + program);  // empty: the current folder
    at = end + 1;
  }
  return files;
}

namespace {

struct Start {
  const std::vector<std::string>& files;
  char* const* argv;
  char* const* environment;
  int inherited_fd;
  int lifeline;
  const NumberSet* cpus;
  int directory;
  int report;  // write end of a pipe that exec closes; the child writes a Failure to it if it can't exec
};

// Why a child could not execute a program.
struct Failure {
  int reason = 0;  // errno; 0: no failure
  enum { program, cpus, directory } of = program;
};

// Otherwise the first files that a program opens would become its standard input, output or error.
void open_missing_stdio() {
  for (int fd = 0; fd <= 2; fd++) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) continue;
    (void)::close(fd);
    (void)::open("/dev/null", O_RDWR);  // gets the lowest free number, which is this one
  }
}

// Makes only system calls, because a child between vfork and exec shares the parent's memory. Returns 0, or errno.
int prepare_to_exec(const Start& start) {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal <= 64; signal++)
    (void)::sigaction(signal, &by_default, nullptr);  // fails for SIGKILL and SIGSTOP
  if (::setpgid(0, 0) != 0) return errno;
  if (start.inherited_fd >= 0 && ::fcntl(start.inherited_fd, F_SETFD, 0) != 0) return errno;
  open_missing_stdio();
  // This child has a copy of the lifeline's write end. If the parent is dead, that copy is the last one, and exec
  // closes it, which kills this child.
  if (start.lifeline >= 0)
    if (const int reason = arm_lifeline(start.lifeline, ::getpid()); reason != 0) return reason;
  sigset_t none;
  (void)::sigemptyset(&none);
  return ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0 ? 0 : errno;
}

// Returns only if no file could be executed, with the errno that execvp would choose.
int exec_first(const Start& start) {
  bool is_forbidden = false;
  for (const std::string& file : start.files) {
    (void)::execve(file.c_str(), start.argv, start.environment);
    if (errno == EACCES) is_forbidden = true;
    else if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE && errno != ENODEV && errno != ETIMEDOUT)
      return errno;
  }
  return is_forbidden ? EACCES : ENOENT;
}

[[noreturn]] void become(const Start& start) {
  Failure failure;
  if (start.cpus != nullptr) failure = {run_on(*start.cpus), Failure::cpus};
  if (failure.reason == 0) failure = {prepare_to_exec(start), Failure::program};
  if (failure.reason == 0 && start.directory >= 0 && ::fchdir(start.directory) != 0)
    failure = {errno, Failure::directory};
  if (failure.reason == 0) failure.reason = exec_first(start);
  (void)!::write(start.report, &failure, sizeof failure);
  ::_exit(127);
}

[[gnu::noinline]] pid_t start_child(const Start& start) {
  const pid_t pid = ::vfork();
  if (pid == 0) become(start);
  return pid;
}

// With vfork the parent runs only after the child has reported its failure or executed the program.
Failure failure_of(int report) {
#ifdef __SANITIZE_THREAD__
  pollfd entry{report, POLLIN, 0};  // with ThreadSanitizer vfork is fork
  while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
#endif
  Failure failure;
  return ::read(report, &failure, sizeof failure) == sizeof failure ? failure : Failure{};
}

// The directory that a child must enter; -1 if this process is in it, or is in a directory that it may not search. A
// process that has dropped privileges may stay in such a directory, but can't enter it again.
int to_enter(int directory) {
  struct stat wanted {};
  struct stat own {};
  if (directory < 0 || ::fstat(directory, &wanted) != 0 || ::stat(".", &own) != 0) return -1;
  return wanted.st_dev == own.st_dev && wanted.st_ino == own.st_ino ? -1 : directory;
}

Status refuse_cpus(int reason, const NumberSet& cpus, Error& error) {
  return error.os(reason, "pinning a worker to {} processors (the highest: {})", cpus.count(), cpus.last());
}

}  // namespace

// Doesn't use posix_spawn: a trainer that is killed before it can tie the new process to the lifeline would leave it
// behind.
Status spawn(const SpawnRequest& request, pid_t& pid, Fd& pidfd, Error& error) {
  const std::vector<std::string> files = request.files.empty() ? find_program(request.argv[0]) : request.files;
  const std::vector<char*> argv = pointers(request.argv);
  const std::vector<char*> environment = pointers(request.environment);
  Fd read_end, write_end;  // non-blocking, because a child that another thread forks now may keep the write end open
  if (!open_pipe(read_end, write_end)) return error.os(errno, "starting worker program {}", argv[0]);
  const Start start{files,
                    argv.data(),
                    environment.data(),
                    request.inherited_fd,
                    request.lifeline,
                    request.cpus,
                    to_enter(request.directory),
                    write_end.get()};
  Failure failed;
  {
    const SignalBlock block;  // no signal handler of the host must run in the child
    pid = start_child(start);
    failed.reason = pid < 0 ? errno : 0;
  }
  write_end.reset();
  if (pid >= 0 && (failed = failure_of(read_end.get())).reason != 0) kill_and_reap(pid);
  if (failed.reason != 0 && failed.of == Failure::cpus) return refuse_cpus(failed.reason, *request.cpus, error);
  if (failed.reason != 0 && failed.of == Failure::directory)
    return error.os(failed.reason, "starting worker program {} in the directory in which the loader was created",
                    argv[0]);
  if (failed.reason != 0) return error.os(failed.reason, "starting worker program {}", argv[0]);
  return watch_child(pid, pidfd, error);
}

Status this_program(std::vector<std::string>& argv, Error& error) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/cmdline", "re"), &std::fclose);
  if (!file) return error.os(errno, "reading this program's arguments");
  std::string all;
  char buffer[4096];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) all.append(buffer, got);
  argv.clear();
  for (std::size_t at = 0; at < all.size();) {
    argv.emplace_back(all.c_str() + at);
    at += argv.back().size() + 1;
  }
  if (argv.empty()) argv.emplace_back();
  argv[0] = file_of_this_program();
  return FEEDLANE_OK;
}

// If the file was removed, the kernel adds " (deleted)" to the path. /proc/self/exe executes the running file, whatever
// is at the path now.
std::string file_of_this_program() {
  static constexpr const char* own = "/proc/self/exe";
  char path[4096];
  const ssize_t length = ::readlink(own, path, sizeof path);
  if (length <= 0 || length == sizeof path) return own;
  std::string file(path, static_cast<std::size_t>(length));
  return file.ends_with(" (deleted)") ? own : file;
}

// ---- lifelines ----

namespace {

// All write ends of this process, for its forked children to close.
struct WriteEnd {
  int fd;
  ino_t pipe;
};
struct WriteEnds {
  std::mutex mutex;
  std::vector<WriteEnd> ends;
  ForkStamp stamp;  // of the process that opened them

  // In a forked child: closes the write ends that its parent had opened, unless the host has closed them and other
  // files have their numbers. Doesn't lock the stamp, because fork_process holds its lock.
  void drop_inherited() {
    if (ends.empty() || !stamp.is_foreign()) return;
    struct stat file {};
    for (const WriteEnd& end : ends)
      if (::fstat(end.fd, &file) == 0 && S_ISFIFO(file.st_mode) && file.st_ino == end.pipe) (void)::close(end.fd);
    ends.clear();
  }
};
WriteEnds& write_ends() {
  static auto* const all = new WriteEnds;  // never destroyed: lifelines may be cut while the process exits
  return *all;
}

}  // namespace

Status Lifeline::open(Fd& read_end, Error& error) {
  WriteEnds& all = write_ends();
  const std::lock_guard lock(all.mutex);
  all.drop_inherited();
  if (const Status s = all.stamp.take(error); s != FEEDLANE_OK) return s;
  all.ends.reserve(all.ends.size() + 1);
  if (!open_pipe(read_end, write_end_)) return error.os(errno, "pipe2");
  struct stat file {};
  (void)::fstat(write_end_.get(), &file);
  all.ends.push_back({write_end_.get(), file.st_ino});
  return FEEDLANE_OK;
}

void Lifeline::cut() {
  if (!write_end_) return;
  WriteEnds& all = write_ends();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.ends, [&](const WriteEnd& end) { return end.fd == write_end_.get(); });
  write_end_.reset();
}

Status fork_process(pid_t& pid, Fd& pidfd, Error& error, int lifeline, const NumberSet* cpus) {
  CpusReport report;
  if (cpus != nullptr)
    if (const Status s = report.open(error); s != FEEDLANE_OK) return s;
  WriteEnds& all = write_ends();
  const std::lock_guard lifelines(all.mutex);
  const std::lock_guard children(abandoned().mutex);
  const ForkStamp::Lock stamps;
  pid = ::fork();
  if (pid < 0) return error.os(errno, "fork of a worker");
  if (pid == 0) {
    (void)::setpgid(0, 0);
    all.drop_inherited();
    // The child does this, because the parent may be killed before it could.
    if (lifeline >= 0 && tie_lifeline(lifeline, ::getpid(), error) != FEEDLANE_OK) ::_exit(1);
    if (cpus != nullptr) report.set(*cpus);  // before it can start a thread
    return FEEDLANE_OK;
  }
  (void)::setpgid(pid, pid);  // parent and child both do this, so that the group exists before it is signalled
  const Status s = watch_child(pid, pidfd, error);
  const int reason = cpus == nullptr ? 0 : report.wait(pidfd);
  if (reason == 0) return s;
  if (pidfd) {
    wait_for_end(pidfd.get());
    (void)reap(pidfd.get());
    pidfd.reset();
  }
  return refuse_cpus(reason, *cpus, error);
}

void drop_inherited_lifelines() {
  WriteEnds& all = write_ends();
  // The lock fails if another thread was opening or cutting a lifeline when this process was forked.
  const std::unique_lock lock(all.mutex, std::try_to_lock);
  if (lock.owns_lock()) all.drop_inherited();
}

Status tie_lifeline(int read_end, pid_t pid, Error& error) {
  if (const int reason = arm_lifeline(read_end, pid); reason != 0) return error.os(reason, "arming the lifeline");
  // The kernel sends the signal when the write end is closed. If it was closed before O_ASYNC was set, no signal comes.
  pollfd entry{read_end, POLLIN, 0};
  if (::poll(&entry, 1, 0) == 1) return error.fail(FEEDLANE_E_PEER_DEAD, "the trainer has ended");
  return FEEDLANE_OK;
}

void untie_lifeline(int read_end) {
  const int flags = ::fcntl(read_end, F_GETFL);
  if (flags >= 0) (void)::fcntl(read_end, F_SETFL, flags & ~O_ASYNC);
  (void)::fcntl(read_end, F_SETOWN, 0);
}

}  // namespace feedlane::os
