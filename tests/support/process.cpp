// SPDX-License-Identifier: Apache-2.0
// Processes for tests: forked children, their ends, what they leave behind.
#include "process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "events.hpp"

namespace feedlane::test {
namespace {

constexpr const char* end_mark = "came to its end";

void close_others(const std::vector<int>& keep, int pipe) {
  for (const int fd : open_descriptors())
    if (fd > STDERR_FILENO && fd != pipe && std::find(keep.begin(), keep.end(), fd) == keep.end()) (void)::close(fd);
}

}  // namespace

void Child::start(const std::vector<int>* keep, const std::function<void(Findings&)>& run) {
  int pair[2] = {-1, -1};
  if (::pipe2(pair, O_CLOEXEC) != 0) return;
  for (int& end : pair)  // what a child without standard output prints must not become its findings
    if (end <= STDERR_FILENO) (void)::close(std::exchange(end, ::fcntl(end, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)));
  pid_ = ::fork();
  if (pid_ == 0) {
    (void)::alarm(30 * static_cast<unsigned>(slowness()));  // the parent's watchdog isn't inherited
    if (keep != nullptr) close_others(*keep, pair[1]);
    Findings findings;
    run(findings);
    const std::string text = findings.text() + end_mark;
    (void)!::write(pair[1], text.data(), text.size());
    ::_exit(0);
  }
  (void)::close(pair[1]);
  read_ = pair[0];
}

Child::Child(const std::function<void(Findings&)>& run) { start(nullptr, run); }

Child::Child(const std::vector<int>& keep, const std::function<void(Findings&)>& run) { start(&keep, run); }

Child::~Child() {
  if (read_ < 0) return;
  (void)::kill(pid_, SIGKILL);
  (void)finish();
}

std::string Child::finish() {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; wait_readable(read_) && (got = ::read(read_, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  (void)::close(read_);
  read_ = -1;
  int status = -1;
  if (::waitpid(pid_, &status, 0) == pid_) wait_status_ = status;
  const std::size_t end = text.rfind(end_mark);
  if (end != std::string::npos) return text.substr(0, end);
  text += "the child did not come to its end";
  if (wait_status_ >= 0 && WIFSIGNALED(wait_status_)) text += ", signal " + std::to_string(WTERMSIG(wait_status_));
  return text;
}

std::string in_child(const std::function<void(Findings&)>& run) { return Child(run).finish(); }

Process::Process(const char* program, const char* form, int fd) {
  pid_ = ::fork();
  if (pid_ != 0) return;
  (void)::setenv("FEEDLANE_WORKER_FD", std::to_string(fd).c_str(), 1);
  (void)::fcntl(fd, F_SETFD, 0);
  (void)::execl(program, program, form, static_cast<char*>(nullptr));
  ::_exit(127);
}

Process::~Process() {
  if (waited_) return;
  kill(SIGKILL);
  (void)wait();
}

void Process::kill(int signal) const { (void)::kill(pid_, signal); }

int Process::wait() {
  waited_ = true;
  int status = -1;
  return ::waitpid(pid_, &status, 0) == pid_ ? status : -1;
}

std::vector<int> open_descriptors() {
  std::vector<int> fds;
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return fds;
  for (const dirent* entry = ::readdir(folder); entry != nullptr; entry = ::readdir(folder))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != ::dirfd(folder)) fds.push_back(std::atoi(entry->d_name));
  (void)::closedir(folder);
  std::sort(fds.begin(), fds.end());
  return fds;
}

std::size_t mappings_of(const std::string& name) {
  std::ifstream file("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(name) != std::string::npos ? 1 : 0;
  return count;
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  return file >> size >> resident ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

bool send_descriptors(int socket, std::string_view words, const std::vector<int>& descriptors) {
  const std::size_t bytes = descriptors.size() * sizeof(int);
  iovec part{const_cast<char*>(words.data()), words.size()};  // sendmsg doesn't write through it
  std::vector<std::max_align_t> control(CMSG_SPACE(bytes) / sizeof(std::max_align_t) + 1);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  return ::sendmsg(socket, &message, 0) == static_cast<ssize_t>(words.size());
}

int receive_descriptor(int socket) {
  char word = 0;
  iovec part{&word, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

namespace {

// The state in a `stat` file of /proc; X if it isn't there.
char state_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return 'X';
  const std::size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? 'X' : line[name_end + 2];
}

}  // namespace

char state_of(pid_t pid) { return state_in("/proc/" + std::to_string(pid) + "/stat"); }

bool is_running(pid_t pid) {
  const char state = state_of(pid);
  return state != 'Z' && state != 'X';
}

bool is_asleep(pid_t thread) { return state_in("/proc/self/task/" + std::to_string(thread) + "/stat") == 'S'; }

std::int64_t cpu_ns() {
  timespec t{};
  (void)::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience_ns);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace feedlane::test
