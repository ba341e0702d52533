// SPDX-License-Identifier: Apache-2.0
// Checks what the kernel offers, by trying it, and its settings that matter to loaders and monitors.
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "descriptor.hpp"
#include "doctor.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace observe {
namespace {

constexpr const char* sandbox_advice =
    "if the kernel is recent enough, a sandbox blocks the system call: allow it in the container's seccomp profile";

// "refused: " and why.
Json refused(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

Check check_version() {
  constexpr std::pair<int, int> least{5, 10};
  utsname name{};
  (void)::uname(&name);
  std::pair<int, int> version{0, 0};
  (void)std::sscanf(name.release, "%d.%d", &version.first, &version.second);
  Check c{"kernel", State::ok, name.release, fmt::format("{}.{}", least.first, least.second), "", {}, {}};
  if (version >= least) return c;
  c.state = State::problem;
  c.advice = "use a later kernel";
  return c;
}

// As the library creates its segments.
Check check_memfd() {
  Check c{"memfd", State::ok, "available", "available", "", {}, {}};
  constexpr unsigned not_executable = 8;  // MFD_NOEXEC_SEAL, Linux 6.3
  int made = ::memfd_create("feedlane-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING | not_executable);
  if (made < 0 && errno == EINVAL) made = ::memfd_create("feedlane-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const Descriptor fd(made);
  if (fd.get() < 0) {
    c.found = refused("memfd_create");
    c.advice = sandbox_advice;
  } else if (::ftruncate(fd.get(), 4096) != 0 || ::fallocate(fd.get(), 0, 0, 4096) != 0) {
    c.found = refused("fallocate");
    c.advice = "free memory, or raise RLIMIT_FSIZE: see memory, memory_limit and file_size";
  } else if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE) != 0) {
    c.found = refused("F_ADD_SEALS");
    c.advice = sandbox_advice;
  } else {
    return c;
  }
  c.state = State::problem;
  return c;
}

// Workers are watched, signalled and reaped by pidfd.
Check check_pidfd() {
  Check c{"pidfd", State::ok, "available", "available", "", {}, {}};
  const Descriptor self(::syscall(SYS_pidfd_open, ::getpid(), 0));
  siginfo_t info{};
  if (self.get() < 0) c.found = refused("pidfd_open");
  else if (::syscall(SYS_pidfd_send_signal, self.get(), 0, nullptr, 0) != 0) c.found = refused("pidfd_send_signal");
  // ECHILD: this process is not its own child, so the kernel has understood the question.
  else if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(self.get()), &info, WEXITED | WNOHANG) != 0 &&
           errno != ECHILD)
    c.found = refused("waitid of a pidfd");
  else return c;
  c.state = State::problem;
  c.advice = sandbox_advice;
  return c;
}

// Without it each message costs its publisher a fence, and an event loop can't be armed on a ring.
Check check_membarrier() {
  Check c{"membarrier", State::ok, "available", "available", "", {}, {}};
  const long offered = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  if (offered < 0) c.found = refused("membarrier");
  else if ((offered & MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) c.found = "not offered";
  else if (::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) != 0 ||
           ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0)
    c.found = refused("membarrier");
  else return c;
  c.state = State::warning;
  c.note = "each message of a ring costs a fence, and event loops cannot be armed on rings";
  c.advice = sandbox_advice;
  return c;
}

// The rule for pages of the size of a huge page, as the library reads it.
std::string huge_page_rule(const System& system) {
  const std::string folder = system.root + "/sys/kernel/mm/transparent_hugepage";
  const std::string rule = chosen_word(folder + "/shmem_enabled");
  const auto bytes = number_in(folder + "/hpage_pmd_size");
  if (rule.empty() || !bytes) return "absent";
  // Kernels from 6.11 on also have a setting for each size.
  const std::string of_size = chosen_word(fmt::format("{}/hugepages-{}kB/shmem_enabled", folder, *bytes / 1024));
  const bool inherits = of_size.empty() || of_size == "inherit" || rule == "deny" || rule == "force";
  return inherits ? rule : of_size;
}

Check check_huge_pages(const System& system, const Demand& demand) {
  const std::string rule = huge_page_rule(system);
  Check c{"huge_pages", State::ok, rule, Json(), "", "for shared memory; used by loaders of 8 MiB or more", {}};
  const bool none = rule == "absent" || rule == "never" || rule == "deny";
  if (!none || demand.small_pages == 0) return c;
  c.state = State::warning;
  c.needed = "advise";
  c.note = fmt::format("a loader has {} in small pages, so it starts, ends and recovers more slowly",
                       bytes_text(double(demand.small_pages)));
  c.advice = rule == "absent"
                 ? "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE"
                 : "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled, then start the "
                   "trainer again";
  return c;
}

// With strict accounting the kernel refuses memory that it could give: pages of segments, and the copy that a fork might need.
Check check_overcommit(const System& system) {
  const auto mode = number_in(system.proc("sys/vm/overcommit_memory"));
  Check c{"overcommit", State::ok, mode ? Json(*mode) : Json(), Json(), "", {}, {}};
  if (mode != std::uint64_t{2}) return c;
  const std::uint64_t limit = number_after(system.proc("meminfo"), "CommitLimit:").value_or(0) * 1024;
  const std::uint64_t used = number_after(system.proc("meminfo"), "Committed_AS:").value_or(0) * 1024;
  const std::uint64_t left = limit - std::min(limit, used);
  c.note = fmt::format("strict accounting: {} of {} are left", bytes_text(double(left)), bytes_text(double(limit)));
  if (left >= limit / 10) return c;
  c.state = State::warning;
  c.needed = 0;
  c.advice = "forks and segments may be refused: sudo sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio";
  return c;
}

// What may attach to a worker: gdb, py-spy. Monitors only read, which Yama does not restrict.
Check check_ptrace(const System& system) {
  constexpr int cap_sys_ptrace = 19;
  const auto scope = number_in(system.proc("sys/kernel/yama/ptrace_scope"));
  Check c{"ptrace", State::ok, scope ? Json(*scope) : Json("absent"), Json(), "", {}, {}};
  if (!scope || *scope == 0) return c;
  const bool may = has_capability(System{system.root, "self"}, cap_sys_ptrace);
  if (*scope >= 3) {
    c.state = State::warning;
    c.needed = 1;
    c.note = "no debugger may attach to a worker until the machine is restarted";
    c.advice = "set kernel.yama.ptrace_scope = 1 in /etc/sysctl.d and restart the machine";
  } else if (!may) {
    c.note = "gdb and py-spy need sudo to attach to a worker";
    c.advice = "sudo sysctl kernel.yama.ptrace_scope=0 to attach without sudo";
  }
  return c;
}

// Monitors find loaders by descriptors in /proc/PID/fd; the library reads its limits in /proc/self.
Check check_proc(const System& system) {
  Check c{"proc", State::ok, "0", Json(), "", "hidepid", {}};
  std::ifstream mounts(system.proc("self/mountinfo"));
  for (std::string line; std::getline(mounts, line);) {
    const std::size_t at = line.find("hidepid=");
    if (line.find(" /proc ") == std::string::npos || line.find(" - proc ") == std::string::npos) continue;
    c.found = at == std::string::npos ? "0" : line.substr(at + 8, line.find_first_of(", ", at) - at - 8);
  }
  if (::access(system.proc("self/fd").c_str(), R_OK | X_OK) != 0) {  // takes no descriptor
    c.state = State::problem;
    c.found = "unreadable";
    c.needed = "readable";
    c.advice = "mount /proc in this container or chroot";
  }
  return c;
}

}  // namespace

void check_kernel(const System& system, const Demand& demand, std::vector<Check>& out) {
  out.push_back(check_version());
  out.push_back(check_memfd());
  out.push_back(check_pidfd());
  out.push_back(check_membarrier());
  out.push_back(check_huge_pages(system, demand));
  out.push_back(check_overcommit(system));
  out.push_back(check_ptrace(system));
  out.push_back(check_proc(system));
}

}  // namespace observe
